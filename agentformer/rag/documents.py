"""Descriptions of uploaded documents."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from agentformer.types import DocumentStatus, MemoryEntry, Page

FORMER_KEPT = " (the former version of the document is kept)"  # added to the reason of an unusable new version
METADATA_REPLACED = "the metadata were replaced"  # the reason if the bytes were stored already, but with other metadata


@dataclass(frozen=True, slots=True)
class Document:
    """An uploaded document. `reason` says why the file or a page has no usable text. `id` is "" if no document is
    stored."""

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
    unchanged: bool = False  # true if the document was already stored with the same bytes
    replaced: str = ""  # the id of the former version that this upload has replaced
    metadata: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""  # the absolute path of the file, or its URL; "" for an upload without a path
    root: str = ""  # the absolute path of the uploaded folder; "" if a single file was uploaded
    reason_code: str = ""  # the reason for programs, see `ReasonCode`
    unread_pages: int = 0  # pages that are not blank and have no usable text
    former_kept: bool = False  # true if the former version is kept, because the new one has no usable text
    stamp: str = ""  # changes when the file changes; "" if the document was not stored by a sync


def document_of(entry: MemoryEntry) -> Document:
    """Return the `Document` that a stored entry of the kind `document` describes."""
    keys = ("name", "status", "reason", "pages", "chunks", "media_type", "sha256", "bytes")
    fields = {key: entry.metadata[key] for key in keys}
    later = {"origin": "", "root": "", "stamp": "", "reason_code": "", "unread_pages": 0}  # absent in older versions
    fields |= {key: entry.metadata.get(key, default) for key, default in later.items()}
    return Document(namespace=entry.namespace, id=entry.id, metadata=entry.metadata["given"], **fields)


def page_of(entry: MemoryEntry) -> Page:
    """Return the `Page` that a stored entry of the kind `page` describes. A stored page has no headings."""
    number, label = (entry.source.page or 0, entry.source.label) if entry.source else (0, "")
    state = {name: entry.metadata[name] for name in ("status", "reason", "method")}
    state["reason_code"] = entry.metadata.get("reason_code", "")  # absent in older versions
    return Page(number=number, text=entry.content, label=label, **state)


class KeyedLock:
    """A lock for each key: threads with the same key wait for each other. A lock exists only while it is used."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()
        self._guard = threading.Lock()

    @contextmanager
    def hold(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of `key` inside a `with` block. Waits while another thread holds the lock."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            yield
