"""Threads that derive the properties of entries (`entry_properties`). One thread works while the vectors of many
entries are computed. Another thread later writes the rows that are missing or outdated.

Rows are missing if the embedding of entries ended before their analysis, or if an older version wrote the store. Rows
are outdated if the analysis of texts has changed. Searches do not wait for the threads. The threads pause for searches,
because the analysis holds Python's global interpreter lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from agentformer.errors import AgentFormerError
from agentformer.index import entry_properties
from agentformer.types import UNSEARCHED_KINDS, MemoryEntry, RecordStore, Row

log = logging.getLogger("agentformer")

_ANALYSIS_PAUSE = 0.001  # seconds after each entry that a thread analyzes, so that searches in other threads go on
_RENEWED = 50  # number of rows written in one transaction
_PAUSE = 1.0  # pause after a batch, as a share of its processor time: the thread uses at most half of a processor
_AGAIN_SECONDS = 60.0  # minimum wait after a pass before rows that are still missing start another pass
_YIELD_SECONDS = 0.1  # maximum wait for running searches before each row, so that constant searches do not stop a pass
_POLL_SECONDS = 0.002


@contextmanager
def analyzing(entries: Sequence[MemoryEntry]) -> Iterator[entry_properties.Analyses]:
    """Analyze entries in a thread until the `with` block ends. Yield the dictionary that the thread fills: `id(entry)`
    -> the entry and its analysis. It stays empty if there are only a few entries, because `entry_properties.write`
    analyzes them in less time than a thread needs to start."""
    analyses: dict[int, tuple[MemoryEntry, entry_properties.Analysis]] = {}
    ended = threading.Event()

    def analyze() -> None:
        for entry in entries:
            if ended.wait(_ANALYSIS_PAUSE):
                return
            if entry.kind not in UNSEARCHED_KINDS:
                analyses[id(entry)] = entry, entry_properties.analyze(entry)

    if len(entries) <= entry_properties.INLINE:
        yield analyses
        return
    thread = threading.Thread(target=analyze, name="agentformer-analysis", daemon=True)
    thread.start()
    try:
        yield analyses
    finally:
        ended.set()
        thread.join()


class DerivedRenewal:
    """Runs a thread that writes missing and outdated rows of the table `derived`, which contains the properties of
    entries. Several processes may run this thread at the same time, because each batch first reads which rows are still
    missing. `searching` returns whether a search is running. Thread-safe."""

    def __init__(self, searching: Callable[[], bool]) -> None:
        self._searching = searching
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._done = 0  # number of the last entry that a pass has reached
        self._again_at = 0.0

    def start(self, database: RecordStore, missing: Iterable[int]) -> None:
        """Start the thread if `missing`, the numbers of entries without a row, is not empty. The thread goes through
        the entries in order, from the place where it ended last time, and writes missing and outdated rows. If an entry
        in `missing` is before this place, the thread begins at the first entry again, but not within a minute of the
        previous run, because some rows can never be written. Nothing happens if the thread is running, or after
        `stop`."""
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
        """Stop the thread after its current batch, and wait for its end. Later calls of `start` have no effect."""
        self._stopped.set()
        self.wait()

    def wait(self) -> None:
        """Wait until the thread ends. Return at once if it is not running."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self, database: RecordStore) -> None:
        try:
            while not self._stopped.is_set():
                started = time.thread_time()
                with database.reading() as connection:
                    rows = entry_properties.outdated(connection, self._done, _RENEWED)
                if not rows:
                    break
                prepared = entry_properties.prepare(self._between_searches(rows))
                self._wait_for_searches()
                with database.writing() as connection:
                    entry_properties.write_prepared(connection, prepared)
                self._done = rows[-1]["num"]
                self._stopped.wait(_PAUSE * (time.thread_time() - started))
        except AgentFormerError as error:
            log.warning("precomputed data for searches could not be written; a later search tries again: %s", error)
        self._again_at = time.monotonic() + _AGAIN_SECONDS

    def _between_searches(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows. Before each row, wait a short time for running searches to end."""
        for row in rows:
            self._wait_for_searches()
            yield row

    def _wait_for_searches(self) -> None:
        until = time.monotonic() + _YIELD_SECONDS
        while self._searching() and time.monotonic() < until and not self._stopped.wait(_POLL_SECONDS):
            pass
