"""The embedding queue. Entries are embedded before the transaction that stores them, or later if the embedder is
unavailable.

Entries that could not be embedded stay in the queue. Until they are embedded, only a search by words finds them.
Vectors of another store can be imported, so that entries with the same texts are not embedded again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from filelock import Timeout

from agentformer.errors import EmbedderError, EmbedderUnavailable, SpaceMismatch, StoreError, store_failure
from agentformer.index import entry_properties, property_threads
from agentformer.index.embedding.active import ActiveEmbedder, embedder_for
from agentformer.index.embedding.windows import Progress, Refused, WindowEmbedder, WindowTable
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records import vectors as store
from agentformer.records.fields import STORED_BY_KEY
from agentformer.records.spaces import active_space, add_to_move, claim_space, set_wanted_embedder
from agentformer.records.vectors import Rows, Window
from agentformer.settings.access import file_lock
from agentformer.types import (
    UNSEARCHED_KINDS,
    Connection,
    Embedder,
    EmbeddingSpace,
    MemoryEntry,
    RecordStore,
    StoredVector,
)

LOCK_FILE = "embedding.lock"
_ENTRIES = 256  # maximum number of entries that are embedded, or written, together
_KEEP_SECONDS = 1.0  # finished vectors are stored after so many seconds; an interruption loses this work, or one batch
_IMPORTED = 1_000  # number of vectors imported in one transaction, so that other writers do not wait long
_REMOVED = "another process deleted a vector of this entry; the entry will be embedded again"
_MOVED = (
    "the store changed to another embedding model before the vectors were written; the entry will be embedded again"
)


class AcquireLock(Protocol):
    """A function that acquires the lock for embedding the queue (see `queue_lock`)."""

    def __call__(self, wait: bool, /) -> AbstractContextManager[object]:
        """Acquire and return the lock. If another process holds it, wait if `wait` is True, otherwise raise
        `filelock.Timeout`."""


Owned = Callable[[Connection, Sequence[int]], Iterable[int]]


class EmbeddedEntries(NamedTuple):
    """The result of embedding entries: their windows, and those vectors of the windows that are not stored yet. `space`
    is the embedding space of the vectors. `analyses` contains properties of the entries, such as the language, which a
    thread computed during the embedding (see `property_threads.analyzing`)."""

    space: EmbeddingSpace
    windows: WindowTable
    vectors: Rows
    analyses: entry_properties.Analyses

    def select(self, entries: Sequence[int]) -> EmbeddedEntries:
        """Return the result for the entries at these indices. It contains all `vectors`, because entries may share a
        vector."""
        return self._replace(windows=self.windows.select(entries))


class NotEmbedded(NamedTuple):
    """The reason why entries could not be embedded now."""

    reason: str

    def select(self, entries: Sequence[int]) -> NotEmbedded:
        """Return this object: the reason is the same for all entries."""
        return self


def queue_lock(folder: Path, wait: bool) -> AbstractContextManager[object]:
    """Acquire and return the lock for embedding the queue. If another process holds it, wait if `wait` is True,
    otherwise raise `filelock.Timeout`. Raises `StoreFull` if the lock file cannot be written."""
    try:
        return file_lock(folder / LOCK_FILE, timeout=-1 if wait else 0).acquire()
    except Timeout:
        raise
    except OSError as error:
        advice = "no entry was embedded; free some disk space or check the permissions"
        raise store_failure(f"{folder} cannot be written to", error, advice) from error


class EmbeddingQueue:
    """Embeds entries and stores their vectors. `lock` acquires the lock that a process holds while it embeds the queue.
    `window_tokens` is the maximum number of tokens in a window (0: the maximum of the model). Methods that embed raise
    `SpaceMismatch` if the vectors of the store belong to another embedding space."""

    def __init__(self, lock: AcquireLock, database: RecordStore, embedder: Embedder, *, window_tokens: int = 0) -> None:
        self._lock = lock
        self._database = database
        self._embedder = embedder
        self._window_tokens = window_tokens

    def embed(
        self, entries: Sequence[MemoryEntry], progress: Progress | None = None, *, reuse: bool = True
    ) -> EmbeddedEntries:
        """Embed entries, and return their windows and vectors. Other threads can use the store meanwhile. During a long
        call, finished vectors are stored from time to time. If `reuse` is True, a text that already has a vector is not
        embedded again. Raises `EmbedderError` if the embedder fails. After an error, the finished vectors remain
        stored."""
        with self._database.reading() as connection:
            stored = active_space(connection)
        embedder = embedder_for(self._embedder, stored[1] if stored else None)
        space = embedder.space

        def find_known(hashes: Sequence[bytes]) -> set[bytes]:
            if not reuse:
                return set()
            with self._database.reading() as connection:
                active = active_space(connection)
                if active is None or active[1].difference(space):
                    return set()
                return set(store.vector_ids(connection, active[0], hashes))

        def store_rows(rows: Rows) -> None:
            with self._database.writing() as connection:
                active = active_space(connection)
                if active is None or not active[1].difference(space):
                    store.put_vectors(connection, claim_space(connection, space), *rows)

        tokens = self._window_tokens
        embedding = WindowEmbedder(
            embedder, find_known, store_rows, progress, window_tokens=tokens, keep_seconds=_KEEP_SECONDS
        )
        with property_threads.analyzing(entries) as analyses:
            windows = embedding.embed(entries)
        return EmbeddedEntries(space, windows, embedding.rows, analyses)

    def try_embed(self, entries: Sequence[MemoryEntry], progress: Progress | None) -> EmbeddedEntries | NotEmbedded:
        """Embed entries like `embed`. If the embedder fails, return the reason as `NotEmbedded`. No stored vector is
        reused if one of the entries comes from a caller whose API key does not allow reading: a faster answer would
        reveal to this caller that the store already contains the text. Raises `SpaceMismatch` if the store uses another
        embedding space."""
        reuse = not any(STORED_BY_KEY in entry.metadata for entry in entries)
        try:
            return self.embed(entries, progress, reuse=reuse)
        except SpaceMismatch:
            raise
        except EmbedderError as error:
            return NotEmbedded(str(error))

    def commit(
        self,
        connection: Connection,
        nums: Sequence[int],
        entries: Sequence[MemoryEntry],
        outcome: EmbeddedEntries | NotEmbedded,
    ) -> None:
        """Write the windows and vectors in `outcome`, or put the entries into the queue if they were not embedded.
        `nums` contains the number of each entry in `entries`. An entry is also put into the queue if another writer has
        deleted one of its vectors, or if the store has moved to another embedding space. The properties that searches
        derive from the entries are written, too; see `index.entry_properties`."""
        analyses = outcome.analyses if isinstance(outcome, EmbeddedEntries) else entry_properties.NO_ANALYSES
        entry_properties.write(connection, nums, entries, analyses)
        searched = [num for num, entry in zip(nums, entries, strict=True) if entry.kind not in UNSEARCHED_KINDS]
        add_to_move(connection, searched)
        active = active_space(connection)
        if isinstance(outcome, NotEmbedded):
            store.put_pending(connection, searched, outcome.reason)
            if active is None and isinstance(self._embedder, ActiveEmbedder) and self._embedder.requested:
                set_wanted_embedder(connection, self._embedder.requested)
            return
        if active and active[1].difference(outcome.space):
            store.put_pending(connection, searched, _MOVED)
            return
        space = claim_space(connection, outcome.space)
        store.put_vectors(connection, space, *outcome.vectors, {entry.namespace for entry in entries})
        for start in range(0, len(nums), _ENTRIES):
            batch = range(start, min(start + _ENTRIES, len(nums)))
            _commit_windows(connection, space, [(nums[i], outcome.windows[i]) for i in batch])

    def follow_up(self, outcome: EmbeddedEntries | NotEmbedded) -> None:
        """Embed the entries that wait in the queue if the embedder is available again. `outcome` is the result of
        `try_embed`: if it is `NotEmbedded`, the embedder has just failed, and nothing is done. Also do nothing if
        another process is embedding the queue."""
        if isinstance(outcome, NotEmbedded):
            return
        with suppress(SpaceMismatch, StoreError):  # the entries are stored; the next call raises this error
            self.catch_up(wait=False, refused=False)

    def catch_up(self, progress: Progress | None = None, *, wait: bool = True, refused: bool = True) -> int:
        """Embed the entries in the queue, and return the number of entries that remain. If the embedder is unavailable,
        all entries remain, and no error is raised. If `refused` is False, entries that the model has refused are not
        tried again and not counted. Only one process embeds the queue at a time. If another process is embedding the
        queue and `wait` is True, the call waits for that process and then embeds the rest. If `wait` is False, the call
        returns immediately in this case."""
        with self._database.reading() as connection:
            if not store.has_pending(connection, refused=refused):
                return 0
        with suppress(Timeout), self._lock(wait):
            self._embed_queue(progress, refused)
        with self._database.reading() as connection:
            return store.pending_count(connection, refused=refused)

    def _embed_queue(self, progress: Progress | None, refused: bool) -> None:
        self.retry_embedder()
        after = 0
        while True:
            with self._database.reading() as connection:
                queue = store.pending_entries(connection, after, _ENTRIES, refused=refused)
            if not queue or not self.embed_batch([item.num for item in queue], progress):
                return
            after = queue[-1].num

    def retry_embedder(self) -> None:
        """Let the next call use the embedder again at once, even if the embedder has just failed."""
        if isinstance(self._embedder, ActiveEmbedder):
            self._embedder.retry_now()

    def embed_batch(
        self, nums: Sequence[int], progress: Progress | None, owned: Owned = lambda connection, nums: nums
    ) -> bool:
        """Embed the queued entries with these numbers, and write their vectors. Return False if the embedder is
        unavailable. Entries that changed meanwhile stay in the queue. If several processes share the queue, the
        function `owned` receives entry numbers and returns those that this process may write."""
        with self._database.reading() as connection:
            entries = records.by_num(connection, nums)
        try:
            embedded = self.embed(list(entries.values()), progress)
        except EmbedderUnavailable as error:
            with self._database.writing() as connection:
                present = records.by_num(connection, list(entries))
                store.put_pending(connection, [*owned(connection, list(present))], str(error))
            return False
        with self._database.writing() as connection:
            present = records.by_num(connection, list(entries))
            mine = set(owned(connection, list(entries)))
            unchanged = {n: i for i, n in enumerate(entries) if n in mine and present.get(n) == entries[n]}
            embedded = embedded.select([*unchanged.values()])
            self.commit(connection, [*unchanged], [entries[num] for num in unchanged], embedded)
            change_feed.append(connection, unchanged)
        return True


class VectorImport:
    """An import of vectors that another store has computed, so that entries with the same texts need no embedding. The
    caller must first write the vectors (`store`), then add the entries to the database, and at the end call
    `drop_unused`."""

    def __init__(self, database: RecordStore, embedder: Embedder) -> None:
        self._database = database
        self._embedder = embedder
        self._imported = array("q")  # numbers of vectors

    def store(self, vectors: Iterable[StoredVector]) -> int:
        """Store the vectors that belong to the embedding space of this store, and skip all other vectors. If this store
        has no vectors yet, its space is the space of the embedder.

        Return the number of stored vectors. Raises `EmbedderError` for a vector whose numbers are not all finite, whose
        length is not 1, or whose dimension is wrong.
        """
        space = self._space()
        remaining, count = iter(vectors), 0
        while batch := list(islice(remaining, _IMPORTED)):
            _check_vectors(batch)
            fitting = [vector for vector in batch if space is not None and not space.difference(vector.space)]
            if fitting and space is not None:
                with self._database.writing() as connection:
                    count += self._put(connection, space, fitting)
        return count

    def drop_unused(self) -> None:
        """Delete the imported vectors that belong to no entry."""
        while self._imported:
            batch, self._imported = self._imported[:_IMPORTED], self._imported[_IMPORTED:]
            with self._database.writing() as connection:
                store.delete_unused_vectors(connection, batch)

    def _space(self) -> EmbeddingSpace | None:
        with self._database.reading() as connection:
            stored = active_space(connection)
        if stored:
            return stored[1]
        try:
            return embedder_for(self._embedder, None).space
        except EmbedderUnavailable:
            return None

    def _put(self, connection: Connection, space: EmbeddingSpace, vectors: Sequence[StoredVector]) -> int:
        """Store imported vectors, and note the new ones for `drop_unused`. Return how many were taken: none if the
        store has another space."""
        active = active_space(connection)
        if active and active[1].difference(space):
            return 0  # the store has moved to another space in the meantime
        number = claim_space(connection, space)
        hashes = [vector.hash for vector in vectors]
        before = store.vector_ids(connection, number, hashes)
        store.put_vectors(connection, number, hashes, np.stack([vector.vector for vector in vectors]))
        after = store.vector_ids(connection, number, hashes)
        self._imported.extend(after[key] for key in after.keys() - before.keys())
        return len(vectors)


def _check_vectors(vectors: Sequence[StoredVector]) -> None:
    for dimension in {vector.space.dimension for vector in vectors}:
        alike = [vector for vector in vectors if vector.space.dimension == dimension]
        if any(vector.vector.shape != (dimension,) or len(vector.hash) != store.HASH_BYTES for vector in alike):
            raise EmbedderError(
                f"a vector does not have the {dimension} dimensions of its embedding space, or its text hash is invalid"
            )
        store.check_rows(np.stack([vector.vector for vector in alike]), len(alike))


def _commit_windows(connection: Connection, space: int, entries: Sequence[tuple[int, list[Window] | Refused]]) -> None:
    """Write the windows of entries, and remove these entries from the queue. `entries` contains pairs of an entry
    number and its windows. An entry that the model refused, or that lacks a vector, is put into the queue instead."""
    complete: list[tuple[int, Sequence[Window]]] = []
    for num, windows in entries:
        if isinstance(windows, Refused):
            store.put_pending(connection, [num], windows.reason, refused=True)
        else:
            complete.append((num, windows))
    written, incomplete = put_complete(connection, space, complete)
    store.remove_pending(connection, written)
    if incomplete:
        store.put_pending(connection, incomplete, _REMOVED)


def put_complete(
    connection: Connection, space: int, entries: Sequence[tuple[int, Sequence[Window]]]
) -> tuple[list[int], list[int]]:
    """Write the windows of each entry whose vectors are all stored. `entries` contains pairs of an entry number and its
    windows. Return two lists: the numbers of the written entries, and the numbers of the entries that lack a vector."""
    vectors = store.vector_ids(connection, space, {window.hash for _, windows in entries for window in windows})
    complete = [(num, windows) for num, windows in entries if all(window.hash in vectors for window in windows)]
    store.put_windows(connection, space, complete, vectors)
    written = {num for num, _ in complete}
    return [num for num, _ in complete], [num for num, _ in entries if num not in written]
