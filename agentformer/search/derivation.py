"""A background thread that writes the rows of the table `derived` that are missing or out of date: those of entries
that were stored many at a time, of a store that an older version wrote, or of an older analysis. Searches do not wait
for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from agentformer.errors import AgentFormerError
from agentformer.index import derived
from agentformer.types import RecordStore

log = logging.getLogger("agentformer")

_BATCH = 50  # rows of one transaction
_PAUSE = 1.0  # of the time of a batch: the thread uses half of a processor
_AGAIN_SECONDS = 60.0  # after a pass, rows that it should have written start another one no earlier


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
