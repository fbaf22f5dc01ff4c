"""`BatchOperations`: the methods of a memory that read, count, remove or replace many entries at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Unpack

from agentformer.errors import Conflict, InvalidInput, NotFound, retried
from agentformer.memory import validation
from agentformer.memory.backends import all_entries
from agentformer.memory.hierarchical import HierarchicalMemory
from agentformer.memory.learning.journal import repeats
from agentformer.memory.usage import UsageCounter
from agentformer.memory.validation import ScopeFields, StoredFields
from agentformer.records import fields
from agentformer.types import CONTAINER_KINDS, DEFAULT_NAMESPACE, Condition, Decay, MemoryBackend, MemoryEntry, Scope

_GROUP = 490  # source ids in one filter
_REPLACED = (
    *("content", "title", "kind", "category", "salience", "speaker", "metadata"),
    *("occurred_at", "valid_from", "valid_to", "expires_at"),
)

_Owner = tuple[str, str, str | None, str | None]  # namespace, type of the record, user, project


class _Stored(Conflict):
    """Raised if another caller has stored an entry for one of the records during an upsert. The upsert then begins
    again."""

    def __init__(self) -> None:
        super().__init__("other callers keep storing the same records; try again later")


class BatchOperations:
    """Reads, counts, replaces and removes many entries of a backend at once."""

    def __init__(
        self, backend: MemoryBackend, hierarchical: HierarchicalMemory, usage: UsageCounter, decay: Decay
    ) -> None:
        self._backend = backend
        self._usage = usage
        self._decay = decay
        self.hierarchical = hierarchical

    def count(self, **scope: Unpack[ScopeFields]) -> int:
        """Return the number of entries in the scope. `scope` contains the filters of `MemoryManager.search`."""
        return self._backend.count(validation.scope_from(scope, self._decay))

    def get_many(
        self,
        ids: Sequence[str] = (),
        *,
        source_type: str | None = None,
        source_ids: Sequence[str] = (),
        namespace: str = DEFAULT_NAMESPACE,
    ) -> list[MemoryEntry]:
        """Return the entries with these ids, in the order of `ids`, and then the live entries of the host application's
        records, in the order of `source_ids`. A record is identified by its type `source_type` and its id in
        `source_ids`. Missing entries are left out. Raises `InvalidInput` for an invalid argument."""
        ids = fields.names("ids", ids)
        entries = [*self._backend.get(ids)] if ids else []
        if source_ids:
            order = {source: n for n, source in enumerate(_checked_sources(source_type, source_ids))}
            scopes = source_scopes(_namespace(namespace), source_type, order)
            found = [entry for scope in scopes for entry in all_entries(self._backend, scope)]
            entries += sorted(found, key=lambda entry: order[entry.source_id or ""])
        self._usage.count((entry.id for entry in entries), others=1)
        return entries

    def remove_many(
        self,
        ids: Sequence[str] = (),
        *,
        source_type: str | None = None,
        source_ids: Sequence[str] = (),
        namespace: str = DEFAULT_NAMESPACE,
    ) -> int:
        """Delete entries in one transaction; see `remove`. These are the entries with these ids, and all entries of the
        host application's records that `source_type` and `source_ids` identify. Return the number of deleted entries.
        Missing entries are not counted. If an entry is part of a document, raises `InvalidInput` and deletes
        nothing."""
        entries = [*self._backend.get(fields.names("ids", ids))] if ids else []
        if source_ids:
            sources = _checked_sources(source_type, source_ids)
            for scope in source_scopes(_namespace(namespace), source_type, sources, archived=True):
                entries += all_entries(self._backend, scope)
        for entry in entries:
            check_changeable(entry)
        removed = dict.fromkeys([*(entry.id for entry in entries), *repeats(self._backend, entries)])
        return self._backend.remove([*removed]) if removed else 0

    def upsert_many(self, items: Iterable[Mapping[str, Any]], **common: Unpack[StoredFields]) -> list[MemoryEntry]:
        """Store one entry for each record of the host application, and return the entries in the order of the records.
        Each item has the arguments of `store`, with `source_type` and `source_id`.

        If a record already has a live entry, the text, title, kind, category, salience, speaker, metadata and times (of
        the event, of validity and of expiry) of this entry are replaced. The entry keeps its id, session and owner, and
        its former version is added to its history. An entry that would not change is not written. Archived entries of a
        record without a live entry are removed. If several items belong to the same record, only the last one is
        stored. New entries are stored in one transaction, and each changed entry in a transaction of its own. If
        another caller stores, changes or removes one of the records meanwhile, the upsert begins again. Raises
        `InvalidInput` for an invalid argument, and `Conflict` or `NotFound` if the upsert was interrupted in this way
        too often."""
        new = [self.hierarchical.check_tier(entry) for entry in validation.new_entries(items, common)]
        if missing := [entry for entry in new if entry.source_id is None]:
            raise InvalidInput(
                "source_id", f"is missing in {len(missing)} items; an upsert needs the id of each record"
            )
        wanted = {_record(entry): entry for entry in new}
        # A repeated upsert skips the entries that it has already written.
        return retried(lambda: self._upsert(wanted), on=(Conflict, NotFound))

    def upsert(self, content: str, **values: Unpack[StoredFields]) -> MemoryEntry:
        """Store the entry of one record of the host application; see `upsert_many`."""
        return self.upsert_many([{**values, "content": content}])[0]

    def _upsert(self, wanted: Mapping[tuple[_Owner, str], MemoryEntry]) -> list[MemoryEntry]:
        """Store or update the entry of each record, and return the entries in the order of `wanted`. Its keys are the
        records: owner and source id. Raises `_Stored` if another caller has stored one of them meanwhile."""
        sources: dict[_Owner, list[str]] = {}
        for owner, source in wanted:
            sources.setdefault(owner, []).append(source)
        present: dict[tuple[_Owner, str], MemoryEntry] = {}
        for owner, ids in sources.items():
            for scope in source_scopes(owner[0], owner[1], ids, owner=owner[2:]):
                for entry in all_entries(self._backend, scope):
                    present.setdefault(_record(entry), entry)
        missing = [entry for record, entry in wanted.items() if record not in present]
        stored: dict[tuple[_Owner, str], MemoryEntry] = {}
        if missing:
            check = _absent(sources, {_record(entry) for entry in missing}, {entry.id for entry in present.values()})
            replacing = list[Scope]()  # the archived entries of these records with exactly this owner
            for owner, ids in sources.items():
                absent = [source for source in ids if (owner, source) not in present]
                replacing += source_scopes(owner[0], owner[1], absent, owner=owner[2:], archived=True)
            stored = {_record(e): e for e in self._backend.store(missing, replacing=replacing, check=check)}
        for record, entry in wanted.items():
            if (former := present.get(record)) is not None:
                stored[record] = self._replaced(former, entry)
        return [stored[record] for record in wanted]

    def _replaced(self, former: MemoryEntry, new: MemoryEntry) -> MemoryEntry:
        values = {name: getattr(new, name) for name in _REPLACED if getattr(new, name) != getattr(former, name)}
        if not values:
            return former
        checked = validation.changes(check_changeable(former), values)
        self.hierarchical.check_update(former, checked)
        return self._backend.update(former.id, checked)


def existing(backend: MemoryBackend, entry_id: str) -> MemoryEntry:
    """Return the entry with this id. Raises `NotFound` if it does not exist."""
    if entries := backend.get([fields.name("entry_id", entry_id)]):
        return entries[0]
    raise NotFound(f"there is no entry {entry_id}")


def changeable(backend: MemoryBackend, entry_id: str) -> MemoryEntry:
    """Return the entry with this id. Raises `NotFound` if it does not exist, and `InvalidInput` if it is part of a
    document."""
    return check_changeable(existing(backend, entry_id))


def check_changeable(entry: MemoryEntry) -> MemoryEntry:
    """Return the entry. Raise `InvalidInput` if the entry is part of a document, because answers cite documents and the
    cited text must not change."""
    if entry.kind in CONTAINER_KINDS or entry.source is not None:
        raise InvalidInput(
            "entry_id",
            f"{entry.id} is part of an uploaded document; use rag.upload to replace this document, "
            "or rag.remove to remove it",
        )
    return entry


def _record(entry: MemoryEntry) -> tuple[_Owner, str]:
    return (entry.namespace, entry.source_type or "", entry.user_id, entry.project), entry.source_id or ""


def _namespace(value: Any) -> str:
    return fields.name("namespace", value)


def _checked_sources(source_type: Any, source_ids: Any) -> list[str]:
    if isinstance(source_ids, str) or not isinstance(source_ids, Iterable):
        raise InvalidInput("source_ids", f"must be a list, such as [{str(source_ids)[:80]!r}]")
    fields.name("source_type", source_type)
    checked = (fields.source_id("source_ids", source) for source in source_ids)
    return [*dict.fromkeys(source for source in checked if source is not None)]


def source_scopes(
    namespace: str,
    source_type: str | None,
    source_ids: Iterable[str],
    *,
    owner: tuple[str | None, str | None] | None = None,
    archived: bool = False,
) -> list[Scope]:
    """Return scopes that together contain the entries made from the records `source_ids` of the host application. A
    filter may contain only a limited number of ids, so many records need several scopes. If an `owner` (user and
    project) is given, only entries with exactly this owner are in the scopes. If `archived` is True, archived entries
    are included."""
    ids, (user, project) = [*source_ids], owner or (None, None)
    owned = {"$user_id": user, "$project": project} if owner else {}
    absent = tuple(Condition("exists", name, False) for name, value in owned.items() if value is None)
    return [
        Scope(
            namespace,
            source_type=source_type,
            include_archived=archived,
            where=_all(Condition("in", "$source_id", tuple(ids[start : start + _GROUP])), *absent),
            user_id=user,
            project=project,
        )
        for start in range(0, len(ids), _GROUP)
    ]


def _all(*conditions: Condition) -> Mapping[str, Any] | Condition:
    return conditions[0] if len(conditions) == 1 else {"type": "and", "filters": conditions}


def _absent(
    sources: Mapping[_Owner, Sequence[str]], missing: Collection[tuple[_Owner, str]], known: Collection[str]
) -> Callable[[Callable[[Scope], Collection[str]]], None]:
    """Return a check for `MemoryBackend.store`, so that two callers cannot store two entries for one record. The check
    raises `_Stored` if a record that had no live entry has one now. `sources` maps each owner to the ids of all its
    records in the upsert. `missing` contains the records that had no live entry, and `known` contains the ids of the
    live entries of the other records."""

    def check(ids: Callable[[Scope], Collection[str]]) -> None:
        for owner, records in sources.items():
            wanted = [source for source in records if (owner, source) in missing]
            for scope in source_scopes(owner[0], owner[1], wanted, owner=owner[2:]):
                if set(ids(scope)) - set(known):
                    raise _Stored

    return check
