"""Entries get their vectors: in one transaction with the records, or later from the queue.

What cannot be embedded now stays in the queue and is found by words.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from agentformer.errors import EmbedderError, EmbedderUnavailable, SpaceMismatch, StoreError, StoreFull
from agentformer.index.embedding.active import ActiveEmbedder, embedder_for, retry_now
from agentformer.index.embedding.windows import Progress, Refused, Vectorizer, WindowTable
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records import vectors as store
from agentformer.records.database import Database
from agentformer.records.spaces import active_space, add_to_move, claim_space, set_wanted_embedder
from agentformer.records.vectors import Rows, Window
from agentformer.types import UNSEARCHED_KINDS, Embedder, EmbeddingSpace, MemoryEntry, StoredVector

LOCK_FILE = "embedding.lock"
_ENTRIES = 256  # queued entries embedded together, and entries whose windows are written together
_REMOVED = "its vector was removed by another writer"
_MOVED = "the store moved to another embedding space meanwhile"


class Prepared(NamedTuple):
    """Embedded entries: windows per entry, and those new vectors that are not in the store yet."""

    space: EmbeddingSpace
    windows: WindowTable
    vectors: Rows


class EmbeddingQueue:
    """Embeds entries for a store. Raises `SpaceMismatch` when the store's vectors are of another space."""

    def __init__(self, folder: Path, database: Database, embedder: Embedder, *, window_tokens: int = 0) -> None:
        self._folder = folder
        self._database = database
        self._embedder = embedder
        self._window_tokens = window_tokens

    def prepare(self, entries: Sequence[MemoryEntry], progress: Progress | None = None) -> Prepared:
        """Windows and vectors of entries. Holds no lock; finished vectors of long work are kept as it goes.

        Raises `EmbedderError`; then nothing but finished vectors has been written.
        """
        with self._database.reading() as connection:
            stored = active_space(connection)
        embedder = embedder_for(self._embedder, stored[1] if stored else None)
        space = embedder.space

        def known(texts: Sequence[bytes]) -> set[bytes]:
            with self._database.reading() as connection:
                now = active_space(connection)
                same = now is not None and not now[1].difference(space)
                return store.stored_hashes(connection, now[0], texts) if now and same else set()

        def keep(rows: Rows) -> None:
            with self._database.writing() as connection:
                now = active_space(connection)
                if now is None or not now[1].difference(space):
                    store.put_vectors(connection, claim_space(connection, space), *rows)

        vectorizer = Vectorizer(embedder, known, keep, progress, window_tokens=self._window_tokens)
        cuts = vectorizer(entries)
        return Prepared(space, cuts, vectorizer.rows)

    def commit(
        self,
        connection: sqlite3.Connection,
        nums: Sequence[int],
        entries: Sequence[MemoryEntry],
        outcome: Prepared | str,
    ) -> None:
        """Write what was prepared for entries that this transaction knows by `nums`, or queue them with the reason
        why they could not be embedded.

        A vector that was there at `prepare` may be gone with the last entry that had the same text, and the store may
        have moved to another space; then too the entries join the queue.
        """
        searched = [num for num, entry in zip(nums, entries, strict=True) if entry.kind not in UNSEARCHED_KINDS]
        add_to_move(connection, searched)
        known = active_space(connection)
        if isinstance(outcome, str):
            store.put_pending(connection, searched, outcome)
            if known is None and isinstance(self._embedder, ActiveEmbedder) and self._embedder.asked_for:
                set_wanted_embedder(connection, self._embedder.asked_for)
            return
        if known and known[1].difference(outcome.space):
            store.put_pending(connection, searched, _MOVED)
            return
        space = claim_space(connection, outcome.space)
        store.put_vectors(connection, space, *outcome.vectors)
        for start in range(0, len(nums), _ENTRIES):
            _commit_some(connection, space, nums, outcome.windows, range(start, min(start + _ENTRIES, len(nums))))

    def follow_up(self) -> None:
        """The embedder has just worked: embed what waited for it, unless somebody is at that already."""
        with suppress(SpaceMismatch, StoreError):  # what was to be stored is stored; the next call is refused with this
            self.catch_up(wait=False, refused=False)

    def catch_up(self, progress: Progress | None = None, *, wait: bool = True, refused: bool = True) -> int:
        """Embed the queue; returns how many entries remain in it. Never raises for an embedder that is down. Without
        `refused`, what the model did not take is neither tried again nor counted.

        One process at a time does so, so that no text is embedded twice: with `wait`, the others wait for it and look
        again, else they leave it alone.
        """
        with self._database.reading() as connection:
            if not store.has_pending(connection, refused=refused):
                return 0
        with suppress(Timeout), self._alone(wait):
            self._catch_up(progress, refused)
        with self._database.reading() as connection:
            return store.pending_count(connection, refused=refused)

    def _alone(self, wait: bool) -> AbstractContextManager[object]:
        try:
            return FileLock(self._folder / LOCK_FILE, timeout=-1 if wait else 0).acquire()
        except Timeout:
            raise
        except OSError as error:
            raise StoreFull(f"{self._folder} cannot be written ({error.strerror}); nothing was embedded") from error

    def _catch_up(self, progress: Progress | None, refused: bool) -> None:
        retry_now(self._embedder)
        after = 0
        while True:
            with self._database.reading() as connection:
                queue = store.pending_entries(connection, after, _ENTRIES, refused=refused)
                found = records.by_num(connection, [item.num for item in queue])
            if not queue:
                return
            after = queue[-1].num
            try:
                self._embed_queued(found, progress)
            except EmbedderUnavailable:
                return

    def _embed_queued(self, found: dict[int, MemoryEntry], progress: Progress | None) -> None:
        nums = list(found)
        try:
            prepared = self.prepare(list(found.values()), progress)
        except EmbedderUnavailable as error:
            with self._database.writing() as connection:
                store.put_pending(connection, list(records.by_num(connection, nums)), str(error))
            raise
        with self._database.writing() as connection:
            present = records.by_num(connection, nums)
            kept = [i for i, num in enumerate(nums) if present.get(num) == found[num]]
            same = [nums[i] for i in kept]
            outcome = prepared._replace(windows=prepared.windows.of(kept))
            self.commit(connection, same, [found[num] for num in same], outcome)
            change_feed.append(connection, same)


