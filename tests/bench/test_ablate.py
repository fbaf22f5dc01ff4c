"""The table of `bench.ablate`, on examples whose result is known."""

from __future__ import annotations

import numpy as np

from agentformer.rag.answer.confidence import QuoteFeatures
from agentformer.rag.answer.features import Features
from bench.ablate import Effect, of_confidence, of_sentences, table
from bench.answers import Measured
from bench.answers_fit import Example, Judged


def measured(seed: int) -> Measured:
    """Return questions that the words of the right sentence answer, and answers that are right if they are sure."""
    rng, examples, judged = np.random.default_rng(seed), [], []
    for n in range(60):
        right = np.arange(4) == rng.integers(4)
        rows = [Features(words=0.5 * hit + 0.1 * rng.uniform(), phrase=rng.uniform()) for hit in right]
        examples.append(Example(n, np.array(rows), right))
        score = rng.uniform(0.05, 0.95)
        judged.append(Judged(n, QuoteFeatures(score, rng.uniform()), bool(rng.uniform() < score)))
    return Measured([], examples, judged, [])


def test_a_mechanism_that_answers_gives_and_one_that_does_not_gives_nothing() -> None:
    found = {"one": measured(1), "other": measured(2)}
    gains = {each.mechanism: each.on.mean() - each.off.mean() for each in of_sentences(found, ("one",))}
    assert gains["words"] > 0.4 and gains["heading"] == 0
    errors = {each.mechanism: each.on.mean() - each.off.mean() for each in of_confidence(found, ("one",))}
    assert errors["score"] > 0.02 > abs(errors["about"])


def test_the_table_has_a_row_for_each_mechanism_with_its_interval() -> None:
    better = Effect("words", np.ones(50), np.array([0.0, 1.0] * 25))
    lines = table("first", {"facts": [better], "pages": [Effect("words", np.ones(9), np.ones(9))]})
    assert lines[0] == "\n| first | facts | pages |"
    assert lines[2].startswith("| words | +0.500 (+0.3") and lines[2].endswith("| +0.000 (+0.000 to +0.000) |")
