"""The contract of a memory backend, and the results of its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from agentformer.types.memory import Hits, MemoryEntry, Query, Scope, Use
from agentformer.types.models import Embedder, EmbeddingSpace, Reembedding, SpaceState, Vector, Waiting


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of a store. The store is sound if nothing was found, or everything found was repaired."""

    name: str  # "records", "vectors", "windows", "words", ...
    asked: str  # in plain words: the condition that holds if nothing is found
    looked_at: int  # number of things that were checked
    found: int = 0  # how many of them are wrong
    mended: int = 0  # how many of those were repaired
    findings: tuple[str, ...] = ()  # the first ones, in words, each with advice or with the repair
    lost: int = 0  # how many of the repaired ones were moved to the quarantine file, out of the memory


class StoredVector(NamedTuple):
    """A stored vector of the text with this SHA-256, in this space."""

    space: EmbeddingSpace
    hash: bytes
    vector: Vector  # float32[dimension], unit length


class MemorySnapshot(Protocol):
    """A view of a store at one moment. Later writes are not visible."""

    def namespaces(self) -> Sequence[str]:
        """Return every namespace that holds an entry, sorted."""
        ...

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        """Return entries of the scope with an id above `after`, in order of id."""
        ...

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        """Return former versions, oldest first."""
        ...

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        """Yield the vectors of the active space that entries of these namespaces use, each once, in order of hash; none
        for a backend without vectors."""
        ...


