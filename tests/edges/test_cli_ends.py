"""How a command ends: exit codes, Ctrl-C, a reader that went away, a full disk, a closed standard input."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentformer.cli import main
from agentformer.cli.group import EXIT_CODES
from agentformer.factory import connect
from tests.edges.conftest import Invoke, folders_of
from tests.forked import MCP, SERVE, command, ended, program, start

pytestmark = pytest.mark.process
PROGRAM = [sys.executable, "-m", "agentformer.cli"]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Where a memory is whose list is longer than a pipe holds. No test changes it."""
    where = folders_of(tmp_path_factory.mktemp("filled"))
    with connect(index_dir=where[1], upload_dir=where[3], embedder="hashing") as af:
        af.memory.store_many([{"content": f"fact {n} of the harbour, " + "x" * 280} for n in range(500)])
    return where


def shell(line: str, where: tuple[str, ...], **options: Any) -> subprocess.CompletedProcess[str]:
    """A line of bash, in which `af` is the program and `$W` its folders."""
    script = f"af() {{ '{sys.executable}' -m agentformer.cli \"$@\"; }}; W=({' '.join(where)}); {line}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, **options)


def test_a_reader_that_has_enough_ends_a_command_quietly(filled: tuple[str, ...]) -> None:
    line = 'af memories "${W[@]}" --limit 500 | head -1; echo "${PIPESTATUS[0]}"'
    done = shell(line, filled)
    first, code = done.stdout.splitlines()
    assert "fact 0 of the harbour" in first
    assert (code, done.stderr) == ("141", "")


@needs_full
@pytest.mark.parametrize("command", ["memories --limit 500", "--help"])
def test_a_disk_without_room_for_the_output_is_told_in_one_line(filled: tuple[str, ...], command: str) -> None:
    folders = "" if "--help" in command else '"${W[@]}"'
    done = shell(f"af {command} {folders} > /dev/full", filled)
    assert done.returncode == 3
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("remember -", "standard input is closed"),
        ("context -", "standard input is closed"),
        ("forget --namespace-all", "pass --yes to delete 500 entries. Nothing was deleted."),
    ],
)
def test_a_closed_standard_input_is_a_wrong_argument(filled: tuple[str, ...], command: str, said: str) -> None:
    done = shell(f'af {command} "${{W[@]}}" <&-', filled)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_closed_outputs_are_no_crash(filled: tuple[str, ...]) -> None:
    done = shell('af status "${W[@]}" >&- 2>&-; echo "$?"', filled)
    assert (done.stdout, done.stderr) == ("3\n", "")


@pytest.mark.usefixtures("empty_memory")
@pytest.mark.parametrize("command", ["status --json", "--version", "list --help"])
def test_a_closed_output_is_told_in_one_line(where: tuple[str, ...], command: str) -> None:
    folders = "" if command.startswith("--") or "--help" in command else '"${W[@]}"'
    done = shell(f"af {command} {folders} >&-", where)
    assert done.returncode == 3
    assert done.stderr == "error: the output cannot be written: standard output is closed\n"


