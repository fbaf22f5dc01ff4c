"""The place of the API keys: a JSON file of this machine, or a place that all machines of a memory share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from filelock import FileLock

from agentformer.errors import StoreError, StoreFull
from agentformer.records.files import read_file, write_atomically

FILE = "keys.json"
OWNER_ONLY = 0o600


class KeyPlace(Protocol):
    """The stored JSON of the API keys. `str()` of the object names the place in messages."""

    def read(self) -> bytes | None:
        """Return the stored bytes, or None if nothing was ever stored. Raises `StoreError` if they cannot be read."""

    def write(self, data: bytes) -> None:
        """Replace the stored bytes. Raises `StoreFull` if they cannot be written."""

    def locked(self, seconds: float) -> AbstractContextManager[None]:
        """Hold the lock of the writers of all processes. Raises `filelock.Timeout` if another process has the lock for
        `seconds`."""


class KeyFile:
    """The file `keys.json` in a folder of this machine. Only its owner can read it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = FileLock(folder / "keys.lock")

    def __str__(self) -> str:
        return str(self._path)

    def read(self) -> bytes | None:
        """Return the bytes of the file, or None if there is no file."""
        try:
            return read_file(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = f"cannot be read ({error.strerror or error}); all requests are refused until the file can be read"
            raise StoreError(f"{self._path} {reason}") from None

    def write(self, data: bytes) -> None:
        """Replace the file in one step."""
        try:
            write_atomically(self._path, data, mode=OWNER_ONLY)
        except OSError as error:
            raise self._full(error) from None

    @contextmanager
    def locked(self, seconds: float) -> Iterator[None]:
        """Hold the lock of the file, which is a file beside it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=seconds)
        except OSError as error:
            raise self._full(error) from None
        try:
            yield
        finally:
            self._lock.release()

    def _full(self, error: OSError) -> StoreFull:
        reason = f"cannot be written: {error.strerror or error}; free some disk space or check permissions"
        return StoreFull(f"{self._path} {reason}")
