"""The methods of `MemoryBackend` that all backends with a database of records share. Each call that writes is one
transaction of the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from agentformer.errors import NotFound
from agentformer.memory.backends import check_version, with_changes, with_times
from agentformer.records import change_feed, meta, spaces, supersession
from agentformer.records import entries as records
from agentformer.records import vectors as stored_vectors
from agentformer.records.codec import check_texts, now
from agentformer.records.entries import Histories, check_histories, insert_histories, versions_of
from agentformer.records.entry_json import check_settable
from agentformer.rerankers.guarded import Reranking, named_reranker
from agentformer.search.fusion import FusionOptions
from agentformer.settings import Settings
from agentformer.text.language_extras import PLAIN, Analyzers, choose_analyzers
from agentformer.types import (
    AbsentDocument,
    Connection,
    EmbeddingSpace,
    MemoryEntry,
    MemorySnapshot,
    RecordStore,
    Scope,
    SpaceState,
    Statement,
    StoreCheck,
    StoreSize,
    Use,
    Waiting,
    common,
)

if TYPE_CHECKING:
    from agentformer.index.embedding.queue import EmbeddedEntries, EmbeddingQueue, NotEmbedded
    from agentformer.index.embedding.windows import Progress

# The numbers of rows that a status shows.
_COUNTS = {
    "entries": common("SELECT count(*) FROM entries"),
    "windows": common("SELECT count(*) FROM windows"),
    "vectors": Statement("SELECT count(*) FROM vectors", "SELECT count(DISTINCT id) FROM vectors"),
    "pending": common("SELECT count(*) FROM pending"),
}
P = ParamSpec("P")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of the search in a store."""

    fanout: int = 100  # number of candidates from the vector search, and also from the word search, in a hybrid search
    fusion: FusionOptions | None = None
    window_tokens: int = 0  # maximum tokens of an embedded part of a text; 0 means the maximum that the model reads
    reranking: Reranking | None = None
    analyzers: Analyzers = PLAIN

    @classmethod
    def from_settings(cls, settings: Settings, **own: Any) -> Self:
        """Return the options in the settings. `own` contains the fields of a subclass."""
        reranker = named_reranker(settings)
        return cls(
            fanout=settings.fanout,
            fusion=FusionOptions.from_settings(settings),
            window_tokens=settings.window_tokens,
            reranking=Reranking(reranker, settings.rerank_hits) if reranker else None,
            analyzers=choose_analyzers(settings),
            **own,
        )


