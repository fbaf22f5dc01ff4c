"""The format of an export: paths, lines of entries and of vectors, and how its files are opened.

    manifest.json              format, namespaces, and for each other file its bytes and SHA-256
    entries/NAMESPACE.jsonl    one line for each entry, in order of id, each followed by lines of its former versions
    originals/ab/abcd….bin     uploaded files, named by the SHA-256 of their bytes
    vectors/SPACE.jsonl        one line for each vector, in order of the SHA-256 of its text; optional

No file depends on the time of the export: the same memory gives the same bytes. docs/ARCHIVE.md describes every field.
Lines may come from people and other programs, so every value is checked when it is read.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
from pydantic import TypeAdapter, ValidationError

from agentformer.errors import InvalidInput
from agentformer.rag.documents import Document, document_of
from agentformer.records import fields
from agentformer.records.entry_json import COUNTS, entry_to_json, parse_entry
from agentformer.records.files import safe_file_name
from agentformer.records.vectors import HASH_BYTES
from agentformer.types import EmbeddingSpace, MemoryEntry, StoredVector, Vector

FORMAT = "agentformer-export-2"
FORMATS = (FORMAT, "agentformer-export-1")  # formats that can be read; the first one is written
MANIFEST = "manifest.json"
BLOCK = 1 << 20  # bytes of a file read at a time
LONGEST_LINE = 320 << 20  # bytes: the longest page of a reader in characters of four bytes, and some more
ENTRIES = re.compile(r"entries/[a-z0-9_%~-]{1,160}\.jsonl")
ORIGINAL = re.compile(r"originals/([0-9a-f]{2})/(\1[0-9a-f]{62})\.bin")
VECTORS = re.compile(r"vectors/[0-9a-f]{16}\.jsonl")
_MAX_INTEGER = 2**63 - 1  # of SQLite
_MAX_DIMENSIONS = 65_536
_UNIT_TOLERANCE = 1e-3  # of the length of a vector, as for an embedder's vectors
_NAMES = ("session_id", "agent_id", "user_id", "project", "source_type", "source_id")
_IDS = ("parent_id", "pair_id", "archived_by", "superseded_by")
_TEXTS = ("title", "context", "role", "speaker", "category")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_document = TypeAdapter(Document)
_space = TypeAdapter(EmbeddingSpace)


class EntryLine(NamedTuple):
    """A line of entries: an entry with its history if the line is of the first format, or, with `is_former`, a former
    version of the entry before it."""

    entry: MemoryEntry
    history: tuple[MemoryEntry, ...] = ()
    is_former: bool = False


class VectorFile(NamedTuple):
    """A file of vectors of one space."""

    path: str
    space: EmbeddingSpace
    total: int


def entries_path(namespace: str) -> str:
    """Return the path of a namespace's entries in an export."""
    return f"entries/{safe_file_name(namespace)}.jsonl"


def original_path(digest: str) -> str:
    """Return the path of an original in an export."""
    return f"originals/{digest[:2]}/{digest}.bin"


def vectors_path(space: EmbeddingSpace) -> str:
    """Return the path of the vectors of a space in an export."""
    text = json.dumps(dataclasses.asdict(space), sort_keys=True)
    return f"vectors/{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"


def has_original(entry: MemoryEntry) -> bool:
    """Return True for a document with a stored file."""
    return entry.kind == "document" and entry.metadata.get("status") == "ready"


def damaged(what: str) -> InvalidInput:
    """Return the error for a damaged export."""
    return InvalidInput("folder", f"the export is damaged, and nothing was imported: {what}")


