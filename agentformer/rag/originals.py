"""The original files of documents. Files that no document needs any more are deleted."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentformer.errors import InvalidInput, NotFound, StoreBusy, StoreError
from agentformer.lazy import Lazy
from agentformer.rag.file_stores import (
    SCHEME,
    SHA256,
    DatabaseOriginals,
    LocalFiles,
    OriginalFiles,
    S3Files,
    unwritable,
)
from agentformer.rag.ownership import Owner, claim, owner_of, settle
from agentformer.records.offers import required
from agentformer.search.reading import all_entries
from agentformer.settings import Settings
from agentformer.settings.access import file_lock, make_folder
from agentformer.types import (
    HeldLock,
    MemoryBackend,
    MemoryEntry,
    OriginalsStore,
    Scope,
    SharedFiles,
    SharedLocks,
    new_id,
)

if TYPE_CHECKING:
    from filelock import FileLock

log = logging.getLogger("agentformer")

_UPLOAD = ".upload-"  # the name of an upload begins with this; it is also the name of its lock file
_SHARED_UPLOAD, _SHARED_GUARD = "upload/", "originals"  # names of the locks in a shared database
_LOCK_SECONDS = 60.0  # maximum wait for the lock of the folder, which is held only for short steps
_POLL_SECONDS = 0.005

DATABASE = "database"  # the setting for files in the database of the memory


class SharedPlace(Protocol):
    """The files and the locks in the database of a memory, which all nodes of the memory share."""

    @property
    def files(self) -> SharedFiles: ...

    @property
    def locks(self) -> SharedLocks: ...


class Originals:
    """The original files of the documents of `backend`, stored in `files`. The backend also lists absent documents:
    documents that an upload has announced but not stored yet, and removed documents. `sweep` deletes only files of
    absent documents. A running upload holds a lock. If nobody holds the lock of an upload, its process was killed, and
    the original files of the upload are deleted."""

    def __init__(
        self,
        folder: Path,
        backend: MemoryBackend,
        files: OriginalFiles | None = None,
        uploads: _Uploads | _SharedUploads | None = None,
    ) -> None:
        """`folder` contains the locks (unless `uploads` has them) and the original files (unless `files` has them)."""
        self.files = files or LocalFiles(folder)
        self.folder = folder
        self.owner: Owner | None = None
        self._backend = backend
        self._listed = required(backend, OriginalsStore)
        self._uploads = uploads or _Uploads(folder)

    @classmethod
    def of(cls, settings: Settings, backend: MemoryBackend, shared: SharedPlace | None = None) -> Originals:
        """Return the original files of a memory at the place in `Settings.originals`. `shared` has the files and locks
        that several nodes share, or is None if the backend has none. Raises `InvalidInput` for `database` if `shared`
        is None."""
        address, root = settings.originals, settings.upload_dir
        if address == DATABASE and shared is None:
            raise InvalidInput(
                "originals",
                f"{DATABASE!r} needs the backend postgres; for another backend, leave AGENTFORMER_ORIGINALS empty",
            )
        owner = owner_of(settings, backend)
        files: OriginalFiles = S3Files(address, owner) if address.startswith(SCHEME) else LocalFiles(root, owner)
        if shared is not None and address == DATABASE:
            files = DatabaseOriginals(shared.files)
        folder = root / owner.folder
        own = _Uploads(folder, elsewhere=bool(address))
        # Nodes share files in a bucket or a database, and so they share the locks. Files in `folder` are locked there.
        uploads = _SharedUploads(shared.locks) if shared is not None and address else own
        originals = cls(folder, backend, files, uploads)
        originals.owner = owner
        return originals

    def settle(self) -> None:
        """Make sure that the memory owns a file for each of its documents, and delete the files that killed processes
        left behind. Log a warning if this fails; the next opening does the same."""
        if self.owner and not self.owner.settled:
            try:
                self.files.settle(Lazy(self._digests))
            except (OSError, StoreError) as error:
                log.warning("the original files in %s cannot be checked now: %s", self.files.place, error)
            else:
                settle(self.owner)
        if self.owner:
            claim(self.folder, self.owner)
        self.sweep()

    def copy_to(self, target: Originals) -> None:
        """Store the files of the documents of `target` there, unless it owns them. Files that are missing are left
        out."""
        for digest in target._digests():
            if not target.files.owns(digest):
                with suppress(NotFound):
                    target.files.put(digest, self.get(digest))

    def _digests(self) -> set[str]:
        """Return the SHA-256 of the files of all documents."""
        digests: set[str] = set()
        for namespace in self._backend.namespaces():
            scope = Scope(namespace, kinds=("document",), include_archived=True)
            digests.update(str(entry.metadata.get("sha256")) for entry in all_entries(self._backend, scope))
        return {digest for digest in digests if SHA256.fullmatch(digest)}

    @contextmanager
    def storing(self, documents: Sequence[MemoryEntry], files: Iterable[bytes]) -> Iterator[None]:
        """Write the original files of documents that the caller stores inside the `with` block. `files` are the bytes
        of the files. Before a file is written, the backend records that the documents are announced. With this record,
        the files that no stored document needs are deleted at the end of the block or, after a crash, by the next
        sweep. Raises `StoreError` if a file cannot be written."""
        if not documents:
            yield
            return
        upload = self._uploads.new()
        try:
            with self._uploads.exclusive():
                upload.acquire()
                self._listed.announce(documents, upload.name)
            for data in files:
                self.files.put(_digest(data), data)
            yield
        finally:
            try:
                self.sweep(upload.name)
            finally:
                upload.release()

    def restore(self, data: bytes) -> None:
        """Store `data`, the original file of a stored document, again if this file is missing or damaged. Do nothing if
        no stored document has these bytes any more."""
        digest = _digest(data)
        if not self.files.holds(digest, data):
            with self._uploads.exclusive():  # a concurrent removal of the document deletes the file after this block
                if self._in_use(digest):
                    self.files.put(digest, data)

    def get(self, digest: str) -> bytes:
        """Return the bytes of the original file with this SHA-256. Raises `NotFound` if the file is missing, and
        `StoreError` if the file cannot be read."""
        with self.files.open(digest) as file:
            return file.read()

    def sweep(self, ended: str = "") -> None:
        """Delete the original files of removed documents, and of uploads that ended without storing their documents. A
        file is kept if a stored document or a running upload has the same bytes. `ended` is the name of the upload that
        the caller ends now, or "". If a file cannot be deleted, log a warning, and leave the file to the next sweep."""
        try:
            if self._uploads.exist() and (self._uploads.names() or self._listed.absent_documents()):
                with self._uploads.exclusive():
                    self._sweep(ended)
        except (OSError, StoreError) as error:
            log.warning(
                "original files of removed documents may remain in %s until the memory is opened again: %s",
                self.files.place,
                error,
            )

    def _sweep(self, ended: str) -> None:
        uploads = self._uploads.names()  # those of killed processes included
        running = {name for name in uploads if name != ended and self._uploads.is_running(name)}
        absent = self._listed.absent_documents()  # read after the locks: an upload that ends now is not in the list
        needed = {document.sha256 for document in absent if document.upload in running}
        unneeded = [document for document in absent if document.sha256 not in needed]
        # An upload without a lock may still be running, for example after an older database was restored.
        superfluous = {document.sha256 for document in unneeded if document.upload in ("", *uploads)}
        deleted = [each for each in superfluous if SHA256.fullmatch(each) and not self._in_use(each)]
        self.files.delete(deleted)
        if deleted and (left := self.files.left(deleted)):
            log.warning(
                "%d original files of removed documents were stored by a former version and stay, because another "
                "memory may use them (such as %s); delete them yourself if no other memory uses %s",
                len(left),
                left[0],
                self.files.place,
            )
        if unneeded:
            self._listed.forget_absent(unneeded)
        for name in uploads - running - {document.upload for document in absent if document.sha256 in needed}:
            self._uploads.forget(name)

    def _in_use(self, digest: str) -> bool:
        """Return whether a document of any namespace has the bytes with this SHA-256."""
        filters = {"kinds": ("document",), "metadata": {"sha256": digest}, "include_archived": True}
        return any(self._backend.count(Scope(name, **filters)) for name in self._backend.namespaces())  # type: ignore[arg-type]


class _Uploads:
    """The running uploads of the processes on this machine. Each has a locked file `.upload-ID` in the folder; the
    operating system releases the lock if the process dies."""

    def __init__(self, folder: Path, *, elsewhere: bool = False) -> None:
        """`elsewhere` is True if the original files are not in `folder`, but in a bucket; see `exist`."""
        self._folder = folder
        self._elsewhere = elsewhere

    def new(self) -> _Upload:
        return _Upload(self._folder, f"{_UPLOAD}{new_id()}")

    def exist(self) -> bool:
        """Return True if there may be uploads and their files. An upload creates the folder, but files in a bucket may
        remain after the folder is lost."""
        return self._elsewhere or self._folder.is_dir()

    def names(self) -> set[str]:
        """Return the names of the uploads that are running, or that ended when their process was killed."""
        return {path.name for path in self._folder.glob(f"{_UPLOAD}*")}

    def is_running(self, name: str) -> bool:
        """Return whether the process of the upload still holds its lock."""
        from filelock import Timeout

        upload = _Upload(self._folder, name)
        try:
            upload.acquire(seconds=0)
        except Timeout:
            return True
        upload.release()
        return False

    def forget(self, name: str) -> None:
        """Delete the lock of an ended upload. If the system cannot delete the file now, the next sweep deletes it."""
        with suppress(OSError):
            (self._folder / name).unlink()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of the folder, so that no other process announces an upload or deletes files. Raises
        `StoreFull` if the folder cannot be written, and `StoreBusy` if another process holds the lock for too long."""
        from filelock import Timeout

        lock = _Upload(self._folder, ".lock")
        try:
            lock.acquire()
        except Timeout:
            raise StoreBusy(f"another process holds {self._folder / '.lock'} for too long; try again") from None
        try:
            yield
        finally:
            lock.release()


