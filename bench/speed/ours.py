"""AgentFormer doing the work of the peers: `python -m bench.speed.ours PHASE WORK FOLDER VARIANT`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import agentformer
from bench.speed.driving import drive
from bench.speed.timing import LIMIT, Ask
from bench.speed.variants import VARIANTS, Variant


class Ours:
    """The public API, in a folder of its own."""

    def __init__(self, variant: Variant, folder: Path) -> None:
        self._af = agentformer.connect(
            index_dir=folder / "indexes", upload_dir=folder / "uploads", clean_every=0, **variant.settings()
        )

    def warm(self, text: str) -> None:
        self.encode([text])

    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        self._af.memory.store_many(passages)
        self._af.backend.embed_pending()  # nothing is pending; this call waits for both indexes
        self._af.close()  # writes the snapshot; the embedder stays

    def open(self, folder: Path) -> Ask:
        return lambda text: self._af.memory.search(text, limit=LIMIT)

    def encode(self, passages: Sequence[str]) -> object:
        return self._af.embedder.embed_documents(list(passages))

    def embed(self, text: str) -> object:
        return self._af.embedder.embed_query(text)


if __name__ == "__main__":
    at = Path(sys.argv[3])
    drive(lambda: Ours(VARIANTS[sys.argv[4]], at), sys.argv[1], Path(sys.argv[2]), at)
