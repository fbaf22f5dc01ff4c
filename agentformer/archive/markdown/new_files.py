"""Stores the entries of new files, and of files that another memory has written.

The id of a new file is recorded before its entry is stored, and the entry is stored before the id is written into the
file. After an interruption, the next sync finds the recorded id by the path of the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from agentformer.archive.markdown.entries import Categories, adopted, created
from agentformer.archive.markdown.folder import HomeFile, Record
from agentformer.archive.markdown.pages import EDITABLE, Page, values_of
from agentformer.archive.markdown.scan import Found, Scan
from agentformer.archive.markdown.writing import HomeWriter
from agentformer.errors import Conflict
from agentformer.memory.memory_manager import MemoryManager
from agentformer.types import MemoryBackend, MemoryEntry, new_id

T = TypeVar("T")
_PAGE = 500  # entries of one transaction
_New = tuple[MemoryEntry, Found]


@dataclass(slots=True)
class NewFiles:
    """The memory and the folder. `live` contains the versions of the live entries, to which new ones are added.
    `reporting` turns an error of the file with a name into a problem of the report."""

    memory: MemoryManager
    backend: MemoryBackend
    writer: HomeWriter
    categories: Categories
    live: dict[str, int]
    reporting: Callable[[str], AbstractContextManager[None]]

    def store(self, found: Scan, *, adopt: bool) -> None:
        """Store the entries of new files; with `adopt`, also of files whose id is not in the memory. Files whose entry
        exists already, because a sync was interrupted, are added to `found.entries`."""
        folder = self.writer.folder
        planned = {record.path: entry_id for entry_id, record in folder.records.items() if not record.version}
        new = [*self._planned(found.new, planned)]
        for entry, each in new:
            folder.records[entry.id] = Record(each.file.name, 0, each.sha256)
        if new:
            folder.save()
        for group in groups([*new, *(self._foreign(found) if adopt else ())]):
            self._store(found, group)
        for path, entry_id in planned.items():
            record = folder.records.get(entry_id)
            if record and not record.version and not folder.has(path):  # the file was deleted before it was written
                del folder.records[entry_id]
                if entry_id in self.live:
                    folder.records[entry_id] = dataclasses.replace(record, version=self.live[entry_id])

    def entry(self, page: Page, file: HomeFile, entry_id: str) -> MemoryEntry:
        """Return the new entry of a file. Raises `InvalidInput`."""
        placed = self.categories.placed(page, file)
        return created(placed, file, self.writer.folder.namespace, entry_id, self.memory.hierarchical.check_tier)

    def _planned(self, founds: Iterable[Found], planned: Mapping[str, str]) -> Iterator[_New]:
        for each in founds:
            with self.reporting(each.file.name):
                assert each.page
                known = planned.get(each.file.name, "")
                entry = self.entry(each.page, each.file, known or new_id())
                if entry.id in self.live and entry.id != known:
                    raise Conflict(f"a core block {entry.title[:80]!r} exists already; edit its file")
                yield entry, each

    def _foreign(self, found: Scan) -> Iterator[_New]:
        ids = [entry_id for entry_id in found.entries if entry_id not in self.live]
        stored = {entry.id for group in groups(ids) for entry in self.backend.get(group)}
        for entry_id in ids:
            each = found.entries[entry_id]
            if entry_id not in stored and each.page:
                del found.entries[entry_id]
                with self.reporting(each.file.name):
                    page = self.categories.placed(each.page, each.file)
                    yield adopted(page, self.writer.folder.namespace, self.memory.hierarchical.check_tier), each

    def _store(self, found: Scan, group: list[_New]) -> None:
        present = {entry.id for entry in self.backend.get([entry.id for entry, _ in group])}
        missing = [pair for pair in group if pair[0].id not in present]
        for entry, each in group:
            if entry.id in present:
                found.entries[entry.id] = each._replace(page=_complete(entry))
        for entry in self.backend.store([entry for entry, _ in missing]) if missing else ():
            self.live[entry.id] = entry.version
            self.categories.add(entry.category)
        stored = {entry.id: entry for entry in self.backend.get([entry.id for entry, _ in missing])}
        for entry, each in missing:
            self.writer.report.added.append(each.file.name)
            with self.reporting(each.file.name):
                self.writer.write(stored.get(entry.id, entry), each)


def _complete(entry: MemoryEntry) -> Page:
    """Return a page with all fields of the entry of a new file, also those that the file leaves out."""
    values = values_of(entry)
    fields: dict[str, Any] = {name: values[name] for name in EDITABLE}
    return Page({**fields, "id": entry.id})


def groups(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in lists of at most 500."""
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) == _PAGE:
            yield group
            group = []
    if group:
        yield group
