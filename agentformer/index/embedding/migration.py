"""Migration of a store to another embedding space: all entries are embedded again with another model. Until the
migration is complete, searches use the vectors of the current model.

Each batch of vectors is committed when it is ready. Therefore a migration that was interrupted continues where it
stopped. During a migration, every process that changes an entry adds the entry to a list of entries to embed
(`records.spaces`). When this list is empty, the store switches to the new space in one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from filelock import Timeout

from agentformer.errors import Conflict, EmbedderError, store_failure
from agentformer.index.embedding.active import embedder_for
from agentformer.index.embedding.queue import put_complete
from agentformer.index.embedding.windows import Refused, WindowEmbedder
from agentformer.records import entries as records
from agentformer.records import spaces
from agentformer.records import vectors as store
from agentformer.records.vectors import Rows, Window
from agentformer.settings.access import file_lock
from agentformer.types import (
    Connection,
    Embedder,
    EmbeddingSpace,
    MemoryEntry,
    RecordStore,
    Reembedding,
    Statement,
    common,
)

LOCK_FILE = "reembed.lock"
_ENTRIES = 64  # number of entries embedded in one batch; an interruption loses at most one batch

_NEAREST = 10
_SAMPLE = 200  # number of entries used as queries; their mean overlap is accurate to a few hundredths
_ROWS = 4_096  # windows read at a time

# The first window of each entry in each of the two spaces. Both windows begin with the same text.
_FIRST_WINDOWS = common("""
    SELECT a.entry, a.id AS one, b.id AS other FROM
        (SELECT entry, min(id) AS id FROM windows WHERE space = ? GROUP BY entry) AS a
        JOIN (SELECT entry, min(id) AS id FROM windows WHERE space = ? GROUP BY entry) AS b USING (entry)
    ORDER BY a.entry
