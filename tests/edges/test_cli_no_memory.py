"""Commands on a folder without a memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from agentformer.cli import main

READING = (
    *("ask x", "ask x --stream", "search x", "list", "recall x", "context x", "memories", "history x", "status"),
    *("export --text", "export --to copy", "audit", "spaces", "reindex", "reindex --show", "core show", "eval FILE"),
    *("eval --synthetic", "chat x --read-only", "keys list", "backup copy"),
)
CHANGING = ("remove x", "forget x", "update x --content y", "supersede x y", "restore x", "clean", "core remove x")


@pytest.mark.parametrize("backend", ["faiss", "local_json"])
def test_a_command_that_needs_stored_data_creates_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """A folder is given that does not exist, and a folder with other files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions.jsonl").write_text('{"question": "x", "document": "y"}\n')
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("Dear Aino")
    before = {str(path) for path in tmp_path.rglob("*")}
    environment = {"AGENTFORMER_BACKEND": backend}
    for folder in ("typo", "letters"):
        where = ("--index-dir", folder, "--upload-dir", "u", "--embedder", "hashing")
        for command in (*READING, *CHANGING, "keys revoke x"):
            arguments = command.replace("FILE", "questions.jsonl").split()
            done = CliRunner(env=environment).invoke(main, [*arguments, *where])
            if not command.startswith("keys"):
                assert (done.exit_code, "there is no memory in" in done.stderr) == (2, True), (command, done.output)
            assert {str(path) for path in tmp_path.rglob("*")} == before, command
