"""Keeps the documents of a folder equal to its files.

A document belongs to a folder if it was stored with this folder as its root. Each document has the stamp of its file
(size, time of the last change, number of the file), so that a file whose stamp is equal is not read again. Each file is
stored in one transaction, so a sync that was interrupted is continued by the next one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from unicodedata import normalize

from agentformer.errors import AgentFormerError, Conflict, InvalidInput, NotFound, SpaceMismatch, StoreError
from agentformer.rag.documents import Document
from agentformer.rag.folder_files import FolderFile, FolderFiles, Problem, read_file, why_unread
from agentformer.rag.uploads import Origin
from agentformer.types import MemoryEntry, Scope

SyncProgress = Callable[[int, int], None]  # number of handled files, number of all files
_UNUSABLE = ("failed", "encrypted", "no_text", "garbled")


class DocumentChanges(NamedTuple):
    """The functions that change documents. `put` stores bytes as the document of its origin, and returns the stored
    document. `rename` gives a stored document with the same bytes another name, origin and stamp, and keeps its chunks
    with their vectors. `remove` deletes the document with an id, or raises `NotFound`. `is_text` tells
    whether the beginning of a file is text."""

    put: Callable[[bytes, Document], Document]
    rename: Callable[[bytes, MemoryEntry, Document], Document]
    remove: Callable[[str], None]
    is_text: Callable[[bytes], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class SyncReport:
    """The result of a sync. The names are paths in the folder, with `/`. `renamed` contains pairs of the former and the
    new name. `skipped` are files that were left out and `failed` those that could not be read or have no usable text,
    each with the reason. `unchanged` is a number of files."""

    folder: str
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: int = 0
    skipped: tuple[Problem, ...] = ()
    failed: tuple[Problem, ...] = ()
    seconds: float = 0.0


class FolderSync:
    """One sync of the folder `root` with the documents of a namespace. `metadata` is stored with new and changed
    documents; None keeps that of changed documents."""

    def __init__(
        self,
        changes: DocumentChanges,
        root: Path,
        namespace: str,
        metadata: Mapping[str, Any] | None,
        max_bytes: int,
    ) -> None:
        self._changes = changes
        self._origin = Origin.of_file(root).path
        self._root = Path(self._origin)
        self._namespace = namespace
        self._metadata = metadata
        self._max_bytes = max_bytes
        self._found = FolderFiles(self._root, max_bytes)
        self._lists: dict[str, list[Any]] = {"added": [], "changed": [], "renamed": [], "removed": []}
        self._unchanged = 0

    @property
    def scope(self) -> Scope:
        """The documents of the folder."""
        return Scope(self._namespace, kinds=("document",), metadata={"root": self._origin})

    def run(
        self, documents: Iterable[MemoryEntry], *, delete: bool = False, progress: SyncProgress | None = None
    ) -> SyncReport:
        """Store new and changed files, rename moved ones, and remove the documents of files that are gone. `documents`
        are the stored ones of `scope`. Raises `InvalidInput` if the folder is missing, or if more than half of its
        files are gone, unless `delete` is true."""
        started = time.monotonic()
        stored = {entry.metadata["origin"]: entry for entry in documents}
        files = self._files(delete=delete)
        present = {self._path_of(file) for file in files}
        gone = {origin: entry for origin, entry in stored.items() if origin not in present}
        if not self._found.complete:
            gone = {}  # a file in a folder that could not be listed may still exist
        moved = _by_content(gone.values())
        work = [file for file in files if not self._is_unchanged(file, stored.get(self._path_of(file)))]
        self._refuse_loss(gone, stored, work, delete=delete)
        for number, file in enumerate(work):
            if progress:
                progress(number, len(work))
            if former := self._handle(file, stored.get(self._path_of(file)), moved):
                del gone[former.metadata["origin"]]
        for entry in gone.values():
            self._remove(entry)
        if progress:
            progress(len(work), len(work))
        lists: dict[str, Any] = {name: tuple(items) for name, items in self._lists.items()}
        return SyncReport(
            self._origin,
            unchanged=self._unchanged,
            skipped=tuple(self._found.skipped),
            failed=tuple(self._found.failed),
            seconds=time.monotonic() - started,
            **lists,
        )

    def _path_of(self, file: FolderFile) -> str:
        return file.path.as_posix().encode("utf-8", "backslashreplace").decode()

    def _files(self, *, delete: bool) -> list[FolderFile]:
        if delete and not self._root.exists():
            return []
        return list(self._found.files())

    def _is_unchanged(self, file: FolderFile, entry: MemoryEntry | None) -> bool:
        if entry is None or not file.stamp or entry.metadata.get("stamp") != file.stamp:
            return False
        self._count_same(file, entry)
        return True

    def _count_same(self, file: FolderFile, entry: MemoryEntry) -> None:
        if entry.metadata["status"] in _UNUSABLE:
            self._found.failed.append(Problem(file.name, entry.metadata["reason"]))
        else:
            self._unchanged += 1

    def _refuse_loss(
        self,
        gone: Mapping[str, MemoryEntry],
        stored: Mapping[str, MemoryEntry],
        work: Iterable[FolderFile],
        *,
        delete: bool,
    ) -> None:
        """Raise `InvalidInput` if more than half of the files are gone. A file is not gone if it may have been moved: a
        new file has its size."""
        new = Counter(file.size for file in work if self._path_of(file) not in stored)
        moved = new & Counter(entry.metadata["bytes"] for entry in gone.values())
        lost = len(gone) - moved.total()
        if not delete and lost > 1 and lost * 2 > len(stored):
            raise InvalidInput(
                "folder",
                f"{lost} of {len(stored)} files of {self._root} are gone, so nothing was changed; check that the "
                "folder is complete, or allow the removal of their documents with --delete (`delete=True`)",
            )

    def _handle(
        self, file: FolderFile, entry: MemoryEntry | None, moved: dict[tuple[str, str], list[MemoryEntry]]
    ) -> MemoryEntry | None:
        """Store one file. Return the document that the file was moved from, if it was moved."""
        try:
            data, stamp = read_file(file, self._max_bytes, self._changes.is_text)
            if not data:
                self._leave_out(file, entry)
                return None
            document = self._document(file, data, stamp)
            candidates = moved.get((document.sha256, file.path.suffix), []) if entry is None else []
            if candidates:
                former = candidates.pop()
                self._changes.rename(data, former, document)
                self._lists["renamed"].append((self._name_of(former), file.name))
                return former
            self._put(file, entry, data, document)
        except (SpaceMismatch, StoreError):
            raise  # no file can be stored
        except AgentFormerError as error:
            self._found.failed.append(Problem(file.name, str(error).removeprefix("file ")))
        return None

    def _leave_out(self, file: FolderFile, entry: MemoryEntry | None) -> None:
        with file.path.open("rb") as opened:
            reason = why_unread(opened.read(1 << 14), file.name, self._changes.is_text)
        self._found.skipped.append(Problem(file.name, reason or "is empty"))
        if entry is not None:
            self._remove(entry)

    def _document(self, file: FolderFile, data: bytes, stamp: str) -> Document:
        return Document(
            name=normalize("NFC", file.name),
            namespace=self._namespace,
            status="ready",
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            metadata=self._metadata or {},
            origin=self._path_of(file),
            root=self._origin,
            stamp=stamp,
        )

    def _put(self, file: FolderFile, entry: MemoryEntry | None, data: bytes, document: Document) -> None:
        result = self._changes.put(data, document)
        if result.status in _UNUSABLE:
            self._found.failed.append(Problem(file.name, result.reason))
        elif result.unchanged:
            self._unchanged += 1
        else:
            self._lists["added" if entry is None else "changed"].append(file.name)

    def _remove(self, entry: MemoryEntry) -> None:
        try:
            self._changes.remove(entry.id)
        except (NotFound, Conflict):  # another caller has removed or replaced it
            return
        self._lists["removed"].append(self._name_of(entry))

    def _name_of(self, entry: MemoryEntry) -> str:
        return str(entry.metadata["origin"]).removeprefix(self._origin).lstrip("/")


def _by_content(entries: Iterable[MemoryEntry]) -> dict[tuple[str, str], list[MemoryEntry]]:
    """Return the usable documents by the hash of their bytes and the extension of their files."""
    found: dict[tuple[str, str], list[MemoryEntry]] = {}
    for entry in entries:
        if entry.metadata["status"] == "ready":
            key = entry.metadata["sha256"], PurePosixPath(entry.metadata["origin"]).suffix
            found.setdefault(key, []).append(entry)
    return found
