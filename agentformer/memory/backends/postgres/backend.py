"""The backend `postgres`: records, vectors and words in one PostgreSQL database. Any number of nodes may open it, and a
node stores nothing locally. Each call that writes is one transaction, which also writes the words and vectors."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from filelock import Timeout

from agentformer.errors import Conflict, SpaceMismatch, StoreFull
from agentformer.index.embedding.active import active_embedder
from agentformer.index.embedding.migration import SpaceMigration
from agentformer.index.embedding.queue import EmbeddingQueue, VectorImport
from agentformer.index.embedding.verify import repair_vectors, repair_windows, verify_vectors, verify_windows
from agentformer.index.embedding.windows import Progress
from agentformer.memory.backends import with_times
from agentformer.memory.backends.faiss.folder import DATABASE_FILE
from agentformer.memory.backends.indexed import IndexedBackend, SearchOptions, record_status
from agentformer.memory.backends.postgres.connection import PostgresConnection
from agentformer.memory.backends.postgres.database import PostgresDatabase, schema_of
from agentformer.memory.backends.postgres.searching import SearchReads, ServerScopes
from agentformer.memory.backends.postgres.server import TransactionLost
from agentformer.memory.backends.postgres.vectors import ServerVectors
from agentformer.memory.backends.postgres.words import ServerWords, differing, prepare, update_words
from agentformer.records import change_feed, spaces
from agentformer.records.codec import check_texts
from agentformer.records.integrity import repair as repairs
from agentformer.records.integrity import verify
from agentformer.records.integrity.findings import Findings
from agentformer.records.scopes import SEARCHED
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import Database
from agentformer.search.pipeline import Pipeline
from agentformer.settings import Settings
from agentformer.text.language_extras import Analyzers
from agentformer.types import (
    Check,
    Connection,
    Embedder,
    Hits,
    MemoryEntry,
    Query,
    RecordStore,
    Reembedding,
    StoredVector,
)

__all__ = ["PostgresMemoryBackend", "PostgresOptions"]

P = ParamSpec("P")
T = TypeVar("T")
MOVING = "another node is re-embedding this store; wait until it has finished, or stop that process"
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
class PostgresOptions(SearchOptions):
    """Options of the search in a PostgreSQL database. `schema` is the schema that contains the tables, and
    `connections` is the maximum number of connections of this process."""

    schema: str = "agentformer"
    connections: int = 16


def options_of(settings: Settings) -> PostgresOptions:
    """Return the options of the search and of the database that the settings contain."""
    connections = settings.postgres_connections
    return PostgresOptions.from_settings(settings, schema=schema_of(settings), connections=connections)


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
        self.feed = self._database
        self._embedder = embedder
        self._options = options
        self._reads = SearchReads(self._database)
        self._vectors = ServerVectors(self._database, self._reads)
        self._pipeline = Pipeline(
            self._reads,
            embedder,
            vectors=self._vectors,
            words=ServerWords(self._reads, options.analyzers),
            scopes=ServerScopes(),
            fanout=options.fanout,
            fusion=options.fusion,
            one_transaction=self._reads.joined,
        )
        self._queue: EmbeddingQueue = EmbeddingQueue(
            lambda wait: self._database.lock("embedding", wait=wait),
            self._database,
            embedder,
            window_tokens=options.window_tokens,
        )
        self._imported = VectorImport(self._database, embedder)
        self._prepared = threading.local()  # the terms of the entries that this thread stores
        self._database.before_commit = self._update_words
        self._closed = False

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> PostgresMemoryBackend:
        """Open the database of `Settings.postgres_url`, with the search options of the settings."""
        return cls(settings.postgres_url, embedder, options_of(settings))

    def store(self, entries: Sequence[MemoryEntry], **options: Any) -> list[MemoryEntry]:
        """Store entries as `MemoryBackend.store` does. Their words are analyzed before the transaction begins."""
        check_texts(entries)
        entries = [with_times(entry) for entry in entries]
        self._prepared.terms = prepare(entries, self._options.analyzers)  # now, so that other writers wait less
        try:
            return _repeating(super().store)(entries, **options)
        finally:
            self._prepared.terms = {}

    def _embedding(self) -> EmbeddingQueue:
        return self._queue

    def _update_words(self, connection: PostgresConnection, since: int) -> None:
        changed = change_feed.entries_since(connection, since)
        update_words(connection, changed, self._options.analyzers, getattr(self._prepared, "terms", {}))

    @_repeating
    def search(self, query: Query) -> Hits:
        """Return the hits of a query, best first. A configured reranker changes the order of the hits."""
        reranking = self._options.reranking
        return reranking.search(self._search, query) if reranking else self._search(query)

    def _search(self, query: Query) -> Hits:
        """Run a search. If the query need not be embedded, the whole search is one read transaction."""
        with nullcontext() if self._pipeline.embeds(query) else self._reads.whole():
            return self._pipeline.search(query)

    update = _repeating(IndexedBackend.update)
    remove = _repeating(IndexedBackend.remove)
    consolidate = _repeating(IndexedBackend.consolidate)
    restore = _repeating(IndexedBackend.restore)
    touch = _repeating(IndexedBackend.touch)
    _read = _repeating(IndexedBackend._read)

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        return self._imported.store(vectors)

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Progress | None = None
    ) -> Reembedding:
        """Embed all entries again with the embedder `target`; see `MemoryBackend.reembed`."""
        tokens = self._options.window_tokens
        migration = SpaceMigration(self._migration_lock, self._database, self._embedder, target, window_tokens=tokens)
        return migration.run(queries, progress)

    @contextmanager
    def _migration_lock(self) -> Iterator[None]:
        with ExitStack() as lock:
            try:
                lock.enter_context(self._database.lock("migration", wait=False))
            except Timeout:
                raise Conflict(MOVING) from None
            yield

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        return verify_store(self._database, self._embedder, self._queue, self._options.analyzers, repair=repair)

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
            index = self._vectors.status(connection, space[0] if space else 0)
            return {**record_status(connection, space), "index": index}

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._database.read_only:
                self._imported.drop_unused()
            self._vectors.close()
            self._pipeline.close()
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
    """Copy a table in parts of `_ROWS` rows. The columns `key` identify a row in SQLite, and order the rows."""
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


_PAGE = 500  # entries analyzed at a time
_RESTORE = "restore the row from a backup of the database"
_SEARCHED_OR_STORED = f"SELECT num FROM entries WHERE {SEARCHED} UNION SELECT num FROM word_entries ORDER BY num"
# Entries with a term that is missing in the inverted table.
_INCOMPLETE = """
    SELECT e.num FROM word_entries AS e CROSS JOIN LATERAL unnest(e.terms) AS t (term)
    LEFT JOIN words AS w ON w.namespace = e.namespace AND w.term = t.term AND w.num = e.num
    WHERE e.num = ANY(%s) GROUP BY e.num HAVING count(w.num) <> count(*)
