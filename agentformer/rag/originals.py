"""The uploaded files themselves, kept under the SHA-256 of their bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agentformer.errors import NotFound, StoreError, StoreFull
from agentformer.records.files import file_bytes, write_atomically

if TYPE_CHECKING:
    from filelock import FileLock


class Originals:
    """A folder of originals. The same bytes are one file; a file is there wholly or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> str:
        """Keep `data`; returns its SHA-256 in hexadecimal. Raises `StoreFull`."""
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        if self._holds(path, data):
            return digest
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            raise StoreFull(
                f"the original cannot be kept in {self._folder}: {error.strerror or error}; "
                "free space or choose another --upload-dir"
            ) from error
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes of an original. Raises `NotFound` or `StoreError`."""
        try:
            return file_bytes(self._path(digest))
        except FileNotFoundError:
            raise NotFound(f"the original {digest[:12]} is not in {self._folder}") from None
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"the original {digest[:12]} in {self._folder} cannot be read: {reason}") from None

    def path(self, digest: str) -> Path:
        """Where an original lies, if it is there."""
        return self._path(digest)

    def discard(self, digest: str, in_use: Callable[[str], bool]) -> None:
        """Delete an original unless it is `in_use`; one that is not there is no error.

        Asking and deleting are one step to `keep`: an upload that has just stored the same bytes again
        either is seen by `in_use`, or puts the file back.
        """
        if not digest or not self._path(digest).exists():
            return
        with self._guard():
            if not in_use(digest):
                self._path(digest).unlink(missing_ok=True)

    def keep(self, data: bytes) -> None:
        """`put` for a document that is stored already: whoever discards meanwhile comes before or after."""
        with self._guard():
            self.put(data)

    def put_back(self, data: bytes) -> None:
        """`keep` where the file is gone, or is not what was kept; writes nothing where it is whole."""
        if not self._holds(self._path(hashlib.sha256(data).hexdigest()), data):
            self.keep(data)

    def _guard(self) -> FileLock:
        from filelock import FileLock

        return FileLock(str(self._folder / ".lock"))

    def _holds(self, path: Path, data: bytes) -> bool:
        try:
            return path.stat().st_size == len(data) and file_bytes(path) == data
        except OSError:
            return False

    def _path(self, digest: str) -> Path:
        # Two characters of folder keep directories small; the name holds nothing that an uploader chose.
        return self._folder / digest[:2] / f"{digest}.bin"
