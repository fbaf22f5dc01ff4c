"""`agentformer ask --stream`: pieces as they come, citations after them, and a clean end when somebody stops it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from agentformer.cli import main
from tests import forked
from tests.edges.talking import BOUND, Step, Talker
from tests.forked import SERVE, Forked

pytestmark = pytest.mark.process
KEYS = "The office opens at nine. The caretaker keeps the keys in the blue cupboard."
WHO = "Who keeps the keys?"
Process = subprocess.Popen[str] | Forked
Start = Callable[..., Process]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def talker() -> Iterator[Talker]:
    talker = Talker()
    yield talker
    talker.close()


@pytest.fixture
def run(tmp_path: Path, talker: Talker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command in this process: its exit code, output and errors. The memory has one document."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        done = CliRunner(env=talker.settings).invoke(main, [*arguments, "--embedder", "hashing"])
        return done.exit_code, done.stdout, done.stderr

    (tmp_path / "keys.txt").write_text(KEYS)
    assert run("ingest", "keys.txt")[0] == 0
    return run


@pytest.fixture
def start(tmp_path: Path, talker: Talker, run: Run) -> Iterator[Start]:
    """A command as a process; all of them are ended with the test."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        code = f"from agentformer.cli import main\nmain({[*arguments, '--embedder', 'hashing']})"
        environment = {**os.environ, **talker.settings}
        process = forked.start(code, (*SERVE, "openai"), cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def say(talker: Talker, *steps: Step) -> None:
    talker.script = lambda: iter(steps)


def finished(process: Process) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=BOUND * 2)
    return process.returncode, output, errors


def test_pieces_are_printed_as_they_come_and_then_the_citations(start: Start, talker: Talker) -> None:
    heard = threading.Event()
    say(talker, "The care", heard, "taker\x1b[31m keeps them [1].")
    process = start("ask", WHO, "--stream")
    assert process.stdout is not None
    assert process.stdout.read(8) == "The care"
    heard.set()  # only now does the model go on
    code, output, errors = finished(process)
    assert (code, errors) == (0, "")
    assert output == (
        "taker[31m keeps them [1].\n\n(llm)\n[1] keys.txt, page 1: The caretaker keeps the keys in the blue cupboard.\n"
    )


def test_ctrl_c_ends_with_what_was_said(start: Start, talker: Talker) -> None:
    say(talker, "The care", threading.Event())
    process = start("ask", WHO, "--stream")
    assert process.stdout is not None
    assert process.stdout.read(8) == "The care"
    process.send_signal(signal.SIGINT)
    code, output, errors = finished(process)
    assert (code, output) == (130, "\n")
    assert errors == "note: interrupted; the answer is not complete\n"


def test_with_json_each_event_is_a_line(run: Run, talker: Talker) -> None:
    say(talker, "The caretaker [1]. ", "The", None)
    code, output, _ = run("ask", WHO, "--stream", "--json")
    events: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    assert code == 1
    assert [event["event"] for event in events] == ["token", "token", "error", "answer"]
    assert all(set(event) == {"event", "data"} for event in events)
    answer = events[-1]["data"]
    assert (answer["answer"], answer["complete"]) == ("The caretaker [1]. The", False)
    assert answer["citations"][0]["page"] == 1


def test_a_model_that_is_lost_leaves_what_it_said_with_a_note(run: Run, talker: Talker) -> None:
    say(talker, "The caretaker [1]. ", "The", None)
    code, output, errors = run("ask", WHO, "--stream")
    assert code == 1
    assert output.startswith("The caretaker [1]. The\n")
    assert "[1] keys.txt, page 1" in output
    assert "note: the model failed before the end of the answer" in errors


def test_a_model_that_is_lost_before_it_cites_shows_the_mode(run: Run, talker: Talker) -> None:
    say(talker, "The caretaker", None)
    code, output, errors = run("ask", WHO, "--stream")
    assert (code, output) == (1, "The caretaker\n\n\n(llm)\n")
    assert "note: the model failed before the end of the answer" in errors


@pytest.mark.parametrize("options", [(), ("--json",), ("--stream",), ("--stream", "--json")])
def test_an_answer_that_the_model_had_no_room_for_is_done_in_part(
    run: Run, talker: Talker, options: tuple[str, ...]
) -> None:
    talker.finish = "length"
    say(talker, "The caretaker [1] has")
    code, output, errors = run("ask", WHO, *options)
    assert code == 1
    assert "tokens" in (output if "--json" in options else errors)
    assert ('"complete": false' in output) == ("--json" in options)


def test_an_empty_question_is_told_as_without_stream(run: Run, talker: Talker) -> None:
    code, output, errors = run("ask", " ", "--stream")
    assert (code, output) == (2, "")
    assert errors == "error: question: is empty; enter a question\n"
