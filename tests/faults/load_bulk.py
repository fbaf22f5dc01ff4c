"""What `test_kill_bulk.py` runs in processes of their own: `load_bulk.py FOLDER LOG` stores batches and logs each
acknowledged one, until killed; `load_bulk.py FOLDER` searches by words, so that the word index is written meanwhile."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

from agentformer.factory import AgentFormer, connect

BATCH = 400
_PAUSE = 0.1


def opened(folder: Path) -> AgentFormer:
    return connect(index_dir=folder, upload_dir=folder / "uploads", embedder="hashing")


def name_of(number: int) -> str:
    """Return a word that only the entries of this batch contain, also after its ending is taken off."""
    return "lot" + "".join("bdfgklmnpr"[int(digit)] for digit in str(number)) + "ax"


def load(af: AgentFormer, log: Path) -> None:
    acknowledged = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in itertools.count():
        af.memory.store_many(
            {"content": f"{name_of(number)} item {n} of a numbat", "user_id": f"u{n % 3}"} for n in range(BATCH)
        )
        os.write(acknowledged, f"{number}\n".encode())


def main() -> None:
    with opened(Path(sys.argv[1])) as af:
        print("ready", flush=True)
        if len(sys.argv) > 2:
            load(af, Path(sys.argv[2]))
        while True:
            af.memory.search("numbat", mode="lexical", limit=1)
            time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
