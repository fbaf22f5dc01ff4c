"""Functions that change and check the records of a store. The parameter `records` maps ids to records. The caller must
pass a copy of the records, and discard it after an error, because the functions do not undo changes."""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from agentformer.errors import Conflict, NotFound
from agentformer.memory.backends import is_live, with_changes
from agentformer.memory.backends.local_json.file_format import Record, checked
from agentformer.memory.backends.local_json.locked_folder import Folder, write_error
from agentformer.records import supersession
from agentformer.records.consolidation import check_together, restore_error
from agentformer.records.duplicates import KnownEntries, comparable
from agentformer.records.entries import history_problem
from agentformer.records.integrity import Findings
from agentformer.records.integrity.files import read_file, write_atomically
from agentformer.records.integrity.verify import SUPERSEDED, lost_text
from agentformer.types import MemoryEntry, Use

Records = dict[str, Record]

log = logging.getLogger("agentformer")

_CLOCK_TOLERANCE = 1.0  # seconds
_EDIT = "correct the file in an editor"
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError)


def insert(records: Records, entry: MemoryEntry, former: tuple[MemoryEntry, ...] = ()) -> None:
    """Add an entry with its former versions. Raises `Conflict` if an entry with this id exists already."""
    if entry.id in records:
        raise Conflict(f"entry {entry.id} already exists; update it, or store the new entry with another id")
    records[entry.id] = Record(entry, former)


def insert_unique(records: Records, entries: Sequence[MemoryEntry], ignored: Collection[str]) -> list[str]:
    """Insert the entries that are not stored already. If an entry is stored already, increase the repeat count of the
    stored entry instead. For each entry, return the id of the stored entry. `ignored` are the ids of entries that will
    be deleted, so they do not count as stored."""
    texts, known = {comparable(entry.content) for entry in entries}, KnownEntries()
    for record in records.values():
        if record.entry.id not in ignored and comparable(record.entry.content) in texts:
            known.add(record.entry)
    stored = []
    for entry in entries:
        oldest = known.find(entry)
        if oldest is None:
            insert(records, entry)
            known.add(entry)
        else:
            _add_counts(records, oldest, entry.created_at, access_count=1, repeat_count=1)
        stored.append(oldest or entry.id)
    return stored


def count_uses(records: Records, uses: Iterable[Use]) -> None:
    """Add uses to the counts of entries. Missing ids are ignored."""
    for use in uses:
        if use.id in records:
            total = use.matches + use.reads + use.others
            _add_counts(records, use.id, use.at, match_count=use.matches, read_count=use.reads, access_count=total)


def _add_counts(records: Records, entry_id: str, at: datetime | None, **counts: int) -> None:
    entry = records[entry_id].entry
    totals = {name: getattr(entry, name) + count for name, count in counts.items()}
    last = max((moment for moment in (entry.last_accessed, at) if moment), default=None)
    records[entry_id] = records[entry_id].with_fields(last_accessed=last, **totals)


def with_dependents(records: Mapping[str, Record], ids: Iterable[str]) -> set[str]:
    """Return these ids and those of all entries that must be deleted with them: their parts and summaries."""
    to_delete = _with_parts(records, ids)
    while summaries := _summaries_of(records, to_delete) - to_delete:
        to_delete |= _with_parts(records, summaries)
    return to_delete


def _with_parts(records: Mapping[str, Record], ids: Iterable[str]) -> set[str]:
    """Return the ids in `ids` that exist, and the ids of all parts of these entries, including parts of parts. The
    `parent_id` of a part is the id of an entry of the same namespace, user and project."""
    parts: dict[tuple[str | None, ...], list[str]] = defaultdict(list)
    for entry_id, record in records.items():
        if record.entry.parent_id is not None:
            parts[record.entry.parent_id, *_owner(record.entry)].append(entry_id)
    visited: set[str] = set()
    queue = [entry_id for entry_id in ids if entry_id in records]
    while queue:
        entry_id = queue.pop()
        if entry_id not in visited:
            visited.add(entry_id)
            queue += parts[entry_id, *_owner(records[entry_id].entry)]
    return visited


def _owner(entry: MemoryEntry) -> tuple[str | None, ...]:
    return entry.namespace, entry.user_id, entry.project


def _summaries_of(records: Mapping[str, Record], ids: Collection[str]) -> set[str]:
    """Return the ids of all summaries that were made from these entries. Archived summaries are included, because a
    summary that was undone by `restore` still contains text of the entries."""
    live = {by for i in ids if (by := records[i].entry.archived_by) and by in records}
    archived = (r.entry for r in records.values() if r.entry.kind == "summary" and r.entry.archived_at)
    return live | {entry.id for entry in archived if any(link.id in ids for link in entry.derived_from)}


