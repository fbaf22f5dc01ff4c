"""Scope masks. A scope describes the entries that a caller may see. A scope mask is a boolean array that says for each
entry number whether a search may return the entry. The masks are updated when the records change."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentformer.records import change_feed, scopes
from agentformer.records.codec import now_micros
from agentformer.records.sqlite import scopes as sqlite_scopes
from agentformer.records.sqlite.connection import sqlite
from agentformer.types import Connection, Scope

_MAX_BYTES = 64_000_000  # total size of cached masks: 64 scopes of a million entries
# Up to this number of changes, or up to this share of the entries if it is larger, changed entries are checked one by
# one. Above this limit, the whole scope is read again, which takes about a twentieth of the time for each entry.
_MAX_CHANGES = 2_000
_CHANGED_SHARE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class ScopeMask:
    """The entries that a search with one scope may return. When an entry enters or leaves the scope, a new object is
    created, so the identity of the object can be used as a cache key."""

    mask: NDArray[np.bool_]  # one element per entry number; entries beyond the end are not in the scope
    count: int  # number of entries in the scope


@dataclass(frozen=True, slots=True)
class _Cached:
    seq: int  # the number of the last change that the mask contains
    point: str  # the token of this change, which identifies the history of the records
    allowed: ScopeMask
    at: int  # the time of the clock at which the mask was computed, in microseconds
    until: float  # the time at which an entry may enter or leave the scope without a change


class ScopeCache:
    """A cache of the masks of recent scopes. Only changed entries are checked again. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._masks: OrderedDict[str, _Cached] = OrderedDict()
        self._bytes = 0

    def allowed(self, connection: Connection, scope: Scope, seq: int) -> ScopeMask:
        """Return the mask of a scope. The same object is returned until an entry enters or leaves the scope. `seq` is
        the number of the newest change that `connection` can read."""
        if scope.min_salience > 0:  # not cached, because the change feed does not contain changes of the salience
            return _read_mask(connection, scope)
        key, at = repr(scope), now_micros()
        with self._lock:
            cached = self._masks.get(key)
            if cached:
                self._masks.move_to_end(key)
        if cached and cached.seq == seq and cached.at <= at < cached.until:
            return cached.allowed
        allowed = (_updated(connection, scope, cached, at) if cached else None) or _read_mask(connection, scope)
        until = scopes.next_change(connection, scope, at) or math.inf
        self._store(key, _Cached(seq, change_feed.token_at(connection, seq), allowed, at, until))
        return allowed

    def _store(self, key: str, current: _Cached) -> None:
        with self._lock:
            former = self._masks.pop(key, None)
            self._bytes += current.allowed.mask.nbytes - (former.allowed.mask.nbytes if former else 0)
            self._masks[key] = current
            while self._bytes > _MAX_BYTES and len(self._masks) > 1:
                _, oldest = self._masks.popitem(last=False)
                self._bytes -= oldest.allowed.mask.nbytes


def _updated(connection: Connection, scope: Scope, cached: _Cached, at: int) -> ScopeMask | None:
    """Apply the latest changes, and the time that has passed until `at`, to a cached mask, instead of reading a new
    mask from the database. The clock may have been set back. If no entry has entered or left the scope, return the
    cached mask itself. Return None if a new mask must be read, because there are too many changes, or because the
    records were restored from a backup."""
    if change_feed.token_at(connection, cached.seq) != cached.point:
        return None
    most = max(_MAX_CHANGES, int(len(cached.allowed.mask) * _CHANGED_SHARE))
    changes = change_feed.since(connection, cached.seq, most + 1)
    nums = {num for _, num in changes}.union(scopes.changed_between(connection, scope, *sorted((cached.at, at))))
    if len(nums) > most:
        return None
    changed = np.fromiter(nums, np.int64, len(nums))
    inside = sqlite_scopes.searchable_numbers(sqlite(connection), scope, changed.tolist())
    mask = cached.allowed.mask
    before = changed[changed < len(mask)]
    before = np.sort(before[mask[before]])
    if np.array_equal(before, inside):
        return cached.allowed
    updated = np.zeros(max(len(mask), int(inside.max(initial=-1)) + 1), np.bool_)
    updated[: len(mask)] = mask
    updated[before] = False
    updated[inside] = True
    return ScopeMask(updated, cached.allowed.count - len(before) + len(inside))


def _read_mask(connection: Connection, scope: Scope) -> ScopeMask:
    nums = sqlite_scopes.searchable_numbers(sqlite(connection), scope)
    mask = np.zeros(int(nums[-1]) + 1 if len(nums) else 0, np.bool_)
    mask[nums] = True
    return ScopeMask(mask, len(nums))
