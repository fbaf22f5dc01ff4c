"""`MemoryCleaner`: replaces old episodic entries of a session by summaries. Each summary links to its original entries.
No lock is held while a model writes a summary. If an original changes meanwhile, the summary is not stored, and the
next run tries the group again."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agentformer.errors import AgentFormerError, Conflict, StoreError
from agentformer.memory.backends import all_entries, is_live
from agentformer.memory.background import JobQueue, PeriodicThread
from agentformer.memory.summaries.entries import OUTCOMES, SUMMARY_KIND, sort_by_time
from agentformer.types import LanguageModel, MemoryBackend, MemoryEntry, Scope, new_id

if TYPE_CHECKING:
    from agentformer.memory.summaries.summarizer import Summarizer, Summary

log = logging.getLogger("agentformer")

_MAX_IMMEDIATE = 4  # groups that are cleaned while a caller waits, a few milliseconds each; other groups are queued
_MAX_SESSIONS = 4096  # at most this many message counts are kept in memory


@dataclass(frozen=True, slots=True)
class CleaningReport:
    """The result of one run. `sessions` counts the sessions that had entries to summarize. `summaries` holds the ids of
    the new summaries. `outcomes` counts how the summaries were made. `busy` names the sessions that another caller was
    cleaning. `conflicts` counts the groups that the next run tries again, because an entry changed or the summary
    failed. `status` has the last error."""

    sessions: int = 0
    summaries: tuple[str, ...] = ()
    archived: int = 0
    busy: tuple[str, ...] = ()
    conflicts: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: CleaningReport) -> CleaningReport:
        return CleaningReport(
            self.sessions + other.sessions,
            self.summaries + other.summaries,
            self.archived + other.archived,
            self.busy + other.busy,
            self.conflicts + other.conflicts,
            dict(Counter(self.outcomes) + Counter(other.outcomes)),
        )


def select_groups(
    entries: Iterable[MemoryEntry], *, keep_recent: int, batch: int, leave: Collection[str] = ()
) -> list[list[str]]:
    """Group the ids of one session's live episodic entries for summaries: `batch` ids per group, in order of time. The
    newest `keep_recent` entries and those that do not fill a group are not grouped. Entries of different agents, users
    or projects are in different groups. Summaries, derived entries and the ids in `leave` are skipped."""
    ordered = sort_by_time(entry for entry in entries if entry.kind != SUMMARY_KIND and not entry.derived_from)
    groups: list[list[str]] = []
    open_groups: dict[tuple[str | None, ...], list[str]] = defaultdict(list)
    for entry in ordered[: max(0, len(ordered) - keep_recent)]:
        if entry.id in leave:
            continue
        owner = (entry.agent_id, entry.user_id, entry.project)
        open_groups[owner].append(entry.id)
        if len(open_groups[owner]) == batch:
            groups.append(open_groups.pop(owner))
    return groups


class MessageCounter:
    """Counts the messages of each session, without a query for each message. Thread-safe. The store is queried for a
    new session, and when the count reaches a multiple of `every`, so that messages of other processes count too.
    Removed messages delay a cleaning by fewer than `every` messages."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._counts: dict[tuple[str, str], int] = {}  # by namespace and session
        self._lock = threading.Lock()

    def reached(self, session: tuple[str, str], count_stored: Callable[[], int]) -> bool:
        """Return True if the new message completes a multiple of `every`."""
        with self._lock:
            count = self._counts.pop(session, None)
            if count is not None and (count + 1) % self._every:
                self._counts[session] = count + 1  # at the end: the first session is the least recently used
                return False
        stored = count_stored()  # if this raises, the next call counts the session in the store again
        with self._lock:
            self._counts[session] = stored
            if len(self._counts) > _MAX_SESSIONS:
                del self._counts[next(iter(self._counts))]
        return stored % self._every == 0 if count is None else stored > count


@dataclass(frozen=True, slots=True)
class CleaningOptions:
    """A cleaning starts after `every` messages of a session; 0 means never. The newest `keep_recent` entries are not
    summarized. `batch` entries become one summary. `interval` (0: never) and `lease_seconds` are in seconds."""

    every: int = 10
    keep_recent: int = 5
    batch: int = 5
    interval: float = 0.0
    lease_seconds: float = 300.0


