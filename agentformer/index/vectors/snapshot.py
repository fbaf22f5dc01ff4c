"""Snapshot files of the vector index: `rag_faiss_index.bin` with the index, and `rag_faiss_meta.json` with its
description.

A snapshot makes the next start faster. It contains only data that is also in the records (the database of the entries).
It is valid if its store, embedding space, dimension and checksum are the expected ones. The files of an invalid
snapshot are renamed, and the index is built from the records.

The index file begins with an index in the format of FAISS, so that other tools for FAISS can read it. Arrays follow.
They contain for each row the number of its window, of its entry and of its vector. For a trained index, they also
contain the list of each row, its offset in this list, and the outliers. Searches read the codes of a large index from
the mapped file (`lists.py`), so that the processes that use a store share them in the cache of the operating system. A
snapshot file is never changed; a new one replaces it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from agentformer.errors import is_passing
from agentformer.index.files import INDEX_FILE, META_FILE
from agentformer.index.vectors.flat import Flat, IntArray, Rows
from agentformer.index.vectors.ivf import Ivf, OutlierCodes, Outliers, Tuning
from agentformer.index.vectors.lists import (
    MAP_BYTES,
    NO_OFFSET,
    ListCodes,
    Lists,
    all_joined,
    can_map,
    map_index,
    write_lists,
)
from agentformer.records.integrity.files import (
    atomic_writer,
    delete,
    open_regular_file,
    read_file,
    remove_stale_temporaries,
    write_atomically,
)
from agentformer.settings.access import replace_file, sync_file

_ASIDE = ".damaged"
_FORMAT = 2  # format of the description of an exact index
_TRAINED_FORMAT = 3  # format with offsets in the lists, and a checksum for each part of the file instead of one hash
_HASH = "blake2b"
_SUMS = "crc32"  # four times as fast as the hash, which took 7 s for ten million rows
_PART = 1 << 26  # bytes
_BLOCK = 1 << 20
READ_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)  # from damaged files


class ImageCodes(NamedTuple):
    """The codes of the rows that are written to a snapshot: the number of rows of each list, and a function that yields
    the rows of each list."""

    sizes: IntArray
    read: Callable[[], Iterator[ListCodes]]


class Image(NamedTuple):
    """The content of a snapshot file: the FAISS index, the numbers of its rows, and its state (`about`)."""

    index: Any  # a FAISS index
    rows: Rows
    lists: NDArray[np.int32] | None  # list number of each position; None for an exact index
    about: dict[str, Any]  # JSON values
    outliers: OutlierCodes | None = None
    offsets: NDArray[np.int32] | None = None  # offset of each position in its list; set if a trained index was read
    mapped: bool = False  # whether the lists of `index` are mapped from a file
    codes: ImageCodes | None = None  # the codes to write; only for a trained index


class Snapshot(NamedTuple):
    """An index that was read from a snapshot. `seq` is the number of the last change of the records that the index
    contains. `point` is the token of this change; it shows whether the records still have the same history."""

    image: Image
    seq: int
    point: str


def image_of(stage: Flat | Ivf, rows: Rows) -> Image:
    """Return the content of a snapshot: the vectors in `stage`, and the numbers of its rows."""
    if isinstance(stage, Ivf):
        parts = list(stage.parts)
        live = rows.entries >= 0 if any(part.fixed for part in parts) else None
        codes = ImageCodes(stage.sizes(live), lambda: all_joined(parts, live))
        about, outliers = about_of(stage, rows), stage.outliers.codes()
        return Image(stage.index, rows, stage.list_of()[: rows.size], about, outliers, codes=codes)
    return Image(stage.index, rows, None, about_of(stage, rows))


def about_of(stage: Flat | Ivf, rows: Rows) -> dict[str, Any]:
    """Return the state of the index as JSON values, for the description of a snapshot."""
    about: dict[str, Any] = {"stage": stage.name, "rows": rows.live, "dead": rows.dead, "recall": None}
    if isinstance(stage, Ivf):
        trained = {"trained_rows": stage.trained_rows, "trained_at": stage.trained_at}
        about |= {"mapped": stage.mapped, "lists": stage.lists, **dataclasses.asdict(stage.tuning), **trained}
    return about


def stage_of(image: Image, exact_rows: int) -> Flat | Ivf:
    """Create the stage (exact or trained) of an index that was read from a snapshot. In a scope with at most
    `exact_rows` rows, a trained stage compares all rows."""
    dimension = int(image.index.d)
    if image.lists is None or image.offsets is None:
        return Flat(dimension, image.index)
    about = image.about
    tuning = Tuning(about["probes"], about["candidates"], about["recall"], about["queries"])
    parts = [Lists(image.index, 0, np.stack([image.lists, image.offsets]), mapped=image.mapped)]
    outliers = Outliers(dimension, image.outliers)
    return Ivf(parts, about["trained_rows"], about["trained_at"], exact_rows, tuning, outliers)


def save(folder: Path, image: Image, *, store_id: str, space: int, seq: int, point: str) -> None:
    """Write a snapshot; `seq` and `point` are explained in `Snapshot`. The description is written last, so that an
    interrupted write is detected. Raises `OSError` if a file cannot be written."""
    with atomic_writer(folder / INDEX_FILE) as file:
        writer = _HashingWriter(file, hashing=image.lists is None)
        offsets = _write_index(writer, image)
        index_bytes = writer.size
        for array in (image.rows.windows, image.rows.entries, image.rows.vectors):
            writer.write_array(array, "<i8")
        if image.lists is not None:
            writer.write_array(image.lists, "<i4")
            writer.write_array(offsets, "<i4")
        if image.outliers is not None:
            writer.write_array(image.outliers.positions, "<i8")
            writer.write(image.outliers.halves.reshape(-1).data)
        file.flush()
        sync_file(file.fileno())
        delete(folder / META_FILE)  # no description means no snapshot; a wrong one would be reported as damage
    meta = {
        "format": _FORMAT if image.lists is None else _TRAINED_FORMAT,
        "store": store_id,
        "space": space,
        "seq": seq,
        "point": point,
        "count": image.rows.live,
        "dimension": int(image.index.d),
        "index_bytes": index_bytes,
        "slots": image.rows.size,
        "apart": len(image.outliers.positions) if image.outliers is not None else 0,
        **writer.sums(),
        "about": image.about,
    }
    write_atomically(folder / META_FILE, json.dumps({**meta, "checksum": _checksum(meta)}, indent=1).encode())


def load(folder: Path, *, store_id: str, space: int, dimension: int) -> Snapshot | None:
    """Return the snapshot of this store and space, or None if there is no valid snapshot. The files of an invalid
    snapshot are renamed."""
    try:
        files = read(folder, store=store_id, space=space, dimension=dimension)
    except READ_ERRORS as error:
        for path in () if is_passing(error) else (folder / INDEX_FILE, folder / META_FILE):
            if os.path.lexists(path):
                aside = path.with_name(path.name + _ASIDE)
                delete(aside)  # `os.replace` cannot replace a folder
                replace_file(path, aside)
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
                raise ValueError("the description of the snapshot does not match its checksum")
            if not _is_readable(meta):
                return meta, None
            if any(meta[name] != value for name, value in expected.items()):
                raise ValueError("the snapshot belongs to another store or embedding space")
            if not _matches(file, meta):
                raise ValueError("the index file does not match its description")
            return meta, _read_image(file, meta, folder / INDEX_FILE)
    except FileNotFoundError:
        return None


def describe(folder: Path, **expected: Any) -> dict[str, Any] | None:
    """Return the description of a snapshot without reading the index, or None if there is no snapshot, if its values
    differ from `expected`, or if this version cannot read it."""
    try:
        meta: dict[str, Any] = json.loads(read_file(folder / META_FILE))
        intact = meta.pop("checksum") == _checksum(meta) and _is_readable(meta)
        return meta if intact and all(meta[name] == value for name, value in expected.items()) else None
    except READ_ERRORS:
        return None


def _is_readable(meta: dict[str, Any]) -> bool:
    """Return whether this version reads snapshots of this format."""
    stage = meta.get("about", {}).get("stage")
    return bool(meta.get("format") == (_FORMAT if stage == "exact" else _TRAINED_FORMAT))


def version(folder: Path) -> tuple[int, ...]:
    """Return numbers that identify the current snapshot of a folder. They change when a process replaces the snapshot.
    Return an empty tuple if there is no snapshot."""
    try:
        found = (folder / META_FILE).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def discard(folder: Path) -> None:
    """Delete the snapshot, the renamed files of invalid snapshots, and temporary files that a killed process has left.
    Raises `OSError` if a file cannot be deleted."""
    for name in (META_FILE, INDEX_FILE):
        delete(folder / name)
        delete(folder / (name + _ASIDE))
        remove_stale_temporaries(folder / name)


class _HashingWriter:
    def __init__(self, file: BinaryIO, *, hashing: bool) -> None:
        self._file = file
        self._hash = hashlib.new(_HASH) if hashing else None
        self._sums = [0]
        self._room = _PART  # bytes that still fit in the current part
        self._error: OSError | None = None
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes to the file and add them to the checksums. Raises `OSError` if the file cannot be written."""
        view = memoryview(data).cast("B")
        if self._hash is not None:
            self._hash.update(view)
        for start, end in _cut(len(view), self._room):
            if not self._room:
                self._sums.append(0)
                self._room = _PART
            self._sums[-1] = crc32(view[start:end], self._sums[-1])
            self._room -= end - start
        self._file.write(view)
        self.size += len(view)

    def write_array(self, array: NDArray[Any], kind: str) -> None:
        """Write an array as numbers of the type `kind`. The array is converted in slices, so that memory never contains
        a second copy of a large array."""
        for start in range(0, len(array), _BLOCK):
            self.write(np.ascontiguousarray(array[start : start + _BLOCK], kind).data)

    def sums(self) -> dict[str, Any]:
        """Return the checksums that are stored in the description of the snapshot (`rag_faiss_meta.json`): the hash of
        the file for an exact index, or the checksum of each part of the file for a trained index."""
        return {_SUMS: self._sums} if self._hash is None else {_HASH: self._hash.hexdigest()}

    def write_index(self, index: Any) -> None:
        """Write a FAISS index. If this fails, raise the original `OSError` instead of the `RuntimeError` of FAISS."""
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


