"""`agentformer copy`: a memory moves to another backend, and wrong places are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from tests.edges.conftest import Invoke


def copied(*arguments: str, code: int = 0) -> str:
    """Run `agentformer copy`, and return what it prints."""
    done = CliRunner().invoke(main, ["copy", "--embedder", "hashing", *arguments])
    assert done.exit_code == code, done.output
    return done.stderr if code else done.stdout


@pytest.mark.usefixtures("faiss_files")
def test_a_memory_moves_to_another_backend(run: Invoke, tmp_path: Path) -> None:
    assert run("remember", "The sauna is free on Thursdays.").exit_code == 0
    places = ("--from", f"faiss:{tmp_path / 'i'}", "--to", f"local_json:{tmp_path / 'new'}")
    first = json.loads(copied(*places, "--json"))
    assert first["equal"] and first["stored"] == first["entries"] == 1
    again = copied(*places)
    assert "stored: 0, removed: 0, only counts changed: 0" in again
    assert f"equal to the source, SHA-256 {first['source']}" in again


@pytest.mark.usefixtures("faiss_files")
@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("faiss", "faiss:b", "--from: must be BACKEND:PLACE"),
        ("faiss:i", ":b", "--to: must be BACKEND:PLACE"),
        ("faiss:i", "faiss:./i", "--to: is the same memory as --from"),
        ("faiss:no-such-folder", "local_json:b", "there is no memory in no-such-folder"),
        ("faiss:i", "papyrus:b", "papyrus"),
    ],
)
def test_a_wrong_place_is_refused(
    run: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("remember", "The sauna is free on Thursdays.").exit_code == 0
    assert message in copied("--from", source, "--to", target, code=2)
    assert not (tmp_path / "b").exists()


def test_index_dir_is_refused(tmp_path: Path) -> None:
    places = ("--from", "faiss:a", "--to", "faiss:b", "--index-dir", "a")
    assert "--index-dir: is not used" in copied(*places, code=2)
