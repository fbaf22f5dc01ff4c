"""Uses a store with or without the protocols of `types.stores`. If a store does not offer a protocol, `required` raises
`NotOffered`. The other functions return an object that does without it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from agentformer.errors import InvalidInput, NotOffered
from agentformer.types import (
    BackupStore,
    Check,
    Embedder,
    LeaseStore,
    MemoryBackend,
    MemoryEntry,
    OriginalsStore,
    RecordStore,
    Reembedding,
    Scope,
    SizedStore,
    SnapshotStore,
    SpaceState,
    StatusStore,
    StoredVector,
    StoreSize,
    VectorStore,
    VerifiedStore,
    Waiting,
)

T = TypeVar("T")  # a protocol; as an argument, it is a callable, because it is no concrete class
_PAGE = 1_000  # entries read at a time
# A protocol -> what it offers, and the calls that need it.
_PURPOSES: Mapping[object, str] = {
    SnapshotStore: "no snapshots, which exports and copies need",
    BackupStore: "no copies of itself, which a backup needs",
    OriginalsStore: "no list of absent documents, which uploads need",
    VectorStore: "no vectors",
    VerifiedStore: "no verification of its data",
    LeaseStore: "no leases",
    StatusStore: "no status",
    SizedStore: "no sizes",
}


def offered(store: object, protocol: Callable[..., T]) -> T | None:
    """Return the store if it has all methods of `protocol`, and otherwise None."""
    methods = (name for name in vars(protocol) if not name.startswith("_"))
    return cast(T, store) if all(hasattr(store, name) for name in methods) else None


def required(store: object, protocol: Callable[..., T]) -> T:
    """Return the store if it has all methods of `protocol`. Otherwise, raise `NotOffered`."""
    found = offered(store, protocol)
    if found is None:
        raise NotOffered(f"{_missing(store, protocol)}; use another backend, such as faiss")
    return found


def vectors_of(store: MemoryBackend) -> VectorStore:
    """Return the vectors of a store. A store that offers no vectors has none, and no entry waits for a vector."""
    return offered(store, VectorStore) or WithoutVectors(_name(store))


def leases_of(store: MemoryBackend) -> LeaseStore:
    """Return the leases of a store. If it offers none, the result has leases that only users of this result see. The
    caller keeps the result, because another call returns other leases."""
    return offered(store, LeaseStore) or _OwnLeases()


def feed_of(store: object, name: str) -> RecordStore:
    """Return the database whose events can be watched. `name` is the name of the backend in the message of the error.
    Raises `NotOffered` for a backend without a change feed."""
    database: RecordStore | None = getattr(store, "feed", None)
    if database is None:
        raise NotOffered(
            f"the backend {name} has no change feed, so its events cannot be watched; use faiss or postgres"
        )
    return database


def checks_of(store: MemoryBackend, *, repair: bool = False) -> list[Check]:
    """Return the checks of a store. If it offers none, return one check without findings that says so."""
    if verified := offered(store, VerifiedStore):
        return list(verified.verify(repair=repair))
    return [Check("store", f"not checked: {_missing(store, VerifiedStore)}", 0)]


def status_of(store: MemoryBackend) -> Mapping[str, Any]:
    """Return the status of a store as JSON values. If it offers none, its entries are counted."""
    if reporting := offered(store, StatusStore):
        return reporting.status()
    kinds = Counter(entry.kind for entry in _entries(store, store.namespaces()))
    counts = dict.fromkeys(("windows", "vectors", "pending"), 0)
    return {"entries": kinds.total(), **counts, "kinds": dict(sorted(kinds.items())), "space": None}


def size_of(store: MemoryBackend, namespaces: Sequence[str], since: StoreSize | None = None) -> StoreSize:
    """Return the size of namespaces; see `SizedStore.size`. If the store offers none, its entries are read, and with
    `since`, nothing is added."""
    if sized := offered(store, SizedStore):
        return sized.size(namespaces, since)
    if since is not None:
        return since
    entries = total = 0
    for entry in _entries(store, namespaces or store.namespaces()):
        file = entry.metadata.get("bytes", 0) if entry.kind == "document" else 0
        entries, total = entries + 1, total + len(entry.content.encode()) + (file if isinstance(file, int) else 0)
    return StoreSize(entries, total)


def _entries(store: MemoryBackend, namespaces: Sequence[str]) -> Iterator[MemoryEntry]:
    for namespace in namespaces:
        after, scope = "", Scope(namespace, include_archived=True)
        while page := store.list(scope, after=after, limit=_PAGE):
            yield from page
            after = page[-1].id


class WithoutVectors:
    """The methods of `VectorStore` for a store without vectors: no entry has a vector or waits for one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def pending(self, scope: Scope) -> int:
        return 0

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        return ()

    def embed_pending(self, *, refused: bool = True) -> int:
        return 0

    def spaces(self) -> Sequence[SpaceState]:
        return ()

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
    ) -> Reembedding:
        """Raise `InvalidInput`, because there are no vectors."""
        raise InvalidInput("backend", f"{self.name} stores no vectors, so there is nothing to embed")

    def abandon_reembedding(self) -> bool:
        return False

    def prune_spaces(self) -> int:
        return 0

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        return 0


class _OwnLeases:
    """Leases in the memory of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, float]] = {}  # name -> holder, and the end by `time.monotonic`

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take or extend a lease; see `LeaseStore`."""
        with self._lock:
            now = time.monotonic()
            other, end = self._held.get(name, (holder, now))
            if other != holder and end > now:
                return False
            self._held[name] = holder, now + seconds
            return True

    def release(self, name: str, holder: str) -> None:
        """End a lease; see `LeaseStore`."""
        with self._lock:
            if self._held.get(name, ("", 0.0))[0] == holder:
                del self._held[name]


def _name(store: object) -> str:
    return str(getattr(store, "name", "") or type(store).__name__)


def _missing(store: object, protocol: object) -> str:
    return f"this memory's store {_name(store)} offers {_PURPOSES[protocol]}"
