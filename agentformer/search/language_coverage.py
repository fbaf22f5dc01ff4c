"""Does the embedder know this language? Its own tokenizer says so.

A model's vocabulary was made from the languages it was trained on: their words are one or two tokens. Words
of another language fall into many small pieces, and the vectors of such texts mean little. So tokens per
word (fertility) of the query and of the passages found tells how far the dense side may vote, with no list
of languages to keep. A model that declares its languages is believed; one behind a server, whose tokenizer is not at
hand, has to. Rust et al. 2021, "How Good is Your Tokenizer?", show the same measure to predict how well a model does
in a language.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from agentformer.text.languages import detect_language
from agentformer.types import Embedder, EmbeddingSpace

_WORD = re.compile(r"[^\W\d_]{3,}")  # numbers and short function words say little about a language

# Tokens per word: an English model takes about 1.2 for English prose and 2.5 or more for Finnish.
KNOWN = 1.6
UNKNOWN = 2.0


_KEPT = 50_000  # words whose tokens are remembered: nearly all that a language uses


class Knowledge:
    """Weighs the dense side by what the embedder can know of the texts at hand. Thread-safe."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._tokens: tuple[EmbeddingSpace | None, dict[str, int]] = None, {}  # of words, and whose they are

    @property
    def judges(self) -> bool:
        """Does the weight depend on the texts?"""
        return self._embedder.space.languages != "*"

    def dense_weight(self, texts: Sequence[str]) -> float:
        """1.0 for texts that the embedder reads well, 0.0 for ones it does not, between them in between."""
        declared = self._embedder.space.languages
        if declared == "*":
            return 1.0
        if declared:
            detected = detect_language(" \n".join(texts))
            return float(not detected or detected in declared.split())
        fertility = self.fertility(" \n".join(texts))
        return min(1.0, max(0.0, (UNKNOWN - fertility) / (UNKNOWN - KNOWN)))

    def fertility(self, text: str) -> float:
        """Tokens per word; 1.0 for a text without words. A tokenizer reads word by word, so each is asked for once."""
        words = _WORD.findall(text)
        if not words:
            return 1.0
        space = self._embedder.space
        whose, known = self._tokens
        if whose != space or len(known) > _KEPT:
            known = {}
            self._tokens = space, known
        new = [word for word in dict.fromkeys(words) if word not in known]
        if new:
            known.update(zip(new, _token_counts(self._embedder, new), strict=True))
        return sum(known[word] for word in words) / len(words)


def _token_counts(embedder: Embedder, words: Sequence[str]) -> list[int]:
    """How many tokens each word has, from one look at all of them."""
    ends = list(accumulate(len(word) + 1 for word in words))  # of each word and the space behind it
    counts = [0] * len(words)
    for span in embedder.token_spans(" ".join(words)):
        counts[min(bisect_left(ends, span.end), len(words) - 1)] += 1
    return counts
