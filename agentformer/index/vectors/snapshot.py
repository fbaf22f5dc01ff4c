"""Snapshot files of the vector index: `rag_faiss_index.bin` with the index, and `rag_faiss_meta.json` with its
description.

A snapshot makes the next start faster. It contains no data that is not also in the records. It is valid if its store,
embedding space, dimension and checksum are the expected ones. The files of an invalid snapshot are renamed, and the
index is built from the records.

The index file begins with an index in the format of FAISS, so that other tools for FAISS can read it. Arrays follow:
the window, entry and vector number of each row, and for a trained index the list of each row and the outliers.
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
from agentformer.index.vectors.flat import Rows
from agentformer.index.vectors.index import Image
from agentformer.index.vectors.ivf import OutlierCodes
from agentformer.records.files import (
    atomic_writer,
    delete,
    open_regular_file,
    read_file,
    remove_stale_temporaries,
    write_atomically,
)

_ASIDE = ".damaged"
_FORMAT = 2  # of the description; a snapshot of another format is replaced by the next one
_HASH = "blake2b"  # 400 MB in .6 s, half of sha256's time on processors without instructions for it
_BLOCK = 1 << 20
READ_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)  # from damaged files


class Snapshot(NamedTuple):
    """An index that was read from a snapshot. `seq` is the number of the last change of the records that the index
    contains. `point` is the token of this change; it shows whether the records still have the same history."""

    image: Image
    seq: int
    point: str


def save(folder: Path, image: Image, *, store_id: str, space: int, seq: int, point: str) -> None:
    """Write a snapshot. The description is written last, so that an interrupted write is detected. Raises `OSError`."""
    with atomic_writer(folder / INDEX_FILE) as file:
        writer = _HashingWriter(file)
        writer.write_index(image.index)
        index_bytes = writer.size
        for array in (image.rows.windows, image.rows.entries, image.rows.vectors):
            writer.write(np.ascontiguousarray(array, "<i8").data)
        if image.lists is not None:
            writer.write(np.ascontiguousarray(image.lists, "<i4").data)
        if image.outliers is not None:
            writer.write(np.ascontiguousarray(image.outliers.positions, "<i8").data)
            writer.write(image.outliers.halves.reshape(-1).data)
        file.flush()
        os.fsync(file.fileno())
        delete(folder / META_FILE)  # a missing description means no snapshot; a wrong one would count as damage
    meta = {
        "format": _FORMAT,
        "store": store_id,
        "space": space,
        "seq": seq,
        "point": point,
        "count": image.rows.live,
        "dimension": int(image.index.d),
        "index_bytes": index_bytes,
        "slots": image.rows.size,
        "apart": len(image.outliers.positions) if image.outliers is not None else 0,
        _HASH: writer.hash.hexdigest(),
        "about": image.about,
    }
    write_atomically(folder / META_FILE, json.dumps({**meta, "checksum": _checksum(meta)}, indent=1).encode())


def load(folder: Path, *, store_id: str, space: int, dimension: int) -> Snapshot | None:
    """Return the snapshot of this store and embedding space, or None if there is none. If the snapshot is invalid,
    rename its files and return None."""
    try:
        files = read(folder, store=store_id, space=space, dimension=dimension)
    except READ_ERRORS:
        for path in (folder / INDEX_FILE, folder / META_FILE):
            if os.path.lexists(path):
                aside = path.with_name(path.name + _ASIDE)
                delete(aside)  # `os.replace` does not replace a folder
                os.replace(path, aside)
        return None
    if files is None:
        return None
    meta, image = files
    return None if image is None else Snapshot(image, int(meta["seq"]), str(meta["point"]))


def read(folder: Path, **expected: Any) -> tuple[dict[str, Any], Image | None] | None:
    """Return the description and the index of a snapshot, or None if there is no snapshot. The index is None if the
    snapshot was written in another version of the format. `expected` contains required values of the description.
    Raises one of `READ_ERRORS` if the files are damaged, or if a value differs from the expected value."""
    try:
        with open_regular_file(folder / INDEX_FILE) as file:
            meta = json.loads(read_file(folder / META_FILE))
            if meta.pop("checksum") != _checksum(meta):
                raise ValueError("its description does not match its checksum")
            if meta.get("format") != _FORMAT:
                return meta, None
            if any(meta[name] != value for name, value in expected.items()):
                raise ValueError("it belongs to another store or space")
            if meta[_HASH] != hashlib.file_digest(file, _HASH).hexdigest():
                raise ValueError("its file does not match its description")
            return meta, _read_image(file, meta)
    except FileNotFoundError:
        return None


def discard(folder: Path) -> None:
    """Delete the snapshot, the renamed files of invalid snapshots, and temporary files that a killed process has left.
    Raises `OSError`."""
    for name in (META_FILE, INDEX_FILE):
        delete(folder / name)
        delete(folder / (name + _ASIDE))
        remove_stale_temporaries(folder / name)


class _HashingWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.hash = hashlib.new(_HASH)
        self._error: OSError | None = None
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write data to the file and add it to the hash. Raises `OSError`."""
        self.hash.update(data)
        self._file.write(data)
        self.size += len(data)

    def write_index(self, index: Any) -> None:
        """Write a FAISS index to the file. If writing fails, raise the original `OSError` instead of the `RuntimeError`
        of FAISS."""
        faiss: Any = importlib.import_module("faiss")  # its stubs lack the callbacks
        try:
            faiss.write_index(index, faiss.PyCallbackIOWriter(self._write_block, _BLOCK))
        except Exception:
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error

    def _write_block(self, data: bytes) -> None:
        try:
            self.write(data)
        except OSError as error:
            self._error = self._error or error
            raise


def _read_image(file: BinaryIO, meta: dict[str, Any]) -> Image:
    faiss: Any = importlib.import_module("faiss")
    file.seek(0)
    index: Any = faiss.read_index(faiss.PyCallbackIOReader(file.read, _BLOCK))
    file.seek(meta["index_bytes"])
    slots, about = int(meta["slots"]), dict(meta["about"])
    windows, entries, vectors = (_array(file, "<i8", slots) for _ in range(3))
    lists = _array(file, "<i4", slots) if about["stage"] != "exact" else None
    positions = _array(file, "<i8", int(meta.get("apart", 0)))
    halves = _array(file, "u1", len(positions) * 2 * int(index.d)).reshape(len(positions), 2 * int(index.d))
    return Image(index, Rows(windows, entries, vectors), lists, about, OutlierCodes(positions, halves))


def _array(file: BinaryIO, kind: str, size: int) -> NDArray[Any]:
    data = file.read(size * np.dtype(kind).itemsize)
    array: NDArray[Any] = np.frombuffer(data, kind, size).copy()
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _checksum(meta: dict[str, Any]) -> str:
    """Return the checksum of the description. The checksum is needed because a damaged `seq` would hide changes of the
    records from the index."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
