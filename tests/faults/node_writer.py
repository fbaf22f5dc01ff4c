"""A node that stores entries and embeds what any node has stored, until it is killed.

Arguments: the address of the database, a file for acknowledged ids, a file for embedded texts, the seconds of a lease.
It repeats a call after an error of the server with the same ids, as a client does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, EmbedderUnavailable, StoreError
from agentformer.memory.distributed import DistributedMemory
from agentformer.testing import make_entry
from agentformer.types import Matrix

BATCH = 5  # entries of one call
LETTERS = str.maketrans("0123456789abcdef", "bcdfghjklmnpqrst")  # words of one part: digits would divide them
PAUSE = 0.05  # seconds between two calls, so that the machine is not busy with writing alone


class QueuedEmbedder(HashingEmbedder):
    """Is unavailable for the thread that stores, so that every entry waits in the queue. Records embedded texts."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        if threading.current_thread() is threading.main_thread():
            raise EmbedderUnavailable("the queue embeds later")
        os.write(self._log, "".join(f"{text}\n" for text in texts if text.startswith("token ")).encode())
        time.sleep(0.01 * len(texts))  # as a model would
        return super().embed_documents(texts)


def open_memory(url: str, embedder: HashingEmbedder, lease: float) -> DistributedMemory:
    """Open the memory, also while the server restarts."""
    while True:
        try:
            return DistributedMemory(url, embedder, lease_seconds=lease)
        except StoreError:
            time.sleep(0.1)


def embed(memory: DistributedMemory) -> None:
    while True:
        try:
            memory.embed_pending(refused=False)
        except StoreError as error:
            print(f"embedding: {error}", file=sys.stderr)
        time.sleep(0.1)


def store(memory: DistributedMemory, acknowledged: int) -> None:
    """Store a batch, and record its ids when it is acknowledged."""
    entries = [make_entry(f"token {uuid.uuid4().hex.translate(LETTERS)} in the reed") for _ in range(BATCH)]
    while True:
        try:
            memory.store(entries)
            break
        except Conflict:  # an earlier attempt was committed although its answer was lost
            break
        except StoreError:
            time.sleep(0.1)
    lines = "".join(f"{entry.id} {entry.content}\n" for entry in entries)
    os.write(acknowledged, lines.encode())


def main() -> None:
    url, acknowledged, embedded, lease = sys.argv[1:]
    memory = open_memory(url, QueuedEmbedder(Path(embedded)), float(lease))
    while True:
        try:
            memory.join("writer")
            break
        except StoreError:
            time.sleep(0.1)
    threading.Thread(target=embed, args=(memory,), daemon=True).start()
    out = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        store(memory, out)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
