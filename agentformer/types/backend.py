"""Interfaces of a memory backend and of its database, the types of their results, and interfaces of the files and locks
that all nodes of a memory share. A node is a process that uses the memory; nodes may run on different computers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Protocol

from agentformer.types.memory import Hits, MemoryEntry, Query, Scope, Use
from agentformer.types.models import EmbeddingSpace, Vector
from agentformer.types.shown import Shown


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of a store. If `found == mended` in all checks, the store has no damage left. A finding
    names the advice or, after a repair, the repair."""

    name: Annotated[str, Shown("What was checked, such as `records`, `vectors` or `words`.")]
    asked: Annotated[str, Shown("The condition that was checked. It holds if `found` is 0.")]
    looked_at: Annotated[int, Shown("The number of checked items.")]
    found: Annotated[int, Shown("The number of wrong items.")] = 0
    mended: Annotated[int, Shown("The number of repaired items. It is 0, because this check repairs nothing.")] = 0
    findings: Annotated[tuple[str, ...], Shown("The first wrong items, each with the action that repairs it.")] = ()
    lost: int = 0  # number of rows that could not be restored, without parts of stored documents
    replaced: Mapping[str, str] = field(default_factory=dict)  # id of a repaired document -> its new id


class StoreSize(NamedTuple):
    """The entries of some namespaces, and the bytes of their texts and of the uploaded files. `states` says of which
    state of each part of the store the size is."""

    entries: int = 0
    bytes: int = 0
    states: tuple[tuple[int, int], ...] = ()


StoreCheck = Callable[[Callable[[Scope], Collection[str]]], None]  # decides whether `MemoryBackend.store` may store


class StoredVector(NamedTuple):
    """A stored vector, which another store can import. `hash` is the SHA-256 of the embedded text."""

    space: EmbeddingSpace
    hash: bytes
    vector: Vector  # float32[dimension], unit length


class EntryVector(NamedTuple):
    """One vector of an entry, with the fields that a map of the entries shows. A long text is embedded in several
    windows (parts); `vector` is the vector of the first window, in the active embedding space."""

    id: str
    tier: str
    kind: str
    session_id: str | None
    document_id: str | None
    vector: Vector  # float32[dimension], unit length


class AbsentDocument(NamedTuple):
    """A document that is not stored, but whose original file may still be on the disk. Its upload was announced and has
    not finished, or the document was removed. The list of these documents shows which files can be deleted."""

    id: str
    sha256: str  # of the original file
    upload: str = ""  # the name of the upload; "" for a removed document


class _Readable(Protocol):
    def namespaces(self) -> Sequence[str]:
        """Return the names of all namespaces that contain an entry, sorted."""

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        """Return at most `limit` entries of the scope with an id greater than `after`, in order of id."""

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        """Return the former versions of an entry, oldest first; none if it is missing or was never changed."""


class MemorySnapshot(_Readable, Protocol):
    """A read-only view of a store at one moment. Later changes are not visible in the view."""

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        """Yield the vectors that the entries of these namespaces use in the active embedding space. Each vector is
        yielded once, in order of hash."""

    def entry_vectors(self, namespace: str, *, every: int = 1) -> Iterator[EntryVector]:
        """Yield one vector for each entry of a namespace, in order of id. Archived entries, superseded entries, and
        entries without vectors in the active embedding space are skipped. If `every` is n, yield only about every n-th
        entry."""


