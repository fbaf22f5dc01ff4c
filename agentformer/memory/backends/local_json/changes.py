"""What writing calls do to a draft. A draft that an error leaves is thrown away, so none of this needs undoing."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.memory.backends.local_json.folder import Draft
from agentformer.memory.backends.local_json.record import Record
from agentformer.memory.backends.local_json.scope import filter_of
from agentformer.records.duplicates import same
from agentformer.types import MemoryEntry, Scope, Use


def inside(draft: Draft, scope: Scope) -> set[str]:
    """The ids of the entries in a scope. Raises `StoreDamaged`."""
    admits = filter_of(scope)
    return {entry_id for entry_id, record in draft.of(scope.namespace).items() if admits(record.entry)}


def with_parts(draft: Draft, ids: Iterable[str]) -> set[str]:
    """These entries, as far as they are there, and all below them by `parent_id` in their own namespaces."""
    parts: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for entry_id, record in draft.records.items():
        parts[record.entry.namespace, record.entry.parent_id].append(entry_id)
    found: set[str] = set()
    waiting = [entry_id for entry_id in ids if entry_id in draft.records]
    while waiting:
        entry_id = waiting.pop()
        if entry_id not in found:
            found.add(entry_id)
            waiting += parts[draft.records[entry_id].entry.namespace, entry_id]
    return found


def insert(draft: Draft, entry: MemoryEntry, former: tuple[MemoryEntry, ...] = ()) -> None:
    """`former` is its past. Raises `Conflict` for an id that exists."""
    if entry.id in draft.records:
        raise Conflict(f"there is an entry {entry.id} already; update it or store under a new id")
    draft.put(Record(entry, former))


def insert_unique(draft: Draft, entries: Sequence[MemoryEntry], ignoring: Collection[str]) -> list[str]:
    """Insert those entries that say something new; the ids of those that now stand for each of `entries`.
    Entries in `ignoring` are as good as gone."""
    known: dict[tuple[str, str], list[str]] = defaultdict(list)  # of the same content, the oldest first
    for record in draft.records.values():
        if record.entry.id not in ignoring:
            known[record.entry.namespace, record.entry.content].append(record.entry.id)
    standing = []
    for entry in entries:
        candidates = known[entry.namespace, entry.content]
        told = min((i for i in candidates if same(entry, draft.records[i].entry)), default=None)
        if told is None:
            insert(draft, entry)
            candidates.append(entry.id)
            standing.append(entry.id)
            continue
        record = draft.records[told]
        again = _used(record.entry, entry.created_at, access_count=1, repeat_count=1)
        draft.put(record.replaced(again))
        standing.append(told)
    return standing


def touch(draft: Draft, uses: Iterable[Use]) -> None:
    """Add to counts; missing ids are passed over."""
    for use in uses:
        if record := draft.records.get(use.id):
            total = use.matches + use.reads + use.others
            counts = {"match_count": use.matches, "read_count": use.reads, "access_count": total}
            draft.put(record.replaced(_used(record.entry, use.at, **counts)))


def _used(entry: MemoryEntry, at: datetime | None, **more: int) -> MemoryEntry:
    counts = {name: getattr(entry, name) + n for name, n in more.items()}
    last = max((moment for moment in (entry.last_accessed, at) if moment), default=None)
    return dataclasses.replace(entry, last_accessed=last, **counts)


def doomed_with(draft: Draft, ids: Iterable[str]) -> set[str]:
    """All that goes with these entries: their parts, the summaries that tell of any of them, and their parts."""
    doomed = with_parts(draft, ids)
    while telling := _telling(draft, doomed) - doomed:
        doomed |= with_parts(draft, telling)
    return doomed


def remove(draft: Draft, doomed: Collection[str]) -> None:
    """Delete entries, as `doomed_with` gives them; originals of a deleted summary that stay come back."""
    if not doomed:
        return
    for entry_id, record in list(draft.records.items()):
        if entry_id not in doomed and record.entry.archived_by in doomed:
            _revive(draft, record)
    for entry_id in doomed:
        draft.drop(entry_id)


def _telling(draft: Draft, doomed: Collection[str]) -> set[str]:
    """Summaries that stand for doomed entries, and restored ones that once did."""
    found = {by for i in doomed if (by := draft.records[i].entry.archived_by) in draft.records and by}
    for entry_id, record in draft.records.items():
        entry = record.entry
        if entry.kind == "summary" and entry.archived_at and any(link.id in doomed for link in entry.derived_from):
            found.add(entry_id)
    return found


def consolidate(
    draft: Draft, summary: MemoryEntry, ids: Sequence[str], versions: Mapping[str, int], at: datetime
) -> None:
    """Store a summary and archive its originals. Raises `Conflict`, `StoreDamaged`."""
    standing = {record.entry.archived_by for record in draft.records.values()}
    for entry_id in dict.fromkeys(ids):
        record = draft.records.get(entry_id)
        if record is None:
            draft.check_whole()
        if record is None or not _is_live(record.entry, versions.get(entry_id)):
            raise Conflict("some of the entries to archive are gone, changed, archived or superseded; select again")
        if entry_id in standing:
            raise Conflict(f"{entry_id} stands for other entries and cannot be summed up again; restore it first")
        draft.put(record.replaced(dataclasses.replace(record.entry, archived_at=at, archived_by=summary.id)))
    insert(draft, summary)


def _is_live(entry: MemoryEntry, version: int | None) -> bool:
    return entry.archived_at is None and entry.superseded_by is None and version in (None, entry.version)


def restore(draft: Draft, summary_id: str, at: datetime) -> list[str]:
    """Bring a summary's originals back and archive it; returns their ids, sorted."""
    summary = draft.records.get(summary_id)
    if summary is None:
        draft.check_whole()
        raise NotFound(f"there is no entry {summary_id}")
    originals = [record for record in draft.records.values() if record.entry.archived_by == summary_id]
    if not originals and summary.entry.archived_at is None:
        raise InvalidInput("summary_id", f"{summary_id} is a {summary.entry.kind} that stands for no other entries")
    if not originals:
        raise Conflict(f"{summary_id} was restored already; its originals are live")
    for record in originals:
        _revive(draft, record)
    draft.put(summary.replaced(dataclasses.replace(summary.entry, archived_at=at)))
    return sorted(record.entry.id for record in originals)


def check_free(draft: Draft, entry: MemoryEntry) -> None:
    """Raises `InvalidInput` when archiving or reviving this entry alone would part a summary and its originals."""
    if entry.archived_by is not None:
        raise InvalidInput("archived_at", f"a summary stands for {entry.id}; restore {entry.archived_by} instead")
    if any(record.entry.archived_by == entry.id for record in draft.records.values()):
        raise InvalidInput("archived_at", f"{entry.id} stands for other entries; restore it instead")


def _revive(draft: Draft, record: Record) -> None:
    draft.put(record.replaced(dataclasses.replace(record.entry, archived_at=None, archived_by=None)))
