"""What `export --to` writes and `import` reads: a folder of JSON Lines and original files, with a manifest.

    manifest.json              format, namespaces, and of every other file its bytes and SHA-256
    entries/NAMESPACE.jsonl    one entry a line with all its fields and its `history`, in order of id
    originals/ab/abcd….bin     uploaded files under the SHA-256 of their bytes

Nothing in it tells when it was made, so the same store gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from agentformer.cli.archive_checks import problem
from agentformer.cli.archive_lines import entry_line, read_entry
from agentformer.errors import InvalidInput, NotFound
from agentformer.rag.originals import Originals
from agentformer.types import MemoryBackend, MemoryEntry, Scope

FORMAT = "agentformer-export-1"
_MANIFEST = "manifest.json"
_PAGE = 500  # entries listed at a time
_BLOCK = 1 << 20  # bytes of a file read at a time
_LONGEST_MANIFEST = 64 << 20  # bytes
_ENTRIES = re.compile(r"entries/[a-z0-9_%~-]{1,160}\.jsonl")
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")  # not every file system tells capitals apart
_LONGEST_NAME = 120  # characters of a file's name
_ORIGINAL = re.compile(r"originals/([0-9a-f]{2})/(\1[0-9a-f]{62})\.bin")


@dataclass(slots=True)
class Written:
    """What an export came to."""

    entries: dict[str, int] = field(default_factory=dict)  # by namespace
    originals: set[str] = field(default_factory=set)  # SHA-256
    missing: list[str] = field(default_factory=list)  # ids of documents whose original is not there
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Archive:
    """An export that was read and found whole."""

    folder: Path
    entries: tuple[MemoryEntry, ...]
    originals: frozenset[str]
    former: int  # former versions, which no backend takes back

    def original(self, digest: str) -> bytes:
        with _opened(self.folder, _original_path(digest)) as file:
            return file.read()


def write(folder: Path, backend: MemoryBackend, originals: Originals, namespaces: Iterable[str]) -> Written:
    """Write what the namespaces hold into an empty folder. Raises `OSError`."""
    written = Written()
    for namespace in namespaces:
        path = _entries_path(namespace)
        lines = []
        for entry in _all(backend, namespace):
            lines.append(entry_line(entry, backend.history(entry.id)))
            if _has_original(entry):
                _keep(folder, entry, originals, written)
        _put(folder, path, "".join(lines).encode(), written)
        written.entries[namespace] = len(lines)
    manifest = {
        "format": FORMAT,
        "namespaces": written.entries,
        "files": written.files,
        "missing_originals": sorted(written.missing),
    }
    text = json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True)
    (folder / _MANIFEST).write_text(f"{text}\n", encoding="utf-8")
    return written


def read(folder: Path) -> Archive:
    """An export, with every checksum and every value of it checked. Raises `InvalidInput` that says what is damaged."""
    manifest = _manifest(folder)
    entries: dict[str, MemoryEntry] = {}
    former = 0
    for path, told in manifest["files"].items():
        if not (_ENTRIES.fullmatch(path) or _ORIGINAL.fullmatch(path)):
            raise _damaged(f"{path[:200]!r} is no file of an export")
        digest = _digest(folder, path)
        if not isinstance(told, dict) or digest != told.get("sha256"):
            raise _damaged(f"{path} is not as it was exported (its checksum differs)")
        if (original := _ORIGINAL.fullmatch(path)) and original[2] != digest:
            raise _damaged(f"{path} does not hold what its name says")
    for path in (path for path in manifest["files"] if _ENTRIES.fullmatch(path)):
        for entry, states in _read_entries(folder, path):
            if entry.id in entries:
                raise _damaged(f"{path} has the id {entry.id} twice")
            entries[entry.id] = entry
            former += states
    if wrong := problem(entries):
        raise _damaged(wrong)
    there = frozenset(found[2] for path in manifest["files"] if (found := _ORIGINAL.fullmatch(path)))
    missing = set(manifest["missing_originals"])
    for entry in entries.values():
        if _has_original(entry) and entry.metadata["sha256"] not in there and entry.id not in missing:
            raise _damaged(f"the original of {entry.content[:200]!r} is missing")
    return Archive(folder, tuple(entries.values()), there, former)


def _all(backend: MemoryBackend, namespace: str) -> Iterator[MemoryEntry]:
    after = ""
    while found := backend.list(Scope(namespace, include_archived=True), after=after, limit=_PAGE):
        yield from found
        after = found[-1].id


def _has_original(entry: MemoryEntry) -> bool:
    return entry.kind == "document" and entry.metadata.get("status") == "ready"


def _keep(folder: Path, entry: MemoryEntry, originals: Originals, written: Written) -> None:
    """Copy a document's original, once for all documents with the same bytes."""
    digest = entry.metadata["sha256"]
    if digest in written.originals:
        return
    try:
        data = originals.get(digest)
    except NotFound:
        written.missing.append(entry.id)
        return
    _put(folder, _original_path(digest), data, written)
    written.originals.add(digest)


