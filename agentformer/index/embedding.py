"""Entries get their vectors: in one transaction with the records, or later from the queue.

What cannot be embedded now stays in the queue and is found by words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from agentformer.errors import EmbedderUnavailable, SpaceMismatch, StoreFull
from agentformer.index.cutting import Progress, Refused, Rows, Vectorizer, Windows
from agentformer.index.following import FollowingEmbedder, pinned, retry_now
from agentformer.records import entries as records
from agentformer.records import vectors as store
from agentformer.records.database import Database
from agentformer.records.spaces import active_space, changed_while_moving, claim_space, want_embedder
from agentformer.records.vectors import Window
from agentformer.types import UNSEARCHED_KINDS, Embedder, EmbeddingSpace, Matrix, MemoryEntry

LOCK_FILE = "embedding.lock"
_ENTRIES = 256  # queued entries embedded together
_REMOVED = "its vector was removed by another writer"
_MOVED = "the store moved to another embedding space meanwhile"


class Prepared(NamedTuple):
    """Embedded entries: windows per entry, and a row for each text that had none."""

    space: EmbeddingSpace
    windows: list[Windows]
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
        known = active_space(connection)
        if isinstance(outcome, str):
            store.put_pending(connection, searched, outcome)
            if known is None and isinstance(self._embedder, FollowingEmbedder) and self._embedder.asked_for:
                want_embedder(connection, self._embedder.asked_for)
            return
        if known and known[1].difference(outcome.space):
            store.put_pending(connection, searched, _MOVED)
            return
        space = claim_space(connection, outcome.space)
        put_rows(connection, space, outcome.vectors)
        taken = []
        for num, windows in zip(nums, outcome.windows, strict=True):
            if isinstance(windows, Refused):
                store.put_pending(connection, [num], windows.reason, refused=True)
            else:
                taken.append((num, windows))
        put_complete(connection, space, taken)

    def follow_up(self) -> None:
        """The embedder has just worked: embed what waited for it, unless somebody is at that already."""
        with suppress(SpaceMismatch):  # what was to be stored is stored; the next call is refused with this
            self.catch_up(wait=False, refused=False)

    def catch_up(self, progress: Progress | None = None, *, wait: bool = True, refused: bool = True) -> int:
        """Embed the queue; returns how many entries remain in it. Never raises for an embedder that is down. Without
        `refused`, what the model did not take is neither tried again nor counted.

        One process at a time does so, so that no text is embedded twice: with `wait`, the others wait for it and look
        again, else they leave it alone.
        """
        with self._database.reading() as connection:
            if not store.pending_count(connection, refused=refused):
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
                queue = store.pending(connection, after, _ENTRIES, refused=refused)
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
            windows = [prepared.windows[i] for i in kept]
            self.commit(connection, same, [found[num] for num in same], prepared._replace(windows=windows))
            records.announce(connection, same)


def put_rows(connection: sqlite3.Connection, space: int, rows: Rows) -> None:
    """Keep vectors by the hash of their text."""
    if rows:
        matrix: Matrix = np.stack(list(rows.values()))
        store.put_vectors(connection, space, list(rows), matrix)


def put_complete(connection: sqlite3.Connection, space: int, cuts: Sequence[tuple[int, Sequence[Window]]]) -> None:
    """Set the windows of entries in the active space; one of which a vector is gone waits instead."""
    whole, lost = complete(connection, space, cuts)
    for num, windows in whole:
        store.put_windows(connection, space, num, windows)
    store.put_embedded(connection, [num for num, _ in whole])
    store.put_pending(connection, lost, _REMOVED)


def complete(
    connection: sqlite3.Connection, space: int, cuts: Sequence[tuple[int, Sequence[Window]]]
) -> tuple[list[tuple[int, Sequence[Window]]], list[int]]:
    """The entries all of whose windows have a vector, with them, and the numbers of the others."""
    needed = {window.hash for _, windows in cuts for window in windows}
    gone = needed - store.known_hashes(connection, space, needed)
    lost = [num for num, windows in cuts if any(window.hash in gone for window in windows)]
    out = set(lost)
    return [(num, windows) for num, windows in cuts if num not in out], lost
