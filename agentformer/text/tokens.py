"""Token offsets without a model, for when none can be loaded: a cautious estimate that counts high."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentformer.errors import EmbedderUnavailable
from agentformer.types import Embedder, Span

# Subword vocabularies of other languages than the text's need about a token for each three letters.
_PIECE = re.compile(r"\w{1,3}|[^\w\s]")


def estimated_spans(text: str) -> list[Span]:
    """Pieces that a subword tokenizer would hardly split further: limits kept with them are kept with it."""
    return [Span(match.start(), match.end()) for match in _PIECE.finditer(text)]


def token_counter(embedder: Embedder) -> Callable[[str], int]:
    """Return a function that counts a text's tokens by the embedder's model, or estimates them if it is not loaded."""

    def count(text: str) -> int:
        try:
            return len(embedder.token_spans(text))
        except EmbedderUnavailable:
            return len(estimated_spans(text))

    return count
