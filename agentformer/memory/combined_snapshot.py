"""The snapshots of several backends as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge

from agentformer.types import MemoryEntry, MemorySnapshot, Scope, StoredVector


class CombinedSnapshot:
    """A `MemorySnapshot` over several, each of one moment of its own."""

    def __init__(self, snapshots: Sequence[MemorySnapshot]) -> None:
        self._all = snapshots

    def namespaces(self) -> Sequence[str]:
        return sorted({name for each in self._all for name in each.namespaces()})

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        pages = [each.list(scope, after=after, limit=limit) for each in self._all]
        return [*merge(*pages, key=lambda entry: entry.id)][: max(0, limit)]

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        return next((past for past in (each.history(entry_id) for each in self._all) if past), [])

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        """Those of backends in one space once, whoever has them."""
        last: bytes | None = None
        told: list[object] = []  # spaces in which the last hash was given
        for each in merge(*(one.vectors(namespaces) for one in self._all), key=lambda one: (one.hash, one.space.spec)):
            told = told if each.hash == last else []
            last = each.hash
            if each.space not in told:
                told.append(each.space)
                yield each
