"""Leases in a small file of their own, written under the folder's lock."""

from __future__ import annotations

import json
import logging
import time
from typing import NamedTuple

from agentformer.errors import StoreFull
from agentformer.memory.backends.local_json.folder import Folder
from agentformer.records.files import file_bytes, write_atomically

log = logging.getLogger("agentformer")

LEASES_FILE = "memory.leases"
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError)
_CLOCK = 1.0  # seconds that two readings of the clock may differ by


class _Lease(NamedTuple):
    holder: str
    ends_at: float  # seconds since 1970
    seconds: float  # how long it was taken for

    def runs(self, moment: float) -> bool:
        """One with more time left than it was ever given is of a clock that has since been set back."""
        return 0 < self.ends_at - moment <= self.seconds


class Leases:
    """Who may do a thing now, among all processes that have the folder open."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._path = folder.path / LEASES_FILE

    def take(self, name: str, holder: str, seconds: float) -> bool:
        """Take or prolong a lease; False when another holder has it."""
        with self._folder.locked():
            running = self._running()
            if name in running and running[name].holder != holder:
                return False
            self._write({**running, name: _Lease(holder, time.time() + seconds, seconds)})
            return True

    def give_up(self, name: str, holder: str) -> None:
        with self._folder.locked():
            running = self._running()
            if name in running and running[name].holder == holder:
                self._write({key: lease for key, lease in running.items() if key != name})

    def strange(self, *, drop: bool) -> tuple[int, list[str]]:
        """How many leases there are, and what is wrong with some of them; with `drop`, those go."""
        with self._folder.locked():
            try:
                kept, moment = self._kept(), time.time()
            except _UNREADABLE as error:
                problems, kept = [f"{self._path.name} cannot be read: {error}"], {}
            else:
                later = [name for name, lease in kept.items() if lease.ends_at - moment > lease.seconds + _CLOCK]
                problems = [f"the lease {name} was taken by a clock that was ahead of this one" for name in later]
            if drop and problems:
                self._write(self._running())
            return len(kept), problems

    def _running(self) -> dict[str, _Lease]:
        """Leases whose time is not over. A file that makes no sense holds none: they are short, and no memory."""
        try:
            kept = self._kept()
        except _UNREADABLE as error:
            log.warning("%s cannot be read and is begun anew: %s", self._path, error)
            return {}
        moment = time.time()
        return {name: lease for name, lease in kept.items() if lease.runs(moment)}

    def _kept(self) -> dict[str, _Lease]:
        try:
            return {
                str(name): _Lease(str(holder), float(ends_at), float(seconds))
                for name, (holder, ends_at, seconds) in json.loads(file_bytes(self._path)).items()
            }
        except FileNotFoundError:
            return {}

    def _write(self, leases: dict[str, _Lease]) -> None:
        try:
            write_atomically(self._path, json.dumps(leases, indent=2).encode("utf-8"))
        except OSError as error:
            raise StoreFull(f"{self._path} cannot be written ({error.strerror or error}); free space") from error
