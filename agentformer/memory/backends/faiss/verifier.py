"""The verification and repair of a store of the backend `faiss`: `StoreVerifier` checks an open store, and
`salvage_folder` recovers the rows of a database that cannot be opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from agentformer.errors import SpaceMismatch, StoreDamaged, StoreFull
from agentformer.index.embedding.active import active_embedder
from agentformer.index.embedding.verify import repair_vectors, repair_windows, verify_vectors, verify_windows
from agentformer.index.verify import verify_snapshot, verify_words
from agentformer.memory.backends.faiss.folder import DATABASE_FILE, OpenIndexes
from agentformer.records.integrity import repair as repairs
from agentformer.records.integrity import verify as checks
from agentformer.records.integrity.findings import Findings
from agentformer.records.integrity.recover import Recovered, recover_file
from agentformer.records.integrity.repair import Quarantine
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import Database
from agentformer.types import Check, Embedder

_UNTOUCHED = "nothing more is repaired, because a part of the database file cannot be read"


class StoreVerifier:
    """Verifies a store once. Each check reads the store in its own transaction. If `repair` is True, the damage that a
    check finds is repaired before the next check, so that the next check sees the repaired store. Rows are repaired
    only if SQLite can read the complete file."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        embedder: Embedder,
        open_indexes: Callable[[], OpenIndexes],
        *,
        repair: bool,
    ) -> None:
        """`folder` contains the index files, and `open_indexes` opens them for a repair. Raises `StoreFull` if `repair`
        is True and the store cannot be written."""
        if repair and database.read_only:
            raise StoreFull(
                f"{database.path} cannot be written, so nothing in it can be repaired; "
                "check the permissions and the free disk space"
            )
        self._folder = folder
        self._database = database
        self._embedder = embedder
        self._open_indexes = open_indexes
        self._quarantine = Quarantine(database.path.parent)
        self._repair = repair

    def run(self) -> list[Check]:
        """Run all checks, and return one result for each check."""
        file = self._check_file()
        entries = self._check(checks.entries, repairs.entries)
        damaged = {row.num for row in entries.keys} if not entries.mended else set()
        if self._repair and file.incomplete and "pages" not in file.keys:  # damaged metadata stopped the check
            file = self._check_file()
        results = [
            file,
            self._check(checks.metadata, repairs.metadata),
            entries,
            self._check(checks.history, repairs.history),
            self._check(checks.links, repairs.links),
            self._check(checks.superseded, repairs.superseded),
            self._check(checks.changes, repairs.changes),
            self._check(checks.leases, repairs.leases),
        ]
        vectors = self._check(verify_vectors, lambda database, findings, _: repair_vectors(database, findings))
        if self._repair:
            repairs.delete_unused_vectors(self._database)
        embedder, problem = active_embedder(self._database, self._embedder)
        windows = self._check(
            lambda connection: verify_windows(connection, embedder, problem, damaged),
            lambda database, findings, _: repair_windows(database, findings),
        )
        if vectors.mended or windows.mended:
            with suppress(SpaceMismatch):
                self._open_indexes().embedding.catch_up(refused=False)
        index_files = self._check_index_files({*damaged, *windows.keys}, {row.num for row in vectors.keys})
        return [findings.to_check() for findings in (*results, vectors, windows, *index_files)]

    def _check(self, check: Callable[[SqliteConnection], Findings], repair: repairs.Repair | None) -> Findings:
        """Run a check, and call `repair` if it has findings and the store may be repaired. If a damaged row remains,
        replace the file. Return the findings of the check before the repair."""
        with self._database.reading() as connection:
            findings = check(connection)
        if self._repair and repair and findings.keys:
            with findings.repairing():
                try:
                    repair(self._database, findings, self._quarantine)
                    with self._database.reading() as connection:
                        left = check(connection).keys
                except StoreDamaged as error:
                    left = [error]
                # SQLite does not find a damaged row by its key, or cannot remove it from a damaged index
                if any(isinstance(key, (StoreDamaged, checks.DamagedRow)) for key in left):
                    self._replace_file(findings)
        return findings

    def _check_file(self) -> Findings:
        """Run the integrity check of SQLite. If damage must be repaired, indexes of SQLite are rebuilt, and a file that
        cannot be read is replaced by a new file with all readable rows. If the file cannot be replaced, the later
        checks repair nothing."""
        findings = self._check(checks.database, None)
        if not self._repair or not findings.keys:
            return findings
        if "unread" in findings.keys:  # for example a full disk: the file may be sound
            self._repair, findings.advice = False, _UNTOUCHED
            return findings
        broken = "pages" in findings.keys
        if not broken and "index" in findings.keys:
            broken = not repairs.rebuild_sqlite_indexes(self._database)
            findings.mark_repaired(0 if broken else findings.keys.count("index"), "its SQLite indexes are rebuilt")
        with findings.repairing():
            if broken:
                self._replace_file(findings)
            else:
                repairs.dangling_references(self._database, findings)
        if broken and not findings.mended:
            self._repair, findings.advice = False, f"{_UNTOUCHED}: {findings.advice}"
        return findings

    def _replace_file(self, findings: Findings) -> None:
        """Replace the database file by a new file with all readable rows. Raises `StoreError` if this is not
        possible."""
        with self._database.replacing():
            recovered = recover_file(self._database.path, self._quarantine)
        self._renew(words=True, vectors=True)
        recovered.add_to(findings)

    def _check_index_files(self, damaged: Collection[int], damaged_vectors: Collection[int]) -> list[Findings]:
        """Check the word index and the vector index, and return the findings for each of them. If damage must be
        repaired, a wrong index is deleted. Entries and vectors that are damaged in the database are not compared;
        `damaged` and `damaged_vectors` contain their numbers."""
        words = verify_words(self._folder, self._database, damaged)
        snapshot = verify_snapshot(self._folder, self._database, damaged, damaged_vectors)
        if self._repair and words.found and not words.incomplete:
            self._discard_index(words, words=True)
        if self._repair and snapshot.found and not snapshot.incomplete:
            self._discard_index(snapshot, vectors=True)
        return [words, snapshot]

    def _renew(self, *, words: bool = False, vectors: bool = False) -> None:
        """Delete the word index, the vector index or both, on disk and in memory. The next search rebuilds a deleted
        index. Raises `OSError` if a file cannot be deleted."""
        indexes = self._open_indexes()
        if words:
            indexes.words.discard()
        if vectors:
            indexes.vectors.unload()
            indexes.vectors.discard()

    def _discard_index(self, findings: Findings, *, words: bool = False, vectors: bool = False) -> None:
        try:
            self._renew(words=words, vectors=vectors)
            findings.mark_repaired(findings.found, "the index is deleted, and the next search rebuilds it")
        except OSError as error:
            findings.advice = (
                f"the index cannot be deleted: {error.strerror or error}; check the permissions of the folder"
            )


def salvage_folder(folder: Path) -> Recovered | None:
    """Replace a database that cannot be opened by a new database with all readable rows. Return a report, or None if
    the folder has no database. Raises `StoreError` if the rows cannot be recovered."""
    path = folder / DATABASE_FILE
    if not path.exists():
        return None
    return recover_file(path, Quarantine(Path(os.path.realpath(path)).parent))
