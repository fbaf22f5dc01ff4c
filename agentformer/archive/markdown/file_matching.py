"""The files of entries in a memory home. Before a sync changes anything, this module finds out which file belongs to
which entry. It also writes entries into their files, records the synced versions, and reports what the sync did."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from agentformer.archive.markdown.entries import folder_of
from agentformer.archive.markdown.folder import HomeFile, HomeFolder, Record
from agentformer.archive.markdown.pages import MAX_BYTES, Page, id_in, parse, render
from agentformer.errors import InvalidInput
from agentformer.rag.folder_files import Problem
from agentformer.records.integrity.files import safe_file_name
from agentformer.types import MemoryEntry

_MEANWHILE = "was changed while it was synced; the next sync stores the change"


class Found(NamedTuple):
    """A file of a memory home. `page` is the parsed file, or None if it has not changed since the last sync."""

    file: HomeFile
    sha256: str
    page: Page | None

    @property
    def unchanged(self) -> bool:
        """Whether the file has not changed since the last sync."""
        return self.page is None

    @property
    def edited(self) -> Page:
        """The parsed file. The file must have changed since the last sync."""
        if self.page is None:
            raise ValueError(f"{self.file.name} has not changed, so it was not parsed")
        return self.page


@dataclass(slots=True)
class Scan:
    """The files of a home. `entries` contains the file of each entry by the id of the entry, in the order of the file
    names. `new` contains the files without an id. `unusable` contains the ids of entries whose files have errors.
    `complete` is False if a folder could not be listed, or if it is not known to which entry an unusable file belongs.
    If `complete` is False, an entry may have a file that is not in `entries`."""

    entries: dict[str, Found] = field(default_factory=dict)
    new: list[Found] = field(default_factory=list)
    unusable: set[str] = field(default_factory=set)
    complete: bool = True


def scan(folder: HomeFolder, versions: Mapping[str, int]) -> Scan:
    """Read the changed files of the folder of a memory. `versions` contains the version of each live entry. A file is
    not read if its stamp (see `Record`) and the version of its entry are the same as in the last sync. Files that
    cannot be used are added to `folder.failed`."""
    result = Scan()
    recorded = {record.path: entry_id for entry_id, record in folder.records.items()}
    claims: dict[str, list[Found]] = {}
    for file in folder.files():
        known = recorded.get(file.name, "")
        try:
            entry_id, found = _look(folder, file, known, versions)
        except InvalidInput as error:
            folder.failed.append(Problem(file.name, str(error).removeprefix("file: ")))
            guess = known or _guess(folder, file)
            result.unusable.add(guess)
            result.complete &= bool(guess)
            continue
        if entry_id:
            claims.setdefault(entry_id, []).append(found)
        else:
            result.new.append(found)
    for entry_id, founds in claims.items():
        if chosen := _choose(folder, entry_id, founds):
            result.entries[entry_id] = chosen
        else:
            result.unusable.add(entry_id)
    result.complete &= not any(problem.reason.startswith("the folder cannot") for problem in folder.failed)
    return result


def _look(folder: HomeFolder, file: HomeFile, known: str, versions: Mapping[str, int]) -> tuple[str, Found]:
    """Return the id of the entry of a file ("" for a new file), and the file. `known` is the id that the last sync has
    recorded for the path of the file, or "". Raises `InvalidInput` if the file cannot be read or parsed."""
    record = folder.records.get(known)
    if record and record.synced and record.stamp == file.stamp != "" and versions.get(known) == record.version:
        return known, Found(file, record.sha256, None)
    data = folder.read(file)
    digest = hashlib.sha256(data).hexdigest()
    if record and record.synced and record.sha256 == digest:
        return known, Found(file, digest, None)
    page = parse(data)
    if record and not record.synced and page.id != known and page.id not in versions:
        page = Page({name: value for name, value in page.values.items() if name != "id"})
        known = ""  # a file whose entry was being stored under a new id
    return page.id or known, Found(file, digest, page)


def _choose(folder: HomeFolder, entry_id: str, founds: list[Found]) -> Found | None:
    """Return the file of an entry. If several files have its id, return the file at the path of the last sync, or None
    if none of them is there. The other files are added to `folder.failed`."""
    record = folder.records.get(entry_id)
    if len(founds) == 1:
        return founds[0]
    chosen = next((found for found in founds if record and found.file.name == record.path), None)
    names = ", ".join(found.file.name for found in founds)
    for found in founds:
        if found is not chosen:
            reason = f"several files have the id {entry_id} ({names}); remove the line `id:` from a copy"
            folder.failed.append(Problem(found.file.name, reason[:500]))
    return chosen


def _guess(folder: HomeFolder, file: HomeFile) -> str:
    try:
        return id_in(folder.read(file))
    except InvalidInput:
        return ""


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
    """Writes entries of the memory into their files in a memory home, and deletes the files of entries that are
    removed, archived or superseded. Adds the name of each written or deleted file to the report of the sync."""

    def __init__(self, folder: HomeFolder, report: HomeReport) -> None:
        self.folder = folder
        self.report = report

    def write(self, entry: MemoryEntry, each: Found | None) -> None:
        """Write an entry into its file, unless the file already contains it, and record that both are equal. `each` is
        the present file, if there is one. If somebody has changed the file since it was read, it is not written, but
        added to the report as `pending`. Raises `InvalidInput` for an entry that is too long for a file, and `OSError`
        if the file cannot be written."""
        data, record = render(entry), self.folder.records.get(entry.id)
        if len(data) > MAX_BYTES:
            raise InvalidInput("entry", f"{entry.id} needs {len(data):,} bytes in a file; the limit is {MAX_BYTES:,}")
        name, digest = self._path(entry, each), hashlib.sha256(data).hexdigest()
        if each is not None and name == each.file.name and self._is_current(entry, each, digest, record):
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
        """Delete the file of an entry that is removed, archived or superseded. A file that somebody has changed since
        it was read is not deleted."""
        if self.folder.remove(each.file):
            self.report.deleted.append(each.file.name)
            self.folder.records.pop(entry_id, None)

    def _is_current(self, entry: MemoryEntry, each: Found, digest: str, record: Record | None) -> bool:
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
        if each is not None and self.folder.is_one_folder(each.file.category_folder, folder):
            return each.file.name
        wanted = PurePosixPath(folder, PurePosixPath(each.file.name).name if each else f"{safe_file_name(entry.id)}.md")
        path, number = wanted, 1
        while self.folder.has(str(path)):
            number += 1
            path = wanted.with_name(f"{wanted.stem} {number}{wanted.suffix}")
        return str(path)
