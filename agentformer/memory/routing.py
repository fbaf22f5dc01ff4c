"""Which backend keeps an entry, and several backends as one.

A write goes where the first fitting route says. A read asks every backend, so that nothing is lost from sight
when a route changes. With one backend, nothing of this stands in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from heapq import merge as merge_sorted
from itertools import islice
from pathlib import Path
from typing import Any

from agentformer.errors import Conflict, InvalidInput, NotFound, StoreError
from agentformer.memory.combined_snapshot import CombinedSnapshot
from agentformer.records.codec import happened_at
from agentformer.records.history import Histories, check_histories
from agentformer.search.fusion import merge
from agentformer.settings import Route
from agentformer.types import (
    Check,
    Embedder,
    Hit,
    Hits,
    MemoryBackend,
    MemoryEntry,
    Query,
    Reembedding,
    Scope,
    SpaceState,
    StoredVector,
    Use,
    Waiting,
)

_GROUP = 1_000  # vectors given to every backend at a time, or entries listed


def fits(route: Route, entry: MemoryEntry) -> bool:
    """Does an entry of this tier, kind and namespace take this route?"""
    return (
        (not route.tiers or entry.tier in route.tiers)
        and (not route.kinds or entry.kind in route.kinds)
        and (not route.namespaces or entry.namespace in route.namespaces)
    )


class RoutedBackend:
    """`MemoryBackend` over several. `backends` maps a target's name to its backend; `default` names the one that
    keeps what no route fits, and the leases.

    One call is one transaction in each backend. Where it concerns several, a failure in one takes the others'
    part back, but a crash just between two commits may leave the part of the first. A summary is kept beside
    its originals, wherever semantic entries go, so that consolidation is always one transaction.
    """

    def __init__(
        self, routes: Sequence[Route], backends: Mapping[str, MemoryBackend], default: str, *, rrf_k: int = 60
    ) -> None:
        for route in routes:
            if route.target not in backends:
                raise InvalidInput("routes", f"{route.target!r} is no target; they are {', '.join(sorted(backends))}")
        self._routes = tuple(routes)
        self._names = dict(backends)
        self._default = backends[default]
        self._all = list({id(backend): backend for backend in (self._default, *backends.values())}.values())
        self._rrf_k = rrf_k

    def store(
        self,
        entries: Sequence[MemoryEntry],
        *,
        replacing: Sequence[Scope] = (),
        unique: bool = False,
        former: Histories | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Sequence[MemoryEntry]:
        past = check_histories(entries, former, unique=unique)
        parts: dict[int, list[MemoryEntry]] = {}
        for entry in entries:
            parts.setdefault(self._all.index(self._home(entry)), []).append(entry)
        stored: dict[str, MemoryEntry] = {}
        orphans = [part for scope in replacing for part in self._parts(self._documents(scope))]
        try:
            for which, part in parts.items():
                theirs = {entry.id: past[entry.id] for entry in part if entry.id in past}
                kept = self._all[which].store(
                    part, replacing=replacing, unique=unique, former=theirs, progress=progress
                )
                stored.update({given.id: entry for given, entry in zip(part, kept, strict=True)})
        except BaseException:
            self.remove([given for given, entry in stored.items() if entry.id == given])
            raise
        for which, backend in enumerate(self._all):
            if which not in parts:
                for scope in replacing:
                    if backend.count(dataclasses.replace(scope, include_archived=True)):
                        backend.remove(scope)
        self._remove(orphans)
        return [stored[entry.id] for entry in entries]

    def get(self, ids: Sequence[str]) -> list[MemoryEntry]:
        found = {entry.id: entry for backend in reversed(self._all) for entry in backend.get(ids)}
        return [found[i] for i in ids if i in found]

    def search(self, query: Query) -> Hits:
        lists = [backend.search(query) for backend in self._all]
        warnings = tuple(dict.fromkeys(warning for hits in lists for warning in hits.warnings))
        filled = [hits for hits in lists if hits]
        if len(filled) < 2:
            return Hits(filled[0] if filled else (), warnings)
        return Hits(self._merged(filled, query), warnings)

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        return self._owner(entry_id).update(entry_id, changes, expected_version)

    def touch(self, uses: Sequence[Use]) -> None:
        for backend in self._all:
            backend.touch(uses)

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """A document's pages and chunks go with it, wherever they are."""
        parts = [*self._parts(self._documents(what) if isinstance(what, Scope) else self.get(what))]
        return sum(backend.remove(what, expected_version) for backend in self._all) + self._remove(parts)

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        pages = [backend.list(scope, after=after, limit=limit) for backend in self._all]
        return [*merge_sorted(*pages, key=lambda entry: entry.id)][:limit]

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        found = [entry for backend in self._all for entry in backend.latest(scope, limit=limit)]
        return sorted(found, key=lambda entry: (happened_at(entry), entry.id), reverse=True)[:limit]

    def count(self, scope: Scope) -> int:
        return sum(backend.count(scope) for backend in self._all)

    def namespaces(self) -> Sequence[str]:
        return sorted({name for backend in self._all for name in backend.namespaces()})

    def pending(self, scope: Scope) -> int:
        return sum(backend.pending(scope) for backend in self._all)

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        owners = {self._all.index(self._owner(entry_id, Conflict)) for entry_id in archive_ids}
        if len(owners) != 1:
            raise Conflict("these entries are kept in several backends, where no summary can stand for all of them")
        return self._all[owners.pop()].consolidate(summary, archive_ids, versions=versions)

    def restore(self, summary_id: str) -> Sequence[MemoryEntry]:
        return self._owner(summary_id).restore(summary_id)

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        return next((past for past in (backend.history(entry_id) for backend in self._all) if past), [])

    def embed_pending(self, *, refused: bool = True) -> int:
        return sum(backend.embed_pending(refused=refused) for backend in self._all)

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        found = [item for backend in self._all for item in backend.waiting(what, limit=limit)]
        return sorted(found, key=lambda item: item.entry_id)[:limit]

    def spaces(self) -> Sequence[SpaceState]:
        return [state for backend in self._all for state in backend.spaces()]

    def reembed(
        self,
        target: Embedder,
        *,
        queries: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Reembedding:
        """Each backend by itself: a call that was interrupted between two goes on with the second."""
        moved = []
        for backend in self._all:
            try:
                moved.append(backend.reembed(target, queries=queries, progress=progress))
            except InvalidInput:  # it keeps no vectors
                continue
        if not moved:
            raise InvalidInput("backend", "none of these backends keeps vectors, so there is nothing to embed")
        return _together(moved)

    def abandon_reembedding(self) -> bool:
        return sum(backend.abandon_reembedding() for backend in self._all) > 0  # every one, also after a True

    def prune_spaces(self) -> int:
        return sum(backend.prune_spaces() for backend in self._all)

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        return self._default.lease(name, holder, seconds)

    def release(self, name: str, holder: str) -> None:
        self._default.release(name, holder)

    @contextmanager
    def snapshot(self) -> Iterator[CombinedSnapshot]:
        """Of each backend one moment, taken one after another: what a call changed in the first and not yet in the
        second may be seen in parts, as after a crash."""
        with ExitStack() as open_ones:
            yield CombinedSnapshot([open_ones.enter_context(backend.snapshot()) for backend in self._all])

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        given, kept = iter(vectors), 0
        while group := [*islice(given, _GROUP)]:
            kept += max(backend.keep_vectors(group) for backend in self._all)
        return kept

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Each backend by itself; the name of a check tells whose it is."""
        names = {id(backend): name for name, backend in reversed(self._names.items())}
        return [
            dataclasses.replace(check, name=f"{names.get(id(backend), 'default')} {check.name}")
            for backend in self._all
            for check in backend.verify(repair=repair)
        ]

    def backup(self, folder: Path) -> None:
        """The backends share a folder, so their copies do. Each is of one moment of its own."""
        for number, backend in enumerate(self._all):
            part = folder / f".part{number}"
            part.mkdir()
            backend.backup(part)
            for path in part.iterdir():
                if (folder / path.name).exists():
                    raise StoreError(f"two backends want to write {path.name} into one backup")
                path.rename(folder / path.name)
            part.rmdir()

    def status(self) -> Mapping[str, Any]:
        states = {name: dict(backend.status()) for name, backend in self._names.items()}
        return {**self._default.status(), "backends": states}

    def close(self) -> None:
        for backend in self._all:
            backend.close()

    def _home(self, entry: MemoryEntry) -> MemoryBackend:
        target = next((route.target for route in self._routes if fits(route, entry)), None)
        return self._names[target] if target else self._default

    def _owner(self, entry_id: str, missing: type[Exception] = NotFound) -> MemoryBackend:
        for backend in self._all:
            if backend.get([entry_id]):
                return backend
        raise missing(f"there is no entry {entry_id}")

    def _documents(self, scope: Scope) -> Iterator[MemoryEntry]:
        """Those of a scope, archived ones too."""
        if not scope.kinds or "document" in scope.kinds:
            yield from self._every(dataclasses.replace(scope, kinds=("document",), include_archived=True))

    def _parts(self, entries: Iterable[MemoryEntry]) -> Iterator[str]:
        """Ids of all pages and chunks of these entries."""
        for entry in entries:
            if entry.kind == "document":
                scope = Scope(entry.namespace, document_id=entry.id, include_archived=True)
                yield from (part.id for part in self._every(scope))

    def _every(self, scope: Scope) -> Iterator[MemoryEntry]:
        after = ""
        while found := self.list(scope, after=after, limit=_GROUP):
            yield from found
            after = found[-1].id

    def _remove(self, ids: Sequence[str]) -> int:
        return sum(backend.remove(ids) for backend in self._all) if ids else 0

    def _merged(self, lists: Sequence[Sequence[Hit]], query: Query) -> Sequence[Hit]:
        """By rank: scores of different backends have no common unit."""
        best = {hit.entry.id: hit for hits in reversed(lists) for hit in hits}
        ranked = merge([[hit.entry.id for hit in hits] for hits in lists], k=self._rrf_k)
        top = ranked[0][1]
        scored = sorted(((-score / top, entry_id) for entry_id, score in ranked))
        return [
            dataclasses.replace(best[entry_id], score=-score)
            for score, entry_id in scored[: query.limit]
            if -score >= query.min_score
        ]


def _together(moves: Sequence[Reembedding]) -> Reembedding:
    """The moves of several backends as one; the overlap is the mean over all that was compared."""
    counts = {
        name: sum(getattr(move, name) for move in moves)
        for name in ("entries", "embedded", "reused", "failed", "seconds", "sample")
    }
    compared = [(move.overlap, move.sample) for move in moves if move.overlap is not None]
    return dataclasses.replace(
        next((move for move in moves if move.switched), moves[0]),
        overlap=sum(share * of for share, of in compared) / sum(of for _, of in compared) if compared else None,
        **counts,
    )
