"""Leases in a small JSON file, written under the folder's lock."""

from __future__ import annotations

import json
import logging
import time
from typing import NamedTuple

from agentformer.errors import StoreFull
from agentformer.memory.backends.local_json.folder import Folder
from agentformer.records.files import read_file, write_atomically
from agentformer.records.integrity import Findings

log = logging.getLogger("agentformer")

_CLOCK_TOLERANCE = 1.0  # seconds
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError)


class _Lease(NamedTuple):
    holder: str
    ends_at: float  # seconds since 1970
    seconds: float  # its whole length

    def is_running(self, at: float) -> bool:
        """Return False also if more time is left than the whole length: the clock was set back since."""
        return 0 < self.ends_at - at <= self.seconds


class Leases:
    """Leases of all processes that use the folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._path = folder.path / "memory.leases"

    def take(self, name: str, holder: str, seconds: float) -> bool:
        """Take or prolong a lease. Returns False if another holder has it."""
        with self._folder.locked():
            running = self._running()
            if name in running and running[name].holder != holder:
                return False
            self._write({**running, name: _Lease(holder, time.time() + seconds, seconds)})
            return True

    def release(self, name: str, holder: str) -> None:
        """Give a lease up, if `holder` has it."""
        with self._folder.locked():
            running = self._running()
            if name in running and running[name].holder == holder:
                del running[name]
                self._write(running)

    def check(self, *, repair: bool) -> Findings:
        """Check that the file can be read and no lease ends later than its own length from now."""
        findings = Findings("leases", "leases can be read, and none ends later than its own length from now")
        with findings.reading(), self._folder.locked():
            try:
                leases = self._read()
            except _UNREADABLE as error:
                leases = {}
                findings.add(f"{self._path.name} cannot be read: {error}")
            now = time.time()
            findings.looked_at = len(leases)
            for name, lease in leases.items():
                if lease.ends_at - now > lease.seconds + _CLOCK_TOLERANCE:
                    findings.add(f"the lease {name} was taken by a clock that was ahead of this one")
            if repair and findings.found:
                self._write(self._running())
                findings.mark_repaired(findings.found, "they are given up")
        return findings

    def _running(self) -> dict[str, _Lease]:
        """Return the leases whose time is not over. An unreadable file holds none: leases are short."""
        try:
            leases = self._read()
        except _UNREADABLE as error:
            log.warning("%s cannot be read and is replaced: %s", self._path, error)
            return {}
        now = time.time()
        return {name: lease for name, lease in leases.items() if lease.is_running(now)}

    def _read(self) -> dict[str, _Lease]:
        try:
            return {
                str(name): _Lease(str(holder), float(ends_at), float(seconds))
                for name, (holder, ends_at, seconds) in json.loads(read_file(self._path)).items()
            }
        except FileNotFoundError:
            return {}

    def _write(self, leases: dict[str, _Lease]) -> None:
        try:
            write_atomically(self._path, json.dumps(leases, indent=2).encode("utf-8"))
        except OSError as error:
            raise StoreFull(f"{self._path} cannot be written ({error.strerror or error}); free space") from error
