"""Works that carry a store or mend it: backup, export, import, and `doctor --repair`."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator

from writers import Desk, Step, Work

from agentformer.memory.backends.faiss.folder import DATABASE_FILE
from agentformer.types import MemoryEntry, Query


def _something(desk: Desk) -> None:
    """Of every kind: facts in two namespaces, a changed one, a session with a summary, a document, a core block."""
    memory = desk.af.memory
    facts = memory.store_many([f"numbat number {n} is carried" for n in range(12)])
    memory.update(facts[0].id, content="numbat number 0 was changed")
    memory.store("numbat elsewhere", namespace="other")
    memory.core.append("plan", "numbat first line")
    for n in range(10):
        memory.add_message("walk", "user", f"numbat {n}: tree {n}", occurred_at=f"2024-05-01T12:{n:02}:00Z")
    assert memory.clean(session_id="walk").summaries
    desk.af.rag.upload(b"The numbat of the document sleeps.\n\n" * 40, name="a.txt")


def _backup(name: str) -> Step:
    def step(desk: Desk) -> None:
        if not (desk.folder / name).exists():  # one whose process was killed after it was there
            desk.af.backup(desk.folder / name)

    return step


def _export(name: str) -> Step:
    def step(desk: Desk) -> None:
        if not (desk.folder / name).exists():
            desk.af.export_to(desk.folder / name, vectors=True)

    return step


def _remember(text: str) -> Step:
    def step(desk: Desk) -> MemoryEntry:
        return desk.af.memory.store(text)

    return step


def _carried_out(desk: Desk) -> None:
    """An export, and nothing else."""
    _something(desk)
    _export("export-1")(desk)
    desk.close()
    for folder in ("index", "uploads"):
        shutil.rmtree(desk.folder / folder)


def _import(desk: Desk) -> None:
    desk.af.import_from(desk.folder / "export-1")


def _damaged(desk: Desk) -> None:
    """What follows from the records does not, any more."""
    _something(desk)
    _search(desk)
    connection = sqlite3.connect(desk.folder / "index" / DATABASE_FILE)
    connection.execute("DELETE FROM windows WHERE entry IN (SELECT entry FROM windows ORDER BY entry LIMIT 5)")
    connection.execute("UPDATE vectors SET data = zeroblob(length(data)) WHERE id IN (SELECT max(vector) FROM windows)")
    connection.commit()
    connection.close()
    (desk.folder / "index" / "rag_faiss_index.bin").write_bytes(b"nothing of an index")


def _search(desk: Desk) -> None:
    desk.af.backend.search(Query("numbat"))
    desk.close()


def _repair(desk: Desk) -> None:
    desk.af.verify(repair=True)


def works() -> Iterator[Work]:
    carrying = (_backup("backup-1"), _export("export-2"), _remember("numbat in between"), _backup("backup-2"))
    yield Work("archives", carrying, _something)
    yield Work("archives local_json", carrying, _something, backend="local_json", kills=0)
    yield Work("import", (_import, _remember("numbat after it"), _import), _carried_out, kills=0)
    yield Work("import local_json", (_import, _import), _carried_out, backend="local_json", kills=0)
    yield Work("repair", (_repair, _remember("numbat after it"), _repair), _damaged, damaged=True)
