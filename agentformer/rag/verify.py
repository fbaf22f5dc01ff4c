"""Do documents, their pages, chunks and originals agree? And is all that was stored embedded?

Entries are read in one snapshot of the backend, so that what others write meanwhile is not taken for damage. What
seems wrong is asked for again before it is told: the snapshots of several backends are of several moments. No uploaded
file is deleted: it may be all that is left of a document."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote

from agentformer.errors import AgentFormerError, StoreDamaged
from agentformer.jobs.queue import FILE as JOBS_FILE
from agentformer.rag.documents import Document, Originals
from agentformer.records.entry_json import entry_to_json
from agentformer.records.integrity import MAX_REPORTED, Findings
from agentformer.records.integrity.quarantine import Quarantine
from agentformer.types import Check, MemoryBackend, MemoryEntry, MemorySnapshot, Scope

_PAGE = 500  # entries listed at a time
_DAY = 86_400.0  # seconds after which a file that no document has is of no upload that is under way
_BUSY_SECONDS = 60
_PARTS = {"page": "pages", "chunk": "chunks"}  # kinds, and what a document calls their number
_AGAIN = "`agentformer doctor --repair` brings it in again from its original; without one, ingest the file again"


class StoreParts(NamedTuple):
    """Where the parts of a memory are."""

    backend: MemoryBackend
    originals: Originals
    index_dir: Path
    upload_dir: Path


class _Listing(Protocol):
    """A snapshot, or a backend as it is now."""

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]: ...


class _Seen(NamedTuple):
    """What one look at all entries has told."""

    documents: Findings
    parts: Findings
    ready: list[MemoryEntry]
    known: set[str]  # SHA-256 of all documents
    doubtful: list[MemoryEntry]  # documents that seem not to have their parts
    strays: list[MemoryEntry]  # parts whose document seems not to be there


def verify(places: StoreParts, reread: Callable[[MemoryEntry], Document], *, repair: bool) -> list[Check]:
    """The backend's checks, then those of documents, originals, uploads and jobs. `reread` brings a document in again
    from its original."""
    checks = list(places.backend.verify(repair=repair))
    sound = all(check.mended >= check.found for check in checks)
    left = _left_over(places.upload_dir)  # listed before the documents are: a file comes before its document
    seen = _look(places.backend, sound=sound)
    originals = _originals(places, seen.ready)
    if repair:
        _reread(seen.documents, originals, reread)
        _set_aside(seen.parts, places)
    uploads = _uploads(places, left, seen)
    found = [seen.documents, seen.parts, originals, uploads, _waiting(places.backend, repair=repair), _jobs(places)]
    return [*checks, *(each.to_check() for each in found)]


def _look(backend: MemoryBackend, *, sound: bool) -> _Seen:
    documents = Findings("documents", "documents have their pages, and chunks stand in them word for word", _AGAIN)
    parts = Findings("parts", "pages and chunks belong to a document")
    parts.advice = "`agentformer doctor --repair` sets them aside; ingest the file again"
    seen = _Seen(documents, parts, [], set(), [], [])
    try:
        with backend.snapshot() as snapshot:
            for namespace in snapshot.namespaces():
                _look_at(snapshot, namespace, seen)
        _look_again(backend, seen)
    except StoreDamaged as error:
        documents.incomplete = True
        if sound:
            documents.add(f"they cannot be read: {error}")
        else:
            documents.note("not all were looked at, since entries are damaged")
    return seen


def _look_at(snapshot: MemorySnapshot, namespace: str, seen: _Seen) -> None:
    ids = set()
    for document in _all(snapshot, Scope(namespace, kinds=("document",))):
        ids.add(document.id)
        seen.known.add(str(document.metadata.get("sha256", "")))
        seen.documents.looked_at += 1
        if document.metadata.get("status") == "ready":
            seen.ready.append(document)
            if any(_problems(snapshot, document)):
                seen.doubtful.append(document)
    for part in _all(snapshot, Scope(namespace, kinds=tuple(_PARTS))):
        seen.parts.looked_at += 1
        if part.parent_id not in ids and part.source is not None:
            seen.strays.append(part)


def _look_again(backend: MemoryBackend, seen: _Seen) -> None:
    """Tell what is wrong now, too."""
    for document in seen.doubtful:
        if backend.get([document.id]):  # it may have been removed since it was listed
            for problem in _problems(backend, document):
                seen.documents.add(problem, document)
    for part in _without_document(backend, seen.strays):
        name = part.source.name if part.source else "a document"
        seen.parts.add(f"{part.kind} {part.id} is of {name}, which is not there", part)


def _without_document(backend: MemoryBackend, parts: Sequence[MemoryEntry]) -> Iterator[MemoryEntry]:
    """The parts that are there, and their document is not. Parts are asked for first: a document comes before them."""
    for group in (parts[start : start + _PAGE] for start in range(0, len(parts), _PAGE)):
        there = backend.get([part.id for part in group])
        parents = backend.get([*{part.parent_id for part in there if part.parent_id}])
        documents = {(each.id, each.namespace) for each in parents if each.kind == "document"}
        yield from (part for part in there if (part.parent_id, part.namespace) not in documents)


def _problems(snapshot: _Listing, document: MemoryEntry) -> Iterator[str]:
    """Has a document the pages and chunks that it says, and does each chunk stand in its page's text as it is?"""
    name = _named(document)
    scope = Scope(document.namespace, parent_id=document.id)
    pages: dict[int | None, str] = {}
    counts = dict.fromkeys(_PARTS, 0)
    for page in _all(snapshot, scope, "page"):
        counts["page"] += 1
        pages[page.source.page if page.source else None] = page.content
    for chunk in _all(snapshot, scope, "chunk"):
        counts["chunk"] += 1
        source = chunk.source
        if source is None or pages.get(source.page, "")[source.start : source.end] != chunk.content:
            yield f"{name}: chunk {chunk.id} is not what stands in its page"
    for kind, there in counts.items():
        if there != (said := document.metadata.get(_PARTS[kind])):
            yield f"{name} has {there} {_PARTS[kind]} instead of {said}"