class RecordsBackend:
    """A `MemoryBackend` over `database`, whose entries are embedded before the transaction that stores them. A subclass
    opens the database and has the search. Its method `_embedding` opens the indexes."""

    def __init__(self, database: RecordStore) -> None:
        self._database = database

    def _embedding(self) -> EmbeddingQueue:
        """Open the indexes at the first call, and return the queue of entries without vectors. Each method calls this
        before its first change of the records."""
        raise NotImplementedError

    def store(
        self,
        entries: Sequence[MemoryEntry],
        *,
        replacing: Sequence[Scope | Sequence[str]] = (),
        unique: bool = False,
        former: Histories | None = None,
        progress: Progress | None = None,
        check: StoreCheck | None = None,
    ) -> list[MemoryEntry]:
        """Store entries with their vectors, and return them; see `MemoryBackend.store`. If the embedder is unavailable,
        the entries are stored without vectors and queued for embedding."""
        entries = [with_times(entry) for entry in entries]
        histories = check_histories(entries, former, unique=unique)
        embedded = self._embed(entries, progress)
        with self._changing() as connection:
            if check is not None:
                check(partial(records.ids, connection))
            replaced: set[int] = set()
            for what in replacing:
                replaced.update(records.with_parts(connection, records.numbers(connection, what)))
            inserted = stored = entries
            if unique:
                replaced = supersession.with_summaries(connection, sorted(replaced))
                nums, inserted, stored = records.insert_unique(connection, entries, replaced)
                embedded = _select(embedded, entries, inserted)
            else:
                nums = records.insert(connection, entries)
                insert_histories(connection, nums, entries, histories)
            meta.end_absence(connection, inserted)
            self._embedding().commit(connection, nums, inserted, embedded)
            supersession.remove(connection, sorted(replaced))  # removed last: vectors of unchanged texts are kept
            stored = supersession.keep_valid(connection, stored)
        self._embedding().follow_up(embedded)
        return stored

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change fields of an entry, and return the changed entry; see `MemoryBackend.update`."""
        check_settable(changes)
        while True:
            former = next(iter(self.get([entry_id])), None)
            if former is None:
                raise NotFound(f"there is no entry {entry_id}")
            check_version(former, expected_version)
            embedded = self._embed([with_changes(former, changes)])
            with self._changing() as connection:
                current = next(iter(records.get(connection, [entry_id])), None)
                if current is None or current.version != former.version:
                    continue  # another caller changed the entry first: apply the changes to the new version
                supersession.check_free(connection, current, changes)
                changes = supersession.checked_changes(connection, current, changes)
                # not from `former`, because use counts and archiving change without a new version
                updated = with_changes(current, changes)
                nums = [records.replace(connection, updated)]
                if supersession.is_moved(current, updated) or supersession.releases(updated):
                    supersession.release(connection, [entry_id])
                self._embedding().commit(connection, nums, [updated], embedded)
            return updated

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Remove entries with their parts and summaries, and return their number; see `MemoryBackend.remove`."""
        if isinstance(what, Scope):
            what = dataclasses.replace(what, include_archived=True)
        with self._changing() as connection:
            if expected_version is not None and not isinstance(what, Scope):
                for entry in records.get(connection, what):
                    check_version(entry, expected_version)
            nums = records.with_parts(connection, records.numbers(connection, what))
            removed = supersession.remove(connection, nums)
            if removed and isinstance(what, Scope):  # after the removal of a scope, no file may contain its text
                self._note_removal(connection)
        self._after_removal(removed)
        return removed

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        """Store a summary and archive its originals in one transaction; see `MemoryBackend.consolidate`."""
        summary = with_times(summary)
        embedded = self._embed([summary])
        with self._changing() as connection:
            supersession.archive(connection, summary, archive_ids, now(), versions or {})
            nums = records.insert(connection, [summary])
            self._embedding().commit(connection, nums, [summary], embedded)
        return summary

    def restore(self, summary_id: str) -> list[MemoryEntry]:
        with self._changing() as connection:
            return supersession.restore(connection, summary_id, now())

    def touch(self, uses: Sequence[Use]) -> None:
        """Add these uses to the use counts of the entries. Do nothing if the store cannot be written."""
        if self._database.read_only:
            return  # an error while counting uses must not fail the call, and must not cause a warning each time
        with self._database.writing() as connection:
            records.touch(connection, uses)

    def get(self, ids: Sequence[str]) -> list[MemoryEntry]:
        return self._read(records.get, ids)

    def count(self, scope: Scope) -> int:
        return self._read(records.count, scope)

    def size(self, namespaces: Sequence[str], since: StoreSize | None = None) -> StoreSize:
        """Return the size of namespaces; see `SizedStore.size`."""
        return self._read(records.size, namespaces, since)

    def namespaces(self) -> Sequence[str]:
        return self._read(records.namespaces)

    def history(self, entry_id: str) -> list[MemoryEntry]:
        return self._read(versions_of, entry_id)

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        return self._read(records.page, scope, after, limit)

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        return self._read(records.latest, scope, limit)

    def _note_removal(self, connection: Connection) -> None:
        """Record that the files of the indexes may contain the text of removed entries. These files must then be
        deleted, even if the process crashes before it has deleted them. `connection` is in the transaction that removes
        all entries of a scope."""

    def _after_removal(self, removed: int) -> None:
        """Delete the files that may still contain the text of removed entries. `removed` is their number."""

    def _changing(self) -> AbstractContextManager[Connection]:
        """Open the indexes, and return a context manager that yields a connection in a transaction, which may change
        the records."""
        self._embedding()
        return self._database.writing()

    def _embed(self, entries: Sequence[MemoryEntry], progress: Progress | None = None) -> EmbeddedEntries | NotEmbedded:
        check_texts(entries)
        return self._embedding().try_embed(entries, progress)

    def _read(self, query: Callable[Concatenate[Connection, P], T], *args: P.args, **options: P.kwargs) -> T:
        with self._database.reading() as connection:
            return query(connection, *args, **options)


