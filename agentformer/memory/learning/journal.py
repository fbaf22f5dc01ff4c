"""`Journal`: the record of what was learnt. Each batch of messages has one entry, which is stored in the same
transaction as the facts of the batch. It names the messages that were read, so that no message is read twice, not even
if clocks run backwards. These entries are archived and never searched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.memory.backends import all_entries, is_live
from agentformer.memory.learning import FACT, LearningRun, UndoneLearning
from agentformer.records import fields
from agentformer.records.codec import now
from agentformer.types import UNSEARCHED_KIND, Condition, Group, MemoryBackend, MemoryEntry, Scope, StoreCheck, new_id

_OWNER = ("namespace", "session_id", "agent_id", "user_id", "project")
_IN_FILTER = 490  # values of one filter
_ATTEMPTS = 5  # attempts to change a record that other callers change, too
Pairs = Sequence[tuple[str, str]]  # ids of an old fact and of the fact that replaces it


class Journal:
    """The learning records of a backend."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    def batches(self, namespace: str, session_id: str) -> list[MemoryEntry]:
        """Return the records of a session."""
        return [*all_entries(self._backend, _records(namespace, session_id=session_id))]

    def record(
        self, run: str, messages: Sequence[MemoryEntry], facts: int, replaces: Pairs, *, first: bool
    ) -> MemoryEntry:
        """Return a new record of a batch of messages of one owner. The first record of a run has the id of the run.
        `replaces` are supersessions that follow after the record is stored; see `finish`."""
        owner = {name: getattr(messages[0], name) for name in _OWNER}
        metadata = {"messages": [message.id for message in messages], "facts": facts}
        return MemoryEntry(
            id=run if first else new_id(),
            content=f"facts learnt from {len(messages)} messages: {facts}",
            kind=UNSEARCHED_KIND,
            source_type=fields.LEARNING,
            source_id=run,
            archived_at=now(),
            metadata={**metadata, "replaces": [list(pair) for pair in replaces]} if replaces else metadata,
            **owner,
        )

    def check(self, records: Collection[str], messages: Sequence[MemoryEntry]) -> StoreCheck:
        """Return a check for `MemoryBackend.store`. It raises `Conflict` if the session has another record than
        `records`, because another caller may have read the same messages, or if one of the messages was removed."""
        first = messages[0]
        session = first.session_id
        wanted = {message.id for message in messages}

        def check(ids: Callable[[Scope], Collection[str]]) -> None:
            if set(ids(_records(first.namespace, session_id=session))) != set(records):
                raise Conflict(f"another caller has learnt from session {session!r} in the meantime; learn again")
            if wanted - set(ids(session_messages(first.namespace, session))):
                raise Conflict(f"a message of session {session!r} was removed in the meantime; learn again")

        return check

    def finish(self, record: MemoryEntry) -> int:
        """Mark the facts that the batch of a stored record replaces as superseded, and return their number. A fact that
        was changed, removed or superseded in the meantime is skipped. If the process ends before, the next run of the
        session calls this method again. A second call does nothing."""
        pairs = record.metadata.get("replaces", ())
        if not pairs or record.metadata.get("undone"):
            return 0
        done = 0
        for old_id, new_id_ in pairs:
            with suppress(Conflict, InvalidInput, NotFound):
                entries = {entry.id: entry for entry in self._backend.get([old_id, new_id_])}
                if len(entries) == 2 and all(map(is_live, entries.values())):
                    self._backend.update(old_id, {"superseded_by": new_id_}, entries[old_id].version)
                    done += 1
        self._mark(record, replaces=[])
        return done

    def learnt(self, messages: Sequence[MemoryEntry]) -> dict[str, list[MemoryEntry]]:
        """Return the live facts that were learnt from these messages, by message."""
        facts: defaultdict[str, list[MemoryEntry]] = defaultdict(list)
        for start in range(0, len(messages), _IN_FILTER):
            ids = tuple(message.id for message in messages[start : start + _IN_FILTER])
            where = Group("and", (Condition("in", "$parent_id", ids), Condition("exists", "$pair_id", True)))
            for entry in all_entries(self._backend, Scope(messages[0].namespace, where=where, include_archived=True)):
                if entry.archived_at is None and entry.parent_id and entry.raw is not None:
                    facts[entry.parent_id].append(entry)
        return facts

    def runs(self, namespace: str) -> list[LearningRun]:
        """Return the runs of a namespace, newest first."""
        records: defaultdict[str, list[MemoryEntry]] = defaultdict(list)
        for entry in all_entries(self._backend, _records(namespace)):
            records[entry.source_id or entry.id].append(entry)
        return [
            LearningRun(
                run,
                entries[0].created_at,
                tuple(sorted({entry.session_id or "" for entry in entries})),
                sum(len(entry.metadata.get("messages", ())) for entry in entries),
                sum(int(entry.metadata.get("facts", 0)) for entry in entries),
                all(entry.metadata.get("undone", False) for entry in entries),
            )
            for run, entries in sorted(records.items(), reverse=True)
        ]

    def undo(self, run: str) -> UndoneLearning:
        """Archive the facts of a run, so that searches find the facts again that they have replaced. Facts whose text
        a caller has changed stay. The messages count as read, so that only a caller who names them learns from them
        again. Raises `NotFound` if there is no such run, and `Conflict` if it was undone before."""
        found = self._backend.get([run])
        if not found or found[0].source_type != fields.LEARNING or found[0].source_id != run:
            raise NotFound(f"there is no learning run {run}; `agentformer learn --runs` lists the runs")
        namespace = found[0].namespace
        records = [*all_entries(self._backend, _records(namespace, run=run))]
        undone_before = all(record.metadata.get("undone") for record in records)
        archived, kept = list[str](), list[str]()
        for record in records:
            if not record.metadata.get("undone"):  # first, so that no other run finishes its supersessions
                self._mark(record, undone=True)
        for entry in [*self._facts(namespace, run)]:
            if entry.version > 1 and any(past.content != entry.content for past in self._backend.history(entry.id)):
                kept.append(entry.id)
                continue
            with suppress(Conflict, NotFound):
                self._backend.update(entry.id, {"archived_at": now()}, entry.version)
                archived.append(entry.id)
        if undone_before and not archived:  # otherwise, this call has completed an interrupted one
            raise Conflict(f"the learning run {run} was undone before")
        return UndoneLearning(run, tuple(archived), tuple(kept))

    def _facts(self, namespace: str, run: str) -> Iterator[MemoryEntry]:
        scope = Scope(namespace, where=Condition("eq", "$pair_id", run), include_archived=True)
        return (entry for entry in all_entries(self._backend, scope) if entry.archived_at is None)

    def _mark(self, record: MemoryEntry, **values: object) -> None:
        for _ in range(_ATTEMPTS):
            with suppress(Conflict):
                for entry in self._backend.get([record.id]):
                    self._backend.update(entry.id, {"metadata": {**entry.metadata, **values}}, entry.version)
                return


