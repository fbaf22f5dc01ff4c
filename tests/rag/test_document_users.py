"""A document may belong to a user. The user is a part of its identity, and stays over each way to change it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.access.permissions import EVERYTHING
from agentformer.archive.reader import read
from agentformer.errors import InvalidInput, NotFound
from agentformer.rag.documents import document_of
from agentformer.rag.removals import Removals
from agentformer.tools.caller import Caller
from agentformer.types import MemoryEntry, Scope

AINO = Caller(EVERYTHING, user_id="aino")
VAINO = Caller(EVERYTHING, user_id="väinö")


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    places = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    with agentformer.connect(**places, embedder="hashing", clean_every=0) as opened:  # type: ignore[arg-type]
        yield opened


def entries_of(af: agentformer.AgentFormer, user: str) -> list[MemoryEntry]:
    return list(af.backend.list(Scope(user_id=user, include_archived=True), limit=1_000))


def whole(af: agentformer.AgentFormer, user: str) -> tuple[int, set[str | None]]:
    """Return the number of documents of a user, and the users of their parts."""
    ids = {entry.id for entry in entries_of(af, user) if entry.kind == "document"}
    parts = [part for each in ids for part in af.backend.list(Scope(document_id=each, include_archived=True))]
    assert parts
    return len(ids), {part.user_id for part in parts}


def test_uploads_of_the_same_name_by_two_users_are_two_documents(af: agentformer.AgentFormer) -> None:
    users = ("aino", "väinö", None)
    made = [af.rag.upload(b"The heron sleeps.", name="a.txt", user_id=user) for user in users]
    assert [document.user_id for document in made] == [*users]
    assert [(document.name, document.unchanged, document.replaced) for document in made] == [("a.txt", False, "")] * 3
    again = af.rag.upload(b"The heron sleeps.", name="a.txt", user_id="aino")
    assert again.unchanged and again.id == made[0].id
    changed = af.rag.upload(b"The heron wakes.", name="a.txt", user_id="aino")
    assert (changed.replaced, changed.user_id) == (made[0].id, "aino")
    assert af.rag.upload(b"The stork wakes.", name="a.txt", on_conflict="keep-both").name == "a (2).txt"
    assert (whole(af, "aino"), whole(af, "väinö")) == ((1, {"aino"}), (1, {"väinö"}))


@pytest.mark.process
def test_the_user_stays_over_each_change(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("The heron sleeps by the weir.")
    assert af.rag.sync(folder, user_id="aino").added == ("a.md",)
    assert af.rag.sync(folder, user_id="aino").unchanged == 1
    assert af.rag.sync(folder, user_id="väinö").added == ("a.md",) and af.rag.sync(folder).added == ("a.md",)
    (folder / "a.md").rename(folder / "b.md")
    assert af.rag.sync(folder, user_id="aino").renamed == (("a.md", "b.md"),)
    assert whole(af, "aino") == (1, {"aino"})
    path = folder / "b.md"
    changed = af.rag.upload(path, metadata={"year": 2026}, user_id="aino")
    assert changed.reason_code == "metadata_replaced" and whole(af, "aino") == (1, {"aino"})
    entry = af.backend.get([changed.id])[0]
    again = af.rag.reingest(entry)
    assert again.user_id == "aino" and whole(af, "aino") == (1, {"aino"})
    entry = af.backend.get([again.id])[0]
    assert document_of(entry).user_id == af.rag.document(again.id).user_id == "aino"
    stored = af.rag.forget_text(entry)
    assert (stored.status, stored.user_id) == ("stored", "aino")
    assert [each.user_id for each in af.rag.documents()] == ["väinö", None, "aino"]
    assert len(af.rag.sync(folder).renamed) == 1, "each user has a sync of the folder"
    kept = af.rag.keep(b"stored", dataclasses.replace(document_of(entry), name="c.bin", origin="", sha256="0" * 64))
    assert kept.user_id == "aino"


def test_a_removal_is_undone_beside_the_document_of_another_user(af: agentformer.AgentFormer) -> None:
    removals = Removals(af.backend, lambda *_: None)
    mine = af.rag.upload(b"The heron sleeps.", name="a.txt", user_id="aino")
    removals.add(mine.id, 60)
    af.rag.upload(b"The stork sleeps.", name="a.txt", user_id="väinö")
    removals.undo(mine.id)
    assert [document.id for document in af.rag.documents(user_id="aino")] == [mine.id]


def test_a_user_is_a_name(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    for wrong in ("", " ", "x" * 300, 7):
        for call in (
            lambda wrong=wrong: af.rag.upload(b"x", name="a.txt", user_id=wrong),
            lambda wrong=wrong: af.rag.documents(user_id=wrong),
            lambda wrong=wrong: af.rag.sync(tmp_path, user_id=wrong),
            lambda wrong=wrong: af.forget_user(wrong),
            lambda wrong=wrong: af.export_to(tmp_path / "export", user_id=wrong),
        ):
            with pytest.raises(InvalidInput, match="user_id"):
                call()
    with pytest.raises(InvalidInput, match="user_id"):
        af.forget_user(None)  # type: ignore[arg-type]


def test_an_export_of_a_user_beside_writers_is_whole_and_has_nothing_of_others(
    af: agentformer.AgentFormer, tmp_path: Path
) -> None:
    stop, written = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for user in ("aino", "väinö"):
                document = af.rag.upload(f"The heron of {user}, {number}.".encode(), name="a.txt", user_id=user)
                af.memory.store(f"{user} saw heron {number}.", user_id=user)
                if number % 3 == 0:
                    af.rag.remove(document.id)
            written.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert written.wait(60)
        for number in range(4):
            folder = tmp_path / f"export{number}"
            af.export_to(folder, user_id="aino")
            archive = read(folder)  # compares each file with its checksum, and each part with its document
            assert {entry.user_id for entry, _ in archive.read(range(len(archive)))} == {"aino"}
            texts = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
            assert "väinö".encode() not in texts
    finally:
        stop.set()
        thread.join(60)


def test_a_part_of_another_user_than_its_document_is_a_damaged_export(
    af: agentformer.AgentFormer, tmp_path: Path
) -> None:
    document = af.rag.upload(b"The heron sleeps.", name="a.txt", user_id="aino")
    part = af.rag.chunks(document.id)[0]
    af.backend.update(part.id, {"user_id": "väinö"})
    af.export_to(tmp_path / "export")
    with pytest.raises(InvalidInput, match="belong to different users or projects"):
        read(tmp_path / "export")


def test_the_tools_of_a_user_store_and_show_documents_of_the_user(af: agentformer.AgentFormer, tmp_path: Path) -> None:
    def call(caller: Caller, tool: str, /, **arguments: object) -> Any:
        return af.toolbox.call(tool, arguments, caller)

    uploaded = call(AINO, "rag_upload", name="a.txt", text="The heron sleeps by the weir.")["document"]
    assert uploaded["user_id"] == "aino"
    af.rag.upload(b"The stork sleeps by the mill.", name="b.txt")
    listed = [[each["name"] for each in call(caller, "rag_list")["documents"]] for caller in (AINO, VAINO)]
    assert listed == [["a.txt", "b.txt"], ["b.txt"]]
    assert [call(caller, "memory_status")["documents"] for caller in (AINO, VAINO, Caller())] == [2, 1, 2]
    asked = "Where does the heron sleep?"
    assert "weir" in str(call(AINO, "rag_query", question=asked)["passages"])
    assert "weir" not in str(call(VAINO, "rag_query", question=asked))
    chunk = af.rag.chunks(str(uploaded["id"]))[0]
    assert "weir" in str(call(AINO, "memory_get", id=chunk.id))
    with pytest.raises(NotFound):
        call(VAINO, "memory_get", id=chunk.id)
