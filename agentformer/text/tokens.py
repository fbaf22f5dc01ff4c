"""Token offsets without a model, for when none can be loaded: a cautious estimate that counts high."""

from __future__ import annotations

import re

from agentformer.types import Span

# Subword vocabularies of other languages than the text's need about a token for each three letters.
_PIECE = re.compile(r"\w{1,3}|[^\w\s]")


def estimated_spans(text: str) -> list[Span]:
    """Pieces that a subword tokenizer would hardly split further: limits kept with them are kept with it."""
    return [Span(match.start(), match.end()) for match in _PIECE.finditer(text)]
