"""`RoutedBackend`: several backends that are used as one backend. Routes select entries and name their backends: an
entry is written to the backend of the first route that matches the entry. A read queries every backend, so that entries
are still found after a route has changed. If only one backend is configured, this module is not used."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from heapq import merge as merge_sorted
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from agentformer.errors import Conflict, InvalidInput, NotFound, StoreError
from agentformer.memory.backends import all_entries, by_time
from agentformer.records.entries import Histories, check_histories
from agentformer.records.offers import checks_of, leases_of, required, size_of, status_of, vectors_of
from agentformer.search.fusion import merge
from agentformer.settings import Route
from agentformer.settings.access import make_folder
from agentformer.types import (
    AbsentDocument,
    BackupStore,
    Check,
    Embedder,
    EntryVector,
    Hit,
    Hits,
    HitVectors,
    MemoryBackend,
    MemoryEntry,
    MemorySnapshot,
    OriginalsStore,
    Query,
    Reembedding,
    Scope,
    SnapshotStore,
    SpaceState,
    StoreCheck,
    StoredVector,
    StoreSize,
    Use,
    Waiting,
)

_PAGE = 1_000  # number of vectors that are imported at a time
Part = TypeVar("Part", bound=MemoryBackend | MemorySnapshot)


class _Combined(Generic[Part]):
    """The read methods that backends and snapshots have in common. `parts` are several backends or several snapshots,
    and the methods combine their results."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._all: Sequence[Part] = parts

    def namespaces(self) -> Sequence[str]:
        return sorted({name for part in self._all for name in part.namespaces()})

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        pages = [part.list(scope, after=after, limit=limit) for part in self._all]
        return [*merge_sorted(*pages, key=lambda entry: entry.id)][: max(0, limit)]

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        return next(filter(None, (part.history(entry_id) for part in self._all)), [])


class CombinedSnapshot(_Combined[MemorySnapshot]):
    """A `MemorySnapshot` that combines the snapshots of several backends. These snapshots are taken one after another,
    so they show the backends at different moments."""

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        """Yield the vectors that entries of these namespaces use. A vector of the same text and embedding space is
        yielded once, even if several backends store it."""
        sources = (snapshot.vectors(namespaces) for snapshot in self._all)
        ordered = merge_sorted(*sources, key=lambda vector: (vector.hash, vector.space.spec))
        for _, group in groupby(ordered, key=lambda vector: vector.hash):
            spaces: list[object] = []
            for vector in group:
                if vector.space not in spaces:
                    spaces.append(vector.space)
                    yield vector

    def entry_vectors(self, namespace: str, *, every: int = 1) -> Iterator[EntryVector]:
        """Yield the entries of all backends in order of id; see `MemorySnapshot.entry_vectors`."""
        sources = (snapshot.entry_vectors(namespace, every=every) for snapshot in self._all)
        return merge_sorted(*sources, key=lambda entry: entry.id)


class _Routing(_Combined[MemoryBackend]):
    """The part of `RoutedBackend` that follows the routes: it selects the backend for an entry, and records in each
    backend which documents are about to be stored there."""

    def __init__(
        self, routes: Sequence[Route], backends: Mapping[str, MemoryBackend], default: str, *, rrf_k: int = 60
    ) -> None:
        for route in routes:
            if route.target not in backends:
                targets = ", ".join(sorted(backends))
                raise InvalidInput("routes", f"{route.target!r} is not the name of a backend; the names are {targets}")
        self._routes = tuple(routes)
        self._names = dict(backends)
        self._default = backends[default]
        super().__init__(list({id(backend): backend for backend in (self._default, *backends.values())}.values()))
        self._rrf_k = rrf_k
        self._leases = leases_of(self._default)

    def announce(self, documents: Sequence[MemoryEntry], upload: str) -> None:
        """Record each document in the backend that will store it; see `OriginalsStore.announce`."""
        for backend in self._all:
            if part := [document for document in documents if self._target(document) is backend]:
                required(backend, OriginalsStore).announce(part, upload)

    @property
    def owner(self) -> str:
        """The owner of the default backend, if this backend is on a server, or ""."""
        return str(getattr(self._default, "owner", ""))

    def absent_documents(self) -> Sequence[AbsentDocument]:
        """Return the documents of all backends; see `OriginalsStore`."""
        return sorted(
            document for backend in self._all for document in required(backend, OriginalsStore).absent_documents()
        )

    def forget_absent(self, documents: Sequence[AbsentDocument]) -> None:
        for backend in self._all:
            required(backend, OriginalsStore).forget_absent(documents)

    def _target(self, entry: MemoryEntry) -> MemoryBackend:
        for route in self._routes:
            conditions = ((route.tiers, entry.tier), (route.kinds, entry.kind), (route.namespaces, entry.namespace))
            if all(not allowed or value in allowed for allowed, value in conditions):
                return self._names[route.target]
        return self._default