class OnDemandSummarizer:
    """Builds a `Summarizer` for each summary. If the language model cannot be built, it summarizes without the model,
    because a caller that adds a message cannot repair the settings. `instant` means that no model is configured."""

    def __init__(
        self,
        build: Callable[[LanguageModel | None], Summarizer],
        model: Callable[[], LanguageModel | None],
        *,
        instant: bool,
    ) -> None:
        self._build = build
        self._model = model
        self._logged = ""
        self.instant = instant

    def summarize(self, originals: Sequence[MemoryEntry]) -> Summary:
        """Return a summary; see `Summarizer.summarize`."""
        try:
            model = self._model()
        except Exception as error:  # noqa: BLE001 - a plugin's model can raise anything
            problem = str(error) if isinstance(error, AgentFormerError) else f"{type(error).__name__}: {error}"[:200]
            if problem != self._logged:
                self._logged = problem
                log.warning("summaries are made without the language model: %s", problem)
            summary = self._build(None).summarize(originals)
            return dataclasses.replace(summary, outcome="extractive_unavailable", problems=(problem,))
        return self._build(model).summarize(originals)


class MemoryCleaner:
    """Cleans the sessions of a backend. Thread-safe. A lease ensures that only one thread of one process cleans a
    session. Entries without a session are not part of a conversation, so they are never summarized."""

    def __init__(
        self,
        backend: MemoryBackend,
        summarizer: Summarizer | OnDemandSummarizer,
        options: CleaningOptions | None = None,
        *,
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        """`ready` loads the parts of the summarizer, and raises their errors. Only `run` calls `ready`."""
        self._backend = backend
        self._ready = ready
        self._summarizer = summarizer
        self._options = options = options or CleaningOptions()
        self._counter = MessageCounter(options.every)
        self._queue = JobQueue(self._clean_quietly)
        self._clock = PeriodicThread(options.interval, lambda: self._queue.add((None, None)))
        self._stopped = threading.Event()
        self._last_run: datetime | None = None
        self._last_error: str | None = None

    def run(self, *, namespace: str | None = None, session_id: str | None = None) -> CleaningReport:
        """Clean one session, one namespace, or everything, and return after the cleaning. Without a namespace, a
        session id is searched in every namespace. Sessions that another process is cleaning are skipped. Unlike
        automatic cleaning, `run` summarizes restored originals again. Raises the errors of `ready` before anything has
        changed."""
        return self._run(namespace, session_id, on_request=True)

    def message_added(self, entry: MemoryEntry) -> None:
        """Clean the session after each `every` messages, in the background if a model is used. Errors are only
        logged."""
        if self._options.every <= 0 or entry.session_id is None:
            return
        scope = Scope(entry.namespace, kinds=("message",), session_id=entry.session_id, include_archived=True)
        with self._logging_errors():
            if not self._counter.reached((entry.namespace, entry.session_id), lambda: self._backend.count(scope)):
                return
            if self._summarizer.instant:
                self._run(entry.namespace, entry.session_id, max_groups=_MAX_IMMEDIATE)
            else:
                self._queue.add((entry.namespace, entry.session_id))

    def start(self) -> None:
        """Start to clean everything every `interval` seconds. Do nothing if `interval` is 0."""
        self._clock.start()

    def close(self, seconds: float = 10.0) -> None:
        """Stop the periodic thread, and finish the queued jobs within `seconds`. Idempotent."""
        self._clock.close(0)
        if not self._queue.close(seconds):
            self._stopped.set()
            log.warning("cleaning did not finish within %g s; the next run continues it", seconds)

    def status(self) -> dict[str, Any]:
        """Return how the stored summaries of all namespaces were made, and the state of cleaning, as JSON values."""
        outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        for namespace in self._backend.namespaces():
            for outcome in OUTCOMES:
                scope = Scope(namespace, kinds=(SUMMARY_KIND,), metadata={"outcome": outcome}, include_archived=True)
                outcomes[outcome] += self._backend.count(scope)
        return {
            "outcomes": dict(outcomes),
            "last_run": self._last_run.isoformat() if self._last_run else None,
            "last_error": self._last_error,
            "queued": len(self._queue),
        }

    def _run(
        self, namespace: str | None, session_id: str | None, *, max_groups: int | None = None, on_request: bool = False
    ) -> CleaningReport:
        report = CleaningReport()
        try:
            if on_request:
                self._ready()
            for name in self._backend.namespaces() if namespace is None else [namespace]:
                for session in self._sessions(name) if session_id is None else [session_id]:
                    report += self._clean(name, session, max_groups, on_request)
        except Exception as error:
            self._last_error = str(error)
            raise
        self._last_run = datetime.now(UTC)
        return report

    def _clean_quietly(self, job: tuple[str | None, str | None]) -> None:
        with self._logging_errors():
            self._run(*job)

    @contextmanager
    def _logging_errors(self) -> Iterator[None]:
        """Log errors instead of raising them, because the caller's message is already stored."""
        try:
            yield
        except AgentFormerError as error:
            self._last_error = str(error)
            log.warning("cleaning failed: %s", error)
        except Exception as error:
            self._last_error = str(error)
            log.exception("cleaning failed")

    def _sessions(self, namespace: str) -> list[str]:
        """Return the sessions that have enough live entries to clean, sorted."""
        episodes = all_entries(self._backend, Scope(namespace, tiers=("episodic",)))
        counts = Counter(entry.session_id for entry in episodes)
        least = self._options.keep_recent + self._options.batch
        return sorted(session for session, count in counts.items() if session is not None and count >= least)

    def _clean(self, namespace: str, session_id: str, max_groups: int | None, on_request: bool) -> CleaningReport:
        """Clean one session under its lease. If there are more than `max_groups` groups, queue the session."""
        name = f"clean/{namespace}/{session_id}"
        holder = f"{os.getpid()}/{new_id()}"  # a new holder for each run, because two threads must not share a lease
        if not self._backend.lease(name, holder, self._options.lease_seconds):
            return CleaningReport(busy=(session_id,))
        try:
            groups = self._groups(namespace, session_id, on_request)
            report = CleaningReport(sessions=min(1, len(groups)))
            for number, ids in enumerate(groups[:max_groups]):
                if number and not self._backend.lease(name, holder, self._options.lease_seconds):
                    return report + CleaningReport(busy=(session_id,))
                if self._stopped.is_set():
                    return report
                report += self._summarize_group(session_id, ids)
        finally:
            self._backend.release(name, holder)
        if max_groups is not None and len(groups) > max_groups:
            self._queue.add((namespace, session_id))
        return report

    def _groups(self, namespace: str, session_id: str, on_request: bool) -> list[list[str]]:
        """Return the groups of a session to summarize. Texts are not kept in memory, because a session can be long."""
        scope = Scope(namespace, tiers=("episodic",), session_id=session_id)
        entries = (
            dataclasses.replace(entry, content="", raw=None, metadata={}) for entry in all_entries(self._backend, scope)
        )
        restored = frozenset() if on_request else self._restored(namespace, session_id)
        options = self._options
        return select_groups(entries, keep_recent=options.keep_recent, batch=options.batch, leave=restored)

    def _restored(self, namespace: str, session_id: str) -> frozenset[str]:
        """Return the originals of archived summaries. Callers restored these originals."""
        live = Scope(namespace, kinds=(SUMMARY_KIND,), session_id=session_id)
        scope = dataclasses.replace(live, include_archived=True)
        if self._backend.count(scope) == self._backend.count(live):
            return frozenset()  # in the usual case, no summary needs to be read
        archived = (entry for entry in all_entries(self._backend, scope) if entry.archived_at is not None)
        return frozenset(link.id for summary in archived for link in summary.derived_from)

    def _summarize_group(self, session_id: str, ids: Sequence[str]) -> CleaningReport:
        """Replace a group by its summary. After a conflict or an error, nothing has changed, and the other groups are
        still summarized. Raises `StoreError`."""
        try:
            originals = [entry for entry in self._backend.get(ids) if is_live(entry)]
            if len(originals) != len(ids):
                return CleaningReport(conflicts=1)
            summary = self._summarizer.summarize(originals)
            if summary.outcome == "extractive_unavailable" and summary.problems:
                self._last_error = summary.problems[-1]
            if not summary.text.strip():
                return CleaningReport(outcomes={summary.outcome: 0})
            versions = {entry.id: entry.version for entry in originals}
            stored = self._backend.consolidate(summary.to_entry(originals), ids, versions=versions)
            return CleaningReport(summaries=(stored.id,), archived=len(ids), outcomes={summary.outcome: 1})
        except Conflict:
            return CleaningReport(conflicts=1)
        except StoreError:
            raise
        except Exception as error:
            self._last_error = str(error)
            log.exception("%d entries of session %r could not be summarized and were not changed", len(ids), session_id)
            return CleaningReport(conflicts=1)
