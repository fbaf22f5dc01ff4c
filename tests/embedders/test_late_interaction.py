"""Late interaction: how alike a question and texts are by the vectors of their tokens."""

from __future__ import annotations

import re

import numpy as np
import pytest

from agentformer.embedders.late_interaction import AskedTokens, Likeness, least_alike, likeness, word_tokens
from agentformer.types import Span, TokenVectors

_AXES = {"who": 0, "anna": 0, "built": 1, "builds": 1, "crane": 2, "the": 3, "bought": 4}


def read(text: str) -> TokenVectors:
    """Return vectors of words: two words are alike if they have the same axis."""
    found = list(re.finditer(r"\w+|[^\w\s]", text))
    rows = np.zeros((len(found), 6), dtype=np.float32)
    for row, match in zip(rows, found, strict=True):
        row[_AXES.get(match[0].casefold(), 5)] = 1.0
    return TokenVectors(rows[0], tuple(Span(*match.span()) for match in found), rows)


def compared(question: str, *texts: str, baseline: float = 0.0) -> dict[int, Likeness]:
    asked = AskedTokens(question, read(question), {"who"}, {"the"})
    nearest = {n: asked.nearest(text, read(text), word_tokens(text, read(text))) for n, text in enumerate(texts)}
    return likeness(nearest, baseline)


def test_each_token_of_the_question_has_its_nearest_token_in_the_text() -> None:
    found = compared("Who built the crane?", "The crane.", "Anna built the crane.")
    assert found[0].likeness < 0.5 and found[1].likeness == pytest.approx(1.0), "two of four tokens are in the first"


def test_a_token_that_all_texts_have_tells_little() -> None:
    found = compared("Who built the crane?", "The crane.", "Built.")
    assert found[0].likeness == pytest.approx(0.3 * 0.5 + 0.5 * 2 / 3, abs=0.01), "`who` is near to no text"
    assert found[1].likeness == pytest.approx(0.3 * 0.25 + 0.5 * 1 / 3, abs=0.01)


def test_what_answers_the_interrogative_is_no_word_of_the_question() -> None:
    found = compared("Who built the crane?", "Anna built the crane.", "Who built the crane?", "The crane was bought.")
    assert [each.asked for each in found.values()] == [1.0, 0.0, 0.0]


def test_the_interrogative_may_stand_inside_the_question() -> None:
    found = compared("And who built the crane?", "Anna built the crane.", "The crane was bought.")
    assert [each.asked for each in found.values()] == [1.0, 0.0]


def test_the_baseline_of_unrelated_texts_is_nought() -> None:
    found = compared("Who built the crane?", "Anna built the crane.", "The crane.", baseline=0.5)
    assert found[0].likeness == pytest.approx(1.0) and found[1].likeness < 0.0


def test_a_text_that_was_not_compared_has_the_smallest_values() -> None:
    assert least_alike([Likeness(0.5, 0.0), Likeness(0.3, 0.6)]) == Likeness(0.3, 0.0)
    assert least_alike([]) == Likeness() and likeness({}, 0.0) == {}


def test_only_tokens_with_a_letter_or_a_digit_are_compared() -> None:
    text = "Who built it, in 1921?"
    assert [text[start:end] for start, end in word_tokens(text, read(text)).values()] == [
        "Who",
        "built",
        "it",
        "in",
        "1921",
    ]
    asked = AskedTokens(text, read(text), {"who"}, ())
    assert (asked.count, asked.letters) == (5, 16)
