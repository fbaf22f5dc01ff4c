"""The counts of a store, read for `/metrics` without waiting for a store that hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentformer.errors import StoreError
from agentformer.factory import AgentFormer
from agentformer.http.patient import Patient
from agentformer.jobs.queue import Jobs
from agentformer.records.offers import status_of

log = logging.getLogger("agentformer")

_NO_ENTRY = "-"  # an id that no entry has
_PROBE_SECONDS = 0.3  # in which a store answers that does not hang
_COUNT_SECONDS = 0.5  # for the counts of the store; a large one takes longer, and its counts are shown the next time
_ALIAS = "hierarchical"  # another name for a backend that is also listed under its own name


class Counts(NamedTuple):
    """The counts of the store: the status of each backend, and the number of jobs and the age of the oldest in seconds
    by their state."""

    stores: Mapping[str, Mapping[str, Any]]
    jobs: Mapping[str, tuple[int, float]]


class StoreCounts:
    """Reads the counts of a store for its metrics, and does not wait for a store that hangs. Thread-safe."""

    def __init__(self, af: AgentFormer, jobs: Jobs) -> None:
        self._probe = Patient(lambda: af.backend.get([_NO_ENTRY]))
        self._counts = Patient(lambda: self._keep(Counts(_stores(af), jobs.states())))
        self._lock = threading.Lock()
        self._last = Counts({}, {})

    def read(self) -> Counts | None:
        """Return the counts, or None if the store cannot be read. If the store answers, but takes long to count, these
        are the counts of the last time."""
        try:
            self._probe.result(_PROBE_SECONDS)
            try:
                return self._counts.result(_COUNT_SECONDS)
            except TimeoutError:
                with self._lock:
                    return self._last
        except (StoreError, TimeoutError) as error:
            reason = str(error) or "it does not answer"
            log.warning("the store cannot be read for its metrics: %s", reason)
            return None

    def _keep(self, counts: Counts) -> Counts:
        with self._lock:
            self._last = counts
        return counts


def _stores(af: AgentFormer) -> Mapping[str, Mapping[str, Any]]:
    """Return the status of each backend, by the name of the backend. If a backend has two names, only one is used."""
    status = status_of(af.backend)
    backends = status.get("backends")
    if not backends:
        return {af.settings.backend: status}
    return {name: status for name, status in backends.items() if name != _ALIAS or len(backends) == 1}
