"""The map of the console: the entries of a namespace as points in two dimensions, computed from the stored vectors.

The two dimensions are the principal components of the vectors (PCA), the directions in which the vectors differ most. A
map is computed in a thread and kept in the memory of the process, not in a file, because a file would keep the ids of
removed entries. It is computed again when the store has changed enough.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentformer.errors import AgentFormerError
from agentformer.records.offers import offered, vectors_of
from agentformer.types import UNSEARCHED_KINDS, EntryVector, MemoryBackend, Scope, SnapshotStore

if TYPE_CHECKING:
    from agentformer.types import Matrix

log = logging.getLogger("agentformer")

MAX_POINTS = 20_000  # of a map; of a larger namespace, only every second, third or n-th entry is shown
SCALE = 10_000  # coordinates are whole numbers from 0 to this number
_MAX_MAPS = 8  # maps that a process keeps
_SMALL_CHANGE = 0.02  # a cached map is shown again while the number of entries has changed by at most this share
_EXACT = 2_000  # up to this number of entries, each change of the number makes a new map
_MAX_AGE_SECONDS = 600.0  # seconds after which a map is computed again, because texts may have changed
_DIRECTIONS = 8  # directions that the iteration computes; the best two are used
_ROUNDS = 15  # rounds of the iteration; the two components then change by less than a point of the screen


@dataclass(frozen=True, slots=True)
class MapPoints:
    """A computed map. `x` and `y` contain the coordinates of each entry in `entries`, 0..`SCALE`. The vectors of
    `entries` are left out. A large namespace has more entries than its map has points; `total` is the number of all
    entries that a search can return. `explained` is the share of the variance of the vectors that the two dimensions
    show, 0..1."""

    space: str
    entries: Sequence[EntryVector]
    x: Sequence[int]
    y: Sequence[int]
    total: int
    explained: float


class MapState(NamedTuple):
    """The state of a map. `points` is None if there are no vectors, or if no map was computed yet. While the state
    is `computing`, `points` may hold the previous map. `problem` describes why the last computation failed."""

    state: Literal["ready", "computing", "failed"]
    points: MapPoints | None = None
    problem: str = ""


class _CachedMap(NamedTuple):
    points: MapPoints | None
    space: str
    entries: int
    at: float  # monotonic seconds
    problem: str = ""


class Maps:
    """The maps of one memory. Thread-safe. One map is computed at a time, in a thread."""

    def __init__(self, backend: MemoryBackend, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, _CachedMap] = OrderedDict()
        self._running: dict[str, threading.Thread] = {}
        self._computing = threading.Lock()

    def get(self, namespace: str, *, renew: bool = False, wait_seconds: float = 0.0) -> MapState:
        """Return the map of a namespace. If there is no map, if the entries have changed much since the map was
        computed, or if `renew` is true, start to compute the map and wait at most `wait_seconds` for it."""
        space = next((state.space.spec for state in vectors_of(self._backend).spaces() if state.state == "active"), "")
        count = self._backend.count(_searched(namespace))
        with self._lock:
            cached = self._cache.get(namespace)
            thread = self._running.get(namespace)
            if thread is None and (renew or cached is None or self._is_outdated(cached, space, count)):
                thread = threading.Thread(
                    target=self._run, args=(namespace, space, count), name="agentformer-map", daemon=True
                )
                self._running[namespace] = thread
                thread.start()
        if thread is not None:
            thread.join(wait_seconds)
        with self._lock:
            cached = self._cache.get(namespace)
            if namespace in self._running:
                same = cached is not None and cached.space == space  # points of another space would lie elsewhere
                return MapState("computing", cached.points if cached and same else None)
        assert cached is not None  # a thread that ends leaves a result
        return MapState("failed" if cached.problem else "ready", cached.points, cached.problem)

    def _is_outdated(self, cached: _CachedMap, space: str, count: int) -> bool:
        allowed = 0 if count <= _EXACT else _SMALL_CHANGE * cached.entries
        is_old = self._clock() - cached.at > _MAX_AGE_SECONDS
        return cached.space != space or abs(count - cached.entries) > allowed or is_old

    def _run(self, namespace: str, space: str, count: int) -> None:
        points, problem = None, ""
        try:
            with self._computing:
                points = _compute(self._backend, namespace, space, count)
        except AgentFormerError as error:
            problem = str(error)
        except Exception:  # the page must not wait for ever
            log.exception("the map of %s was not computed", namespace)
            problem = "The map was not computed; see the log of the server."
        with self._lock:
            self._cache[namespace] = _CachedMap(points, space, count, self._clock(), problem)
            self._cache.move_to_end(namespace)
            while len(self._cache) > _MAX_MAPS:
                self._cache.popitem(last=False)
            del self._running[namespace]


def _searched(namespace: str) -> Scope:
    return Scope(namespace, except_kinds=tuple(sorted(UNSEARCHED_KINDS)))


def _compute(backend: MemoryBackend, namespace: str, space: str, count: int) -> MapPoints | None:
    """Return the map of a namespace with `count` entries, or None if no entry has a vector, or if the backend offers no
    snapshots. If there are more than `MAX_POINTS` entries, only every n-th entry is a point."""
    import numpy as np

    if not (store := offered(backend, SnapshotStore)):
        return None
    with store.snapshot() as snapshot:
        every = max(1, -(-count // MAX_POINTS))
        sample = [*snapshot.entry_vectors(namespace, every=every)][:MAX_POINTS]
    if not sample:
        return None
    rows = np.stack([entry.vector for entry in sample])
    places, explained = project(rows)
    nothing = np.empty(0, np.float32)  # a row of `rows` would keep the whole matrix in memory
    entries = [entry._replace(vector=nothing) for entry in sample]
    x, y = (np.rint(places[:, axis] * SCALE).astype(int).tolist() for axis in (0, 1))
    return MapPoints(space, entries, x, y, count, explained)


def project(rows: Matrix) -> tuple[Matrix, float]:
    """Project vectors to two dimensions. Return the coordinates of each row along the two principal axes, scaled to
    0..1, as float32[n, 2], and the share of the variance that the two axes contain, 0..1. Equal rows have equal
    coordinates. The largest component of each axis is positive, so that repeated maps are not mirrored. The axes come
    from a subspace iteration, which needs no covariance matrix, so the time grows with the number of dimensions and not
    with its cube."""
    import numpy as np

    centred = rows - rows.mean(axis=0)
    total = float(np.square(centred).sum())
    basis = np.random.default_rng(0).standard_normal((rows.shape[1], min(_DIRECTIONS, rows.shape[1])))
    basis = basis.astype(np.float32)
    for _ in range(_ROUNDS):
        basis, _ = np.linalg.qr(centred.T @ (centred @ basis))
    _, singular_values, directions = np.linalg.svd(centred @ basis, full_matrices=False)
    axes = np.zeros((rows.shape[1], 2), np.float32)
    best = min(2, len(directions))
    axes[:, :best] = (basis @ directions.T)[:, :best]
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1, 1)
    places = centred @ axes
    low, high = places.min(axis=0), places.max(axis=0)
    width = np.where(high - low > 1e-6, high - low, 1)
    scaled = np.where(high - low > 1e-6, (places - low) / width, 0.5).astype(np.float32)
    explained = float(np.square(singular_values[:2]).sum()) / total if total > 1e-9 else 1.0
    return scaled, min(1.0, explained)
