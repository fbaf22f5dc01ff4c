"""The backend over a folder of JSON files: what callers see of `folder`, `changes`, `words` and `leases`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.memory.backends.local_json import changes as changing
from agentformer.memory.backends.local_json.folder import Folder
from agentformer.memory.backends.local_json.layout import checked
from agentformer.memory.backends.local_json.leases import Leases
from agentformer.memory.backends.local_json.moment import FolderSnapshot, write_copy
from agentformer.memory.backends.local_json.record import handed_out
from agentformer.memory.backends.local_json.scope import filter_of
from agentformer.memory.backends.local_json.verifying import verify
from agentformer.memory.backends.local_json.words import ranked
from agentformer.records.codec import from_micros, now
from agentformer.records.entry_json import check_settable
from agentformer.records.history import Past, checked_past
from agentformer.search.fusion import merge
from agentformer.settings import Settings
from agentformer.types import (
    Check,
    Embedder,
    Hit,
    Hits,
    MemoryEntry,
    Query,
    Reembedding,
    Scope,
    SpaceState,
    StoredVector,
    Use,
    Vote,
    Waiting,
)

_NO_VECTORS = "local_json keeps no vectors: search in the mode lexical or hybrid"


class LocalJsonMemoryBackend:
    """`MemoryBackend` over one JSON file per namespace, for people who want to read and edit their memory.

    For small memories: each write replaces the files of its namespaces, and each search looks at every entry of
    its namespace; some thousand entries stay comfortable. Search is by words alone, so `pending` is always 0 and
    `progress`, which counts windows, is never called.

    A file may be edited by hand while nobody writes; the next call sees it. One that cannot be read is left as it
    is, a copy of it is kept beside it, and every call that needs it raises `StoreDamaged`, which says what is wrong
    and where; other namespaces work on, and `namespaces` and `status` count what can be read.
    """

    def __init__(self, folder: Path, *, rrf_k: int = 60) -> None:
        self._folder = Folder(folder)
        self._leases = Leases(self._folder)
        self._rrf_k = rrf_k

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> LocalJsonMemoryBackend:
        """`embedder` means nothing here: search is by words alone."""
        return cls(settings.index_dir, rrf_k=settings.rrf_k)

    def store(
        self,
        entries: Sequence[MemoryEntry],
        *,
        replacing: Sequence[Scope] = (),
        unique: bool = False,
        former: Past | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[MemoryEntry]:
        entries = [_completed(entry) for entry in entries]
        past = checked_past(entries, former, unique=unique)
        with self._folder.writing() as draft:
            doomed = changing.doomed_with(draft, {i for scope in replacing for i in changing.inside(draft, scope)})
            if unique:
                standing = changing.insert_unique(draft, entries, doomed)
            else:
                standing = [entry.id for entry in entries]
                for entry in entries:
                    changing.insert(draft, entry, tuple(map(checked, past.get(entry.id, ()))))
            changing.remove(draft, doomed)
            return [draft.records[entry_id].handed_out() for entry_id in standing]

    def get(self, ids: Sequence[str]) -> list[MemoryEntry]:
        snapshot = self._folder.reading()
        if any(entry_id not in snapshot.records for entry_id in ids):
            snapshot.check_whole()
        return [snapshot.records[entry_id].handed_out() for entry_id in ids if entry_id in snapshot.records]

    def search(self, query: Query) -> Hits:
        records = self._folder.reading().of(query.scope.namespace)
        if query.limit < 1 or not query.text.strip():
            return Hits()
        if query.mode == "dense":
            return Hits((), (_NO_VECTORS,))
        best = ranked(records.values(), query.text, filter_of(query.scope))[: query.limit]
        scores = merge([range(len(best))], k=self._rrf_k)
        return Hits(
            Hit(record.handed_out(), score, lexical_score=bm25, lexical_rank=n + 1, votes=(Vote("words", n + 1, 1.0),))
            for (record, bm25), (n, score) in zip(best, scores, strict=True)
            if score >= query.min_score
        )

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        check_settable(changes)
        with self._folder.writing() as draft:
            record = draft.records.get(entry_id)
            if record is None:
                draft.check_whole()
                raise NotFound(f"there is no entry {entry_id}")
            former = record.entry
            _check_version(former, expected_version)
            if "archived_at" in changes:
                changing.check_free(draft, former)
            changed = checked(dataclasses.replace(former, **changes, version=former.version + 1, updated_at=now()))
            draft.put(record.replaced(changed, former=(*record.former, former)))
            return handed_out(changed)

    def touch(self, uses: Sequence[Use]) -> None:
        if self._folder.read_only:
            return  # counting is no reason to fail what was asked for, nor to warn of it each time
        with self._folder.writing() as draft:
            changing.touch(draft, uses)

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        with self._folder.writing() as draft:
            if isinstance(what, Scope):
                ids = changing.inside(draft, dataclasses.replace(what, include_archived=True))
            else:
                ids = set(what)
                if not ids <= draft.records.keys():
                    draft.check_whole()
                for entry_id in ids & draft.records.keys():
                    _check_version(draft.records[entry_id].entry, expected_version)
            doomed = changing.doomed_with(draft, ids)
            changing.remove(draft, doomed)
        if isinstance(what, Scope):  # somebody is to be forgotten: what was kept of a damaged file tells of them, too
            self._folder.drop_copies(what.namespace)
        return len(doomed)

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        found = [entry for entry in self._in_scope(scope) if entry.id > after]
        return [handed_out(entry) for entry in found[: max(0, limit)]]

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        found = sorted(self._in_scope(scope), key=lambda entry: (_happened(entry), entry.id), reverse=True)
        return [handed_out(entry) for entry in found[: max(0, limit)]]

    def count(self, scope: Scope) -> int:
        return len(self._in_scope(scope))

    def namespaces(self) -> Sequence[str]:
        return [name for name, shelf in self._folder.reading().shelves.items() if shelf.records]

    def pending(self, scope: Scope) -> int:
        return 0

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        summary = _completed(summary)
        with self._folder.writing() as draft:
            changing.consolidate(draft, summary, archive_ids, versions or {}, now())
        return handed_out(summary)

    def restore(self, summary_id: str) -> Sequence[MemoryEntry]:
        with self._folder.writing() as draft:
            originals = changing.restore(draft, summary_id, now())
            return [draft.records[entry_id].handed_out() for entry_id in originals]

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        snapshot = self._folder.reading()
        if entry_id not in snapshot.records:
            snapshot.check_whole()
            return []
        return [handed_out(state) for state in snapshot.records[entry_id].former]

    def embed_pending(self, *, refused: bool = True) -> int:
        return 0

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        return []

    def spaces(self) -> Sequence[SpaceState]:
        return []

    def reembed(
        self,
        target: Embedder,
        *,
        queries: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Reembedding:
        raise InvalidInput("backend", "local_json keeps no vectors, so there is nothing to embed")

    def abandon_reembedding(self) -> bool:
        return False

    def prune_spaces(self) -> int:
        return 0

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        return self._leases.take(name, holder, seconds)

    def release(self, name: str, holder: str) -> None:
        self._leases.give_up(name, holder)

    def snapshot(self) -> AbstractContextManager[FolderSnapshot]:
        return nullcontext(FolderSnapshot(self._folder.reading()))

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        return 0

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        return verify(self._folder, self._leases, repair=repair)

    def backup(self, folder: Path) -> None:
        write_copy(self._folder.reading(), folder)

    def status(self) -> dict[str, Any]:
        snapshot = self._folder.reading()
        kinds = Counter(record.entry.kind for record in snapshot.records.values())
        return {
            "entries": len(snapshot.records),
            "windows": 0,
            "vectors": 0,
            "pending": 0,
            "kinds": dict(sorted(kinds.items())),
            "namespaces": {name: len(shelf.records) for name, shelf in snapshot.shelves.items()},
            "damaged": list(snapshot.damaged.values()),
            "space": None,
        }

    def close(self) -> None:
        self._folder.close()

    def _in_scope(self, scope: Scope) -> Sequence[MemoryEntry]:
        """In order of id."""
        records = self._folder.reading().of(scope.namespace)
        admits = filter_of(scope)
        return [record.entry for record in records.values() if admits(record.entry)]


def _check_version(entry: MemoryEntry, expected: int | None) -> None:
    if expected is not None and entry.version != expected:
        raise Conflict(f"entry {entry.id} is at version {entry.version}, not {expected}; read it again")


def _completed(entry: MemoryEntry) -> MemoryEntry:
    """With the times of its storing, where the caller gave none. Raises `InvalidInput` for what cannot be kept."""
    moment = now()
    return checked(
        dataclasses.replace(entry, created_at=entry.created_at or moment, updated_at=entry.updated_at or moment)
    )


def _happened(entry: MemoryEntry) -> Any:
    """When an entry happened; one written by hand without any time is the oldest."""
    return entry.occurred_at or entry.created_at or from_micros(0)
