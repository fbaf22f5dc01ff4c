"""The backend `faiss`, also called the embedded backend: SQLite records, a FAISS vector index and a tantivy word index
in one folder. Any number of threads and processes may open the folder. The records are complete, and the indexes are
computed from the records: before each search, both indexes apply the newest changes of the records."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentformer.errors import StoreError
from agentformer.index.files import SecureDelete, check_records, read_index_status
from agentformer.index.vectors import IndexOptions
from agentformer.memory.backends.faiss import DATABASE_FILE, DEFAULT_OPTIONS, FaissOptions
from agentformer.memory.backends.indexed import IndexedBackend, record_status
from agentformer.records import spaces
from agentformer.records.database import Database
from agentformer.rerankers import Reranking, named_reranker
from agentformer.search.fusion import FusionOptions
from agentformer.settings import Settings
from agentformer.text.analyzers import choose_analyzers
from agentformer.types import Connection, Embedder, Hits, Query

if TYPE_CHECKING:
    from agentformer.index.embedding.windows import Progress
    from agentformer.memory.backends.faiss.indexes import Indexes

__all__ = ["DATABASE_FILE", "FaissMemoryBackend", "FaissOptions"]

OpenIndexes = Callable[[Path, Database, Embedder, FaissOptions], "Indexes"]

log = logging.getLogger("agentformer")


class FaissMemoryBackend(IndexedBackend):
    """A `MemoryBackend` that stores entries in a folder. `open_indexes` is a function that returns `Indexes`. The
    function is called before the first search or change, so that a caller that only reads records imports no index
    library. Raises `StoreFull` or `StoreDamaged` if the folder cannot be used."""

    def __init__(
        self,
        folder: Path,
        embedder: Embedder,
        open_indexes: OpenIndexes,
        options: FaissOptions = DEFAULT_OPTIONS,
        open_database: Callable[[Path], Database] = Database,
    ) -> None:
        self._folder = folder.absolute()  # stays valid if the process changes its working directory
        check_records(self._folder / DATABASE_FILE)
        self._database: Database = open_database(self._folder / DATABASE_FILE)
        self._embedder = embedder
        self._options = options
        self._reranking = options.reranking
        self._closed = False
        self._open_indexes = open_indexes
        self._opening = threading.RLock()
        self._opened: Indexes | None = None
        self._secure_delete = SecureDelete(self._database, lambda: self._indexes.search.discard())
        if not self._database.read_only:
            self._secure_delete.run()

    @property
    def _indexes(self) -> Indexes:
        with self._opening:
            if self._opened is None:
                self._opened = self._open_indexes(self._folder, self._database, self._embedder, self._options)
            return self._opened

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder, open_indexes: OpenIndexes) -> FaissMemoryBackend:
        """Open the backend in the folder `Settings.index_dir`, with the search options of the settings."""
        return cls(settings.index_dir, embedder, open_indexes, search_options(settings))

    def embed_pending(self, progress: Progress | None = None, *, refused: bool = True) -> int:
        """Embed the entries that have no vectors, and return the number of entries that still have none. If
        `refused` is true, entries that the model has refused are tried again, the indexes are updated, and a vector
        index that needs training is trained before the call returns."""
        remaining = super().embed_pending(progress, refused=refused)
        if refused:  # in this call, because the process may end before a background thread has trained the index
            self._indexes.search.refresh()
            self._indexes.search.vectors.train_now(self._database)
        return remaining

    def search(self, query: Query) -> Hits:
        """Return the hits of a query, best first. A configured reranker changes the order of the hits."""
        self._secure_delete.retry()
        return super().search(query)

    def backup(self, folder: Path) -> None:
        self._database.write_copy(folder / DATABASE_FILE)

    def status(self) -> dict[str, Any]:
        """Return JSON values: the numbers of records, the embedding space, and the state of the vector index."""
        opened = self._opened
        index = opened.search.vectors.status() if opened and opened.searching else read_index_status(self._folder)
        with self._database.reading() as connection:
            space = spaces.active_space(connection)
            if space and "rows" in index and not index["in_memory"]:  # the snapshot can be older than the records
                query = "SELECT count(*) FROM windows WHERE space = ?"
                index["rows"] = connection.execute(query, [space[0]]).fetchone()[0]
            return {**record_status(connection, space), "disk_bytes": _bytes_of(self._folder), "index": index}

    def close(self) -> None:
        """Save the indexes and close the database. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._secure_delete.close()
            if self._opened is not None:
                self._opened.close()
        except (OSError, StoreError) as error:  # nothing is lost: the records are complete
            log.warning("the indexes could not be saved, and the next start updates them from the records: %s", error)
        finally:
            self._database.close()
            if self._opened is not None:
                self._opened.discard_scratch()

    def _note_removal(self, connection: Connection) -> None:
        self._secure_delete.note(connection)

    def _after_removal(self, removed: int) -> None:
        """Delete the index files and the write-ahead log if they may contain text of the `removed` entries."""
        self._secure_delete.run()
        if removed:
            self._secure_delete.truncate_wal()


def search_options(settings: Settings) -> FaissOptions:
    """Return the options of the search and of the indexes that the settings contain."""
    reranker = named_reranker(settings)
    return FaissOptions(
        fanout=settings.fanout,
        fusion=FusionOptions.from_settings(settings),
        index=IndexOptions(target_recall=settings.target_recall),
        window_tokens=settings.window_tokens,
        reranking=Reranking(reranker, settings.rerank_hits) if reranker else None,
        analyzers=choose_analyzers(settings),
    )


def _bytes_of(folder: Path) -> int:
    """Return the sum of the sizes of all files. A file that another thread or process deletes meanwhile is left out."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                total += path.stat().st_size
    return total
