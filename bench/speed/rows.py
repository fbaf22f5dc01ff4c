"""The vector layer alone: `python -m bench.speed.rows write|build|measure|share FOLDER ENTRIES`, in this order.

`write` writes the rows of entries, windows and vectors with SQL, because storing ten million entries with their words
takes an hour. Their texts are numbers, and there is no word index. `build` builds the vector index. `measure` opens
the store in a new process and asks in the mode `dense`, through the public API: recall, the time of a search, of a
change, of the start, and memory. `share` does so in two processes at once, and reports their memory together (PSS).
"""

from __future__ import annotations

import itertools
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agentformer.memory.backends.faiss.folder import DATABASE_FILE
from agentformer.records.codec import CHECKED, COLUMNS, to_row
from agentformer.records.integrity import checksums
from agentformer.types import MemoryEntry, new_id
from bench.speed import growth, prepared
from bench.speed.entries import BLOCK, Nearest, Rows, Source, source, user
from bench.speed.growth import ASKED, SCOPE
from bench.speed.timing import LIMIT, WARMING, Values, disk_mb, memory, report, since_start

_FIRST = 1_000_000_000_000  # number of the first vector's hash, which is not that of a text
# Indexes of the table `entries` that neither these searches nor these changes use; without them the store is a third
# smaller and written in half the time.
_OMITTED = tuple(f"entries_by_{name}" for name in ("id", "kind", "kind_and_tier", "tier", "tier_and_time", "time"))
_OMITTED += ("entries_by_user", "entries_by_user_and_time")


def main() -> None:
    phase, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    prepared.register()
    phases = {"write": write, "build": build, "measure": measure, "share": share}
    report(phases[phase](folder, count))


def write(folder: Path, count: int) -> Values:
    """Write the rows, and the nearest entries of the questions."""
    known = source()
    folder.mkdir(parents=True, exist_ok=True)
    with growth.opened(folder) as af:  # makes the schema and the embedding space
        prepared.SHELF["the first entry"] = known.asked[0]
        af.memory.remove(af.memory.store("the first entry").id)
    started = time.perf_counter()
    asked = known.asked[:ASKED]
    everything, scoped = Nearest(asked, LIMIT), Nearest(asked, LIMIT, SCOPE)
    for at, rows in _written(folder / "indexes" / DATABASE_FILE, known, count):
        everything.add(at, rows)
        scoped.add(at, rows)
    np.savez(folder / "truth.npz", all=everything.numbers, scope=scoped.numbers)
    return {"rows_s": time.perf_counter() - started, "processor_s": time.process_time(), **memory()}


def build(folder: Path, count: int) -> Values:
    """Build and tune the index. Returns the seconds of each step since the start."""
    known, told = source(), Values()
    prepared.SHELF[known.questions[0]] = known.asked[0]
    started = time.perf_counter()
    with growth.opened(folder) as af:
        af.memory.search(known.questions[0], mode="dense")
        told |= {"found_s": time.perf_counter() - started, "found_processor_s": time.process_time(), **memory()}
        af.backend.embed_pending()
        told |= {"tuned_s": time.perf_counter() - started, "tuned_processor_s": time.process_time()}
        told["index"] = growth.index_status(af)
    return {**told, "closed_s": time.perf_counter() - started, "end": memory()}


def _written(path: Path, known: Source, count: int) -> Iterator[tuple[int, Rows]]:
    """Write entries, windows and vectors in one transaction without a log; the file is new and can be made again. Yield
    the number of the first entry and the vectors of each block."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -200000", "foreign_keys = OFF"):
            connection.execute(f"PRAGMA {pragma}")
        for name in _OMITTED:
            connection.execute(f"DROP INDEX {name}")
        space = connection.execute("SELECT id FROM spaces WHERE active = 1").fetchone()[0]
        connection.execute("BEGIN")
        marks = ",".join("?" * (len(COLUMNS) + 1))
        for at in range(0, count, BLOCK):
            numbers = range(at, min(at + BLOCK, count))
            connection.executemany(
                f"INSERT INTO entries (num, {','.join(COLUMNS)}) VALUES ({marks})", _entries(numbers)
            )
            rows = known.block(at // BLOCK)[: len(numbers)]
            yield at, rows
            data = np.ascontiguousarray(rows, "<f4").data.cast("B")
            sums, size = checksums.of_vectors(data, len(numbers)), len(data) // len(numbers)
            blobs = (data[start : start + size] for start in range(0, len(data), size))
            hashes = ((_FIRST + n).to_bytes(32, "big") for n in numbers)
            ids = (_number(n) for n in numbers)
            connection.executemany(
                "INSERT INTO vectors (id, space, hash, data, checksum) VALUES (?, ?, ?, ?, ?)",
                zip(ids, itertools.repeat(space), hashes, blobs, sums, strict=False),
            )
            connection.executemany(
                "INSERT INTO windows (id, space, entry, span_start, span_end, vector, checksum) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                ((_number(n), *row, checksums.of_values(row)) for n in numbers for row in [_window(space, n)]),
            )
        last = _number(count - 1)
        connection.execute("DELETE FROM changes")
        connection.execute("INSERT INTO changes (seq, entry) VALUES (?, ?)", [last, last])
        connection.execute("INSERT OR REPLACE INTO points VALUES (?, randomblob(8))", [last])
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def _number(n: int) -> int:
    """Return the row number of entry `n`; a few lower ones were used to make the schema."""
    return n + 10


def _window(space: int, n: int) -> tuple[int, ...]:
    return (space, _number(n), 0, len(str(n)), _number(n))


def _entries(numbers: range) -> Iterator[tuple[Any, ...]]:
    from agentformer.memory.backends import with_times

    template = to_row(with_times(MemoryEntry(id=new_id(), content="")))
    for n in numbers:
        row = {**template, "id": new_id(), "content": str(n), "metadata": f'{{"n": {n}}}', "user_id": user(n)}
        row["checksum"] = checksums.of_values([row[name] for name in CHECKED])
        yield (_number(n), *(row[name] for name in COLUMNS))


def measure(folder: Path, count: int) -> Values:
    """Return all measurements of a store of this size."""
    known = source()
    prepared.SHELF.update(zip(known.questions, known.asked, strict=True))
    ready, own = since_start(), memory()["rss_mb"]
    with growth.opened(folder) as af, np.load(folder / "truth.npz") as truth:
        af.memory.search(known.questions[0], limit=LIMIT, mode="dense")
        start = since_start() - ready
        before, general, scoped = (known.questions[at : at + WARMING + ASKED] for at in growth.STARTS)
        early = growth.asked(af, before, mode="dense")
        growth.settle(af)
        told = {
            "entries": count,
            "start_s": start,
            "early": early,
            "dense": growth.asked(af, general, mode="dense"),
            "recall": growth.recall(af, known, truth["all"], {}),
            "scope": growth.asked(af, scoped, mode="dense", user_id=user(SCOPE)),
            "scope_recall": growth.recall(af, known, truth["scope"], {"user_id": user(SCOPE)}),
            "index": growth.index_status(af),
            "resident": memory(),
            **growth.changes(af, known, count, mode="dense"),
        }
    return {**told, **memory(), "before_mb": own, "disk_mb": disk_mb(folder / "indexes")}


def share(folder: Path, count: int) -> Values:
    """Return the memory of one process and of two."""
    return growth.share(folder, count, mode="dense")


if __name__ == "__main__":
    main()
