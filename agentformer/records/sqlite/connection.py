"""The connection to SQLite: it executes statements in their text for SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, cast

from agentformer.errors import Conflict
from agentformer.records.codec import COLUMNS, to_row
from agentformer.records.events import COLUMNS as EVENTS
from agentformer.records.events import OLD, WITH_EVENTS
from agentformer.records.sqlite.scopes import in_groups, where
from agentformer.records.trail import COLUMNS as TRAIL
from agentformer.types import Connection, MemoryEntry, Scope, Statement

_INSERT = f"INSERT INTO entries ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_INSERT_ONE = f"{_INSERT} ON CONFLICT (id) DO NOTHING RETURNING num"
_INSERT_NUMBERED = f"INSERT INTO entries (num, {', '.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)})"
_OVERWRITE = f"UPDATE entries SET {', '.join(f'{c} = :{c}' for c in COLUMNS if c != 'id')} WHERE id = :id"
_EVENT = f"INSERT INTO events ({EVENTS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_ACT = f"INSERT INTO trail ({TRAIL}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ENTRIES = f"FROM entries WHERE num IN (SELECT value FROM json_each(?)) AND {WITH_EVENTS} ORDER BY num"
_EVENTS_OF = f"INSERT INTO events ({EVENTS}) SELECT ?, ?, id, namespace, kind, tier, version, ? {_ENTRIES}"
_ACTS_OF = f"INSERT INTO trail ({TRAIL}) SELECT ?, ?, id, namespace, kind, version, ?, ?, ?, ?, ? {_ENTRIES}"
_in_order: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*COLUMNS)
# From this number of entries on, a transaction changes more pages than the usual cache holds. SQLite would then write
# some of them to the log several times.
_LARGE = 500
_LARGE_CACHE_KB = 65_536


class SqliteConnection(sqlite3.Connection):
    """A `Connection` to SQLite. `execute` and `executemany` take SQL as text, for statements that only SQLite needs."""

    is_remote = False

    def run(
        self, statement: Statement, values: Sequence[Any] = (), *, scope: Scope | None = None, plain: bool = False
    ) -> sqlite3.Cursor:
        """Execute a statement; see `Connection`."""
        query = statement.sqlite
        if scope is not None:
            condition, own = where(scope)
            query, values = query.replace("{scope}", condition), [*own, *values]
        bound = [json.dumps(value) if value.__class__ is list else value for value in values]
        return self.plain_cursor().execute(query, bound) if plain else self.execute(query, bound)

    def run_among(
        self, statement: Statement, among: Sequence[Any], values: Sequence[Any] = (), *, plain: bool = False
    ) -> list[Any]:
        """Return rows about several items; see `Connection`."""
        rows: list[Any] = []
        execute = self.plain_cursor().execute if plain else self.execute
        for marks, group in in_groups(among):
            rows += execute(statement.sqlite.replace("{among}", marks), [*values, *group]).fetchall()
        return rows

    def run_many(self, statement: Statement, rows: Iterable[Sequence[Any]]) -> None:
        self.executemany(statement.sqlite, rows)

    def insert_entries(self, entries: Sequence[MemoryEntry]) -> list[int]:
        """Insert entries, and return their row numbers; see `Connection`."""
        if len(entries) == 1:
            inserted = self.execute(_INSERT_ONE, _in_order(to_row(entries[0]))).fetchone()
            if inserted is None:
                raise already_exists(entries[0].id)
            return [int(inserted[0])]
        last = self.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
        first = int(last[0]) + 1 if last else 1
        nums = [*range(first, first + len(entries))]  # no other process uses these numbers while this one can write
        if len(entries) >= _LARGE:
            self.execute(f"PRAGMA cache_size = {-_LARGE_CACHE_KB}")  # `Database.writing` lowers it again
        rows = ((num, *_in_order(to_row(entry))) for num, entry in zip(nums, entries, strict=True))
        try:
            self.executemany(_INSERT_NUMBERED, rows)
        except sqlite3.IntegrityError:
            for num, entry in zip(nums, entries, strict=True):
                stored = self.execute("SELECT num FROM entries WHERE id = ?", [entry.id]).fetchone()
                if stored and stored[0] != num:
                    raise already_exists(entry.id) from None
            raise
        return nums

    def overwrite_entry(self, entry: MemoryEntry) -> None:
        self.execute(_OVERWRITE, to_row(entry))

    def insert_vectors(self, rows: Iterable[tuple[int, bytes, Any, int]], namespace: str | None) -> None:
        self.executemany("INSERT OR IGNORE INTO vectors (space, hash, data, checksum) VALUES (?, ?, ?, ?)", rows)

    def insert_windows(self, rows: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        columns = "space, entry, span_start, span_end, vector, checksum"
        self.executemany(f"INSERT INTO windows ({columns}) VALUES (?, ?, ?, ?, ?, ?)", rows)

    def insert_events(self, events: Sequence[Sequence[object]], acts: Sequence[Sequence[object]]) -> None:
        """Insert events and their rows of the trail; see `Connection`."""
        self.executemany(_EVENT, events)
        self.executemany(_ACT, acts)
        self.execute(OLD)

    def insert_events_of(self, nums: Sequence[int], event: Sequence[object], act: Sequence[object]) -> None:
        """Insert the events of stored entries; see `Connection`."""
        numbers = json.dumps([*nums])
        self.execute(_EVENTS_OF, [*event, numbers])
        self.execute(_ACTS_OF, [*act, numbers])
        self.execute(OLD)

    @contextmanager
    def lenient_text(self) -> Iterator[None]:
        """Return bytes for text that is not UTF-8; see `Connection`."""
        former: Any = self.text_factory
        self.text_factory = _decode_or_keep
        try:
            yield
        finally:
            self.text_factory = former

    def plain_cursor(self) -> sqlite3.Cursor:
        """Return a cursor whose rows are plain tuples, which are read faster than rows with column names."""
        cursor = self.cursor()
        cursor.row_factory = None
        return cursor


def sqlite(connection: Connection) -> SqliteConnection:
    """Return the connection as a connection to SQLite. For parts that only a store in SQLite has."""
    return cast(SqliteConnection, connection)


def already_exists(entry_id: str) -> Conflict:
    """Return the error for a new entry whose id is already stored."""
    return Conflict(f"entry {entry_id} already exists; update it, or store the new entry with another id")


def _decode_or_keep(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data
