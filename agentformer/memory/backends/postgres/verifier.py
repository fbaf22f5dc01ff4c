"""The verification and repair of a store of the backend `postgres`. PostgreSQL itself checks its files. Rows with a
wrong checksum are only reported; they are not moved to a quarantine file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from agentformer.errors import SpaceMismatch, StoreFull
from agentformer.index.embedding.active import active_embedder
from agentformer.index.embedding.queue import EmbeddingQueue
from agentformer.index.embedding.verify import repair_vectors, repair_windows, verify_vectors, verify_windows
from agentformer.memory.backends.postgres import PostgresDatabase
from agentformer.memory.backends.postgres.connection import PostgresConnection
from agentformer.memory.backends.postgres.words import differing, update_words
from agentformer.records.integrity import Findings, verify
from agentformer.records.integrity import repair as repairs
from agentformer.records.scopes import SEARCHED
from agentformer.text.analyzers import Analyzers
from agentformer.types import Check, Connection, Embedder, RecordStore

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
    `MemoryBackend.verify`. PostgreSQL itself must detect damage of its files."""
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
