"""Moving a store to another embedding space while it keeps answering from the one it has.

Every vector is committed as soon as its batch is there, so a move that was interrupted anywhere goes on from there.
Writers of all processes list what they change (`records.spaces`), and the switch happens in the transaction that finds
nothing left to do.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from agentformer.errors import Conflict, EmbedderError, StoreFull
from agentformer.index.embedding.active import embedder_for
from agentformer.index.embedding.queue import put_complete
from agentformer.index.embedding.windows import Refused, Vectorizer
from agentformer.records import entries as records
from agentformer.records import spaces
from agentformer.records import vectors as store
from agentformer.records.database import Database
from agentformer.records.vectors import Rows, Window
from agentformer.types import Embedder, EmbeddingSpace, MemoryEntry, Reembedding, Vector

LOCK_FILE = "reembed.lock"
_ENTRIES = 64  # looked at together: what a person waiting sees as one step, and an interruption may cost

Progress = Callable[[int, int], None]  # entries done in this run, entries known to be left or done


@dataclass(slots=True)
class _Counts:
    entries: int = 0
    embedded: int = 0
    reused: int = 0


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else moves the store meanwhile. Raises `Conflict` when somebody does."""
    try:
        held = FileLock(folder / LOCK_FILE, timeout=0).acquire()
    except Timeout:
        raise Conflict("this store is being re-embedded by a process; wait for it, or end it") from None
    except OSError as error:
        raise StoreFull(f"{folder} cannot be written ({error.strerror}); free space or check permissions") from error
    with held:
        yield


