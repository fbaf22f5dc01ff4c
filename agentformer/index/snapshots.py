"""A FAISS index on disk: `rag_faiss_index.bin` with its description `rag_faiss_meta.json`.

A snapshot only saves time. It is written to a temporary file, synced and renamed, and believed only when
store, space, size and checksum agree; anything else is set aside and the index is built from the records.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np

from agentformer.records.files import write_atomically

INDEX_FILE = "rag_faiss_index.bin"
META_FILE = "rag_faiss_meta.json"
_ASIDE = ".damaged"


class Snapshot(NamedTuple):
    """An index with window ids, and the `seq` of the change feed that it has followed, with its token."""

    index: Any
    seq: int
    point: str


def save(folder: Path, index: Any, *, store_id: str, space: int, seq: int, point: str) -> None:
    """Write a snapshot of `index`; the description goes last, so a torn pair is noticed."""
    data = faiss.serialize_index(index).tobytes()
    meta = {
        "store": store_id,
        "space": space,
        "seq": seq,
        "point": point,
        "count": index.ntotal,
        "dimension": index.d,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    write_atomically(folder / INDEX_FILE, data)
    write_atomically(folder / META_FILE, json.dumps({**meta, "checksum": _checksum(meta)}, indent=1).encode())


def load(folder: Path, *, store_id: str, space: int, dimension: int) -> Snapshot | None:
    """The snapshot of this store and space, or None when there is none to be believed."""
    try:
        data = (folder / INDEX_FILE).read_bytes()
        meta = json.loads((folder / META_FILE).read_bytes())
        given = meta.pop("checksum")
        believed = given == _checksum(meta) and meta["sha256"] == hashlib.sha256(data).hexdigest()
        ours = (meta["store"], meta["space"], meta["dimension"]) == (store_id, space, dimension)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        believed = ours = False
    if not (believed and ours):
        _set_aside(folder)
        return None
    return Snapshot(faiss.deserialize_index(np.frombuffer(data, np.uint8)), int(meta["seq"]), str(meta["point"]))


def discard(folder: Path) -> None:
    """Delete the snapshot, and what was set aside."""
    for name in (META_FILE, INDEX_FILE):
        (folder / name).unlink(missing_ok=True)
        (folder / (name + _ASIDE)).unlink(missing_ok=True)


def _checksum(meta: dict[str, Any]) -> str:
    """Of the description itself: a flipped digit in `seq` would hide changes for ever."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _set_aside(folder: Path) -> None:
    for name in (INDEX_FILE, META_FILE):
        path = folder / name
        if path.exists():
            os.replace(path, path.with_name(name + _ASIDE))
