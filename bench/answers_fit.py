"""Fit the weights of sentences (`rag/answer/quotes.py`) and of the confidence (`rag/answer/confidence.py`) to
questions with even numbers: `python -m bench.answers --fit`.

The score of a sentence is a weighted sum of its features. The probability that a sentence answers its question is the
softmax of the scores over the sentences of the three hits. The fit maximises the probability of the sentences whose
quote holds the answer, with the same weight for each set. The confidence is a logistic function. Quotes that
are certainly about something else are left out of its fit.

The confidence is also fitted to four of five parts of the questions and compared with the fifth. Questions about one
passage are in one part, because the answer of one tells about another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentformer.rag.answer.confidence import QuoteFeatures
from agentformer.rag.answer.features import Features
from agentformer.rag.answer.quotes import RankedSentence

Floats = np.ndarray[Any, np.dtype[np.float64]]
_PARTS = 5  # of the questions
_STEPS = 40  # of Newton's method
_RIDGE = 0.02  # of each coefficient of the confidence
_RIDGE_OF_SENTENCES = 0.001  # of each weight of a sentence, per set


@dataclass(frozen=True)
class Example:
    """A question with the features of its sentences, shape (sentences, features), and which quotes hold the answer."""

    number: int
    features: Floats
    right: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Judged:
    """A question with the values of its confidence, and whether its first quote is right. `documents` are the names of
    the documents with the answer."""

    number: int
    grounds: QuoteFeatures
    right: bool
    documents: frozenset[str] = frozenset()

    @property
    def part(self) -> int:
        """The number of the part of the questions that this question belongs to. Questions about the same passage
        belong to the same part."""
        return zlib.crc32(min(self.documents, default=str(self.number)).encode()) % _PARTS


def example(
    number: int, right: Callable[[str, int | None, str], bool], ranked: Sequence[RankedSentence]
) -> Example | None:
    """Return the example of a question with its ranked sentences, or None if there are none."""
    holds = []
    for sentence in ranked:
        source = sentence.hit.entry.source
        holds.append(source is not None and right(source.name, source.page, sentence.text))
    if not ranked:
        return None
    return Example(
        number,
        np.array([s.features for s in ranked]),
        np.array(holds),
    )


def fitted(examples: Mapping[str, Sequence[Example]]) -> str:
    """Return the fitted weights as a line of code."""
    chosen = {
        set_name: [e for e in each if e.number % 2 == 0 and e.right.any() and not e.right.all()]
        for set_name, each in examples.items()
    }
    weights = fit({n: each for n, each in chosen.items() if each})
    values = ", ".join(f"{field}={weights[n]:.1f}" for n, field in enumerate(Features._fields))
    return f"_WEIGHTS = Features({values})"


def fit(examples: Mapping[str, Sequence[Example]], without: str = "") -> Floats:
    """Return the weights of all features. The feature with the name `without` has the weight 0."""
    used = [n for n, field in enumerate(Features._fields) if field != without]
    beta = np.zeros(len(used))
    ridge = _RIDGE_OF_SENTENCES * len(examples)
    for _ in range(_STEPS):
        slope, curve = -ridge * beta, ridge * np.eye(len(used))
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
    weights[used] = beta
    return weights


def confidence_fitted(judged: Mapping[str, Sequence[Judged]], without: int | None = None) -> list[float]:
    """Return the coefficients of the confidence. Each set has the same weight. The value with the index `without` is
    taken as 0."""
    inputs, right, weights = [], [], []
    for each in judged.values():
        used = [one for one in each if not one.grounds.elsewhere and one.number % 2 == 0]
        inputs += [one.grounds.values for one in used]
        right += [float(one.right) for one in used]
        weights += [1 / max(1, len(used))] * len(used)
    scale = len(weights) / sum(weights)
    values = np.array(inputs)
    if without is not None:
        values[:, without] = 0.0
    return logistic(values, np.array(right), np.array(weights) * scale, _RIDGE).tolist()


def confidences_by_parts(judged: Mapping[str, Sequence[Judged]]) -> Iterator[tuple[str, float, float, bool]]:
    """Yield for each question with an even number its set, the confidence of the code, the confidence of a fit without
    its part of the questions, and whether its first quote is right. If the two confidences are about equally honest,
    the coefficients in the code belong to its present features."""
    fits = [
        confidence_fitted({name: [one for one in each if one.part != part] for name, each in judged.items()})
        for part in range(_PARTS)
    ]
    for name, each in judged.items():
        for one in each:
            if one.number % 2 == 0:
                yield name, one.grounds.confidence, one.grounds.confidence_by(fits[one.part]), one.right


def logistic(x: Floats, y: Floats, weights: Floats, ridge: float = 1e-3) -> Floats:
    """Return the coefficients of a logistic regression by Newton's method. The rows of `x` are the inputs, `y` (0 or 1)
    are the results. The ridge keeps the coefficient of a column without an effect at 0."""
    beta = np.zeros(x.shape[1])
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-x @ beta))
        slope = x.T @ (weights * (y - p)) - ridge * beta
        curve = (x * (weights * p * (1 - p))[:, None]).T @ x + ridge * np.eye(len(beta))
        beta += np.linalg.solve(curve, slope)
    return beta


def _softmax(scores: Floats) -> Floats:
    odds: Floats = np.exp(scores - scores.max())
    return odds / odds.sum()
