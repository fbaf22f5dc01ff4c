"""The format of an export: the paths of its files, and their lines. This module also opens and reads these files.

    manifest.json              format, namespaces, and for each other file its length and SHA-256
    entries/NAMESPACE.jsonl    one line for each entry, in order of id; lines of its former versions follow each entry
    originals/ab/abcd….bin     uploaded files, named by the SHA-256 of their bytes
    vectors/SPACE.jsonl        one line for each vector, in order of the SHA-256 of its text; optional

No file contains the time of the export, so two exports of the same memory have the same bytes. docs/ARCHIVE.md
describes every field. An export may come from an untrusted source, so every value is checked when it is read.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
from pydantic import TypeAdapter, ValidationError

from agentformer.errors import InvalidInput, TooLarge
from agentformer.http.json_limits import check_values
from agentformer.memory.backends import all_entries
from agentformer.rag.documents import Document, document_of
from agentformer.records import fields
from agentformer.records.entry_json import COUNTS, entry_to_json, parse_entry
from agentformer.records.integrity.files import safe_file_name
from agentformer.records.vectors import HASH_BYTES
from agentformer.settings.access import PLAIN
from agentformer.types import EmbeddingSpace, MemoryBackend, MemoryEntry, MemorySnapshot, Scope, StoredVector, Vector

FORMAT = "agentformer-export-2"
FORMATS = (FORMAT, "agentformer-export-1")  # formats that can be read; the first one is written
MANIFEST = "manifest.json"
_MAX_VALUES = 1_000_000  # JSON values of a line; a version of an entry has about 30, apart from its metadata
LONGEST_LINE = 320 << 20  # bytes: the longest page of a reader in characters of four bytes, and some more
ENTRIES = re.compile(r"entries/[a-z0-9_%~-]{1,160}\.jsonl")
ORIGINAL = re.compile(r"originals/([0-9a-f]{2})/(\1[0-9a-f]{62})\.bin")
VECTORS = re.compile(r"vectors/[0-9a-f]{16}\.jsonl")
_PAGE = 50  # entries listed at a time; each may have a million characters
_MAX_INTEGER = 2**63 - 1  # of SQLite
_MAX_DIMENSIONS = 65_536
_UNIT_TOLERANCE = 1e-3  # of the length of a vector, as for an embedder's vectors
_NAMES = ("session_id", "agent_id", "user_id", "project", "source_type", "source_id")
_IDS = ("parent_id", "pair_id", "archived_by", "superseded_by")
_ADDED = ("valid_from", "valid_to", "expires_at")  # null is left out, so that earlier versions can read the line
_TEXTS = ("title", "context", "role", "speaker", "category")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_document = TypeAdapter(Document)
_space = TypeAdapter(EmbeddingSpace)


class EntryLine(NamedTuple):
    """A line of an entries file. If `is_former` is true, the line is a former version of the entry that precedes it in
    the file. In the first version of the format, the line of an entry also contains the history of this entry."""

    entry: MemoryEntry
    history: tuple[MemoryEntry, ...] = ()
    is_former: bool = False


class VectorFile(NamedTuple):
    """The description of a file that contains the vectors of one embedding space. `total` is the number of vectors."""

    path: str
    space: EmbeddingSpace
    total: int


def entries_path(namespace: str) -> str:
    """Return the path, inside an export, of the file with the entries of a namespace."""
    return f"entries/{safe_file_name(namespace)}.jsonl"


def original_path(digest: str) -> str:
    """Return the path, inside an export, of the original file with the SHA-256 `digest`."""
    return f"originals/{digest[:2]}/{digest}.bin"


def vectors_path(space: EmbeddingSpace) -> str:
    """Return the path, inside an export, of the file with the vectors of an embedding space."""
    text = json.dumps(dataclasses.asdict(space), sort_keys=True)
    return f"vectors/{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"


def has_original(entry: MemoryEntry) -> bool:
    """Return whether the entry is a document whose original file is stored."""
    return entry.kind == "document" and entry.metadata.get("status") in ("ready", "stored")


def damaged(damage: str) -> InvalidInput:
    """Return the error for a damaged export. `damage` describes what is wrong."""
    return InvalidInput("folder", f"the export is damaged, and nothing was imported: {damage}")


def open_plain(folder: Path, path: str) -> BinaryIO:
    """Open the file `path` of an export for reading. Raises `OSError` if this fails, and `InvalidInput` for a link,
    which may lead to a file outside the export, and for a device or a pipe, which may never end."""
    place = folder
    for part in path.split("/"):
        if place is not folder and not stat.S_ISDIR(place.lstat().st_mode):
            raise damaged(f"the folder of {path} is a link or not a folder")
        place = place / part
    if not stat.S_ISREG(place.lstat().st_mode):
        raise damaged(f"{path} is not a plain file")
    file = open(place, "rb", opener=lambda name, flags: os.open(name, flags | PLAIN))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # the file was replaced after the first check
        file.close()
        raise damaged(f"{path} is not a plain file")
    return file


def read_manifest(folder: Path, most: int) -> Any:
    """Return the parsed JSON of the manifest. Raises `InvalidInput` if the manifest is longer than `most` bytes,
    `OSError` if it cannot be read, and `ValueError` if it is not JSON."""
    with open_plain(folder, MANIFEST) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise damaged(f"{MANIFEST} has more than {most} bytes")
        return json.loads(file.read(size).decode("utf-8"))


def digest_of(folder: Path, path: str) -> dict[str, Any]:
    """Return the length and the SHA-256 of a file of an export, as the manifest lists them. Raises `InvalidInput` if
    the file is not a plain file, and `OSError` if it cannot be read."""
    with open_plain(folder, path) as file:
        digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # any buffered file
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def read_lines(folder: Path, path: str) -> Iterator[bytes]:
    """Yield the lines of a file. Raises `OSError` if it cannot be read, and `InvalidInput` if a line is too long."""
    with open_plain(folder, path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
            if len(line) > LONGEST_LINE:
                raise damaged(f"{path}: line {number} has more than {LONGEST_LINE} bytes")
            yield line


def entries_in(
    records: MemoryBackend | MemorySnapshot,
    namespaces: Iterable[str],
    kinds: tuple[str, ...] = (),
    user_id: str | None = None,
) -> Iterator[MemoryEntry]:
    """Yield the entries of these namespaces, including archived ones. If `kinds` or `user_id` is given, yield only
    entries of these kinds, or of this user."""
    for namespace in namespaces:
        scope = Scope(namespace, kinds=kinds, user_id=user_id, include_archived=True)
        yield from all_entries(records, scope, _PAGE)


def entry_lines(entry: MemoryEntry, history: Sequence[MemoryEntry]) -> Iterator[str]:
    """Yield the lines of an entry in an export: its fields, and then a line for each former version."""
    for values in (_line_values(entry), *({"former": _line_values(state)} for state in history)):
        yield json.dumps(values, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n"


def _line_values(entry: MemoryEntry) -> dict[str, Any]:
    values = entry_to_json(entry)
    return {name: value for name, value in values.items() if value is not None or name not in _ADDED}


def read_entry_line(line: bytes) -> EntryLine:
    """Parse a line of an entries file. Raises `ValueError` or `KeyError` if the line is not valid."""
    try:
        check_values(line, _MAX_VALUES)
    except TooLarge:
        raise ValueError(f"the line has more than {_MAX_VALUES} values") from None
    values = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    if not isinstance(values, dict):
        raise ValueError("the line is not a JSON object")
    if values.keys() == {"former"}:
        return EntryLine(checked_entry(values["former"]), is_former=True)
    states = values.pop("history", [])
    if not isinstance(states, list):
        raise ValueError("history is not a list")
    return EntryLine(checked_entry(values), tuple(checked_entry(state) for state in states))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def checked_entry(values: Any) -> MemoryEntry:
    """Return the entry with these field values. The fields must be within the limits for entries that callers store.
    Raises `ValueError` or `KeyError` if a field is not valid."""
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
    if not 1 <= entry.version <= _MAX_INTEGER:
        raise ValueError("the version is below 1 or too large to be stored")
    if wrong := [name for name in COUNTS if getattr(entry, name) > _MAX_INTEGER]:
        raise ValueError(f"{wrong[0]} is too large to be stored")
    if (source := entry.source) is None:
        return
    fields.name("source.document_id", source.document_id)
    page = 1 if source.page is None else source.page
    if not 0 <= source.start <= source.end <= _MAX_INTEGER or not 1 <= page <= _MAX_INTEGER:
        raise ValueError("the page number or the span of the source is out of range")


def _check_kind(entry: MemoryEntry) -> None:
    """Raise `ValueError` or `KeyError` if an entry lacks a field that its kind or its tier requires."""
    if entry.kind != "page":  # a page may be empty, and longer than other entries
        fields.stored_content(entry.content)
    if entry.kind in ("page", "chunk") and (entry.source is None or entry.source.page is None):
        raise ValueError(f"a {entry.kind} needs a source with a page number")
    if entry.kind == "document":
        _check_document(entry)
    if entry.tier == "working" and entry.session_id is None:
        raise ValueError("session_id is missing; an entry of working memory belongs to a session")
    if (entry.source_type is None) != (entry.source_id is None):
        raise ValueError("source_type and source_id must be given together")


def _check_document(entry: MemoryEntry) -> None:
    """Raise `ValueError` or `KeyError` if the metadata of a document entry are not valid."""
    try:
        document = _document.validate_json(json.dumps(dataclasses.asdict(document_of(entry))), strict=True)
    except ValidationError:
        raise ValueError("the metadata of a document has missing or invalid fields") from None
    if not _SHA256.fullmatch(document.sha256):
        raise ValueError("the SHA-256 of a document is not 64 hexadecimal digits")  # it becomes a path
    if document.name != entry.content:
        raise ValueError("the content of a document entry is not the name of the document")
    for name in ("pages", "chunks", "bytes"):
        if not 0 <= getattr(document, name) <= _MAX_INTEGER:
            raise ValueError(f"{name} of a document is below 0 or too large to be stored")


def vector_line(stored: StoredVector) -> str:
    """Return a line of a vector file: a JSON object with a vector and the hash of its text. The vector is little-endian
    float32 in base64."""
    data = base64.b64encode(np.ascontiguousarray(stored.vector, "<f4").tobytes()).decode("ascii")
    return json.dumps({"hash": stored.hash.hex(), "vector": data}, sort_keys=True) + "\n"


def read_vectors(folder: Path, file: VectorFile) -> Iterator[StoredVector]:
    """Yield the vectors of a file. Raises `InvalidInput` with the number of the first line that is not valid."""
    before, number = b"", 0
    for number, line in enumerate(read_lines(folder, file.path), 1):
        try:
            key, vector = _read_vector_line(line, file.space.dimension)
            if key <= before:
                raise ValueError("the hash is not greater than the hash of the line before")
        except (ValueError, KeyError, RecursionError) as error:
            raise damaged(f"{file.path}, line {number}: {str(error)[:200]}") from None
        before = key
        yield StoredVector(file.space, key, vector)
    if number != file.total:
        raise damaged(f"{file.path} has {number} vectors, but the manifest says {file.total}")


def read_vector_file(path: str, values: Any) -> VectorFile:
    """Parse the description of the vector file `path` in a manifest. Raises `ValueError`, `KeyError` or `TypeError` if
    the description is not valid."""
    try:
        space = _space.validate_json(json.dumps(values["space"], ensure_ascii=False).encode(), strict=True)
    except ValidationError:
        raise ValueError("the description of an embedding space has missing or invalid fields") from None
    for name in ("provider", "model"):
        fields.name(name, getattr(space, name))
    if not 1 <= space.dimension <= _MAX_DIMENSIONS or space.max_tokens < 1:
        raise ValueError("dimension or max_tokens of a space is out of range")
    base64.b64decode(space.fingerprint, validate=True)
    if not isinstance(values["count"], int):
        raise ValueError("the count of vectors is not a whole number")
    return VectorFile(path, space, values["count"])


def _read_vector_line(line: bytes, dimension: int) -> tuple[bytes, Vector]:
    """Return the hash and the vector of a line that `vector_line` has written. Raises `ValueError` for other lines."""
    values = json.loads(line.decode("utf-8"))
    known = isinstance(values, dict) and values.keys() == {"hash", "vector"}
    if not known or not all(isinstance(value, str) for value in values.values()):
        raise ValueError("the line is not a vector: a JSON object with the string fields `hash` and `vector`")
    key = bytes.fromhex(values["hash"])
    data = base64.b64decode(values["vector"], validate=True)
    if len(key) != HASH_BYTES or len(data) != 4 * dimension:
        raise ValueError("the hash or the vector has the wrong length")
    vector = np.frombuffer(data, "<f4").astype(np.float32, copy=False)
    if not np.isfinite(vector).all() or abs(float(np.linalg.norm(vector)) - 1) > _UNIT_TOLERANCE:
        raise ValueError("the vector is not finite or not of unit length")
    return key, vector
