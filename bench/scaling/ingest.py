"""Entries per second that several processes store in one database, and what their transactions wait for."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import agentformer
from agentformer.factory import AgentFormer
from agentformer.memory.backends.postgres.database import drop_schema
from agentformer.memory.backends.postgres.server import open_connection
from agentformer.records.codec import now
from agentformer.types import MemoryEntry, Query, new_id
from bench.speed.passages import sentences

_SCHEMA = "bench_ingest"
_BATCH = 50  # entries of one call
_PAUSE = 0.02  # seconds between two looks at the server
_WAITS = """
    SELECT CASE WHEN wait_event_type IS NULL THEN 'computing' WHEN wait_event = 'advisory' THEN 'another writer'
        WHEN wait_event_type = 'Client' THEN 'its process' ELSE wait_event_type || ' ' || wait_event END
    FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
        AND (state <> 'idle' OR wait_event_type <> 'Client')
"""


def measure_ingest(url: str, workers: list[int], count: int, embedder: str) -> None:
    """Let 1, 2 ... processes store `count` entries together, and print the rates."""
    print(f"{count} entries in calls of {_BATCH}, embedder {embedder}\n")
    print("| processes | entries/s | transactions compute / wait for another writer / for their process / other |")
    print("|---|---|---|")
    for number in workers:
        rate, waits = _measure(url, number, count, embedder)
        total = sum(waits.values()) or 1
        shares = [waits.pop(name, 0) / total for name in ("computing", "another writer", "its process")]
        other = ", ".join(f"{name} {seen / total:.0%}" for name, seen in waits.most_common(3)) or "-"
        print(f"| {number} | {rate:,.0f} | {' / '.join(f'{share:.0%}' for share in shares)} / {other} |", flush=True)


def _measure(url: str, number: int, count: int, embedder: str) -> tuple[float, Counter[str]]:
    drop_schema(url, _SCHEMA)
    with tempfile.TemporaryDirectory() as folder:
        _connect(url, folder, embedder).close()
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.scaling.ingest", url, folder, str(at), str(count // number), embedder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for at in range(number)
        ]
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        started = time.perf_counter()
        for process in running:
            assert process.stdin is not None
            process.stdin.close()
        waits: Counter[str] = Counter()
        with open_connection(url) as raw:
            while any(process.poll() is None for process in running):
                waits.update(row[0] for row in raw.execute(_WAITS.encode()))
                time.sleep(_PAUSE)
        took = time.perf_counter() - started
        for process in running:
            assert process.returncode == 0
    drop_schema(url, _SCHEMA)
    return count / took, waits


def _connect(url: str, folder: str, embedder: str) -> AgentFormer:
    return agentformer.connect(
        index_dir=Path(folder) / "i",
        upload_dir=Path(folder) / "u",
        backend="postgres",
        postgres_url=url,
        postgres_schema=_SCHEMA,
        embedder=embedder,
        embed_retry_seconds=0,
        clean_every=0,
    )


def _store(url: str, folder: str, at: int, count: int, embedder: str) -> None:
    """Store the sentences of one process when its standard input ends."""
    texts = [f"{text} ({at})" for text in sentences()[at * count : (at + 1) * count]]
    assert len(texts) == count, "the sets have too few sentences"
    with _connect(url, folder, embedder) as memory:
        memory.backend.store([MemoryEntry(new_id(), f"warm {at}", tier="semantic", created_at=now())])
        memory.backend.search(Query("warm"))
        print("ready", flush=True)
        sys.stdin.read()
        for start in range(0, count, _BATCH):
            part = texts[start : start + _BATCH]
            memory.backend.store([MemoryEntry(new_id(), text, tier="semantic", created_at=now()) for text in part])


if __name__ == "__main__":
    _store(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
