"""A store that an older version left with entries that nothing leads to: they are found again after a repair."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import DATABASE_FILE, FaissMemoryBackend
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.records import entries as records
from agentformer.records.sqlite.database import Database
from agentformer.testing import by_words, make_entry
from agentformer.types import MemoryBackend, MemoryEntry


def opened(kind: str, folder: Path) -> MemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder()) if kind == "faiss" else LocalJsonMemoryBackend(folder)


def link(kind: str, folder: Path, entry: MemoryEntry, successor: str) -> None:
    """Write the link past the backend, which would refuse it."""
    if kind == "faiss":
        with closing(Database(folder / DATABASE_FILE)) as database, database.writing() as connection:
            records.overwrite(connection, dataclasses.replace(entry, superseded_by=successor))
        return
    (path,) = folder.glob("memory-*.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    for values in data["entries"]:
        if values["id"] == entry.id:
            values["superseded_by"] = successor
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize("kind", ["faiss", "local_json"])
def test_superseded_entries_that_nothing_leads_to_are_reported_and_repaired(kind: str, tmp_path: Path) -> None:
    with closing(opened(kind, tmp_path)) as backend:
        drafts = [make_entry(f"ibex number{n}") for n in range(8)]
        drafts[7] = dataclasses.replace(drafts[7], archived_at=datetime(2026, 11, 23, tzinfo=UTC))
        one, two, three, lost, kept, new, hidden, gone = backend.store(drafts)
        backend.update(kept.id, {"superseded_by": new.id})
        backend.update(new.id, {"title": "changed"})
    for entry, successor in ((one, two.id), (two, three.id), (three, one.id), (lost, "gone"), (hidden, gone.id)):
        link(kind, tmp_path, entry, successor)
    with closing(opened(kind, tmp_path)) as backend:
        check = next(check for check in backend.verify() if check.name == "superseded")
        assert (check.looked_at, check.found, check.mended) == (6, 5, 0)
        assert all("missing or archived, or leads back" in finding for finding in check.findings)
        check = next(check for check in backend.verify(repair=True) if check.name == "superseded")
        assert (check.found, check.mended) == (5, 5)
        assert not any(check.found for check in backend.verify())
        assert by_words(backend, "ibex") == sorted([three.id, lost.id, new.id, hidden.id])
        assert [version.superseded_by for version in backend.history(lost.id)] == ["gone"]
