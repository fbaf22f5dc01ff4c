"""The backend `postgres`: records, vectors and words in one PostgreSQL database. Any number of nodes may open it, and a
node stores nothing locally. Each call that writes is one transaction, which also writes the words and vectors."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from agentformer.errors import StoreFull
from agentformer.index.embedding.queue import EmbeddingQueue
from agentformer.index.embedding.windows import Progress
from agentformer.memory.backends import with_times
from agentformer.memory.backends.faiss import DATABASE_FILE
from agentformer.memory.backends.indexed import IndexedBackend, record_status
from agentformer.memory.backends.postgres import PostgresDatabase, schema_of
from agentformer.memory.backends.postgres.connection import PostgresConnection
from agentformer.memory.backends.postgres.indexes import ServerIndexes
from agentformer.memory.backends.postgres.server import TransactionLost
from agentformer.records import spaces
from agentformer.records.codec import check_texts
from agentformer.records.database import Database
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.rerankers import Reranking, named_reranker
from agentformer.search.fusion import FusionOptions
from agentformer.settings import Settings
from agentformer.text.analyzers import PLAIN, Analyzers, choose_analyzers
from agentformer.types import Check, Embedder, Hits, MemoryEntry, Query, Reembedding, StoredVector

__all__ = ["PostgresMemoryBackend", "PostgresOptions"]

P = ParamSpec("P")
T = TypeVar("T")
_REPEATS = 3  # repetitions of a call whose transaction was undone because the connection was lost
# Tables of a backup -> columns of their keys. In this order, each row refers only to rows that were copied before.
_TABLES = {
    "entries": ("num",),
    "history": ("entry", "version"),
    "spaces": ("id",),
    "vectors": ("id",),
    "windows": ("id",),
    "pending": ("entry",),
    "moving": ("entry",),
    "changes": ("seq",),
    "points": ("seq",),
    "meta": ("key",),
}
_ROWS = 1_000  # copied at a time


@dataclasses.dataclass(frozen=True, slots=True)
class PostgresOptions:
    """Options of the search in a PostgreSQL database. `schema` is the schema that contains the tables, and
    `connections` is the maximum number of connections of this process."""

    schema: str = "agentformer"
    connections: int = 16
    fanout: int = 100
    fusion: FusionOptions | None = None
    window_tokens: int = 0
    reranking: Reranking | None = None
    analyzers: Analyzers = PLAIN

    @classmethod
    def from_settings(cls, settings: Settings) -> PostgresOptions:
        """Return the search options in the settings."""
        reranker = named_reranker(settings)
        return cls(
            schema=schema_of(settings),
            connections=settings.postgres_connections,
            fanout=settings.fanout,
            fusion=FusionOptions.from_settings(settings),
            window_tokens=settings.window_tokens,
            reranking=Reranking(reranker, settings.rerank_hits) if reranker else None,
            analyzers=choose_analyzers(settings),
        )


def _repeating(call: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls `call`, and repeats the call if its connection was lost and the server has undone
    its transaction. If it is unknown whether the transaction was committed, the call raises `StoreError`."""

    @functools.wraps(call)
    def repeated(*args: P.args, **options: P.kwargs) -> T:
        for _ in range(_REPEATS):
            with suppress(TransactionLost):
                return call(*args, **options)
        return call(*args, **options)

    return repeated


