"""Protocols of what several nodes of one memory share: files, and locks that end when their node dies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class SharedFiles(Protocol):
    """Files in the database of a memory, which every node can read. `place` names it in messages. Methods raise
    `StoreError`."""

    place: str

    def put(self, name: str, data: bytes) -> None:
        """Store a file, and replace a file with the same name. After a crash, the file is complete or as before."""

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a file, or None if there is no such file."""

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a file as hexadecimal digits, or "" if there is no such file."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of each file whose name begins with `prefix`, by name, in order of name."""

    def delete(self, *names: str) -> None:
        """Delete files. Missing files are ignored."""


class HeldLock(Protocol):
    """A lock that the caller holds. If its process dies, the lock ends after the time of a lease."""

    def release(self) -> None:
        """End the lock. Its name remains until `SharedLocks.forget`."""


class SharedLocks(Protocol):
    """Named locks of all nodes. Methods raise `StoreError`."""

    def take(self, name: str) -> HeldLock | None:
        """Take a lock, or return None if it is held. A lock cannot be taken twice by one process either."""

    def states(self, prefix: str) -> dict[str, bool]:
        """Return the locks whose names begin with `prefix`, with True for a lock that is held, and False for one that
        was released or whose process died."""

    def forget(self, name: str) -> None:
        """Delete a lock that nobody holds."""

    def exclusive(self, name: str) -> AbstractContextManager[object]:
        """Wait for a lock for a short step, and hold it in the context. The server frees it if the process dies."""