""")
_WITH_VECTORS = "FROM windows AS w JOIN vectors AS v ON v.id = w.vector"
_VECTORS_OF_SPACE = Statement(
    sqlite=f"SELECT w.entry, v.data {_WITH_VECTORS} WHERE w.space = ?",
    postgres=f"SELECT w.entry, v.data {_WITH_VECTORS} AND v.entry_namespace = w.entry_namespace WHERE w.space = %s",
)
_VECTOR_OF_WINDOW = Statement(
    sqlite=f"SELECT v.data {_WITH_VECTORS} WHERE w.id = ?",
    postgres=f"SELECT v.data {_WITH_VECTORS} AND v.entry_namespace = w.entry_namespace WHERE w.id = %s",
)

Progress = Callable[[int, int], None]  # number of entries done in this run, and number of all entries of this run


@contextmanager
def migration_lock(folder: Path) -> Iterator[None]:
    """Hold the migration lock, so that only one process at a time migrates the store. Raises `Conflict` if another
    process holds the lock, and `StoreFull` if the lock file cannot be written."""
    try:
        lock = file_lock(folder / LOCK_FILE, timeout=0).acquire()
    except Timeout:
        raise Conflict(
            "another process is re-embedding this store; wait until it has finished, or stop that process"
        ) from None
    except OSError as error:
        advice = "free some disk space or check its permissions"
        raise store_failure(f"{folder} cannot be written to", error, advice) from error
    with lock:
        yield


class SpaceMigration:
    """One run of a migration (`reembed`). `former` is the embedder of the current space, and `target` is the embedder
    of the new space. `lock` returns the migration lock of the store. `run` raises `Conflict` if another process
    migrates the store, and `EmbedderUnavailable` if the new embedder fails. After a failure, a later run with the same
    `target` continues the migration."""

    def __init__(
        self,
        lock: Callable[[], AbstractContextManager[None]],
        database: RecordStore,
        former: Embedder,
        target: Embedder,
        *,
        window_tokens: int = 0,
    ) -> None:
        self._window_tokens = window_tokens  # 0: the limit of the model
        self._lock = lock
        self._database = database
        self._former = former
        self._target = target
        self._entries = self._embedded = self._reused = 0  # counts of this run

    def run(self, queries: Sequence[str] = (), progress: Progress | None = None) -> Reembedding:
        """Embed all entries with the new embedder, and switch the store to the new space. The overlap in the result
        says how similar the search results of the two spaces are. The overlap is measured with `queries`, or with
        entries of the store if no queries are given."""
        started = time.monotonic()
        space = self._target.space
        with self._database.reading() as connection:
            active, building = spaces.active_space(connection), spaces.building_space(connection)
        former = active[1] if active else None
        if former and not former.difference(space):
            if building:
                raise Conflict(
                    f"this store already uses the embedder {space.spec}, but a move to {building[1].spec} is not "
                    "finished; to cancel the move, run `agentformer reembed --abandon`"
                )
            return Reembedding(former, space, switched=False)
        with self._lock():
            result = self._run(former, space, queries, progress)
        return replace(result, seconds=round(time.monotonic() - started, 3))

    def _run(
        self, former: EmbeddingSpace | None, space: EmbeddingSpace, queries: Sequence[str], progress: Progress | None
    ) -> Reembedding:
        """Embed all entries, then switch. Entries that are changed meanwhile are embedded before the switch."""
        with self._database.writing() as connection:
            number = spaces.begin_move(connection, space)
            spaces.retry_refused(connection)
        overlap: tuple[float | None, int] | None = None  # as `_overlap` returns it
        while True:
            self._embed_missing(number, progress)
            if overlap is None:
                overlap = self._overlap(former, number, queries)
            with self._database.writing() as connection:
                failed = spaces.missing_count(connection)
                if spaces.switch(connection, number):
                    break
        counts = {"entries": self._entries, "embedded": self._embedded, "reused": self._reused, "failed": failed}
        return Reembedding(former, space, switched=True, **counts, overlap=overlap[0], sample=overlap[1])

    def _embed_missing(self, number: int, progress: Progress | None) -> None:
        """Embed the entries that have no vectors in the space `number`. Each entry is tried once."""
        while True:
            with self._database.reading() as connection:
                spaces.check_building(connection, number)
                nums = spaces.missing_entries(connection, _ENTRIES)
                left = spaces.missing_count(connection)
                entries = records.by_num(connection, nums)
            if not nums:
                return
            self._embed_batch(number, entries)
            if progress:
                progress(self._entries, self._entries + max(0, left - len(entries)))

    def _embed_batch(self, number: int, entries: dict[int, MemoryEntry]) -> None:
        """Embed entries, which are given by number, and mark those that the model refuses. An entry that is changed or
        loses a vector meanwhile is left to a later batch."""
        find_known, store_rows = partial(self._find_known, number), partial(self._store_rows, number)
        embedding = WindowEmbedder(self._target, find_known, store_rows, window_tokens=self._window_tokens)
        try:
            table = embedding.embed(list(entries.values()))
        finally:
            self._embedded += embedding.embedded
            self._reused += embedding.reused
        with self._database.writing() as connection:
            spaces.check_building(connection, number)
            store.put_vectors(connection, number, *embedding.rows)
            present = records.by_num(connection, list(entries))
            unchanged: list[tuple[int, Sequence[Window]]] = []
            for num, windows in zip(entries, table, strict=True):
                if present.get(num) != entries[num]:
                    continue
                if isinstance(windows, Refused):
                    spaces.mark_refused(connection, num, windows.reason)
                else:
                    unchanged.append((num, windows))
            done, _ = put_complete(connection, number, unchanged)
            spaces.mark_moved(connection, done)
        self._entries += len(done)

    def _find_known(self, number: int, hashes: Sequence[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            return set(store.vector_ids(connection, number, hashes))

    def _store_rows(self, number: int, rows: Rows) -> None:
        with self._database.writing() as connection:
            spaces.check_building(connection, number)
            store.put_vectors(connection, number, *rows)

    def _overlap(self, former: EmbeddingSpace | None, number: int, queries: Sequence[str]) -> tuple[float | None, int]:
        """Compare the search results of the former space with the search results of the space `number`. Return the
        overlap (see `entry_overlap`) and the number of queries. If no queries are given, entries of the store are used
        as queries. The overlap is None if it cannot be measured."""
        with self._database.reading() as connection:
            active = spaces.active_space(connection)
            if active is None or former is None:
                return None, 0
            if not queries:
                return entry_overlap(connection, active[0], number)
        try:
            old = [embedder_for(self._former, former).embed_query(query) for query in queries]
        except EmbedderError:  # the former model may be gone, which may be the reason for the migration
            return None, 0
        new = [self._target.embed_query(query) for query in queries]
        with self._database.reading() as connection:
            nearest = _nearest(connection, active[0], np.stack(old), [])
            return _mean_overlap(nearest, _nearest(connection, number, np.stack(new), [])), len(queries)


def entry_overlap(connection: Connection, one: int, other: int) -> tuple[float | None, int]:
    """Measure the overlap of the search results in the spaces `one` and `other`. The overlap is the mean share of
    nearest entries that are the same in both spaces. Some entries of the store are used as queries. The query vector of
    such an entry is the vector of its first window, and the entry itself is not counted as a result. Return the overlap
    and the number of queries. The overlap is None if fewer than two entries have vectors in both spaces."""
    pairs = connection.run(_FIRST_WINDOWS, [one, other]).fetchall()
    if len(pairs) < 2:
        return None, 0
    step = max(1, len(pairs) // _SAMPLE)
    sample = pairs[::step][:_SAMPLE]
    entries = [row["entry"] for row in sample]
    nearest_one = _nearest(connection, one, _read_vectors(connection, [row["one"] for row in sample]), entries)
    nearest_other = _nearest(connection, other, _read_vectors(connection, [row["other"] for row in sample]), entries)
    return _mean_overlap(nearest_one, nearest_other), len(sample)


def _mean_overlap(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> float:
    """Return the mean share (0..1) of entries that are in both `one` and `other`. Each of the two lists contains the
    nearest entries for each query."""
    shares = [len(set(a) & set(b)) / max(len(a), len(b)) for a, b in zip(one, other, strict=True) if a or b]
    return float(np.mean(shares)) if shares else 1.0


def _nearest(connection: Connection, space: int, queries: np.ndarray, excluded: Sequence[int]) -> list[list[int]]:
    """Return the nearest entries for each query vector. Entries are compared by their nearest window. `excluded` is
    empty, or contains for each query one entry that must not be a result. Vectors are read in batches to save
    memory."""
    best: list[dict[int, float]] = [{} for _ in queries]
    rows = connection.run(_VECTORS_OF_SPACE, [space])
    while batch := rows.fetchmany(_ROWS):
        matrix = np.frombuffer(b"".join(row[1] for row in batch), "<f4").reshape(len(batch), -1)
        scores = queries @ matrix.T
        count = min(scores.shape[1], 4 * _NEAREST)  # several windows may belong to one entry
        top = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        for i, columns in enumerate(top):
            for column in columns:
                entry = batch[column][0]
                if not excluded or entry != excluded[i]:
                    best[i][entry] = max(best[i].get(entry, -2.0), float(scores[i, column]))
            best[i] = dict(sorted(best[i].items(), key=lambda item: (-item[1], item[0]))[:_NEAREST])
    return [list(entries) for entries in best]


def _read_vectors(connection: Connection, windows: Sequence[int]) -> np.ndarray:
    blobs = (connection.run(_VECTOR_OF_WINDOW, [window]).fetchone()[0] for window in windows)
    return np.stack([np.frombuffer(blob, "<f4") for blob in blobs])
