"""Counting uses without writing at every search: uses are gathered, and written together.

What is gathered is written with the next call that writes or looks at an entry, in the background when it becomes
much, and when the memory is closed. A process that is killed loses the counts of its last searches, and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from datetime import datetime

from agentformer.errors import StoreError
from agentformer.records.codec import now
from agentformer.types import MemoryBackend, Use

log = logging.getLogger("agentformer")

_MOST = 256  # entries gathered before a search writes them: one transaction for some ten searches


class _Counts:
    """What is gathered of one entry: counted in place, since every search counts ten."""

    __slots__ = ("at", "matches", "others", "reads")
    at: datetime

    def __init__(self) -> None:
        self.matches = self.reads = self.others = 0


class UsageCounter:
    """Gathers uses for a backend. Thread-safe."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # so that whoever has flushed finds all counts written
        self._writer: threading.Thread | None = None
        self._gathered: dict[str, _Counts] = {}

    def count_matches(self, ids: Iterable[str]) -> None:
        """They were among the results of a search."""
        self._add(ids, matches=1)

    def count_reads(self, ids: Iterable[str]) -> None:
        """They were given to a model, or somebody says that they were read."""
        self._add(ids, reads=1)

    def count_gets(self, ids: Iterable[str]) -> None:
        """They were asked for by id."""
        self._add(ids, others=1)

    def flush_if_due(self, ids: Iterable[str] | None = None) -> None:
        """Write what has been gathered if it tells of results or reading, of these entries or of any: whoever
        looks at counts next finds them right. Asking by id alone makes nobody a writer."""
        with self._lock:
            told = self._gathered.values() if ids is None else filter(None, map(self._gathered.get, ids))
            due = any(use.matches or use.reads for use in told) or self._writing.locked()
        if due:
            self.flush()

    def flush(self) -> None:
        """Write what has been gathered. A store that cannot be written now is told in the log: counts are no
        reason to fail what was asked for."""
        with self._writing:
            with self._lock:
                gathered, self._gathered = self._gathered, {}
            if not gathered:
                return
            uses = [
                Use(entry_id, told.at, matches=told.matches, reads=told.reads, others=told.others)
                for entry_id, told in gathered.items()
            ]
            try:
                self._backend.touch(uses)
            except StoreError as error:
                log.warning("uses of %d entries were not counted: %s", len(uses), error)

    def _add(self, ids: Iterable[str], *, matches: int = 0, reads: int = 0, others: int = 0) -> None:
        moment = now()
        with self._lock:
            for entry_id in ids:
                told = self._gathered.get(entry_id)
                if told is None:
                    told = self._gathered[entry_id] = _Counts()
                told.at = moment
                told.matches += matches
                told.reads += reads
                told.others += others
            much = len(self._gathered) >= _MOST
            if much and (self._writer is None or not self._writer.is_alive()):
                # A search does not wait for the disk.
                self._writer = threading.Thread(target=self.flush, name="agentformer-uses", daemon=True)
                self._writer.start()
