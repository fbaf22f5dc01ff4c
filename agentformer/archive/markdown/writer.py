"""Writes entries into the files of a memory home, records the synced versions, and reports what a sync did."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from agentformer.archive.markdown.entries import folder_of, is_same_folder
from agentformer.archive.markdown.folder import HomeFolder, Record
from agentformer.archive.markdown.pages import MAX_BYTES, render
from agentformer.archive.markdown.scan import Found
from agentformer.errors import InvalidInput
from agentformer.rag.folder_files import Problem
from agentformer.records.integrity.files import safe_file_name
from agentformer.types import MemoryEntry

_MEANWHILE = "was changed while it was synced; the next sync takes the change"


@dataclass(slots=True)
class HomeReport:
    """The result of a sync, or of an export into a memory home. Names are paths in the folder, with `/`.

    Changes of the memory: `added` are new files, `changed` edited files, `archived` deleted files whose entries were
    archived, and `restored` files that came back and restored their entries. `conflicts` are files whose entries were
    changed in the memory too. Changes of the folder: `written` and `deleted` files. `pending` are files that somebody
    has edited or deleted and that were not synced, each with the reason. `skipped` are files that are not memories, and
    `failed` files that cannot be used. `unchanged` is the number of files that needed no change."""

    folder: str
    namespace: str
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    archived: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)
    conflicts: list[Problem] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    pending: list[Problem] = field(default_factory=list)
    skipped: list[Problem] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    unchanged: int = 0
    seconds: float = 0.0

    @property
    def changes_anything(self) -> bool:
        """True if the sync has changed the memory or the folder."""
        return bool(self.added or self.changed or self.archived or self.restored or self.written or self.deleted)

    @property
    def complete(self) -> bool:
        """True if every file could be used, and no field was changed both in a file and in the memory."""
        return not self.failed and not self.conflicts


class HomeWriter:
    """Writes entries of the memory into their files in a memory home, deletes the files of other entries, and adds the
    names of these files to the report of the sync."""

    def __init__(self, folder: HomeFolder, report: HomeReport) -> None:
        self.folder = folder
        self.report = report

    def write(self, entry: MemoryEntry, each: Found | None) -> None:
        """Write an entry into its file, unless the file already contains it, and record that both are equal. `each` is
        the present file, if there is one. If somebody has changed the file meanwhile, it is not written, but added to
        the report as `pending`. Raises `InvalidInput` for an entry that is too long for a file, and `OSError` if the
        file cannot be written."""
        data, record = render(entry), self.folder.records.get(entry.id)
        if len(data) > MAX_BYTES:
            raise InvalidInput("entry", f"{entry.id} needs {len(data):,} bytes in a file; the limit is {MAX_BYTES:,}")
        name, digest = self._path(entry, each), hashlib.sha256(data).hexdigest()
        if each is not None and name == each.file.name and self._is_in_step(entry, each, digest, record):
            self.folder.records[entry.id] = Record(name, entry.version, each.sha256, each.file.stamp)
            self.report.unchanged += 1
        elif self.folder.write(name, data, each.file if each else None):
            self.folder.records[entry.id] = Record(name, entry.version, digest, self.folder.stamp(name))
            self.report.written.append(name)
        else:
            if each is not None:  # the next sync compares the file with this version
                self.folder.records[entry.id] = Record(each.file.name, entry.version, each.sha256)
            self.report.pending.append(Problem(name, _MEANWHILE))

    def delete(self, entry_id: str, each: Found) -> None:
        """Delete the file of an entry that is no longer live, unless somebody has changed it meanwhile."""
        if self.folder.remove(each.file):
            self.report.deleted.append(each.file.name)
            self.folder.records.pop(entry_id, None)

    def _is_in_step(self, entry: MemoryEntry, each: Found, digest: str, record: Record | None) -> bool:
        """Return whether a file needs no change: it has the same bytes, or differs from its entry only in its form,
        such as the order of its lines."""
        if each.sha256 == digest:
            return True
        if record is None or record.version != entry.version:
            return False
        page = each.page
        return page is None or (page.id == entry.id and page.version == entry.version and not page.edits(entry))

    def _path(self, entry: MemoryEntry, each: Found | None) -> str:
        """Return the path for the file of an entry: the present path if it is in the folder of the entry's category,
        otherwise a new path in this folder."""
        folder = folder_of(entry)
        if each is not None and is_same_folder(each.file.category_folder, folder):
            return each.file.name
        wanted = PurePosixPath(folder, PurePosixPath(each.file.name).name if each else f"{safe_file_name(entry.id)}.md")
        path, number = wanted, 1
        while self.folder.has(str(path)):
            number += 1
            path = wanted.with_name(f"{wanted.stem} {number}{wanted.suffix}")
        return str(path)
