"""The embedded backend: SQLite records, followed by a FAISS index and a word index.

Everything lives in one folder, and any number of threads and processes may have it open: the records
decide, and before each search both indexes apply what is newer.
"""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentformer.errors import Conflict, EmbedderError, NotFound, SpaceMismatch, StoreError
from agentformer.index.files import check_records, read_index_status
from agentformer.index.secure_delete import SecureDelete
from agentformer.index.vectors.options import IndexOptions
from agentformer.memory.backends.faiss.folder import DATABASE_FILE
from agentformer.records import change_feed, consolidation, meta, spaces
from agentformer.records import entries as records
from agentformer.records import vectors as stored_vectors
from agentformer.records.codec import check_texts, now
from agentformer.records.database import Database
from agentformer.records.entry_json import check_settable
from agentformer.records.history import Histories, check_histories, insert_histories, versions_of
from agentformer.records.snapshot import RecordsSnapshot, open_snapshot, write_copy
from agentformer.rerankers import named_reranker
from agentformer.search.fusion import FusionOptions
from agentformer.search.rerank import Reranking
from agentformer.settings import Settings
from agentformer.text.analyzers import PLAIN, Analyzers
from agentformer.text.optional_analyzers import choose_analyzers
from agentformer.types import (
    Check,
    Embedder,
    Hits,
    MemoryEntry,
    Query,
    Reembedding,
    Scope,
    SpaceState,
    StoredVector,
    Use,
    Waiting,
)

if TYPE_CHECKING:
    from agentformer.index.embedding.queue import EmbeddingQueue, Prepared
    from agentformer.index.embedding.windows import Progress
    from agentformer.memory.backends.faiss.indexes import Indexes
    from agentformer.search.hybrid import HybridSearch

OpenIndexes = Callable[[Path, Database, Embedder, Mapping[str, Any], int], "Indexes"]

log = logging.getLogger("agentformer")


@dataclass(frozen=True, slots=True)
class FaissOptions:
    """Settings of search and indexes."""

    fanout: int = 100  # candidates that vectors and words each contribute to a search
    fusion: FusionOptions | None = None
    index: IndexOptions | None = None
    window_tokens: int = 0  # tokens of an embedding window at most; 0: as many as the model reads
    reranking: Reranking | None = None
    analyzers: Analyzers = PLAIN


DEFAULTS = FaissOptions()