class IndexedBackend(RecordsBackend):
    """A `RecordsBackend` that offers vectors, leases, snapshots and the list of absent documents, too."""

    feed: RecordStore | None = None  # the database whose events can be watched, if it is the system of record

    def _migration_lock(self) -> AbstractContextManager[None]:
        """Return the lock that a process holds while it runs `reembed` or abandons an unfinished `reembed`. Entering
        the lock raises `Conflict` while another process holds the lock."""
        raise NotImplementedError

    def embed_pending(self, progress: Progress | None = None, *, refused: bool = True) -> int:
        """Embed the entries that have no vectors, and return the number of entries that still have none. `refused` is
        explained in `EmbeddingQueue.catch_up`."""
        if self._database.read_only and not refused:
            return 0  # the result of a background attempt could not be stored
        return self._embedding().catch_up(progress, refused=refused)

    def abandon_reembedding(self) -> bool:
        with self._migration_lock(), self._changing() as connection:
            return spaces.abandon_move(connection)

    def prune_spaces(self) -> int:
        """Delete the vectors of embedding spaces that searches no longer use. Return the number of deleted vectors."""
        pruned, done = 0, False
        while not done:
            with self._changing() as connection:
                count, done = spaces.prune_batch(connection)
            pruned += count
        return pruned

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        with self._database.writing() as connection:
            return meta.take_lease(connection, name, holder, seconds)

    def release(self, name: str, holder: str) -> None:
        with self._database.writing() as connection:
            meta.release_lease(connection, name, holder)

    def announce(self, documents: Sequence[MemoryEntry], upload: str) -> None:
        with self._database.writing() as connection:
            meta.add_absent(connection, documents, upload)

    def absent_documents(self) -> Sequence[AbsentDocument]:
        return self._read(meta.absent_documents)

    def forget_absent(self, documents: Sequence[AbsentDocument]) -> None:
        with self._database.writing() as connection:
            meta.forget_absent(connection, documents)

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        return self._read(stored_vectors.waiting_entries, what, limit)

    def spaces(self) -> Sequence[SpaceState]:
        return self._read(spaces.all_spaces)

    def snapshot(self) -> AbstractContextManager[MemorySnapshot]:
        return self._database.snapshot()

    def pending(self, scope: Scope) -> int:
        return self._read(stored_vectors.pending_count, scope)


def record_status(connection: Connection, space: tuple[int, EmbeddingSpace] | None) -> dict[str, Any]:
    """Return JSON values: the numbers of records, and the description of `space`, the active embedding space."""
    return {
        **{table: connection.run(query).fetchone()[0] for table, query in _COUNTS.items()},
        "kinds": records.count_by_kind(connection),
        "changes": change_feed.last_seq(connection),
        "space": dataclasses.asdict(dataclasses.replace(space[1], fingerprint="")) if space else None,
    }


def _select(
    embedded: EmbeddedEntries | NotEmbedded, entries: Sequence[MemoryEntry], inserted: Sequence[MemoryEntry]
) -> EmbeddedEntries | NotEmbedded:
    """Return the part of `embedded` that belongs to the entries in `inserted`. `embedded` contains the windows (parts
    of the text) and vectors of all `entries`."""
    if len(inserted) == len(entries):
        return embedded
    objects = set(map(id, inserted))  # a batch may contain the same entry twice, but the entry is inserted once
    return embedded.select([i for i, entry in enumerate(entries) if id(entry) in objects])
