"""What is known of an uploaded document, as its entry tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentformer.types import DocumentStatus, MemoryEntry


@dataclass(frozen=True, slots=True)
class Document:
    """An uploaded document. `id` is "" for a file of which nothing was kept."""

    name: str
    namespace: str
    status: DocumentStatus
    reason: str = ""
    id: str = ""
    pages: int = 0
    chunks: int = 0
    media_type: str = ""
    sha256: str = ""
    bytes: int = 0
    unchanged: bool = False  # these bytes were here already
    metadata: Mapping[str, Any] = field(default_factory=dict)


def describe(entry: MemoryEntry) -> Document:
    """The document that a document entry records."""
    data = entry.metadata
    return Document(
        name=data["name"],
        namespace=entry.namespace,
        status=data["status"],
        reason=data["reason"],
        id=entry.id,
        pages=data["pages"],
        chunks=data["chunks"],
        media_type=data["media_type"],
        sha256=data["sha256"],
        bytes=data["bytes"],
        metadata=data["given"],
    )
