"""The indexes of the backend `postgres`: search, embedding, migration and verification in one database. PostgreSQL
itself checks its files. Rows with a wrong checksum are only reported; they are not moved to a quarantine file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

from filelock import Timeout

from agentformer.errors import Conflict, SpaceMismatch, StoreFull
from agentformer.index.embedding.active import active_embedder
from agentformer.index.embedding.migration import SpaceMigration
from agentformer.index.embedding.queue import EmbeddingQueue, VectorImport
from agentformer.index.embedding.verify import repair_vectors, repair_windows, verify_vectors, verify_windows
from agentformer.index.embedding.windows import Progress
from agentformer.memory.backends.postgres import PostgresDatabase
from agentformer.memory.backends.postgres.connection import PostgresConnection
from agentformer.memory.backends.postgres.searching import SearchReads, ServerScopes
from agentformer.memory.backends.postgres.vectors import ServerVectors
from agentformer.memory.backends.postgres.words import ServerWords, differing, prepare, update_words
from agentformer.records import change_feed
from agentformer.records.integrity import Findings, verify
from agentformer.records.integrity import repair as repairs
from agentformer.records.scopes import SEARCHED
from agentformer.search.fusion import FusionOptions
from agentformer.search.pipeline import Pipeline
from agentformer.text.analyzers import PLAIN, Analyzers
from agentformer.types import Check, Connection, Embedder, Hits, MemoryEntry, Query, RecordStore, Reembedding

_MOVING = "another node is re-embedding this store; wait until it has finished, or stop that process"
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


class ServerSearch(Pipeline):
    """A `Pipeline` that runs a whole search in one read transaction if the query need not be embedded. This is the
    case if the vector of the query is cached, or if the search compares only words."""

    reads: SearchReads

    def search(self, query: Query) -> Hits:
        """Return the hits, best first; see `Pipeline.search`."""
        with ExitStack() as transaction:
            known = self._vector_search.cache.has(self._vector_index.space, query.text)
            if known or query.mode == "lexical":
                transaction.enter_context(self.reads.whole())
            return super().search(query)


class ServerIndexes:
    """The indexes of one PostgreSQL database. Thread-safe."""

    def __init__(
        self,
        database: PostgresDatabase,
        embedder: Embedder,
        *,
        fanout: int = 100,
        fusion: FusionOptions | None = None,
        window_tokens: int = 0,
        analyzers: Analyzers = PLAIN,
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._window_tokens = window_tokens
        self._analyzers = analyzers
        reads = SearchReads(database)
        self.vectors = ServerVectors(database, reads)
        self.search = ServerSearch(
            reads,
            embedder,
            vectors=self.vectors,
            words=ServerWords(reads, analyzers),
            scopes=ServerScopes(),
            fanout=fanout,
            fusion=fusion,
            one_transaction=reads.joined,
        )
        self.search.reads = reads
        self.embedding: EmbeddingQueue = EmbeddingQueue(
            lambda wait: database.lock("embedding", wait=wait), database, embedder, window_tokens=window_tokens
        )
        self.imported = VectorImport(database, embedder)
        self.moving: Callable[[], AbstractContextManager[bool]] = self._locked  # a lease in `DistributedMemory`
        self._prepared = threading.local()  # the terms of the entries that this thread stores
        database.before_commit = self._update_words

    @contextmanager
    def prepared(self, entries: Sequence[MemoryEntry]) -> Iterator[None]:
        """Analyze the words of these entries, and keep their terms until the end of the context. The caller stores the
        entries inside the context. The analysis is done before the transaction begins, so other writers wait less."""
        self._prepared.terms = prepare(entries, self._analyzers)
        try:
            yield
        finally:
            self._prepared.terms = {}

    def _update_words(self, connection: PostgresConnection, since: int) -> None:
        changed = change_feed.entries_since(connection, since)
        update_words(connection, changed, self._analyzers, getattr(self._prepared, "terms", {}))

    def reembed(self, target: Embedder, queries: Sequence[str], progress: Progress | None) -> Reembedding:
        """Embed all entries again with the embedder `target`; see `MemoryBackend.reembed`."""
        migration = SpaceMigration(
            self.migration_lock, self._database, self._embedder, target, window_tokens=self._window_tokens
        )
        return migration.run(queries, progress)

    @contextmanager
    def migration_lock(self) -> Iterator[None]:
        """Hold the lock that only one migration of the store can have. Raises `Conflict` if another process has it."""
        with self.moving() as taken:
            if not taken:
                raise Conflict(_MOVING)
            yield

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock for a migration, and yield True. Yield False if another process holds it."""
        with ExitStack() as lock:
            try:
                lock.enter_context(self._database.lock("migration", wait=False))
            except Timeout:
                yield False
            else:
                yield True

    def verify(self, *, repair: bool) -> Sequence[Check]:
        """Compare the records with their checksums, with each other, and with the words and vectors; see
        `MemoryBackend.verify`. PostgreSQL itself must detect damage of its files."""
        if repair and self._database.read_only:
            raise StoreFull("the PostgreSQL store cannot be written, so nothing in it can be repaired")
        results = []
        for check, mend in _CHECKS:
            with self._database.reading() as connection:
                findings = check(connection)
            if repair and mend is not None and findings.keys:
                with findings.repairing():
                    mend(self._database, findings)
            results.append(findings)
        with self._database.reading() as connection:
            vectors = verify_vectors(connection)
            _check_copies(connection, vectors)
        if repair and vectors.keys:
            repair_vectors(self._database, vectors)
        embedder, problem = active_embedder(self._database, self._embedder)
        with self._database.reading() as connection:
            windows = verify_windows(connection, embedder, problem, ())
        if repair and windows.keys:
            repair_windows(self._database, windows)
        if vectors.mended or windows.mended:
            with suppress(SpaceMismatch):
                self.embedding.catch_up(refused=False)
        with self._database.reading() as connection:
            words = _check_words(connection, self._analyzers)
        if repair and words.keys:
            _repair_words(self._database, words, self._analyzers)
        return [findings.to_check() for findings in (*results, vectors, windows, words)]

    def close(self) -> None:
        """Delete imported vectors that no entry uses, and stop the threads."""
        if not self._database.read_only:
            self.imported.drop_unused()
        self.vectors.close()
        self.search.close()


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
