"""Verification of documents: their pages, chunks, originals, uploads and embeddings.

Entries are read in one snapshot of the backend, so that concurrent writes do not look like damage. Before a problem is
reported, it is checked again, because snapshots of several backends are from different moments. No uploaded file is
deleted, because it may be the only copy of a document.
"""

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
from agentformer.records.integrity.repair import Quarantine
from agentformer.types import Check, MemoryBackend, MemoryEntry, MemorySnapshot, Scope

_PAGE = 500  # entries listed at a time
_UPLOAD_SECONDS = 86_400.0  # a younger file without a document may belong to an upload that is running
_BUSY_SECONDS = 60
_PARTS = {"page": "pages", "chunk": "chunks"}  # kinds, and the document's key of their number
_INGEST_AGAIN = (
    "`agentformer doctor --repair` ingests the document again from its original; if the original is missing, "
    "ingest the file again"
)


class StoreParts(NamedTuple):
    """The backend and the folders of a memory."""

    backend: MemoryBackend
    originals: Originals
    index_dir: Path
    upload_dir: Path


class _Listing(Protocol):
    """A snapshot, or an open backend."""

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]: ...


class _Survey:
    def __init__(self, backend: MemoryBackend, *, sound: bool) -> None:
        """`sound` is True if the backend's checks found no damage."""
        what = "documents have their pages and chunks, and chunks are parts of their page's text"
        self.documents = Findings("documents", what, _INGEST_AGAIN)
        advice = "`agentformer doctor --repair` moves these parts into a file; ingest the document again"
        self.parts = Findings("parts", "pages and chunks belong to a document", advice)
        self.ready: list[MemoryEntry] = []
        self.digests: set[str] = set()  # SHA-256 of all documents
        self._suspects: list[MemoryEntry] = []  # documents that seem to lack parts
        self._orphans: list[MemoryEntry] = []  # parts that seem to lack their document
        try:
            with backend.snapshot() as snapshot:
                for namespace in snapshot.namespaces():
                    self._read(snapshot, namespace)
            self._confirm(backend)
        except StoreDamaged as error:
            self.documents.incomplete = True
            if sound:
                self.documents.add(f"they cannot be read: {error}")
            else:
                self.documents.note("some documents were not checked, since entries are damaged")

    def _read(self, snapshot: MemorySnapshot, namespace: str) -> None:
        ids = set()
        for document in _all(snapshot, Scope(namespace, kinds=("document",))):
            ids.add(document.id)
            self.digests.add(_digest(document))
            self.documents.looked_at += 1
            if document.metadata.get("status") == "ready":
                self.ready.append(document)
                if any(_problems(snapshot, document)):
                    self._suspects.append(document)
        for part in _all(snapshot, Scope(namespace, kinds=tuple(_PARTS))):
            self.parts.looked_at += 1
            if part.parent_id not in ids and part.source is not None:
                self._orphans.append(part)

    def _confirm(self, backend: MemoryBackend) -> None:
        """Add the problems that still exist in the current state of the backend."""
        for document in self._suspects:
            if backend.get([document.id]):  # it may have been removed since it was listed
                for problem in _problems(backend, document):
                    self.documents.add(problem, document)
        for part in _orphans(backend, self._orphans):
            name = part.source.name if part.source else "a document"
            self.parts.add(f"{part.kind} {part.id} belongs to {name}, which does not exist", part)


def verify(store: StoreParts, reread: Callable[[MemoryEntry], Document], *, repair: bool) -> list[Check]:
    """Return the checks of the backend, and the checks of documents, originals, uploads and jobs.

    With `repair`, `reread` ingests a damaged document again from its original.
    """
    checks = list(store.backend.verify(repair=repair))
    sound = all(check.mended >= check.found for check in checks)
    files = sorted(store.upload_dir.glob("??/*.bin"))  # listed before the documents: a file is stored first
    survey = _Survey(store.backend, sound=sound)
    originals = _verify_originals(store, survey.ready)
    if repair:
        _ingest_again(survey.documents, originals, reread)
        _set_aside(survey.parts, store)
    findings = [survey.documents, survey.parts, originals, _verify_uploads(store, files, survey)]
    findings += [_verify_embedded(store.backend, repair=repair), _verify_jobs(store)]
    return [*checks, *(each.to_check() for each in findings)]


def _problems(listing: _Listing, document: MemoryEntry) -> Iterator[str]:
    """Yield missing pages and chunks of a document, and chunks that differ from the text of their page."""
    name = _name(document)
    scope = Scope(document.namespace, parent_id=document.id)
    pages: dict[int | None, str] = {}
    counts = dict.fromkeys(_PARTS, 0)
    for page in _all(listing, scope, "page"):
        counts["page"] += 1
        pages[page.source.page if page.source else None] = page.content
    for chunk in _all(listing, scope, "chunk"):
        counts["chunk"] += 1
        source = chunk.source
        if source is None or pages.get(source.page, "")[source.start : source.end] != chunk.content:
            yield f"{name}: chunk {chunk.id} differs from its page's text"
    for kind, count in counts.items():
        if count != (expected := document.metadata.get(_PARTS[kind])):
            yield f"{name} has {count} {_PARTS[kind]} instead of {expected}"


def _orphans(backend: MemoryBackend, parts: Sequence[MemoryEntry]) -> Iterator[MemoryEntry]:
    """Yield the stored parts without a stored document. A document is stored before its parts, so it is read after."""
    for start in range(0, len(parts), _PAGE):
        stored = backend.get([part.id for part in parts[start : start + _PAGE]])
        parents = backend.get([*{part.parent_id for part in stored if part.parent_id}])
        documents = {(parent.id, parent.namespace) for parent in parents if parent.kind == "document"}
        yield from (part for part in stored if (part.parent_id, part.namespace) not in documents)


