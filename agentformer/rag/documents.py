"""Uploaded documents, and the entries that store them."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Annotated, Any
from weakref import WeakValueDictionary

from agentformer.types import REASON_CODE, DocumentStatus, DocumentText, MemoryEntry, Page, Shown, new_id

FORMER_KEPT = " (the former version of the document is kept)"  # added to the reason of an unusable new version
METADATA_REPLACED = "the metadata were replaced"  # the reason if the bytes were stored already, but with other metadata
STORED: DocumentStatus = "stored"  # the status of a document whose file is stored and not read
_REASON = "the file is stored and not read; upload it, or add it to a vector store, so that a search can find its text"
NOT_READ = DocumentText("", (), status=STORED, reason=_REASON, reason_code="stored")
_MAX_TITLE = 300  # code points; the title is stored with every chunk


@dataclass(frozen=True, slots=True)
class Document:
    """An uploaded document. `reason` says why the file or a page has no usable text."""

    name: str
    namespace: str
    status: DocumentStatus
    reason: str = ""
    id: Annotated[str, Shown("The id is empty if the file was not stored, or if the key has no right to read.")] = ""
    pages: int = 0
    chunks: int = 0
    media_type: str = ""
    sha256: Annotated[str, Shown("The SHA-256 of the original file in hexadecimal.")] = ""
    bytes: int = 0
    unchanged: Annotated[bool, Shown("True if this document was stored already with the same bytes.")] = False
    replaced: Annotated[
        str,
        Shown(
            "The id of the former version that this upload has replaced, or an empty text. "
            "The id is also empty if the key has no right to read."
        ),
    ] = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""  # the absolute path of the file, or its URL; "" for an upload without a path
    root: str = ""  # the absolute path of the uploaded folder; "" if a single file was uploaded
    reason_code: Annotated[str, Shown(REASON_CODE)] = ""  # see `ReasonCode`
    unread_pages: Annotated[
        int,
        Shown(
            "The number of pages that have no usable text and are not blank. A document may be `ready` without these "
            "pages."
        ),
    ] = 0
    former_kept: Annotated[
        bool, Shown("True if the upload has no usable text, and the former version is kept for this reason.")
    ] = False
    stamp: str = ""  # changes when the file changes; "" if the document was not stored by a sync
    user_id: Annotated[str | None, Shown("The user to whom the document belongs, or null: it belongs to no user.")] = (
        None
    )


def document_of(entry: MemoryEntry) -> Document:
    """Return the `Document` that a stored entry of the kind `document` describes."""
    keys = ("name", "status", "reason", "pages", "chunks", "media_type", "sha256", "bytes")
    fields = {key: entry.metadata[key] for key in keys}
    later = {"origin": "", "root": "", "stamp": "", "reason_code": "", "unread_pages": 0}  # absent in older versions
    fields |= {key: entry.metadata.get(key, default) for key, default in later.items()}
    fields |= {"namespace": entry.namespace, "user_id": entry.user_id}
    return Document(id=entry.id, metadata=entry.metadata["given"], **fields)


def page_of(entry: MemoryEntry) -> Page:
    """Return the `Page` that a stored entry of the kind `page` describes. A stored page has no headings."""
    number, label = (entry.source.page or 0, entry.source.label) if entry.source else (0, "")
    state = {name: entry.metadata[name] for name in ("status", "reason", "method")}
    state["reason_code"] = entry.metadata.get("reason_code", "")  # absent in older versions
    return Page(number=number, text=entry.content, label=label, **state)


def document_entry(document: Document, text: DocumentText, *, chunks: int = 0, language: str = "") -> MemoryEntry:
    """Return the entry to store for a document itself, without its pages and chunks."""
    return MemoryEntry(
        id=new_id(),
        content=document.name,
        kind="document",
        namespace=document.namespace,
        user_id=document.user_id,
        title=text.title[:_MAX_TITLE],
        metadata={
            "name": document.name,
            "sha256": document.sha256,
            "bytes": document.bytes,
            "media_type": text.media_type,
            "pages": len(text.pages),
            "chunks": chunks,
            "status": text.status,
            "reason": text.reason,
            "reason_code": text.reason_code,
            "unread_pages": sum(page.status != "text" and page.reason_code != "blank" for page in text.pages),
            "language": language,
            "given": dict(document.metadata),
            "origin": document.origin,
            "root": document.root,
            **({"stamp": document.stamp} if document.stamp else {}),
        },
    )


def copies(
    same: MemoryEntry, parts: Iterable[MemoryEntry], upload: Document, *, renamed: bool = False
) -> list[MemoryEntry]:
    """Return copies of the entry of a document and of its parts, its pages and chunks, with new ids and with the
    metadata of the upload. If `renamed` is true, they also get the name, the origin and the stamp of the upload. A
    version that an older agentformer stored without an origin gets the origin of the upload."""
    language, given = same.metadata.get("language", ""), same.metadata.get("given", {})
    origin = {"origin": upload.origin, "root": upload.root} if upload.origin else {}
    metadata = {**origin, **same.metadata, "given": {**upload.metadata}}
    root = replace(same, id=new_id(), metadata=metadata, updated_at=None, version=1)
    made = [root]
    for part in parts:
        assert part.source is not None  # every part of a document has a source
        copy = replace(
            part,
            id=new_id(),
            parent_id=root.id,
            source=replace(part.source, document_id=root.id),
            updated_at=None,
            version=1,
        )
        if part.kind == "chunk":
            own = {name: value for name, value in part.metadata.items() if name not in given}  # such as its lines
            copy = replace(copy, metadata={**own, "language": language, **upload.metadata})
        made.append(copy)
    return [_renamed(entry, upload) for entry in made] if renamed else made


def _renamed(entry: MemoryEntry, document: Document) -> MemoryEntry:
    """Return an entry of a renamed document with the new name. `entry` is the entry of the document itself, of a page
    or of a chunk. Only the entry of the document itself also gets the new origin and the new stamp of the file (see
    `folder_sync`). The title of a chunk is made of the file's name; a page has no title."""
    if entry.kind == "document":
        place = {"name": document.name, "origin": document.origin, "root": document.root, "stamp": document.stamp}
        return replace(entry, content=document.name, metadata={**entry.metadata, **place})
    assert entry.source is not None
    title = PurePath(document.name).stem if entry.kind == "chunk" else entry.title
    return replace(entry, title=title, source=replace(entry.source, name=document.name))


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
