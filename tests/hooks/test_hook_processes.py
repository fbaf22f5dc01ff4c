"""Hooks as an agent runs them: a process for each event, a companion in the background, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.hooks.agent_formats import Event
from agentformer.hooks.companion import SOURCE
from agentformer.hooks.spool import Spool
from agentformer.types import MemoryEntry
from tests.faults.long_form import LONG

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="sockets and signals of Unix"),
]
PROGRAM = [sys.executable, "-P", "-m", "agentformer.cli", "hook"]
ENVIRON = {**os.environ, "AGENTFORMER_EMBEDDER": "hashing"}
KILLS = 50 if LONG else 6


class Memory:
    """A memory in a folder, and an agent that calls its hooks. The companion ends one second after the last event."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "index"
        self.spool = Spool(self.index)
        self.place = ["--index-dir", str(self.index), "--upload-dir", str(folder / "uploads")]

    def hook(self, name: str, *more: str, data: bytes | None = None, **values: Any) -> str:
        """Call a hook, and return what it answers. Its exit code must be 0."""
        given = json.dumps({"session_id": "s1", "cwd": str(self.folder), **values}).encode() if data is None else data
        options = ["--agent", "claude-code", *self.place, "--deadline", "60", "--idle", "1", *more]
        done = subprocess.run(
            [*PROGRAM, name, *options], input=given, capture_output=True, timeout=120, env=ENVIRON, cwd=self.folder
        )
        assert done.returncode == 0
        return done.stdout.decode()

    def companion(self, idle: float = 1.0) -> subprocess.Popen[bytes]:
        place = [str(self.index), str(self.folder / "uploads"), str(idle)]
        return subprocess.Popen([sys.executable, "-P", "-m", "agentformer.hooks.companion", *place], env=ENVIRON)

    def settled(self) -> None:
        """Wait until all events are stored and the companion has ended."""
        until = time.monotonic() + 120
        while any(self.spool.waiting()) or self.spool.alive.exists():
            assert time.monotonic() < until, "the companion has not ended"
            time.sleep(0.1)

    def captured(self) -> list[MemoryEntry]:
        with agentformer.connect(index_dir=self.index, upload_dir=self.folder / "uploads", embedder="hashing") as af:
            return [*af.memory.list(source_type=SOURCE, limit=1000, include_archived=True)]


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path)


def context_of(answer: str) -> str:
    return str(json.loads(answer)["hookSpecificOutput"]["additionalContext"]) if answer else ""


def test_a_session_is_remembered_in_the_next_one(memory: Memory) -> None:
    memory.spool.make()
    assert memory.hook("UserPromptSubmit", prompt="The deploy runs on Tuesdays. Always answer in metric units.") == ""
    assert memory.hook("PostToolUse", tool_name="Bash", tool_input={"command": "cat .env"}, tool_response="A=1") == ""
    assert memory.hook("Stop", last_assistant_message="Noted: the deploy runs on Tuesdays.") == ""
    memory.settled()
    kinds = sorted((entry.kind, entry.role or "") for entry in memory.captured())
    assert kinds == [("message", "assistant"), ("message", "user"), ("unsearched", "")]
    cold = context_of(memory.hook("UserPromptSubmit", session_id="s2", prompt="When does the deploy run?"))
    assert "on Tuesdays" in cold
    assert "no instruction" in cold.splitlines()[1]
    assert "Always answer in metric units." in context_of(memory.hook("SessionStart", session_id="s3"))
    assert memory.hook("UserPromptSubmit", session_id="s4", prompt="zzz qqq xxx") == ""
    memory.settled()


def test_a_companion_answers_while_it_lives(memory: Memory) -> None:
    memory.spool.add(Event("claude-code", "prompt", "UserPromptSubmit", "s1", str(memory.folder), text="Tea at five."))
    with memory.companion(idle=60) as process:
        until = time.monotonic() + 120
        while not memory.spool.socket.exists() or any(memory.spool.waiting()):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert "Tea at five." in context_of(memory.hook("UserPromptSubmit", session_id="s2", prompt="When is tea?"))
        second = memory.companion(idle=60)
        assert second.wait(timeout=60) == 0  # the lock is held
        process.terminate()
    assert any(memory.spool.waiting()) or len(memory.captured()) == 2


def test_nothing_is_lost_and_nothing_stored_twice_if_the_companion_is_killed(memory: Memory) -> None:
    texts = [f"Remark number {n} of the day." for n in range(40)]
    for text in texts:
        memory.spool.add(Event("claude-code", "prompt", "UserPromptSubmit", "s1", "", text=text))
    for kill in range(KILLS):
        process = memory.companion()
        time.sleep(0.2 + 0.15 * (kill % 12))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert memory.companion().wait(timeout=120) == 0
    assert not [*memory.spool.waiting()]
    assert sorted(entry.content for entry in memory.captured()) == sorted(texts)


@pytest.mark.parametrize(
    ("name", "data", "more"),
    [
        ("UserPromptSubmit", b'{"prompt": "half', []),
        ("UserPromptSubmit", b"", []),
        ("UserPromptSubmit", b"\xff\x00", []),
        ("Unknown", b"{}", []),
        ("PostToolUse", b'{"tool_response": "' + b"x" * 9_000_000 + b'"}', []),
        ("UserPromptSubmit", b"{}", ["--agent", "nobody"]),
        ("UserPromptSubmit", b"{}", ["--unknown", "1"]),
        ("UserPromptSubmit", b"{}", ["--deadline", "soon"]),
        ("UserPromptSubmit", b"{}", ["--lonely"]),
    ],
)
def test_a_bad_event_is_no_error_for_the_agent(memory: Memory, name: str, data: bytes, more: list[str]) -> None:
    assert memory.hook(name, *more, data=data) == ""
    assert not memory.index.exists()


def test_a_memory_that_cannot_be_read_is_no_error_for_the_agent(memory: Memory) -> None:
    memory.index.mkdir()
    (memory.index / "memory.sqlite3").write_bytes(b"no database" * 1000)
    assert memory.hook("UserPromptSubmit", prompt="When is tea?") == ""
    memory.spool.switch(False)
    for event in memory.spool.waiting():
        event.file.unlink()


def test_after_the_deadline_a_hook_answers_nothing(memory: Memory) -> None:
    assert memory.hook("SessionStart", "--deadline", "0.0001") == ""


def test_a_file_of_the_working_folder_changes_nothing(memory: Memory) -> None:
    """A hostile repository has modules and settings of its own."""
    memory.spool.make()
    (memory.folder / "json.py").write_text("raise SystemExit(9)", "utf-8")
    (memory.folder / ".env").write_text("AGENTFORMER_BACKEND=nowhere\n", "utf-8")
    memory.hook("UserPromptSubmit", prompt="Tea is at five.")
    memory.settled()
    assert [entry.content for entry in memory.captured()] == ["Tea is at five."]


def test_nothing_is_captured_while_it_is_switched_off(memory: Memory) -> None:
    memory.spool.switch(False)
    memory.hook("UserPromptSubmit", prompt="Tea is at five.")
    memory.settled()
    assert memory.captured() == []
