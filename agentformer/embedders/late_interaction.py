"""Late interaction: texts are compared with a question by the vectors of their tokens (Khattab and Zaharia, SIGIR 2020,
"ColBERT")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from agentformer.types import Span, TokenVectors, Vector

_EVEN = 1e-3  # weight of a token that is equally near to all texts
_OF_MEAN, _OF_TELLING, _OF_LEAST = 0.3, 0.5, 0.2  # shares of a likeness
_LEAST = 5  # one in this many tokens belongs to the least similar ones


class Likeness(NamedTuple):
    """Measures of the likeness of a question and a text, each about 0..1; unrelated texts have 0. `likeness` is the
    mean cosine of the question's tokens with the nearest tokens of the text, with more weight for tokens that are near
    to only a few texts and for the least similar tokens. `asked` shows whether the text has an answer to the
    interrogative ("who", "which year"). It is the mean cosine of the interrogative's tokens with the nearest of those
    tokens of the text that the question does not contain."""

    likeness: float = 0.0
    asked: float = 0.0


class AskedTokens:
    """The tokens of a question that have a letter or a digit. `asking` are the casefolded words of the interrogative.
    `frequent` are words that answer nothing, such as "the"."""

    def __init__(self, text: str, read: TokenVectors, asking: Collection[str], frequent: Collection[str]) -> None:
        self.vector = read.vector
        self._folded, self._frequent = text.casefold(), frequent
        spans = word_tokens(text, read)
        self.count, self.letters = len(spans), sum(end - start for start, end in spans.values())
        self._rows = read.rows[list(spans)]
        self._asking = np.array([_word_at(text, span) in asking for span in spans.values()], dtype=bool)

    def nearest(self, text: str, read: TokenVectors, tokens: Mapping[int, Span]) -> tuple[Vector, float]:
        """Compare the question with the tokens `tokens` of a text (index in `read` -> span in `text`; at least one).
        Return two values. The first contains, for each token of the question, its cosine with the nearest token of the
        text. The second is the mean of these cosines over the words of the interrogative, but computed only with those
        tokens of the text that are not in the question and not frequent. It is 0 if there are no such tokens, or if the
        question has no interrogative."""
        inside = list(tokens)
        cosines = self._rows @ read.rows[inside].T  # (tokens of the question, tokens of the text)
        written = [text[span.start : span.end].casefold() for span in tokens.values()]
        new = [n for n, each in enumerate(written) if each not in self._folded and each not in self._frequent]
        nothing_to_compare = not new or not self._asking.any()
        asked = 0.0 if nothing_to_compare else float(cosines[self._asking][:, new].max(axis=1).mean())
        return cosines.max(axis=1), asked


def likeness(nearest: Mapping[int, tuple[Vector, float]], baseline: float) -> dict[int, Likeness]:
    """Return a dictionary: number of a text -> its likeness. `nearest` has the results of `AskedTokens.nearest`.
    `baseline` is the mean cosine of the tokens of unrelated texts; a cosine of this value gives the likeness 0."""
    if not nearest:
        return {}
    cosines = (np.array([row for row, _ in nearest.values()]) - baseline) / (1 - baseline)  # (texts, tokens)
    spread = cosines.max(axis=0) - cosines.mean(axis=0) + _EVEN
    telling = cosines @ (spread / spread.sum())
    few = max(1, cosines.shape[1] // _LEAST)
    least = np.sort(cosines, axis=1)[:, :few].mean(axis=1)
    values = _OF_MEAN * cosines.mean(axis=1) + _OF_TELLING * telling + _OF_LEAST * least
    return {
        n: Likeness(float(value), max(0.0, (asked - baseline) / (1 - baseline)))
        for (n, (_, asked)), value in zip(nearest.items(), values, strict=True)
    }


def least_alike(found: Iterable[Likeness]) -> Likeness:
    """Return a `Likeness` for texts that were not compared, because they seem to be less similar than the texts in
    `found`: each value is the smallest one in `found`."""
    columns = list(zip(*found, strict=True))
    return Likeness(*map(min, columns)) if columns else Likeness()


def word_tokens(text: str, read: TokenVectors) -> dict[int, Span]:
    """Return a dictionary: index of each token with a letter or a digit -> its span in `text`."""
    return {n: span for n, span in enumerate(read.spans) if any(map(str.isalnum, text[span.start : span.end]))}


def _word_at(text: str, span: Span) -> str:
    """Return the casefolded word that contains a token."""
    start, end = span
    while start and text[start - 1].isalnum():
        start -= 1
    while end < len(text) and text[end].isalnum():
        end += 1
    return text[start:end].casefold()
