"""Which entries a search may return, as masks by entry number that are kept until the records change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentformer.records import entries as records
from agentformer.records import scopes
from agentformer.records.database import Database
from agentformer.types import Scope

_CACHED_SCOPES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """The entries of a scope that a search may return. One object stands for one state of the scope, so what is
    worked out from it may be kept for as long as it is the same object."""

    mask: NDArray[np.bool_]  # by entry number; numbers beyond its end are outside
    count: int  # of entries inside


class ScopeCache:
    """Masks of recent scopes, each valid until the next change of the records. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._masks: OrderedDict[str, tuple[int, Allowed]] = OrderedDict()

    def allowed(self, database: Database, scope: Scope) -> Allowed:
        """What a search in this scope may return now."""
        key = repr(scope)
        fading = scope.min_salience > 0  # what decay leaves changes with time and use, of which the feed knows nothing
        with database.reading() as connection:
            seq = records.last_change(connection)
            with self._lock:
                known = None if fading else self._masks.get(key)
                if known and known[0] == seq:
                    self._masks.move_to_end(key)
                    return known[1]
            nums = scopes.searchable(connection, scope)
        mask = np.zeros(int(nums[-1]) + 1 if len(nums) else 0, np.bool_)
        mask[nums] = True
        allowed = Allowed(mask, len(nums))
        if fading:
            return allowed
        with self._lock:
            self._masks[key] = (seq, allowed)
            if len(self._masks) > _CACHED_SCOPES:
                self._masks.popitem(last=False)
        return allowed
