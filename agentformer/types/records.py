"""The interface between the operations on records and the database that stores them. The operations are the functions
of `records`, and of the rooms above it, that take a `Connection`. Each of their statements is written for both
databases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from agentformer.types.backend import MemorySnapshot
from agentformer.types.memory import MemoryEntry, Scope


class Statement(NamedTuple):
    """An SQL statement as it is written for SQLite, and as it is written for PostgreSQL. Each `?` of the one text, and
    each `%s` of the other, is one of the values, in the same order. In the text for PostgreSQL, `%%` is a percent sign.

    A list is one value: `IN (SELECT value FROM json_each(?))` in SQLite is `= ANY(%s)` in PostgreSQL. A list of texts
    must not contain a NUL, at which the JSON functions of SQLite end a text; see `Connection.run_among`.

    `{scope}` in a text stands for the condition of a scope on the table `entries`; its values precede the others."""

    sqlite: str
    postgres: str


def common(text: str) -> Statement:
    """Return a statement that has the same text in both databases, except for the mark of a value. The text has a `?`
    for each value; it contains no other `?`, and no percent sign."""
    return Statement(text, text.replace("?", "%s"))


class Row(Protocol):
    """A row of a table, whose values can be read by position and by column name."""

    def __getitem__(self, key: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def keys(self) -> list[str]: ...


class Result(Protocol):
    """The rows of a statement: each is a `Row`, or a tuple if the rows are plain."""

    @property
    def rowcount(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def fetchone(self) -> Any: ...

    def fetchmany(self, size: int = ..., /) -> list[Any]: ...

    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """A connection in a transaction. `records.sqlite.connection` has the connection to SQLite, and
    `memory.backends.postgres.server` the connection to PostgreSQL. An operation that is one statement in both databases
    is a `Statement` beside its function; the other operations are the methods `insert_entries` to
    `insert_events_of`."""

    is_remote: bool  # whether each statement waits for a server

    def run(
        self, statement: Statement, values: Sequence[Any] = (), *, scope: Scope | None = None, plain: bool = False
    ) -> Result:
        """Execute a statement. `scope` is the scope whose condition `{scope}` stands for. If `plain` is true, rows may
        be plain tuples, which are read faster."""

    def run_among(
        self, statement: Statement, among: Sequence[Any], values: Sequence[Any] = (), *, plain: bool = False
    ) -> list[Any]:
        """Return the rows of a query about several items `among`, such as ids. The text for SQLite has `IN ({among})`
        after all other values, and is executed once for each group of items; the text for PostgreSQL has one `%s`,
        whose value is the whole list."""

    def run_many(self, statement: Statement, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement once for each item of `rows`."""

    def insert_entries(self, entries: Sequence[MemoryEntry]) -> list[int]:
        """Insert entries, and return their row numbers in the same order. Raises `Conflict` if an id already exists."""

    def overwrite_entry(self, entry: MemoryEntry) -> None:
        """Overwrite the stored entry that has the id of `entry`. If the namespace changes, all that belongs to the
        entry moves with it."""

    def insert_vectors(self, rows: Iterable[tuple[int, bytes, Any, int]], namespace: str | None) -> None:
        """Insert vectors that are not stored yet. Each row has the number of the space, the hash of the text, the bytes
        of the vector and their checksum. `namespace` is the namespace of all entries that will use the vectors, or None
        if they have several."""

    def insert_windows(self, rows: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        """Insert windows (embedded passages). Each row has the number of the space, the number of the entry, the start
        and the end of the passage, the id of the vector, and a checksum."""

    def insert_events(self, events: Sequence[Sequence[object]], acts: Sequence[Sequence[object]]) -> None:
        """Insert events and the rows of the trail about the same changes, and delete events that are too many. The
        columns of the rows are those of `records.events.COLUMNS` and `records.trail.COLUMNS`."""

    def insert_events_of(self, nums: Sequence[int], event: Sequence[object], act: Sequence[object]) -> None:
        """Do the same for stored entries with these row numbers. `event` are the token, the type and the time of the
        events. `act` are the time, the action, and the actor of the rows of the trail."""

    def lenient_text(self) -> AbstractContextManager[None]:
        """Until the end of the context, return bytes for a stored text that is not UTF-8. Such bytes never match a
        checksum, so the damage is detected. A PostgreSQL server stores no such text."""


class RecordStore(Protocol):
    """An open database of records, which several threads and processes may use at the same time."""

    read_only: bool
    store_id: str

    def reading(self) -> AbstractContextManager[Connection]:
        """Return a context manager that yields a connection in a read transaction. All statements of the transaction
        see the data as of its first statement."""

    def writing(self) -> AbstractContextManager[Connection]:
        """Return a context manager that yields a connection in a transaction with the write lock. The transaction is
        committed at the end of the context, or rolled back after an error."""

    def snapshot(self) -> AbstractContextManager[MemorySnapshot]:
        """Return a context manager that yields a view of the store at this moment. The view is valid until the context
        ends."""
