"""Files that are stored and not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentformer import AgentFormer, Settings
from agentformer.errors import Conflict
from agentformer.rag.documents import Document
from agentformer.rag.uploads import Origin, read_upload

KEYS = b"The caretaker keeps the keys."


def opened(folder: Path) -> AgentFormer:
    return AgentFormer(Settings(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing"))


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with opened(tmp_path) as af:
        yield af


def keep(af: AgentFormer, data: bytes, name: str = "keys.txt") -> Document:
    data, document = read_upload(data, name, Origin(), 1_000)
    return af.rag.keep(data, document)


def test_a_kept_file_is_listed_and_found_only_after_it_was_uploaded(af: AgentFormer) -> None:
    kept = keep(af, KEYS)
    assert (kept.status, kept.chunks, kept.name) == ("stored", 0, "keys.txt")
    assert af.rag.original(kept.id) == KEYS
    assert af.memory.search("keys") == []
    again = keep(af, KEYS)
    assert (again.id, again.unchanged) == (kept.id, True)
    assert keep(af, b"Other keys.").name == "keys (2).txt"
    read = af.rag.upload(KEYS, name="keys.txt", metadata={"site": "north"})
    assert (read.status, read.replaced) == ("ready", kept.id)
    assert [hit.entry.metadata["site"] for hit in af.memory.search("caretaker")] == ["north"]
    assert keep(af, KEYS).id == read.id
    assert len(af.rag.documents()) == 2


def test_the_text_of_a_document_is_forgotten_and_its_file_stays(af: AgentFormer) -> None:
    read = af.rag.upload(KEYS, name="keys.txt", metadata={"site": "north"})
    (entry,) = af.backend.get([read.id])
    kept = af.rag.forget_text(entry)
    assert (kept.status, kept.metadata, af.rag.original(kept.id)) == ("stored", {"site": "north"}, KEYS)
    assert af.memory.search("caretaker") == []
    assert [document.id for document in af.rag.documents()] == [kept.id]
    with pytest.raises(Conflict):
        af.rag.forget_text(entry)


@pytest.mark.process
def test_a_kept_file_that_cannot_be_read_stays(af: AgentFormer) -> None:
    broken = b"%PDF-1.4 broken"
    keep(af, broken, "broken.pdf")
    failed = af.rag.upload(broken, name="broken.pdf")
    assert failed.status == "failed"
    assert af.rag.original(failed.id) == broken
    af.originals.sweep()
    assert af.rag.original(failed.id) == broken


def test_kept_files_are_exported_and_checked(af: AgentFormer, tmp_path: Path) -> None:
    kept = keep(af, KEYS)
    assert all(check.found == 0 for check in af.verify())
    af.export_to(tmp_path / "export")
    with opened(tmp_path / "other") as other:
        other.import_from(tmp_path / "export")
        assert other.rag.document(kept.id) == kept
        assert other.rag.original(kept.id) == KEYS
    for file in (tmp_path / "u").rglob("*"):
        if file.is_file() and file.read_bytes() == KEYS:
            file.unlink()
    (check,) = [check for check in af.verify() if check.found]
    assert "original" in check.name
