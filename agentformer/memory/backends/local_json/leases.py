"""Leases in a small file of their own, written under the folder's lock."""

from __future__ import annotations

import json
import logging
import time
from typing import NamedTuple

from agentformer.errors import StoreFull
from agentformer.memory.backends.local_json.folder import Folder
from agentformer.records.files import write_atomically

log = logging.getLogger("agentformer")

LEASES_FILE = "memory.leases"


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

    def _running(self) -> dict[str, _Lease]:
        """Leases whose time is not over. A file that makes no sense holds none: they are short, and no memory."""
        try:
            kept = {
                str(name): _Lease(str(holder), float(ends_at), float(seconds))
                for name, (holder, ends_at, seconds) in json.loads(self._path.read_bytes()).items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read and is begun anew: %s", self._path, error)
            return {}
        moment = time.time()
        return {name: lease for name, lease in kept.items() if lease.runs(moment)}

    def _write(self, leases: dict[str, _Lease]) -> None:
        try:
            write_atomically(self._path, json.dumps(leases, indent=2).encode("utf-8"))
        except OSError as error:
            raise StoreFull(f"{self._path} cannot be written ({error.strerror or error}); free space") from error
