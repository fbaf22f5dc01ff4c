"""Copy the entries of one backend into another, while the source is in use.

A copy is a sequence of passes. Each pass compares a snapshot of the source with the target and makes the target equal
to the snapshot. So a copy that was interrupted can be started again, and continues where it stopped. The copy is
complete when a pass finds no difference. If the source keeps changing, the copy stops after a given number of
passes."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, repeat
from typing import Any, NamedTuple

from agentformer.archive import batches, root_of
from agentformer.archive.format import entries_in, entry_lines
from agentformer.errors import Conflict
from agentformer.records.offers import required, vectors_of
from agentformer.types import MemoryBackend, MemoryEntry, MemorySnapshot, OriginalsStore, SnapshotStore, Use

_BATCH = 500  # entries of one transaction; entries that belong together are never separated
_COUNTED = ("access_count", "match_count", "read_count", "last_accessed")

Progress = Callable[[int, int], None]  # receives the number of stored entries, and of all entries to store


@dataclass(slots=True)
class Copied:
    """The result of a copy. `source` and `target` are checksums of all entries and their former versions, as 64
    hexadecimal digits, computed at the start of the last pass. They are equal if this pass found no difference."""

    entries: int = 0  # entries of the source in the last pass
    stored: int = 0  # entries that were stored, in all passes
    removed: int = 0  # entries that are not in the source any more
    counted: int = 0  # entries of which only the use counts were changed
    vectors: int = 0  # vectors that were kept, so that their texts were not embedded again
    passes: int = 0
    source: str = ""
    target: str = ""

    @property
    def equal(self) -> bool:
        """True if the last pass found the target equal to the source."""
        return bool(self.source) and self.source == self.target


def copy_entries(
    source: MemoryBackend,
    target: MemoryBackend,
    *,
    most: int = 10,
    delete: bool = False,
    progress: Progress | None = None,
) -> Copied:
    """Make `target` equal to `source` in at most `most` passes. The caller must ensure that no other process uses
    `target`. If the source keeps changing, the target may still differ after the last pass; `equal` of the result is
    then False.

    Entries keep their ids, times, versions, counts, links and former versions. Vectors are copied if both backends use
    the same embedding space; leases and original files are not copied. Entries that only the target has are removed if
    `delete` is true. If `delete` is false and the target has such entries at the start, `Conflict` is raised, and
    nothing is changed. In later passes they are always removed: they were copied, and then removed from the source."""
    done = Copied()
    while not done.equal and done.passes < most:
        with required(source, SnapshotStore).snapshot() as snapshot:
            plan = _compare(snapshot, target)
            if plan.surplus and not (delete or done.passes):
                raise Conflict(
                    f"nothing was copied: the target has {len(plan.surplus)} entries that the source does not have, "
                    f"such as {plan.surplus[0]}; copy into an empty memory, or remove these entries with --delete"
                )
            done.passes += 1
            done.entries, done.source, done.target = plan.entries, plan.source.hexdigest(), plan.target.hexdigest()
            _apply(plan, snapshot, target, done, progress)
    return done


@dataclass(slots=True)
class _Plan:
    """The differences between a snapshot of the source and the target.

    The entries of a group must be stored in one transaction: a document with its parts, a summary with its originals,
    and an entry with its successor. A group is named by one of its ids, the root of `parents` (see `root_of`)."""

    entries: int = 0
    source: Any = field(default_factory=hashlib.sha256)
    target: Any = field(default_factory=hashlib.sha256)
    surplus: list[str] = field(default_factory=list)  # ids that only the target has
    missing: set[str] = field(default_factory=set)  # ids that only the source has
    changed: set[str] = field(default_factory=set)  # ids whose entries differ
    uses: list[Use] = field(default_factory=list)  # of entries that differ in their use counts only
    parents: dict[str, str] = field(default_factory=dict)

    def join(self, entry: MemoryEntry) -> None:
        """Join the group of an entry with the groups of the entries that it refers to."""
        links = [entry.parent_id, entry.archived_by, entry.superseded_by]
        links += [entry.source.document_id] if entry.source else []
        links += [link.id for link in entry.derived_from]
        for linked in filter(None, links):
            self.parents[self.group_of(entry.id)] = self.group_of(linked)

    def group_of(self, entry_id: str) -> str:
        """Return the name of the group of an entry."""
        return root_of(self.parents, entry_id)


class _Versions(NamedTuple):
    """An entry and its former versions. `text` are their lines in an export, which are equal for equal entries."""

    entry: MemoryEntry
    history: Sequence[MemoryEntry]
    text: str


def _compare(snapshot: MemorySnapshot, target: MemoryBackend) -> _Plan:
    plan = _Plan()
    for namespace in sorted({*snapshot.namespaces(), *target.namespaces()}):
        for ours, theirs in _pairs(_versions(snapshot, namespace), _versions(target, namespace)):
            if ours:
                plan.entries += 1
                plan.source.update(ours.text.encode())
                plan.join(ours.entry)
            if theirs:
                plan.target.update(theirs.text.encode())
            _add_difference(plan, ours, theirs)
    return plan


def _add_difference(plan: _Plan, ours: _Versions | None, theirs: _Versions | None) -> None:
    """Add to the plan how the entry of the source (`ours`) differs from the entry of the target (`theirs`)."""
    if ours is None:
        assert theirs is not None
        plan.surplus.append(theirs.entry.id)
    elif theirs is None:
        plan.missing.add(ours.entry.id)
    elif ours.text != theirs.text:
        if use := _more_uses(ours, theirs):
            plan.uses.append(use)
        else:
            plan.changed.add(ours.entry.id)


def _apply(
    plan: _Plan, snapshot: MemorySnapshot, target: MemoryBackend, done: Copied, progress: Progress | None
) -> None:
    """Remove the entries of the target that differ from the snapshot, and store the entries of the snapshot in their
    place. Entries are removed before any entry is stored, because an id may have moved to another namespace."""
    needed = {plan.group_of(entry_id) for entry_id in (*plan.missing, *plan.changed)}
    entries = entries_in(snapshot, snapshot.namespaces()) if needed else ()
    members = {entry.id for entry in entries if plan.group_of(entry.id) in needed}
    listed = required(target, OriginalsStore)
    for batch in batches([*plan.surplus, *(members - plan.missing)], _BATCH):
        target.remove(batch)
        listed.forget_absent(listed.absent_documents())  # the original files belong to the source
    done.removed += len(plan.surplus)
    if members:
        done.vectors += vectors_of(target).keep_vectors(snapshot.vectors(snapshot.namespaces()))
    stored = 0
    for group in _transactions(snapshot, plan, members):
        former = {each.entry.id: each.history for each in group if each.history}
        target.store([each.entry for each in group], former=former)
        stored += len(group)
        if progress:
            progress(stored, len(members))
    done.stored += stored
    uses = [use for use in plan.uses if use.id not in members]
    for uses_batch in batches(uses, _BATCH):
        target.touch(uses_batch)
    done.counted += len(uses)


def _transactions(snapshot: MemorySnapshot, plan: _Plan, members: set[str]) -> Iterator[list[_Versions]]:
    """Yield lists of the entries of the snapshot whose ids are in `members`. Each list except the last has at least
    `_BATCH` entries. The entries of a group are always in the same list."""
    left = Counter(map(plan.group_of, members))  # number of members of each group that were not read yet
    waiting: dict[str, list[_Versions]] = {}
    batch: list[_Versions] = []
    for namespace in snapshot.namespaces() if members else ():
        for each in _versions(snapshot, namespace, members):
            group = plan.group_of(each.entry.id)
            waiting.setdefault(group, []).append(each)
            left[group] -= 1
            if not left[group]:
                batch += waiting.pop(group)
            if len(batch) >= _BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


def _versions(
    records: MemorySnapshot | MemoryBackend, namespace: str, members: set[str] | None = None
) -> Iterator[_Versions]:
    """Yield the entries of a namespace in order of id. If `members` is given, yield only the entries with these ids."""
    for entry in entries_in(records, [namespace]):
        if members is None or entry.id in members:
            history = records.history(entry.id) if entry.version > 1 else ()
            yield _Versions(entry, history, "".join(entry_lines(entry, history)))


def _pairs(
    ours: Iterator[_Versions], theirs: Iterator[_Versions]
) -> Iterator[tuple[_Versions | None, _Versions | None]]:
    """Yield pairs of an entry of the source and the entry of the target with the same id. If one of the two has no
    entry with this id, its place in the pair is None. Both iterators must be in order of id."""

    def entry_id(item: tuple[int, _Versions]) -> str:
        return item[1].entry.id

    numbered = (zip(repeat(side), stated, strict=False) for side, stated in enumerate((ours, theirs)))
    for _, group in groupby(heapq.merge(*numbered, key=entry_id), entry_id):
        pair = dict(group)
        yield pair.get(0), pair.get(1)


def _more_uses(ours: _Versions, theirs: _Versions) -> Use | None:
    """Return the uses that must be added to the target's entry `theirs` to make it equal to the source's entry `ours`.
    An entry that differs only in its uses need not be stored again. Return None if the entries also differ in other
    fields, or if the target has more uses."""
    entry, former = ours.entry, theirs.entry
    counts = {name: getattr(entry, name) for name in _COUNTED}
    if ours.history != theirs.history or replace(former, **counts) != entry or entry.last_accessed is None:
        return None
    matches, reads = entry.match_count - former.match_count, entry.read_count - former.read_count
    others = entry.access_count - former.access_count - matches - reads
    if min(matches, reads, others) < 0 or (former.last_accessed and former.last_accessed > entry.last_accessed):
        return None
    return Use(entry.id, entry.last_accessed, matches, reads, others)
