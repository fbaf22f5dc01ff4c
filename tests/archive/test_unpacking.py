"""An export that is a ZIP archive: imported as the folder, and refused where it is damaged or a bomb."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

import agentformer
from agentformer.archive import unpacking
from agentformer.archive.export import zipped
from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer


def memory(folder: Path) -> AgentFormer:
    return agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The ZIP archive of an export of one memory and one document."""
    with memory(tmp_path / "one") as af:
        af.memory.store("Aino prefers tea.")
        af.rag.upload(b"The caretaker keeps the keys.", name="keys.txt")
        af.export_to(tmp_path / "export")
    path = tmp_path / "export.zip"
    with zipped(tmp_path / "export") as file, path.open("wb") as target:
        shutil.copyfileobj(file, target)
    return path


def test_an_archive_is_imported_like_its_folder(archive: Path, tmp_path: Path) -> None:
    with memory(tmp_path / "two") as af:
        assert af.import_from(archive).entries == 4, "a memory, and a document with a page and a chunk"
        assert af.import_from(tmp_path / "export").entries == 0, "everything is there already"
        assert not any(check.found for check in af.verify())


def test_no_file_leaves_the_folder(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive, "a") as added:
        for name in ("../out.jsonl", "entries/../../out.jsonl", "/tmp/out.jsonl", "entries/a/b.jsonl", "other.txt"):
            added.writestr(name, "x")
    with unpacking.unpacked(archive) as folder:
        assert {path.name for path in folder.iterdir()} == {"entries", "manifest.json", "originals"}
        assert [path.name for path in (folder / "entries").iterdir()] == ["default.jsonl"]
        outside = folder.parent / "out.jsonl"
    assert not outside.exists() and not folder.exists(), "the temporary folder is deleted"
    with memory(tmp_path / "two") as af:
        assert af.import_from(archive).entries


def test_an_archive_that_grows_too_much_is_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "_SMALL", 1_000_000)
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as added:
        added.writestr("entries/bomb.jsonl", b"x" * 5_000_000)
    with memory(tmp_path / "two") as af, pytest.raises(InvalidInput, match="bytes when unpacked, more than 1000000"):
        af.import_from(archive)


def test_an_archive_with_a_wrong_size_or_damage_is_refused(archive: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    with zipfile.ZipFile(archive) as opened:
        member = opened.getinfo("entries/default.jsonl")
    size = member.file_size.to_bytes(4, "little")
    assert content.count(size) >= 2, "in the local header and in the directory"
    wrong = {
        "less": content.replace(size, (10).to_bytes(4, "little")),
        "damaged": content[: member.header_offset + 60] + b"\x00" * 40 + content[member.header_offset + 100 :],
    }
    with memory(tmp_path / "two") as af:
        for name, data in wrong.items():
            (tmp_path / name).write_bytes(data)
            with pytest.raises(InvalidInput, match="damaged ZIP archive"):
                af.import_from(tmp_path / name)
        assert not af.backend.namespaces()
