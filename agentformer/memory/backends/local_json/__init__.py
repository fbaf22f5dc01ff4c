"""The backend `local_json`, which stores each namespace in one JSON file. People can read and edit the files."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from agentformer.errors import InvalidInput, store_failure
from agentformer.index.embedding.queue import NotEmbedded
from agentformer.memory.backends.indexed import IndexedBackend
from agentformer.memory.backends.local_json.file_format import check_entry, file_name
from agentformer.memory.backends.local_json.locked_folder import FolderRecords
from agentformer.memory.backends.local_json.search import Words
from agentformer.records import entries as records
from agentformer.records import meta
from agentformer.records.entries import Histories
from agentformer.records.integrity import Findings, repair, verify
from agentformer.records.integrity.files import write_atomically
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.scopes import searchable_numbers
from agentformer.search.fusion import merge
from agentformer.settings import Settings
from agentformer.types import (
    AbsentDocument,
    Check,
    Embedder,
    Hit,
    Hits,
    MemoryEntry,
    Query,
    Reembedding,
    Scope,
    StoreCheck,
    StoredVector,
    Vote,
)

P = ParamSpec("P")
T = TypeVar("T")

_NO_VECTORS = "local_json stores no vectors; search in the mode lexical or hybrid"
_EDIT = "correct the file in an editor"


class _NoVectors:
    """The embedding of a backend without vectors."""

    def commit(self, *given: object) -> None:
        """Write nothing."""

    def follow_up(self, embedded: object) -> None:
        """Embed nothing."""


class LocalJsonMemoryBackend(IndexedBackend):
    """A `MemoryBackend` with one JSON file for each namespace, so that people can read and edit the entries. It is made
    for up to a few thousand entries, because each write replaces the complete files of the changed namespaces, and each
    search reads all entries of a namespace. The search compares words and uses no vectors. Therefore `pending` is
    always 0, and `progress` is never called.

    A person may edit a file while no process writes, and the next call reads the new content. If a file is damaged, a
    copy of the file is stored in the same folder, and the file itself is not changed. Every call that needs this file
    raises `StoreDamaged` with the position and the reason. Calls for other namespaces still work. `namespaces` and
    `status` include only the files that can be read.
    """

    def __init__(self, folder: Path, *, rrf_k: int = 60) -> None:
        self._database: FolderRecords = FolderRecords(folder)
        super().__init__(self._database)
        self._words = Words()
        self._rrf_k = rrf_k

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> LocalJsonMemoryBackend:
        """Open the backend in the folder `Settings.index_dir`. `embedder` is not used, because no vectors are
        stored."""
        return cls(settings.index_dir, rrf_k=settings.rrf_k)

    def _embedding(self) -> Any:
        return _NoVectors()

    def store(
        self,
        entries: Sequence[MemoryEntry],
        *,
        replacing: Sequence[Scope | Sequence[str]] = (),
        unique: bool = False,
        former: Histories | None = None,
        progress: Callable[[int, int], None] | None = None,
        check: StoreCheck | None = None,
    ) -> list[MemoryEntry]:
        """Store entries, and remove those that `replacing` selects, in one transaction; see `MemoryBackend.store`."""
        for state in (state for states in (former or {}).values() for state in states):
            check_entry(state)
        self._need(*replacing)
        return super().store(entries, replacing=replacing, unique=unique, former=former, check=check)

    def search(self, query: Query) -> Hits:
        """Return the entries in the scope of the query that contain a word of the query, best first."""
        with self._database.reading() as connection:
            self._database.check(query.scope)
            if query.limit < 1 or not query.text.strip():
                return Hits()
            if query.mode == "dense":
                return Hits((), (_NO_VECTORS,))
            scores = self._words.scores(connection, query.scope.namespace, query.text)
            nums = searchable_numbers(connection, query.scope, [*scores]).tolist()
            least = min(heapq.nlargest(query.limit, (scores[num] for num in nums)), default=0.0)
            marks = json.dumps([num for num in nums if scores[num] >= least])
            rows = connection.execute(
                "SELECT num, id FROM entries WHERE num IN (SELECT value FROM json_each(?))", [marks]
            )
            best = [num for num, _ in sorted(rows, key=lambda row: (-scores[row[0]], row[1]))[: query.limit]]
            entries = records.by_num(connection, best)
        fused = merge([range(len(best))], k=self._rrf_k)
        return Hits(
            Hit(entries[num], score, lexical_score=scores[num], lexical_rank=n + 1, votes=(Vote("words", n + 1, 1.0),))
            for num, (n, score) in zip(best, fused, strict=True)
            if score >= query.min_score
        )

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change fields of an entry, and return the changed entry; see `MemoryBackend.update`."""
        self._need(list(filter(None, [entry_id, changes.get("superseded_by")])))
        return super().update(entry_id, changes, expected_version)

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Delete entries with their parts and summaries, and return their number; see `MemoryBackend.remove`."""
        self._need(what)
        removed = super().remove(what, expected_version)
        if isinstance(what, Scope):  # the copy of a damaged file may contain the removed entries
            self._database.drop_copies(what.namespace)
        return removed

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        """Store a summary and archive its originals (the entries that it summarizes) in one transaction."""
        self._need(archive_ids)
        return super().consolidate(summary, archive_ids, versions=versions)

    def restore(self, summary_id: str) -> list[MemoryEntry]:
        """Undo `consolidate`, and return the originals; see `MemoryBackend.restore`."""
        self._need(summary_id)
        return super().restore(summary_id)

    def announce(self, documents: Sequence[MemoryEntry], upload: str) -> None:
        """Record that the caller is about to store these documents; see `MemoryBackend.announce`."""
        with self._database.writing() as connection:
            self._database.announce(connection, documents, upload)

    def absent_documents(self) -> Sequence[AbsentDocument]:
        """Return the absent documents, in order of id. Raises `StoreDamaged` if a file cannot be read."""
        self._need(None)
        return self._read(meta.absent_documents)

    def embed_pending(self, progress: object = None, *, refused: bool = True) -> int:
        return 0

    def reembed(self, target: Embedder, *, queries: Sequence[str] = (), progress: object = None) -> Reembedding:
        """Raise `InvalidInput`, because this backend stores no vectors."""
        raise InvalidInput("backend", "local_json stores no vectors, so there is nothing to embed")

    def abandon_reembedding(self) -> bool:
        return False

    def prune_spaces(self) -> int:
        return 0

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        return 0

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Check the files, the links of summaries, the superseded entries, and the leases. If `repair` is True, invalid
        leases are removed, and entries without a valid successor are made current. Nothing else is repaired, because a
        person must edit the files."""
        return [findings.to_check() for findings in _verified(self._database, repair)]

    def backup(self, folder: Path) -> None:
        """Write a copy of all files into the empty folder `folder`. Raises `StoreFull` if the folder cannot be written,
        and `StoreDamaged` if a file of this store cannot be read."""
        self._need(None)
        with self._database.reading() as connection:
            texts = {name: self._database.text_of(name, {}, absent=False) for name in records.namespaces(connection)}
        try:
            for name, text in texts.items():
                write_atomically(folder / file_name(name), text.encode("utf-8"))
        except OSError as error:
            advice = "free some disk space or choose another folder"
            raise store_failure(f"{folder} cannot be written", error, advice) from error

    def status(self) -> dict[str, Any]:
        """Return JSON values: the numbers of entries by kind and namespace, and the reason for each file that cannot be
        read."""
        with self._database.reading() as connection:
            names = records.namespaces(connection)
            return {
                "entries": connection.execute("SELECT count(*) FROM entries").fetchone()[0],
                **dict.fromkeys(("windows", "vectors", "pending"), 0),
                "kinds": records.count_by_kind(connection),
                "namespaces": {name: records.count(connection, Scope(name, include_archived=True)) for name in names},
                "damaged": list(self._database.damaged.values()),
                "space": None,
            }

    def close(self) -> None:
        self._database.close()

    def _embed(self, entries: Sequence[MemoryEntry], progress: object = None) -> NotEmbedded:
        """Check that a file can represent the new states of entries."""
        for entry in entries:
            check_entry(entry)
        return NotEmbedded("")

    def _changing(self) -> Any:
        return self._database.writing()

    def _need(self, *needed: object) -> None:
        """Raise `StoreDamaged` if a file that cannot be read may contain what a call needs; see `FolderRecords`."""
        with self._database.reading():
            for one in needed:
                self._database.check(one)

    def _read(self, query: Callable[Concatenate[SqliteConnection, P], T], *args: P.args, **options: P.kwargs) -> T:
        with self._database.reading() as connection:
            for needed in args[:1]:  # a scope, an id or several ids
                self._database.check(needed)
            return query(connection, *args, **options)


def _verified(database: FolderRecords, repairing: bool) -> list[Findings]:
    files = Findings("files", "each file can be read", "")
    with files.reading(), database.reading() as connection:
        files.looked_at = len(database.damaged) + len(records.namespaces(connection))
        for name, reason in database.damaged.items():
            files.add(reason, name)
        links, superseded, leases = (check(connection) for check in (verify.links, verify.superseded, verify.leases))
    links.advice = _EDIT
    if repairing:
        for findings, mend in ((superseded, repair.superseded), (leases, repair.leases)):
            if findings.found:
                with findings.repairing():
                    mend(database, findings, None)
    return [files, links, superseded, leases]