def open_plain(folder: Path, path: str) -> BinaryIO:
    """Open a plain file in plain folders for reading. Raises `InvalidInput` and `OSError`.

    A link may lead elsewhere, and a device or pipe may never end, so both are refused.
    """
    place = folder
    for part in path.split("/"):
        if place is not folder and not stat.S_ISDIR(place.lstat().st_mode):
            raise damaged(f"{path} is not in a plain folder")
        place = place / part
    if not stat.S_ISREG(place.lstat().st_mode):
        raise damaged(f"{path} is not a plain file")
    file = open(place, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was replaced in between
        file.close()
        raise damaged(f"{path} is not a plain file")
    return file


def read_manifest(folder: Path, most: int) -> Any:
    """Return the JSON of the manifest. Raises `InvalidInput` over `most` bytes, `OSError`, `ValueError`."""
    with open_plain(folder, MANIFEST) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise damaged(f"{MANIFEST} has over {most} bytes")
        return json.loads(file.read(size).decode("utf-8"))


def digest_of(folder: Path, path: str) -> dict[str, Any]:
    """Return the length and the SHA-256 of a file, as a manifest holds them. Raises `InvalidInput` and `OSError`."""
    digest, count = hashlib.sha256(), 0
    with open_plain(folder, path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            count += len(block)
    return {"bytes": count, "sha256": digest.hexdigest()}


def read_lines(folder: Path, path: str) -> Iterator[bytes]:
    """Return the lines of a file, each of bounded length. Raises `InvalidInput` and `OSError`."""
    with open_plain(folder, path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise damaged(f"{path}, line {number}: has over {LONGEST_LINE} bytes")
            yield line


def entry_lines(entry: MemoryEntry, history: Sequence[MemoryEntry]) -> Iterator[str]:
    """Return a line with all fields of an entry, and one for each former version."""
    yield _to_line(entry_to_json(entry))
    for state in history:
        yield _to_line({"former": entry_to_json(state)})


def _to_line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n"


def read_entry_line(line: bytes) -> EntryLine:
    """Return the content of a line of entries. Raises `ValueError` or `KeyError`."""
    values = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    if not isinstance(values, dict):
        raise ValueError("is no JSON object")
    if values.keys() == {"former"}:
        return EntryLine(_checked_entry(values["former"]), is_former=True)
    states = values.pop("history", [])
    if not isinstance(states, list):
        raise ValueError("history is no list")
    return EntryLine(_checked_entry(values), tuple(_checked_entry(state) for state in states))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _checked_entry(values: Any) -> MemoryEntry:
    """Return the entry of a line's values, within the limits of callers. Raises `ValueError` or `KeyError`."""
    if isinstance(values, dict) and "namespace" not in values:
        raise ValueError("namespace: is missing")
    entry = parse_entry(values)
    for name in ("id", "namespace", "kind"):
        fields.name(name, getattr(entry, name))
    for name in (*_NAMES, *_IDS):
        fields.optional_name(name, getattr(entry, name))
    for name in _TEXTS:
        fields.text(name, getattr(entry, name))
    for name, value in entry.metadata.items():
        given = entry.kind == "document" and name == "given" and isinstance(value, dict)
        fields.metadata(value if given else {name: value})  # metadata of an upload may nest as deep as any metadata
    _check_numbers(entry)
    _check_kind(entry)
    return entry


def _check_numbers(entry: MemoryEntry) -> None:
    """Raise `ValueError` for a number that is out of range."""
    if not 1 <= entry.version <= _MAX_INTEGER:
        raise ValueError("the version is below 1, or too large to be stored")
    if wrong := [name for name in COUNTS if getattr(entry, name) > _MAX_INTEGER]:
        raise ValueError(f"{wrong[0]} is too large to be stored")
    if (source := entry.source) is None:
        return
    fields.name("source.document_id", source.document_id)
    page = 1 if source.page is None else source.page
    if not 0 <= source.start <= source.end <= _MAX_INTEGER or not 1 <= page <= _MAX_INTEGER:
        raise ValueError("the page or the span of the source is out of range")


def _check_kind(entry: MemoryEntry) -> None:
    """Check that an entry has the fields that its kind and its tier need. Raises `ValueError` or `KeyError`."""
    if entry.kind != "page":  # a page may be empty, and longer than other entries
        fields.content(entry.content)
    if entry.kind in ("page", "chunk") and (entry.source is None or entry.source.page is None):
        raise ValueError(f"a {entry.kind} needs its source, with the page")
    if entry.kind == "document":
        _check_document(entry)
    if entry.tier == "working" and entry.session_id is None:
        raise ValueError("session_id is missing; working memory belongs to a session")
    if (entry.source_type is None) != (entry.source_id is None):
        raise ValueError("source_type and source_id go together")


def _check_document(entry: MemoryEntry) -> None:
    """Check the metadata of a document. Raises `ValueError` or `KeyError`."""
    try:
        document = _document.validate_json(json.dumps(dataclasses.asdict(document_of(entry))), strict=True)
    except ValidationError:
        raise ValueError("the metadata of a document is not as it must be") from None
    if not _SHA256.fullmatch(document.sha256):
        raise ValueError("the SHA-256 of a document is no SHA-256")  # it becomes a path
    if document.name != entry.content:
        raise ValueError("the name of a document is not its content")
    for name in ("pages", "chunks", "bytes"):
        if not 0 <= getattr(document, name) <= _MAX_INTEGER:
            raise ValueError(f"{name} of a document is below 0, or too large to be stored")


def vector_line(stored: StoredVector) -> str:
    """Return a line with the hash of a text and its vector: float32, little-endian, in base64."""
    data = base64.b64encode(np.ascontiguousarray(stored.vector, "<f4").tobytes()).decode("ascii")
    return json.dumps({"hash": stored.hash.hex(), "vector": data}, sort_keys=True) + "\n"


def read_vectors(folder: Path, file: VectorFile) -> Iterator[StoredVector]:
    """Return the vectors of a file. Raises `InvalidInput` that names the line."""
    before, number = b"", 0
    for number, line in enumerate(read_lines(folder, file.path), 1):
        try:
            key, vector = _read_vector_line(line, file.space.dimension)
            if key <= before:
                raise ValueError("is not in the order of hashes, or there twice")
        except (ValueError, KeyError, RecursionError) as error:
            raise damaged(f"{file.path}, line {number}: {str(error)[:200]}") from None
        before = key
        yield StoredVector(file.space, key, vector)
    if number != file.total:
        raise damaged(f"{file.path} has {number} vectors, and the manifest says {file.total}")


def read_vector_file(path: str, values: Any) -> VectorFile:
    """Return the file of vectors that a manifest describes. Raises `ValueError`, `KeyError` or `TypeError`."""
    try:
        space = _space.validate_json(json.dumps(values["space"], ensure_ascii=False).encode(), strict=True)
    except ValidationError:
        raise ValueError("a space is not described as it must be") from None
    for name in ("provider", "model"):
        fields.name(name, getattr(space, name))
    if not 1 <= space.dimension <= _MAX_DIMENSIONS or space.max_tokens < 1:
        raise ValueError("the dimension or the tokens of a space are out of range")
    base64.b64decode(space.fingerprint, validate=True)
    if not isinstance(values["count"], int):
        raise ValueError("the count of vectors is no number")
    return VectorFile(path, space, values["count"])


def _read_vector_line(line: bytes, dimension: int) -> tuple[bytes, Vector]:
    values = json.loads(line.decode("utf-8"))
    if not isinstance(values, dict) or values.keys() != {"hash", "vector"}:
        raise ValueError("is no vector")
    if not all(isinstance(value, str) for value in values.values()):
        raise ValueError("is no vector")
    key = bytes.fromhex(values["hash"])
    data = base64.b64decode(values["vector"], validate=True)
    if len(key) != HASH_BYTES or len(data) != 4 * dimension:
        raise ValueError("the hash or the vector is not of its length")
    vector = np.frombuffer(data, "<f4").astype(np.float32, copy=False)
    if not np.isfinite(vector).all() or abs(float(np.linalg.norm(vector)) - 1) > _UNIT_TOLERANCE:
        raise ValueError("the vector is not finite, or not of unit length")
    return key, vector
