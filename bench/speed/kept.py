"""The cache between runs and its keys."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from bench.data import DATA
from bench.speed.children import ROOT


def cache() -> Path:
    """Return the folder for stores and embeddings between runs: `BENCH_CACHE`, or one in the system's temporary
    folder."""
    folder = Path(os.environ.get("BENCH_CACHE") or Path(tempfile.gettempdir()) / "agentformer-bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fingerprint(folders: Iterable[str]) -> str:
    """Return a hash of the code in these folders of the package, of the generated entries, and of the data."""
    digest = hashlib.blake2b(str(DATA).encode(), digest_size=6)
    paths = [ROOT / "agentformer" / folder for folder in sorted(folders)]
    own = [ROOT / "bench" / "speed" / name for name in ("entries.py", "growth.py", "passages.py")]
    for path in [*own, *(path for folder in paths for path in sorted(folder.rglob("*.py")))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
