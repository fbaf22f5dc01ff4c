"""Protocols that a store may offer besides `MemoryBackend`. `records.offers` has the functions that use a store with or
without them. A backend offers a protocol by having its methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from agentformer.types.backend import AbsentDocument, Check, MemoryBackend, MemorySnapshot, StoredVector, StoreSize
from agentformer.types.memory import MemoryEntry, Scope
from agentformer.types.models import Embedder, Reembedding, SpaceState, Waiting


class VectorStore(Protocol):
    """A store that embeds its entries, so that searches also compare vectors. If the embedder is unavailable, entries
    are stored without vectors. A search by words finds such entries at once, and a search by vectors finds them after
    `embed_pending`."""

    def pending(self, scope: Scope) -> int:
        """Return the number of entries of the scope that have no vectors yet."""

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        """Return the entries without vectors among `what` (a scope or ids), in order of id, with their last errors."""

    def embed_pending(self, *, refused: bool = True) -> int:
        """Embed the entries without vectors. Return the number of entries that still have none. If `refused` is False,
        entries that the model has refused (for example, as too long) are not tried again and not counted."""

    def spaces(self) -> Sequence[SpaceState]:
        """Return all embedding spaces of the store."""

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
    ) -> Reembedding:
        """Embed all entries again with the embedder `target`, and move the store to the embedding space of `target`.
        Searches use the present space until the move is complete.

        Entries that change during the move are also embedded in the new space. One transaction switches the store to
        the new space. If a move is interrupted, the next call continues it. The vectors of the former space are kept
        until `prune_spaces` is called. The result contains a comparison of the two spaces, which is measured with
        `queries`. The function `progress` receives the number of finished entries and the number of all entries.

        Raises `Conflict` if another move is running, and `EmbedderUnavailable` if `target` cannot be used.
        """

    def abandon_reembedding(self) -> bool:
        """Cancel an unfinished move to another embedding space. Return False if there is no unfinished move."""

    def prune_spaces(self) -> int:
        """Delete the vectors of embedding spaces that searches no longer use. Return the number of deleted vectors."""

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        """Store vectors from another store, so that the next `store` does not need to embed their texts again. Return
        the number of stored vectors. Vectors of another embedding space are not stored. Raises `EmbedderError` for a
        vector that is not finite, or whose length is not 1."""


class SnapshotStore(Protocol):
    """A store that can show its entries as they are at one moment. Exports and copies need it."""

    def snapshot(self) -> AbstractContextManager[MemorySnapshot]:
        """Return a context manager that yields a read-only view of the store at this moment. The view can be used until
        the `with` block ends. Writers do not wait for the view."""


class BackupStore(Protocol):
    """A store that can write a copy of itself, which the same backend opens."""

    def backup(self, folder: Path) -> None:
        """Write a complete copy of the store at this moment into `folder`, which must be empty. Writers do not wait.
        Raises `StoreFull` if the copy cannot be written, and `StoreDamaged` if the store cannot be read."""


class VerifiedStore(Protocol):
    """A store that can look for damage in its data."""

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Look for damage: compare the records with their checksums, with each other, and with the indexes. Damage is
        returned in the result, and no error is raised. Concurrent writes are not reported as damage. If `repair` is
        False, nothing is changed.

        If `repair` is True, all data that can be computed from the records is rebuilt. Rows that cannot be read are
        moved to a quarantine file in the folder of the store, and count as repaired (`Check.mended`). `Check.lost` is
        the number of entries and former versions, without parts of documents, that could not be restored.
        """


class LeaseStore(Protocol):
    """A store with leases that hold for all processes that use the store. Cleaning and learning take leases."""

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take the lease `name` for `seconds`, or extend it if `holder` already has it. A lease is a lock that ends
        after a time. Return False if another holder has the lease."""

    def release(self, name: str, holder: str) -> None:
        """End the lease `name`. Nothing happens if `holder` does not have this lease."""


class OriginalsStore(Protocol):
    """A store that lists the documents whose original files may be superfluous. For a store without this list,
    `memory.backends.sidecar` keeps the list in a file."""

    def announce(self, documents: Sequence[MemoryEntry], upload: str) -> None:
        """Record that the caller is about to write the original files of these documents, and then to store the
        documents. If the caller dies in between, `absent_documents` shows which files are not needed. `upload` is a
        name that the caller gives to the upload. In this and the next two methods, a document is an entry of the kind
        `document` with a string `sha256` in its metadata. Other entries are ignored."""

    def absent_documents(self) -> Sequence[AbsentDocument]:
        """Return the documents that are not stored, but whose original files may exist, in order of id. `announce` and
        the removal of a document add the document to this list; the transaction that stores the document deletes it
        from the list. A repair and a backup add nothing. Raises `StoreDamaged` if a part of the store cannot be read,
        because the list would be incomplete."""

    def forget_absent(self, documents: Sequence[AbsentDocument]) -> None:
        """Delete documents from the list of `absent_documents`, after their files were deleted. A document that was
        announced again or removed again since the caller read the list stays in the list."""


class StatusStore(Protocol):
    """A store that can report the state of its parts."""

    def status(self) -> Mapping[str, Any]:
        """Return counts, and the state of each part of the store, as JSON values."""


class SizedStore(Protocol):
    """A store that can count what it contains without reading it. Limits of keys need it in a large store."""

    def size(self, namespaces: Sequence[str], since: StoreSize | None = None) -> StoreSize:
        """Return the size of these namespaces, or of all if there are none. If `since` is an earlier result for the
        same namespaces, the result is `since` and the entries that were stored after it, without what was changed and
        removed; this takes as long as there are such entries."""


class Vacuumed(NamedTuple):
    """The size of a store in bytes before and after, the number of former versions that were deleted, and the bytes
    of the size that are a log, which is emptied when no reader needs it any more."""

    before: int
    after: int
    versions: int
    log: int = 0


class CompleteStore(
    MemoryBackend,
    VectorStore,
    SnapshotStore,
    BackupStore,
    VerifiedStore,
    LeaseStore,
    OriginalsStore,
    StatusStore,
    Protocol,
):
    """A store that offers every protocol, as the backends `faiss`, `postgres` and `cosmos_db` do."""
