"""How many tokens a text has."""

from __future__ import annotations

from collections.abc import Callable

from agentformer.errors import EmbedderUnavailable
from agentformer.text.tokens import estimated_spans
from agentformer.types import Embedder


def token_counter(embedder: Embedder) -> Callable[[str], int]:
    """How many tokens a text has for the embedder's model; a cautious estimate while it cannot be loaded."""

    def count(text: str) -> int:
        try:
            return len(embedder.token_spans(text))
        except EmbedderUnavailable:
            return len(estimated_spans(text))

    return count
