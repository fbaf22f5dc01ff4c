"""Syncs a memory home with its memory.

The base of a file is the version of its entry from which the file was written. A field that differs from the base only
in the file is stored as a new version of the entry. A field that differs only in the memory is written into the file.
If a field differs in both, the value in the file is used, the version of the memory stays in the history, and the
report names the field. If an entry was removed in one place and changed in the other, the changed entry is kept.

Each step is repeatable: after an interruption at any point, the next sync ends in the same state. The id of a new file
is recorded before its entry is stored, and the entry is stored before the id is written into the file, so that the next
sync finds the recorded id by the path of the file. A file is replaced as a whole, and the record is written last.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentformer.archive import batches
from agentformer.archive.markdown.entries import Categories, adopted, belongs, created, scope_of, why_not_live
from agentformer.archive.markdown.file_matching import Found, HomeReport, HomeWriter, Scan, scan
from agentformer.archive.markdown.folder import HomeFile, HomeFolder, Record, check_loss
from agentformer.archive.markdown.pages import EDITABLE, Page, is_same, render, values_of
from agentformer.errors import AgentFormerError, Conflict, InvalidInput, SpaceMismatch, StoreError, retried
from agentformer.memory.backends import all_entries, is_expired
from agentformer.memory.memory_manager import MemoryManager
from agentformer.rag.folder_files import Problem
from agentformer.records.codec import now
from agentformer.types import MemoryBackend, MemoryEntry, new_id

_EXPORTED = "was changed in the folder; `agentformer sync` stores the change"
_RESTORED = "was removed from the memory and edited in the folder"
_BATCH = 500  # entries that the backend reads or stores in one call
_New = tuple[MemoryEntry, Found]


class HomeSync:
    """One sync of a memory home. If `store_edits` is false, the memory is not changed: the sync is an export, which
    writes only files that nobody has edited. If `adopt` is true, files of another memory are stored with their ids."""

    def __init__(
        self,
        memory: MemoryManager,
        backend: MemoryBackend,
        folder: HomeFolder,
        categories: Iterable[str],
        *,
        store_edits: bool = True,
        adopt: bool = False,
    ) -> None:
        self._memory = memory
        self._backend = backend
        self._folder = folder
        self._store_edits = store_edits
        self._adopt = adopt
        self._live: dict[str, int] = {}  # versions of the live entries
        self._report = HomeReport(str(folder.root), folder.namespace)
        self._writer = HomeWriter(folder, self._report)
        known = Categories(categories, folder)
        self._new_files = NewFiles(memory, backend, self._writer, known, self._live, self._reporting)

    def run(self, *, delete: bool = False) -> HomeReport:
        """Sync, and return the report. Unless `delete` is true, raises `InvalidInput` and changes nothing if more than
        half of the files or of their entries are gone."""
        started = time.monotonic()
        with self._folder.locked():
            if self._adopt:
                self._folder.records = {}  # they may describe another memory
            for entry in all_entries(self._backend, scope_of(self._folder.namespace)):
                if belongs(entry, self._folder.namespace):
                    self._live[entry.id] = entry.version
                    self._new_files.categories.add(entry.category)
            found = scan(self._folder, self._live)
            gone = self._gone(found)
            if not delete:
                self._refuse_loss(gone)
            try:
                self._sync(found, gone)
            finally:
                self._folder.save()
        self._report.failed += self._folder.failed
        self._report.skipped += self._folder.skipped
        self._report.seconds = time.monotonic() - started
        return self._report

    def _gone(self, found: Scan) -> list[str]:
        """Return the ids of the entries whose files are recorded but gone."""
        records, present = self._folder.records, {*found.entries, *found.unusable}
        ids = (entry_id for entry_id, record in records.items() if record.synced and entry_id not in present)
        failed = {problem.name for problem in self._folder.failed}  # these files are not gone
        return [entry_id for entry_id in ids if records[entry_id].path not in failed]

    def _refuse_loss(self, gone: list[str]) -> None:
        """Raise `InvalidInput` if more than half of the recorded files are gone, or if more than half of the recorded
        entries are not in this memory: the folder or the memory is probably the wrong one. Not called with `delete`."""
        records = [entry_id for entry_id, record in self._folder.records.items() if record.synced]
        lost = [entry_id for entry_id in gone if entry_id in self._live]
        advice = "check that the folder is complete, or archive their entries with --delete (`delete=True`)"
        check_loss(f"files of {self._folder.root} are gone", lost, len(records), advice)
        missing = [entry_id for entry_id in records if entry_id not in self._live]
        stored = {entry.id for ids in batches(missing, _BATCH) for entry in self._backend.get(ids)}
        advice = "the folder is the home of another memory (--adopt stores its files here), or the entries were "
        advice += "deleted (--delete removes their files)"
        unknown = [entry_id for entry_id in missing if entry_id not in stored]
        check_loss(f"entries of {self._folder.root} are not in this memory", unknown, len(records), advice)

    def _sync(self, found: Scan, gone: list[str]) -> None:
        """Sync new, known and deleted files (`gone` are the ids of their entries), and then entries without a file."""
        if self._store_edits:
            self._new_files.store(found, adopt=self._adopt)
        else:
            self._report.pending += [Problem(each.file.name, _EXPORTED) for each in found.new]
        for entry_id, each in found.entries.items():
            with self._reporting(each.file.name):
                retried(partial(self._compare, entry_id, each))
        for entry_id in gone:
            with self._reporting(self._folder.records[entry_id].path):
                self._sync_deleted(entry_id, complete=found.complete)
        with_file = {*self._folder.records, *found.entries, *found.unusable}
        for entry_id in sorted(self._live.keys() - with_file):
            with self._reporting(entry_id):
                if entry := self._entry(entry_id):
                    self._writer.write(entry, None)

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        """Turn an error of one file into a problem of the report. An error of the whole store is raised."""
        try:
            yield
        except (SpaceMismatch, StoreError):
            raise
        except AgentFormerError as error:
            self._report.failed.append(Problem(name, str(error)))
        except OSError as error:
            self._report.failed.append(Problem(name, f"cannot be written: {error.strerror or error}"))

    def _compare(self, entry_id: str, each: Found) -> None:
        """Compare a file with its entry, and sync them."""
        record = self._folder.records.get(entry_id)
        entry = self._entry(entry_id)
        if entry is None or not belongs(entry, self._folder.namespace):
            self._sync_unknown(entry_id, entry, each)
        elif reason := why_not_live(entry):
            self._sync_not_live(entry, each, reason)
        elif each.unchanged:
            self._writer.write(entry, each)
        elif self._store_edits:
            self._merge(entry, each)
        elif record is None and hashlib.sha256(render(entry)).hexdigest() == each.sha256:
            self._writer.write(entry, each)  # the file is of an export that was interrupted
        else:
            self._report.pending.append(Problem(each.file.name, _EXPORTED))

    def _merge(self, entry: MemoryEntry, each: Found) -> None:
        """Store the changes of the file as a new version of the entry, and write the result into the file."""
        updates, both = self._updates(entry, each)
        if not updates:
            self._writer.write(entry, each)
            return
        changed = self._memory.update(entry.id, expected_version=entry.version, **updates)
        self._report.changed.append(each.file.name)
        if both:
            reason = (
                f"{', '.join(both)} changed on both sides: version {changed.version} has the text of the file, and "
                f"version {entry.version} that of the memory; see: agentformer history {entry.id}"
            )
            self._report.conflicts.append(Problem(each.file.name, reason))
        self._writer.write(changed, each)

    def _updates(self, entry: MemoryEntry, each: Found) -> tuple[dict[str, Any], list[str]]:
        """Return the fields that the file changes, and the names of those fields that the memory has changed too."""
        record, page = self._folder.records.get(entry.id), each.edited
        version = (record.version or 1) if record else page.version  # a new file was stored as version 1
        base = self._version(entry, version)
        edits = self._new_files.categories.moved(page, each.file, base or entry).edits(base or entry)
        current, former = values_of(entry), values_of(base) if base else None
        updates = {name: value for name, value in edits.items() if not is_same(value, current[name])}
        unknown = base is None and page.version != entry.version
        both = [name for name in updates if unknown or (former and not is_same(current[name], former[name]))]
        return updates, both

    def _version(self, entry: MemoryEntry, version: int) -> MemoryEntry | None:
        """Return this version of the entry, or None if it does not exist. A former version is read from the history."""
        if version in (entry.version, 0):
            return entry if version else None
        return next((former for former in self._backend.history(entry.id) if former.version == version), None)

    def _sync_unknown(self, entry_id: str, entry: MemoryEntry | None, each: Found) -> None:
        """Handle a file whose id is not the id of an entry of this home. If the entry was removed from the memory after
        the last sync, delete an unchanged file, and store an edited file as a new entry. Otherwise, the file does not
        belong to this home, and `InvalidInput` is raised."""
        record = self._folder.records.get(entry_id)
        if record is None or entry is not None:
            problem = "is of another namespace or kind" if entry else "is not in this memory"
            raise InvalidInput("id", f"{entry_id} {problem}; remove the line `id:` to store the file as a new memory")
        if each.unchanged:
            self._writer.delete(entry_id, each)
        elif self._store_edits:
            self._keep_as_new(entry_id, each)
        else:
            self._report.pending.append(Problem(each.file.name, _EXPORTED))

    def _sync_not_live(self, entry: MemoryEntry, each: Found, reason: str) -> None:
        """Handle a file whose entry is archived or superseded. Delete a file that nobody has edited. Restore an
        archived entry if its file was edited or was put back. If the entry is superseded or summarized, store an edited
        file as a new entry, and raise `InvalidInput` with `reason` for a file that was put back."""
        record = self._folder.records.get(entry.id)
        synced = record is not None and record.synced  # if not, the file was put back
        if each.unchanged:
            self._writer.delete(entry.id, each)
        elif not self._store_edits:
            self._report.pending.append(Problem(each.file.name, _EXPORTED))
        elif entry.archived_by is None and entry.superseded_by is None:
            self._restore(entry, each, conflict=synced)
        elif synced:
            self._keep_as_new(entry.id, each)
        else:
            raise InvalidInput("id", f"{entry.id} {reason}")

    def _restore(self, entry: MemoryEntry, each: Found, *, conflict: bool) -> None:
        """Make an archived entry live again with the edits of its file. `conflict` is true if both sides changed it."""
        updates, _ = self._updates(entry, each)
        expiry = {"expires_at": None} if is_expired(entry) else {}
        live = self._backend.update(entry.id, {"archived_at": None, **expiry}, entry.version)
        if updates:
            live = self._memory.update(entry.id, expected_version=live.version, **updates)
        self._report.restored.append(each.file.name)
        if conflict:
            reason = "was archived in the memory and edited in the folder; the entry is live again, with the edits"
            self._report.conflicts.append(Problem(each.file.name, reason))
        self._writer.write(live, each)

    def _keep_as_new(self, entry_id: str, each: Found) -> None:
        """Store an edited file, whose entry cannot be changed any more, as a new entry."""
        page = Page({name: value for name, value in each.edited.values.items() if name != "id"})
        new = self._new_files.entry(page, each.file, new_id())
        self._folder.records[new.id] = Record(each.file.name, 0, each.sha256)
        self._folder.records.pop(entry_id, None)
        self._folder.save()
        (stored,) = self._backend.store([new])
        self._report.conflicts.append(Problem(each.file.name, f"{_RESTORED}; the file is the new entry {stored.id}"))
        self._writer.write(stored, each)

    def _sync_deleted(self, entry_id: str, *, complete: bool) -> None:
        """Archive the entry of a file that was deleted. If the entry has changed since the last sync, write the file
        again. If `complete` is false (see `Scan`), only report the file, because it may still exist."""
        record = self._folder.records[entry_id]
        entry = self._entry(entry_id)
        if entry is None or why_not_live(entry):
            del self._folder.records[entry_id]
            return
        if not self._store_edits or not complete:
            reason = "was deleted; " + (
                "`agentformer sync` archives its entry"
                if complete
                else "its entry is archived when the files with errors are mended, because one of them may be this file"
            )
            self._report.pending.append(Problem(record.path, reason))
            return
        base = self._version(entry, record.version)
        if base is None or not is_same(_content(base), _content(entry)):
            reason = f"was deleted, but the memory has changed its entry {entry.id}; the file is written again"
            self._report.conflicts.append(Problem(record.path, reason))
            self._writer.write(entry, None)
            return
        self._archive(entry)
        del self._folder.records[entry_id], self._live[entry_id]
        self._report.archived.append(record.path)

    def _archive(self, entry: MemoryEntry) -> None:
        try:
            self._backend.update(entry.id, {"archived_at": now()}, entry.version)
        except InvalidInput:  # a summary with originals, which become live again
            self._backend.restore(entry.id)

    def _entry(self, entry_id: str) -> MemoryEntry | None:
        return next(iter(self._backend.get([entry_id])), None)


def _content(entry: MemoryEntry) -> dict[str, Any]:
    return {name: value for name, value in values_of(entry).items() if name not in ("version", "updated_at")}


@dataclass(slots=True)
class NewFiles:
    """Stores the entries of new files. `live` contains the version of each live entry, and new entries are added to it.
    `reporting(name)` returns a context in which an error becomes a problem of the file `name` in the report."""

    memory: MemoryManager
    backend: MemoryBackend
    writer: HomeWriter
    categories: Categories
    live: dict[str, int]
    reporting: Callable[[str], AbstractContextManager[None]]

    def store(self, found: Scan, *, adopt: bool) -> None:
        """Store the entries of new files. With `adopt`, files whose id is not in the memory are new, too. If a sync was
        interrupted, the entry of a file may exist already; this file is added to `found.entries`."""
        folder = self.writer.folder
        planned = {record.path: entry_id for entry_id, record in folder.records.items() if not record.synced}
        new = [*self._planned(found.new, planned)]
        for entry, each in new:
            folder.records[entry.id] = Record(each.file.name, 0, each.sha256)
        if new:
            folder.save()
        for group in batches([*new, *(self._foreign(found) if adopt else ())], _BATCH):
            self._store(found, group)
        for path, entry_id in planned.items():
            record = folder.records.get(entry_id)
            if record and not record.synced and not folder.has(path):  # the file was deleted before it was written
                del folder.records[entry_id]
                if entry_id in self.live:
                    folder.records[entry_id] = dataclasses.replace(record, version=self.live[entry_id])

    def entry(self, page: Page, file: HomeFile, entry_id: str) -> MemoryEntry:
        """Return the new entry of a file. Raises `InvalidInput` if a value in the file is not valid."""
        placed = self.categories.placed(page, file)
        return created(placed, file, self.writer.folder.namespace, entry_id, self.memory.hierarchical.check_tier)

    def _planned(self, founds: Iterable[Found], planned: Mapping[str, str]) -> Iterator[_New]:
        for each in founds:
            with self.reporting(each.file.name):
                known = planned.get(each.file.name, "")
                entry = self.entry(each.edited, each.file, known or new_id())
                if entry.id in self.live and entry.id != known:
                    raise Conflict(f"a core block {entry.title[:80]!r} exists already; edit its file")
                yield entry, each

    def _foreign(self, found: Scan) -> Iterator[_New]:
        """Remove the files whose ids the memory does not have from `found.entries`, and yield their new entries."""
        ids = [entry_id for entry_id in found.entries if entry_id not in self.live]
        stored = {entry.id for group in batches(ids, _BATCH) for entry in self.backend.get(group)}
        for entry_id in ids:
            each = found.entries[entry_id]
            if entry_id not in stored and each.page:
                del found.entries[entry_id]
                with self.reporting(each.file.name):
                    page = self.categories.placed(each.page, each.file)
                    yield adopted(page, self.writer.folder.namespace, self.memory.hierarchical.check_tier), each

    def _store(self, found: Scan, group: list[_New]) -> None:
        """Store these entries, and write them into their files. A file whose entry the memory has already, from a sync
        that was interrupted, is added to `found.entries` instead."""
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
    """Return a page with all editable fields of a new entry, some of which its file may leave out."""
    values = values_of(entry)
    return Page({name: values[name] for name in (*EDITABLE, "id")})