def delete(records: Records, ids: Collection[str]) -> None:
    """Delete the entries with these ids. The caller must include all ids of `with_dependents`. If a summary is deleted,
    the entries that it replaced and that are not deleted become live again. If a deleted entry superseded another
    entry, that other entry is current again."""
    for entry_id, record in list(records.items()):
        if entry_id in ids:
            del records[entry_id]
        elif record.entry.archived_by in ids:
            records[entry_id] = record.with_fields(archived_at=None, archived_by=None)
    release(records, ids)


def release(records: Records, ids: Collection[str]) -> None:
    """Make the predecessors of the entries `ids` (the entries that these entries superseded) current. Call only after
    the entries `ids` were removed, moved or archived. If a predecessor is archived without a summary, searches cannot
    find it, so its own predecessors become current, too. The former version of each changed entry is added to its
    history."""
    while ids:
        freed = [record for record in records.values() if record.entry.superseded_by in ids]
        for record in freed:
            current = supersession.current(record.entry, record.former)
            records[current.id] = record.replaced(current, (*record.former, record.entry))
        ids = {record.entry.id for record in freed if supersession.releases(records[record.entry.id].entry)}


def update(records: Records, entry_id: str, changes: Mapping[str, Any]) -> MemoryEntry:
    """Change fields of an entry, and add its former version to its history. Return the changed entry."""
    record = records[entry_id]
    check_free(records, record.entry, changes)
    changes = supersession.checked(record.entry, changes, _finder(records), lambda: record.former)
    changed = checked(with_changes(record.entry, changes))
    records[entry_id] = record.replaced(changed, (*record.former, record.entry))
    if supersession.is_moved(record.entry, changed) or supersession.releases(changed):
        release(records, [entry_id])
    return changed


def keep_valid(records: Records, ids: Iterable[str]) -> None:
    """Check the new entries `ids`: if an entry is superseded, but searches find no successor of it (see
    `supersession.is_lost`), set its `superseded_by` to None."""
    find, ending = _finder(records), set[str]()
    ids, lost = list(ids), True
    while lost:  # repeated: an entry of a cycle may be archived without a summary; its predecessors are then lost again
        lost = False
        for entry_id in ids:
            if supersession.is_lost(records[entry_id].entry, find, ending):
                lost, records[entry_id] = True, records[entry_id].with_fields(superseded_by=None)


def _finder(records: Mapping[str, Record]) -> supersession.FindEntry:
    return lambda entry_id: records[entry_id].entry if entry_id in records else None


def consolidate(
    records: Records, summary: MemoryEntry, ids: Iterable[str], versions: Mapping[str, int], at: datetime
) -> None:
    """Store a summary, and archive its originals (the entries that it summarizes) at the time `at`; `ids` are the ids
    of the originals. `versions` maps an id to the expected version of the original. Raises `Conflict` if an original
    has another version, is missing in the namespace of the summary, is archived or superseded, or is itself a
    summary."""
    summaries = {record.entry.archived_by for record in records.values()}
    for entry_id in ids:
        record = records.get(entry_id)
        expected = versions.get(entry_id)
        if record is not None and record.entry.namespace != summary.namespace:
            record = None
        if record is None or not is_live(record.entry) or expected not in (None, record.entry.version):
            raise Conflict(
                "some of the entries to archive are missing, changed, archived or superseded; select the entries again"
            )
        if entry_id in summaries:
            raise Conflict(
                f"{entry_id} is a summary of other entries and cannot be summarized; restore its originals first"
            )
        records[entry_id] = record.with_fields(archived_at=at, archived_by=summary.id)
    insert(records, summary)


def restore(records: Records, summary_id: str, at: datetime) -> list[str]:
    """Make the originals of a summary live again, and archive the summary at the time `at`. If the summary superseded
    another entry, that other entry is current again. Return the sorted ids of the originals."""
    summary = records.get(summary_id)
    if summary is None:
        raise NotFound(f"there is no entry {summary_id}")
    originals = [entry_id for entry_id, record in records.items() if record.entry.archived_by == summary_id]
    if not originals:
        raise restore_error(summary.entry)
    for entry_id in originals:
        records[entry_id] = records[entry_id].with_fields(archived_at=None, archived_by=None)
    records[summary_id] = summary.with_fields(archived_at=at)
    if summary.entry.superseded_by is None:
        release(records, [summary_id])
    return sorted(originals)


