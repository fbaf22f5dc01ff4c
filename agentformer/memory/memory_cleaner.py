"""`MemoryCleaner`: archives expired entries, and replaces old episodic entries (such as messages) of a session by
summaries. Each summary links to its original entries. The store is not locked while a language model writes a summary.
If an original entry changes in the meantime, the summary is not stored, and the next run summarizes these entries
again."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from agentformer.errors import AgentFormerError, Conflict, InvalidInput, NotFound, StoreError
from agentformer.lazy import Lazy
from agentformer.memory.backends import all_entries, is_live
from agentformer.memory.background import JobQueue, PeriodicThread
from agentformer.memory.summaries import OUTCOMES, SUMMARY_KIND, sort_by_time
from agentformer.records.codec import now
from agentformer.records.offers import leases_of
from agentformer.records.scopes import expired
from agentformer.types import LanguageModel, MemoryBackend, MemoryEntry, Scope, Shown, new_id

if TYPE_CHECKING:
    from agentformer.memory.summaries.summarizer import Summarizer, Summary

log = logging.getLogger("agentformer")

_MAX_IMMEDIATE = 4  # groups that are cleaned while a caller waits, a few milliseconds each; other groups are queued
_MAX_SESSIONS = 4096  # maximum number of sessions whose message counts are kept in memory


@dataclass(frozen=True, slots=True)
class CleaningReport:
    """The result of one run. `archived` is the number of entries that the summaries replaced. `conflicts` are groups
    that were not summarized, because an entry changed or an error occurred; the next run tries them again.
    `MemoryCleaner.status` returns the last error."""

    sessions: Annotated[int, Shown("The number of sessions that had messages to summarize.")] = 0
    summaries: Annotated[tuple[str, ...], Shown("The ids of the new summaries.")] = ()
    archived: int = 0
    busy: Annotated[tuple[str, ...], Shown("The sessions that another caller is summarizing now.")] = ()
    conflicts: Annotated[int, Shown("The number of groups of messages for which no summary could be stored.")] = 0
    outcomes: Annotated[Mapping[str, int], Shown("The number of summaries for each method of summarizing.")] = field(
        default_factory=dict
    )
    expired: Annotated[tuple[str, ...], Shown("The ids of the expired entries that were archived.")] = ()

    def __add__(self, other: CleaningReport) -> CleaningReport:
        return CleaningReport(
            self.sessions + other.sessions,
            self.summaries + other.summaries,
            self.archived + other.archived,
            self.busy + other.busy,
            self.conflicts + other.conflicts,
            dict(Counter(self.outcomes) + Counter(other.outcomes)),
            self.expired + other.expired,
        )


def select_groups(
    entries: Iterable[MemoryEntry], *, keep_recent: int, batch: int, excluded: Collection[str] = ()
) -> list[list[str]]:
    """Group the live episodic entries of one session for summaries, and return a list of ids for each group. The
    entries of a group are in order of time and have the same agent, user and project. A group has `batch` entries.
    These entries are not grouped: the newest `keep_recent` entries, entries that do not fill a group, summaries,
    entries that are derived from other entries, entries that will expire, and entries whose ids are in `excluded`."""
    originals = (entry for entry in entries if entry.kind != SUMMARY_KIND and not entry.derived_from)
    ordered = sort_by_time(entry for entry in originals if entry.expires_at is None)
    groups: list[list[str]] = []
    open_groups: dict[tuple[str | None, ...], list[str]] = defaultdict(list)
    for entry in ordered[: max(0, len(ordered) - keep_recent)]:
        if entry.id in excluded:
            continue
        owner = (entry.agent_id, entry.user_id, entry.project)
        open_groups[owner].append(entry.id)
        if len(open_groups[owner]) == batch:
            groups.append(open_groups.pop(owner))
    return groups


class MessageCounter:
    """Counts the messages of each session in memory, so that a new message rarely needs a query. Thread-safe. The
    messages in the store are counted when a session is new, and when the count reaches a multiple of `every`, because
    other processes can add messages too. A removal of messages is not counted. It can delay a cleaning by fewer than
    `every` new messages."""

    def __init__(self, backend: MemoryBackend, every: int) -> None:
        self._backend = backend
        self._every = every
        self._counts: dict[tuple[str, str], int] = {}  # key: namespace and session id
        self._lock = threading.Lock()

    def reached(self, namespace: str, session_id: str) -> bool:
        """Count a new message of a session. Return True if the number of messages has reached a multiple of `every`."""
        session = namespace, session_id
        with self._lock:
            count = self._counts.pop(session, None)
            if count is not None and (count + 1) % self._every:
                self._counts[session] = count + 1  # moved to the end: the first session is the least recently used
                return False
        scope = Scope(namespace, kinds=("message",), session_id=session_id, include_archived=True)
        stored = self._backend.count(scope)  # if this raises, the next call counts the session in the store again
        with self._lock:
            self._counts[session] = stored
            if len(self._counts) > _MAX_SESSIONS:
                del self._counts[next(iter(self._counts))]
        return stored % self._every == 0 if count is None else stored > count


@dataclass(frozen=True, slots=True)
class CleaningOptions:
    """Options of a `MemoryCleaner`. A session is cleaned each time it has `every` new messages; 0 means never. The
    newest `keep_recent` entries are not summarized. Each summary replaces `batch` entries. All sessions are cleaned
    every `interval` seconds; 0 means never. A lease reserves a session for one cleaner, and ends after
    `lease_seconds`."""

    every: int = 10
    keep_recent: int = 5
    batch: int = 5
    interval: float = 0.0
    lease_seconds: float = 300.0


class OnDemandSummarizer:
    """Builds a new `Summarizer` for each summary, so that the language model is not built before it is needed. If the
    model cannot be built, the summary is made without a model, because a caller that adds a message cannot correct the
    settings. `instant` is True if no model is configured; in this case, a summary takes only milliseconds."""

    def __init__(
        self,
        build: Callable[[LanguageModel | None], Summarizer],
        model: Lazy[LanguageModel | None],
        *,
        instant: bool,
    ) -> None:
        self._build = build
        self._model = model
        self._logged = ""  # the problem that was logged last; it is not repeated
        self.instant = instant

    def ready(self) -> None:
        """Build the language model. Raises an error if this fails."""
        self._model.get()

    def summarize(self, originals: Sequence[MemoryEntry]) -> Summary:
        """Return a summary of the entries `originals`; see `Summarizer.summarize`."""
        try:
            model = self._model.get()
        except Exception as error:  # noqa: BLE001 - a plugin's model can raise anything
            problem = str(error) if isinstance(error, AgentFormerError) else f"{type(error).__name__}: {error}"[:200]
            if problem != self._logged:
                self._logged = problem
                log.warning("the language model is unavailable, so summaries are made without it: %s", problem)
            summary = self._build(None).summarize(originals)
            return dataclasses.replace(summary, outcome="extractive_unavailable", problems=(problem,))
        return self._build(model).summarize(originals)


class MemoryCleaner:
    """Cleans the sessions of a backend: old entries are replaced by summaries. Thread-safe. A lease ensures that only
    one thread cleans a session at a time, even if several processes use the store. Entries without a session are not
    part of a conversation, so they are never summarized."""

    def __init__(
        self,
        backend: MemoryBackend,
        summarizer: Summarizer | OnDemandSummarizer,
        options: CleaningOptions | None = None,
    ) -> None:
        """Prepare the cleaner; `start` starts its thread."""
        self._backend = backend
        self._leases = leases_of(backend)
        self._summarizer = summarizer
        self._options = options = options or CleaningOptions()
        self._counter = MessageCounter(backend, options.every)
        self._queue = JobQueue(self._run_job)
        self._clock = PeriodicThread(options.interval, lambda: self._queue.add((None, None)))
        self._stopped = threading.Event()
        self._last_run: datetime | None = None
        self._last_error: str | None = None
        self._newest: tuple[int, datetime | None] = (0, None)  # number of summaries, and the time of the newest one

    def run(
        self,
        *,
        namespace: str | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        project: str | None = None,
    ) -> CleaningReport:
        """Archive expired entries, clean one session, the sessions of one namespace, or all sessions, and return a
        report. `session_id` alone selects the sessions with this id in all namespaces. With `user_id` or `project`,
        only the entries of this user or project are read. Sessions that another caller is cleaning are skipped. Unlike
        automatic cleaning, `run` also summarizes entries that a caller has restored. If a part of the summarizer cannot
        be loaded, the error is raised before anything is changed."""
        scope = _episodes(namespace or "", session_id, user_id=user_id, project=project)
        return self._run(scope, on_request=True)

    def message_added(self, entry: MemoryEntry) -> None:
        """Clean the session of a new message if the number of messages of this session has reached a multiple of
        `CleaningOptions.every`. If a model writes the summaries, the session is cleaned in the background. Errors are
        logged and not raised."""
        if self._options.every <= 0 or entry.session_id is None:
            return
        with self._logging_errors():
            if not self._counter.reached(entry.namespace, entry.session_id):
                return
            if self._summarizer.instant:
                self._run(_episodes(entry.namespace, entry.session_id), max_groups=_MAX_IMMEDIATE)
            else:
                self._queue.add((entry.namespace, entry.session_id))

    def start(self) -> None:
        """Start a thread that cleans all sessions every `CleaningOptions.interval` seconds, unless this is 0."""
        self._clock.start()

    def close(self, seconds: float = 10.0) -> None:
        """Stop the periodic thread, and wait up to `seconds` until the queued sessions are cleaned. Idempotent."""
        self._clock.close(0)
        if not self._queue.close(seconds):
            self._stopped.set()
            log.warning("cleaning did not finish within %g s; the next run continues it", seconds)

    def status(self) -> dict[str, Any]:
        """Return JSON values: the number of stored summaries for each way of making them, the time of the last run, the
        last error, and the number of queued jobs. If this process has not cleaned any session yet, the time at which
        the newest summary was made is used as the time of the last run."""
        outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        for namespace in self._backend.namespaces():
            for outcome in OUTCOMES:
                scope = Scope(namespace, kinds=(SUMMARY_KIND,), metadata={"outcome": outcome}, include_archived=True)
                outcomes[outcome] += self._backend.count(scope)
        last_run = self._last_run or self._last_stored(sum(outcomes.values()))
        return {
            "outcomes": dict(outcomes),
            "last_run": last_run.isoformat() if last_run else None,
            "last_error": self._last_error,
            "queued": len(self._queue),
        }

    def _last_stored(self, count: int) -> datetime | None:
        """Return the time at which the newest stored summary was made. `count` is the number of stored summaries. All
        summaries are read again only if this number has changed since the last call."""
        if self._newest[0] != count:
            summaries = Scope("", kinds=(SUMMARY_KIND,), include_archived=True)
            scopes = [dataclasses.replace(summaries, namespace=name) for name in self._backend.namespaces() if count]
            times = (entry.created_at for scope in scopes for entry in all_entries(self._backend, scope))
            self._newest = count, max(filter(None, times), default=None)
        return self._newest[1]

    def _run(self, scope: Scope, *, max_groups: int | None = None, on_request: bool = False) -> CleaningReport:
        """Clean the sessions in `scope`. If the namespace of the scope is empty, clean the sessions of all namespaces.
        `max_groups` and `on_request` are explained in `_clean`."""
        report = CleaningReport()
        try:
            if on_request:
                self._summarizer.ready()
            for name in [scope.namespace] if scope.namespace else self._backend.namespaces():
                within = dataclasses.replace(scope, namespace=name)
                report += self._archive_expired(dataclasses.replace(within, tiers=()))
                for session in self._sessions(within) if scope.session_id is None else [scope.session_id]:
                    report += self._clean(dataclasses.replace(within, session_id=session), max_groups, on_request)
        except Exception as error:
            self._last_error = str(error)
            raise
        self._last_run = datetime.now(UTC)
        return report

    def _archive_expired(self, scope: Scope) -> CleaningReport:
        """Archive the entries in the scope that have expired. `MemoryManager.restore` makes such an entry live again.
        An entry that another caller changes meanwhile is left to the next run, and so is a summary with originals."""
        due, archived = expired(scope, now()), list[str]()
        for entry in all_entries(self._backend, due) if self._backend.count(due) else ():
            with suppress(Conflict, InvalidInput, NotFound):
                self._backend.update(entry.id, {"archived_at": now()}, entry.version)
                archived.append(entry.id)
        return CleaningReport(expired=tuple(archived))

    def _run_job(self, job: tuple[str | None, str | None]) -> None:
        with self._logging_errors():
            self._run(_episodes(job[0] or "", job[1]))

    @contextmanager
    def _logging_errors(self) -> Iterator[None]:
        """Log errors of the `with` block and do not raise them. The message of the caller is already stored, so an
        error in cleaning must not make the call fail."""
        try:
            yield
        except AgentFormerError as error:
            self._last_error = str(error)
            log.warning("old messages could not be summarized; the next cleaning tries again: %s", error)
        except Exception as error:
            self._last_error = str(error)
            log.exception("old messages could not be summarized; the next cleaning tries again")

    def _sessions(self, scope: Scope) -> list[str]:
        """Return the ids of the sessions in the scope that have enough live entries for a summary, sorted."""
        counts = Counter(entry.session_id for entry in all_entries(self._backend, scope))
        least = self._options.keep_recent + self._options.batch
        return sorted(session for session, count in counts.items() if session is not None and count >= least)

    def _clean(self, scope: Scope, max_groups: int | None, on_request: bool) -> CleaningReport:
        """Clean the session of the scope while holding a lease for the session, and return a report. `on_request` is
        True if a caller asked for this cleaning (see `run`). If there are more than `max_groups` groups of entries,
        `max_groups` groups are summarized now, and the session is queued for the other groups."""
        namespace, session_id = scope.namespace, scope.session_id or ""
        name = f"clean/{namespace}/{session_id}"
        holder = f"{os.getpid()}/{new_id()}"  # a new holder for each run, because two threads must not share a lease
        if not self._leases.lease(name, holder, self._options.lease_seconds):
            return CleaningReport(busy=(session_id,))
        try:
            groups = self._groups(scope, on_request)
            report = CleaningReport(sessions=min(1, len(groups)))
            for number, ids in enumerate(groups[:max_groups]):
                if number and not self._leases.lease(name, holder, self._options.lease_seconds):
                    return report + CleaningReport(busy=(session_id,))
                if self._stopped.is_set():
                    return report
                report += self._summarize_group(session_id, ids)
        finally:
            self._leases.release(name, holder)
        if max_groups is not None and len(groups) > max_groups:
            self._queue.add((namespace, session_id))
        return report

    def _groups(self, scope: Scope, on_request: bool) -> list[list[str]]:
        """Return the ids of the entries to summarize in the session of the scope, as one list for each summary. Entries
        that were restored from a summary are included only if `on_request` is True. Only ids and owners of entries are
        kept in memory, because the texts of a long session would need much memory."""
        entries = (
            dataclasses.replace(entry, content="", raw=None, metadata={}) for entry in all_entries(self._backend, scope)
        )
        restored = frozenset() if on_request else self._restored(scope)
        options = self._options
        return select_groups(entries, keep_recent=options.keep_recent, batch=options.batch, excluded=restored)

    def _restored(self, episodes: Scope) -> frozenset[str]:
        """Return the ids of the entries that a caller has restored: the originals of archived summaries."""
        live = dataclasses.replace(episodes, tiers=(), kinds=(SUMMARY_KIND,))
        scope = dataclasses.replace(live, include_archived=True)
        if self._backend.count(scope) == self._backend.count(live):
            return frozenset()  # in the usual case, no summary needs to be read
        archived = (entry for entry in all_entries(self._backend, scope) if entry.archived_at is not None)
        return frozenset(link.id for summary in archived for link in summary.derived_from)

    def _summarize_group(self, session_id: str, ids: Sequence[str]) -> CleaningReport:
        """Replace the entries with these ids by one summary. If an entry has changed or the summary fails, the entries
        stay unchanged, and the report counts a conflict. Only `StoreError` is raised."""
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


def _episodes(namespace: str, session_id: str | None, user_id: str | None = None, project: str | None = None) -> Scope:
    return Scope(namespace, tiers=("episodic",), session_id=session_id, user_id=user_id, project=project)
