"""Scopes of a search: the condition of a scope, and whether the scope has few entries."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentformer.index.scope_masks import ScopeMask
from agentformer.memory.backends.postgres import dialect
from agentformer.records.scopes import SEARCHED, where
from agentformer.types import Scope

FEW = 5_000  # in a scope with at most so many entries, vectors are compared one by one
_MAX_CACHED = 256
# The windows of the entries `e` with their vectors. The embedding space is a parameter.
WINDOWS_OF_ENTRIES = (
    "JOIN windows AS w ON w.entry_namespace = e.namespace AND w.entry = e.num AND w.space = %s "
    "JOIN vectors AS v ON v.entry_namespace = w.entry_namespace AND v.id = w.vector"
)


@dataclass(frozen=True, slots=True, eq=False)
class ScopeRows(ScopeMask):
    """A scope of a search. `count` is the number of its entries, or `FEW` + 1 if there are more."""

    scope: Scope = field(default_factory=Scope)


class ServerScopes:
    """Counts the entries of scopes, because a scope with few entries is searched in another way. The counts are cached
    until the next change. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, tuple[int, ScopeRows]] = OrderedDict()

    def allowed(self, connection: sqlite3.Connection, scope: Scope, seq: int) -> ScopeRows:
        """Return the scope with the number of its entries. `seq` is the newest change that `connection` can read."""
        key = repr(scope)
        with self._lock:
            cached = self._cached.get(key)
        if cached and cached[0] == seq and scope.min_salience <= 0:
            return cached[1]
        condition, values = where(scope)
        query = f"SELECT count(*) FROM (SELECT 1 FROM entries WHERE {condition} AND {SEARCHED} LIMIT {FEW + 1}) AS few"
        count = int(connection.execute(query, values).fetchone()[0])
        found = ScopeRows(np.zeros(0, np.bool_), count, scope)
        with self._lock:
            self._cached[key] = seq, found
            self._cached.move_to_end(key)
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return found


def scope_condition(scope: Scope) -> tuple[str, list[Any]]:
    """Return an SQL condition for the searchable entries of a scope, and its parameters."""
    condition, values = where(scope)
    statement = dialect.translate(f"{condition} AND {SEARCHED}")
    return statement.text, statement.bind(values)
