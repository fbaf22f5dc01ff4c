"""The indexes of the embedded backend: search, embedding, migration and verification over one folder.

Importing this module imports the index libraries. The backend therefore gets `Indexes` passed in and opens it at the
first call that needs an index.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agentformer.index.embedding.migration import SpaceMigration, alone
from agentformer.index.embedding.queue import EmbeddingQueue, VectorImport
from agentformer.index.embedding.windows import Progress
from agentformer.index.files import ScratchFolder, usable_index_folder
from agentformer.memory.backends.faiss.verify import StoreVerifier
from agentformer.records.database import Database
from agentformer.search.hybrid import HybridSearch
from agentformer.types import Check, Embedder, Reembedding, StoredVector


class Indexes:
    """The indexes of one folder. Thread-safe. `search` opens at its first use, and the rest reads or writes records."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        embedder: Embedder,
        ranking: Mapping[str, Any],
        window_tokens: int,
    ) -> None:
        """`ranking` holds the options of `HybridSearch`."""
        self._folder = folder
        self._database = database
        self._embedder = embedder
        self._ranking = ranking
        self._window_tokens = window_tokens
        self._lock = threading.RLock()
        self._search: HybridSearch | None = None
        self._scratch: ScratchFolder | None = None  # of a store that cannot be written
        self._embedding = EmbeddingQueue(folder, database, embedder, window_tokens=window_tokens)
        self._imported = VectorImport(database, embedder)

    @property
    def search(self) -> HybridSearch:
        """The hybrid search. It notes the last change at its opening, so it opens before the first change."""
        with self._lock:
            if self._search is None:
                folder = self._folder
                if self._database.read_only:
                    self._scratch = ScratchFolder(folder)
                    folder = self._scratch.folder
                self._search = HybridSearch(folder, self._database, self._embedder, **self._ranking)
            return self._search

    @property
    def embedding(self) -> EmbeddingQueue:
        """The embedding queue, with the search opened."""
        _ = self.search
        return self._embedding

    @property
    def searching(self) -> bool:
        """True once `search` is open."""
        return self._search is not None

    def reembed(self, target: Embedder, queries: Sequence[str], progress: Progress | None) -> Reembedding:
        """Move the store to the space of `target`; see `MemoryBackend.reembed`."""
        _ = self.search
        move = SpaceMigration(self._folder, self._database, self._embedder, target, window_tokens=self._window_tokens)
        return move.run(queries, progress)

    def alone(self) -> AbstractContextManager[None]:
        """Hold the lock of `reembed`. Raises `Conflict` while another process holds it."""
        return alone(self._folder)

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        """Keep vectors of another store; see `MemoryBackend.keep_vectors`."""
        return self._imported.keep(vectors)

    def verify(self, *, repair: bool) -> Sequence[Check]:
        """Compare records and indexes; see `MemoryBackend.verify`."""
        with usable_index_folder(self._folder, writable=not self._database.read_only) as folder:
            where = (folder, self._database, self._embedder)
            return StoreVerifier(*where, lambda: self.search, lambda: self.embedding).run(repair=repair)

    def close(self) -> None:
        """Drop imported vectors that no entry uses, and save the index snapshots. Raises `OSError`, `StoreError`."""
        self._imported.drop_unused()
        if self._search is None:
            return  # nothing was changed or searched
        if self._scratch is not None:
            self._search.close()
            return
        if self._search.catches_up_soon():  # the next start then finds both indexes up to date
            self._search.refresh()
        self._search.close()
        self._search.save()

    def discard_scratch(self) -> None:
        """Delete the temporary folder of a store that cannot be written."""
        if self._scratch is not None:
            self._scratch.close()
