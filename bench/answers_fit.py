"""Fit the weights of `rag/answer/sentences.py` to questions with even numbers: `python -m bench.answers --fit`.

The score of a sentence is a weighted sum of its features. The probability that a sentence answers its question is the
softmax of the scores over the sentences of the three hits. The fit maximises the probability of the sentences whose
quote holds the answer, with the same weight for each set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentformer.rag.answer.features import Features
from agentformer.rag.answer.passages import read_passages
from agentformer.rag.answer.sentences import knows_language, rank_sentences
from agentformer.text.analysis import analyze_query
from agentformer.types import Answer, Embedder

_STEPS = 40  # of Newton's method
_RIDGE = 0.02  # of each weight, per set


@dataclass(frozen=True)
class Example:
    """A question with the features of its sentences, shape (sentences, features), and which quotes hold the answer."""

    number: int
    features: np.ndarray[Any, np.dtype[np.float64]]
    right: np.ndarray[Any, np.dtype[np.bool_]]
    embedded: bool


def example(
    number: int, question: str, right: Callable[[str, int | None, str], bool], answer: Answer, embedder: Embedder | None
) -> Example:
    """Return the example of a question that was answered."""
    known = knows_language(answer.hits)
    ranked = rank_sentences(analyze_query(question), read_passages(answer.hits), embedder if known else None)
    holds = []
    for sentence in ranked:
        source = sentence.hit.entry.source
        holds.append(source is not None and right(source.name, source.page, sentence.quote))
    return Example(number, np.array([s.features for s in ranked]), np.array(holds), known)


def fitted(examples: Mapping[str, Sequence[Example]]) -> Iterator[str]:
    """Yield the fitted weights, without and with cosines, as lines of code."""
    for name, cosine in (("_WEIGHTS", False), ("_WEIGHTS_WITH_COSINE", True)):
        used = [n for n, field in enumerate(Features._fields) if cosine or field != "cosine"]
        chosen = {
            set_name: [e for e in each if e.number % 2 == 0 and e.right.any() and not e.right.all()]
            for set_name, each in examples.items()
        }
        weights = fit({n: each for n, each in chosen.items() if each}, used)
        values = ", ".join(f"{field}={weights[n]:.1f}" for n, field in enumerate(Features._fields) if n in used)
        yield f"{name} = Features({values})"


def fit(examples: Mapping[str, Sequence[Example]], used: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the weights of all features; a feature that is not `used` has the weight 0."""
    beta = np.zeros(len(used))
    for _ in range(_STEPS):
        slope, curve = -_RIDGE * beta * len(examples), _RIDGE * np.eye(len(used)) * len(examples)
        for each in examples.values():
            for one in each:
                x = one.features[:, used]
                all_, right = _softmax(x @ beta), _softmax(np.where(one.right, x @ beta, -np.inf))
                slope += (right - all_) @ x / len(each)
                centred = x - all_ @ x
                curve += (centred * all_[:, None]).T @ centred / len(each)
        step = np.linalg.solve(curve, slope)
        beta += step
        if np.abs(step).max() < 1e-3:
            break
    weights = np.zeros(len(Features._fields))
    weights[list(used)] = beta
    return weights


def _softmax(scores: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    odds: np.ndarray[Any, np.dtype[np.float64]] = np.exp(scores - scores.max())
    return odds / odds.sum()
