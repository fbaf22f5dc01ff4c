"""Hybrid search in the index files of a folder. A search first updates the indexes with the changes of the records,
which are the database of the entries."""

from __future__ import annotations

from pathlib import Path

from agentformer.index.files import WORDS_FOLDER
from agentformer.index.scope_masks import ScopeCache
from agentformer.index.vectors import IndexOptions
from agentformer.index.vectors.follower import VectorFollower
from agentformer.index.words import WordIndex
from agentformer.records import change_feed
from agentformer.search.fusion import FusionOptions
from agentformer.search.hybrid import RankedSearch, SearchIndexes
from agentformer.text.analyzers import PLAIN, Analyzers
from agentformer.types import Embedder, RecordStore

_SMALL = 20_000  # closing a store with at most this number of changes updates its indexes


class HybridSearch(RankedSearch):
    """A search in the index files of a folder; see `RankedSearch`. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        database: RecordStore,
        embedder: Embedder,
        *,
        fanout: int,
        fusion: FusionOptions | None = None,
        index_options: IndexOptions | None = None,
        analyzers: Analyzers = PLAIN,
    ) -> None:
        self.vectors = VectorFollower(folder, database.store_id, index_options)
        self._words = WordIndex(folder / WORDS_FOLDER, database.store_id, analyzers)
        indexes = SearchIndexes(self.vectors, self._words, ScopeCache())
        super().__init__(database, embedder, indexes, fanout=fanout, fusion=fusion)
        with database.reading() as connection:
            self._opened_at = change_feed.last_seq(connection)

    def refresh(self) -> None:
        """Update the word index and the vector index with the newest changes, and write the word index to the disk.
        Without this call, the next search does this work."""
        self._words.flush(self._database)
        self.vectors.refresh(self._database)

    def catches_up_soon(self) -> bool:
        """Return whether the indexes should be updated before the store is closed. This is the case if the store has
        changed since it was opened, and had only few changes since it was created. Then even building the indexes from
        nothing is fast."""
        with self._database.reading() as connection:
            changes = change_feed.last_seq(connection)
            return changes != self._opened_at and changes <= _SMALL

    def close(self) -> None:
        """Stop the background threads, and write changes that the word index keeps in memory."""
        self.vectors.close()
        super().close()
        self._words.close(self._database)

    def discard(self) -> None:
        """Delete the index files, because they may still contain deleted entries. Raises `OSError` if a file cannot be
        deleted, or if another process is writing the files. After an error, call this method again later."""
        try:
            self._words.discard()
        finally:
            self.vectors.discard()

    def renew(self, *, words: bool = False, vectors: bool = False) -> None:
        """Delete the word index, the vector index or both, on disk and in memory. The next search rebuilds a deleted
        index. Raises `OSError` like `discard`."""
        if words:
            self._words.discard()
        if vectors:
            self.vectors.unload()
            self.vectors.discard()
