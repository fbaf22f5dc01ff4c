"""What the files of a memory take, and the proof that a text was erased."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import agentformer
from agentformer.cli import main
from agentformer.records.integrity import disk

TEXT = "The heron Ängström nests by the weir."


def test_a_forgotten_text_is_in_no_file(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    options = ["--index-dir", str(tmp_path / "i"), "--upload-dir", str(tmp_path / "u")]
    run = CliRunner().invoke
    with agentformer.connect(embedder="hashing", **folders) as af:
        entry = af.memory.store(TEXT)
        af.memory.store("A stork passes by.")
        document = af.rag.upload(TEXT.encode(), name="heron.txt")
        af.memory.search("heron")
    told = run(main, ["doctor", "--erased", *options], input=f"nothing of the kind\n{TEXT}\n")
    assert told.exit_code == 1 and "still in" in told.output and "memory.sqlite3" in told.output
    hidden = run(main, ["doctor", "--erased", *options], input="heron\n").output
    assert f", of the document [name] ({document.id}" in hidden and "heron.txt" not in hidden
    assert TEXT not in told.output and f", of the document heron.txt ({document.id}, namespace default)" in told.output
    with agentformer.connect(embedder="hashing", **folders) as af:
        af.memory.remove(entry.id)
        af.rag.remove(document.id)
    told = run(main, ["doctor", "--erased", *options], input=f"{TEXT}\nheron Ängström\n")
    assert told.exit_code == 0, told.output
    assert "no file of this memory contains a text" in told.output and "not read: backups" in told.output


def test_a_proof_needs_texts(tmp_path: Path) -> None:
    agentformer.connect(embedder="hashing", index_dir=tmp_path / "i", upload_dir=tmp_path / "u").close()
    options = ["--index-dir", str(tmp_path / "i"), "--upload-dir", str(tmp_path / "u"), "--embedder", "hashing"]
    run = CliRunner().invoke
    assert run(main, ["remember", "A stork passes by.", *options]).exit_code == 0
    for arguments in (["--erased"], ["--erased", "--repair"]):
        assert run(main, ["doctor", *arguments, *options], input="\n \n").exit_code == 2


@pytest.mark.unit
@pytest.mark.parametrize("code", ["utf-8", "utf-16-le", "utf-16-be"])
def test_a_text_is_found_over_the_edge_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(disk, "_READ", 64)
    for offset in range(50, 70):
        (tmp_path / str(offset)).write_bytes(b"x" * offset + TEXT.encode(code) + b"y" * 100)
    (tmp_path / "other").write_bytes(b"x" * 500)
    assert len(disk.holders([tmp_path, tmp_path / "absent"], TEXT)) == 20


@pytest.mark.unit
def test_sizes_are_told_by_kind(tmp_path: Path) -> None:
    names = {"memory.sqlite3": 5, "memory.sqlite3-wal": 7, "memory.sqlite3.schema-12": 11, "rag_faiss_index.bin": 13}
    for name, size in {**names, "keys.json": 17}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a").write_bytes(b"x" * 19)
    assert disk.sizes(tmp_path) == {
        "database": 5, "log": 7, "copies": 11, "words": 19, "vectors": 13, "other": 17
    }  # fmt: skip
    assert sum(disk.sizes(tmp_path / "absent").values()) == 0
