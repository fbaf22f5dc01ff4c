"""Read and check an export, before any entry is imported.

For each entry, only the id, the position in the file, and a hash are held in memory. The import reads the lines of an
entry again, and compares the lines with the hash.
"""

from __future__ import annotations

import dataclasses
import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from agentformer.archive import root_of
from agentformer.archive.format import (
    ENTRIES,
    FORMATS,
    MANIFEST,
    ORIGINAL,
    VECTORS,
    VectorFile,
    damaged,
    digest_of,
    has_original,
    open_plain,
    original_path,
    read_entry_line,
    read_lines,
    read_manifest,
    read_vector_file,
    read_vectors,
)
from agentformer.errors import InvalidInput
from agentformer.rag.documents import document_of
from agentformer.rag.uploads import identity
from agentformer.records.entries import history_problem
from agentformer.types import MemoryEntry, StoredVector

_LONGEST_MANIFEST = 64 << 20  # bytes
_HASH_BYTES = 8
_Owner = tuple[str | None, str | None]  # user, project


class ArchivedEntry(NamedTuple):
    """An entry of an export, and its former versions, oldest first."""

    entry: MemoryEntry
    history: tuple[MemoryEntry, ...]


class Reference(NamedTuple):
    """A field of an entry that contains the id of another entry, which is the target."""

    entry_id: str
    namespace: str
    field: str
    target: str

    @property
    def problem(self) -> str:
        """The error message for a reference to an entry of another namespace."""
        return f"{self.field} of {self.entry_id} is {self.target}, which is in another namespace"


