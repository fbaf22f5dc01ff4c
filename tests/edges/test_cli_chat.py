"""`agentformer chat`: turns on the command line, in pipes and on a terminal, against a server on a real socket."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `llm` is not installed")

from tests.edges.conftest import Invoke, Shown
from tests.forked import SERVE, on_terminal, start
from tests.llms.hostile import Hostile, Request, completion, refuses
from tests.readers.conftest import make_pdf

pytestmark = pytest.mark.process
pty = pytest.importorskip("pty", reason="this system has no pseudo terminals")

BOUND = 120.0  # seconds that anything here waits at most
KEY = "sk-canary-1357924680"
KEYS = "The caretaker keeps the keys in the blue cupboard."
Reply = Callable[[list[dict[str, Any]]], Iterable[bytes]]


class Model:
    """Replies to the messages that it is sent, and keeps the requests."""

    def __init__(self) -> None:
        self.reply: Reply = lambda messages: completion("Hello.")
        self.server = Hostile(self._answer)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AGENTFORMER_LLM_MODEL": "tiny",
            "AGENTFORMER_LLM_BASE_URL": self.server.url,
            "AGENTFORMER_LLM_API_KEY": KEY,
            "AGENTFORMER_LLM_RETRIES": "0",
        }

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [request.body for request in self.server.seen if request.method == "POST"]

    def _answer(self, request: Request) -> Iterable[bytes]:
        return self.reply(request.body.get("messages", []))


def calling(name: str, **arguments: Any) -> Iterable[bytes]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return completion(None, "tool_calls", tool_calls=[{"id": "c1", "type": "function", "function": function}])


def after(first: Iterable[bytes], then: str) -> Reply:
    """Calls a tool, and says something once it has the result."""
    return lambda messages: completion(then) if messages[-1]["role"] == "tool" else first


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    model = Model()
    for name, value in model.environment.items():
        monkeypatch.setenv(name, value)
    yield model
    model.server.close()


def test_one_message_is_answered_with_its_tools_memories_and_places(
    run: Invoke, shown: Shown, model: Model, tmp_path: Path
) -> None:
    (tmp_path / "rules.pdf").write_bytes(make_pdf([["Boats are lifted in October."], [KEYS]]))
    run("ingest", str(tmp_path / "rules.pdf"))
    run("remember", "Aino asks for the keys often.")
    model.reply = after(calling("rag_query", question="Who keeps the keys?"), "The caretaker [rules.pdf, 2].")
    done = run("chat", "Who keeps the keys for Aino?", "--session", "monday", "--verbose")

    assert done.exit_code == 0, done.output
    assert done.stdout == "The caretaker [rules.pdf, 2].\n"
    told = done.stderr.splitlines()
    assert any(line.startswith("memory  semantic/fact  Aino asks for the keys") for line in told)
    assert any(line.startswith('tool    rag_query(question="Who keeps the keys?")  ok  ') for line in told)
    assert f"[rules.pdf, 2] {KEYS}" in told
    assert "session monday" in told
    assert len(model.asked) == 2  # the tool quotes: it asks no model of its own
    said = shown("memories", "--session", "monday")["entries"]
    assert [(entry["role"], entry["content"]) for entry in said] == [
        ("user", "Who keeps the keys for Aino?"),
        ("assistant", "The caretaker [rules.pdf, 2]."),
    ]


def test_lines_of_a_pipe_are_turns_of_one_session_and_json_is_one_object_each(run: Invoke, model: Model) -> None:
    model.reply = lambda messages: completion(f"{len(messages)} messages.")
    done = run("chat", "--json", "--user", "aino", said="I have a boat.\n\n  It is blue.\n")
    assert done.exit_code == 0, done.output
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["text"], second["text"]) == ("2 messages.", "4 messages.")
    assert first["session_id"] == second["session_id"]
    assert set(first) == {
        *("session_id", "text", "finish", "steps", "tool_runs", "memories", "citations", "warnings"),
        *("tokens_in", "tokens_out", "ms"),
    }
    assert (first["finish"], first["tokens_in"], first["tokens_out"]) == ("answer", 7, 2)
    assert done.stderr == ""


def test_a_session_is_taken_up_again(run: Invoke, model: Model) -> None:
    run("chat", "I have a boat.", "--session", "monday")
    run("chat", "Which colour?", "--session", "monday")
    run("chat", "And now?")
    said = [[message["content"] for message in body["messages"][1:]] for body in model.asked]
    assert said[1] == ["I have a boat.", "Hello.", "Which colour?"]
    assert len(said[2]) == 1


def test_a_line_ends_the_conversation_and_memories_are_not_shown(run: Invoke, model: Model) -> None:
    run("remember", "Aino has a boat.")
    done = run("chat", said="What does Aino have, a boat?\nexit\nAnother question\n")
    assert (done.exit_code, len(model.asked)) == (0, 1), done.output
    assert "Aino has a boat." in json.dumps(model.asked[0]["messages"])
    assert "memory  " not in done.stderr
    for end in ("quit", "/quit", "EXIT"):
        assert run("chat", said=f"{end}\nAnother question\n").exit_code == 0
    assert len(model.asked) == 1


def test_a_session_is_a_users_own(run: Invoke, model: Model) -> None:
    run("chat", "My code is 4711.", "--session", "monday", "--user", "aino")
    for options in ([], ["--read-only"]):
        run("chat", "And mine?", "--session", "monday", "--user", "bob", *options)
        assert "4711" not in json.dumps(model.asked[-1]["messages"])
    assert len(model.asked) == 3


def test_with_a_namespace_tools_reach_no_other(run: Invoke, model: Model) -> None:
    run("remember", "The harbour code is 4711.")
    model.reply = after(calling("memory_search", query="harbour code", namespace="default"), "Done.")
    done = run("chat", "Which code?", "--namespace", "home")
    assert 'namespace="default")  failed: ' in done.stderr
    assert done.exit_code == 0
    assert "failed" not in run("chat", "Which code?").stderr
    assert "4711" not in json.dumps(model.asked[1]["messages"])


@pytest.mark.usefixtures("empty_memory")
@pytest.mark.parametrize("option", ["--session", "--user", "--agent", "--project", "--namespace"])
def test_an_empty_name_is_refused_at_once(run: Invoke, shown: Shown, model: Model, option: str) -> None:
    done = run("chat", "Hello.", option, "")
    assert (done.exit_code, done.stdout, model.asked) == (2, "", [])
    assert "must be a text of 1 to 200 characters" in done.stderr
    assert shown("memories")["entries"] == []


def test_without_a_model_it_is_told_what_is_missing_and_what_works(run: Invoke, shown: Shown) -> None:
    done = run("chat", "Who keeps the keys?")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "AGENTFORMER_LLM_MODEL" in done.stderr
    assert "need no language model. Nothing was sent" in done.stderr
    assert "Nothing was sent or stored" in done.stderr
    assert shown("memories")["entries"] == []


def test_without_a_server_the_message_is_kept_and_the_exit_code_says_so(
    run: Invoke, shown: Shown, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    monkeypatch.setenv("AGENTFORMER_LLM_BASE_URL", f"http://127.0.0.1:{port}/v1")
    done = run("chat", "I moved to Turku.", "--session", "monday")
    assert done.exit_code == 1
    assert f"127.0.0.1:{port}" in done.stdout
    assert "Your message is kept in the session monday." in done.stdout
    assert [entry["content"] for entry in shown("memories")["entries"]] == ["I moved to Turku."]


def test_a_key_that_a_server_repeats_is_not_shown(run: Invoke, model: Model) -> None:
    model.reply = lambda messages: refuses(401, f"the key {KEY} is wrong")
    done = run("chat", "Hello?")
    assert done.exit_code == 1
    assert KEY not in done.output
    assert KEY[3:] not in done.output


def test_read_only_takes_the_tools_that_change_something_and_stores_nothing(
    run: Invoke, shown: Shown, model: Model
) -> None:
    run("remember", "Aino has a boat.")
    done = run("chat", "Hello.", "--read-only", "--without", "memory_search", "--without", "rag_list")
    assert done.exit_code == 0, done.output
    assert {tool["function"]["name"] for tool in model.asked[0]["tools"]} == {
        *("memory_get", "conversation_search", "memory_profile", "memory_audit", "memory_status", "rag_query"),
    }
    assert [entry["content"] for entry in shown("memories")["entries"]] == ["Aino has a boat."]


def test_an_unknown_tool_is_refused_with_those_there_are(run: Invoke, model: Model) -> None:
    done = run("chat", "Hello.", "--without", "memory_erase")
    assert done.exit_code == 2
    assert "there is no tool 'memory_erase'; the tools are memory_add" in done.stderr
    assert model.asked == []


def test_the_model_reads_files_of_the_folder_alone(run: Invoke, model: Model, tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "notes.txt").write_text(KEYS, encoding="utf-8")
    model.reply = after(calling("rag_upload", path="notes.txt"), "Read.")
    assert "ok" in run("chat", "Read it.", "--folder", str(desk)).stderr
    model.reply = after(calling("rag_upload", path="../desk/../secret.txt"), "I may not.")
    done = run("chat", "Read it.", "--folder", str(desk), "--allow", "rag_upload")
    assert "failed: path: is outside the folder" in done.stderr
    assert str(tmp_path) not in done.output


def test_what_a_model_says_cannot_play_with_the_terminal(run: Invoke, model: Model) -> None:
    evil = "\x1b[2J\x1b]0;gone\x07"
    model.reply = after(calling("memory_search", query=f"{evil}boat"), f"{evil}Done.\u202e")
    done = run("chat", "Hello.")
    assert done.exit_code == 0
    assert not {"\x1b", "\x07", "\u202e"} & set(done.output)
    assert "Done." in done.stdout


def test_a_dash_reads_one_message_and_what_is_no_message_is_refused(run: Invoke, model: Model) -> None:
    assert run("chat", "-", said="One line\nand another").exit_code == 0
    assert [body["messages"][-1]["content"] for body in model.asked] == ["One line\nand another"]
    for wrong in (b"", b" \n\n", b"\xff\xfe\n"):
        done = run("chat", said=wrong)
        assert done.exit_code == 2, done.output
        assert "MESSAGE" in done.stderr
    assert len(model.asked) == 1


def test_a_turn_that_a_limit_ended_is_done_in_part(run: Invoke, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFORMER_AGENT_STEPS", "1")
    model.reply = lambda messages: (
        completion("All I know.") if messages[-1]["role"] == "user" and len(messages) > 2 else calling("rag_list")
    )
    done = run("chat", "List.")
    assert (done.exit_code, done.stdout) == (1, "All I know.\n")
    assert "(steps after 2 steps)" in done.stderr


# ------------------------------------------------------------------ processes of their own


CHAT = (*SERVE, "agentformer.cli.commands.chat", "agentformer.llms.openai", "openai")


def command(folder: Path, *arguments: str) -> str:
    """Code that runs `agentformer chat`."""
    where = ["--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u", "--embedder", "hashing"]
    return f"from agentformer.cli import main\nmain({['chat', *where, *arguments]})"


class Hanging:
    """A reply that comes when it is told to; `asked` is set once somebody waits for it."""

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()

    def __call__(self, messages: list[dict[str, Any]]) -> Iterable[bytes]:
        self.asked.set()
        self.let_go.wait(BOUND)
        return completion("Late.")


def test_ctrl_c_ends_a_single_turn_and_the_message_is_kept(
    run: Invoke, shown: Shown, model: Model, tmp_path: Path
) -> None:
    model.reply = hanging = Hanging()
    code = command(tmp_path, "Are you there?")
    process = start(code, CHAT, cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE)
    try:
        assert hanging.asked.wait(BOUND)
        process.send_signal(signal.SIGINT)
        said, told = process.communicate(timeout=BOUND)
    finally:
        process.kill()
        hanging.let_go.set()
    assert (process.returncode, said) == (130, "")
    assert "interrupted; your message is stored" in told
    assert "Traceback" not in told
    assert [entry["content"] for entry in shown("memories")["entries"]] == ["Are you there?"]


class Terminal:
    """A talk on a pseudo terminal."""

    def __init__(self, folder: Path) -> None:
        self.own, other = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "AGENTFORMER_CLEAN_EVERY": "0"}
        with (folder / "errors.txt").open("w") as errors:
            self.process = start(on_terminal(other) + command(folder), CHAT, cwd=folder, env=environment, stderr=errors)
        assert select.select([self.own], [], [], BOUND)[0]  # it has opened the terminal
        os.close(other)
        self.seen = ""

    def type(self, text: str) -> None:
        """What a person types once they are asked; before that, the terminal would take Ctrl-D otherwise."""
        self.until("> ")
        os.write(self.own, text.encode())

    def until(self, text: str) -> str:
        """What is shown until `text` is; from then on it is forgotten."""
        while text not in self.seen:
            ready, _, _ = select.select([self.own], [], [], BOUND)
            assert ready, f"{text!r} did not come after {self.seen!r}"
            self.seen += os.read(self.own, 4096).decode()
        before, _, self.seen = self.seen.partition(text)
        return before

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C until `text` is shown: one that comes just before a line is read waits for the next key."""
        for _ in range(int(BOUND)):
            self.process.send_signal(signal.SIGINT)
            if select.select([self.own], [], [], 1.0)[0]:
                break
        self.until(text)

    def end(self) -> int:
        """The exit code, once the process has ended."""
        while True:
            try:
                if not select.select([self.own], [], [], BOUND)[0] or not os.read(self.own, 4096):
                    break
            except OSError:  # how Linux tells that the other side was closed
                break
        return self.process.wait(BOUND)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.own)


