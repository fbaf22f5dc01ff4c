"""The checks of a store in PostgreSQL. The checks of the records are those of `records.integrity.verify`. PostgreSQL
itself checks its files. Rows with a wrong checksum are only reported; they are not moved to a quarantine file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from agentformer.memory.backends.postgres.connection import native
from agentformer.memory.backends.postgres.words import differing, update_words
from agentformer.records.integrity import Findings, verify
from agentformer.records.integrity import repair as repairs
from agentformer.records.scopes import SEARCHED
from agentformer.text.analyzers import Analyzers
from agentformer.types import RecordStore

_PAGE = 500  # entries analyzed at a time
_RESTORE = "restore the row from a backup of the database"
_SEARCHED_OR_STORED = f"SELECT num FROM entries WHERE {SEARCHED} UNION SELECT num FROM word_entries ORDER BY num"
# Entries with a term that is missing in the inverted table.
_INCOMPLETE = """
    SELECT e.num FROM word_entries AS e CROSS JOIN LATERAL unnest(e.terms) AS t (term)
    LEFT JOIN words AS w ON w.namespace = e.namespace AND w.term = t.term AND w.num = e.num
    WHERE e.num = ANY(%s) GROUP BY e.num HAVING count(w.num) <> count(*)
"""
Check = Callable[[sqlite3.Connection], Findings]
Mend = Callable[[RecordStore, Findings], None]


def _reported(check: Check) -> Check:
    def run(connection: sqlite3.Connection) -> Findings:
        findings = check(connection)
        findings.advice = _RESTORE
        return findings

    return run


# Each check of the records, with its repair.
CHECKS: tuple[tuple[Check, Mend | None], ...] = (
    (_reported(verify.metadata), None),
    (_reported(verify.entries), None),
    (_reported(verify.history), None),
    (verify.links, lambda database, findings: repairs.links(database, findings, None)),
    (verify.superseded, lambda database, findings: repairs.superseded(database, findings, None)),
    (_reported(verify.changes), None),
    (verify.leases, lambda database, findings: repairs.leases(database, findings, None)),
)


def check_copies(connection: sqlite3.Connection, findings: Findings) -> None:
    """Add a finding to the findings of the vectors for each vector whose copies in several namespaces differ."""
    query = (
        "SELECT id FROM vectors GROUP BY id HAVING count(DISTINCT (space, hash)) > 1 OR count(DISTINCT data) > 1 "
        "OR count(DISTINCT checksum) > 1 OR count(checksum) NOT IN (0, count(*)) ORDER BY id"
    )
    for (num,) in native(connection).run(query, []):
        findings.add(
            f"vector {num} is damaged: its copies in several namespaces differ",
            verify.DamagedRow("vectors", num, num, ""),
        )


def check_words(connection: sqlite3.Connection, analyzers: Analyzers) -> Findings:
    """Check that the stored terms of each searchable entry are the terms of its text. The keys of the findings are the
    numbers of the entries whose terms differ."""
    findings = Findings("words", "each searched entry has the terms of its text")
    raw = native(connection)
    nums = [row[0] for row in raw.run(_SEARCHED_OR_STORED, []).fetchall()]
    findings.looked_at = len(nums)
    for start in range(0, len(nums), _PAGE):
        page = nums[start : start + _PAGE]
        with findings.reading():
            incomplete = {row[0] for row in raw.run(_INCOMPLETE, [page]).fetchall()}
            for num in sorted(incomplete.union(differing(connection, page, analyzers))):
                findings.add(f"the terms of the entry with the number {num} differ from its text", num)
    return findings


def repair_words(database: RecordStore, findings: Findings, analyzers: Analyzers) -> None:
    """Write the terms of all entries again, because damaged rows may also have made the counts wrong."""
    with database.writing() as connection:
        raw = native(connection)
        nums = [row[0] for row in raw.run(_SEARCHED_OR_STORED, []).fetchall()]
        for table in ("words", "word_entries", "word_counts", "word_totals"):
            raw.run(f"DELETE FROM {table}", [])
        update_words(connection, nums, analyzers)
    findings.mark_repaired(len(findings.keys), "the terms of all entries are written again")