class FaissMemoryBackend:
    """`MemoryBackend` over a folder. Raises `StoreFull` or `StoreDamaged` when the folder cannot be used.

    `open_indexes` returns `Indexes`; it is called by the first search or before the first change, since a caller that
    only reads records needs no index.
    """

    def __init__(
        self,
        folder: Path,
        embedder: Embedder,
        open_indexes: OpenIndexes,
        options: FaissOptions = DEFAULTS,
    ) -> None:
        self._folder = folder = folder.absolute()  # wherever this process goes
        check_records(folder / DATABASE_FILE)
        self._database = Database(folder / DATABASE_FILE)
        self._options = options
        self._closed = False
        ranking: dict[str, Any] = {"fanout": options.fanout, "fusion": options.fusion, "plan": options.index}
        ranking["analyzers"] = options.analyzers
        self._open_indexes = partial(open_indexes, folder, self._database, embedder, ranking, options.window_tokens)
        self._opening = threading.RLock()
        self._opened: Indexes | None = None
        self._secure_delete = SecureDelete(self._database, lambda: self._search.discard())
        if not self._database.read_only:
            self._secure_delete.run()

    @property
    def _indexes(self) -> Indexes:
        with self._opening:
            if self._opened is None:
                self._opened = self._open_indexes()
            return self._opened

    @property
    def _search(self) -> HybridSearch:
        return self._indexes.search

    @property
    def _embedding(self) -> EmbeddingQueue:
        return self._indexes.embedding

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder, open_indexes: OpenIndexes) -> FaissMemoryBackend:
        """Open the folder that the settings name, with their ranking."""
        reranker = named_reranker(settings)
        options = FaissOptions(
            fanout=settings.fanout,
            fusion=FusionOptions(settings.fusion, settings.dense_weight, settings.rrf_k),
            index=IndexOptions(target_recall=settings.target_recall),
            window_tokens=settings.window_tokens,
            reranking=Reranking(reranker, settings.rerank_hits) if reranker else None,
            analyzers=choose_analyzers(settings),
        )
        return cls(settings.index_dir, embedder, open_indexes, options)

    def store(
        self,
        entries: Sequence[MemoryEntry],
        *,
        replacing: Sequence[Scope] = (),
        unique: bool = False,
        former: Histories | None = None,
        progress: Progress | None = None,
    ) -> list[MemoryEntry]:
        entries = [_completed(entry) for entry in entries]
        past = check_histories(entries, former, unique=unique)
        prepared = self._prepared(entries, progress)
        with self._changing() as connection:
            doomed: set[int] = set()
            for scope in replacing:
                doomed.update(records.with_parts(connection, records.numbers(connection, scope)))
            fresh, standing = entries, entries
            if unique:
                doomed = consolidation.with_summaries(connection, sorted(doomed))
                nums, fresh, standing = records.insert_unique(connection, entries, doomed)
            else:
                nums = records.insert(connection, entries)
                insert_histories(connection, nums, entries, past)
            self._embedding.commit(connection, nums, fresh, _only(prepared, entries, fresh))
            consolidation.remove(connection, sorted(doomed))  # last, so that vectors of text that stays are kept
        if not isinstance(prepared, str):
            self._embedding.follow_up()
        return standing

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        check_settable(changes)
        while True:
            found = self.get([entry_id])
            if not found:
                raise NotFound(f"there is no entry {entry_id}")
            _check_version(found[0], expected_version)
            changed = _changed(found[0], changes)
            prepared = self._prepared([changed], None)
            with self._changing() as connection:
                current = next(iter(records.get(connection, [entry_id])), None)
                if current is None or current.version != found[0].version:
                    continue  # somebody was faster; look again, and apply the same changes to what is there now
                if "archived_at" in changes:
                    consolidation.check_free(connection, current)
                # Counts and consolidations leave the version, so what was read above may be behind by them.
                changed = _changed(current, changes)
                self._embedding.commit(connection, [records.replace(connection, changed)], [changed], prepared)
            return changed

    def touch(self, uses: Sequence[Use]) -> None:
        if self._database.read_only:
            return  # counting is no reason to fail what was asked for, nor to warn of it each time
        with self._database.writing() as connection:
            records.touch(connection, uses)

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        if isinstance(what, Scope):
            what = dataclasses.replace(what, include_archived=True)
        with self._changing() as connection:
            if expected_version is not None and not isinstance(what, Scope):
                for entry in records.get(connection, what):
                    _check_version(entry, expected_version)
            doomed = records.with_parts(connection, records.numbers(connection, what))
            gone = consolidation.remove(connection, doomed)
            if gone and isinstance(what, Scope):  # somebody is to be forgotten: nothing may stay in a file
                self._secure_delete.note(connection)
        self._secure_delete.run()
        if gone:
            self._secure_delete.truncate_wal()
        return gone

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        summary = _completed(summary)
        prepared = self._prepared([summary], None)
        with self._changing() as connection:
            consolidation.archive(connection, summary.id, archive_ids, now(), versions or {})
            self._embedding.commit(connection, records.insert(connection, [summary]), [summary], prepared)
        return summary

    def restore(self, summary_id: str) -> list[MemoryEntry]:
        with self._changing() as connection:
            return consolidation.restore(connection, summary_id, now())

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        with self._database.writing() as connection:
            return meta.take_lease(connection, name, holder, seconds)

    def release(self, name: str, holder: str) -> None:
        with self._database.writing() as connection:
            meta.release_lease(connection, name, holder)

    def embed_pending(self, progress: Progress | None = None, *, refused: bool = True) -> int:
        if self._database.read_only and not refused:
            return 0  # nothing that is tried in the background can be kept
        done = self._embedding.catch_up(progress, refused=refused)
        if refused:  # somebody asked for it and waits; so a store that only short-lived processes use is trained too
            self._search.settle()
        return done

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        with self._database.reading() as connection:
            return stored_vectors.waiting_entries(connection, what, limit)

    def spaces(self) -> Sequence[SpaceState]:
        with self._database.reading() as connection:
            return spaces.all_spaces(connection)

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Progress | None = None
    ) -> Reembedding:
        return self._indexes.reembed(target, queries, progress)

    def abandon_reembedding(self) -> bool:
        with self._indexes.alone(), self._changing() as connection:
            return spaces.abandon_move(connection)

    def prune_spaces(self) -> int:
        gone, done = 0, False
        while not done:
            with self._changing() as connection:
                some, done = spaces.prune_batch(connection)
            gone += some
        return gone

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        return self._indexes.verify(repair=repair)

    def snapshot(self) -> AbstractContextManager[RecordsSnapshot]:
        return open_snapshot(self._database)

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        return self._indexes.keep_vectors(vectors)

    def backup(self, folder: Path) -> None:
        write_copy(self._database, folder / DATABASE_FILE)

    def search(self, query: Query) -> Hits:
        self._secure_delete.retry()
        reranking = self._options.reranking
        return reranking.search(self._search.search, query) if reranking else self._search.search(query)

    def get(self, ids: Sequence[str]) -> list[MemoryEntry]:
        with self._database.reading() as connection:
            return records.get(connection, ids)

    def count(self, scope: Scope) -> int:
        with self._database.reading() as connection:
            return records.count(connection, scope)

    def namespaces(self) -> Sequence[str]:
        with self._database.reading() as connection:
            return records.namespaces(connection)

    def pending(self, scope: Scope) -> int:
        with self._database.reading() as connection:
            return stored_vectors.pending_count(connection, scope)

    def history(self, entry_id: str) -> list[MemoryEntry]:
        with self._database.reading() as connection:
            return versions_of(connection, entry_id)

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        with self._database.reading() as connection:
            return records.page(connection, scope, after, limit)

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        with self._database.reading() as connection:
            return records.latest(connection, scope, limit)

    def status(self) -> dict[str, Any]:
        with self._database.reading() as connection:
            space = spaces.active_space(connection)
            counts = {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("entries", "windows", "vectors", "pending")
            }
            return {
                **counts,
                "kinds": records.count_by_kind(connection),
                "changes": change_feed.last_seq(connection),
                "space": dataclasses.asdict(dataclasses.replace(space[1], fingerprint="")) if space else None,
                "index": self._search.status() if self._searching() else read_index_status(self._folder),
            }

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._secure_delete.close()
            if self._opened is not None:
                self._opened.close()
        except (OSError, StoreError) as error:  # a snapshot only spares time: the records have everything
            log.warning("the indexes were not saved, and catch up at the next start: %s", error)
        finally:
            self._database.close()
            if self._opened is not None:
                self._opened.discard_scratch()

    def _searching(self) -> bool:
        """Return whether the search is open."""
        return self._opened is not None and self._opened.searching

    def _changing(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction that changes what the indexes follow: they note where they stood before it."""
        _ = self._search
        return self._database.writing()

    def _prepared(self, entries: Sequence[MemoryEntry], progress: Progress | None) -> Prepared | str:
        """Embedded entries, or why they could not be embedded now."""
        check_texts(entries)
        try:
            return self._embedding.prepare(entries, progress)
        except SpaceMismatch:
            raise
        except EmbedderError as error:
            return str(error)


def _only(prepared: Prepared | str, entries: Sequence[MemoryEntry], kept: Sequence[MemoryEntry]) -> Prepared | str:
    """What was prepared for `entries`, for those of them that were kept."""
    if isinstance(prepared, str) or len(kept) == len(entries):
        return prepared
    these = set(map(id, kept))  # the objects: one entry may stand twice in a batch, and be kept once
    return prepared._replace(windows=prepared.windows.of([i for i, entry in enumerate(entries) if id(entry) in these]))


def _check_version(entry: MemoryEntry, expected: int | None) -> None:
    if expected is not None and entry.version != expected:
        raise Conflict(f"entry {entry.id} is at version {entry.version}, not {expected}; read it again")


def _changed(former: MemoryEntry, changes: Mapping[str, Any]) -> MemoryEntry:
    return dataclasses.replace(former, **changes, version=former.version + 1, updated_at=now())


def _completed(entry: MemoryEntry) -> MemoryEntry:
    """With the times of its storing, where the caller gave none."""
    moment = now()
    return dataclasses.replace(entry, created_at=entry.created_at or moment, updated_at=entry.updated_at or moment)
