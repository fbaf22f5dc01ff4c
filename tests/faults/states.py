"""All that a store holds, without ids and times, so that two stores can be compared; and what is wrong with one."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.archive.backup import check_backup
from agentformer.archive.reader import read as read_archive
from agentformer.errors import StoreDamaged
from agentformer.factory import AgentFormer
from agentformer.memory.backends.faiss.folder import DATABASE_FILE
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.records import entries as records
from agentformer.records.entries import versions_of
from agentformer.records.entry_json import TIMES, entry_to_json
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.schema import MIGRATIONS
from agentformer.types import UNSEARCHED_KINDS, MemoryEntry, Query, Scope

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[57][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_PLAIN = re.compile(r"[^\w .]")  # what would have to be escaped in JSON
# A process that is killed loses the counts of its last searches, as `memory.usage` says; `read_count` is told here.
_COUNTS = ("access_count", "match_count")
_PAGE = 1000


class Held(NamedTuple):
    """Entries with their former states, and what the embedded backend knows besides."""

    entries: list[tuple[MemoryEntry, list[MemoryEntry]]]
    about: dict[str, Any]


def state(folder: Path, backend: str) -> list[Any]:
    """What the store of this folder holds now; nothing is opened that would change it."""
    held = _of_files(folder / "index") if backend == "local_json" else _of_records(folder / "index")
    names = {e.id: f"<{e.namespace} {e.kind} {_PLAIN.sub('', e.content[:60])}>" for e, _ in held.entries}
    told = [[*map(_shape, (entry, *former)), _original(folder, entry)] for entry, former in held.entries]
    lines = (json.dumps(each).replace(str(folder.resolve()), "<folder>") for each in told)  # of paths of documents
    texts = (_ID.sub(lambda found: names.get(found[0], "<gone>"), line) for line in lines)
    return [*map(json.loads, sorted(texts)), held.about]


def _shape(entry: MemoryEntry) -> dict[str, Any]:
    values = {k: v for k, v in entry_to_json(entry).items() if k not in (*TIMES, *_COUNTS)}
    happened = entry.occurred_at.isoformat() if entry.occurred_at else None
    return {**values, "archived": entry.archived_at is not None, "happened": happened}


def _original(folder: Path, entry: MemoryEntry) -> bool:
    """Is the file of a document there, and whole?"""
    if entry.kind != "document" or entry.metadata["status"] != "ready":
        return True
    digest = entry.metadata["sha256"]
    (path,) = {*(folder / "uploads").glob(f"memory-*/{digest[:2]}/{digest}.bin")} or {folder / "uploads" / digest}
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _of_files(folder: Path) -> Held:
    with closing(LocalJsonMemoryBackend(folder)) as backend:
        entries = [
            entry
            for namespace in backend.namespaces()
            for entry in backend.list(Scope(namespace, include_archived=True), limit=10**6)
        ]
        return Held([(entry, list(backend.history(entry.id))) for entry in entries], {})


def _of_records(folder: Path) -> Held:
    path = folder / DATABASE_FILE
    if not path.exists():
        return Held([], {})
    with closing(sqlite3.connect(path, factory=SqliteConnection)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN")
        if connection.execute("PRAGMA user_version").fetchone()[0] < len(MIGRATIONS):
            return Held([], {"schema": "of a former version"})
        entries = list(_entries(connection))
        if not entries:  # a slow model may store vectors, and with them their space, before the first entry
            return Held([], {})
        spec = connection.execute("SELECT description FROM spaces WHERE active = 1").fetchall()
        about = {
            "space": json.loads(spec[0][0])["dimension"] if spec else 0,
            "spaces": connection.execute("SELECT count(*), sum(building) FROM spaces").fetchone()[:],
            "pending": connection.execute("SELECT count(*) FROM pending").fetchone()[0],
        }
        return Held([(entry, versions_of(connection, entry.id)) for entry in entries], about)


def _entries(connection: SqliteConnection) -> Iterator[MemoryEntry]:
    for namespace in records.namespaces(connection):
        after = ""
        while page := records.page(connection, Scope(namespace, include_archived=True), after, _PAGE):
            yield from page
            after = page[-1].id


def faults(af: AgentFormer, folder: Path) -> list[str]:
    """What is wrong with an opened store, whatever it holds."""
    found = [f"superfluous file {path}" for path in _superfluous(af, folder / "uploads")]
    found += [
        f"{check.name}: {finding}"
        for check in af.verify()
        if check.found and check.name != "waiting"  # which is part of the state, and compared
        for finding in (*check.findings, check.asked)
    ]
    for path in folder.glob("backup-*"):
        found += check_backup(path)
    for path in folder.glob("export-*"):
        read_archive(path)
    for namespace in af.backend.namespaces():
        for archived in (False, True):
            try:
                found += _unfound(af, Scope(namespace, include_archived=archived))
            except StoreDamaged as error:
                found.append(f"search: {error}")
    return found


def _superfluous(af: AgentFormer, uploads: Path) -> set[str]:
    """The files that no document names, without the files of jobs, which the next server needs or deletes."""
    own = uploads / af.originals.folder.name
    files = {path.relative_to(own).as_posix() for path in own.rglob("*") if path.is_file()}
    scopes = [Scope(name, kinds=("document",), include_archived=True) for name in af.backend.namespaces()]
    digests = {entry.metadata["sha256"] for scope in scopes for entry in af.backend.list(scope, limit=10**6)}
    needed = {".lock", *(f"{digest[:2]}/{digest}.bin" for digest in digests)}
    return {file for file in files - needed if not file.startswith(".jobs/")}


def _unfound(af: AgentFormer, scope: Scope) -> list[str]:
    """Entries of the scope that a search does not find though it should, or finds though it should not."""
    entries = [
        e for e in af.backend.list(scope, limit=10**6) if e.kind not in UNSEARCHED_KINDS and "umbat" in e.content
    ]
    waiting = {each.entry_id for each in af.backend.waiting(scope, limit=10**6)}
    found = []
    vectors = bool(af.backend.spaces())
    for mode in ("lexical", "dense") if vectors else ("lexical",):
        expected = {entry.id: entry.content for entry in entries if mode == "lexical" or entry.id not in waiting}
        hits = {
            hit.entry.id: hit.entry.content
            for hit in af.backend.search(Query("numbat", scope, limit=10_000, mode=mode))  # type: ignore[arg-type]
            if "umbat" in hit.entry.content
        }
        if hits != expected:
            wrong = sorted({*hits.items()} ^ {*expected.items()})[:3]
            found.append(f"{mode} search of {scope.namespace}: {len(hits)} for {len(expected)}, such as {wrong}")
    return found