def _ingest_again(documents: Findings, originals: Findings, reread: Callable[[MemoryEntry], Document]) -> None:
    """Repair the documents whose originals are intact."""
    lost = {document.id for document in originals.keys}
    errors: dict[str, str] = {}  # "" for a document that was repaired
    for document in documents.keys:
        if document.id in errors or document.id in lost:
            continue
        try:
            result = reread(document)
        except AgentFormerError as error:
            errors[document.id] = f"it could not be ingested again: {error}"
        else:
            errors[document.id] = "" if result.status == "ready" else f"it could not be read again: {result.reason}"
    repaired = sum(errors.get(document.id) == "" for document in documents.keys)
    documents.mark_repaired(repaired, "ingested again from its original")
    if error_text := next(filter(None, errors.values()), ""):
        documents.advice = error_text


def _set_aside(parts: Findings, store: StoreParts) -> None:
    quarantine = Quarantine(store.index_dir)
    ids = []
    with parts.repairing():
        for part in _orphans(store.backend, parts.keys):
            quarantine.add("entries", entry_to_json(part), "its document does not exist")
            ids.append(part.id)
        store.backend.remove(ids)
        parts.mark_repaired(parts.found, f"{len(ids)} set aside in {quarantine.path.name}; ingest the file again")


def _verify_originals(store: StoreParts, ready: Sequence[MemoryEntry]) -> Findings:
    advice = "put the file back with `agentformer ingest`, or restore it from a backup"
    findings = Findings("originals", "documents have their originals, byte for byte", advice, len(ready))
    for document in ready:
        problem = _original_problem(store.originals, _digest(document))
        if problem and store.backend.get([document.id]):  # it may have been removed since it was listed
            findings.add(f"{_name(document)}: {problem}", document)
    return findings


def _original_problem(originals: Originals, digest: str) -> str:
    try:
        with originals.path(digest).open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return "its original is not in the upload folder"
    except OSError as error:
        return f"its original cannot be read ({error.strerror or error})"
    return "" if actual == digest else "its original differs from the uploaded file (its checksum differs)"


def _verify_uploads(store: StoreParts, files: Sequence[Path], survey: _Survey) -> Findings:
    """Report files without a document. They stay, because a lost document can be ingested again from its file, and
    another memory may use the same folder."""
    findings = Findings("uploads", "uploaded files without a document are reported", "", len(files))
    if survey.documents.incomplete:
        findings.note("files without a document are unknown while documents cannot be read")
        return findings
    states = {file: state for file in files if file.stem not in survey.digests and (state := _state(file))}
    young = {file for file, state in states.items() if time.time() - state.st_mtime < _UPLOAD_SECONDS}
    if young:
        findings.note(f"{_count(young)} of the last day without a document: the upload is running or was interrupted")
    old = [file for file in states if file not in young]
    if old:
        size = sum(states[file].st_size for file in old)
        names = ", ".join(str(file.relative_to(store.upload_dir)) for file in old[:MAX_REPORTED])
        more = f", and {len(old) - MAX_REPORTED} more" if len(old) > MAX_REPORTED else ""
        findings.note(
            f"{_count(old)} ({size} bytes) in {store.upload_dir} without a document: {names}{more}; "
            "`agentformer ingest` ingests a lost document again; only you delete these files"
        )
    return findings


def _count(files: Sequence[Path] | set[Path]) -> str:
    return f"{len(files)} {'file' if len(files) == 1 else 'files'}"


def _state(file: Path) -> os.stat_result | None:
    """Return the file's state, or None if the document was removed after the files were listed."""
    with suppress(OSError):
        return file.stat()
    return None


def _verify_embedded(backend: MemoryBackend, *, repair: bool) -> Findings:
    findings = Findings("waiting", "all entries are embedded", "`agentformer reindex` embeds them")
    with findings.reading():
        names = backend.namespaces()
        findings.looked_at = sum(backend.count(Scope(name, include_archived=True)) for name in names)
        for name in names:
            if pending := backend.pending(Scope(name, include_archived=True)):
                findings.add(f"{pending} entries of namespace {name} have no vectors yet")
        if repair and findings.found and not backend.embed_pending():
            findings.mark_repaired(findings.found, "embedded")
    return findings


def _verify_jobs(store: StoreParts) -> Findings:
    """Check the database of background uploads, if there is one."""
    advice = "stop the servers, delete the file, and send the waiting uploads again"
    findings = Findings("jobs", "the queue of background uploads can be read", advice)
    path = store.index_dir / JOBS_FILE
    if not path.exists():
        return findings
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as connection:
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                return findings  # its process was killed before it made the table; the next upload makes it
            findings.looked_at = int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])
            messages = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
            findings.add_all((f"{path.name}: {message}", message) for message in messages if message != "ok")
    except sqlite3.Error as error:
        findings.add(f"{path.name}: {error}")
    return findings


def _all(listing: _Listing, scope: Scope, *kinds: str) -> Iterator[MemoryEntry]:
    """Yield every entry of a scope, including archived ones."""
    scope = dataclasses.replace(scope, include_archived=True, kinds=kinds or scope.kinds)
    after = ""
    while entries := listing.list(scope, after=after, limit=_PAGE):
        yield from entries
        after = entries[-1].id


def _name(document: MemoryEntry) -> str:
    return f"document {document.id} ({document.content})"


def _digest(document: MemoryEntry) -> str:
    return str(document.metadata.get("sha256", ""))
