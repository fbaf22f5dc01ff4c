"""Uploaded documents: a description of each document, and the folder of the original files."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from agentformer.errors import NotFound, StoreError, StoreFull
from agentformer.records.files import read_file, sync_folder, write_atomically
from agentformer.types import DocumentStatus, MemoryBackend, MemoryEntry, Page, Scope, new_id

if TYPE_CHECKING:
    from filelock import FileLock

FORMER_KEPT = " (the former version of the document is kept)"  # added to the reason of an unusable new version
METADATA_REPLACED = "the metadata were replaced"  # the reason if an upload has new metadata for stored bytes
log = logging.getLogger("agentformer")

_UPLOAD = ".upload-"  # the beginning of the names of uploads, which are file names of locks
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCK_SECONDS = 60.0  # the lock of the folder is held only for short steps
_POLL_SECONDS = 0.005


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
    """The folder of the original files, whose documents `backend` stores. The name of each file is the SHA-256 of its
    bytes. A file is written atomically: after a crash, the file is either complete or missing.

    The backend records the documents that are not stored although their original files may exist: documents that are
    announced before their files are written, and removed documents. `sweep` deletes the files of these documents and no
    other files. While an upload runs, its process locks a file `.upload-ID`. If nobody locks this file, the process was
    killed, and the original files of the upload are superfluous."""

    def __init__(self, folder: Path, backend: MemoryBackend) -> None:
        self._folder = folder
        self._backend = backend

    @contextmanager
    def storing(self, documents: Sequence[MemoryEntry], files: Iterable[bytes]) -> Iterator[None]:
        """Announce documents and write their original files `files`. The caller stores the documents inside the `with`
        block. The end of the block, or the next sweep after a crash, deletes the files that no document needs. Raises
        `StoreFull` if a file cannot be written."""
        if not documents:
            yield
            return
        upload = f"{_UPLOAD}{new_id()}"
        lock = self._file_lock(upload)
        try:
            with self._locked():
                self._acquire(lock)
                self._backend.announce(documents, upload)
            for data in files:
                self._put(data)
            yield
        finally:
            try:
                self.sweep(upload)
            finally:
                lock.release()

    def restore(self, data: bytes) -> None:
        """Store the original file of a stored document again if the file is missing or damaged. Do nothing if the
        document was removed in the meantime."""
        digest = hashlib.sha256(data).hexdigest()
        if not _holds(self.path(digest), data):
            with self._locked():  # a concurrent removal of the document deletes the file after this block
                if self._in_use(digest):
                    self._put(data)

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

    def sweep(self, ended: str = "") -> None:
        """Delete the original files of removed documents, and of uploads that ended without storing their documents. A
        file is kept if a stored document or a running upload has the same bytes. `ended` is the name of an upload of
        the caller that ends now. If a file cannot be deleted, log a warning, and leave the file to the next sweep."""
        try:
            if self._folder.is_dir() and (self._uploads() or self._backend.absent_documents()):
                with self._locked():
                    self._sweep(ended)
        except (OSError, StoreError) as error:
            log.warning(
                "original files of removed documents may remain in %s until the memory is opened again: %s",
                self._folder,
                error,
            )

    def path(self, digest: str) -> Path:
        """Return the path of the original file with this SHA-256. The file may be missing."""
        # Folders named by two characters keep directories small. The caller who uploads has no influence on the path.
        return self._folder / digest[:2] / f"{digest}.bin"

    def _sweep(self, ended: str) -> None:
        uploads = self._uploads()
        running = {name for name in uploads if name != ended and self._is_running(name)}
        absent = self._backend.absent_documents()  # read after the locks: an upload that ends now is not in the list
        needed = {document.sha256 for document in absent if document.upload in running}
        done = [document for document in absent if document.sha256 not in needed]
        # If the file of its lock is missing, the end of an upload is not known, such as in a restored older database.
        self._delete({document.sha256 for document in done if document.upload in ("", *uploads)})
        if done:
            self._backend.forget_absent(done)
        for name in uploads - running - {document.upload for document in absent if document.sha256 in needed}:
            with suppress(OSError):  # some systems cannot delete a locked file; the next sweep deletes it
                (self._folder / name).unlink()

    def _delete(self, digests: Collection[str]) -> None:
        """Delete original files that no document needs, and the temporary files that a killed process left of them."""
        paths = [self.path(digest) for digest in digests if _SHA256.fullmatch(digest) and not self._in_use(digest)]
        for path in paths:
            for file in (path, *path.parent.glob(f".{path.name}.*")):
                file.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            sync_folder(folder)

    def _in_use(self, digest: str) -> bool:
        """Return whether a document of any namespace has the bytes with this SHA-256."""
        kept = {"kinds": ("document",), "metadata": {"sha256": digest}, "include_archived": True}
        return any(self._backend.count(Scope(name, **kept)) for name in self._backend.namespaces())  # type: ignore[arg-type]

    def _put(self, data: bytes) -> None:
        path = self.path(hashlib.sha256(data).hexdigest())
        if _holds(path, data):
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            raise self._unwritable(error) from error

    def _uploads(self) -> set[str]:
        """Return the names of the uploads that are running, or that ended when their process was killed."""
        return {path.name for path in self._folder.glob(f"{_UPLOAD}*")}

    def _is_running(self, upload: str) -> bool:
        from filelock import Timeout

        lock = self._file_lock(upload)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        lock.release()
        return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder, so that no other process announces an upload or deletes files. Raises
        `StoreFull` if the folder cannot be written."""
        lock = self._file_lock(".lock")
        self._acquire(lock)
        try:
            yield
        finally:
            lock.release()

    def _acquire(self, lock: FileLock) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=_LOCK_SECONDS, poll_interval=_POLL_SECONDS)
        except OSError as error:
            raise self._unwritable(error) from error

    def _file_lock(self, name: str) -> FileLock:
        from filelock import FileLock

        return FileLock(str(self._folder / name))

    def _unwritable(self, error: OSError) -> StoreFull:
        return StoreFull(
            f"the original file cannot be written to {self._folder}: {error.strerror or error}; "
            "free some disk space or choose another folder with --upload-dir"
        )


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
