"""The checks of a store in PostgreSQL. The checks of the records are those of `records.integrity.verify`. PostgreSQL
checks its own files; rows with a wrong checksum are therefore reported and not moved."""

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


def check_words(connection: sqlite3.Connection, analyzers: Analyzers) -> Findings:
    """Check that the stored terms of each searched entry are those of its text. The keys of the findings are the
    numbers of the entries whose terms differ."""
    findings = Findings("words", "each searched entry has the terms of its text")
    query = f"SELECT num FROM entries WHERE {SEARCHED} UNION SELECT num FROM word_entries ORDER BY num"
    nums = [row[0] for row in native(connection).run(query, []).fetchall()]
    findings.looked_at = len(nums)
    for start in range(0, len(nums), _PAGE):
        with findings.reading():
            for num in differing(connection, nums[start : start + _PAGE], analyzers):
                findings.add(f"the terms of the entry with the number {num} differ from its text", num)
    return findings


def repair_words(database: RecordStore, findings: Findings, analyzers: Analyzers) -> None:
    """Write the terms of these entries anew."""
    with database.writing() as connection:
        update_words(connection, findings.keys, analyzers)
    findings.mark_repaired(len(findings.keys), "their terms are written anew")
