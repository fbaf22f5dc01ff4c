"""The embedded backend: SQLite records, followed by a FAISS index and a word index.

Everything lives in one folder, and any number of threads and processes may have it open: the records
decide, and before each search both indexes apply what is newer.
"""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentformer.errors import EmbedderError, InvalidInput, NotFound, SpaceMismatch, StoreError
from agentformer.index.embedding import Embedding, Prepared, Progress
from agentformer.index.search import HybridSearch
from agentformer.records import entries as records
from agentformer.records import vectors as stored_vectors
from agentformer.records.codec import now
from agentformer.records.database import Database
from agentformer.types import UNSEARCHED_KINDS, Embedder, EmbeddingSpace, Hits, MemoryEntry, Query, Scope

log = logging.getLogger("agentformer")

DATABASE_FILE = "memory.sqlite3"
_FIXED = frozenset({"id", "created_at", "updated_at", "version"})
_CHANGEABLE = frozenset(field.name for field in dataclasses.fields(MemoryEntry)) - _FIXED


class FaissMemoryBackend:
    """`MemoryBackend` over a folder. Raises `StoreFull` or `StoreDamaged` when the folder cannot be used."""

    def __init__(self, folder: Path, embedder: Embedder, *, fanout: int = 100, rrf_k: int = 60) -> None:
        self._database = Database(folder / DATABASE_FILE)
        self._embedding = Embedding(self._database, embedder)
        self._closed = False
        self._search = HybridSearch(folder, self._database, embedder, fanout=fanout, rrf_k=rrf_k)

    def store(
        self, entries: Sequence[MemoryEntry], *, replacing: Sequence[Scope] = (), progress: Progress | None = None
    ) -> list[MemoryEntry]:
        entries = [_completed(entry) for entry in entries]
        prepared = self._prepared(entries, progress)
        with self._database.writing() as connection:
            doomed: set[int] = set()
            for scope in replacing:
                doomed.update(records.with_parts(connection, records.numbers(connection, scope)))
            nums = records.insert(connection, entries)
            self._index(connection, nums, entries, prepared)
            records.remove(connection, sorted(doomed))  # last, so that vectors of text that stays are kept
        if isinstance(prepared, Prepared):
            self._catch_up()
        return entries

    def _catch_up(self) -> None:
        """The embedder has just worked: embed what waited for it."""
        with self._database.reading() as connection:
            waiting = stored_vectors.pending_count(connection)
        if waiting:
            self._embedding.catch_up()

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        if wrong := sorted(set(changes) - _CHANGEABLE):
            raise InvalidInput(wrong[0], f"cannot be changed; these can: {', '.join(sorted(_CHANGEABLE))}")
        while True:
            found = self.get([entry_id])
            if not found:
                raise NotFound(f"there is no entry {entry_id}")
            former = found[0]
            changed = dataclasses.replace(former, **changes, version=former.version + 1, updated_at=now())
            prepared = self._prepared([changed], None)
            with self._database.writing() as connection:
                current = records.get(connection, [entry_id])
                if expected_version is None and current and current[0].version != former.version:
                    continue  # somebody was faster; apply the same changes to what is there now
                num = records.replace(connection, changed, expected_version)
                self._index(connection, [num], [changed], prepared)
            return changed

    def remove(self, what: Scope | Sequence[str]) -> int:
        if isinstance(what, Scope):
            what = dataclasses.replace(what, include_archived=True)
        with self._database.writing() as connection:
            return records.remove(connection, records.with_parts(connection, records.numbers(connection, what)))

    def consolidate(self, summary: MemoryEntry, archive_ids: Sequence[str]) -> MemoryEntry:
        summary = _completed(summary)
        prepared = self._prepared([summary], None)
        with self._database.writing() as connection:
            records.archive(connection, archive_ids, now())
            self._index(connection, records.insert(connection, [summary]), [summary], prepared)
        return summary

    def embed_pending(self, progress: Progress | None = None) -> int:
        return self._embedding.catch_up(progress)

    def search(self, query: Query) -> Hits:
        return self._search.search(query)

    def get(self, ids: Sequence[str]) -> list[MemoryEntry]:
        with self._database.reading() as connection:
            return records.get(connection, ids)

    def count(self, scope: Scope) -> int:
        with self._database.reading() as connection:
            return records.count(connection, scope)

    def namespaces(self) -> Sequence[str]:
        with self._database.reading() as connection:
            return [row[0] for row in connection.execute("SELECT DISTINCT namespace FROM entries ORDER BY namespace")]

    def pending(self, scope: Scope) -> int:
        with self._database.reading() as connection:
            return stored_vectors.pending_count(connection, scope)

    def history(self, entry_id: str) -> list[MemoryEntry]:
        with self._database.reading() as connection:
            return records.history(connection, entry_id)

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        with self._database.reading() as connection:
            return records.page(connection, scope, after, limit)

    def status(self) -> dict[str, Any]:
        with self._database.reading() as connection:
            space = stored_vectors.active_space(connection)
            counts = {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("entries", "windows", "vectors", "pending")
            }
            kinds = connection.execute("SELECT kind, count(*) FROM entries GROUP BY kind ORDER BY kind").fetchall()
            return {
                **counts,
                "kinds": {row[0]: row[1] for row in kinds},
                "changes": records.last_change(connection),
                "space": dataclasses.asdict(dataclasses.replace(space[1], fingerprint="")) if space else None,
            }

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._search.catches_up_soon():  # then the next start finds both indexes ready; else it catches up
                self._search.refresh()
            self._search.save()
        except (OSError, StoreError) as error:  # a snapshot only spares time: the records have everything
            log.warning("the indexes were not saved, and catch up at the next start: %s", error)
        finally:
            self._database.close()

    def _prepared(self, entries: Sequence[MemoryEntry], progress: Progress | None) -> Prepared | str:
        """Embedded entries, or why they could not be embedded now."""
        try:
            return self._embedding.prepare(entries, progress)
        except SpaceMismatch:
            raise
        except EmbedderError as error:
            return str(error)

    def _index(
        self,
        connection: sqlite3.Connection,
        nums: Sequence[int],
        entries: Sequence[MemoryEntry],
        prepared: Prepared | str,
    ) -> None:
        if isinstance(prepared, Prepared):
            self._embedding.commit(connection, nums, prepared)
            return
        searched = [num for num, entry in zip(nums, entries, strict=True) if entry.kind not in UNSEARCHED_KINDS]
        stored_vectors.put_pending(connection, searched, prepared)


def _completed(entry: MemoryEntry) -> MemoryEntry:
    """With the times of its storing, where the caller gave none."""
    moment = now()
    return dataclasses.replace(entry, created_at=entry.created_at or moment, updated_at=entry.updated_at or moment)


def stored_space(folder: Path) -> EmbeddingSpace | None:
    """The space of the vectors that the folder's store holds; None where there is no store or no vector yet."""
    if not (folder / DATABASE_FILE).exists():
        return None
    database = Database(folder / DATABASE_FILE)
    try:
        with database.reading() as connection:
            known = stored_vectors.active_space(connection)
    finally:
        database.close()
    return known[1] if known else None