def test_mcp_without_an_input_or_output_says_so(
    where: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = "import os, sys\nos.close(0)\nsys.stdin = None"
    done = ended(command("mcp", *where, before=closed, imports=MCP))
    monkeypatch.setattr(importlib.import_module("agentformer.cli.commands.serve"), "lookup", lambda *_: None)
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as end:
        main(["mcp", *where])
    for code, said in ((done.returncode, done.stderr), (end.value.code, capfd.readouterr().err)):
        assert (code, "Traceback" in said) == (3, False)
        assert said.startswith("error: MCP needs standard input and output, but one of these is closed")


def test_serving_without_a_server_names_the_extra(where: tuple[str, ...]) -> None:
    without = (
        "for name in [name for name in sys.modules if name.startswith(('gunicorn', 'agentformer.api.serving.'))]:\n"
        "    del sys.modules[name]  # of the process that it is a fork of\n"
        "sys.modules['gunicorn'] = sys.modules['waitress'] = None\n"
        "from click.testing import CliRunner; from agentformer.cli import main\n"
        "for server in ('auto', 'gunicorn', 'waitress'):\n"
        "    done = CliRunner().invoke(main, ['serve', '--port', '0', '--server', server, *sys.argv[1:]])\n"
        "    print(done.exit_code, '[server]' in done.stderr, 'Traceback' in done.stderr)\n"
    )
    done = ended(program(without, *where))
    assert (done.returncode, done.stdout.splitlines()) == (0, ["2 True False"] * 3), done.stderr


@pytest.mark.usefixtures("empty_memory")
@pytest.mark.parametrize("command", ["clean", "search"])
def test_ctrl_c_ends_a_command_without_a_trace(where: tuple[str, ...], command: str, tmp_path: Path) -> None:
    query = ["x"] if command == "search" else []
    slow = (
        "import time, agentformer.memory.memory_manager as m\n"
        "def wait(*_, **__):\n"
        "    print('at work', flush=True); time.sleep(60)\n"
        "m.MemoryManager.clean = m.MemoryManager.search = wait\n"
        f"from agentformer.cli import main; main({[command, *query, *where]})\n"
    )
    child = start(slow, SERVE, cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == "at work\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, errors.strip()) == (130, "interrupted")


def test_ctrl_c_at_a_question_deletes_nothing_and_is_130(filled: tuple[str, ...]) -> None:
    ours, theirs = os.openpty()
    child = subprocess.Popen(
        [*PROGRAM, "forget", "--namespace-all", *filled],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stderr is not None
        asked = "".join(iter(lambda: child.stderr.read(1) if child.stderr else "", ":"))
        assert "500 entries" in asked
        for _ in range(60):  # once more, where the signal came between the question and the reading of its answer
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=1)
                break
        errors = child.stderr.read()
    finally:
        child.kill()
        child.wait()
        os.close(ours)
        os.close(theirs)
    assert (child.returncode, "Traceback" in errors) == (130, False)
    listed = CliRunner().invoke(main, ["memories", "--limit", "1000", *filled])
    assert len(listed.stdout.splitlines()) == 500


def test_the_help_tells_every_exit_code() -> None:
    done = CliRunner().invoke(main, ["--help"])
    listed = done.stdout.partition("Exit codes:")[2].split()
    assert {str(code) for code in EXIT_CODES} <= set(listed)
    assert "More:" not in done.stdout  # every command stands in a section


@pytest.mark.usefixtures("empty_memory")
def test_an_error_stays_in_words_with_json(shown: Callable[..., Any], run: Invoke) -> None:
    done = run("history", "no-such-id", "--json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and "no-such-id" in done.stderr


def test_ingest_tells_how_many_came_to_which_end(run: Invoke, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"The caretaker keeps the keys to {name}.")
    run("ingest", str(tmp_path / "a.txt"))
    (tmp_path / "c.pdf").write_bytes(b"%PDF-1.7\nnothing")
    done = run("ingest", str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), str(tmp_path / "c.pdf"))
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, "1 unchanged, 1 ready, 1 failed")


def test_documents_keep_the_metadata_given_at_ingest(run: Invoke, shown: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The caretaker keeps the keys.")
    (document,) = shown("ingest", str(tmp_path / "a.txt"), "--metadata", '{"year": 2026}')["documents"]
    assert document["metadata"] == {"year": 2026}
    for wrong in ("[]", "{", '{"a": NaN}'):
        done = run("ingest", str(tmp_path / "a.txt"), "--metadata", wrong)
        assert (done.exit_code, "--metadata" in done.stderr) == (2, True)
    assert run("ingest", str(tmp_path / "a.txt"), "--namespace", " ").exit_code == 2


def test_of_documents_of_which_one_is_not_there_none_is_removed(
    run: Invoke, shown: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("The caretaker keeps the keys.")
    (document,) = shown("ingest", str(tmp_path / "a.txt"))["documents"]
    assert run("remove", document["id"], "no-such-id").exit_code == 2
    assert len(shown("list")["documents"]) == 1
    assert shown("remove", document["id"], document["id"]) == {"removed": [document["id"]]}


@pytest.mark.parametrize("command", [("ask", "Who keeps the keys?"), ("list",)])
def test_where_a_namespace_holds_nothing_the_others_are_named(
    run: Invoke, shown: Callable[..., Any], command: tuple[str, ...]
) -> None:
    shown("remember", "Aino prefers tea.", "--namespace", "ours")
    done = run(*command)
    assert (done.exit_code, done.stderr) == (0, "note: namespace default is empty; namespaces with entries: ours\n")
    assert run(*command, "--namespace", "ours").stderr == ""


def test_status_is_readable(run: Invoke, shown: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The caretaker keeps the keys.")
    shown("ingest", str(tmp_path / "a.txt"))
    shown("remember", "Aino prefers tea.", "--namespace", "ours")
    said = {name: value.strip() for name, _, value in (x.partition(":") for x in run("status").stdout.splitlines())}
    assert said["entries"] == "4: 1 chunk, 1 document, 1 fact, 1 page"
    assert said["namespaces"] == "default 3, ours 1"
    assert said["documents"] == "1 in default: 1 ready"
    assert said["embedder"].startswith("hashing:256: active, 256 dimensions, 2 vectors")
    assert (said["waiting"], said["cleaner"]) == ("none", "0 summaries")
    assert said["language model"] == "none (answers quote the documents)"
