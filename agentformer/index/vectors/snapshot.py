"""A vector index on disk: `rag_faiss_index.bin` with its description `rag_faiss_meta.json`.

A snapshot only saves time. It is written to a temporary file, synced and renamed, and believed only when
store, space, size and checksum agree; anything else is set aside and the index is built from the records.

The index file is FAISS's own format, so FAISS's tools read it; behind it stand the arrays of window, entry and vector
numbers by position (and for a trained index the list of each). Nothing is ever held in memory twice.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.index.files import INDEX_FILE, META_FILE
from agentformer.index.vectors.index import Image
from agentformer.index.vectors.outliers import Codes
from agentformer.index.vectors.rows import Rows
from agentformer.records.files import (
    clear_unfinished,
    delete,
    file_bytes,
    opened_file,
    write_atomically,
    written_atomically,
)

_ASIDE = ".damaged"
_FORMAT = 2  # of the description; another one is of another version of this library, and replaced by the next snapshot
_HASH = "blake2b"  # 400 MB in .6 s, half of what sha256 takes where the processor has no instructions for it
_BLOCK = 1 << 20


class Snapshot(NamedTuple):
    """An index, and the `seq` of the change feed that it has followed, with its token."""

    image: Image
    seq: int
    point: str


def save(folder: Path, image: Image, *, store_id: str, space: int, seq: int, point: str) -> None:
    """Write a snapshot; the description goes last, so a torn pair is noticed. Raises `OSError`."""
    with written_atomically(folder / INDEX_FILE) as file:
        hashed = _Hashed(file)
        hashed.write_index(image.index)
        size = hashed.size
        for array in (image.rows.windows, image.rows.entries, image.rows.vectors):
            hashed.write(np.ascontiguousarray(array, "<i8").data)
        if image.lists is not None:
            hashed.write(np.ascontiguousarray(image.lists, "<i4").data)
        if image.apart is not None:
            hashed.write(np.ascontiguousarray(image.apart.positions, "<i8").data)
            hashed.write(image.apart.halves.reshape(-1).data)
        file.flush()
        os.fsync(file.fileno())
        delete(folder / META_FILE)  # a description without its file is no snapshot; another one's is taken for damage
    meta = {
        "format": _FORMAT,
        "store": store_id,
        "space": space,
        "seq": seq,
        "point": point,
        "count": image.rows.live,
        "dimension": int(image.index.d),
        "index_bytes": size,
        "slots": image.rows.size,
        "apart": len(image.apart.positions) if image.apart is not None else 0,
        _HASH: hashed.digest,
        "about": image.about,
    }
    write_atomically(folder / META_FILE, json.dumps({**meta, "checksum": _checksum(meta)}, indent=1).encode())


def load(folder: Path, *, store_id: str, space: int, dimension: int) -> Snapshot | None:
    """The snapshot of this store and space, or None when there is none to be believed."""
    try:
        with opened_file(folder / INDEX_FILE) as file:
            meta = json.loads(file_bytes(folder / META_FILE))
            given = meta.pop("checksum")
            believed = given == _checksum(meta)
            if believed and meta.get("format") != _FORMAT:
                return None
            ours = (meta["store"], meta["space"], meta["dimension"]) == (store_id, space, dimension)
            if believed and ours and meta[_HASH] == hashlib.file_digest(file, _HASH).hexdigest():
                return Snapshot(_read(file, meta), int(meta["seq"]), str(meta["point"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError):
        pass  # set aside like any other that is not believed
    _set_aside(folder)
    return None


def described_pair(folder: Path) -> tuple[dict[str, Any], Image | None] | None:
    """The description and the index of the two files, without an index where they are of another version; None where
    there is none. Raises `ValueError` and other errors of what cannot be read. Nothing is set aside."""
    try:
        with opened_file(folder / INDEX_FILE) as file:
            meta = json.loads(file_bytes(folder / META_FILE))
            if meta.pop("checksum") != _checksum(meta):
                raise ValueError("its description is not what was written")
            if meta.get("format") != _FORMAT:
                return meta, None
            if meta[_HASH] != hashlib.file_digest(file, _HASH).hexdigest():
                raise ValueError("its file is not what its description says")
            return meta, _read(file, meta)
    except FileNotFoundError:
        return None


def discard(folder: Path) -> None:
    """Delete the snapshot, what was set aside, and what killed writers left of one. Raises `OSError`."""
    for name in (META_FILE, INDEX_FILE):
        delete(folder / name)
        delete(folder / (name + _ASIDE))
        clear_unfinished(folder / name)


class _Hashed:
    """Writes to a file and keeps the checksum of what it wrote."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.new(_HASH)
        self._error: OSError | None = None
        self.size = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._file.write(data)
        self.size += len(data)

    def write_index(self, index: Any) -> None:
        faiss: Any = importlib.import_module("faiss")
        try:
            faiss.write_index(index, faiss.PyCallbackIOWriter(self._piece, _BLOCK))
        except Exception:
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error

    def _piece(self, data: bytes) -> None:
        try:
            self.write(data)
        except OSError as error:  # FAISS would make a RuntimeError of it
            self._error = self._error or error
            raise


def _read(file: BinaryIO, meta: dict[str, Any]) -> Image:
    """The index of a file whose checksum is right."""
    faiss: Any = importlib.import_module("faiss")  # its stubs lack the callbacks
    file.seek(0)
    index: Any = faiss.read_index(faiss.PyCallbackIOReader(file.read, _BLOCK))
    file.seek(meta["index_bytes"])
    slots, about = int(meta["slots"]), dict(meta["about"])
    windows, entries, vectors = (_array(file, "<i8", slots) for _ in range(3))
    lists = _array(file, "<i4", slots) if about["stage"] != "exact" else None
    positions = _array(file, "<i8", int(meta.get("apart", 0)))
    halves = _array(file, "u1", len(positions) * 2 * int(index.d)).reshape(len(positions), 2 * int(index.d))
    return Image(index, Rows(windows, entries, vectors), lists, about, Codes(positions, halves))


def _array(file: BinaryIO, kind: str, size: int) -> NDArray[Any]:
    data = file.read(size * np.dtype(kind).itemsize)
    array: NDArray[Any] = np.frombuffer(data, kind, size).copy()
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _checksum(meta: dict[str, Any]) -> str:
    """Of the description itself: a flipped digit in `seq` would hide changes for ever."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _set_aside(folder: Path) -> None:
    for name in (INDEX_FILE, META_FILE):
        path = folder / name
        if os.path.lexists(path):
            aside = path.with_name(name + _ASIDE)
            delete(aside)  # nothing takes the place of a folder, or of a file if it is one
            os.replace(path, aside)
