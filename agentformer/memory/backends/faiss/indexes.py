"""The indexes of the backend `faiss`: search, embedding, migration and verification in one folder. Importing this
module imports the index libraries. Therefore the backend receives a function that opens `Indexes`, and calls this
function only when an index is needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from agentformer.errors import SpaceMismatch, StoreDamaged, StoreFull
from agentformer.index.embedding.active import active_embedder
from agentformer.index.embedding.migration import SpaceMigration, migration_lock
from agentformer.index.embedding.queue import EmbeddingQueue, VectorImport, queue_lock
from agentformer.index.embedding.verify import repair_vectors, repair_windows, verify_vectors, verify_windows
from agentformer.index.embedding.windows import Progress
from agentformer.index.files import ScratchFolder, usable_index_folder
from agentformer.index.verify import verify_snapshot, verify_words
from agentformer.memory.backends.faiss import DATABASE_FILE, FaissOptions
from agentformer.records.database import Database
from agentformer.records.integrity import Findings
from agentformer.records.integrity import repair as repairs
from agentformer.records.integrity import verify as checks
from agentformer.records.integrity.recover import Recovered, recover_file
from agentformer.records.integrity.repair import Quarantine
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.search.local import HybridSearch
from agentformer.types import Check, Embedder, Reembedding

_UNTOUCHED = "nothing more is repaired, because a part of the database file cannot be read"


class Indexes:
    """The indexes of one folder. Thread-safe. The hybrid search is opened when a method first needs it."""

    def __init__(self, folder: Path, database: Database, embedder: Embedder, options: FaissOptions) -> None:
        self._folder = folder
        self._database = database
        self._embedder = embedder
        self._options = options
        self._lock = threading.RLock()
        self._search: HybridSearch | None = None
        self._scratch: ScratchFolder | None = None  # the temporary index folder of a store that cannot be written
        self._embedding = EmbeddingQueue(
            partial(queue_lock, folder), database, embedder, window_tokens=options.window_tokens
        )
        self.imported = VectorImport(database, embedder)

    @property
    def search(self) -> HybridSearch:
        """The hybrid search, which is opened at its first use. The caller must use this property before the first
        change of the records, because `close` updates the indexes only if the records have changed since the search was
        opened."""
        with self._lock:
            if self._search is None:
                folder, options = self._folder, self._options
                if self._database.read_only:
                    self._scratch = ScratchFolder(folder)
                    folder = self._scratch.folder
                self._search = HybridSearch(
                    folder,
                    self._database,
                    self._embedder,
                    fanout=options.fanout,
                    fusion=options.fusion,
                    index_options=options.index,
                    analyzers=options.analyzers,
                )
            return self._search

    @property
    def embedding(self) -> EmbeddingQueue:
        """The queue of entries without vectors. Opens the search before the queue changes records (see `search`)."""
        _ = self.search
        return self._embedding

    @property
    def searching(self) -> bool:
        """True if the search is open. A status report then uses the open vector index and does not read its files."""
        return self._search is not None

    def reembed(self, target: Embedder, queries: Sequence[str], progress: Progress | None) -> Reembedding:
        """Embed all entries again with `target`, and use the new vectors; see `MemoryBackend.reembed`."""
        _ = self.search
        tokens = self._options.window_tokens
        migration = SpaceMigration(self.migration_lock, self._database, self._embedder, target, window_tokens=tokens)
        return migration.run(queries, progress)

    def migration_lock(self) -> AbstractContextManager[None]:
        """Return the lock that a process holds while it runs `reembed` or abandons an unfinished `reembed`. Entering
        the lock raises `Conflict` while another process holds the lock."""
        return migration_lock(self._folder)

    def verify(self, *, repair: bool) -> Sequence[Check]:
        """Compare the records with the indexes, and repair damage if `repair` is True; see `MemoryBackend.verify`."""
        with usable_index_folder(self._folder, writable=not self._database.read_only) as folder:
            return StoreVerifier(folder, self._database, self._embedder, self, repair=repair).run()

    def close(self) -> None:
        """Delete imported vectors that no entry uses, and save the vector index. Raises `OSError` or `StoreError` if
        the files cannot be written."""
        self.imported.drop_unused()
        if self._search is None:
            return  # nothing was changed or searched
        if self._scratch is not None:
            self._search.close()
            return
        if self._search.catches_up_soon():  # so that both indexes are up to date at the next start
            self._search.refresh()
        self._search.close()
        self._search.vectors.save()

    def discard_scratch(self) -> None:
        """Delete the temporary index folder, which exists only if the store cannot be written."""
        if self._scratch is not None:
            self._scratch.close()


class StoreVerifier:
    """Verifies a store once. Each check reads the store in its own transaction. If `repair` is True, the damage that a
    check finds is repaired before the next check, so that the next check sees the repaired store. Rows are repaired
    only if SQLite can read the complete file."""

    def __init__(self, folder: Path, database: Database, embedder: Embedder, indexes: Indexes, *, repair: bool) -> None:
        """`folder` contains the index files. Raises `StoreFull` if `repair` is True and the store cannot be written."""
        if repair and database.read_only:
            raise StoreFull(
                f"{database.path} cannot be written, so nothing in it can be repaired; "
                "check the permissions and the free disk space"
            )
        self._folder = folder
        self._database = database
        self._embedder = embedder
        self._indexes = indexes
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
        windows = self._check_windows(damaged)
        if vectors.mended or windows.mended:
            with suppress(SpaceMismatch):
                self._indexes.embedding.catch_up(refused=False)
        index_files = self._check_index_files({*damaged, *windows.keys}, {row.num for row in vectors.keys})
        return [findings.to_check() for findings in (*results, vectors, windows, *index_files)]

    def _check(self, check: Callable[[SqliteConnection], Findings], repair: repairs.Repair | None) -> Findings:
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
        self._indexes.search.renew(words=True, vectors=True)
        recovered.add_to(findings)

    def _check_windows(self, damaged: set[int]) -> Findings:
        embedder, problem = active_embedder(self._database, self._embedder)
        return self._check(
            lambda connection: verify_windows(connection, embedder, problem, damaged),
            lambda database, findings, _: repair_windows(database, findings),
        )

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

    def _discard_index(self, findings: Findings, *, words: bool = False, vectors: bool = False) -> None:
        try:
            self._indexes.search.renew(words=words, vectors=vectors)
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
