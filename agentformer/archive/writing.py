"""Writing an export: all of some namespaces as they were at one moment, an entry at a time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentformer.archive.folders import WrittenFile, new_folder, written_file
from agentformer.archive.layout import (
    FORMAT,
    LONGEST_LINE,
    MANIFEST,
    entries_path,
    has_original,
    original_path,
    vectors_path,
)
from agentformer.archive.lines import entry_lines
from agentformer.archive.originals import copied
from agentformer.archive.vectors import vector_line
from agentformer.errors import StoreError
from agentformer.rag.documents import Originals
from agentformer.types import EmbeddingSpace, MemoryBackend, MemoryEntry, MemorySnapshot, Scope

_PAGE = 50  # entries listed at a time; each may have a million characters


@dataclass(slots=True)
class Exported:
    """What an export came to."""

    namespaces: dict[str, int] = field(default_factory=dict)  # entries by namespace
    former: int = 0  # former versions
    originals: int = 0
    missing_originals: list[str] = field(
        default_factory=list
    )  # ids of documents whose original is not there or damaged
    vectors: int = 0


def export_to(
    folder: Path,
    backend: MemoryBackend,
    originals: Originals,
    namespaces: Sequence[str] | None,
    *,
    vectors: bool = False,
) -> Exported:
    """Write namespaces, or all of them, into a new folder. Raises `InvalidInput` for a folder that is not new,
    `StoreFull`, and `StoreDamaged` for entries that cannot be read; then there is no folder."""
    with new_folder(folder, "backup/monday") as partial, backend.snapshot() as snapshot:
        writer = _Writer(partial, snapshot, originals)
        asked = sorted(set(snapshot.namespaces() if namespaces is None else namespaces))
        writer.write_originals(asked)
        for namespace in asked:
            writer.write_entries(namespace)
        if vectors:
            writer.write_vectors(asked)
        writer.write_manifest()
    return writer.done


class _Writer:
    def __init__(self, folder: Path, snapshot: MemorySnapshot, originals: Originals) -> None:
        self._folder = folder
        self._snapshot = snapshot
        self._originals = originals
        self._files: dict[str, dict[str, Any]] = {}
        self._spaces: dict[str, dict[str, Any]] = {}
        self.done = Exported()

    def write_originals(self, namespaces: Sequence[str]) -> None:
        """First of all: an original goes when its document is removed, whatever the snapshot still shows."""
        for entry in self._all(namespaces, kinds=("document",)):
            path = original_path(entry.metadata["sha256"]) if has_original(entry) else ""
            if not path or path in self._files:
                continue
            if told := copied(self._originals, entry.metadata["sha256"], self._folder / path):
                self._files[path] = told
                self.done.originals += 1
            else:
                self.done.missing_originals.append(entry.id)

    def write_entries(self, namespace: str) -> None:
        path, count = entries_path(namespace), 0
        with written_file(self._folder / path) as file:
            for entry in self._all([namespace]):
                past = self._snapshot.history(entry.id)
                for line in entry_lines(entry, past):
                    _put_line(file, entry, line)
                count += 1
                self.done.former += len(past)
        self._files[path] = file.told
        self.done.namespaces[namespace] = count

    def write_vectors(self, namespaces: Sequence[str]) -> None:
        opened: dict[EmbeddingSpace, WrittenFile] = {}
        counts: dict[EmbeddingSpace, int] = {}
        with ExitStack() as files:
            for each in self._snapshot.vectors(namespaces):
                if each.space not in opened:
                    path = self._folder / vectors_path(each.space)
                    opened[each.space] = files.enter_context(written_file(path))
                opened[each.space].write(vector_line(each).encode())
                counts[each.space] = counts.get(each.space, 0) + 1
        for space, file in opened.items():
            self._files[vectors_path(space)] = file.told
            self._spaces[vectors_path(space)] = {"space": dataclasses.asdict(space), "count": counts[space]}
        self.done.vectors = sum(counts.values())

    def write_manifest(self) -> None:
        manifest = {
            "format": FORMAT,
            "namespaces": self.done.namespaces,
            "files": self._files,
            "missing_originals": sorted(self.done.missing_originals),
            "vectors": self._spaces,
        }
        text = json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True)
        with written_file(self._folder / MANIFEST) as file:
            file.write(f"{text}\n".encode())

    def _all(self, namespaces: Sequence[str], kinds: tuple[str, ...] = ()) -> Iterator[MemoryEntry]:
        for namespace in namespaces:
            scope, after = Scope(namespace, kinds=kinds, include_archived=True), ""
            while found := self._snapshot.list(scope, after=after, limit=_PAGE):
                yield from found
                after = found[-1].id


def _put_line(file: WrittenFile, entry: MemoryEntry, line: str) -> None:
    data = line.encode()
    if len(data) > LONGEST_LINE:
        raise StoreError(f"entry {entry.id} takes {len(data)} bytes, over the {LONGEST_LINE} of an export's line")
    file.write(data)
