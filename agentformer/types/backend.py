"""What a backend owes its callers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from agentformer.types.embedding import Reembedding, SpaceState, Waiting
from agentformer.types.health import Check, MemorySnapshot, StoredVector
from agentformer.types.memory import Hits, MemoryEntry, Query, Scope, Use
from agentformer.types.models import Embedder


class MemoryBackend(Protocol):
    """Keeps records and finds them.

    Atomicity: each writing call is one transaction; it happens wholly or not at all, and has reached the
    disk when the call returns. Visibility: an acknowledged write is seen by every later call of every
    thread and process that has the same store open. Order: `list` goes by id, which is time-sorted.
    A missing id is left out of `get`, is not counted by `remove`, and raises `NotFound` in `update`.
    A store that cannot embed now still stores: such entries are found by words at once, and by vectors
    once `embed_pending` has caught up.

    A summary stands for its originals (`consolidate`): they are archived, with `archived_by` its id, and it is
    live; or it is gone or archived, and they are live. No call of any kind leaves anything between.
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
        """Store all entries, and in the same transaction remove everything else that lies in a scope of
        `replacing`, with its parts. An id that exists already raises `Conflict`. `progress` is told the
        windows embedded and the windows in all.

        `former` gives entries their `history`, by id, oldest first: what an archive knows of them. Versions that do
        not rise up to the entry's own, and states of an entry that is not stored here, raise `InvalidInput`; it does
        not go with `unique`.

        With `unique`, an entry that says what a live one says already (`records.duplicates.same`) is not
        stored: the one that is there comes back in its place, with its `repeat_count` one higher. That holds
        among the entries of one call and against every other writer, but not for what `replacing` removes."""
        ...

    def get(self, ids: Sequence[str]) -> Sequence[MemoryEntry]:
        """The entries of these ids, in the order asked for; archived ones too."""
        ...

    def search(self, query: Query) -> Hits:
        """Best first; equal scores in order of id. Only entries inside `query.scope`. With no embedder at
        hand the words alone decide, and a warning says so; a backend that keeps no vectors says so in the mode
        `dense`."""
        ...

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change fields; the former state goes to `history`. A stale `expected_version` raises `Conflict`.
        What the store itself keeps (id, times of storing, version, counts, `archived_by`) cannot be changed, nor, while
        a summary stands for its originals, the `archived_at` of either: that is what `restore` is for."""
        ...

    def touch(self, uses: Sequence[Use]) -> None:
        """Add to the counts of entries and move their `last_accessed` forward, never back. This is no change of
        the entry: version, history and `updated_at` stay. Missing ids are passed over."""
        ...

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Delete entries with their parts (entries of the same namespace whose `parent_id` they are), vectors, terms
        and history.
        Returns how many entries went, parts and dissolved summaries included. An entry of the ids given that is not at
        `expected_version` raises `Conflict`, and nothing goes.

        A summary of which an original goes is dissolved: it goes too, since it tells what was to be forgotten,
        and its other originals come back. The originals of a summary that goes come back."""
        ...

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        """Entries of the scope with an id above `after`, in order of id."""
        ...

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        """The newest entries of the scope, newest first, by when they happened (`occurred_at`, or `created_at`
        where that is not known), then by id."""
        ...

    def count(self, scope: Scope) -> int: ...

    def namespaces(self) -> Sequence[str]:
        """Every namespace that holds an entry, sorted."""
        ...

    def pending(self, scope: Scope) -> int:
        """How many entries of the scope still wait for their vectors."""
        ...

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        """Store `summary` and archive the originals, or raise `Conflict` and do neither, when one of them
        is missing, archived, superseded, stands for others itself, or is not at the version that `versions`
        gives for its id."""
        ...

    def restore(self, summary_id: str) -> Sequence[MemoryEntry]:
        """Undo a `consolidate`: the originals come back exactly as they were, and the summary is archived.
        Returns the originals in order of id. Raises `NotFound`, `InvalidInput` for an entry that archived
        nothing and is live, and `Conflict` for a summary that was restored already."""
        ...

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        """Former versions, oldest first; empty for an entry never changed or not there."""
        ...

    def embed_pending(self, *, refused: bool = True) -> int:
        """Embed what has no vector yet, at once, whoever failed before. Returns how many entries are still pending.
        Without `refused`, entries that the embedder did not take are neither tried again nor counted."""
        ...

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        """Entries of a scope, or of these ids, that wait for their vectors, in order of id, with why."""
        ...

    def spaces(self) -> Sequence[SpaceState]:
        """Every embedding space of the store; none for a backend that keeps no vectors."""
        ...

    def reembed(
        self,
        target: Embedder,
        *,
        queries: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Reembedding:
        """Move the store to the space of `target`, while searches go on in the present one. What is stored or changed
        meanwhile, by anybody, is in the new space too before the switch, which is one transaction. An interrupted
        move goes on where it was with the next call. The former space is kept until `prune_spaces`. `queries` are
        those that the two spaces are compared by. Raises `Conflict` while another move is under way,
        `EmbedderUnavailable`, and `InvalidInput` for a backend that keeps no vectors."""
        ...

    def abandon_reembedding(self) -> bool:
        """Give an unfinished move up. False when there is none."""
        ...

    def prune_spaces(self) -> int:
        """Delete the vectors of spaces that searches no longer use. Returns how many went."""
        ...

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take the lease `name` for `seconds`, or prolong it if `holder` has it; False when another holder has
        it. A lease that its holder did not give up, because it died, is free again after its time."""
        ...

    def release(self, name: str, holder: str) -> None:
        """Give a lease up. Nothing happens when `holder` does not have it."""
        ...

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Compare all that is kept with each other: the records with themselves, and with what follows from them.
        Reads everything, changes nothing, and raises nothing for what is damaged: that is what it tells. What others
        write meanwhile is never taken for damage.

        With `repair`, what can be derived from the records is made anew, and what cannot be read any more is set
        aside in a file beside them, told in the findings and counted as mended, so that all else can be used; `lost`
        counts what nothing can make anew."""
        ...

    def snapshot(self) -> AbstractContextManager[MemorySnapshot]:
        """A view of this moment, for as long as the context lasts. Writers are not held up."""
        ...

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        """Keep vectors that another store of the same space made, so that the same texts are not embedded again by
        the next `store`. Returns how many were kept: none where the store's space is another one, or where no vectors
        are kept. Raises `EmbedderError` for one that is not finite or not of unit length."""
        ...

    def backup(self, folder: Path) -> None:
        """Write a copy of this moment into `folder`, which is empty: a store of its own, which can be opened there.
        Writers are not held up. Raises `StoreFull`, and `StoreDamaged` where this store cannot be read."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Counts and state of the parts, as JSON values, for a person or a monitor."""
        ...

    def close(self) -> None:
        """Write snapshots and release files. Idempotent."""
        ...
