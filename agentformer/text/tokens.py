"""Estimate token offsets without a model. The estimate is usually higher than the true number of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentformer.errors import EmbedderUnavailable
from agentformer.types import Embedder, Span

# A subword vocabulary of another language needs about one token per three letters.
_PIECE = re.compile(r"\w{1,3}|[^\w\s]")


def estimated_spans(text: str) -> list[Span]:
    """Return pieces that a subword tokenizer would rarely split further. So a text that has at most n pieces rarely has
    more than n tokens."""
    return [Span(match.start(), match.end()) for match in _PIECE.finditer(text)]


def token_counter(embedder: Embedder) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text. The embedder's model counts them, or they are estimated if
    the model is not loaded."""

    def count(text: str) -> int:
        try:
            return len(embedder.token_spans(text))
        except EmbedderUnavailable:
            return len(estimated_spans(text))

    return count