def _originals(places: StoreParts, ready: Sequence[MemoryEntry]) -> Findings:
    found = Findings("originals", "documents have their originals, byte for byte", "", len(ready))
    found.advice = "put the file back with `agentformer ingest`, or restore it from a backup"
    for document in ready:
        problem = _original(places.originals, str(document.metadata.get("sha256", "")))
        if problem and places.backend.get([document.id]):  # it may have been removed since it was listed
            found.add(f"{_named(document)}: {problem}", document)
    return found


def _original(originals: Originals, digest: str) -> str:
    """What is wrong with an original; "" for nothing."""
    try:
        with originals.path(digest).open("rb") as file:
            there = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return "its original is not in the upload folder"
    except OSError as error:
        return f"its original cannot be read ({error.strerror or error})"
    return "" if there == digest else "its original is not what was uploaded (its checksum differs)"


def _reread(documents: Findings, originals: Findings, reread: Callable[[MemoryEntry], Document]) -> None:
    """Bring documents in again whose originals are whole."""
    without = {document.id for document in originals.keys}
    outcomes: dict[str, str] = {}
    for document in documents.keys:
        if document.id in outcomes or document.id in without:
            continue
        try:
            again = reread(document)
        except AgentFormerError as error:
            outcomes[document.id] = f"it could not be brought in again: {error}"
        else:
            outcomes[document.id] = "" if again.status == "ready" else f"it could not be read again: {again.reason}"
    documents.mark_repaired(
        sum(outcomes.get(each.id) == "" for each in documents.keys), "brought in again from its original"
    )
    if failed := next((why for why in outcomes.values() if why), ""):
        documents.advice = failed


def _set_aside(parts: Findings, places: StoreParts) -> None:
    """Pages and chunks without a document go into a file, and the file is to be ingested again."""
    aside = Quarantine(places.index_dir)
    ids = []
    with parts.repairing():
        for part in _without_document(places.backend, parts.keys):
            aside.add("entries", entry_to_json(part), "its document is not there")
            ids.append(part.id)
        places.backend.remove(ids)
        parts.mark_repaired(parts.found, f"{len(ids)} set aside in {aside.path.name}; ingest the file again")


def _left_over(folder: Path) -> list[Path]:
    """Uploaded files."""
    return sorted(folder.glob("??/*.bin"))


def _uploads(places: StoreParts, files: Sequence[Path], seen: _Seen) -> Findings:
    """Files that no document has are told, and left where they are: a document that was lost is brought in again from
    its file, and another memory may have its files in the same folder."""
    found = Findings("uploads", "uploaded files that belong to no document are told", "", len(files))
    if seen.documents.incomplete:
        found.note("which files belong to no document is not known while documents cannot be read")
        return found
    strange = {file: state for file in files if file.stem not in seen.known and (state := _state(file))}
    young = {file for file, state in strange.items() if time.time() - state.st_mtime < _DAY}
    if young:
        found.note(f"{len(young)} files of the last day belong to no document: of uploads under way, or broken off")
    old = [file for file in strange if file not in young]
    if old:
        size = sum(strange[file].st_size for file in old)
        names = ", ".join(str(file.relative_to(places.upload_dir)) for file in old[:MAX_REPORTED])
        more = f", and {len(old) - MAX_REPORTED} more" if len(old) > MAX_REPORTED else ""
        found.note(
            f"{len(old)} files ({size} bytes) in {places.upload_dir} belong to no document: {names}{more}; "
            "`agentformer ingest` brings in again what was lost; nothing deletes them but you"
        )
    return found


def _state(file: Path) -> os.stat_result | None:
    """None for a file that is gone, as with a document that was removed since the files were listed."""
    with suppress(OSError):
        return file.stat()
    return None


def _waiting(backend: MemoryBackend, *, repair: bool) -> Findings:
    found = Findings("waiting", "all that was stored is embedded", "`agentformer reindex` embeds them")
    with found.reading():
        names = backend.namespaces()
        found.looked_at = sum(backend.count(Scope(name, include_archived=True)) for name in names)
        counts = {name: backend.pending(Scope(name, include_archived=True)) for name in names}
        for name, count in counts.items():
            if count:
                found.add(f"{count} entries of namespace {name} have no vectors yet")
        if repair and found.found and not backend.embed_pending():
            found.mark_repaired(found.found, "embedded")
    return found


def _jobs(places: StoreParts) -> Findings:
    """The database of uploads that go on in the background, where there is one."""
    found = Findings("jobs", "what is known of uploads in the background can be read")
    found.advice = "stop the servers and delete it: what waited there is to be sent again"
    path = places.index_dir / JOBS_FILE
    if not path.exists():
        return found
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
        ) as connection:
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                return found  # who made it was killed before its table was there; the next upload goes on
            found.looked_at = int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])
            said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
            found.add_all((f"{path.name}: {each}", each) for each in said if each != "ok")
    except sqlite3.Error as error:
        found.add(f"{path.name}: {error}")
    return found


def _all(snapshot: _Listing, scope: Scope, *kinds: str) -> Iterator[MemoryEntry]:
    """Every entry of a scope, archived ones too."""
    scope = dataclasses.replace(scope, include_archived=True, kinds=kinds or scope.kinds)
    after = ""
    while found := snapshot.list(scope, after=after, limit=_PAGE):
        yield from found
        after = found[-1].id


def _named(document: MemoryEntry) -> str:
    return f"document {document.id} ({document.content})"