class RoutedBackend(_Routing):
    """A `MemoryBackend` over several backends. `backends` maps names to backends, and `target` of a route is one of
    these names. `default` names the backend for leases, and for entries that no route matches. A call that changes
    several backends is one transaction in each, and not one in all. If a transaction of `store` fails, the entries that
    this call has stored in other backends are removed. After a crash between two transactions, only the entries of the
    finished transactions are stored. A summary is stored in the backend of its originals, so that one transaction
    stores it and archives them."""

    def store(
        self,
        entries: Sequence[MemoryEntry],
        *,
        replacing: Sequence[Scope | Sequence[str]] = (),
        unique: bool = False,
        former: Histories | None = None,
        progress: Callable[[int, int], None] | None = None,
        check: StoreCheck | None = None,
    ) -> Sequence[MemoryEntry]:
        """Store each entry in the backend of the first route that matches the entry; see `MemoryBackend.store`."""
        past = check_histories(entries, former, unique=unique)
        parts: dict[int, list[MemoryEntry]] = {}
        for entry in entries:
            parts.setdefault(self._all.index(self._target(entry)), []).append(entry)
        stored: dict[str, MemoryEntry] = {}
        orphans = [part_id for what in replacing for part_id in self._parts(self._selected(what))]
        try:
            for index, part in parts.items():
                versions = {entry.id: past[entry.id] for entry in part if entry.id in past}
                checked = {"check": self._everywhere(check, self._all[index])} if check and not stored else {}
                results = self._all[index].store(
                    part, replacing=replacing, unique=unique, former=versions, progress=progress, **checked
                )
                stored.update({entry.id: result for entry, result in zip(part, results, strict=True)})
        except BaseException:
            self.remove([entry_id for entry_id, result in stored.items() if result.id == entry_id])
            raise
        for index, backend in enumerate(self._all):
            if index not in parts:
                for what in replacing:
                    scope = dataclasses.replace(what, include_archived=True) if isinstance(what, Scope) else None
                    if backend.count(scope) if scope else backend.get(what):  # type: ignore[arg-type]
                        backend.remove(what)
        self._remove(orphans)
        return [stored[entry.id] for entry in entries]

    def get(self, ids: Sequence[str]) -> list[MemoryEntry]:
        entries = {entry.id: entry for backend in reversed(self._all) for entry in backend.get(ids)}
        return [entries[entry_id] for entry_id in ids if entry_id in entries]

    def search(self, query: Query) -> Hits:
        """Search every backend, and merge the hits by their rank in each backend."""
        lists = [backend.search(query) for backend in self._all]
        warnings = tuple(dict.fromkeys(warning for hits in lists for warning in hits.warnings))
        one_sided = any(hits.one_sided for hits in lists)
        lists = [hits for hits in lists if hits]
        best = self._merged(lists, query) if len(lists) > 1 else lists[0] if lists else ()
        factors = lists[0].factors if len(lists) == 1 else ()  # each backend weighs the vectors in its own way
        analyzed = {key: value for hits in reversed(lists) for key, value in hits.analyzed.items()}
        found = [hits.vectors for hits in reversed(lists) if hits.vectors]
        rows = {key: row for vectors in found for key, row in vectors.rows.items()}
        same = len({vectors.encoder for vectors in found}) == 1
        vectors = HitVectors(found[0].encoder, rows) if same else None
        return Hits(best, warnings, one_sided=one_sided, factors=factors, analyzed=analyzed, vectors=vectors)

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change an entry in the backend that stores it. Raises `Conflict` if another backend stores the successor (the
        entry that will supersede this entry), because one transaction must check both entries."""
        owner, successor = self._owner(entry_id), changes.get("superseded_by")
        if successor is not None and self._owner(successor) is not owner:
            raise Conflict("these entries are stored in several backends, so one cannot supersede the other")
        return owner.update(entry_id, changes, expected_version)

    def touch(self, uses: Sequence[Use]) -> None:
        for backend in self._all:
            backend.touch(uses)

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Remove entries from all backends, and return the number of removed entries. If a document is removed, its
        pages and chunks are removed too, even if another backend stores them."""
        parts = [*self._parts(self._selected(what))]
        return sum(backend.remove(what, expected_version) for backend in self._all) + self._remove(parts)

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        entries = [entry for backend in self._all for entry in backend.latest(scope, limit=limit)]
        return sorted(entries, key=by_time, reverse=True)[:limit]

    def count(self, scope: Scope) -> int:
        return sum(backend.count(scope) for backend in self._all)

    def pending(self, scope: Scope) -> int:
        return sum(vectors_of(backend).pending(scope) for backend in self._all)

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        """Store a summary, and archive its originals. Raises `Conflict` if several backends store the originals."""
        owners = {self._all.index(self._owner(entry_id, Conflict)) for entry_id in archive_ids}
        if len(owners) != 1:
            raise Conflict("these entries are stored in several backends, so one summary cannot replace them")
        return self._all[owners.pop()].consolidate(summary, archive_ids, versions=versions)

    def restore(self, summary_id: str) -> Sequence[MemoryEntry]:
        return self._owner(summary_id).restore(summary_id)

    def embed_pending(self, *, refused: bool = True) -> int:
        return sum(vectors_of(backend).embed_pending(refused=refused) for backend in self._all)

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        items = [item for backend in self._all for item in vectors_of(backend).waiting(what, limit=limit)]
        return sorted(items, key=lambda item: item.entry_id)[:limit]

    def spaces(self) -> Sequence[SpaceState]:
        return [state for backend in self._all for state in vectors_of(backend).spaces()]

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
    ) -> Reembedding:
        """Embed the entries of each backend again with the embedder `target`, one backend after another. Backends
        without vectors are skipped. Raises `InvalidInput` if no backend stores vectors."""
        moves = []
        for backend in self._all:
            try:
                moves.append(vectors_of(backend).reembed(target, queries=queries, progress=progress))
            except InvalidInput:  # a backend without vectors
                continue
        if not moves:
            raise InvalidInput("backend", "none of these backends stores vectors, so there is nothing to embed")
        return _combined_move(moves)

    def abandon_reembedding(self) -> bool:
        """Cancel unfinished moves to another embedding space. Return False if no backend has such a move."""
        return sum(vectors_of(backend).abandon_reembedding() for backend in self._all) > 0  # a sum calls every backend

    def prune_spaces(self) -> int:
        return sum(vectors_of(backend).prune_spaces() for backend in self._all)

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        return self._leases.lease(name, holder, seconds)

    def release(self, name: str, holder: str) -> None:
        self._leases.release(name, holder)

    @contextmanager
    def snapshot(self) -> Iterator[CombinedSnapshot]:
        """Take a snapshot of each backend in turn. A concurrent change may be visible in some of them only."""
        stores = [required(backend, SnapshotStore) for backend in self._all]
        with ExitStack() as stack:
            yield CombinedSnapshot([stack.enter_context(store.snapshot()) for store in stores])

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        """Store vectors from another store in every backend. Return the number of stored vectors; a vector that several
        backends store is counted once."""
        remaining, imported = iter(vectors), 0
        while page := [*islice(remaining, _PAGE)]:
            imported += max(vectors_of(backend).keep_vectors(page) for backend in self._all)
        return imported

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Verify each backend, and return all checks. The name of each check begins with the name of the backend."""
        names = {id(backend): name for name, backend in reversed(self._names.items())}
        return [
            dataclasses.replace(check, name=f"{names.get(id(backend), 'default')} {check.name}")
            for backend in self._all
            for check in checks_of(backend, repair=repair)
        ]

    def backup(self, folder: Path) -> None:
        """Copy all backends into one folder. The backends are copied one after another, so the copies show different
        moments. Raises `StoreError` if two backends write a file with the same name."""
        stores = [required(backend, BackupStore) for backend in self._all]
        for number, store in enumerate(stores):
            part = folder / f".part{number}"
            make_folder(part, new=True)
            store.backup(part)
            for path in part.iterdir():
                if (folder / path.name).exists():
                    raise StoreError(
                        f"two backends use the file name {path.name}, so one folder cannot contain both copies; "
                        "back up each backend to its own folder"
                    )
                path.rename(folder / path.name)
            part.rmdir()

    def size(self, namespaces: Sequence[str], since: StoreSize | None = None) -> StoreSize:
        """Return the size of all backends; see `SizedStore.size`."""
        known = since.states if since else ()
        each: Sequence[StoreSize | None] = [StoreSize(0, 0, (state,)) for state in known] or [None] * len(self._all)
        sizes = [size_of(part, namespaces, before) for part, before in zip(self._all, each, strict=True)]
        before = since or StoreSize()
        unknown = 0, time.monotonic_ns()  # a store without sizes may have changed
        states = tuple(size.states[0] if size.states else unknown for size in sizes)
        entries, total = sum(size.entries for size in sizes), sum(size.bytes for size in sizes)
        return StoreSize(before.entries + entries, before.bytes + total, states)

    def status(self) -> Mapping[str, Any]:
        states = {name: dict(status_of(backend)) for name, backend in self._names.items()}
        return {**status_of(self._default), "backends": states}

    def close(self) -> None:
        for backend in self._all:
            backend.close()

    def _everywhere(self, check: StoreCheck, target: MemoryBackend) -> StoreCheck:
        """Extend a check of `store` to the entries of all backends. The returned check runs in a transaction of the
        backend `target`, and calls `check` with a function that returns the ids of the entries in a scope from all
        backends."""
        others = [backend for backend in self._all if backend is not target]
        return lambda ids: check(
            lambda scope: [*ids(scope), *(entry.id for other in others for entry in all_entries(other, scope))]
        )

    def _owner(self, entry_id: str, missing: type[Exception] = NotFound) -> MemoryBackend:
        for backend in self._all:
            if backend.get([entry_id]):
                return backend
        raise missing(f"there is no entry {entry_id}")

    def _selected(self, what: Scope | Sequence[str]) -> Iterator[MemoryEntry]:
        """Yield the entries that a call of `remove` names and that may have parts in other backends: the entries with
        these ids, or the documents in a scope, including archived documents."""
        if not isinstance(what, Scope):
            yield from self.get(what)
        elif not what.kinds or "document" in what.kinds:
            yield from all_entries(self, dataclasses.replace(what, kinds=("document",), include_archived=True))

    def _parts(self, entries: Iterable[MemoryEntry]) -> Iterator[str]:
        """Yield the ids of the pages and chunks of all documents among `entries`."""
        for entry in entries:
            if entry.kind == "document":
                scope = Scope(entry.namespace, document_id=entry.id, include_archived=True)
                yield from (part.id for part in all_entries(self, scope))

    def _remove(self, ids: Sequence[str]) -> int:
        return sum(backend.remove(ids) for backend in self._all) if ids else 0

    def _merged(self, lists: Sequence[Sequence[Hit]], query: Query) -> Sequence[Hit]:
        """Merge the lists of hits by rank, because scores of different backends cannot be compared. Return at most
        `query.limit` hits, best first."""
        best = {hit.entry.id: hit for hits in reversed(lists) for hit in hits}
        ranked = merge([[hit.entry.id for hit in hits] for hits in lists], k=self._rrf_k)
        top = ranked[0][1]
        scored = sorted(((-score / top, entry_id) for entry_id, score in ranked))
        return [
            dataclasses.replace(best[entry_id], score=-score)
            for score, entry_id in scored[: query.limit]
            if -score >= query.min_score
        ]


def _combined_move(moves: Sequence[Reembedding]) -> Reembedding:
    """Return one result: the sums of counts and times, and the mean `overlap` of all compared queries."""
    counts = {
        name: sum(getattr(move, name) for move in moves)
        for name in ("entries", "embedded", "reused", "failed", "seconds", "sample")
    }
    compared = [(move.overlap, move.sample) for move in moves if move.overlap is not None]
    return dataclasses.replace(
        next((move for move in moves if move.switched), moves[0]),
        overlap=sum(share * n for share, n in compared) / sum(n for _, n in compared) if compared else None,
        **counts,
    )