"""
_CheckRecords = Callable[[Connection], Findings]
_Mend = Callable[[RecordStore, Findings], None]


def _reported(check: _CheckRecords) -> _CheckRecords:
    def run(connection: Connection) -> Findings:
        findings = check(connection)
        findings.advice = _RESTORE
        return findings

    return run


# Each check of the records, with its repair, or None if the damage is only reported.
_CHECKS: tuple[tuple[_CheckRecords, _Mend | None], ...] = (
    (_reported(verify.metadata), None),
    (_reported(verify.entries), None),
    (_reported(verify.history), None),
    (verify.links, lambda database, findings: repairs.links(database, findings, None)),
    (verify.superseded, lambda database, findings: repairs.superseded(database, findings, None)),
    (_reported(verify.changes), None),
    (verify.leases, lambda database, findings: repairs.leases(database, findings, None)),
)


def verify_store(
    database: PostgresDatabase, embedder: Embedder, embedding: EmbeddingQueue, analyzers: Analyzers, *, repair: bool
) -> Sequence[Check]:
    """Compare the records with their checksums, with each other, and with the words and vectors; see
    `MemoryBackend.verify`. PostgreSQL itself must detect damage of its files. Rows with a wrong checksum are only
    reported; they are not moved to a quarantine file."""
    if repair and database.read_only:
        raise StoreFull("the PostgreSQL store cannot be written, so nothing in it can be repaired")
    results = []
    for check, mend in _CHECKS:
        with database.reading() as connection:
            findings = check(connection)
        if repair and mend is not None and findings.keys:
            with findings.repairing():
                mend(database, findings)
        results.append(findings)
    with database.reading() as connection:
        vectors = verify_vectors(connection)
        _check_copies(connection, vectors)
    if repair and vectors.keys:
        repair_vectors(database, vectors)
    active, problem = active_embedder(database, embedder)
    with database.reading() as connection:
        windows = verify_windows(connection, active, problem, ())
    if repair and windows.keys:
        repair_windows(database, windows)
    if vectors.mended or windows.mended:
        with suppress(SpaceMismatch):
            embedding.catch_up(refused=False)
    with database.reading() as connection:
        words = _check_words(connection, analyzers)
    if repair and words.keys:
        _repair_words(database, words, analyzers)
    return [findings.to_check() for findings in (*results, vectors, windows, words)]


def _check_copies(connection: PostgresConnection, findings: Findings) -> None:
    """Add a finding to `findings` for each vector whose copies in several namespaces differ."""
    query = (
        "SELECT id FROM vectors GROUP BY id HAVING count(DISTINCT (space, hash)) > 1 OR count(DISTINCT data) > 1 "
        "OR count(DISTINCT checksum) > 1 OR count(checksum) NOT IN (0, count(*)) ORDER BY id"
    )
    for (num,) in connection.execute(query, []):
        findings.add(
            f"vector {num} is damaged: its copies in several namespaces differ",
            verify.DamagedRow("vectors", num, num, ""),
        )


def _check_words(connection: PostgresConnection, analyzers: Analyzers) -> Findings:
    """Check that the stored terms of each searchable entry are the terms of its text. The keys of the findings are the
    numbers of the entries whose terms differ."""
    findings = Findings("words", "each searched entry has the terms of its text")
    nums = [row[0] for row in connection.execute(_SEARCHED_OR_STORED, []).fetchall()]
    findings.looked_at = len(nums)
    for start in range(0, len(nums), _PAGE):
        page = nums[start : start + _PAGE]
        with findings.reading():
            incomplete = {row[0] for row in connection.execute(_INCOMPLETE, [page]).fetchall()}
            for num in sorted(incomplete.union(differing(connection, page, analyzers))):
                findings.add(f"the terms of the entry with the number {num} differ from its text", num)
    return findings


def _repair_words(database: PostgresDatabase, findings: Findings, analyzers: Analyzers) -> None:
    """Write the terms of all entries again, and mark all `findings` as repaired. Writing only the terms of the damaged
    entries is not enough, because the counts over all entries may be wrong, too."""
    with database.writing() as connection:
        nums = [row[0] for row in connection.execute(_SEARCHED_OR_STORED, []).fetchall()]
        for table in ("words", "word_entries", "word_counts", "word_totals"):
            connection.execute(f"DELETE FROM {table}", [])
        update_words(connection, nums, analyzers)
    findings.mark_repaired(len(findings.keys), "the terms of all entries are written again")
