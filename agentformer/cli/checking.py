"""What `doctor` looks at: each check reads, changes nothing, and tells in words what it found."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from agentformer.errors import NotFound
from agentformer.factory import AgentFormer
from agentformer.rag.originals import Originals
from agentformer.types import MemoryEntry, Scope

_PAGE = 500  # entries listed at a time
_TOLD = 20  # findings of one check
_BUSY_SECONDS = 60
_PARTS = {"page": "pages", "chunk": "chunks"}  # kinds, and what a document calls their number


@dataclass(frozen=True, slots=True)
class Check:
    """One check: how many things it looked at, and what is wrong with some of them."""

    name: str
    looked_at: int
    found: int
    findings: tuple[str, ...]  # the first ones


def check_records(folder: Path) -> Check:
    """Are the databases sound, by SQLite's own check?"""
    files = sorted(folder.glob("*.sqlite3"))
    return _check("records", len(files), (problem for file in files for problem in _unsound(file)))


def check_memory(af: AgentFormer) -> Iterator[Check]:
    """What an opened memory can tell about itself."""
    state = af.status()
    backends = {**state.get("backends", {}), "": state}
    damaged = {text for each in backends.values() for text in each.get("damaged", ())}
    yield _check("files", len(damaged), sorted(damaged))
    spaces = list(af.backend.namespaces())
    waiting = [(name, af.backend.pending(Scope(name))) for name in spaces]
    yield _check("vectors", _count(af, spaces), (_waiting(name, count) for name, count in waiting if count))
    documents = [entry for name in spaces for entry in _all(af, Scope(name, kinds=("document",)))]
    ready = [entry for entry in documents if entry.metadata["status"] == "ready"]
    yield _check("documents", len(documents), (problem for entry in ready for problem in _document(af, entry)))
    originals = Originals(af.settings.upload_dir)
    yield _check("originals", len(ready), (problem for entry in ready for problem in _original(originals, entry)))
    yield _left_over(af.settings.upload_dir, {entry.metadata["sha256"] for entry in documents})


def _check(name: str, looked_at: int, problems: Iterable[str]) -> Check:
    found = list(problems)
    return Check(name, looked_at, len(found), tuple(found[:_TOLD]))


def _unsound(file: Path) -> Iterator[str]:
    try:
        connection = sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
        try:
            for row in connection.execute("PRAGMA integrity_check(20)"):
                if row[0] != "ok":
                    yield f"{file.name}: {row[0]}"
            for row in connection.execute("PRAGMA foreign_key_check"):
                yield f"{file.name}: row {row[1]} of {row[0]} refers to a row of {row[2]} that is not there"
        finally:
            connection.close()
    except sqlite3.Error as error:
        yield f"{file.name}: {error}"


def _count(af: AgentFormer, spaces: Iterable[str]) -> int:
    return sum(af.backend.count(Scope(name, include_archived=True)) for name in spaces)


def _waiting(namespace: str, count: int) -> str:
    return f"{count} entries of namespace {namespace} have no vectors yet; agentformer reindex embeds them"


def _document(af: AgentFormer, document: MemoryEntry) -> Iterator[str]:
    """Has a document the pages and chunks that it says, and does each chunk stand in its page's text as it is?"""
    name = f"document {document.id} ({document.content})"
    parts = {kind: list(_all(af, Scope(document.namespace, kinds=(kind,), parent_id=document.id))) for kind in _PARTS}
    for kind, there in parts.items():
        if len(there) != document.metadata[_PARTS[kind]]:
            yield f"{name} has {len(there)} {_PARTS[kind]} instead of {document.metadata[_PARTS[kind]]}"
    pages = {page.source.page: page.content for page in parts["page"] if page.source}
    for chunk in parts["chunk"]:
        source = chunk.source
        if source is None or pages.get(source.page, "")[source.start : source.end] != chunk.content:
            yield f"{name}: chunk {chunk.id} is not what stands in its page; ingest the document again"


def _original(originals: Originals, document: MemoryEntry) -> Iterator[str]:
    name, digest = f"document {document.id} ({document.content})", document.metadata["sha256"]
    try:
        data = originals.get(digest)
    except NotFound:
        yield f"{name}: its original is not in the upload folder"
    except OSError as error:
        yield f"{name}: its original cannot be read ({error.strerror or error})"
    else:
        if hashlib.sha256(data).hexdigest() != digest:
            yield f"{name}: its original is not what was uploaded (its checksum differs)"


def _left_over(folder: Path, known: set[str]) -> Check:
    files = sorted(folder.glob("??/*.bin"))
    strange = (f"{file.relative_to(folder)} belongs to no document" for file in files if file.stem not in known)
    return _check("uploads", len(files), strange)


def _all(af: AgentFormer, scope: Scope) -> Iterator[MemoryEntry]:
    after = ""
    while found := af.backend.list(scope, after=after, limit=_PAGE):
        yield from found
        after = found[-1].id
