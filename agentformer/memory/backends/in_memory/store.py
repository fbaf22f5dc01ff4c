"""`InMemoryStore`: a `MemoryBackend` that works in memory. A subclass keeps the entries in a file or a database."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from agentformer.errors import InvalidInput, StoreError
from agentformer.index.embedding.queue import NotEmbedded
from agentformer.memory.backends.in_memory.words import Words
from agentformer.memory.backends.indexed import RecordsBackend
from agentformer.records import entries as records
from agentformer.records import fields
from agentformer.records.entries import history_problem
from agentformer.records.entry_json import entry_to_short_json, parse_entry
from agentformer.records.offers import WithoutVectors
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import RecordsSnapshot, prepare
from agentformer.records.sqlite.schema import migrate
from agentformer.records.sqlite.scopes import searchable_numbers
from agentformer.search.fusion import merge
from agentformer.types import (
    DEFAULT_NAMESPACE,
    Connection,
    Hit,
    Hits,
    MemoryEntry,
    MemorySnapshot,
    Query,
    RecordStore,
    Scope,
    Vote,
)

P = ParamSpec("P")
T = TypeVar("T")

_SHOWN = 80  # at most this many characters of a wrong value are shown in a message
# The ids of the entries that a transaction changes.
_TRACKING = """
    CREATE TABLE changed (id TEXT PRIMARY KEY);
    CREATE TRIGGER e1 AFTER INSERT ON entries BEGIN INSERT OR IGNORE INTO changed VALUES (NEW.id); END;
    CREATE TRIGGER e2 AFTER UPDATE ON entries BEGIN INSERT OR IGNORE INTO changed VALUES (NEW.id); END;
    CREATE TRIGGER e3 AFTER DELETE ON entries BEGIN INSERT OR IGNORE INTO changed VALUES (OLD.id); END;