class MemoryBackend(Protocol):
    """Keeps records and finds them.

    Atomicity: each writing call is one transaction; it happens completely or not at all, and has reached the
    disk when the call returns. Visibility: an acknowledged write is seen by every later call of every
    thread and process that has the same store open. Order: `list` goes by id, which is time-sorted.
    A missing id is left out of `get`, is not counted by `remove`, and raises `NotFound` in `update`.
    A store that cannot embed now still stores: such entries are found by words at once, and by vectors
    after `embed_pending`.

    A live summary (`consolidate`) has archived originals, with its id as their `archived_by`. The originals of a
    removed or archived summary are live. No call leaves any other state.
    """

    def store(
        self,
        entries: Sequence[MemoryEntry],
        *,
        replacing: Sequence[Scope] = (),
        unique: bool = False,
        former: Mapping[str, Sequence[MemoryEntry]] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Sequence[MemoryEntry]:
        """Store all entries, and in the same transaction remove everything else in the scopes of `replacing`, with its
        parts. An existing id raises `Conflict`. `progress` receives the number of embedded windows and of all windows.

        `former` gives entries their `history`, by id, oldest first. Versions that do not rise up to the entry's own,
        and versions of an entry that is not stored here, raise `InvalidInput`. It cannot be combined with `unique`.

        With `unique`, a duplicate of a live entry (`records.entries.is_duplicate`) is not stored: the live entry is
        returned in its place, with its `repeat_count` one higher. That holds among the entries of one call and against
        every other writer, but not for entries that `replacing` removes."""
        ...

    def get(self, ids: Sequence[str]) -> Sequence[MemoryEntry]:
        """Return the entries of these ids in the given order, archived ones too."""
        ...

    def search(self, query: Query) -> Hits:
        """Return entries inside `query.scope`, best first; equal scores in order of id. Without a usable embedder only
        words decide, and a warning says so. A backend without vectors warns in the mode `dense`."""
        ...

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change fields; the former state goes to `history`. A stale `expected_version` raises `Conflict`.
        The store's own fields (id, times of storing, version, counts, `archived_by`) cannot be changed, nor the
        `archived_at` of a live summary or its originals: use `restore`."""
        ...

    def touch(self, uses: Sequence[Use]) -> None:
        """Add to the counts of entries and move their `last_accessed` forward, never back. Version, history and
        `updated_at` stay. Missing ids are ignored."""
        ...

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Delete entries with their parts (entries of the same namespace with their id as `parent_id`), vectors, terms
        and history. Return the number of deleted entries, parts and summaries included. Raises `Conflict`, and deletes
        nothing, if an entry of the ids given is not at `expected_version`.

        A summary of a deleted original is deleted too, since it repeats the original's content, and its other originals
        become live. The originals of a deleted summary become live."""
        ...

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        """Return entries of the scope with an id above `after`, in order of id."""
        ...

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        """Return the newest entries of the scope, newest first, by `occurred_at` (or `created_at` if unknown), then by
        id."""
        ...

    def count(self, scope: Scope) -> int:
        """Return the number of entries of the scope."""
        ...

    def namespaces(self) -> Sequence[str]:
        """Return every namespace that holds an entry, sorted."""
        ...

    def pending(self, scope: Scope) -> int:
        """Return how many entries of the scope still wait for their vectors."""
        ...

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        """Store `summary` and archive the originals. Raises `Conflict`, and does neither, if an original is missing,
        archived, superseded, a summary itself, or not at the version that `versions` gives for its id."""
        ...

    def restore(self, summary_id: str) -> Sequence[MemoryEntry]:
        """Undo a `consolidate`: the originals become live, exactly as they were, and the summary is archived.
        Return the originals in order of id. Raises `NotFound`, `InvalidInput` for a live entry without archived
        originals, and `Conflict` for a summary that was restored already."""
        ...

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        """Return former versions, oldest first; empty for a missing entry or one that never changed."""
        ...

    def embed_pending(self, *, refused: bool = True) -> int:
        """Embed all entries without vectors now. Return how many entries are still pending. Without `refused`, entries
        that the embedder refused are neither tried again nor counted."""
        ...

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        """Return entries of a scope, or of these ids, that wait for their vectors, in order of id, with the error."""
        ...

    def spaces(self) -> Sequence[SpaceState]:
        """Return every embedding space of the store; none for a backend without vectors."""
        ...

    def reembed(
        self,
        target: Embedder,
        *,
        queries: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Reembedding:
        """Move the store to the space of `target` while searches use the present one. Entries that any process stores
        or changes meanwhile are embedded in the new space before the switch, which is one transaction. The next call
        continues an interrupted move. The former space is kept until `prune_spaces`. `queries` are used to compare the
        two spaces. Raises `Conflict` while another move is under way, `EmbedderUnavailable`, and `InvalidInput` for a
        backend without vectors."""
        ...

    def abandon_reembedding(self) -> bool:
        """Give up an unfinished move. Return False if there is none."""
        ...

    def prune_spaces(self) -> int:
        """Delete the vectors of spaces that searches no longer use. Return the number of deleted vectors."""
        ...

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take the lease `name` for `seconds`, or extend it if `holder` has it. Return False if another holder has it.
        A lease of a dead holder is free again after its time."""
        ...

    def release(self, name: str, holder: str) -> None:
        """End a lease of `holder`. Does nothing if `holder` does not have it."""
        ...

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Compare the records with their checksums, with each other, and with the indexes made from them. Reads
        everything, changes nothing, and reports damage instead of raising. Concurrent writes are not reported.

        With `repair`, everything that can be derived from the records is rebuilt. Unreadable rows are moved to a
        quarantine file beside the records, reported, and counted as repaired; `lost` counts those that nothing can
        restore."""
        ...

    def snapshot(self) -> AbstractContextManager[MemorySnapshot]:
        """Return a view of this moment, which lasts as long as the context. No writer waits for it."""
        ...

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        """Store vectors that another store of the same space made, so that the next `store` does not embed these texts.
        Return the number of stored vectors: 0 for another space or a backend without vectors. Raises `EmbedderError`
        for a vector that is not finite or not of unit length."""
        ...

    def backup(self, folder: Path) -> None:
        """Write a copy of this moment into the empty `folder`. The copy is a store of its own. No writer waits. Raises
        `StoreFull`, and `StoreDamaged` if this store cannot be read."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Return counts and state of the parts as JSON values."""
        ...

    def close(self) -> None:
        """Write snapshots and release files. Idempotent."""
        ...