def _commit_some(
    connection: sqlite3.Connection, space: int, nums: Sequence[int], cuts: WindowTable, which: Iterable[int]
) -> None:
    """Set the windows of entries in the active space; one that was refused, or lost a vector, waits instead."""
    taken: list[tuple[int, Sequence[Window]]] = []
    for i in which:
        windows = cuts[i]
        if isinstance(windows, Refused):
            store.put_pending(connection, [nums[i]], windows.reason, refused=True)
        else:
            taken.append((nums[i], windows))
    whole, lost = put_complete(connection, space, taken)
    store.remove_pending(connection, whole)
    if lost:
        store.put_pending(connection, lost, _REMOVED)


def put_complete(
    connection: sqlite3.Connection, space: int, cuts: Sequence[tuple[int, Sequence[Window]]]
) -> tuple[list[int], list[int]]:
    """Set the windows of the entries all of whose windows have a vector. Returns their numbers, and the others'."""
    vectors = store.vector_ids(connection, space, {window.hash for _, windows in cuts for window in windows})
    whole = [(num, windows) for num, windows in cuts if all(window.hash in vectors for window in windows)]
    store.put_windows(connection, space, whole, vectors)
    taken = {num for num, _ in whole}
    return [num for num, _ in whole], [num for num, _ in cuts if num not in taken]


_GROUP = 1_000  # vectors of one transaction, so that no other writer waits long


class VectorImport:
    """Takes vectors into a store, and remembers which, until those that nothing has used are dropped."""

    def __init__(self, database: Database, embedder: Embedder) -> None:
        self._database = database
        self._embedder = embedder
        self._brought = array("q")  # numbers of vectors

    def keep(self, vectors: Iterable[StoredVector]) -> int:
        """Keep those that are of the store's space, or of the embedder's in a store without vectors. Returns how many
        they were. Raises `EmbedderError` for a row that is not finite, of unit length and of its space's dimension."""
        space = self._space()
        kept = 0
        for group in _groups(vectors):
            _check(group)
            fitting = [each for each in group if space is not None and not space.difference(each.space)]
            if fitting and space is not None:
                with self._database.writing() as connection:
                    kept += self._put(connection, space, fitting)
        return kept

    def drop_unused(self) -> None:
        """Delete what was brought in and is of no entry: such texts were not stored after all."""
        while self._brought:
            some, self._brought = self._brought[:_GROUP], self._brought[_GROUP:]
            with self._database.writing() as connection:
                store.delete_unused_vectors(connection, some)

    def _space(self) -> EmbeddingSpace | None:
        """The space that vectors must be of; None where it is not known yet."""
        with self._database.reading() as connection:
            stored = active_space(connection)
        if stored:
            return stored[1]
        try:
            return embedder_for(self._embedder, None).space
        except EmbedderUnavailable:
            return None

    def _put(self, connection: sqlite3.Connection, space: EmbeddingSpace, fitting: Sequence[StoredVector]) -> int:
        now = active_space(connection)
        if now and now[1].difference(space):
            return 0  # the store has moved meanwhile
        number = claim_space(connection, space)
        hashes = [each.hash for each in fitting]
        before = store.vector_ids(connection, number, hashes)
        store.put_vectors(connection, number, hashes, np.stack([each.vector for each in fitting]))
        after = store.vector_ids(connection, number, hashes)
        self._brought.extend(after[key] for key in after.keys() - before.keys())
        return len(fitting)


def _check(group: Sequence[StoredVector]) -> None:
    """Raises `EmbedderError`."""
    for dimension in {each.space.dimension for each in group}:
        rows = [each for each in group if each.space.dimension == dimension]
        if any(each.vector.shape != (dimension,) or len(each.hash) != store.HASH_BYTES for each in rows):
            raise EmbedderError(f"a vector is not of the {dimension} dimensions of its space, or its hash is none")
        store.check_rows(np.stack([each.vector for each in rows]), len(rows))


def _groups(vectors: Iterable[StoredVector]) -> Iterator[list[StoredVector]]:
    given = iter(vectors)
    while group := list(islice(given, _GROUP)):
        yield group