@pytest.fixture
def terminal(model: Model, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_a_talk_on_a_terminal(terminal: Terminal, model: Model, shown: Shown) -> None:
    terminal.until("session chat-")
    terminal.type("/help\n")
    terminal.until("/memories  show")
    terminal.type("/memories\n")
    terminal.until("there is no turn yet")
    terminal.type("/tools\n")
    terminal.until("rag_query")
    terminal.type("/nonsense\n")
    terminal.until("there is no command /nonsense")

    model.reply = after(calling("memory_add", content="Aino has a boat."), "Noted.")
    terminal.type("I am Aino and have a boat.\n")
    terminal.until('tool    memory_add(content="Aino has a boat.")  ok')
    terminal.until("Noted.")
    model.reply = lambda messages: completion("A boat.")
    terminal.type("/new\n")
    terminal.until("session chat-")
    terminal.type("What does Aino have, a boat?\n")
    terminal.until("A boat.")
    terminal.type("/memories\n")
    terminal.until("semantic/fact  Aino has a boat.")
    terminal.type("exit\n")
    assert terminal.end() == 0
    messages = shown("memories", "--kind", "message")["entries"]
    assert len({entry["session_id"] for entry in messages}) == 2


FORGET = "Forget the boat."


def forgetting(id: str) -> Reply:
    """Looks something up, asks for a memory to be forgotten, and says that it is done."""

    def reply(messages: list[dict[str, Any]]) -> Iterable[bytes]:
        turn = messages[max(n for n, message in enumerate(messages) if message["role"] == "user") :]
        gave = sum(message["role"] == "tool" for message in turn)
        return [calling("memory_search", query="boat"), calling("memory_delete", id=id), completion("Done.")][gave]

    return reply


def test_after_reading_nothing_is_forgotten_in_a_pipe_unless_it_is_allowed(
    run: Invoke, shown: Shown, model: Model
) -> None:
    run("remember", "Aino has a boat.")
    (fact,) = shown("memories", "--kind", "fact")["entries"]
    model.reply = forgetting(fact["id"])
    done = run("chat", FORGET)
    assert "failed: not run: memory_delete changes stored data" in done.stderr
    assert "note: the tool memory_delete was not run" in done.stderr and "--allow memory_delete" in done.stderr
    assert [entry["id"] for entry in shown("memories", "--kind", "fact")["entries"]] == [fact["id"]]
    done = run("chat", FORGET, "--allow", "memory_delete")
    assert "memory_delete" in done.stderr and "not run" not in done.stderr
    assert shown("memories", "--kind", "fact")["entries"] == []
    assert "there is no tool 'forget'" in run("chat", FORGET, "--allow", "forget").stderr


def test_after_reading_the_person_at_the_terminal_decides(
    terminal: Terminal, model: Model, run: Invoke, shown: Shown
) -> None:
    run("remember", "Aino has a boat.")
    (fact,) = shown("memories", "--kind", "fact")["entries"]
    model.reply = forgetting(fact["id"])
    for answer, left in (("\n", 1), ("maybe\n", 1), ("y\n", 0)):
        terminal.type(f"{FORGET}\n")
        terminal.until("and wants to call memory_delete:")
        terminal.until(f'id: "{fact["id"]}"')
        assert f"{fact['id']} semantic/fact" in terminal.until("Aino has a boat.").partition("The memory is: ")[2]
        terminal.until("Allow this call? [y/N] ")
        os.write(terminal.own, answer.encode())
        terminal.until("Done.")
        assert len(shown("memories", "--kind", "fact")["entries"]) == left, answer
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_what_a_call_asks_for_is_told_within_bounds_and_draws_no_lines_of_its_own(
    terminal: Terminal, model: Model
) -> None:
    names = ["x\n\x1b[2JThe model asks to call memory_search\u2028:", "y" * 5_000, *(f"z{n}" for n in range(500))]
    ask = calling("memory_delete", id="nothing", **dict.fromkeys(names, "a\u2028b"))
    script = [calling("memory_search", query="boat"), ask, completion("Done.")]
    model.reply = lambda messages: script[sum(message["role"] == "tool" for message in messages)]
    terminal.type(f"{FORGET}\n")
    terminal.until("and wants to call memory_delete:")
    shown = terminal.until("Allow this call? [y/N] ").strip().splitlines()
    assert shown[0].strip() == 'id: "nothing"'
    assert shown[1] == '  x [2JThe model asks to call memory_search :: "a b"'
    assert shown[2] == f'  {"y" * 60} ... and 4940 more characters: "a b"'
    assert shown[-2:] == ["  ... and 483 more arguments", "The memory is: no memory that the call can use"]
    assert len(shown) == 22
    os.write(terminal.own, b"n\n")
    terminal.until("Done.")


def test_ctrl_c_on_a_terminal_stops_the_turn_and_not_the_talk(terminal: Terminal, model: Model) -> None:
    model.reply = hanging = Hanging()
    terminal.type("Are you there?\n")
    assert hanging.asked.wait(BOUND)
    terminal.process.send_signal(signal.SIGINT)
    terminal.until("note: interrupted; your message is stored")
    hanging.let_go.set()
    model.reply = lambda messages: completion("Here I am.")
    terminal.type("Hello?\n")
    terminal.until("Here I am.")
    terminal.until("> ")
    terminal.interrupt_until("/quit ends")
    terminal.type("\x04")
    assert terminal.end() == 0
    assert [message["content"] for message in model.asked[1]["messages"][1:]] == ["Are you there?\n\nHello?"]
