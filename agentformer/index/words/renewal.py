"""Renewal of a word index that an older version of agentformer wrote: the entries whose terms have changed since are
analyzed again in the background, while searches use the index as it is.

The manifest of the index contains the version of the analysis, and the number of the last entry that was renewed. So a
renewal that was interrupted continues, in any process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentformer.errors import AgentFormerError
from agentformer.index.words.fields import ANALYSIS, RENEWABLE, terms_changed
from agentformer.records import entries as records
from agentformer.records.database import Database

log = logging.getLogger("agentformer")

_READ = 1_000  # entries read from the records at a time
_WRITTEN = 250  # entries of one commit; searches that need the writer wait for one commit at most
_PAUSE_SECONDS = 0.02  # between two commits, so that waiting threads and processes get the lock


class Analysis(NamedTuple):
    """The version of the analysis that made the terms of an index. `renewed` is the number of the last entry whose
    terms are up to date, if the version is an older one."""

    version: int = ANALYSIS
    renewed: int = 0

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Analysis:
        """Read the analysis from the manifest of an index. Raises `ValueError` if this version cannot use the index."""
        version = state.get("analysis")
        if version != ANALYSIS and version not in RENEWABLE:
            raise ValueError("the word index was written by another version of agentformer")
        return cls(int(version), int(state.get("renewed", 0)) if version != ANALYSIS else 0)

    @property
    def current(self) -> bool:
        return self.version == ANALYSIS

    def as_state(self) -> dict[str, int]:
        """Return the values for the manifest."""
        return {"analysis": self.version, **({} if self.current else {"renewed": self.renewed})}


Write = Callable[[Database, Sequence[int], Analysis], Analysis]


class Renewal:
    """Renews an index in a background thread. `write(database, nums, analysis)` writes these entries anew, stores
    `analysis` in the manifest, and returns the analysis that the index has afterwards. It differs from `analysis` if
    another process has replaced or renewed the index. Thread-safe."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self, database: Database, analysis: Analysis) -> None:
        """Start the thread, unless it is running, or the renewal was stopped."""
        with self._lock:
            if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            name = "agentformer-renewal"
            self._thread = threading.Thread(target=self._run, args=(database, analysis), name=name, daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait until a running renewal is complete."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def stop(self) -> None:
        """Stop the thread after its present commit, and wait for it. It is not started again."""
        self._stopped.set()
        self.wait()

    def _run(self, database: Database, analysis: Analysis) -> None:
        try:
            for nums, last in _changed(database, analysis):
                if self._stopped.is_set():
                    return
                reached = Analysis(analysis.version, last)
                if self._write(database, nums, reached) != reached:
                    return
                self._stopped.wait(_PAUSE_SECONDS)
            self._write(database, (), Analysis())
        except (AgentFormerError, OSError, ValueError) as error:
            log.warning("The word index could not be renewed; the next change tries it again: %s", error)


def _changed(database: Database, analysis: Analysis) -> Iterator[tuple[list[int], int]]:
    """Yield the numbers of entries whose terms have changed since the version of the index, and the number up to which
    all entries were examined."""
    last, changed = analysis.renewed, list[int]()
    while True:
        with database.reading() as connection:
            contents = records.contents_after(connection, last, _READ)
        for num, content in contents:
            last = num
            if terms_changed(content, analysis.version):
                changed.append(num)
            if len(changed) >= _WRITTEN:
                yield changed, last
                changed = []
        if len(contents) < _READ:
            break
    if changed:
        yield changed, last
