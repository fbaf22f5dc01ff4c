"""`MemoryCleaner`: old episodic entries of a session become summaries, which keep the way back to them.

Choosing is a pure function, summarising is the injected `Summarizer`, and the commit is `consolidate`: a crash
anywhere leaves the originals live, or the summary with the originals archived. While a model writes, nothing is
locked; what changed meanwhile makes the commit fail, and the group is left for the next time.
"""

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
from typing import TYPE_CHECKING, Any, Protocol

from agentformer.errors import AgentFormerError, Conflict, StoreError
from agentformer.memory.summaries.background import Background, Clock
from agentformer.memory.summaries.counting import MessageCounts
from agentformer.memory.summaries.lines import in_order
from agentformer.memory.summaries.outcomes import KIND, OUTCOMES
from agentformer.records.ids import new_id
from agentformer.types import MemoryBackend, MemoryEntry, Scope

if TYPE_CHECKING:
    from agentformer.memory.summaries.summarizer import Summary

log = logging.getLogger("agentformer")

_PAGE = 1000  # entries read at once
_AT_ONCE = 4  # groups cleaned while somebody waits, some milliseconds each; a long backlog is left to the background


@dataclass(frozen=True, slots=True)
class CleaningReport:
    """What one run did. `sessions` had something to clean, `summaries` are the ids of the new ones, `outcomes` say
    how many came about in which way; `busy` are the sessions that somebody else was cleaning, `conflicts` the groups of
    which an entry was changed meanwhile, or whose summary failed (`status` has the last error): both are for the next
    run."""

    sessions: int = 0
    summaries: tuple[str, ...] = ()
    archived: int = 0
    busy: tuple[str, ...] = ()
    conflicts: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)


def select_groups(
    entries: Iterable[MemoryEntry], *, keep_recent: int, batch: int, leave: Collection[str] = ()
) -> list[list[str]]:
    """Which of one session's live episodic entries become summaries together: groups of `batch` ids, in order of
    time, the oldest group first.

    The newest `keep_recent` stay, and so does what does not fill a group. Entries of different agents, users or
    projects share no group. What is a summary, or derived from something, never enters, nor what is to be left.
    """
    ordered = in_order(entry for entry in entries if entry.kind != KIND and not entry.derived_from)
    groups: list[list[str]] = []
    open_groups: dict[tuple[str | None, ...], list[str]] = defaultdict(list)
    for entry in ordered[: max(0, len(ordered) - keep_recent)]:
        if entry.id in leave:
            continue
        group = open_groups[entry.agent_id, entry.user_id, entry.project]
        group.append(entry.id)
        if len(group) == batch:
            groups.append(open_groups.pop((entry.agent_id, entry.user_id, entry.project)))
    return groups


class Summarizes(Protocol):
    """What makes one text of many entries, as `Summarizer` does."""

    @property
    def instant(self) -> bool: ...

    def summarize(self, originals: Sequence[MemoryEntry]) -> Summary: ...


