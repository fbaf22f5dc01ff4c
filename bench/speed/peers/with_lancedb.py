"""LanceDB in this process, on disk, with sentence-transformers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import lancedb

from bench.speed.driving import drive
from bench.speed.peers.encoder import Encoder
from bench.speed.timing import LIMIT, Ask

_NAME = "passages"


class LanceDB(Encoder):
    def ingest(self, folder: Path, passages: Sequence[str]) -> None:
        rows = zip(self.encode(passages), passages, strict=True)
        lancedb.connect(folder).create_table(_NAME, data=[{"vector": row, "text": text} for row, text in rows])

    def open(self, folder: Path) -> Ask:
        table = lancedb.connect(folder).open_table(_NAME)
        return lambda text: table.search(self.embed(text)).limit(LIMIT).to_list()


if __name__ == "__main__":
    drive(lambda: LanceDB(sys.argv[4]), sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
