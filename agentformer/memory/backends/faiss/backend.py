"""The backend `faiss`, also called the embedded backend: SQLite records, a FAISS vector index and a tantivy word index
in one folder. Any number of threads and processes may open the folder. The records are complete, and the indexes are
computed from the records: before each search, both indexes apply the newest changes of the records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentformer.errors import StoreError
from agentformer.index.files import (
    WORDS_FOLDER,
    ScratchFolder,
    SecureDelete,
    check_records,
    read_index_status,
    usable_index_folder,
)
from agentformer.index.vectors import IndexOptions
from agentformer.memory.backends.faiss.folder import DATABASE_FILE, DEFAULT_OPTIONS, FaissOptions, OpenIndexes
from agentformer.memory.backends.indexed import IndexedBackend, record_status
from agentformer.records import change_feed, spaces
from agentformer.records.integrity.disk import sizes
from agentformer.records.sqlite.database import Database
from agentformer.settings import Settings
from agentformer.types import Check, Connection, Embedder, Hits, Query, Reembedding, StoredVector

if TYPE_CHECKING:
    from agentformer.index.embedding.queue import EmbeddingQueue
    from agentformer.index.embedding.windows import Progress

__all__ = ["DATABASE_FILE", "FaissMemoryBackend", "FaissOptions"]

_SMALL = 20_000  # closing a store with at most this number of changes updates its indexes

log = logging.getLogger("agentformer")


class FaissMemoryBackend(IndexedBackend):
    """A `MemoryBackend` that stores entries in a folder. The database is opened at once. The indexes are opened before
    the first search or change, so that a caller that only reads records imports no index library. Raises `StoreFull` or
    `StoreDamaged` if the folder cannot be used."""

    def __init__(
        self,
        folder: Path,
        embedder: Embedder,
        options: FaissOptions = DEFAULT_OPTIONS,
        open_database: Callable[[Path], Database] = Database,
    ) -> None:
        self._folder = folder.absolute()  # stays valid if the process changes its working directory
        check_records(self._folder / DATABASE_FILE)
        self._database: Database = open_database(self._folder / DATABASE_FILE)
        super().__init__(self._database)
        self.feed = self._database
        self._embedder = embedder
        self._options = options
        self._reranking = options.reranking
        self._closed = False
        self._opening = threading.RLock()
        self._indexes: OpenIndexes | None = None
        self._secure_delete = SecureDelete(self._database, lambda: self._delete_indexes())
        if not self._database.read_only:
            self._secure_delete.run()  # finishes a deletion that failed in an earlier process

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> FaissMemoryBackend:
        """Open the backend in the folder `Settings.index_dir`, with the search options of the settings."""
        return cls(settings.index_dir, embedder, search_options(settings))

    def _open(self) -> OpenIndexes:
        """Open the indexes at the first call, and return them. Each method calls this before its first change of the
        records, because `close` updates the indexes only if the records have changed since they were opened. The
        modules of the indexes are imported here; see `FaissMemoryBackend`."""
        from agentformer.index.embedding.queue import EmbeddingQueue, VectorImport, queue_lock
        from agentformer.index.scope_masks import ScopeCache
        from agentformer.index.vectors.follower import VectorFollower
        from agentformer.index.words.index import WordIndex
        from agentformer.search.pipeline import Pipeline

        with self._opening:
            if self._indexes is None:
                database, embedder, options = self._database, self._embedder, self._options
                scratch = ScratchFolder(self._folder) if database.read_only else None
                folder = scratch.folder if scratch else self._folder
                vectors = VectorFollower(folder, database.store_id, options.index)
                words = WordIndex(folder / WORDS_FOLDER, database.store_id, options.analyzers)
                pipeline = Pipeline(
                    database,
                    embedder,
                    vectors=vectors,
                    words=words,
                    scopes=ScopeCache(),
                    fanout=options.fanout,
                    fusion=options.fusion,
                )
                lock = partial(queue_lock, self._folder)
                queue = EmbeddingQueue(lock, database, embedder, window_tokens=options.window_tokens)
                with database.reading() as connection:
                    seq = change_feed.last_seq(connection)
                imported = VectorImport(database, embedder)
                self._indexes = OpenIndexes(vectors, words, pipeline, queue, imported, seq, scratch)
            return self._indexes

    def _embedding(self) -> EmbeddingQueue:
        return self._open().embedding

    def search(self, query: Query) -> Hits:
        """Return the hits of a query, best first. A configured reranker changes the order of the hits."""
        self._secure_delete.retry()
        search = self._open().pipeline.search
        return self._reranking.search(search, query) if self._reranking else search(query)

    def embed_pending(self, progress: Progress | None = None, *, refused: bool = True) -> int:
        """Embed the entries that have no vectors, and return the number of entries that still have none. If
        `refused` is true, entries that the model has refused are tried again, the indexes are updated, and a vector
        index that needs training is trained before the call returns."""
        remaining = super().embed_pending(progress, refused=refused)
        if refused:  # in this call, because the process may end before a background thread has trained the index
            self._update_indexes()
            self._open().vectors.train_now(self._database)
        return remaining

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        return self._open().imported.store(vectors)

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Progress | None = None
    ) -> Reembedding:
        """Embed all entries again, and use the new vectors for searches; see `MemoryBackend.reembed`."""
        from agentformer.index.embedding.migration import SpaceMigration

        self._open()
        tokens = self._options.window_tokens
        migration = SpaceMigration(self._migration_lock, self._database, self._embedder, target, window_tokens=tokens)
        return migration.run(queries, progress)

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Compare the records with the indexes, and repair damage if `repair` is True; see `MemoryBackend.verify`."""
        from agentformer.memory.backends.faiss.verifier import StoreVerifier

        with usable_index_folder(self._folder, writable=not self._database.read_only) as folder:
            return StoreVerifier(folder, self._database, self._embedder, self._open, repair=repair).run()

    def backup(self, folder: Path) -> None:
        self._database.write_copy(folder / DATABASE_FILE)

    def status(self) -> dict[str, Any]:
        """Return JSON values: the numbers of records, the embedding space, and the state of the vector index."""
        index = self._indexes.vectors.status() if self._indexes else read_index_status(self._folder)
        with self._database.reading() as connection:
            space = spaces.active_space(connection)
            if space and "rows" in index and not index["in_memory"]:  # the snapshot can be older than the records
                query = "SELECT count(*) FROM windows WHERE space = ?"
                index["rows"] = connection.execute(query, [space[0]]).fetchone()[0]
            return {**record_status(connection, space), "disk_bytes": sum(sizes(self._folder).values()), "index": index}

    def close(self) -> None:
        """Save the indexes and close the database. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._secure_delete.close()
            if self._indexes is not None:
                self._save_indexes(self._indexes)
        except (OSError, StoreError) as error:  # nothing is lost: the records are complete
            log.warning("the indexes could not be saved, and the next start updates them from the records: %s", error)
        finally:
            self._database.close()
            if self._indexes is not None and self._indexes.scratch is not None:
                self._indexes.scratch.close()

    def _save_indexes(self, indexes: OpenIndexes) -> None:
        """Delete imported vectors that no entry uses, stop the threads, and write the indexes. Indexes with few changes
        are first updated, so that the next start need not do it; building them from nothing is also fast then."""
        indexes.imported.drop_unused()
        if indexes.scratch is None:
            with self._database.reading() as connection:
                changes = change_feed.last_seq(connection)
            if changes != indexes.seq and changes <= _SMALL:
                self._update_indexes()
        indexes.vectors.close()
        indexes.pipeline.close()
        indexes.words.close(self._database)
        if indexes.scratch is None:
            indexes.vectors.save()

    def _update_indexes(self) -> None:
        """Apply the newest changes of the records to both indexes. Without this call, the next search does this."""
        indexes = self._open()
        indexes.words.flush(self._database)
        indexes.vectors.refresh(self._database)

    def _delete_indexes(self) -> None:
        """Delete the index files, because they may still contain deleted entries. Raises `OSError` if a file cannot be
        deleted, or if another process is writing the files. After an error, call this method again later."""
        indexes = self._open()
        try:
            indexes.words.discard()
        finally:
            indexes.vectors.discard()

    def _migration_lock(self) -> AbstractContextManager[None]:
        from agentformer.index.embedding.migration import migration_lock

        return migration_lock(self._folder)

    def _note_removal(self, connection: Connection) -> None:
        self._secure_delete.note(connection)

    def _after_removal(self, removed: int) -> None:
        """Delete the index files and the write-ahead log if they may contain text of the `removed` entries."""
        self._secure_delete.run()
        if removed:
            self._secure_delete.truncate_wal()


def search_options(settings: Settings) -> FaissOptions:
    """Return the options of the search and of the indexes that the settings contain."""
    return FaissOptions.from_settings(settings, index=IndexOptions(target_recall=settings.target_recall))