class PostgresMemoryBackend(IndexedBackend):
    """A `MemoryBackend` that stores entries in a PostgreSQL database with pgvector. `url` has the form
    `postgresql://user:password@host:5432/name`; error messages never contain it. Raises `MissingExtra` if psycopg is
    not installed, and `StoreError` if the server cannot be used."""

    def __init__(self, url: str, embedder: Embedder, options: PostgresOptions = PostgresOptions()) -> None:
        self._database: PostgresDatabase = PostgresDatabase(url, options.schema, options.connections)
        super().__init__(self._database)
        self._reranking = options.reranking
        self._closed = False
        self._opened = ServerIndexes(
            self._database,
            embedder,
            fanout=options.fanout,
            fusion=options.fusion,
            window_tokens=options.window_tokens,
            analyzers=options.analyzers,
        )

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> PostgresMemoryBackend:
        """Open the database of `Settings.postgres_url`, with the search options of the settings."""
        return cls(settings.postgres_url, embedder, PostgresOptions.from_settings(settings))

    def store(self, entries: Sequence[MemoryEntry], **options: Any) -> list[MemoryEntry]:
        """Store entries as `MemoryBackend.store` does. Their words are analyzed before the transaction begins."""
        check_texts(entries)
        entries = [with_times(entry) for entry in entries]
        with self._opened.prepared(entries):
            return _repeating(super().store)(entries, **options)

    def _embedding(self) -> EmbeddingQueue:
        return self._opened.embedding

    def _migration_lock(self) -> AbstractContextManager[None]:
        return self._opened.migration_lock()

    @_repeating
    def search(self, query: Query) -> Hits:
        """Return the hits of a query, best first. A configured reranker changes the order of the hits."""
        search = self._opened.search.search
        return self._reranking.search(search, query) if self._reranking else search(query)

    update = _repeating(IndexedBackend.update)
    remove = _repeating(IndexedBackend.remove)
    consolidate = _repeating(IndexedBackend.consolidate)
    restore = _repeating(IndexedBackend.restore)
    touch = _repeating(IndexedBackend.touch)
    _read = _repeating(IndexedBackend._read)

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        return self._opened.imported.store(vectors)

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Progress | None = None
    ) -> Reembedding:
        """Embed all entries again with the embedder `target`; see `MemoryBackend.reembed`."""
        return self._opened.reembed(target, queries, progress)

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        return self._opened.verify(repair=repair)

    def backup(self, folder: Path) -> None:
        """Write the records and vectors of this moment into `folder`, as a store that the backend `faiss` can open."""
        copy_to_sqlite(self._database, folder)

    @property
    def owner(self) -> str:
        """A text that differs between this store and each copy of it."""
        return self._database.owner()

    def status(self) -> dict[str, Any]:
        """Return JSON values: the numbers of records, the embedding space, and the state of the vector index."""
        with self._database.reading() as connection:
            space = spaces.active_space(connection)
            index = self._opened.vectors.status(connection, space[0] if space else 0)
            return {**record_status(connection, space), "index": index}

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._opened.close()
        finally:
            self._database.close()


def copy_to_sqlite(source: PostgresDatabase, folder: Path) -> None:
    """Write the store into a new SQLite file in `folder`. Raises `StoreFull` if the file cannot be written."""
    path = folder / DATABASE_FILE
    target = Database(path)
    try:
        with source.reading() as rows, target.writing() as copy:
            copy.execute("DELETE FROM meta")
            for table, key in _TABLES.items():
                _copy(rows, copy, table, key)
    except StoreFull:
        target.close()
        path.unlink(missing_ok=True)
        raise
    target.clear_log()
    target.close()


def _copy(rows: PostgresConnection, copy: SqliteConnection, table: str, key: tuple[str, ...]) -> None:
    names = [row[1] for row in copy.execute(f"PRAGMA table_info({table})")]
    columns, marks, order = ", ".join(names), ", ".join("?" * len(names)), ", ".join(key)
    query = f"SELECT DISTINCT ON ({order}) {columns} FROM {table}"  # several namespaces may store the same vector
    last: list[object] = []
    while True:
        after = f" WHERE ({order}) > ({', '.join(['%s'] * len(key))})" if last else ""
        batch = rows.execute(f"{query}{after} ORDER BY {order} LIMIT {_ROWS}", last).fetchall()
        copy.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", (tuple(row) for row in batch))
        if len(batch) < _ROWS:
            return
        last = [batch[-1][name] for name in key]
