"""Parts that the adapters share: the error for a missing framework, and the metadata of a hit."""

from __future__ import annotations

from typing import Any

from agentformer.errors import MissingExtra
from agentformer.types import Hit


def missing(extra: str, error: ImportError) -> MissingExtra:
    """Return the error for a framework that is not installed."""
    return MissingExtra(extra, f"agentformer.integrations.{extra}", error)


def hit_metadata(hit: Hit) -> dict[str, Any]:
    """Return the metadata of the entry, together with its id, its kind, its score and its place in a document."""
    entry, source = hit.entry, hit.entry.source
    own: dict[str, Any] = {"entry_id": entry.id, "kind": entry.kind, "score": hit.score}
    if entry.title:
        own["title"] = entry.title
    if entry.occurred_at is not None:
        own["occurred_at"] = entry.occurred_at.isoformat()
    if source is not None:
        own |= {"document_id": source.document_id, "source": source.name, "page": source.page, "label": source.label}
        own |= {"start": source.start, "end": source.end}
    return {**entry.metadata, **own}