class _Upload:
    """A running upload on this machine. Its lock is a locked file in the folder. While the caller holds this lock, no
    process deletes the original files of the upload."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._lock: FileLock = file_lock(folder / name)

    def acquire(self, seconds: float = _LOCK_SECONDS) -> None:
        """Wait for the lock of the upload and hold it. Raises `Timeout` if another process holds it for longer than
        `seconds`, and `StoreError` if the folder cannot be written."""
        from filelock import Timeout

        try:
            make_folder(self._folder)
            self._lock.acquire(timeout=seconds, poll_interval=_POLL_SECONDS)
        except Timeout:  # a subclass of OSError
            raise
        except OSError as error:
            raise unwritable(self._folder, error) from error

    def release(self) -> None:
        self._lock.release()


class _SharedUploads:
    """The running uploads of all nodes. Each upload holds a lock in the shared database, so that no node deletes the
    original files of the upload. If the node of an upload dies, the lock ends when its lease expires."""

    def __init__(self, locks: SharedLocks) -> None:
        self._locks = locks

    def new(self) -> _SharedUpload:
        """Return a new upload. Its lock is not held yet."""
        return _SharedUpload(self._locks, _SHARED_UPLOAD + new_id())

    def exist(self) -> bool:
        """Return True: any node may be running an upload, so a sweep must always look for uploads."""
        return True

    def names(self) -> set[str]:
        """Return the names of the uploads that are running, or that ended when their process was killed."""
        return {*self._locks.states(_SHARED_UPLOAD)}

    def is_running(self, name: str) -> bool:
        """Return whether the process of the upload still holds its lock."""
        return self._locks.states(name).get(name, False)

    def forget(self, name: str) -> None:
        """Delete the lock of an upload that has ended."""
        self._locks.forget(name)

    def exclusive(self) -> AbstractContextManager[object]:
        """Hold a lock, so that no other process announces an upload or deletes files."""
        return self._locks.exclusive(_SHARED_GUARD)


class _SharedUpload:
    """A running upload. While the caller holds the lock of the upload, no node deletes the original files of the
    upload."""

    def __init__(self, locks: SharedLocks, name: str) -> None:
        self.name = name
        self._locks = locks
        self._held: HeldLock | None = None

    def acquire(self) -> None:
        """Take the lock of the upload. No other caller can hold it, because its name is new."""
        self._held = self._locks.take(self.name)

    def release(self) -> None:
        """Release the lock."""
        held, self._held = self._held, None
        if held is not None:
            held.release()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
