"""What searches read of the table `derived`, and a background thread that writes the rows of the table that are missing
or out of date: those of entries that were stored many at a time, of a store that an older version wrote, or of an older
analysis. Searches do not wait for it."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence

from agentformer.errors import AgentFormerError
from agentformer.index import derived
from agentformer.index.derived import Derived
from agentformer.records import change_feed
from agentformer.types import RecordStore

log = logging.getLogger("agentformer")

_BATCH = 50  # rows of one transaction
_PAUSE = 1.0  # of the time of a batch: the thread uses half of a processor
_AGAIN_SECONDS = 60.0  # after a pass, rows that it should have written start another one no earlier
_KEPT = 8_192  # rows in memory, each of some 500 bytes
_MANY_CHANGES = 1_000  # after more changes, all rows in memory are forgotten


class DerivedRows:
    """Reads derived rows, and keeps those that it has read in memory until their entries change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, Derived] = {}
        self._seq = -1  # the change up to which the rows in memory are up to date
        self._token = ""  # of this change

    def read(self, connection: sqlite3.Connection, nums: Sequence[int], seq: int) -> dict[int, Derived]:
        """Return the rows of these entries that are up to date. `seq` is the last change when the search began."""
        with self._lock:
            self._follow(connection, seq)
            known = {num: self._kept[num] for num in nums if num in self._kept} if seq == self._seq else {}
        missing = [num for num in nums if num not in known]
        if not missing:
            return known
        read = derived.read(connection, missing)
        with self._lock:
            if seq == self._seq:  # otherwise, another thread has seen a later change, perhaps of these entries
                if len(self._kept) + len(read) > _KEPT:
                    self._kept.clear()
                self._kept |= read
        return known | read

    def _follow(self, connection: sqlite3.Connection, seq: int) -> None:
        """Forget the rows of entries that have changed."""
        if seq <= self._seq:
            return
        if seq - self._seq > _MANY_CHANGES or change_feed.token_at(connection, self._seq) != self._token:
            self._kept.clear()  # many changes, or another store in the same place
        else:
            for num in change_feed.entries_since(connection, self._seq):
                self._kept.pop(num, None)
        self._seq, self._token = seq, change_feed.token_at(connection, seq)


class DerivedRenewal:
    """Renews derived rows, while it is needed. Several processes may do so at once: each reads what is still missing
    before it writes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._done = 0  # number of the last entry that a pass has reached
        self._again_at = 0.0

    def start(self, database: RecordStore, missing: Iterable[int]) -> None:
        """Start a pass over the entries that no pass has reached, unless one is running or the renewal was stopped.
        `missing` are the numbers of entries without a row. If a pass has already reached one of them, the next pass
        begins at the first entry, but not soon after a former pass, because some rows cannot be written."""
        first = min(missing, default=None)
        with self._lock:
            running = self._thread is not None and self._thread.is_alive()
            if first is None or self._stopped.is_set() or running:
                return
            if first <= self._done:
                if time.monotonic() < self._again_at:
                    return
                self._done = 0
            self._thread = threading.Thread(
                target=self._run, args=(database,), name="agentformer-derivation", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its present batch, and wait for it. It is not started again."""
        self._stopped.set()
        self.wait()

    def wait(self) -> None:
        """Wait until a running pass is complete."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self, database: RecordStore) -> None:
        try:
            while not self._stopped.is_set():
                started = time.monotonic()
                with database.reading() as connection:
                    rows = derived.outdated(connection, self._done, _BATCH)
                if not rows:
                    break
                prepared = derived.prepare(rows)
                with database.writing() as connection:
                    derived.write_prepared(connection, prepared)
                self._done = rows[-1]["num"]
                self._stopped.wait(_PAUSE * (time.monotonic() - started))
        except AgentFormerError as error:
            log.warning("what searches need of the entries could not be kept; it is tried again later: %s", error)
        self._again_at = time.monotonic() + _AGAIN_SECONDS