class Archive:
    """An export whose files were all checked. Entries are identified by their position in the export, starting at 0."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        self.ids: list[str] = []
        self.blocks: list[int] = []  # positions of core blocks
        self.documents: list[int] = []  # positions of documents
        self.vectors: list[VectorFile] = []
        self.outside_references: list[Reference] = []  # to entries that are not in the export
        self.originals = frozenset(match[2] for path in manifest["files"] if (match := ORIGINAL.fullmatch(path)))
        self._paths = [path for path in manifest["files"] if ENTRIES.fullmatch(path)]
        self._missing = set(manifest["missing_originals"])  # ids of documents
        # Of each entry: the number of its file, and the offset, length and hash of its lines.
        self._files = array("L")
        self._offsets = array("Q")
        self._lengths = array("Q")
        self._hashes = array("Q")
        self._groups = array("Q")  # entries that belong together have one number
        self._group_numbers: dict[str, int] = {}
        self._superseded: dict[int, str] = {}  # position of an entry, and id of the entry that superseded it
        self._joined: dict[int, int] = {}  # number of a group, and number of the group to which it was added

    def __len__(self) -> int:
        return len(self.ids)

    def size(self, number: int) -> int:
        """Return the number of bytes that the lines of the entry at this position have."""
        return self._lengths[number]

    def groups(self, numbers: Iterable[int]) -> list[list[int]]:
        """Return these positions in groups. A group must be imported in one transaction: a document with its pages and
        chunks, a summary with its originals, or an entry with its successor."""
        groups: dict[int, list[int]] = {}
        for number in numbers:
            groups.setdefault(self._joined_group(number), []).append(number)
        return list(groups.values())

    def _joined_group(self, number: int) -> int:
        return root_of(self._joined, self._groups[number])

    def _join_superseded(self) -> None:
        """Join the group of each superseded entry with that of its successor, so that they are stored together."""
        successors = set(self._superseded.values())
        positions = {entry_id: number for number, entry_id in enumerate(self.ids) if entry_id in successors}
        for number, successor in self._superseded.items():
            if successor in positions:
                self._joined[self._joined_group(number)] = self._joined_group(positions[successor])

    def read(self, numbers: Iterable[int]) -> Iterator[ArchivedEntry]:
        """Yield the entries at these positions. Raises `InvalidInput` if a file has changed since it was checked."""
        files: dict[int, BinaryIO] = {}
        with ExitStack() as stack:
            for number in numbers:
                file_number = self._files[number]
                if file_number not in files:
                    files[file_number] = stack.enter_context(open_plain(self.folder, self._paths[file_number]))
                files[file_number].seek(self._offsets[number])
                data = files[file_number].read(self._lengths[number])
                if _hash(data) != self._hashes[number]:
                    raise _changed(self._paths[file_number])
                first, *former = map(read_entry_line, filter(None, data.split(b"\n")))
                yield ArchivedEntry(first.entry, (*first.history, *(line.entry for line in former)))

    def original(self, digest: str) -> bytes:
        """Return the bytes of an original file. Raises `InvalidInput` if it has changed since it was checked."""
        with open_plain(self.folder, original_path(digest)) as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != digest:
            raise _changed(f"the original {digest[:12]}")
        return data

    def all_vectors(self) -> Iterator[StoredVector]:
        """Yield the vectors of all vector files of the export."""
        for file in self.vectors:
            yield from read_vectors(self.folder, file)

    def index_entries(self) -> None:
        """Check all entries, and record their positions. Raises `InvalidInput` if an entry is not valid."""
        relations = _Relations()
        for file_number, path in enumerate(self._paths):
            for lines in _read_entries(self.folder, path):
                entry = lines.entry
                problem = history_problem(entry.id, entry.version, lines.history)
                if problem := problem or relations.add(entry) or self._original_problem(entry):
                    raise damaged(f"{path}, line {lines.number}: {problem}")
                self._add(file_number, lines)
        if problem := relations.finish():
            raise damaged(problem)
        self._join_superseded()
        self.outside_references = relations.outside_references()

    def _add(self, file_number: int, lines: _EntryLines) -> None:
        """Record where an entry is, and its group: the entries of one document, of one summary, or of one parent."""
        entry, data = lines.entry, b"".join(lines.lines)
        if entry.tier == "core":
            self.blocks.append(len(self.ids))
        if entry.kind == "document":
            self.documents.append(len(self.ids))
        if entry.superseded_by is not None:
            self._superseded[len(self.ids)] = entry.superseded_by
        group = entry.source.document_id if entry.source else entry.archived_by or entry.parent_id or entry.id
        self.ids.append(entry.id)
        self._files.append(file_number)
        self._offsets.append(lines.offset)
        self._lengths.append(len(data))
        self._hashes.append(_hash(data))
        self._groups.append(self._group_numbers.setdefault(group, len(self._group_numbers)))

    def _original_problem(self, entry: MemoryEntry) -> str:
        if not has_original(entry) or entry.metadata["sha256"] in self.originals or entry.id in self._missing:
            return ""
        return f"the original of {entry.content[:200]!r} is missing"


def read(folder: Path) -> Archive:
    """Check every checksum and value of an export, and return it. Raises `InvalidInput` if the export is damaged."""
    manifest = _checked_manifest(folder)
    for path, digest in manifest["files"].items():
        _check_file(folder, path, digest)
    archive = Archive(folder, manifest)
    archive.index_entries()
    described = manifest.get("vectors", {})
    paths = {path for path in manifest["files"] if VECTORS.fullmatch(path)}
    if not isinstance(described, dict) or {*described} != paths:
        raise damaged(f"{MANIFEST} names other vector files in `vectors` than in `files`")
    for path, values in described.items():
        try:
            archive.vectors.append(read_vector_file(path, values))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise damaged(f"{MANIFEST}: the entry for {path} is not valid: {str(error)[:200]}") from None
    for _ in archive.all_vectors():
        pass  # reading checks each vector
    return archive


class _EntryLines:
    """The lines of an entry and of its former versions. `number` and `offset` (bytes) are those of the first line."""

    def __init__(self, number: int, offset: int, line: bytes, entry: MemoryEntry, history: Iterable[MemoryEntry]):
        self.number, self.offset, self.lines = number, offset, [line]
        self.entry, self.history = entry, [*history]


def _read_entries(folder: Path, path: str) -> Iterator[_EntryLines]:
    """Yield each entry of an entries file together with its lines. Raises `InvalidInput` if a line is not valid."""
    offset = 0
    current: _EntryLines | None = None
    for number, line in enumerate(read_lines(folder, path), 1):
        try:
            parsed = read_entry_line(line)
            if parsed.is_former and current is None:
                raise ValueError("a former version comes before any entry; it must follow its entry")
        except (ValueError, KeyError, RecursionError) as error:
            raise damaged(f"{path}, line {number}: {str(error)[:200]}") from None
        if parsed.is_former and current is not None:
            current.history.append(parsed.entry)
            current.lines.append(line)
        else:
            if current is not None:
                yield current
            current = _EntryLines(number, offset, line, parsed.entry, parsed.history)
        offset += len(line)
    if current is not None:
        yield current


def _check_file(folder: Path, path: str, expected: Any) -> None:
    if not (ENTRIES.fullmatch(path) or ORIGINAL.fullmatch(path) or VECTORS.fullmatch(path)):
        raise damaged(f"{MANIFEST} lists {path[:200]!r}, which is not a file of an export")
    try:
        digest = digest_of(folder, path)["sha256"]
    except OSError as error:
        raise damaged(f"{path} cannot be read: {error.strerror or error}") from None
    if not isinstance(expected, dict) or digest != expected.get("sha256"):
        raise damaged(f"{path} has changed since the export (its checksum differs)")
    if (original := ORIGINAL.fullmatch(path)) and original[2] != digest:
        raise damaged(f"{path} does not match the SHA-256 in its name")


def _checked_manifest(folder: Path) -> Mapping[str, Any]:
    try:
        manifest = read_manifest(folder, _LONGEST_MANIFEST)
    except InvalidInput:
        raise
    except FileNotFoundError:
        problem = f"{folder} has no {MANIFEST}; give a folder that `export --to` has written"
        raise InvalidInput("folder", problem) from None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(f"{MANIFEST} cannot be read ({type(error).__name__})") from None
    if not isinstance(manifest, dict) or manifest.get("format") not in FORMATS:
        problem = f"{MANIFEST} is not of the format {' or '.join(FORMATS)}"
        raise InvalidInput("folder", f"{problem}; import the export with the version of AgentFormer that wrote it")
    missing = manifest.get("missing_originals")
    if not isinstance(manifest.get("files"), dict) or not isinstance(missing, list):
        raise damaged(f"{MANIFEST} does not list the files of the export")
    if not all(isinstance(entry_id, str) for entry_id in missing):
        raise damaged(f"missing_originals in {MANIFEST} is not a list of ids")
    return manifest


def _changed(name: str) -> InvalidInput:
    return InvalidInput("folder", f"{name} was changed while it was imported; run the import again")


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=_HASH_BYTES).digest(), "little")


class _Relations:
    """Checks the relations between the entries of an export, such as references and unique names. The methods `add` and
    `finish` return a text that describes a problem, or "" if there is no problem."""

    def __init__(self) -> None:
        self._namespaces: dict[str, str] = {}  # by id
        self._owners: dict[str, _Owner] = {}  # of documents, by id
        self._unique: dict[tuple[str, ...], str] = {}
        self._open: list[Reference] = []  # references to entries that were not added yet
        self._parts: list[MemoryEntry] = []  # parts that precede their document, without their texts

    def add(self, entry: MemoryEntry) -> str:
        """Check an entry against the entries that were added before, and remember it. Return the problem, or ""."""
        if entry.id in self._namespaces:
            return f"two entries have the id {entry.id}"
        self._namespaces[entry.id] = entry.namespace
        if entry.kind == "document":
            self._owners[entry.id] = (entry.user_id, entry.project)
        for field, target in _references(entry):
            reference = Reference(entry.id, entry.namespace, field, target)
            if target not in self._namespaces:
                self._open.append(reference)
            elif self._namespaces[target] != entry.namespace:
                return reference.problem
        if entry.kind in ("page", "chunk") and (problem := self._part_problem(entry)):
            return problem
        for key in _unique_keys(entry):
            if self._unique.setdefault(key, entry.id) != entry.id:
                return f"{self._unique[key]} and {entry.id} have the same {key[0]} in namespace {entry.namespace[:80]}"
        return ""

    def finish(self) -> str:
        """Check the relations that can be checked only after the last entry. Return the problem, or ""."""
        for reference in self._open:
            if self._namespaces.get(reference.target, reference.namespace) != reference.namespace:
                return reference.problem
        return next(filter(None, map(self._owner_problem, self._parts)), "")

    def outside_references(self) -> list[Reference]:
        """Return the references to entries outside of the export, which the import checks in the memory."""
        return [reference for reference in self._open if reference.target not in self._namespaces]

    def _part_problem(self, entry: MemoryEntry) -> str:
        if entry.source is None or entry.parent_id != entry.source.document_id:
            return f"the {entry.kind} {entry.id} belongs to no document of the export"
        if entry.parent_id in self._owners:
            return self._owner_problem(entry)
        self._parts.append(dataclasses.replace(entry, content="", context="", metadata={}))
        return ""

    def _owner_problem(self, part: MemoryEntry) -> str:
        """Return the problem of a page or chunk whose document is missing, or belongs to another user or project. The
        removal of this document would leave it behind."""
        owner = self._owners.get(part.parent_id or "")
        if owner is None:
            return f"the {part.kind} {part.id} belongs to no document of the export"
        if owner != (part.user_id, part.project):
            return f"the {part.kind} {part.id} and its document belong to different users or projects"
        return ""


def block_key(entry: MemoryEntry) -> tuple[str, ...] | None:
    """Return the owner and the name of a core block (a named text that every prompt contains). Two blocks must not have
    the same owner and name. Return None for any other entry, and for a block that is archived or superseded."""
    if entry.tier != "core" or not entry.title or entry.archived_at is not None or entry.superseded_by is not None:
        return None
    return "block", entry.namespace, repr(entry.agent_id), repr(entry.user_id), entry.title


def _references(entry: MemoryEntry) -> Iterator[tuple[str, str]]:
    for link in entry.derived_from:
        yield "derived_from", link.id
    if entry.source:
        yield "source.document_id", entry.source.document_id
    for name in ("parent_id", "pair_id", "superseded_by", "archived_by"):
        if target := getattr(entry, name):
            yield name, target


def _unique_keys(entry: MemoryEntry) -> Iterator[tuple[str, ...]]:
    if block := block_key(entry):
        yield block
    if entry.kind == "document":
        document = document_of(entry)
        yield "document path" if document.origin else "document name", *identity(document)
