"""`verify` of the embedded backend: everything against everything, and with a repair what was found is mended at once,
so that each check sees what those before it have left.

Each check has a transaction of its own, which sees one moment. A repair changes records only where SQLite can read the
whole file: before that, the file itself is salvaged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from agentformer.errors import AgentFormerError, EmbedderError, SpaceMismatch, StoreError, StoreFull
from agentformer.index.embedding.active import embedder_for
from agentformer.index.embedding.queue import EmbeddingQueue
from agentformer.index.integrity import repair as repairing
from agentformer.index.integrity import verify as verifying
from agentformer.index.verify import verify_snapshot, verify_words
from agentformer.records.database import Database
from agentformer.records.integrity import Findings
from agentformer.records.integrity import repair as mending
from agentformer.records.integrity import verify as records
from agentformer.records.integrity.quarantine import Quarantine
from agentformer.records.integrity.recover import LOST, Recovered, recover_file
from agentformer.records.spaces import active_space
from agentformer.search.hybrid import HybridSearch
from agentformer.types import Check, Embedder

_UNTOUCHED = "nothing is mended while a part of the database file cannot be read"


class StoreVerifier:
    """One `verify`. `search` and `embedding` are the backend's own, for what is to be made anew."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        embedder: Embedder,
        search: Callable[[], HybridSearch],
        embedding: Callable[[], EmbeddingQueue],
    ) -> None:
        self._folder = folder
        self._database = database
        self._embedder = embedder
        self._search = search
        self._embedding = embedding
        self._aside = Quarantine(database.path.parent)
        self._repair = False

    def run(self, *, repair: bool = False) -> list[Check]:
        """Raises `StoreFull` for a repair of a store that cannot be written."""
        if repair and self._database.read_only:
            raise StoreFull(f"{self._database.path} cannot be written, so nothing in it can be mended")
        self._repair = repair
        file = self._file()
        entries = self._look(records.entries, mending.entries)
        damaged = {each.num for each in entries.keys} if not entries.mended else set()
        if self._repair and file.incomplete and "pages" not in file.keys:  # broken metadata stood in the way
            file = self._file()
        found = [
            file,
            self._look(records.metadata, mending.metadata),
            entries,
            self._look(records.history, mending.history),
            self._look(records.links, mending.links),
            self._look(records.changes, mending.changes),
            self._look(records.leases, mending.leases),
        ]
        vectors = self._look(verifying.vectors, lambda database, each, _: repairing.vectors(database, each))
        if self._repair:
            mending.delete_unused_vectors(self._database)
        windows = self._windows(damaged)
        if vectors.mended or windows.mended:
            with suppress(SpaceMismatch):
                self._embedding().catch_up(refused=False)
        followers = self._followers({*damaged, *windows.keys}, {each.num for each in vectors.keys})
        return [each.to_check() for each in (*found, vectors, windows, *followers)]

    def _look(self, check: Callable[[sqlite3.Connection], Findings], mend: mending.Repair | None) -> Findings:
        with self._database.reading() as connection:
            found = check(connection)
        if self._repair and mend and found.keys:
            with found.repairing():
                mend(self._database, found, self._aside)
        return found

    def _file(self) -> Findings:
        """SQLite's own check. With a repair, indexes are made anew, and a file that cannot be read is salvaged; where
        that is not possible, nothing else is changed either."""
        found = self._look(records.database, None)
        if not self._repair or not found.keys:
            return found
        if "unread" in found.keys:  # the disk is full, say; whether the file is sound is not known
            self._repair, found.advice = False, _UNTOUCHED
            return found
        broken = "pages" in found.keys
        if not broken and "index" in found.keys:
            why = mending.rebuild_sqlite_indexes(self._database)
            broken = bool(why)
            found.mark_repaired(0 if broken else found.keys.count("index"), "its indexes are made anew")
        if not broken:
            with found.repairing():
                mending.dangling_references(self._database, found, self._aside)
            return found
        try:
            saved = self._salvaged()
            found.mark_repaired(found.found, saved.summary())
            found.advice = LOST
            found.add_all((f"of {each}, some could not be read", "") for each in saved.unreadable)
        except AgentFormerError as error:
            self._repair = False
            found.advice = f"{_UNTOUCHED}: {error}"
        return found

    def _salvaged(self) -> Recovered:
        with self._database.replacing():
            saved = recover_file(self._database.path, self._aside)
        self._search().renew(words=True, vectors=True)
        return saved

    def _windows(self, damaged: set[int]) -> Findings:
        embedder, why = self._model()

        def check(connection: sqlite3.Connection) -> Findings:
            return verifying.windows(connection, embedder, why, damaged)

        return self._look(check, lambda database, each, _: repairing.windows(database, each))

    def _model(self) -> tuple[Embedder | None, str]:
        """The embedder of the active space where it can be had, or why not."""
        try:
            with self._database.reading() as connection:
                active = active_space(connection)
            return (embedder_for(self._embedder, active[1]), "") if active else (None, "")
        except (EmbedderError, StoreError) as error:
            return None, str(error)

    def _followers(self, damaged: Collection[int], vectors: Collection[int]) -> list[Findings]:
        """Verify the index files, without entries and vectors that are damaged in the records."""
        words = verify_words(self._folder, self._database, damaged)
        snapshot = verify_snapshot(self._folder, self._database, damaged, vectors)
        if self._repair:
            for each, which in ((words, {"words": True}), (snapshot, {"vectors": True})):
                if each.found:
                    self._renew(each, **which)
        return [words, snapshot]

    def _renew(self, found: Findings, *, words: bool = False, vectors: bool = False) -> None:
        try:
            self._search().renew(words=words, vectors=vectors)
        except OSError as error:
            found.advice = f"it cannot be deleted: {error.strerror or error}"
        else:
            found.mark_repaired(found.found, "deleted; the next search makes it anew")
