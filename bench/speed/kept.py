"""What is kept between runs, and by what it is known."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from bench.data import DATA
from bench.speed.children import ROOT


def cache() -> Path:
    """Where stores and embeddings are kept between runs: `BENCH_CACHE`, or in the system's folder."""
    folder = Path(os.environ.get("BENCH_CACHE") or Path(tempfile.gettempdir()) / "agentformer-bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fingerprint(rooms: Iterable[str]) -> str:
    """Of the code in these rooms of the package, of the entries that are made here, and of the data."""
    digest = hashlib.blake2b(str(DATA).encode(), digest_size=6)
    folders = [ROOT / "agentformer" / room for room in sorted(rooms)]
    own = [ROOT / "bench" / "speed" / name for name in ("entries.py", "growth.py", "passages.py")]
    for path in [*own, *(path for folder in folders for path in sorted(folder.rglob("*.py")))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
