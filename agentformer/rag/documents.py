"""Uploaded documents: a description of each document, and the folder of the original files."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from agentformer.errors import NotFound, StoreError, StoreFull
from agentformer.records.files import read_file, write_atomically
from agentformer.types import DocumentStatus, MemoryEntry, Page

if TYPE_CHECKING:
    from filelock import FileLock

FORMER_KEPT = " (the former version of the document is kept)"  # added to the reason of an unusable new version


@dataclass(frozen=True, slots=True)
class Document:
    """An uploaded document. `reason` explains why the file, or some of its pages, have no usable text. If nothing was
    stored for the file, `id` is ""."""

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
    unchanged: bool = False  # this document was stored already with the same bytes
    replaced: str = ""  # the id of the former version that this upload has replaced
    metadata: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""  # the absolute path of the file; "" for an upload without a path
    root: str = ""  # the absolute path of the folder that was given; "" if a single file was given


def document_of(entry: MemoryEntry) -> Document:
    """Return the `Document` that a stored entry of the kind `document` describes."""
    keys = ("name", "status", "reason", "pages", "chunks", "media_type", "sha256", "bytes")
    fields = {key: entry.metadata[key] for key in keys}
    fields |= {key: entry.metadata.get(key, "") for key in ("origin", "root")}  # older versions did not store these
    return Document(namespace=entry.namespace, id=entry.id, metadata=entry.metadata["given"], **fields)


def page_of(entry: MemoryEntry) -> Page:
    """Return the `Page` that a stored entry of the kind `page` describes. A stored page has no headings."""
    number, label = (entry.source.page or 0, entry.source.label) if entry.source else (0, "")
    state = {name: entry.metadata[name] for name in ("status", "reason", "method")}
    return Page(number=number, text=entry.content, label=label, **state)


class Originals:
    """The folder of the original files. The name of each file is the SHA-256 of its bytes. A file is written
    atomically: after a crash, the file is either complete or missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> str:
        """Store the bytes of a file, and return their SHA-256 in hexadecimal. Raises `StoreFull` if the file cannot be
        written."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if _holds(path, data):
            return digest
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            raise StoreFull(
                f"the original file cannot be written to {self._folder}: {error.strerror or error}; "
                "free some disk space or choose another folder with --upload-dir"
            ) from error
        return digest

    def put_locked(self, data: bytes) -> None:
        """Store the bytes of a file whose document is already stored. A lock prevents that `discard`, in this or
        another process, deletes the file at the same time."""
        with self._lock():
            self.put(data)

    def restore(self, data: bytes) -> None:
        """Store the bytes of a file again if the stored file is missing or damaged."""
        if not _holds(self.path(hashlib.sha256(data).hexdigest()), data):
            self.put_locked(data)

    def get(self, digest: str) -> bytes:
        """Return the bytes of the original file with this SHA-256. Raises `NotFound` if the file is missing, and
        `StoreError` if the file cannot be read."""
        try:
            return read_file(self.path(digest))
        except FileNotFoundError:
            raise NotFound(
                f"the original file {digest[:12]} is missing in {self._folder}; ingest the file again"
            ) from None
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot read the original file {digest[:12]} in {self._folder}: {reason}") from None

    def discard(self, digest: str, in_use: Callable[[str], bool]) -> None:
        """Delete the original file with this SHA-256, unless a document uses the file. `in_use` returns whether a
        document uses it. The check and the deletion hold the lock of `put_locked`, so that a concurrent upload of the
        same bytes does not lose its file."""
        if not digest or not self.path(digest).exists():
            return
        with self._lock():
            if not in_use(digest):
                self.path(digest).unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        """Return the path of the original file with this SHA-256. The file may be missing."""
        # Folders named by two characters keep directories small. The caller who uploads has no influence on the path.
        return self._folder / digest[:2] / f"{digest}.bin"

    def _lock(self) -> FileLock:
        from filelock import FileLock

        return FileLock(str(self._folder / ".lock"))


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and read_file(path) == data
    except OSError:
        return False


class KeyedLock:
    """A lock for each key: threads with the same key wait for each other. The lock of a key exists only while a thread
    holds the lock or waits for it."""

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
