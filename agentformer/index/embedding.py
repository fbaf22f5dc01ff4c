"""From entries to vectors: windows that fit the model, each embedded once, kept in one transaction.

An entry's windows cover all of its content. Each is embedded with the entry's context line before it, so
that a passage from the middle of a document still knows whose it is. What cannot be embedded now stays in
the queue and is found by words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from agentformer.errors import EmbedderError, EmbedderUnavailable, SpaceMismatch
from agentformer.records import entries as records
from agentformer.records import vectors as store
from agentformer.records.database import Database
from agentformer.records.vectors import Window
from agentformer.text.chunking import windows
from agentformer.types import UNSEARCHED_KINDS, Embedder, EmbeddingSpace, Matrix, MemoryEntry

Progress = Callable[[int, int], None]  # windows done, windows in all

_CONTEXT_SHARE = 0.25  # of the model's window; the context must not crowd out what it introduces
_GROUP = 512  # windows embedded between two commits of finished vectors: what an interruption can cost
_ENTRIES = 256  # queued entries embedded together


class Prepared(NamedTuple):
    """Embedded entries: windows per entry, and a row for each distinct text."""

    space: EmbeddingSpace
    windows: list[list[Window]]
    vectors: dict[bytes, np.ndarray]


class Embedding:
    """Embeds entries for a store. Raises `SpaceMismatch` when the store's vectors are of another space."""

    def __init__(self, database: Database, embedder: Embedder) -> None:
        self._database = database
        self.embedder = embedder

    def prepare(self, entries: Sequence[MemoryEntry], progress: Progress | None = None) -> Prepared:
        """Windows and vectors of entries. Holds no lock; finished vectors of long work are kept as it goes.

        Raises `EmbedderError`; then nothing but finished vectors has been written.
        """
        space = self.embedder.space
        with self._database.reading() as connection:
            if known := store.active_space(connection):
                store.check_same(known[1], space)
        texts: dict[bytes, str] = {}
        cut = [self._windows(entry, space, texts) for entry in entries]
        return Prepared(space, cut, self._embed(space, texts, progress))

    def commit(self, connection: sqlite3.Connection, nums: Sequence[int], prepared: Prepared) -> None:
        """Write what was prepared for entries that this transaction knows by `nums`.

        A vector that was there at `prepare` may be gone with the last entry that had the same text; then
        the entry joins the queue.
        """
        space = store.claim_space(connection, prepared.space)
        if prepared.vectors:
            rows: Matrix = np.stack(list(prepared.vectors.values()))
            store.put_vectors(connection, space, list(prepared.vectors), rows)
        needed = {window.hash for cut in prepared.windows for window in cut}
        gone = needed - store.known_hashes(connection, space, needed)
        for num, cut in zip(nums, prepared.windows, strict=True):
            if gone and any(window.hash in gone for window in cut):
                store.put_pending(connection, [num], "its vector was removed by another writer")
            else:
                store.put_windows(connection, space, num, cut)

    def catch_up(self, progress: Progress | None = None) -> int:
        """Embed the queue; returns how many entries remain in it. Never raises for an embedder that is down."""
        after = 0
        while True:
            with self._database.reading() as connection:
                queue = store.pending(connection, after, _ENTRIES)
                found = records.by_num(connection, [item.num for item in queue])
            if not queue:
                break
            after = queue[-1].num
            try:
                self._embed_queued(found, progress)
            except EmbedderUnavailable:
                break
        with self._database.reading() as connection:
            return store.pending_count(connection)

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
                store.put_pending(connection, list(found), str(error))
            if isinstance(error, EmbedderUnavailable):
                raise
            return
        with self._database.writing() as connection:
            present = records.by_num(connection, list(found))
            unchanged = [i for i, num in enumerate(found) if present.get(num) == found[num]]
            nums = list(found)
            self.commit(
                connection,
                [nums[i] for i in unchanged],
                prepared._replace(windows=[prepared.windows[i] for i in unchanged]),
            )
            records.announce(connection, [nums[i] for i in unchanged])

    def _windows(self, entry: MemoryEntry, space: EmbeddingSpace, texts: dict[bytes, str]) -> list[Window]:
        """The entry's windows; their texts are added to `texts`."""
        if entry.kind in UNSEARCHED_KINDS:
            return []
        context, used = self._context(entry, space)
        out = []
        for span in windows(entry.content, self.embedder.token_spans, space.max_tokens - used):
            text = context + entry.content[span.start : span.end]
            key = store.text_hash(text)
            texts[key] = text
            out.append(Window(span, key))
        return out

    def _context(self, entry: MemoryEntry, space: EmbeddingSpace) -> tuple[str, int]:
        """The line before each window, and how many tokens it takes."""
        line = " ".join(entry.context.split())
        if not line:
            return "", 0
        tokens = self.embedder.token_spans(line)[: int(space.max_tokens * _CONTEXT_SHARE)]
        return (line[: tokens[-1].end] + "\n", len(tokens) + 1) if tokens else ("", 0)

    def _embed(
        self, space: EmbeddingSpace, texts: dict[bytes, str], progress: Progress | None
    ) -> dict[bytes, np.ndarray]:
        """A row per text that the store does not have yet; in long work each group is kept at once."""
        missing = self._unknown(space, texts)
        out: dict[bytes, np.ndarray] = {}
        for group in _groups(missing):
            rows = self.embedder.embed_documents([texts[key] for key in group])
            store.check_rows(rows, len(group))
            out.update(zip(group, rows, strict=True))
            if len(missing) > _GROUP:
                with self._database.writing() as connection:
                    store.put_vectors(connection, store.claim_space(connection, space), group, rows)
            if progress:
                progress(len(out), len(missing))
        return out

    def _unknown(self, space: EmbeddingSpace, texts: dict[bytes, str]) -> list[bytes]:
        with self._database.reading() as connection:
            known = store.active_space(connection)
            have = store.known_hashes(connection, known[0], texts) if known else set()
        return [key for key in texts if key not in have]


def _groups(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for i in range(0, len(keys), _GROUP):
        yield keys[i : i + _GROUP]
