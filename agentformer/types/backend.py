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
    """The result of one check of a store. A store is sound if each problem that was found was also repaired."""

    name: str  # "records", "vectors", "windows", "words", ...
    asked: str  # in plain words: the condition that holds if nothing is found
    looked_at: int  # number of checked items
    found: int = 0  # number of wrong items
    mended: int = 0  # number of wrong items that were repaired
    findings: tuple[str, ...] = ()  # the first findings as text, each with advice or with the repair
    lost: int = 0  # number of repaired items that were moved to the quarantine file


class StoredVector(NamedTuple):
    """The stored vector of one text in one space. The SHA-256 of the text identifies the text."""

    space: EmbeddingSpace
    hash: bytes
    vector: Vector  # float32[dimension], unit length


class _Readable(Protocol):
    def namespaces(self) -> Sequence[str]:
        """Return every namespace that holds an entry, sorted."""

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        """Return entries of the scope that have an id above `after`, in order of id."""

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        """Return the former versions of an entry, oldest first. The list is empty for a missing entry and for an entry
        that never changed."""


class MemorySnapshot(_Readable, Protocol):
    """A view of a store at one moment. Later writes are not visible."""

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        """Yield the vectors of the active space that entries of these namespaces use, each vector once, in order of
        hash."""


class MemoryBackend(_Readable, Protocol):
    """Stores records and searches them.

    Atomicity: each writing call is one transaction. The transaction happens completely or not at all, and its changes
    have reached the disk when the call returns. Visibility: every later call sees an acknowledged write, in every
    thread and process that has the same store open. Order: `list` returns entries in order of id, and ids are sorted by
    time. Missing ids: `get` leaves them out, `remove` does not count them, and `update` raises `NotFound`. If the store
    cannot embed now, it still stores entries. A search by words finds such entries at once, and a search by vectors
    finds them after `embed_pending`.

    A live summary (made by `consolidate`) has archived originals: their `archived_by` is the id of the summary. When a
    summary is removed or archived, its originals are live. No call leaves any other state.
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
        """Store all entries. In the same transaction, remove everything else in the scopes of `replacing`, with its
        parts. Raises `Conflict` for an id that exists. `progress` receives the number of embedded windows and the
        number of all windows.

        `former` gives entries their `history`: a list of former versions for each id, oldest first. The version numbers
        must rise up to the version of the entry, and this call must store the entry. Otherwise `InvalidInput` is
        raised. `former` cannot be combined with `unique`.

        With `unique`, a duplicate of a live entry (`records.entries.is_duplicate`) is not stored. The live entry is
        returned in its place, and the `repeat_count` of the live entry rises by one. This also holds for two entries of
        one call, and for entries of concurrent writers. It does not hold for entries that `replacing` removes.
        """

    def get(self, ids: Sequence[str]) -> Sequence[MemoryEntry]:
        """Return the entries with these ids in the given order, including archived entries."""

    def search(self, query: Query) -> Hits:
        """Return entries inside `query.scope`, best first. Entries with equal scores are in order of id. Without a
        usable embedder the search uses only words, and a warning reports this. A backend without vectors warns in the
        mode `dense`."""

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change fields of an entry. The former state is added to `history`. Raises `Conflict` if the entry is not at
        `expected_version`.

        The fields that the store sets (id, times of storing, version, counts, `archived_by`) cannot be changed. The
        `archived_at` of a live summary or of its originals cannot be changed either: use `restore`.
        """

    def touch(self, uses: Sequence[Use]) -> None:
        """Add to the use counts of entries and move their `last_accessed` forward, never back. Version, history and
        `updated_at` do not change. Missing ids are ignored."""

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Delete entries with their parts, vectors, terms and history. The parts of an entry are the entries of the
        same namespace that have its id as `parent_id`. Return the number of deleted entries. If one of the given
        entries is not at `expected_version`, raise `Conflict` and delete nothing.

        A summary repeats the content of its originals. So if an original is deleted, the summary is deleted too, and
        the other originals become live. If a summary is deleted, its originals become live.
        """

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        """Return the newest entries of the scope, newest first: by `occurred_at` or else `created_at`, and then by
        id."""

    def count(self, scope: Scope) -> int:
        """Return the number of entries of the scope."""

    def pending(self, scope: Scope) -> int:
        """Return the number of entries of the scope that still wait for their vectors."""

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        """Store `summary` and archive the originals, in one transaction.

        Raises `Conflict` and changes nothing if an original is missing, archived, superseded or a summary, or if its
        version differs from the version that `versions` gives for its id.
        """

    def restore(self, summary_id: str) -> Sequence[MemoryEntry]:
        """Undo a `consolidate`: make the originals live, exactly as they were, and archive the summary. Return the
        originals in order of id.

        Raises `NotFound`. Raises `InvalidInput` for a live entry without archived originals, and `Conflict` for a
        summary that was already restored.
        """

    def embed_pending(self, *, refused: bool = True) -> int:
        """Embed all entries without vectors now. Return the number of entries that still have no vectors. Without
        `refused`, the entries that the embedder refused are not tried again and not counted."""

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        """Return the entries that wait for their vectors, each with its last error, in order of id."""

    def spaces(self) -> Sequence[SpaceState]:
        """Return every embedding space of the store. A backend without vectors has none."""

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
    ) -> Reembedding:
        """Move the store to the space of `target`. Searches use the present space until the move is complete.

        Entries that change during the move are also embedded in the new space. The switch to the new space is one
        transaction. If a move is interrupted, the next call continues it. The former space is kept until
        `prune_spaces`. `queries` are used to compare the two spaces.

        Raises `Conflict` while another move is under way, `EmbedderUnavailable`, and `InvalidInput` for a backend
        without vectors.
        """

    def abandon_reembedding(self) -> bool:
        """Abandon an unfinished move. Return False if there is none."""

    def prune_spaces(self) -> int:
        """Delete the vectors of spaces that searches no longer use. Return the number of deleted vectors."""

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take or extend the lease `name` for `seconds`. Return False if another holder has the lease."""

    def release(self, name: str, holder: str) -> None:
        """End a lease if `holder` has it."""

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Compare the records with their checksums, with each other, and with the indexes made from the records. Damage
        is reported and not raised. Concurrent writes are not reported as damage. Without `repair`, nothing is changed.

        With `repair`, everything that can be derived from the records is rebuilt. Unreadable rows are moved to a
        quarantine file in the same folder, reported, and counted as repaired. `lost` counts the rows that cannot be
        restored.
        """

    def snapshot(self) -> AbstractContextManager[MemorySnapshot]:
        """Return a view of the store at this moment, valid until the context ends. Writers do not wait for the view."""

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        """Store vectors that another store of the same space made, so that the next `store` does not embed their texts
        again. Return the number of stored vectors, which is 0 for another space and for a backend without vectors.
        Raises `EmbedderError` for a vector that is not finite or not of unit length."""

    def backup(self, folder: Path) -> None:
        """Write an independent copy of the store at this moment into the empty `folder`. Writers do not wait. Raises
        `StoreFull`, and `StoreDamaged` if this store cannot be read."""

    def status(self) -> Mapping[str, Any]:
        """Return counts and the state of each part as JSON values."""

    def close(self) -> None:
        """Write snapshots and release files. Calling it twice does no harm."""
