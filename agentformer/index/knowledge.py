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
from collections.abc import Sequence

from agentformer.text.languages import detect_language
from agentformer.types import Embedder

_WORD = re.compile(r"[^\W\d_]{3,}")  # numbers and short function words say little about a language

# Tokens per word: an English model takes about 1.2 for English prose and 2.5 or more for Finnish.
KNOWN = 1.6
UNKNOWN = 2.0


class Knowledge:
    """Weighs the dense side by what the embedder can know of the texts at hand."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

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
        """Tokens per word; 1.0 for a text without words."""
        words = _WORD.findall(text)
        if not words:
            return 1.0
        return len(self._embedder.token_spans(" ".join(words))) / len(words)
