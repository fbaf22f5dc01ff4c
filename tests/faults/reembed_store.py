"""Processes of the re-embedding tests: `move`, which is killed, and `ask`, which must never notice.

python reembed_store.py move INDEX_DIR SPEC LOG PAUSE
python reembed_store.py ask INDEX_DIR QUERIES STOP TARGET
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentformer.factory import AgentFormer, named_embedder
from agentformer.settings import Settings
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Query, Scope, Span, Vector

NOTES = "notes"  # the namespace that is written to meanwhile


class Logged:
    """Another embedder; the log has a line for each text whose vector it gave out, on the disk before it is given."""

    def __init__(self, inner: Embedder, log: Path, pause: float) -> None:
        self._inner = inner
        self._log = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._pause = pause

    @property
    def space(self) -> EmbeddingSpace:
        return self._inner.space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        time.sleep(self._pause)
        rows = self._inner.embed_documents(texts)
        os.write(self._log, b"".join(hashlib.sha256(text.encode()).hexdigest().encode() + b"\n" for text in texts))
        return rows

    def embed_query(self, text: str) -> Vector:
        return self._inner.embed_query(text)

    def token_spans(self, text: str) -> list[Span]:
        return self._inner.token_spans(text)


def opened(index_dir: str) -> AgentFormer:
    folder = Path(index_dir)
    return AgentFormer(Settings(index_dir=folder, upload_dir=folder.parent / "uploads", embed_retry_seconds=0))


def move(index_dir: str, spec: str, log: str, pause: str) -> None:
    with opened(index_dir) as memory:
        target = Logged(named_embedder(spec, memory.settings), Path(log), float(pause))
        moved = memory.backend.reembed(target)
    print(json.dumps({"switched": moved.switched, "embedded": moved.embedded, "overlap": moved.overlap}))


def ask(index_dir: str, queries: str, stop: str, target: str) -> None:
    """Ask again and again, storing a note now and then, until the file `stop` is there and all were answered in the
    target space; then tell every distinct answer of each question, and what failed. An answer is the ids with their
    cosines. The first line says that all were asked once."""
    asked = json.loads(Path(queries).read_text())
    answers: dict[str, set[str]] = {text: set() for text in asked}
    failed: list[str] = []
    notes = count = 0
    slowest = 0.0
    with opened(index_dir) as memory:
        last = ""
        while last != target or not Path(stop).exists():
            last = memory.embedder.space.spec
            for text in asked:
                started = time.monotonic()
                try:
                    hits = memory.backend.search(Query(text, Scope(), limit=10, mode="dense"))
                    found = [(hit.entry.id, round(hit.dense_score or 0.0, 4)) for hit in hits]
                    answers[text].add(json.dumps([found, list(hits.warnings)]))
                    memory.memory.search(text)
                except Exception as error:  # every kind counts
                    failed.append(repr(error))
                count += 1
                slowest = max(slowest, time.monotonic() - started)
            memory.memory.store(f"note {notes} of the day", namespace=NOTES)
            notes += 1
            if notes == 1:
                print("asked", flush=True)
    told = {text: sorted(found) for text, found in answers.items()}
    counts = {"notes": notes, "count": count, "slowest": slowest}
    print(json.dumps({"answers": told, "failed": failed, "space": last, **counts}))


if __name__ == "__main__":
    {"move": move, "ask": ask}[sys.argv[1]](*sys.argv[2:])