def _cut(size: int, room: int) -> Iterator[tuple[int, int]]:
    """Divide the next `size` bytes into pieces, so that each piece is in one part of the file, because each part has
    its own checksum. Yield the start and the end of each piece. `room` is the number of bytes that still fit into the
    current part; 0 means that a new part begins."""
    start = 0
    while start < size:
        end = min(size, start + (room or _PART))
        yield start, end
        start, room = end, 0


def _write_index(writer: _HashingWriter, image: Image) -> NDArray[np.int32]:
    """Write the FAISS index. Return for each position the offset of its row in the list, or `NO_OFFSET`."""
    offsets = np.full(image.rows.size, NO_OFFSET, np.int32)
    if image.codes is None:
        writer.write_index(image.index)
        return offsets

    def read(lists: Iterable[ListCodes]) -> Iterator[ListCodes]:
        for rows in lists:
            offsets[rows.positions] = np.arange(len(rows.positions))
            yield rows

    write_lists(writer.write, image.index, image.codes.sizes, read(image.codes.read()))
    return offsets


def _matches(file: BufferedReader, meta: dict[str, Any]) -> bool:
    """Return whether the file has the checksums in its description `meta`, and nothing after the last part."""
    if meta["format"] == _FORMAT:
        return bool(meta[_HASH] == hashlib.file_digest(file, _HASH).hexdigest())
    buffer = memoryview(bytearray(_BLOCK))
    for expected in meta[_SUMS]:
        checksum, left = 0, _PART
        while left and (size := file.readinto(buffer[: min(left, _BLOCK)])):
            checksum = crc32(buffer[:size], checksum)
            left -= size
        if checksum != expected:
            return False
    return not file.read(1)


