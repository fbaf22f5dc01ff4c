"""A background thread that writes missing and outdated rows of the table `derived`, which contains precomputed data for
searches. Rows are missing if many entries were stored at once, or if an older version wrote the store. They are
outdated if the analysis of texts has changed. Searches do not wait for the thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from agentformer.errors import AgentFormerError
from agentformer.index import entry_properties
from agentformer.types import RecordStore

log = logging.getLogger("agentformer")

_BATCH = 50  # rows of one transaction
_PAUSE = 1.0  # pause after a batch, as a share of its time: the thread uses half of a processor
_AGAIN_SECONDS = 60.0  # minimum wait after a pass before rows that are still missing start another pass


class DerivedRenewal:
    """Writes missing and outdated derived rows in a thread. Several processes may do so at the same time, because each
    batch first reads which rows are still missing. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._done = 0  # number of the last entry that a pass has reached
        self._again_at = 0.0

    def start(self, database: RecordStore, missing: Iterable[int]) -> None:
        """Start a pass in the thread: it writes the missing and outdated rows of all entries after the last entry that
        an earlier pass has reached. Nothing happens if a pass is running, or after `stop`. `missing` contains the
        numbers of entries without a row. If an earlier pass has already reached one of them, the new pass begins at the
        first entry of the store. In this case, it starts only some time after the previous pass, because some rows
        cannot be written."""
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
        """Stop the thread after its current batch, and wait until the thread has ended. Later calls of `start` have no
        effect."""
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
                    rows = entry_properties.outdated(connection, self._done, _BATCH)
                if not rows:
                    break
                prepared = entry_properties.prepare(rows)
                with database.writing() as connection:
                    entry_properties.write_prepared(connection, prepared)
                self._done = rows[-1]["num"]
                self._stopped.wait(_PAUSE * (time.monotonic() - started))
        except AgentFormerError as error:
            log.warning("precomputed data for searches could not be written; a later search tries again: %s", error)
        self._again_at = time.monotonic() + _AGAIN_SECONDS
