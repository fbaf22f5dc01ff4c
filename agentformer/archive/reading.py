"""Reading an export: everything is checked first, and nothing of it is held but where each entry lies.

What is kept of an entry are its id, some numbers and a hash of its lines: they are read again when its turn comes, and
must be what they were.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from agentformer.archive.checks import Reference, Relations
from agentformer.archive.layout import (
    BLOCK,
    ENTRIES,
    FORMATS,
    MANIFEST,
    ORIGINAL,
    VECTORS,
    damaged,
    has_original,
    lines,
    opened,
    original_path,
    whole,
)
from agentformer.archive.lines import read_line
from agentformer.archive.vectors import VectorFile, read_space, read_vectors
from agentformer.errors import InvalidInput
from agentformer.records.history import history_problem
from agentformer.types import MemoryEntry, StoredVector

_LONGEST_MANIFEST = 64 << 20  # bytes
_HASH_BYTES = 8


class Remembered(NamedTuple):
    """An entry of an export, and its former versions, oldest first."""

    entry: MemoryEntry
    past: tuple[MemoryEntry, ...]


class Archive:
    """An export that was read and found whole."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        self.ids: list[str] = []
        self.blocks: list[int] = []  # numbers of the entries of core memory
        self.documents: list[int] = []  # numbers of documents
        self.vectors: list[VectorFile] = []
        self.leading_out: list[Reference] = []
        self.originals = frozenset(found[2] for path in manifest["files"] if (found := ORIGINAL.fullmatch(path)))
        self._paths = [path for path in manifest["files"] if ENTRIES.fullmatch(path)]
        self._missing = set(manifest["missing_originals"])
        self._files = array("L")  # of each entry: its file, where its lines begin there, how long they are, their hash
        self._begins = array("Q")
        self._lengths = array("Q")
        self._hashes = array("Q")
        self._groups = array("Q")  # entries that belong together have one number
        self._group_names: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def size(self, number: int) -> int:
        """The bytes of an entry's lines."""
        return self._lengths[number]

    def groups(self, numbers: Iterable[int]) -> list[list[int]]:
        """These entries, each with those that it belongs together with: a document with its pages and chunks, a summary
        with what it stands for."""
        found: dict[int, list[int]] = {}
        for number in numbers:
            found.setdefault(self._groups[number], []).append(number)
        return list(found.values())

    def read(self, numbers: Iterable[int]) -> Iterator[Remembered]:
        """The entries of these numbers. Raises `InvalidInput` where a file was changed meanwhile."""
        files: dict[int, BinaryIO] = {}
        with ExitStack() as all_files:
            for number in numbers:
                which = self._files[number]
                if which not in files:
                    files[which] = all_files.enter_context(opened(self.folder, self._paths[which]))
                files[which].seek(self._begins[number])
                data = files[which].read(self._lengths[number])
                if _hash(data) != self._hashes[number]:
                    raise InvalidInput(
                        "folder", f"{self._paths[which]} was changed while it was imported; import again"
                    )
                first, *rest = map(read_line, filter(None, data.split(b"\n")))
                yield Remembered(first.entry, (*first.past, *(line.entry for line in rest)))

    def original(self, digest: str) -> bytes:
        with opened(self.folder, original_path(digest)) as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != digest:
            raise InvalidInput("folder", f"the original {digest[:12]} was changed while it was imported; import again")
        return data

    def all_vectors(self) -> Iterator[StoredVector]:
        for file in self.vectors:
            yield from read_vectors(self.folder, file)

    def take_entries(self) -> None:
        """Read all entries once, and note where they are. Raises `InvalidInput`."""
        relations = Relations()
        for which, path in enumerate(self._paths):
            for number, at, found, data in _entries(self.folder, path):
                if wrong := relations.add(found.entry) or self._wrong_original(found.entry):
                    raise damaged(f"{path}, line {number}: {wrong}")
                self._note(which, at, found.entry, data)
        if wrong := relations.finish():
            raise damaged(wrong)
        self.leading_out = relations.leading_out()

    def _note(self, which: int, at: int, entry: MemoryEntry, data: bytes) -> None:
        if entry.tier == "core":
            self.blocks.append(len(self.ids))
        if entry.kind == "document":
            self.documents.append(len(self.ids))
        belongs = entry.source.document_id if entry.source else entry.archived_by or entry.parent_id or entry.id
        self.ids.append(entry.id)
        self._files.append(which)
        self._begins.append(at)
        self._lengths.append(len(data))
        self._hashes.append(_hash(data))
        self._groups.append(self._group_names.setdefault(belongs, len(self._group_names)))

    def _wrong_original(self, entry: MemoryEntry) -> str | None:
        if not has_original(entry) or entry.metadata["sha256"] in self.originals or entry.id in self._missing:
            return None
        return f"the original of {entry.content[:200]!r} is missing"