def _put(folder: Path, path: str, data: bytes, written: Written) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    written.files[path] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _entries_path(namespace: str) -> str:
    """Plain letters as they are, all else as in a URL, and a long name by its digest."""
    data = namespace.encode()
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in data)
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME // 2]}~{hashlib.sha256(data).hexdigest()[:32]}"
    return f"entries/{name}.jsonl"


def _original_path(digest: str) -> str:
    return f"originals/{digest[:2]}/{digest}.bin"


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        with _opened(folder, _MANIFEST) as file:
            data = file.read(_LONGEST_MANIFEST + 1)
        if len(data) > _LONGEST_MANIFEST:
            raise _damaged(f"{_MANIFEST} has over {_LONGEST_MANIFEST} bytes")
        manifest = json.loads(data.decode("utf-8"))
    except InvalidInput:
        raise
    except FileNotFoundError:
        raise InvalidInput(
            "DIR", f"{folder} holds no {_MANIFEST}; give a folder that `export --to` has written"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(f"{_MANIFEST} cannot be read ({type(error).__name__})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidInput(
            "DIR", f"{_MANIFEST} is not of the format {FORMAT}; import it with the version that wrote it"
        )
    missing = manifest.get("missing_originals")
    if not isinstance(manifest.get("files"), dict) or not isinstance(missing, list):
        raise _damaged(f"{_MANIFEST} does not list the files")
    if not all(isinstance(each, str) for each in missing):
        raise _damaged(f"{_MANIFEST} does not list the missing originals by id")
    return manifest


def _opened(folder: Path, path: str) -> BinaryIO:
    """A file of an export to read: a plain one, in plain folders, since what others made may be a link that leads
    elsewhere, or a device or pipe that never ends. Raises `InvalidInput` and `OSError`."""
    place = folder
    for part in path.split("/"):
        if place is not folder and not stat.S_ISDIR(place.lstat().st_mode):
            raise _damaged(f"{path} is not in a plain folder")
        place = place / part
    if not stat.S_ISREG(place.lstat().st_mode):
        raise _damaged(f"{path} is not a plain file")
    return place.open("rb")


def _digest(folder: Path, path: str) -> str:
    digest = hashlib.sha256()
    try:
        with _opened(folder, path) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise _damaged(f"{path} cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()


def _read_entries(folder: Path, path: str) -> Iterator[tuple[MemoryEntry, int]]:
    """Each line's entry, with the number of its former versions. Raises `InvalidInput` that names the line."""
    with _opened(folder, path) as file:
        lines = file.read().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            yield read_entry(line)
        except (ValueError, KeyError, RecursionError) as error:
            raise _damaged(f"{path}, line {number}: {str(error)[:200]}") from None


def _damaged(what: str) -> InvalidInput:
    return InvalidInput("DIR", f"the export is damaged, and nothing was imported: {what}")
