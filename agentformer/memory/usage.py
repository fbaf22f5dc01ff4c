"""`UsageCounter`: counts the uses of entries in memory and writes the counts to the backend in batches, so that a
search does not write. The counts are written before a call that returns counts, after many uses, and on close. If the
process is killed, counts that are not written yet are lost."""

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
    """The uses of one entry since the last write. `at` is the time of the last use. The class is mutable, because each
    search changes the counts of about ten entries and a new object for each change would be slow."""

    at: datetime
    matches: int = 0
    reads: int = 0
    others: int = 0


class UsageCounter:
    """Counts the uses of the entries of a backend. Thread-safe."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # held during a write, so that all counts are written when `flush` returns
        self._writer: threading.Thread | None = None
        self._counts: dict[str, _Counts] = {}

    def count(self, ids: Iterable[str], *, matches: int = 0, reads: int = 0, others: int = 0) -> None:
        """Count uses of each of these entries. `matches` is the number of searches that found it, `reads` is the number
        of times that a model or a person read it, and `others` is the number of requests for it by id."""
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
                # A search must not wait for the disk.
                self._writer = threading.Thread(target=self.flush, name="agentformer-uses", daemon=True)
                self._writer.start()

    def flush_if_due(self, ids: Iterable[str] | None = None) -> None:
        """Write all counts if the caller is about to return an entry with a `matches` or `reads` count that is not
        written yet. `ids` are the ids of the returned entries; None means that any entry may be returned. Requests by
        id (`others`) alone cause no write."""
        with self._lock:
            counts = self._counts.values() if ids is None else filter(None, map(self._counts.get, ids))
            due = any(use.matches or use.reads for use in counts) or self._writing.locked()
        if due:
            self.flush()

    def flush(self) -> None:
        """Write all counts to the backend. If the store cannot be written, the error is only logged, because the
        request of the caller must not fail."""
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
