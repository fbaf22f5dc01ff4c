"""A language model that cannot be made: who asks for cleaning is told, and who adds messages loses nothing."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import agentformer
from agentformer.cli import main
from agentformer.errors import InvalidInput, MissingExtra
from agentformer.types import MemoryEntry, Scope


def opened(folder: Path, **settings: Any) -> agentformer.AgentFormer:
    return agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing", **settings)


def summaries(af: agentformer.AgentFormer) -> list[MemoryEntry]:
    return list(af.backend.list(Scope(kinds=("summary",)), limit=100))


def wait_for(what: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 60
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(what())


def say(af: agentformer.AgentFormer, session: str, count: int = 10) -> None:
    for number in range(count):
        af.memory.add_message(session, "user", f"Boat {number} of {session} lies in the harbour of Turku.")


def test_clean_raises_what_is_wrong_with_the_model_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, llm_model="ollama:", clean_every=0) as af:
        say(af, "monday", 12)
        with pytest.raises(InvalidInput, match="llm_model: names no model"):
            af.memory.clean()
        assert not summaries(af)
        assert "names no model" in af.status()["cleaner"]["last_error"]
    with opened(tmp_path, clean_every=0) as af:
        assert af.memory.clean().archived == 5


def test_clean_names_the_part_that_the_model_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)  # as where it is not installed
    with opened(tmp_path, llm_model="ollama:some") as af, pytest.raises(MissingExtra, match=r"\[llm\]"):
        af.memory.clean()


def test_the_command_ends_with_one_line_and_2(tmp_path: Path) -> None:
    with opened(tmp_path, clean_every=0) as af:
        say(af, "monday", 12)
    folders = ("--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing")
    done = CliRunner(env={"AGENTFORMER_LLM_MODEL": "ollama:"}).invoke(main, ["clean", *folders])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: llm_model: names no model") and done.stderr.count("\n") == 1


def test_messages_are_summarised_without_it_and_it_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "agentformer"), opened(tmp_path, llm_model="ollama:") as af:
        for session in ("monday", "tuesday", "friday"):
            say(af, session)
        assert wait_for(lambda: len(summaries(af)) == 3 and not af.status()["cleaner"]["queued"])
        status = af.status()["cleaner"]
    assert {entry.metadata["outcome"] for entry in summaries_of(tmp_path)} == {"extractive_unavailable"}
    assert "names no model" in status["last_error"]
    told = [record for record in caplog.records if "names no model" in record.getMessage()]
    assert [(record.levelname, record.exc_info) for record in told] == [("WARNING", None)]


def test_the_clock_does_without_it_too(tmp_path: Path) -> None:
    with opened(tmp_path, llm_model="ollama:", clean_every=0, cleanup_interval=0.05) as af:
        say(af, "monday", 12)
        assert wait_for(lambda: summaries(af))
        assert "names no model" in af.status()["cleaner"]["last_error"]


def summaries_of(folder: Path) -> list[MemoryEntry]:
    with opened(folder) as af:
        return summaries(af)
