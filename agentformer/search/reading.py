"""Reads entries from a backend without a query: all entries of a scope, and the entry of a document."""

from __future__ import annotations

from collections.abc import Iterator

from agentformer.errors import NotFound
from agentformer.types import MemoryBackend, MemoryEntry, MemorySnapshot, Scope

_PAGE = 1000  # entries read at a time


def all_entries(backend: MemoryBackend | MemorySnapshot, scope: Scope, limit: int = _PAGE) -> Iterator[MemoryEntry]:
    """Yield all entries of the scope in the order of their ids. At most `limit` entries are read at a time."""
    after = ""
    while page := backend.list(scope, after=after, limit=limit):
        yield from page
        after = page[-1].id


def existing_document(
    backend: MemoryBackend, document_id: str, namespace: str | None, user_id: str | None = None
) -> MemoryEntry:
    """Return the entry of the document with this id. Raises `NotFound` if the namespace has no such document, or if it
    belongs to another user than `user_id`. If `namespace` or `user_id` is None, it does not matter."""
    entries = backend.get([document_id])
    foreign = entries and user_id is not None and entries[0].user_id not in (None, user_id)
    if not entries or entries[0].kind != "document" or namespace not in (None, entries[0].namespace) or foreign:
        place = f" in namespace {namespace}" if namespace else ""
        raise NotFound(f"there is no document {document_id}{place}; `agentformer list` shows the documents")
    return entries[0]
