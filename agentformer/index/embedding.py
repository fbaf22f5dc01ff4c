"""Entries get their vectors: in one transaction with the records, or later from the queue.

What cannot be embedded now stays in the queue and is found by words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from agentformer.errors import EmbedderError, EmbedderUnavailable, SpaceMismatch, StoreFull
from agentformer.index.cutting import Progress, Rows, Vectorizer
from agentformer.index.following import pinned, retry_now
from agentformer.records import entries as records
from agentformer.records import vectors as store
from agentformer.records.database import Database
from agentformer.records.spaces import active_space, changed_while_moving, claim_space
from agentformer.records.vectors import Window
from agentformer.types import UNSEARCHED_KINDS, Embedder, EmbeddingSpace, Matrix, MemoryEntry

LOCK_FILE = "embedding.lock"
_ENTRIES = 256  # queued entries embedded together
_REMOVED = "its vector was removed by another writer"
_MOVED = "the store moved to another embedding space meanwhile"


class Prepared(NamedTuple):
    """Embedded entries: windows per entry, and a row for each text that had none."""

    space: EmbeddingSpace
    windows: list[list[Window]]
    vectors: Rows


class Embedding:
    """Embeds entries for a store. Raises `SpaceMismatch` when the store's vectors are of another space."""

    def __init__(self, folder: Path, database: Database, embedder: Embedder) -> None:
        self._folder = folder
        self._database = database
        self._embedder = embedder

    def prepare(self, entries: Sequence[MemoryEntry], progress: Progress | None = None) -> Prepared:
        """Windows and vectors of entries. Holds no lock; finished vectors of long work are kept as it goes.

        Raises `EmbedderError`; then nothing but finished vectors has been written.
        """
        with self._database.reading() as connection:
            stored = active_space(connection)
        embedder = pinned(self._embedder, stored[1] if stored else None)
        space = embedder.space

        def known(texts: Sequence[bytes]) -> set[bytes]:
            with self._database.reading() as connection:
                now = active_space(connection)
                same = now is not None and not now[1].difference(space)
                return store.known_hashes(connection, now[0], texts) if now and same else set()

        def keep(rows: Rows) -> None:
            with self._database.writing() as connection:
                now = active_space(connection)
                if now is None or not now[1].difference(space):
                    put_rows(connection, claim_space(connection, space), rows)

        vectorizer = Vectorizer(embedder, known, keep, progress)
        return Prepared(space, vectorizer(entries), vectorizer.rows)

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
        changed_while_moving(connection, searched)
        if isinstance(outcome, str):
            store.put_pending(connection, searched, outcome)
            return
        known = active_space(connection)
        if known and known[1].difference(outcome.space):
            store.put_pending(connection, searched, _MOVED)
            return
        space = claim_space(connection, outcome.space)
        put_rows(connection, space, outcome.vectors)
        whole, lost = complete(connection, space, nums, outcome.windows)
        for num, windows in whole:
            store.put_windows(connection, space, num, windows)
        store.put_embedded(connection, [num for num, _ in whole])
        store.put_pending(connection, lost, _REMOVED)

    def follow_up(self) -> None:
        """The embedder has just worked: embed what waited for it, unless somebody is at that already."""
        with self._database.reading() as connection:
            waiting = store.pending_count(connection)
        if waiting:
            try:
                self.catch_up(wait=False)
            except SpaceMismatch:  # what was to be stored is stored; the next call is refused with this
                return

    def catch_up(self, progress: Progress | None = None, *, wait: bool = True) -> int:
        """Embed the queue; returns how many entries remain in it. Never raises for an embedder that is down.

        One process at a time does so, so that no text is embedded twice: with `wait`, the others wait for it and look
        again, else they leave it alone.
        """
        with self._database.reading() as connection:
            if not store.pending_count(connection):
                return 0
        try:
            with self._alone(wait):
                self._catch_up(progress)
        except Timeout:
            pass
        with self._database.reading() as connection:
            return store.pending_count(connection)

    def _alone(self, wait: bool) -> AbstractContextManager[object]:
        try:
            return FileLock(self._folder / LOCK_FILE, timeout=-1 if wait else 0).acquire()
        except Timeout:
            raise
        except OSError as error:
            raise StoreFull(f"{self._folder} cannot be written ({error.strerror}); nothing was embedded") from error

    def _catch_up(self, progress: Progress | None) -> None:
        retry_now(self._embedder)
        after = 0
        while True:
            with self._database.reading() as connection:
                queue = store.pending(connection, after, _ENTRIES)
                found = records.by_num(connection, [item.num for item in queue])
            if not queue:
                return
            after = queue[-1].num
            try:
                self._embed_queued(found, progress)
            except EmbedderUnavailable:
                return

    def _embed_queued(self, found: dict[int, MemoryEntry], progress: Progress | None) -> None:
        """Embed a group; where the embedder refuses it, one by one, so that one text holds up no other."""
        try:
            prepared = self.prepare(list(found.values()), progress)
        except SpaceMismatch:
            raise
        except EmbedderError as error:
            if len(found) > 1 and not isinstance(error, EmbedderUnavailable):
                for num, entry in found.items():
                    self._embed_queued({num: entry}, progress)
                return
            with self._database.writing() as connection:
                store.put_pending(connection, list(records.by_num(connection, list(found))), str(error))
            if isinstance(error, EmbedderUnavailable):
                raise
            return
        nums = list(found)
        with self._database.writing() as connection:
            present = records.by_num(connection, nums)
            kept = [i for i, num in enumerate(nums) if present.get(num) == found[num]]
            same = [nums[i] for i in kept]
            windows = [prepared.windows[i] for i in kept]
            self.commit(connection, same, [found[num] for num in same], prepared._replace(windows=windows))
            records.announce(connection, same)


def put_rows(connection: sqlite3.Connection, space: int, rows: Rows) -> None:
    """Keep vectors by the hash of their text."""
    if rows:
        matrix: Matrix = np.stack(list(rows.values()))
        store.put_vectors(connection, space, list(rows), matrix)


def complete(
    connection: sqlite3.Connection, space: int, nums: Sequence[int], windows: Sequence[Sequence[Window]]
) -> tuple[list[tuple[int, Sequence[Window]]], list[int]]:
    """The entries all of whose windows have a vector, with them, and the numbers of the others."""
    needed = {window.hash for cut in windows for window in cut}
    gone = needed - store.known_hashes(connection, space, needed)
    whole, lost = [], []
    for num, cut in zip(nums, windows, strict=True):
        if gone and any(window.hash in gone for window in cut):
            lost.append(num)
        else:
            whole.append((num, cut))
    return whole, lost
