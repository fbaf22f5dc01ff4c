"""The backend `local_json`, which stores each namespace in one JSON file. People can read and edit the files."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from agentformer.errors import InvalidInput, NotFound, store_failure
from agentformer.memory.backends import by_time, check_version, with_times
from agentformer.memory.backends.local_json import operations
from agentformer.memory.backends.local_json.file_format import Contents, checked, file_name, file_text
from agentformer.memory.backends.local_json.locked_folder import Folder
from agentformer.memory.backends.local_json.operations import Leases
from agentformer.memory.backends.local_json.search import bm25_scores, scope_filter
from agentformer.records import meta
from agentformer.records.codec import now
from agentformer.records.entries import Histories, check_histories
from agentformer.records.entry_json import check_settable
from agentformer.records.integrity import Findings
from agentformer.records.integrity.files import write_atomically
from agentformer.records.integrity.repair import HOW_SUPERSEDED
from agentformer.search.fusion import merge
from agentformer.settings import Settings
from agentformer.types import (
    UNSEARCHED_KINDS,
    AbsentDocument,
    Check,
    Embedder,
    EntryVector,
    Hit,
    Hits,
    MemoryEntry,
    Query,
    Reembedding,
    Scope,
    SpaceState,
    StoreCheck,
    StoredVector,
    Use,
    Vote,
    Waiting,
)

_NO_VECTORS = "local_json stores no vectors; search in the mode lexical or hybrid"


class FolderSnapshot:
    """A `MemorySnapshot` of all files. Methods raise `StoreDamaged` if they need a file that cannot be read."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def namespaces(self) -> Sequence[str]:
        self._contents.check_whole()
        return [name for name, file in self._contents.files.items() if file.records]

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        entries = (entry for entry in _in_scope(self._contents, scope) if entry.id > after)
        return [_copied(entry) for entry in itertools.islice(entries, max(0, limit))]

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        record = self._contents.records.get(entry_id)
        return [_copied(state) for state in record.former] if record else []

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        """Yield nothing, because this backend stores no vectors."""
        return iter(())

    def entry_vectors(self, namespace: str, *, every: int = 1) -> Iterator[EntryVector]:
        """Yield nothing, because this backend stores no vectors."""
        return iter(())


class _AbsentDocuments:
    """The methods of `MemoryBackend` for absent documents: documents that are not stored although their original files
    may exist. The caller uses the list of absent documents to delete these files."""

    _folder: Folder

    def announce(self, documents: Sequence[MemoryEntry], upload: str) -> None:
        """Record that the caller is about to store these documents; see `MemoryBackend.announce`. The record is written
        to the file that will contain the document. The transaction that stores the document replaces this file, and so
        it also deletes the record."""
        added: dict[str, list[AbsentDocument]] = {}
        for entry in documents:
            added.setdefault(entry.namespace, []).extend(meta.absent([entry], upload))
        self._folder.change_absent(added, ())

    def absent_documents(self) -> Sequence[AbsentDocument]:
        """Return the absent documents, in order of id. Raises `StoreDamaged` if a file cannot be read."""
        contents = self._folder.read()
        contents.check_whole()
        return sorted(document for documents in contents.absent.values() for document in documents)

    def forget_absent(self, documents: Sequence[AbsentDocument]) -> None:
        self._folder.change_absent({}, documents)