def repeats(backend: MemoryBackend, entries: Sequence[MemoryEntry]) -> list[str]:
    """Return the ids of the learnt facts that only repeat one of these facts, which supersedes them. They are removed
    together with it, so that a fact that a person removes does not come back from another message."""
    facts = [entry for entry in entries if entry.kind == FACT]
    found = list[str]()
    for start in range(0, len(facts), _IN_FILTER):
        ids = tuple(entry.id for entry in facts[start : start + _IN_FILTER])
        where = Condition("in", "$superseded_by", ids)
        for namespace in sorted({entry.namespace for entry in facts}):
            scope = Scope(namespace, where=where, include_archived=True)
            learnt = all_entries(backend, scope) if backend.count(scope) else ()  # usually none; a count uses the index
            found += [entry.id for entry in learnt if entry.pair_id and entry.raw is not None and entry.version == 1]
    return found


def session_messages(namespace: str, session_id: str | None) -> Scope:
    """Return the scope of the messages of users in a session, with those that a summary has replaced."""
    user = Condition("eq", "$role", "user")
    return Scope(namespace, kinds=("message",), session_id=session_id, where=user, include_archived=True)


def _records(namespace: str, *, session_id: str | None = None, run: str | None = None) -> Scope:
    return Scope(
        namespace,
        kinds=(UNSEARCHED_KIND,),
        source_type=fields.LEARNING,
        source_id=run,
        session_id=session_id,
        include_archived=True,
    )
