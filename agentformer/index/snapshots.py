"""A FAISS index on disk: `rag_faiss_index.bin` with its description `rag_faiss_meta.json`.

A snapshot only saves time. It is written to a temporary file, synced and renamed, and believed only when
store, space, size and checksum agree; anything else is set aside and the index is built from the records.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np

INDEX_FILE = "rag_faiss_index.bin"
META_FILE = "rag_faiss_meta.json"


class Snapshot(NamedTuple):
    """An index with window ids, and the `seq` of the change feed that it has followed."""

    index: Any
    seq: int


def save(folder: Path, index: Any, *, store_id: str, space: int, seq: int) -> None:
    """Write a snapshot of `index`; the description goes last, so a torn pair is noticed."""
    data = faiss.serialize_index(index).tobytes()
    meta = {
        "store": store_id,
        "space": space,
        "seq": seq,
        "count": index.ntotal,
        "dimension": index.d,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    write_atomically(folder / INDEX_FILE, data)
    write_atomically(folder / META_FILE, json.dumps(meta, indent=1).encode())


def load(folder: Path, *, store_id: str, space: int, dimension: int) -> Snapshot | None:
    """The snapshot of this store and space, or None when there is none to be believed."""
    try:
        meta = json.loads((folder / META_FILE).read_text())
        data = (folder / INDEX_FILE).read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        _set_aside(folder)
        return None
    expected = {
        "store": store_id,
        "space": space,
        "dimension": dimension,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    if not isinstance(meta, dict) or any(meta.get(key) != value for key, value in expected.items()):
        _set_aside(folder)
        return None
    index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    return Snapshot(index, int(meta["seq"]))


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: after a crash there is the old file or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink()
        raise


def _set_aside(folder: Path) -> None:
    for name in (INDEX_FILE, META_FILE):
        path = folder / name
        if path.exists():
            os.replace(path, path.with_name(name + ".damaged"))