class LocalJsonMemoryBackend(_AbsentDocuments):
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
        self._folder = Folder(folder)
        self._leases = Leases(self._folder)
        self._rrf_k = rrf_k

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> LocalJsonMemoryBackend:
        """Open the backend in the folder `Settings.index_dir`. `embedder` is not used, because no vectors are
        stored."""
        return cls(settings.index_dir, rrf_k=settings.rrf_k)

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
        entries = [checked(with_times(entry)) for entry in entries]
        past = check_histories(entries, former, unique=unique)
        with self._folder.writing() as (contents, records):
            if check is not None:
                check(partial(_ids, contents))
            replaced = {entry_id for what in replacing for entry_id in _ids(contents, what)}
            to_delete = operations.with_dependents(records, replaced)
            if unique:
                stored = operations.insert_unique(records, entries, to_delete)
            else:
                stored = [entry.id for entry in entries]
                for entry in entries:
                    operations.insert(records, entry, tuple(map(checked, past.get(entry.id, ()))))
            operations.delete(records, to_delete)
            operations.keep_valid(records, (entry.id for entry in entries if entry.id in records))
        return [_copied(records[entry_id].entry) for entry_id in stored]

    def get(self, ids: Sequence[str]) -> list[MemoryEntry]:
        """Return the entries with these ids in the given order. Missing ids are left out."""
        contents = self._folder.read()
        contents.check_ids(ids)
        return [_copied(contents.records[entry_id].entry) for entry_id in ids if entry_id in contents.records]

    def search(self, query: Query) -> Hits:
        """Return the entries in the scope of the query that contain a word of the query, best first."""
        records = self._folder.read().of(query.scope.namespace)
        if query.limit < 1 or not query.text.strip():
            return Hits()
        if query.mode == "dense":
            return Hits((), (_NO_VECTORS,))
        searched = [record for record in records.values() if record.entry.kind not in UNSEARCHED_KINDS]
        # Word frequencies are counted over all entries, so that a score does not depend on the scope.
        scores = bm25_scores([record.terms for record in searched], query.text)
        admits = scope_filter(query.scope)
        ranked = [(searched[n].entry, score) for n, score in scores.items() if admits(searched[n].entry)]
        ranked.sort(key=lambda item: (-item[1], item[0].id))
        best = ranked[: query.limit]
        fused = merge([range(len(best))], k=self._rrf_k)
        return Hits(
            Hit(_copied(entry), score, lexical_score=bm25, lexical_rank=n + 1, votes=(Vote("words", n + 1, 1.0),))
            for (entry, bm25), (n, score) in zip(best, fused, strict=True)
            if score >= query.min_score
        )

    def update(self, entry_id: str, changes: Mapping[str, Any], expected_version: int | None = None) -> MemoryEntry:
        """Change fields of an entry, and return the changed entry; see `MemoryBackend.update`."""
        check_settable(changes)
        with self._folder.writing() as (contents, records):
            contents.check_ids([entry_id, *filter(None, [changes.get("superseded_by")])])
            if entry_id not in records:
                raise NotFound(f"there is no entry {entry_id}")
            check_version(records[entry_id].entry, expected_version)
            changed = operations.update(records, entry_id, changes)
        return _copied(changed)

    def touch(self, uses: Sequence[Use]) -> None:
        """Add these uses to the use counts of the entries. Do nothing if the folder is read-only."""
        if self._folder.read_only:
            return  # a search in a read-only folder succeeds, but its uses are not counted
        with self._folder.writing() as (_, records):
            operations.count_uses(records, uses)

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Delete entries with their parts and summaries, and return their number; see `MemoryBackend.remove`."""
        with self._folder.writing() as (contents, records):
            if isinstance(what, Scope):
                ids = _ids(contents, dataclasses.replace(what, include_archived=True))
            else:
                ids = set(what)
                contents.check_ids(ids)
                for entry_id in ids & records.keys():
                    check_version(records[entry_id].entry, expected_version)
            to_delete = operations.with_dependents(records, ids)
            operations.delete(records, to_delete)
        if isinstance(what, Scope):  # the copy of a damaged file may contain the removed entries
            self._folder.drop_copies(what.namespace)
        return len(to_delete)

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        return FolderSnapshot(self._folder.read()).list(scope, after=after, limit=limit)

    def latest(self, scope: Scope, *, limit: int = 100) -> Sequence[MemoryEntry]:
        entries = sorted(_in_scope(self._folder.read(), scope), key=by_time, reverse=True)
        return [_copied(entry) for entry in entries[: max(0, limit)]]

    def count(self, scope: Scope) -> int:
        return sum(1 for _ in _in_scope(self._folder.read(), scope))

    def namespaces(self) -> Sequence[str]:
        return [name for name, file in self._folder.read().files.items() if file.records]

    def pending(self, scope: Scope) -> int:
        return 0

    def consolidate(
        self, summary: MemoryEntry, archive_ids: Sequence[str], *, versions: Mapping[str, int] | None = None
    ) -> MemoryEntry:
        """Store a summary and archive its originals (the entries that it summarizes) in one transaction."""
        summary = checked(with_times(summary))
        ids = dict.fromkeys(archive_ids)
        with self._folder.writing() as (contents, records):
            contents.check_ids(ids)
            operations.consolidate(records, summary, ids, versions or {}, now())
        return _copied(summary)

    def restore(self, summary_id: str) -> Sequence[MemoryEntry]:
        """Undo `consolidate`, and return the originals; see `MemoryBackend.restore`."""
        with self._folder.writing() as (contents, records):
            contents.check_ids([summary_id])
            originals = operations.restore(records, summary_id, now())
        return [_copied(records[entry_id].entry) for entry_id in originals]

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        """Return the former versions of an entry, oldest first."""
        contents = self._folder.read()
        contents.check_ids([entry_id])
        return FolderSnapshot(contents).history(entry_id)

    def embed_pending(self, *, refused: bool = True) -> int:
        return 0

    def waiting(self, what: Scope | Sequence[str], *, limit: int = 100) -> Sequence[Waiting]:
        return []

    def spaces(self) -> Sequence[SpaceState]:
        return []

    def reembed(
        self, target: Embedder, *, queries: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
    ) -> Reembedding:
        """Raise `InvalidInput`, because this backend stores no vectors."""
        raise InvalidInput("backend", "local_json stores no vectors, so there is nothing to embed")

    def abandon_reembedding(self) -> bool:
        return False

    def prune_spaces(self) -> int:
        return 0

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        return self._leases.take(name, holder, seconds)

    def release(self, name: str, holder: str) -> None:
        self._leases.release(name, holder)

    def snapshot(self) -> AbstractContextManager[FolderSnapshot]:
        return nullcontext(FolderSnapshot(self._folder.read()))

    def keep_vectors(self, vectors: Iterable[StoredVector]) -> int:
        return 0

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Check the files, the former versions of entries, the links of summaries, the superseded entries, and the
        leases. If `repair` is True, invalid leases are removed, and entries without a valid successor are made current.
        Nothing else is repaired, because a person must edit the files."""
        files = Findings("files", "each file can be read", "")
        contents = Contents()
        with files.reading():
            contents = self._folder.read()
            files.looked_at = len(contents.files) + len(contents.damaged)
            for name, reason in contents.damaged.items():
                files.add(reason, name)
        history, links = operations.check_history(contents.records), operations.check_links(contents.records)
        superseded = operations.check_superseded(contents.records)
        if repair and superseded.keys:
            with superseded.repairing(), self._folder.writing() as (_, records):
                operations.repair_superseded(records, superseded.keys)
            superseded.mark_repaired(len(superseded.keys), HOW_SUPERSEDED)
        leases = self._leases.check(repair=repair)
        return [findings.to_check() for findings in (files, history, links, superseded, leases)]

    def backup(self, folder: Path) -> None:
        """Write a copy of all files into the empty folder `folder`. Raises `StoreFull` if the folder cannot be written,
        and `StoreDamaged` if a file of this store cannot be read."""
        contents = self._folder.read()
        contents.check_whole()
        try:
            for namespace, file in contents.files.items():
                text = file_text(namespace, file.records.values())
                write_atomically(folder / file_name(namespace), text.encode("utf-8"))
        except OSError as error:
            advice = "free some disk space or choose another folder"
            raise store_failure(f"{folder} cannot be written", error, advice) from error

    def status(self) -> dict[str, Any]:
        """Return JSON values: the numbers of entries by kind and namespace, and the reason for each file that cannot be
        read."""
        contents = self._folder.read()
        kinds = Counter(record.entry.kind for record in contents.records.values())
        return {
            "entries": len(contents.records),
            "windows": 0,
            "vectors": 0,
            "pending": 0,
            "kinds": dict(sorted(kinds.items())),
            "namespaces": {name: len(file.records) for name, file in contents.files.items() if file.records},
            "damaged": list(contents.damaged.values()),
            "space": None,
        }

    def close(self) -> None:
        self._folder.close()


def _in_scope(contents: Contents, scope: Scope) -> Iterator[MemoryEntry]:
    """Return the entries in a scope, in order of id. Raises `StoreDamaged` if the file cannot be read."""
    records = contents.of(scope.namespace).values()
    return filter(scope_filter(scope), (record.entry for record in records))


def _ids(contents: Contents, what: Scope | Sequence[str]) -> set[str]:
    if isinstance(what, Scope):
        return {entry.id for entry in _in_scope(contents, what)}
    contents.check_ids(what)
    return {entry_id for entry_id in what if entry_id in contents.records}


def _copied(entry: MemoryEntry) -> MemoryEntry:
    """Return a copy of the entry. A caller may change the metadata of the copy without changing the stored entry."""
    return dataclasses.replace(entry, metadata=copy.deepcopy(entry.metadata)) if entry.metadata else entry