class MemoryCleaner:
    """Cleans sessions of a backend. Thread-safe, and safe beside other processes: a lease lets one clean a session.

    Entries without a session are no conversation, and stay.
    """

    def __init__(
        self,
        backend: MemoryBackend,
        summarizer: Summarizes,
        *,
        every: int = 10,
        keep_recent: int = 5,
        batch: int = 5,
        interval: float = 0.0,
        lease_seconds: float = 300.0,
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        """`ready` makes what the summarizer needs, and raises what is wrong with it, before somebody who asks is
        served; the triggers work without it."""
        self._backend = backend
        self._ready = ready
        self._summarizer = summarizer
        self._every = every
        self._keep_recent = keep_recent
        self._batch = batch
        self._lease_seconds = lease_seconds
        self._counts = MessageCounts(every)
        self._background = Background(self._clean_quietly)
        self._clock = Clock(interval, lambda: self._background.add((None, None)))
        self._stopped = threading.Event()
        self._last_run: datetime | None = None
        self._last_error: str | None = None

    def run(self, *, namespace: str | None = None, session_id: str | None = None) -> CleaningReport:
        """Clean one session, one namespace, or everything; a session id alone is looked for in every namespace.

        Returns when all is done. A session that another process is cleaning is left to it. Originals that were
        restored are summarised again, since somebody asks; the triggers leave them alone. Raises what `ready` raises,
        such as `InvalidInput` for a language model that does not exist; then nothing was changed.
        """
        return self._run(namespace, session_id, again=True)

    def message_added(self, entry: MemoryEntry) -> None:
        """The trigger: after each `every` messages of a session it is cleaned, at once without a model, else in the
        background. What goes wrong in cleaning is logged, and never raised."""
        if self._every <= 0 or entry.session_id is None:
            return
        scope = Scope(entry.namespace, kinds=("message",), session_id=entry.session_id, include_archived=True)
        with self._quietly():
            if not self._counts.reached((entry.namespace, entry.session_id), lambda: self._backend.count(scope)):
                return
            if self._summarizer.instant:
                self._run(entry.namespace, entry.session_id, most=_AT_ONCE)
            else:
                self._background.add((entry.namespace, entry.session_id))

    def start(self) -> None:
        """Begin to clean everything every `interval` seconds, where that is above 0."""
        self._clock.start()

    def close(self, seconds: float = 10.0) -> None:
        """Stop the clock and finish what waits, for at most so many seconds. Idempotent."""
        self._clock.stop()
        if not self._background.close(seconds):
            self._stopped.set()
            log.warning("cleaning did not finish within %g s; the next run takes it up", seconds)

    def restore(self, summary_id: str) -> list[MemoryEntry]:
        """Bring a summary's originals back, exactly as they were; the summary is archived. Errors are those of
        `MemoryBackend.restore`."""
        return list(self._backend.restore(summary_id))

    def status(self) -> dict[str, Any]:
        """How the stored summaries came about, over all namespaces, and how cleaning goes, as JSON values."""
        outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        for namespace in self._backend.namespaces():
            for outcome in OUTCOMES:
                scope = Scope(namespace, kinds=(KIND,), metadata={"outcome": outcome}, include_archived=True)
                outcomes[outcome] += self._backend.count(scope)
        return {
            "outcomes": dict(outcomes),
            "last_run": self._last_run.isoformat() if self._last_run else None,
            "last_error": self._last_error,
            "queued": len(self._background),
        }

    def _run(
        self, namespace: str | None, session_id: str | None, *, most: int | None = None, again: bool = False
    ) -> CleaningReport:
        report = CleaningReport()
        try:
            if again:
                self._ready()
            for name in self._backend.namespaces() if namespace is None else [namespace]:
                for session in self._sessions(name) if session_id is None else [session_id]:
                    report = _sum(report, self._clean(name, session, most, again))
        except Exception as error:
            self._last_error = str(error)
            raise
        self._last_run = datetime.now(UTC)
        return report

    def _clean_quietly(self, job: tuple[str | None, str | None]) -> None:
        with self._quietly():
            self._run(*job)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Whoever adds a message has stored it, and is told nothing of cleaning."""
        try:
            yield
        except AgentFormerError as error:
            self._last_error = str(error)
            log.warning("cleaning failed: %s", error)
        except Exception as error:
            self._last_error = str(error)
            log.exception("cleaning failed")

    def _sessions(self, namespace: str) -> list[str]:
        """Sessions with enough live entries to clean, sorted."""
        counts = Counter(entry.session_id for entry in self._entries(Scope(namespace, tiers=("episodic",))))
        least = self._keep_recent + self._batch
        return sorted(session for session, count in counts.items() if session is not None and count >= least)

    def _entries(self, scope: Scope) -> Iterator[MemoryEntry]:
        """The scope's entries in order of id, read a page at a time."""
        after = ""
        while page := self._backend.list(scope, after=after, limit=_PAGE):
            yield from page
            after = page[-1].id

    def _clean(self, namespace: str, session_id: str, most: int | None, again: bool) -> CleaningReport:
        """Clean one session, if nobody else does; what is beyond `most` groups is left to the background."""
        name = f"clean/{namespace}/{session_id}"
        holder = f"{os.getpid()}/{new_id()}"  # of this run: two threads must not share a lease either
        if not self._backend.lease(name, holder, self._lease_seconds):
            return CleaningReport(busy=(session_id,))
        report = CleaningReport()
        try:
            groups = self._groups(namespace, session_id, again)
            report = CleaningReport(sessions=min(1, len(groups)))
            for number, ids in enumerate(groups[:most]):
                if number and not self._backend.lease(name, holder, self._lease_seconds):
                    return _sum(report, CleaningReport(busy=(session_id,)))
                if self._stopped.is_set():
                    return report
                report = _sum(report, self._attempt(session_id, ids))
        finally:
            self._backend.release(name, holder)
        if most is not None and len(groups) > most:
            self._background.add((namespace, session_id))
        return report

    def _groups(self, namespace: str, session_id: str, again: bool) -> list[list[str]]:
        """What to summarise of a session. Texts are not kept: a long session is read through, and not held."""
        scope = Scope(namespace, tiers=("episodic",), session_id=session_id)
        entries = [dataclasses.replace(entry, content="", raw=None, metadata={}) for entry in self._entries(scope)]
        restored = frozenset() if again else self._restored(namespace, session_id)
        return select_groups(entries, keep_recent=self._keep_recent, batch=self._batch, leave=restored)

    def _restored(self, namespace: str, session_id: str) -> frozenset[str]:
        """Originals of summaries that somebody did not want."""
        live = Scope(namespace, kinds=(KIND,), session_id=session_id)
        scope = dataclasses.replace(live, include_archived=True)
        if self._backend.count(scope) == self._backend.count(live):
            return frozenset()  # as nearly always, and summaries need not be read
        unwanted = (entry for entry in self._entries(scope) if entry.archived_at is not None)
        return frozenset(link.id for summary in unwanted for link in summary.derived_from)

    def _attempt(self, session_id: str, ids: Sequence[str]) -> CleaningReport:
        """Summarise a group; what goes wrong with it alone keeps no other from being cleaned.

        Raises `StoreError`: a store that fails does so for all of them.
        """
        try:
            return self._summarise(ids)
        except StoreError:
            raise
        except Exception as error:
            self._last_error = str(error)
            log.exception("%d entries of session %r could not be summarised, and stay", len(ids), session_id)
            return CleaningReport(conflicts=1)

    def _summarise(self, ids: Sequence[str]) -> CleaningReport:
        """Summarise a group and commit; a conflict changes nothing."""
        originals = [entry for entry in self._backend.get(ids) if _is_live(entry)]
        if len(originals) != len(ids):
            return CleaningReport(conflicts=1)
        summary = self._summarizer.summarize(originals)
        if summary.outcome == "extractive_unavailable" and summary.problems:
            self._last_error = summary.problems[-1]
        if not summary.text.strip():
            return CleaningReport(outcomes={summary.outcome: 0})
        versions = {entry.id: entry.version for entry in originals}
        try:
            stored = self._backend.consolidate(summary.to_entry(originals), ids, versions=versions)
        except Conflict:
            return CleaningReport(conflicts=1)
        return CleaningReport(summaries=(stored.id,), archived=len(ids), outcomes={summary.outcome: 1})


def _is_live(entry: MemoryEntry) -> bool:
    return entry.archived_at is None and entry.superseded_by is None


def _sum(one: CleaningReport, other: CleaningReport) -> CleaningReport:
    return CleaningReport(
        one.sessions + other.sessions,
        one.summaries + other.summaries,
        one.archived + other.archived,
        one.busy + other.busy,
        one.conflicts + other.conflicts,
        dict(Counter(one.outcomes) + Counter(other.outcomes)),
    )
