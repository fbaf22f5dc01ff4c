"""Does the snapshot of the vector index hold what the records held at the change that it names?"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentformer.index.files import INDEX_FILE, META_FILE
from agentformer.index.vectors import snapshot as snapshots
from agentformer.index.vectors.index import Image
from agentformer.index.vectors.rows import IntArray
from agentformer.records import entries as records
from agentformer.records.integrity.findings import Findings
from agentformer.records.spaces import active_space
from agentformer.types import Matrix

_GROUP = 4_096  # rows compared at a time
_VARIABLES = 500  # numbers per statement
_ALIKE = 0.99  # cosine of a vector and its code: 8 bits a dimension stay well above it
_TRIES = 3  # where somebody replaces the files while they are read


class OpenedSnapshot(NamedTuple):
    """What the files said when they were opened."""

    image: Image
    space: int
    dimension: int
    seq: int
    point: str


def begin() -> Findings:
    return Findings("snapshot", "the saved vector index holds the vectors of all entries", "it is made anew")


def opened_snapshot(folder: Path, store_id: str, found: Findings) -> OpenedSnapshot | None:
    """The snapshot, where there is one to be compared; else what is wrong with it is in `found`."""
    for tries in range(1, _TRIES + 1):
        before = _states(folder)
        try:
            pair = snapshots.described_pair(folder)
            break
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            if _states(folder) != before and tries < _TRIES:
                continue  # another process has written a new one meanwhile
            found.add(f"the saved vector index is damaged: {' '.join(str(error).split())[:200]}")
            return None
    if pair is None:
        return None
    meta, image = pair
    if meta.get("store") != store_id:
        found.add("the saved vector index is of another store")
        return None
    if image is None:
        found.note("the saved vector index is of another version: it is made anew by the next search")
        return None
    return OpenedSnapshot(image, int(meta["space"]), int(meta["dimension"]), int(meta["seq"]), str(meta["point"]))


def compare_snapshot(
    connection: sqlite3.Connection,
    saved: OpenedSnapshot,
    found: Findings,
    damaged: Collection[int],
    vectors: Collection[int],
) -> None:
    """Hold what was opened against the records, but for what is damaged there: entries (`damaged`), and `vectors`. The
    transaction began after it was opened; what has changed since it was written is caught up by whoever loads it."""
    active = active_space(connection)
    if active is None or active[0] != saved.space or records.point(connection, saved.seq) != saved.point:
        found.note("the saved vector index is of a former state of the records: it is made anew by the next search")
        return
    if active[1].dimension != saved.dimension or int(saved.image.index.d) != saved.dimension:
        found.add(f"the saved vector index has {saved.dimension} dimensions, and its space {active[1].dimension}")
        return
    later = np.array([*records.changed_since(connection, saved.seq), *damaged], np.int64)
    rows = saved.image.rows
    live = np.flatnonzero((rows.entries >= 0) & ~np.isin(rows.entries, later))
    found.looked_at = len(live)
    held = np.stack([rows.windows[live], rows.entries[live], rows.vectors[live]], axis=1)
    wanted = _windows(connection, saved.space, later)
    held, wanted = held[np.argsort(held[:, 0], kind="stable")], wanted[np.argsort(wanted[:, 0], kind="stable")]
    if not np.array_equal(held, wanted):
        same = len(np.intersect1d(held[:, 0], wanted[:, 0]))
        found.add(
            f"the saved vector index holds {len(held)} windows and the records {len(wanted)}, of which {same} are in "
            "both, and not all with the same entries and vectors"
        )
        return
    known = np.zeros(rows.size, np.bool_)
    known[live] = ~np.isin(rows.vectors[live], np.array([*vectors], np.int64))
    for positions, decoded in _decoded(saved.image, known):
        if wrong := _unlike(connection, rows.vectors[positions], decoded, saved.dimension):
            found.add(f"the saved vector index holds {wrong} vectors that are not those of the records")
            return


def _windows(connection: sqlite3.Connection, space: int, later: IntArray) -> IntArray:
    """Window, entry and vector of the windows of a space, without those of entries that changed later."""
    cursor = connection.execute("SELECT id, entry, vector FROM windows WHERE space = ?", [space])
    parts = [np.zeros((0, 3), np.int64)]
    while group := cursor.fetchmany(_GROUP):
        parts.append(np.array([tuple(row) for row in group], np.int64))
    found = np.concatenate(parts)
    return found[~np.isin(found[:, 1], later)]


def _unlike(connection: sqlite3.Connection, vectors: IntArray, decoded: Matrix, dimension: int) -> int:
    """How many of these rows are not the stored vectors of these numbers. Stored ones that are damaged are told by the
    check of the vectors."""
    order = np.argsort(vectors, kind="stable")
    ids, rows = _stored(connection, np.unique(vectors), dimension)
    places = np.searchsorted(ids, vectors[order])
    there = (places < len(ids)) & (
        ids[np.minimum(places, max(0, len(ids) - 1))] == vectors[order] if len(ids) else False
    )
    ours, theirs = rows[places[there]], decoded[order][there]
    lengths = np.maximum(np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1), 1e-12)
    return int(np.count_nonzero(np.einsum("ij,ij->i", ours, theirs) < _ALIKE * lengths))


def _stored(connection: sqlite3.Connection, ids: IntArray, dimension: int) -> tuple[IntArray, Matrix]:
    """Those of these vectors that are whole."""
    found, blobs = [], []
    for start in range(0, len(ids), _VARIABLES):
        group = ids[start : start + _VARIABLES].tolist()
        marks = ",".join("?" * len(group))
        for number, data in connection.execute(
            f"SELECT id, data FROM vectors WHERE id IN ({marks}) ORDER BY id", group
        ):
            if len(data) == 4 * dimension:
                found.append(number)
                blobs.append(data)
    rows = np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dimension)
    return np.array(found, np.int64), rows


def _decoded(image: Image, known: Any) -> Iterator[tuple[IntArray, Matrix]]:
    """The rows of the index at `known` positions as far as its codes tell them, a group at a time."""
    if image.lists is None:
        positions = np.flatnonzero(known)
        for start in range(0, len(positions), _GROUP):
            group = positions[start : start + _GROUP]
            yield group, image.index.reconstruct_batch(group)
        return
    apart = image.apart.positions if image.apart is not None else np.zeros(0, np.int64)
    if image.apart is not None and len(apart):
        kept = known[apart]
        yield apart[kept], image.apart.halves[kept].view("<f2").astype(np.float32)
    inside = known.copy()
    inside[apart] = False
    for number in range(int(image.index.nlist)):
        positions, rows = _of_list(image.index, number)
        kept = inside[positions]
        if kept.any():
            yield positions[kept], rows[kept]


def _of_list(index: Any, number: int) -> tuple[IntArray, Matrix]:
    """The positions of a list and their rows."""
    import faiss

    held = index.invlists
    size, width = int(held.list_size(number)), int(index.code_size)
    if not size:
        return np.zeros(0, np.int64), np.zeros((0, int(index.d)), np.float32)
    codes = faiss.rev_swig_ptr(held.get_codes(number), size * width).reshape(size, width)
    return faiss.rev_swig_ptr(held.get_ids(number), size).copy(), index.sq.decode(codes)


def _states(folder: Path) -> list[tuple[int, int, int] | None]:
    """What tells one state of the files from another."""
    found: list[tuple[int, int, int] | None] = []
    for name in (INDEX_FILE, META_FILE):
        try:
            state = (folder / name).stat()
        except OSError:
            found.append(None)
        else:
            found.append((state.st_ino, state.st_mtime_ns, state.st_size))
    return found
