"""Interfaces for what the nodes of a memory share: files, and locks that end if their node dies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class SharedFiles(Protocol):
    """Files in the database of a memory, which every node can read. `place` is the name of the database in messages.
    All methods raise `StoreError` if the database cannot be used."""

    place: str

    def put(self, name: str, data: bytes) -> None:
        """Store a file, and replace a file with the same name. After a crash, the file has either its complete new
        content or its former content."""

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a file, or None if there is no such file."""

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a file as hexadecimal digits, or "" if there is no such file."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of each file whose name begins with `prefix`, by name, in order of name."""

    def delete(self, *names: str) -> None:
        """Delete files. Missing files are ignored."""


class HeldLock(Protocol):
    """A lock that the caller holds. While its process lives, the lock is extended; if the process dies, the lock ends
    after a short time."""

    def release(self) -> None:
        """Release the lock. Its name stays in `SharedLocks.states` until `SharedLocks.forget` deletes it."""


class SharedLocks(Protocol):
    """Named locks that all nodes share. All methods raise `StoreError` if the database cannot be used."""

    def take(self, name: str) -> HeldLock | None:
        """Take a lock and return it. Return None if the lock is held, even if this process holds it."""

    def states(self, prefix: str) -> dict[str, bool]:
        """Return the states of the locks whose names begin with `prefix`, by name: True if the lock is held, and False
        if it was released or its process died."""

    def forget(self, name: str) -> None:
        """Delete the name of a lock that is not held, so that `states` no longer lists it."""

    def exclusive(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager that waits for a lock and holds it during a short step. If the process dies, the
        database server releases the lock."""