class MemoryBackend(_Readable, Protocol):
    """Stores entries and searches them. A backend needs these fourteen methods: `store`, `get`, `list`, `latest`,
    `count`, `search`, `history`, `namespaces`, `update`, `touch`, `remove`, `consolidate`, `restore` and `close`. What
    only some backends can do, such as vectors, snapshots and leases, are the protocols in `types.stores`.

    Atomicity: each call that writes is one transaction. A transaction is executed completely or not at all, and its
    changes are on the disk when the call returns. Visibility: after a call has returned, all threads and processes that
    use the same store see its changes. Order: `list` returns entries in order of id, and an id that was created later
    is greater. Missing ids: `get` leaves them out, `remove` does not count them, and `update` raises `NotFound`.

    `consolidate` stores a summary and archives the original entries; `archived_by` of each original is the id of the
    summary. When a summary is removed or archived, its originals become live again, which means that they are no longer
    archived. No call leaves originals archived without a live summary.

    `superseded_by` of an entry is the id of its successor, which replaces the entry in searches. The successor exists,
    and has the same namespace and user. It may have a successor, too; the last entry of such a chain is live, or
    archived by a summary. When a successor is removed, or moved to another namespace or user, each entry that it
    superseded gets a new version without a successor in the same transaction, so that searches find the entry again.
    The same happens when the last entry of a chain is archived, but not by a summary. If an entry that has lost its
    successor is itself archived, but not by a summary, the entries that it superseded lose their successor, too.
    `store` removes a `superseded_by` that breaks these rules.

    Reads with a scope return the entries that hold at its moment and have not expired; see `Scope`. Each read compares
    with the clock anew: no cache returns an entry that has ceased to hold. `update` with a successor sets `valid_to` of
    the entry to the time from which the successor holds, unless it ends earlier; see `records.supersession.checked`. An
    entry that loses its successor gets its former `valid_to` back. Every call raises `InvalidInput` if it would store a
    `valid_to` before `valid_from`."""

    def store(
        self,
        entries: Sequence[MemoryEntry],
        *,
        replacing: Sequence[Scope | Sequence[str]] = (),
        unique: bool = False,
        former: Mapping[str, Sequence[MemoryEntry]] | None = None,
        progress: Callable[[int, int], None] | None = None,
        check: StoreCheck | None = None,
    ) -> Sequence[MemoryEntry]:
        """Store all entries, and return them as stored, in the same order. In the same transaction, remove all other
        entries that `replacing` selects, and the entries that are parts of the removed ones (see `remove`). An item of
        `replacing` is a scope or a list of ids. Raises `Conflict` if the id of a new entry already exists. The function
        `progress` receives two numbers: the windows (embedded passages) that are finished, and all windows of the call.

        `former` maps the ids of entries to lists of their former versions, oldest first. These versions become the
        `history` of the entry. Raises `InvalidInput` if `former` names an entry that is not in `entries`, if the
        version numbers of a list are not ascending or not lower than the version of the entry, or if `unique` is True.

        If `unique` is True, an entry that duplicates an existing live entry (`records.duplicates.is_duplicate`) is not
        stored. In the result, the existing entry takes the place of the duplicate, and the `repeat_count` of the
        existing entry is increased by one. Duplicates within one call and duplicates of concurrent writers are treated
        in the same way. Entries that `replacing` removes do not count as existing entries.

        `check` is called in the same transaction, before anything is stored or removed. Its argument is a function that
        returns the ids of the entries in a scope. If `check` raises an error, nothing is stored or removed. Thus a
        caller can read, decide and write, and no concurrent writer can come between these steps.
        """

    def get(self, ids: Sequence[str]) -> Sequence[MemoryEntry]:
        """Return the entries with these ids, in the order of the ids. Archived entries are included."""

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        """Return at most `limit` entries of the scope, newest first. The time of an entry is `occurred_at`, or
        `created_at` if `occurred_at` is None. Entries with equal times are sorted by id."""

    def count(self, scope: Scope) -> int:
        """Return the number of entries of the scope."""

    def search(self, query: Query) -> Hits:
        """Return entries inside `query.scope`, best first. Entries with equal scores are sorted by id. If the embedder
        is unavailable, only words are searched, and the result contains a warning. A backend without vectors always
        searches words, and warns if the mode is `dense`."""

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change fields of an entry, and add its former state to `history`. Raises `Conflict` if the version of the
        entry is not `expected_version`.

        The fields that the store sets cannot be changed: the id, the times of storing, the version, the counts and
        `archived_by`. For a live summary and for its originals, `archived_at` and the namespace cannot be changed
        either; call `restore` first.

        If `changes` contain a successor in `superseded_by`, raises `NotFound` if the successor does not exist. Raises
        `InvalidInput` if the successor is the entry itself, or has another namespace or user. Raises `Conflict` if the
        entry or the successor is already superseded, or if the successor is archived.
        """

    def touch(self, uses: Sequence[Use]) -> None:
        """Count the use of entries: increase their use counts, and set `last_accessed` to the time of the last use. A
        time that is older than the stored time is ignored. The version, the history and `updated_at` of the entries do
        not change. Missing ids are ignored."""

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Delete entries with their parts, vectors, index terms and history. The parts of an entry are the entries that
        have its id as `parent_id`, and the same namespace, user and project. Return the number of deleted entries. If
        the version of one of the given entries is not `expected_version`, raise `Conflict` and delete nothing.

        A summary repeats the content of its originals. Therefore the summary is also deleted if one of its originals is
        deleted, and its other originals become live again. If a summary is deleted, all its originals become live
        again.
        """

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        """Store `summary`, and archive the originals with the ids `archive_ids`, in one transaction.

        Raises `Conflict` and changes nothing if an original is missing in the namespace of the summary, archived,
        superseded or itself a summary. The same happens if the version of an original differs from its version in
        `versions`, a mapping from id to version.
        """

    def restore(self, summary_id: str) -> Sequence[MemoryEntry]:
        """Undo a `consolidate`: make the originals live again, with their former content, and archive the summary.
        Return the originals in order of id.

        Raises `NotFound` if there is no entry with this id. Raises `InvalidInput` if the entry is not a summary, or has
        no archived originals. Raises `Conflict` if the summary was already restored.
        """

    def close(self) -> None:
        """Save the indexes, and close all files. A second call has no effect."""


class SharedFiles(Protocol):
    """Files in the database of a memory, which every node can read. `place` is the name of the database in messages.
    All methods raise `StoreError` if the database cannot be used."""

    place: str

    def put(self, name: str, data: bytes) -> None:
        """Store a file, and replace a file with the same name. After a crash, the file has either its complete new
        content or its former content."""

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a file, or None if there is no such file."""

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a file as hexadecimal digits, or "" if there is no such file."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of each file whose name begins with `prefix`, by name, in order of name."""

    def delete(self, *names: str) -> None:
        """Delete files. Missing files are ignored."""


class HeldLock(Protocol):
    """A lock that the caller holds. The lock is extended while the process lives, and ends soon after the process
    dies."""

    def release(self) -> None:
        """Release the lock. Its name stays in `SharedLocks.states` until `SharedLocks.forget` deletes it."""


class SharedLocks(Protocol):
    """Named locks that all nodes share. All methods raise `StoreError` if the database cannot be used."""

    def take(self, name: str) -> HeldLock | None:
        """Take a lock and return it. Return None if the lock is held, even if this process holds it."""

    def states(self, prefix: str) -> dict[str, bool]:
        """Return the states of the locks whose names begin with `prefix`, by name: True if the lock is held, and False
        if it was released or its process died."""

    def forget(self, name: str) -> None:
        """Delete the name of a lock that is not held, so that `states` no longer lists it."""

    def exclusive(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager that waits for a lock and holds it until the `with` block ends. The block must be
        short. If the process dies, the database server releases the lock."""
