"""Estimates the tokens of a text without a model. The estimated number of tokens is usually higher than the true
number."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentformer.errors import EmbedderUnavailable
from agentformer.types import Embedder, Span

# A subword vocabulary of another language needs about one token per three letters.
_PIECE = re.compile(r"\w{1,3}|[^\w\s]")


def estimated_spans(text: str) -> list[Span]:
    """Return the spans of estimated tokens: one to three letters or digits, or one other character. A text rarely has
    more true tokens than estimated tokens."""
    return [Span(match.start(), match.end()) for match in _PIECE.finditer(text)]


def token_counter(embedder: Embedder) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text with the model of the embedder. If the embedder cannot be
    used, the function returns an estimate."""

    def count(text: str) -> int:
        try:
            return len(embedder.token_spans(text))
        except EmbedderUnavailable:
            return len(estimated_spans(text))

    return count