def _read_image(file: BufferedReader, meta: dict[str, Any], path: Path) -> Image:
    faiss: Any = importlib.import_module("faiss")
    slots, about, index_bytes = int(meta["slots"]), dict(meta["about"]), meta["index_bytes"]
    trained = about["stage"] != "exact"
    mapped = trained and index_bytes >= MAP_BYTES and can_map()
    if mapped:
        index: Any = map_index(path)
        if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise ValueError("the index file was replaced while it was read")
    else:
        file.seek(0)
        index = faiss.read_index(faiss.PyCallbackIOReader(file.read, _BLOCK))
    file.seek(index_bytes)  # the arrays follow the index, in the order in which `save` writes them
    windows, entries, vectors = (_array(file, "<i8", slots) for _ in range(3))
    lists = _array(file, "<i4", slots) if trained else None
    offsets = _array(file, "<i4", slots) if trained else None
    positions = _array(file, "<i8", int(meta.get("apart", 0)))
    halves = _array(file, "u1", len(positions) * 2 * int(index.d)).reshape(len(positions), 2 * int(index.d))
    outliers = OutlierCodes(positions, halves)
    return Image(index, Rows(windows, entries, vectors), lists, about, outliers, offsets, mapped)


def _array(file: BufferedReader, kind: str, size: int) -> NDArray[Any]:
    data = bytearray(size * np.dtype(kind).itemsize)
    if file.readinto(data) != len(data):
        raise ValueError("the index file ends too early")
    array: NDArray[Any] = np.frombuffer(data, kind, size)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _checksum(meta: dict[str, Any]) -> str:
    """Return the checksum of the description. It detects a damaged `seq`, with which the index would miss changes of
    the records."""
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
