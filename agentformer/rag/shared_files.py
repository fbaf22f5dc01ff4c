"""The original files of a memory that several nodes share: in its database, with uploads that every node knows."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import BinaryIO

from agentformer.rag.original_files import digest_in, file_name, missing
from agentformer.types import HeldLock, SharedFiles, SharedLocks, new_id

_ORIGINAL, _UPLOAD, _GUARD = "original/", "upload/", "originals"


class DatabaseOriginals:
    """Original files in the database; see `OriginalFiles`."""

    def __init__(self, files: SharedFiles) -> None:
        self.place = files.place
        self._files = files

    def put(self, digest: str, data: bytes) -> None:
        """Store a file, unless an undamaged file is stored."""
        if not self.holds(digest, data):
            self._files.put(_ORIGINAL + digest, data)

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether the file is stored and undamaged."""
        return self._files.sha256(_ORIGINAL + digest) == hashlib.sha256(data).hexdigest()

    def open(self, digest: str) -> BinaryIO:
        """Open a file for reading. Raises `NotFound` if the file is missing."""
        data = self._files.get(_ORIGINAL + digest)
        if data is None:
            raise missing(digest, self.place)
        return io.BytesIO(data)

    def delete(self, digests: Collection[str]) -> None:
        """Delete files. Missing files are ignored."""
        if digests:
            self._files.delete(*(_ORIGINAL + digest for digest in digests))

    def names(self) -> dict[str, str]:
        """Return the digest of each stored file by the file's name."""
        digests = (name.removeprefix(_ORIGINAL) for name in self._files.sizes(_ORIGINAL))
        return {file_name(digest): digest for digest in digests}

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if the file does not exist."""
        stored = _ORIGINAL + digest_in(name)
        return self._files.sizes(stored).get(stored)


class SharedUploads:
    """The running uploads of all nodes. If the node of an upload dies, its lock ends after the time of a lease."""

    def __init__(self, locks: SharedLocks) -> None:
        self._locks = locks

    def new(self) -> SharedUpload:
        """Return a new upload, whose lock is not held yet."""
        return SharedUpload(self._locks, _UPLOAD + new_id())

    def exist(self) -> bool:
        """Return whether there may be uploads."""
        return True

    def names(self) -> set[str]:
        """Return the names of the uploads that are running, or that ended when their process was killed."""
        return {*self._locks.states(_UPLOAD)}

    def is_running(self, name: str) -> bool:
        """Return whether the process of the upload still holds its lock."""
        return self._locks.states(name).get(name, False)

    def forget(self, name: str) -> None:
        """Delete the lock of an upload that has ended."""
        self._locks.forget(name)

    def exclusive(self) -> AbstractContextManager[object]:
        """Hold a lock, so that no other process announces an upload or deletes files."""
        return self._locks.exclusive(_GUARD)


class SharedUpload:
    """The lock of one upload."""

    def __init__(self, locks: SharedLocks, name: str) -> None:
        self.name = name
        self._locks = locks
        self._held: HeldLock | None = None

    def acquire(self) -> None:
        """Hold the lock of the upload, which has a new name."""
        self._held = self._locks.take(self.name)

    def release(self) -> None:
        """End the lock."""
        held, self._held = self._held, None
        if held is not None:
            held.release()