class SpaceMigration:
    """One run of `reembed`. Raises `Conflict` while another process is at it, `EmbedderUnavailable` when the new
    embedder cannot go on: the same call goes on later."""

    def __init__(
        self, folder: Path, database: Database, former: Embedder, target: Embedder, *, window_tokens: int = 0
    ) -> None:
        self._window_tokens = window_tokens
        self._folder = folder
        self._database = database
        self._former = former
        self._target = target
        self._counts = _Counts()

    def run(self, queries: Sequence[str] = (), progress: Progress | None = None) -> Reembedding:
        started = time.monotonic()
        space = self._target.space
        with self._database.reading() as connection:
            active, under_way = spaces.active_space(connection), spaces.building_space(connection)
        former = active[1] if active else None
        if former and not former.difference(space):
            if under_way:
                raise Conflict(
                    f"this store is in the space of {space.spec} still, and a move to {under_way[1].spec} was begun; "
                    "give that up: agentformer reembed --abandon"
                )
            return Reembedding(former, space, switched=False)
        with alone(self._folder):
            result = self._run(former, space, queries, progress)
        return replace(result, seconds=round(time.monotonic() - started, 3))

    def _run(
        self, former: EmbeddingSpace | None, space: EmbeddingSpace, queries: Sequence[str], progress: Progress | None
    ) -> Reembedding:
        with self._database.writing() as connection:
            number = spaces.begin_move(connection, space)
            spaces.retry_refused(connection)
        overlap: tuple[float | None, int] | None = None
        while True:
            self._fill(number, progress)
            if overlap is None:
                overlap = self._agreement(former, number, queries)
            with self._database.writing() as connection:
                failed = spaces.missing_count(connection)
                if spaces.switch(connection, number):
                    break
        return Reembedding(
            former,
            space,
            switched=True,
            entries=self._counts.entries,
            embedded=self._counts.embedded,
            reused=self._counts.reused,
            failed=failed,
            overlap=overlap[0],
            sample=overlap[1],
        )

    def _fill(self, number: int, progress: Progress | None) -> None:
        """Embed what the space lacks, until nothing is left that was not tried for."""
        while True:
            with self._database.reading() as connection:
                spaces.check_building(connection, number)
                nums = spaces.missing_entries(connection, _ENTRIES)
                left = spaces.missing_count(connection)
                found = records.by_num(connection, nums)
            if not nums:
                return
            self._group(number, found)
            if progress:
                progress(self._counts.entries, self._counts.entries + max(0, left - len(found)))

    def _group(self, number: int, found: dict[int, MemoryEntry]) -> None:
        vectorizer = Vectorizer(
            self._target,
            partial(self._known, number),
            partial(self._keep, number),
            window_tokens=self._window_tokens,
        )
        try:
            windows = vectorizer(list(found.values()))
        finally:
            self._counts.embedded += vectorizer.embedded
            self._counts.reused += vectorizer.reused
        with self._database.writing() as connection:
            spaces.check_building(connection, number)
            store.put_vectors(connection, number, *vectorizer.rows)
            present = records.by_num(connection, list(found))
            cuts: list[tuple[int, Sequence[Window]]] = []
            for num, cut in zip(found, windows, strict=True):
                if isinstance(cut, Refused):
                    spaces.mark_refused(connection, num, cut.reason)
                elif present.get(num) == found[num]:
                    cuts.append((num, cut))
            done, _ = put_complete(connection, number, cuts)
            spaces.mark_moved(connection, done)
        self._counts.entries += len(done)

    def _known(self, number: int, texts: Sequence[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            return store.stored_hashes(connection, number, texts)

    def _keep(self, number: int, rows: Rows) -> None:
        with self._database.writing() as connection:
            spaces.check_building(connection, number)
            store.put_vectors(connection, number, *rows)

    def _agreement(
        self, former: EmbeddingSpace | None, number: int, queries: Sequence[str]
    ) -> tuple[float | None, int]:
        """How far both spaces find the same: for the queries given, else for entries of the store itself."""
        with self._database.reading() as connection:
            active = spaces.active_space(connection)
        if active is None or former is None:
            return None, 0
        if not queries:
            with self._database.reading() as connection:
                return sample_agreement(connection, active[0], number)
        try:
            old = [embedder_for(self._former, former).embed_query(query) for query in queries]
        except EmbedderError:  # the former model may be gone, which may be why the store is moved
            return None, 0
        new = [self._target.embed_query(query) for query in queries]
        with self._database.reading() as connection:
            return agreement(connection, (active[0], old), (number, new)), len(queries)


_NEAREST = 10
_SAMPLE = 200  # entries; their mean overlap is then known to a few hundredths
_ROWS = 4_096  # windows read at a time

# Every entry's first window of both spaces, which begins with the same text in both.
_BOTH = """
    SELECT a.entry, a.id AS one, b.id AS other FROM
        (SELECT entry, min(id) AS id FROM windows WHERE space = :one GROUP BY entry) AS a
        JOIN (SELECT entry, min(id) AS id FROM windows WHERE space = :other GROUP BY entry) AS b USING (entry)
    ORDER BY a.entry
"""


def agreement(
    connection: sqlite3.Connection, one: tuple[int, Sequence[Vector]], other: tuple[int, Sequence[Vector]]
) -> float:
    """The mean share of the nearest ten entries that two spaces have in common, 0..1, over queries embedded in both.

    Each side is a space's number and its query vectors, in the same order.
    """
    near, far = (_nearest(connection, space, np.stack(list(queries)), []) for space, queries in (one, other))
    return _overlap(near, far)


def sample_agreement(connection: sqlite3.Connection, one: int, other: int) -> tuple[float | None, int]:
    """`agreement` for entries of the store: each is a query, by the vector of its beginning, and is not its own find.
    Returns None where there is nothing to compare, and how many entries were taken."""
    pairs = connection.execute(_BOTH, {"one": one, "other": other}).fetchall()
    if len(pairs) < 2:
        return None, 0
    step = max(1, len(pairs) // _SAMPLE)
    chosen = pairs[::step][:_SAMPLE]
    entries = [row["entry"] for row in chosen]
    near = _nearest(connection, one, _vectors(connection, [row["one"] for row in chosen]), entries)
    far = _nearest(connection, other, _vectors(connection, [row["other"] for row in chosen]), entries)
    return _overlap(near, far), len(chosen)


def _overlap(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> float:
    shares = [len(set(a) & set(b)) / max(len(a), len(b)) for a, b in zip(one, other, strict=True) if a or b]
    return float(np.mean(shares)) if shares else 1.0


def _nearest(
    connection: sqlite3.Connection, space: int, queries: np.ndarray, excluded: Sequence[int]
) -> list[list[int]]:
    """The nearest entries of each query, by their best window, without the entry at its place in `excluded`. Reads the
    vectors in pieces, so that a large store need not fit into memory twice."""
    best: list[dict[int, float]] = [{} for _ in queries]
    rows = connection.execute(
        "SELECT w.entry, v.data FROM windows AS w JOIN vectors AS v ON v.id = w.vector WHERE w.space = ?", [space]
    )
    while group := rows.fetchmany(_ROWS):
        matrix = np.frombuffer(b"".join(row[1] for row in group), "<f4").reshape(len(group), -1)
        scores = queries @ matrix.T
        wanted = min(scores.shape[1], 4 * _NEAREST)  # several windows may be of one entry
        top = np.argpartition(-scores, wanted - 1, axis=1)[:, :wanted]
        for i, columns in enumerate(top):
            for column in columns:
                entry = group[column][0]
                if not excluded or entry != excluded[i]:
                    best[i][entry] = max(best[i].get(entry, -2.0), float(scores[i, column]))
            best[i] = dict(sorted(best[i].items(), key=lambda item: (-item[1], item[0]))[:_NEAREST])
    return [list(found) for found in best]


def _vectors(connection: sqlite3.Connection, windows: Sequence[int]) -> np.ndarray:
    query = "SELECT v.data FROM windows AS w JOIN vectors AS v ON v.id = w.vector WHERE w.id = ?"
    return np.stack([np.frombuffer(connection.execute(query, [window]).fetchone()[0], "<f4") for window in windows])