def check_free(records: Mapping[str, Record], entry: MemoryEntry, changes: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if `changes` would separate a summary from its originals; see `check_together`."""
    check_together(entry, changes, lambda: any(record.entry.archived_by == entry.id for record in records.values()))


def check_history(records: Mapping[str, Record]) -> Findings:
    """Check that the former versions of each entry have the right id and lower version numbers than the entry."""
    findings = Findings(
        "history", "each former version belongs to an entry and has a lower version number", _EDIT, len(records)
    )
    for record in records.values():
        if problem := history_problem(record.entry.id, record.entry.version, record.former):
            findings.add(problem, record.entry.id)
    return findings


def check_links(records: Mapping[str, Record]) -> Findings:
    """Check each entry that a summary replaces: the summary must exist in the same namespace and must not be archived,
    and the entry itself must be archived."""
    findings = Findings("links", "each entry that a summary replaces is archived", _EDIT)
    for record in records.values():
        entry = record.entry
        if entry.archived_by is None:
            continue
        findings.looked_at += 1
        summary = records.get(entry.archived_by)
        prefix = f"entry {entry.id} was archived for the summary {entry.archived_by}, which is"
        if summary is None or summary.entry.namespace != entry.namespace:
            findings.add(f"{prefix} missing")
        elif summary.entry.archived_at is not None:
            findings.add(f"{prefix} archived too")
        elif entry.archived_at is None:
            findings.add(f"entry {entry.id} is live, and so is its summary {entry.archived_by}")
    return findings


def check_superseded(records: Mapping[str, Record]) -> Findings:
    """Check that no superseded entry is lost: searches can find a successor (see `supersession.is_lost`). The keys of
    the findings are the ids of the lost entries, newest first."""
    findings = Findings("superseded", SUPERSEDED)
    findings.looked_at = sum(record.entry.superseded_by is not None for record in records.values())
    find, ending = _finder(records), set[str]()
    for entry_id in sorted(records, reverse=True):
        if supersession.is_lost(records[entry_id].entry, find, ending):
            findings.add(lost_text(records[entry_id].entry), entry_id)
    return findings


def repair_superseded(records: Records, ids: Iterable[str]) -> None:
    """Make each of these lost entries current again; `supersession.is_lost` defines which entries are lost. If an entry
    is no longer lost after the repair of another one, it is left as it is."""
    for entry_id in ids:
        record = records.get(entry_id)
        if record and supersession.is_lost(record.entry, _finder(records), set()):
            current = supersession.current(record.entry, record.former)
            records[entry_id] = record.replaced(current, (*record.former, record.entry))
            if supersession.releases(current):
                release(records, [entry_id])


class _Lease(NamedTuple):
    holder: str
    ends_at: float  # seconds since 1970
    seconds: float  # the length of the lease in seconds


class Leases:
    """The leases of all processes that use the folder. A lease lets one holder do a named task for a limited time, such
    as the cleaning of a session."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._path = folder.path / "memory.leases"

    def take(self, name: str, holder: str, seconds: float) -> bool:
        """Take the lease `name`, or extend the lease of `holder`. Return False if another holder has it."""
        with self._folder.locked():
            running = self._running()
            if name in running and running[name].holder != holder:
                return False
            self._write({**running, name: _Lease(holder, time.time() + seconds, seconds)})
            return True

    def release(self, name: str, holder: str) -> None:
        """End the lease `name` if `holder` has it."""
        with self._folder.locked():
            running = self._running()
            if name in running and running.pop(name).holder == holder:
                self._write(running)

    def check(self, *, repair: bool) -> Findings:
        """Check that the file of the leases can be read, and that no lease has more time left than its full duration,
        as a lease that a process with a wrong clock has taken. If `repair` is True, invalid leases are removed."""
        findings = Findings("leases", "each lease (the lock of a running task) can be read and ends in time")
        with findings.reading(), self._folder.locked():
            try:
                leases = self._read()
            except _UNREADABLE as error:
                leases = {}
                findings.add(f"{self._path.name} cannot be read: {error}")
            now = time.time()
            findings.looked_at = len(leases)
            for name, lease in leases.items():
                if lease.ends_at - now > lease.seconds + _CLOCK_TOLERANCE:
                    findings.add(f"the lease {name} was taken by a process with a clock that was ahead")
            if repair and findings.found:
                self._write(self._running())
                findings.mark_repaired(findings.found, "invalid leases are removed")
        return findings

    def _running(self) -> dict[str, _Lease]:
        """Return the running leases by name. If the file cannot be read, return no lease, because every lease ends soon
        anyway."""
        try:
            leases = self._read()
        except _UNREADABLE as error:
            log.warning("%s cannot be read and is replaced by a new file: %s", self._path, error)
            return {}
        now = time.time()
        # A lease with more time left than its length is ignored, because the clock was set back.
        return {name: lease for name, lease in leases.items() if 0 < lease.ends_at - now <= lease.seconds}

    def _read(self) -> dict[str, _Lease]:
        try:
            return {
                str(name): _Lease(str(holder), float(ends_at), float(seconds))
                for name, (holder, ends_at, seconds) in json.loads(read_file(self._path)).items()
            }
        except FileNotFoundError:
            return {}

    def _write(self, leases: dict[str, _Lease]) -> None:
        try:
            write_atomically(self._path, json.dumps(leases, indent=2).encode("utf-8"))
        except OSError as error:
            raise write_error(self._path, error) from error