def read(folder: Path) -> Archive:
    """An export, with every checksum and every value of it checked. Raises `InvalidInput` that says what is damaged."""
    manifest = _manifest(folder)
    for path, told in manifest["files"].items():
        _check_file(folder, path, told)
    archive = Archive(folder, manifest)
    archive.take_entries()
    described = manifest.get("vectors", {})
    if not isinstance(described, dict) or {*described} != {
        path for path in manifest["files"] if VECTORS.fullmatch(path)
    }:
        raise damaged(f"{MANIFEST} does not describe the vectors")
    for path, about in described.items():
        archive.vectors.append(_vector_file(path, about))
    for _ in archive.all_vectors():
        pass  # each is checked
    return archive


def _entries(folder: Path, path: str) -> Iterator[tuple[int, int, Remembered, bytes]]:
    """Each entry of a file: the number of its line, where it begins, and the bytes of its lines."""
    number = at = 0
    held: tuple[int, int, MemoryEntry, list[MemoryEntry], list[bytes]] | None = None
    for number, line in enumerate(lines(folder, path), 1):
        try:
            found = read_line(line)
            if found.is_former and held is None:
                raise ValueError("a former version is of no entry")
        except (ValueError, KeyError, RecursionError) as error:
            raise damaged(f"{path}, line {number}: {str(error)[:200]}") from None
        if found.is_former and held is not None:
            held[3].append(found.entry)
            held[4].append(line)
        else:
            if held is not None:
                yield _whole(path, *held)
            held = number, at, found.entry, list(found.past), [line]
        at += len(line)
    if held is not None:
        yield _whole(path, *held)


def _whole(
    path: str, number: int, at: int, entry: MemoryEntry, past: list[MemoryEntry], data: list[bytes]
) -> tuple[int, int, Remembered, bytes]:
    if wrong := history_problem(entry.id, entry.version, past):
        raise damaged(f"{path}, line {number}: {wrong}")
    return number, at, Remembered(entry, tuple(past)), b"".join(data)


def _check_file(folder: Path, path: str, told: Any) -> None:
    if not (ENTRIES.fullmatch(path) or ORIGINAL.fullmatch(path) or VECTORS.fullmatch(path)):
        raise damaged(f"{path[:200]!r} is no file of an export")
    digest = hashlib.sha256()
    try:
        with opened(folder, path) as file:
            while block := file.read(BLOCK):
                digest.update(block)
    except OSError as error:
        raise damaged(f"{path} cannot be read: {error.strerror or error}") from None
    if not isinstance(told, dict) or digest.hexdigest() != told.get("sha256"):
        raise damaged(f"{path} is not as it was exported (its checksum differs)")
    if (original := ORIGINAL.fullmatch(path)) and original[2] != digest.hexdigest():
        raise damaged(f"{path} does not hold what its name says")


def _vector_file(path: str, about: Any) -> VectorFile:
    try:
        space = read_space(about["space"])
        if not isinstance(about["count"], int):
            raise ValueError("the count of vectors is no number")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(f"{MANIFEST}, {path}: {str(error)[:200]}") from None
    return VectorFile(path, space, about["count"])


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        with opened(folder, MANIFEST) as file:
            data = whole(file, _LONGEST_MANIFEST)
        if data is None:
            raise damaged(f"{MANIFEST} has over {_LONGEST_MANIFEST} bytes")
        manifest = json.loads(data.decode("utf-8"))
    except InvalidInput:
        raise
    except FileNotFoundError:
        raise InvalidInput(
            "folder", f"{folder} holds no {MANIFEST}; give a folder that `export --to` has written"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(f"{MANIFEST} cannot be read ({type(error).__name__})") from None
    if not isinstance(manifest, dict) or manifest.get("format") not in FORMATS:
        known = " or ".join(FORMATS)
        raise InvalidInput(
            "folder", f"{MANIFEST} is not of the format {known}; import it with the version that wrote it"
        )
    missing = manifest.get("missing_originals")
    if not isinstance(manifest.get("files"), dict) or not isinstance(missing, list):
        raise damaged(f"{MANIFEST} does not list the files")
    if not all(isinstance(each, str) for each in missing):
        raise damaged(f"{MANIFEST} does not list the missing originals by id")
    return manifest


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=_HASH_BYTES).digest(), "little")
