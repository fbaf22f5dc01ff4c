"""Which entries a search may return, as masks by entry number that follow the records."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentformer.records import entries as records
from agentformer.records import scopes
from agentformer.types import Scope

_BYTES = 64_000_000  # of masks that are kept: 64 scopes of a million entries
_CHANGES = 2_000  # changed entries looked at one by one; for more, the whole scope is read anew


@dataclass(frozen=True, slots=True, eq=False)
class ScopeMask:
    """The entries of a scope that a search may return. One object stands for one state of the scope, so what is
    worked out from it may be kept for as long as it is the same object."""

    mask: NDArray[np.bool_]  # by entry number; numbers beyond its end are outside
    count: int  # of entries inside


@dataclass(frozen=True, slots=True)
class _Known:
    seq: int  # up to where the mask has followed the records
    point: str  # the history's token there
    allowed: ScopeMask


class ScopeCache:
    """Masks of recent scopes. What was changed since a mask was made is looked at again, and no more. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._masks: OrderedDict[str, _Known] = OrderedDict()
        self._bytes = 0

    def allowed(self, connection: sqlite3.Connection, scope: Scope, seq: int) -> ScopeMask:
        """What a search in this scope may return now; the same object as long as that stays the same. `seq` is the
        last change that the connection sees."""
        if scope.min_salience > 0:  # what decay leaves changes with time and use, of which the feed knows nothing
            return _fresh(connection, scope)
        key = repr(scope)
        with self._lock:
            known = self._masks.get(key)
            if known:
                self._masks.move_to_end(key)
        if known and known.seq == seq:
            return known.allowed
        allowed = _followed(connection, scope, known) if known else None
        current = _Known(seq, records.point(connection, seq), allowed or _fresh(connection, scope))
        self._keep(key, current)
        return current.allowed

    def _keep(self, key: str, current: _Known) -> None:
        with self._lock:
            former = self._masks.pop(key, None)
            self._bytes += current.allowed.mask.nbytes - (former.allowed.mask.nbytes if former else 0)
            self._masks[key] = current
            while self._bytes > _BYTES and len(self._masks) > 1:
                _, oldest = self._masks.popitem(last=False)
                self._bytes -= oldest.allowed.mask.nbytes


def _followed(connection: sqlite3.Connection, scope: Scope, known: _Known) -> ScopeMask | None:
    """The mask with what has changed since; None where that is much, or the records are another copy now."""
    if records.point(connection, known.seq) != known.point:
        return None
    changes = records.changes_since(connection, known.seq, _CHANGES + 1)
    if len(changes) > _CHANGES:
        return None
    changed = np.fromiter((num for _, num in changes), np.int64, len(changes))
    inside = scopes.searchable(connection, scope, changed.tolist())
    return _changed(known.allowed, changed, inside)


def _changed(former: ScopeMask, changed: NDArray[np.int64], inside: NDArray[np.int64]) -> ScopeMask:
    """`former`, where of the `changed` entries those `inside` are in the scope; itself where that is no change."""
    mask = former.mask
    then = changed[changed < len(mask)]
    then = np.sort(then[mask[then]])
    if np.array_equal(then, inside):
        return former
    grown = np.zeros(max(len(mask), int(inside.max(initial=-1)) + 1), np.bool_)
    grown[: len(mask)] = mask
    grown[then] = False
    grown[inside] = True
    return ScopeMask(grown, former.count - len(then) + len(inside))


def _fresh(connection: sqlite3.Connection, scope: Scope) -> ScopeMask:
    nums = scopes.searchable(connection, scope)
    mask = np.zeros(int(nums[-1]) + 1 if len(nums) else 0, np.bool_)
    mask[nums] = True
    return ScopeMask(mask, len(nums))
