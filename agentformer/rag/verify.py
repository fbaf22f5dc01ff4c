"""Verification of documents (their pages, chunks, originals, uploads and embeddings), and of the files beside the
store: upload jobs, API keys, and the permissions of all files.

All entries are read from one snapshot of the backend, so that concurrent writes do not look like damage. If there are
several backends, their snapshots are from different moments. Each problem is therefore checked again before it is
reported. A repair deletes only the original files that `Originals.sweep` deletes. Other files are never deleted,
because a file may be the only copy of a document.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from agentformer.access.key_storage import FILE as KEYS_FILE
from agentformer.access.keys import KeyStore
from agentformer.errors import AgentFormerError, NotFound, StoreDamaged, StoreError
from agentformer.jobs.queue import FILE as JOBS_FILE
from agentformer.jobs.queue import FOLDER as JOBS_FOLDER
from agentformer.jobs.queue import files_elsewhere
from agentformer.jobs.store import JobStore, check_log, damaged_rows
from agentformer.rag.documents import Document
from agentformer.rag.originals import Originals
from agentformer.records.entry_json import entry_to_json
from agentformer.records.integrity.file_guard import is_passing_failure
from agentformer.records.integrity.findings import MAX_REPORTED, Findings
from agentformer.records.integrity.repair import Quarantine
from agentformer.records.offers import checks_of, offered, required, vectors_of
from agentformer.search.reading import all_entries
from agentformer.settings.access import readable_by_others
from agentformer.types import Check, MemoryBackend, MemoryEntry, MemorySnapshot, OriginalsStore, Scope, SnapshotStore

_PAGE = 500  # entries listed at a time
_PARTS = {"page": "pages", "chunk": "chunks"}  # kind of a part -> metadata key of the document with their number
_INGEST_AGAIN = (
    "`agentformer doctor --repair` ingests the document again from its original file; if the original file is "
    "missing, ingest the document yourself"
)


class StoreParts(NamedTuple):
    """The parts of a memory that `verify` checks: the backend, the original files, the index folder, and the folders
    whose permissions are checked."""

    backend: MemoryBackend
    originals: Originals
    index_dir: Path
    private: tuple[Path, ...] = ()


class _Survey:
    def __init__(self, backend: MemoryBackend, *, sound: bool) -> None:
        """Read and check all documents of the backend. `sound` is True if the other checks of the backend found no
        damage. If `sound` is False, documents that cannot be read are not reported as damage, because the other checks
        have already reported this damage."""
        what = "each document has all its pages and chunks, with their text unchanged"
        self.documents = Findings("documents", what, _INGEST_AGAIN)
        advice = (
            "move these pages and chunks into a file with `agentformer doctor --repair`, then ingest the document again"
        )
        self.parts = Findings("parts", "each page and chunk belongs to a document", advice)
        self.ready: list[MemoryEntry] = []
        self.with_files: list[MemoryEntry] = []  # documents that must have their original file
        self.digests: set[str] = set()  # SHA-256 of all documents
        self._suspects: list[MemoryEntry] = []  # documents that seem to lack parts
        self._orphans: list[MemoryEntry] = []  # parts that seem to lack their document
        try:
            store = offered(backend, SnapshotStore)  # without a snapshot, `_confirm` drops what only seems wrong
            with store.snapshot() if store else nullcontext(backend) as listing:
                for namespace in listing.namespaces():
                    self._read_namespace(listing, namespace)
            self._confirm(backend)
        except StoreDamaged as error:
            self.documents.incomplete = True
            if sound:
                self.documents.add(f"documents cannot be read: {error}")
            else:
                self.documents.note("some documents were not checked, because their entries are damaged")

    def _read_namespace(self, snapshot: MemoryBackend | MemorySnapshot, namespace: str) -> None:
        ids = set()
        for document in _all(snapshot, Scope(namespace, kinds=("document",))):
            ids.add(document.id)
            self.digests.add(_digest(document))
            self.documents.looked_at += 1
            if document.metadata.get("status") in ("ready", "stored"):
                self.with_files.append(document)
            if document.metadata.get("status") == "ready":
                self.ready.append(document)
                if any(_problems(snapshot, document)):
                    self._suspects.append(document)
        for part in _all(snapshot, Scope(namespace, kinds=tuple(_PARTS))):
            self.parts.looked_at += 1
            if part.parent_id not in ids and part.source is not None:
                self._orphans.append(part)

    def _confirm(self, backend: MemoryBackend) -> None:
        """Check each suspected problem again in the current state of the backend, and report those that still exist."""
        for document in self._suspects:
            if backend.get([document.id]):  # it may have been removed since it was listed
                for problem in _problems(backend, document):
                    self.documents.add(problem, document)
        for part in _orphans(backend, self._orphans):
            name = part.source.name if part.source else "a document"
            self.parts.add(f"{part.kind} {part.id} belongs to {name}, which does not exist", part)


def verify(store: StoreParts, reread: Callable[[MemoryEntry], Document], *, repair: bool) -> list[Check]:
    """Return the results of all checks: first those of the backend, then those of documents, originals, uploads,
    embeddings, jobs, keys and permissions. If `repair` is true, damage is repaired if possible. `reread` ingests a
    document again from its original file."""
    checks = checks_of(store.backend, repair=repair)
    sound = all(check.mended >= check.found for check in checks)
    if repair:
        store.originals.sweep()
    files = store.originals.files.names()  # listed before the documents: a file is stored first
    absent = _absent_digests(store.backend)
    survey = _Survey(store.backend, sound=sound)
    originals = _verify_originals(store, survey.with_files)
    if repair:
        _ingest_again(survey.documents, originals, reread)
        _set_orphans_aside(survey.parts, store)
    findings = [survey.documents, survey.parts, originals, _verify_uploads(store, files, absent, survey)]
    folder = store.originals.folder
    jobs = verify_jobs(store.index_dir, folder, folder.parent if store.originals.owner else None)
    findings += [_verify_embedded(store.backend, repair=repair), jobs]
    findings += verify_keys(store.index_dir) + verify_access(*store.private)
    return [*checks, *(each.to_check() for each in findings)]


def _problems(listing: MemoryBackend | MemorySnapshot, document: MemoryEntry) -> Iterator[str]:
    """Yield a message for each problem of a document: a wrong number of pages or chunks, or a chunk whose text differs
    from the text at the position of the chunk in its page."""
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
    """Yield the pages and chunks of `parts` that are stored although their document is not stored. The documents are
    read after their pages and chunks, so that a document that was just uploaded is found."""
    for start in range(0, len(parts), _PAGE):
        stored = backend.get([part.id for part in parts[start : start + _PAGE]])
        parents = backend.get([*{part.parent_id for part in stored if part.parent_id}])
        documents = {(parent.id, parent.namespace) for parent in parents if parent.kind == "document"}
        yield from (part for part in stored if (part.parent_id, part.namespace) not in documents)


def _ingest_again(documents: Findings, originals: Findings, reread: Callable[[MemoryEntry], Document]) -> None:
    """Repair damaged documents: ingest each document again if its original file is intact."""
    lost = {document.id for document in originals.keys}
    errors: dict[str, str] = {}  # "" for a document that was repaired
    for document in documents.keys:
        if document.id in errors or document.id in lost:
            continue
        try:
            result = reread(document)
        except AgentFormerError as error:
            errors[document.id] = f"the document could not be ingested again: {error}"
        else:
            errors[document.id] = (
                "" if result.status == "ready" else f"the original file could not be read again: {result.reason}"
            )
            if not errors[document.id]:
                documents.replaced[document.id] = result.id
    repaired = sum(errors.get(document.id) == "" for document in documents.keys)
    documents.mark_repaired(repaired, "ingested again from the original file")
    if error_text := next(filter(None, errors.values()), ""):
        documents.advice = error_text


def _set_orphans_aside(parts: Findings, store: StoreParts) -> None:
    quarantine = Quarantine(store.index_dir)
    ids = []
    with parts.repairing():
        for part in _orphans(store.backend, parts.keys):
            quarantine.add("entries", entry_to_json(part), "the document of this page or chunk does not exist")
            ids.append(part.id)
        store.backend.remove(ids)
        parts.mark_repaired(parts.found, f"{len(ids)} set aside in {quarantine.path.name}; ingest the file again")
        parts.lost += len(ids)


def _verify_originals(store: StoreParts, ready: Sequence[MemoryEntry]) -> Findings:
    advice = "ingest the same file again with `agentformer ingest`, or restore the original file from a backup"
    findings = Findings("originals", "each document has its unchanged original file", advice, len(ready))
    for document in ready:
        problem = _original_problem(store.originals, _digest(document))
        if problem and store.backend.get([document.id]):  # it may have been removed since it was listed
            findings.add(f"{_name(document)}: {problem}", document)
    return findings


def _original_problem(originals: Originals, digest: str) -> str:
    try:
        with originals.files.open(digest) as file:
            actual = hashlib.sha256(file.read()).hexdigest()
    except NotFound:
        return f"its original file is not in {originals.files.place}"
    except StoreError as error:
        return str(error)
    return "" if actual == digest else "its original file was changed after the upload (its checksum differs)"


def _absent_digests(backend: MemoryBackend) -> set[str]:
    """Return the SHA-256 of the files of running or interrupted uploads, and of documents that were just removed."""
    with suppress(StoreDamaged):  # the survey of the documents reports the damage
        return {document.sha256 for document in required(backend, OriginalsStore).absent_documents()}
    return set()


def _verify_uploads(store: StoreParts, files: Mapping[str, str], absent: set[str], survey: _Survey) -> Findings:
    """Report the files that belong to no document and to no upload. `files` is a dictionary: name -> SHA-256. No file
    is deleted, because a file may be the only copy of a lost document, and because another memory may use the same
    folder. `absent` are the SHA-256 of running uploads and removed documents."""
    findings = Findings("uploads", "each file in the upload folder belongs to a document", "", len(files))
    if survey.documents.incomplete:
        findings.note("uploaded files were not checked, because some documents cannot be read")
        return findings
    absent |= _absent_digests(store.backend)  # a document may have been removed since the survey
    known = survey.digests | absent
    where = store.originals.files
    unknown = [name for name, digest in files.items() if digest not in known]
    sizes = {name: size for name in unknown if (size := where.size(name)) is not None}  # None: deleted in the meantime
    if sizes:
        names = ", ".join([*sizes][:MAX_REPORTED])
        more = f", and {len(sizes) - MAX_REPORTED} more" if len(sizes) > MAX_REPORTED else ""
        findings.note(
            f"{_count(sizes)} ({sum(sizes.values())} bytes) in {where.place} without a document: {names}{more}; "
            "ingest a file again to restore a lost document; AgentFormer never deletes these files"
        )
    return findings


def _count(files: Collection[object]) -> str:
    return f"{len(files)} {'file' if len(files) == 1 else 'files'}"


def _verify_embedded(backend: MemoryBackend, *, repair: bool) -> Findings:
    findings = Findings("waiting", "each entry is embedded", "embed the waiting entries with `agentformer reindex`")
    with findings.reading():
        names, vectors = backend.namespaces(), vectors_of(backend)
        findings.looked_at = sum(backend.count(Scope(name, include_archived=True)) for name in names)
        for name in names:
            if pending := vectors.pending(Scope(name, include_archived=True)):
                findings.add(f"{pending} entries of namespace {name} have no vectors yet")
        if repair and findings.found and not vectors.embed_pending():  # none is left
            findings.mark_repaired(findings.found, "embedded")
    return findings


def _all(listing: MemoryBackend | MemorySnapshot, scope: Scope, *kinds: str) -> Iterator[MemoryEntry]:
    """Return the entries of a scope, including archived entries. If `kinds` are given, return only entries of these
    kinds."""
    scope = dataclasses.replace(scope, include_archived=True, kinds=kinds or scope.kinds)
    return all_entries(listing, scope, _PAGE)


def _name(document: MemoryEntry) -> str:
    return f"document {document.id} ({document.content})"


def _digest(document: MemoryEntry) -> str:
    return str(document.metadata.get("sha256", ""))


_BUSY_SECONDS = 60


def verify_jobs(index_dir: Path, upload_dir: Path, root: Path | None = None) -> Findings:
    """Check that the database of background uploads, if it exists, and each job in it can be read. Report files of
    uploads that have no job, and files of this memory's uploads in a folder of another memory. `root` contains the
    upload folders of all memories, and `upload_dir` is that of this memory; without `root`, it is the only one."""
    advice = "stop the servers, move this database to another folder, and send the waiting uploads again"
    findings = Findings("jobs", "each background upload can be read", advice)
    path = index_dir / JOBS_FILE
    if path.exists():
        _verify_jobs(path, findings)
    if not findings.found:
        _note_files(JobStore(path), upload_dir / JOBS_FOLDER, root or upload_dir, findings)
    return findings


def _verify_jobs(path: Path, findings: Findings) -> None:
    try:
        check_log(path)
    except StoreError as error:
        findings.add(str(error))
        return
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as connection:
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                return  # its process was killed before it made the table; the next upload makes it
            findings.looked_at = int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])
            messages = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
            findings.add_all((f"{path.name}: {message}", message) for message in messages if message != "ok")
            findings.add_all((f"{path.name}: the job {name} is damaged", name) for name in damaged_rows(connection))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if is_passing_failure(error):  # it says nothing about the database
            findings.advice = "try again"
        findings.add(f"{path.name}: {error}")


def _note_files(jobs: JobStore, folder: Path, root: Path, findings: Findings) -> None:
    """Note the folders of uploaded files that no job names: a process was killed before it had added the job, or the
    database of the jobs was lost. Also note the files that another memory has, of which this memory is a copy."""
    try:
        folders = [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []
        elsewhere = files_elsewhere(root, folder)
        known = jobs.ids() if folders or elsewhere else set[str]()
        elsewhere = {job_id: path for job_id, path in elsewhere.items() if job_id in known}
        waiting = elsewhere.keys() & set(jobs.active()) - {each.name for each in folders} if elsewhere else set[str]()
    except (OSError, StoreError) as error:
        findings.note(f"the files of waiting uploads were not checked: {error}")
        return
    finally:
        jobs.close()
    if unknown := sorted(str(each) for each in folders if each.name not in known):
        findings.note(
            f"the files of {len(unknown)} background uploads have no job: {', '.join(unknown[:MAX_REPORTED])}; if they "
            "were not stored, send them again; a server deletes them after the days for which jobs are kept"
        )
    if elsewhere:
        findings.note(
            f"the files of {len(elsewhere)} background uploads are in folders of another memory, of which this one is "
            f"a copy: {', '.join(map(str, [*elsewhere.values()][:MAX_REPORTED]))}; `agentformer serve` takes copies of "
            f"the {len(waiting)} that wait for them; delete these folders if the other memory does not use them"
        )


def verify_keys(index_dir: Path) -> list[Findings]:
    """Check that the file of the API keys, if it exists, can be read. Without a file, return no result."""
    if not (index_dir / KEYS_FILE).exists():
        return []
    findings = Findings("keys", "each API key can be read", "")
    try:
        findings.looked_at = len(KeyStore(index_dir).all())
    except StoreError as error:
        findings.add(str(error))
    return [findings]


def verify_access(*folders: Path) -> list[Findings]:
    """Return a note for each folder that other users of this machine can read. An existing folder keeps its
    permissions, so this is no damage. Return no result if there is no such folder."""
    findings = Findings("access", "each folder can be read by its owner alone", "", len(folders))
    notes = [
        f"other users of this machine can list {folder} and read {len(found) - 1} files in it; run "
        f"`chmod -R go-rwx {folder}`, or set AGENTFORMER_FILE_ACCESS=group if the group may read them"
        for folder in dict.fromkeys(folders)
        if (found := readable_by_others(folder))
    ]
    for note in notes:
        findings.note(note)
    return [findings] if notes else []