"""
_FORGET = ("DELETE FROM changed", "DELETE FROM absent_documents", "DELETE FROM events")  # nothing reads these


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """An entry with its former versions, oldest first."""

    entry: MemoryEntry
    former: Sequence[MemoryEntry] = ()

    def to_json(self, namespace: str = DEFAULT_NAMESPACE) -> dict[str, Any]:
        """Return the record as JSON values. A field that has its default value is left out, and so is the namespace if
        it is `namespace`."""
        values = {"id": self.entry.id, **entry_to_short_json(self.entry, namespace=namespace)}
        if self.former:
            values["history"] = [entry_to_short_json(state, namespace=namespace) for state in self.former]
        return values

    @classmethod
    def of_json(cls, values: Any, namespace: str = DEFAULT_NAMESPACE) -> Record:
        """Return the record that `to_json` has converted. Raises `InvalidInput` for an invalid value."""
        states: Any = []
        if isinstance(values, dict):
            values = dict(values)
            states = values.pop("history", [])
        if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
            raise InvalidInput("history", "must be a list of former versions")
        entry = parse_entry(values, namespace=namespace)
        former = [parse_entry({"id": entry.id, **state}, namespace=namespace) for state in states]
        if problem := history_problem(entry.id, entry.version, former):
            raise InvalidInput("history", problem)
        return cls(entry, former)


class InMemoryStore(RecordsBackend, WithoutVectors):
    """A `MemoryBackend` that works on all its entries in memory, and searches them by words. It is made for up to a few
    thousand entries. A subclass keeps the entries elsewhere: it overrides `load` and `save` and, if several processes
    use the store, `exclusive`. Without these methods, the entries end with the process. Thread-safe."""

    name = "in_memory"  # in messages; a subclass has its own

    def __init__(self, *, rrf_k: int = 60) -> None:
        super().__init__(cast(RecordStore, self))
        self.records: dict[str, Record] = {}  # by id, as of the last call
        self._lock = threading.RLock()
        self._closed = False
        self._rrf_k = rrf_k
        self._words = Words()
        self._memory = _connect()
        migrate(self._memory)
        self._memory.executescript(_TRACKING)

    @property
    def read_only(self) -> bool:
        """True if `save` cannot store anything now. Uses of entries are then not counted."""
        return False

    def exclusive(self, *, writing: bool) -> AbstractContextManager[object]:
        """Return a context manager in which no other process changes the entries. `load` and `save` are called inside.
        Without `writing`, only `load` is called."""
        return contextlib.nullcontext()

    def load(self) -> Iterable[Record] | None:
        """Return all entries, or None if no other process has changed them since the last `load` or `save`."""
        return None

    def save(self, changed: Mapping[str, Record | None]) -> None:
        """Store the changed entries by id, all of them or none. None stands for a removed entry. If `save` raises an
        error, nothing is changed in memory either."""

    def snapshot_of(self, copy: SqliteConnection) -> MemorySnapshot:
        """Return a view of a copy of the entries in memory. It is called while no call changes them."""
        return RecordsSnapshot(copy)

    def check_readable(self, needed: Scope | Sequence[str]) -> None:
        """Raise an error if `load` could not read an entry that a call needs: one of a scope, or with one of these
        ids."""

    def store(
        self, entries: Sequence[MemoryEntry], *, replacing: Sequence[Scope | Sequence[str]] = (), **options: Any
    ) -> list[MemoryEntry]:
        """Store entries, and remove those that `replacing` selects, in one transaction; see `MemoryBackend.store`.
        `progress` is never called, because nothing is embedded."""
        for state in (state for states in (options.get("former") or {}).values() for state in states):
            check_entry(state)
        self._need(*replacing)
        return super().store(entries, replacing=replacing, **options)

    def search(self, query: Query) -> Hits:
        """Return the entries in the scope of the query that contain a word of the query, best first."""
        with self.reading() as connection:
            self.check_readable(query.scope)
            if query.limit < 1 or not query.text.strip():
                return Hits()
            if query.mode == "dense":
                return Hits((), (f"{self.name} stores no vectors; search in the mode lexical or hybrid",))
            scores = self._words.scores(connection, query.scope.namespace, query.text)
            nums = searchable_numbers(connection, query.scope, [*scores]).tolist()
            least = min(heapq.nlargest(query.limit, (scores[num] for num in nums)), default=0.0)
            first = [num for num in nums if scores[num] >= least]
            best = sorted(first, key=lambda num: (-scores[num], self._words.id_of(num)))[: query.limit]
            entries = records.by_num(connection, best)
        fused = merge([range(len(best))], k=self._rrf_k)
        return Hits(
            Hit(entries[num], score, lexical_score=scores[num], lexical_rank=n + 1, votes=(Vote("words", n + 1, 1.0),))
            for num, (n, score) in zip(best, fused, strict=True)
            if score >= query.min_score
        )

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change fields of an entry, and return the changed entry; see `MemoryBackend.update`."""
        self._need([*filter(None, (entry_id, changes.get("superseded_by")))])
        return super().update(entry_id, changes, expected_version)

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Delete entries with their parts and summaries, and return their number; see `MemoryBackend.remove`."""
        self._need(what)
        return super().remove(what, expected_version)

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        """Store a summary and archive its originals in one transaction; see `MemoryBackend.consolidate`."""
        self._need(archive_ids)
        return super().consolidate(summary, archive_ids, versions=versions)

    def restore(self, summary_id: str) -> list[MemoryEntry]:
        """Undo `consolidate`, and return the originals; see `MemoryBackend.restore`."""
        self._need([summary_id])
        return super().restore(summary_id)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[MemorySnapshot]:
        """Yield a copy of the entries; see `SnapshotStore.snapshot`."""
        with contextlib.closing(_connect()) as copy:
            with self.reading() as connection:
                connection.backup(copy)
                snapshot = self.snapshot_of(copy)
            yield snapshot

    def status(self) -> dict[str, Any]:
        """Return JSON values: the numbers of entries by kind and namespace; see `StatusStore.status`."""
        with self.reading() as connection:
            names = records.namespaces(connection)
            return {
                "entries": len(self.records),
                **dict.fromkeys(("windows", "vectors", "pending"), 0),
                "kinds": records.count_by_kind(connection),
                "namespaces": {name: records.count(connection, Scope(name, include_archived=True)) for name in names},
                "space": None,
            }

    def close(self) -> None:
        """Close the store. Every later call raises `StoreError`."""
        with self._lock:
            self._closed = True
            self._memory.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqliteConnection]:
        """Yield the entries in memory, as they are now."""
        with self._lock:
            self._check_open()
            with self.exclusive(writing=False):
                self._follow()
            yield self._memory

    @contextlib.contextmanager
    def writing(self) -> Iterator[SqliteConnection]:
        """Run a transaction, whose changes are saved at the end. After an error, nothing is changed."""
        with self._lock:
            self._check_open()
            with self.exclusive(writing=True):
                self._follow()
                with _transaction(self._memory):
                    yield self._memory
                    if changed := self._changed():
                        self.save(changed)
                for entry_id, record in changed.items():
                    self.records.pop(entry_id, None)
                    if record:
                        self.records[entry_id] = record

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this memory is closed; open it again with agentformer.connect()")

    def _follow(self) -> None:
        """Make the entries in memory equal to those that other processes have changed."""
        if (loaded := self.load()) is None:
            return
        new = {record.entry.id: record for record in loaded}
        outdated = [entry_id for entry_id, record in self.records.items() if new.get(entry_id) != record]
        added = [record for entry_id, record in new.items() if self.records.get(entry_id) != record]
        with _transaction(self._memory):
            records.remove(self._memory, records.numbers(self._memory, outdated))
            entries = [record.entry for record in added]
            nums = records.insert(self._memory, entries)
            records.insert_histories(self._memory, nums, entries, {each.entry.id: each.former for each in added})
            self._changed_ids()
        self.records = new

    def _changed_ids(self) -> list[str]:
        """Return the ids of the entries that the transaction has changed, and forget them."""
        ids = [row[0] for row in self._memory.execute("SELECT id FROM changed ORDER BY id")]
        for statement in _FORGET:
            self._memory.execute(statement)
        return ids

    def _changed(self) -> dict[str, Record | None]:
        """Return the entries that the transaction has changed, by id."""
        ids = self._changed_ids()
        changed: dict[str, Record | None] = dict.fromkeys(ids)
        for entry in records.get(self._memory, ids):
            changed[entry.id] = Record(entry, records.versions_of(self._memory, entry.id))
        return changed

    def _need(self, *needed: Scope | Sequence[str]) -> None:
        with self.reading():
            for each in needed:
                self.check_readable(each)

    def _embedding(self) -> Any:
        return _NoVectors()

    def _embed(self, entries: Sequence[MemoryEntry], progress: object = None) -> NotEmbedded:
        """Check that the new states of entries can be converted to JSON and back."""
        for entry in entries:
            check_entry(entry)
        return NotEmbedded("")

    def _read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **options: P.kwargs) -> T:
        with self.reading() as connection:
            for needed in args[:1]:  # a scope, an id or several ids
                self.check_readable([needed] if isinstance(needed, str) else needed)  # type: ignore[arg-type]
            return query(connection, *args, **options)


class _NoVectors:
    """The embedding of a store without vectors."""

    def commit(self, *given: object) -> None:
        """Write nothing."""

    def follow_up(self, embedded: object) -> None:
        """Embed nothing."""


def check_entry(entry: MemoryEntry) -> None:
    """Raise `InvalidInput` if a stored `Record` of this entry could not be read again."""
    fields.encodable("namespace", entry.namespace)
    try:
        values = json.loads(json.dumps(entry_to_short_json(entry, namespace=entry.namespace), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("metadata", f"must contain only JSON values: {str(error)[:_SHOWN]}") from None
    parse_entry({"id": entry.id, **values}, namespace=entry.namespace)


def _connect() -> SqliteConnection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=SqliteConnection)
    connection.row_factory = sqlite3.Row
    prepare(connection)
    return connection


@contextlib.contextmanager
def _transaction(connection: SqliteConnection) -> Iterator[None]:
    """Undo all changes of the `with` block after an error."""
    connection.execute("SAVEPOINT block")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK TO block")
        raise
    finally:
        connection.execute("RELEASE block")
