"""The places in which API keys are stored, such as a file of this machine or the database of several machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from filelock import Timeout

from agentformer.errors import StoreBusy, StoreError, is_passing, store_failure
from agentformer.http.patient import Patient
from agentformer.records.integrity.files import read_file, write_atomically
from agentformer.settings.access import file_lock, make_folder

FILE = "keys.json"
OWNER_ONLY = 0o600
_SETTLED_SECONDS = 3.0  # more than the resolution of the times of any file system
_ANSWER_SECONDS = 0.4  # in which a place answers that does not hang


class KeyPlace(Protocol):
    """A storage for the JSON text with the API keys. `str()` of the object is its name in messages."""

    def read(self) -> bytes | None:
        """Return the stored bytes, or None if nothing was ever stored. Raises `StoreError` if they cannot be read."""

    def write(self, data: bytes) -> None:
        """Replace the stored bytes. Raises `StoreFull` if they cannot be written."""

    def locked(self, seconds: float) -> AbstractContextManager[None]:
        """Hold the lock that every process needs to change the keys. Raises `filelock.Timeout` if another process still
        holds the lock after `seconds`."""

    def beside(self, name: str) -> KeyPlace:
        """Return the storage of another JSON text at the same place, such as `questions.json`."""


class KeyFile:
    """The file `keys.json`, or another file, in a folder of this machine. Only its owner can read it."""

    def __init__(self, folder: Path, name: str = FILE) -> None:
        self._path = folder / name
        self._lock = file_lock(self._path.with_suffix(".lock"))
        self._known: tuple[tuple[int, ...], bytes] | None = None  # the state of the file, and its bytes

    def __str__(self) -> str:
        return str(self._path)

    def read(self) -> bytes | None:
        """Return the bytes of the file, or None if there is no file. A file that has not changed is not read again. The
        time of a change is too coarse to tell apart two changes soon after each other, so a file is remembered only if
        it was old enough when it was read."""
        try:
            state = self._path.stat()
            known = state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
            former = self._known
            if former is not None and former[0] == known:
                return former[1]
            data = read_file(self._path)
            settled = time.time() - max(state.st_mtime, state.st_ctime) > _SETTLED_SECONDS
            self._known = (known, data) if settled else None
            return data
        except FileNotFoundError:
            return None
        except OSError as error:
            if is_passing(error):  # such as too many open files
                raise store_failure(f"{self._path} cannot be read", error, "") from None
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
        """Hold the lock, which is a file in the same folder, such as `keys.lock`."""
        try:
            make_folder(self._path.parent)
            self._lock.acquire(timeout=seconds)
        except Timeout:  # an `OSError`, too
            raise
        except OSError as error:
            raise self._full(error) from None
        try:
            yield
        finally:
            self._lock.release()

    def beside(self, name: str) -> KeyFile:
        """Return another file in the same folder."""
        return KeyFile(self._path.parent, name)

    def _full(self, error: OSError) -> StoreError:
        return store_failure(f"{self._path} cannot be written", error, "free some disk space or check permissions")


class Remembered:
    """The keys at another place, as they were read last, if this place does not answer in time. They cannot be changed
    then. As long as the place has never answered, a read raises `StoreBusy`."""

    def __init__(self, place: KeyPlace) -> None:
        self._place = place
        self._reading = Patient(place.read)
        self._last: bytes | None = None
        self._known = self._fresh = False

    def __str__(self) -> str:
        return str(self._place)

    def read(self) -> bytes | None:
        """Return the stored bytes, or those of the last read."""
        self._fresh = False
        try:
            self._last, self._known, self._fresh = self._reading.result(_ANSWER_SECONDS), True, True
        except (TimeoutError, StoreBusy):
            if not self._known:
                raise StoreBusy(f"{self._place} cannot be read now, and was not read before; try again") from None
        return self._last

    def write(self, data: bytes) -> None:
        self._place.write(data)

    def locked(self, seconds: float) -> AbstractContextManager[None]:
        """Hold the lock; see `KeyPlace.locked`. Raises `filelock.Timeout` at once if the last read was not answered."""
        if not self._fresh:
            raise Timeout(str(self._place))
        return self._place.locked(seconds)

    def beside(self, name: str) -> KeyPlace:
        return Remembered(self._place.beside(name))
