"""`UsageCounter`: counts uses of entries in memory and writes the counts in batches, so that a search does not write.
Counts are written before a call that changes or reads an entry, in the background if there are many, and on close. If
the process is killed, the counts of its last searches are lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from agentformer.errors import StoreError
from agentformer.records.codec import now
from agentformer.types import MemoryBackend, Use

log = logging.getLogger("agentformer")

_BATCH = 256  # entries counted before a search triggers a write: one transaction for about ten searches


@dataclass(slots=True)
class _Counts:
    """The uses of one entry since the last write. Mutable, because every search counts about ten entries."""

    at: datetime
    matches: int = 0
    reads: int = 0
    others: int = 0


class UsageCounter:
    """Counts uses for a backend. Thread-safe."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # so that all counts are written when `flush` returns
        self._writer: threading.Thread | None = None
        self._counts: dict[str, _Counts] = {}

    def count(self, ids: Iterable[str], *, matches: int = 0, reads: int = 0, others: int = 0) -> None:
        """Count that a search found the entries, that a model or a person read them, or that they were requested."""
        moment = now()
        with self._lock:
            for entry_id in ids:
                counts = self._counts.get(entry_id)
                if counts is None:
                    counts = self._counts[entry_id] = _Counts(moment)
                counts.at = moment
                counts.matches += matches
                counts.reads += reads
                counts.others += others
            if len(self._counts) >= _BATCH and (self._writer is None or not self._writer.is_alive()):
                # A search does not wait for the disk.
                self._writer = threading.Thread(target=self.flush, name="agentformer-uses", daemon=True)
                self._writer.start()

    def flush_if_due(self, ids: Iterable[str] | None = None) -> None:
        """Write the counts if these entries (None: any entry) have matches or reads, because the caller is about to
        return the entries. Requests by id alone do not cause a write."""
        with self._lock:
            counts = self._counts.values() if ids is None else filter(None, map(self._counts.get, ids))
            due = any(use.matches or use.reads for use in counts) or self._writing.locked()
        if due:
            self.flush()

    def flush(self) -> None:
        """Write all counts. If the store cannot be written, only log this: counting must not fail the caller's
        request."""
        with self._writing:
            with self._lock:
                counts, self._counts = self._counts, {}
            if not counts:
                return
            uses = [Use(key, use.at, use.matches, use.reads, use.others) for key, use in counts.items()]
            try:
                self._backend.touch(uses)
            except StoreError as error:
                log.warning("uses of %d entries were not counted: %s", len(uses), error)
