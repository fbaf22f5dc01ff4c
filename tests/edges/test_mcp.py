"""The MCP server over standard input and output, with the official client and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
pytest.importorskip("flask", reason="the extra `server` is not installed")

import anyio
import anyio.from_thread
from click.testing import CliRunner
from mcp.client import Client
from mcp.shared.exceptions import MCPError

import agentformer
from agentformer.cli import main
from agentformer.errors import install_command
from agentformer.tools.toolbox import HINTS
from tests.edges.doors import BOUND, ENVIRONMENT, after, options, stdio_transport
from tests.edges.running import wait_until
from tests.edges.talking import Talker
from tests.forked import MCP, command, ended, start

pytestmark = pytest.mark.process
T = TypeVar("T")
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "a test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class Conversation:
    """The official client, connected to a server of its own. Call it with what to say."""

    def __init__(self, folder: Path, stack: ExitStack, *arguments: str, mode: str, **more: Any) -> None:
        self.folder, self.mode = folder, mode
        self._portal = stack.enter_context(anyio.from_thread.start_blocking_portal())
        client = Client(stdio_transport(folder, *arguments, **more), mode=mode)
        self._client = stack.enter_context(self._portal.wrap_async_context_manager(client))

    def __call__(self, talk: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        async def within() -> T:
            with anyio.fail_after(BOUND):
                return await talk(self._client)

        return self._portal.call(within)


def called(number: int, tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


class Piped:
    """`agentformer mcp` with nothing between its pipes and the test; `before` is Python that it runs first."""

    def __init__(self, folder: Path, *arguments: str, before: str = "", environment: dict[str, str] | None = None):
        command = ["mcp", *options(folder), *arguments]
        code = f"{before}\nfrom agentformer.cli import main\nmain({command})"
        environ = {**os.environ, **ENVIRONMENT, **(environment or {})}
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": False}
        self.process = start(code, MCP, cwd=folder, env=environ, **pipes)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def say(self, *messages: Any) -> None:
        for message in messages:
            self.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        self.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next message; every line must be one."""
        timer = threading.Timer(BOUND, self.process.kill)
        timer.start()
        try:
            told: dict[str, Any] = json.loads(self.stdout.readline())
        finally:
            timer.cancel()
        return told

    def greet(self) -> dict[str, Any]:
        self.say(INITIALIZE)
        told = self.hear()
        self.say(INITIALIZED)
        return told

    def end(self) -> tuple[int, list[dict[str, Any]], str]:
        """Close the input; the exit code, what was answered yet, and what was said on standard error."""
        said, errors = self.process.communicate(timeout=BOUND)
        return self.process.returncode, [json.loads(line) for line in said.splitlines()], errors.decode()


@pytest.fixture
def piped(tmp_path: Path) -> Iterator[Callable[..., Piped]]:
    started: list[Piped] = []

    def start(*arguments: str, **more: Any) -> Piped:
        started.append(Piped(tmp_path, *arguments, **more))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait(timeout=BOUND)
        for pipe in (each.stdin, each.stdout, each.process.stderr):
            with suppress(OSError):  # what was still to be written
                pipe.close()


@pytest.fixture
def talker() -> Iterator[Talker]:
    talker = Talker()
    yield talker
    talker.close()


@pytest.fixture(scope="module")
def open_talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Conversation, Talker]]:
    talker = Talker()
    with ExitStack() as stack:
        stack.callback(talker.close)
        environment = {**talker.settings, "AGENTFORMER_THREADS": "8"}
        yield Conversation(tmp_path_factory.mktemp("open"), stack, mode="auto", environment=environment), talker


@pytest.fixture(scope="module")
def bound_talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    """With an older version of the protocol, for one user, and with a folder of files."""
    folder = tmp_path_factory.mktemp("bound")
    (folder / "a.txt").write_text("The current folder has a file.")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").write_text("The folder below has one.")
    place = ["--user", "aino", "--agent", "helper", "--project", "harbour", "--namespace", "work"]
    with ExitStack() as stack:
        yield Conversation(folder, stack, *place, "--folder", str(folder / "sub"), mode="legacy")


def test_the_official_client_sees_the_tools_as_the_toolbox_defines_them(
    open_talk: tuple[Conversation, Talker], bound_talk: Conversation, tmp_path: Path
) -> None:
    async def talk(client: Client) -> Any:
        return client.instructions, (await client.list_tools()).tools

    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        definitions = af.toolbox.definitions()
    for conversation in (open_talk[0], bound_talk):
        instructions, tools = conversation(talk)
        assert [(tool.name, tool.title, tool.description, tool.input_schema) for tool in tools] == [
            (each.name, each.title, each.description, each.parameters) for each in definitions
        ], conversation.mode
        assert "memory_search" in instructions
        assert len(instructions) < 1500
    offered = {name: hints for name, hints in HINTS.items() if name != "rag_sync"}  # no folder may be synced here
    assert {tool.name: tool.annotations.destructive_hint for tool in tools} == {
        name: hints.permission.right != "read" and not hints.additive for name, hints in offered.items()
    }
    assert {tool.name for tool in tools if tool.annotations.read_only_hint} == {
        name for name, hints in offered.items() if hints.permission.right == "read"
    }
    assert all(tool.annotations.open_world_hint is False for tool in tools)


def test_a_result_is_json_twice_and_a_failure_is_words(open_talk: tuple[Conversation, Talker]) -> None:
    async def talk(client: Client) -> Any:
        return (
            await client.call_tool("memory_add", {"content": "Aino bor i Åbo. 愛野"}),
            await client.call_tool("memory_add", {"content": ""}),
        )

    added, failed = open_talk[0](talk)
    assert not added.is_error
    assert json.loads(added.content[0].text) == added.structured_content
    assert added.structured_content["memory"]["content"] == "Aino bor i Åbo. 愛野"
    assert failed.is_error
    assert failed.structured_content is None
    assert failed.content[0].text.startswith("content: is wrong: String should have at least 1 character")


def test_the_options_say_whose_memories_are_meant(bound_talk: Conversation) -> None:
    async def talk(client: Client) -> Any:
        await client.call_tool("memory_add", {"content": "The crane is blue."})
        return await client.call_tool("memory_add", {"content": "x", "namespace": "default"})

    refused = bound_talk(talk)
    assert refused.content[0].text == "this key may use only the namespace work"
    folder = bound_talk.folder
    with agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing") as af:
        (entry,) = af.memory.list(namespace="work", kinds=["fact"])
    assert (entry.user_id, entry.agent_id, entry.project) == ("aino", "helper", "harbour")


def test_calls_run_side_by_side_and_a_cancelled_one_harms_nothing(open_talk: tuple[Conversation, Talker]) -> None:
    conversation, talker = open_talk
    talker.seen.clear()
    go_on = threading.Event()
    talker.script = after(go_on, "The tide is high [1].")

    async def talk(client: Client) -> Any:
        await client.call_tool("rag_upload", {"name": "tide.txt", "text": "The tide is high at noon."})
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await client.call_tool("rag_query", {"question": "When is the tide high?"}))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
            while len(talker.seen) < 3:  # all three wait for the language model now
                await anyio.sleep(0.01)
            with anyio.move_on_after(0.2):
                await client.call_tool("rag_query", {"question": "When is the tide high?"})
            status = await client.call_tool("memory_status")
            go_on.set()
        return status, answers

    try:
        status, answers = conversation(talk)
    finally:
        go_on.set()
    assert status.structured_content["documents"] == 1
    assert [answer.structured_content["mode"] for answer in answers] == ["llm"] * 3


@pytest.mark.usefixtures("faiss_files")
def test_the_greeting_is_answered_although_the_memory_cannot_be_opened(
    piped: Callable[..., Piped], tmp_path: Path
) -> None:
    (tmp_path / "i").write_text("a file where a folder should be")
    server = piped()
    assert server.greet()["result"]["serverInfo"]["name"] == "agentformer"
    server.say({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, called(2, "memory_status"))
    told = {message["id"]: message for message in (server.hear(), server.hear())}
    assert told[1]["error"]["message"] == "The memory is unavailable; see the log of the server."
    assert told[2]["result"]["isError"] is True
    code, _, errors = server.end()
    assert code == 0
    assert "cannot be opened" in errors
    assert "Traceback" not in errors


def test_what_others_print_does_not_mix_with_the_protocol(piped: Callable[..., Piped]) -> None:
    noise = """
import os, subprocess
from agentformer.tools.toolbox import Toolbox
quiet = Toolbox.call
def loud(*arguments):
    print("noise", flush=True)
    os.write(1, b"noise\\n")
    subprocess.run(["echo", "noise"])
    return quiet(*arguments)
Toolbox.call = loud
"""
    server = piped(before=noise)
    server.greet()
    server.say(called(1, "memory_add", content="It is quiet."))
    assert server.hear()["result"]["isError"] is False
    code, rest, errors = server.end()
    assert (code, rest) == (0, [])
    assert errors.count("noise") == 3


def test_lines_that_are_no_messages_are_answered_or_survived(piped: Callable[..., Piped]) -> None:
    server = piped()
    server.say(b"\xef\xbb\xbf" + json.dumps(INITIALIZE).encode() + b"\n")
    assert server.hear()["result"]["serverInfo"]["name"] == "agentformer"
    server.say(INITIALIZED, b"\n", b" \r\n", b"no JSON\n")
    assert server.hear() == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "the line is not valid JSON: expected ident at line 1 column 2"},
    }
    server.say({"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": []})
    told = server.hear()
    assert (told["id"], told["error"]["code"]) == (5, -32602)
    server.say(called(6, "memory_add", content="\ud800"))
    told = server.hear()
    assert (told["id"], told["error"]["code"]) == (6, -32700)
    server.say(b"\xff\xfe\x00\n", b"[1, 2]\n", b'{"jsonrpc": "2.0"}\n', b"[" * 100_000 + b"\n")
    server.say(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"memory_add",')
    server.say(b'"arguments":{"content":"split in two"}}}\n')
    while (told := server.hear()).get("id") != 7:
        assert "result" not in told
    assert told["result"]["structuredContent"]["memory"]["content"] == "split in two"
    assert server.end() == (0, [], "")


def test_what_was_asked_before_the_input_ended_is_answered(piped: Callable[..., Piped]) -> None:
    server = piped()
    server.say(INITIALIZE, INITIALIZED)
    server.say(*(called(number, "memory_add", content=f"Fact number {number}.") for number in range(1, 21)))
    code, answers, errors = server.end()
    assert (code, errors) == (0, "")
    assert {answer["id"] for answer in answers} == set(range(21))
    assert all("error" not in answer for answer in answers)


def test_a_signal_ends_it_after_what_is_under_way(piped: Callable[..., Piped], talker: Talker, tmp_path: Path) -> None:
    go_on = threading.Event()
    talker.script = after(go_on, "At noon [1].")
    server = piped(environment=talker.settings)
    server.greet()
    server.say(called(1, "rag_upload", name="tide.txt", text="The tide is high at noon."))
    assert server.hear()["result"]["isError"] is False
    server.say(called(2, "rag_query", question="When is the tide high?"))
    try:
        wait_until(lambda: bool(talker.seen))
        server.process.send_signal(signal.SIGTERM)
    finally:
        go_on.set()
    assert server.hear()["result"]["structuredContent"]["mode"] == "llm"
    code, rest, errors = server.end()
    assert (code, rest, errors) == (0, [], "")


def test_a_call_that_does_not_return_is_left_behind(piped: Callable[..., Piped], talker: Talker) -> None:
    go_on = threading.Event()
    talker.script = after(go_on, "At noon [1].")
    server = piped(
        before="import agentformer.mcp_server.stdio as stdio; stdio._FINISH_SECONDS = 0.5", environment=talker.settings
    )
    server.greet()
    server.say(called(1, "rag_upload", name="tide.txt", text="The tide is high at noon."))
    server.hear()
    server.say(called(2, "rag_query", question="When is the tide high?"))
    try:
        code, answers, errors = server.end()
    finally:
        go_on.set()
    assert (code, answers) == (1, [])
    assert errors == "a call did not finish within 0.5 seconds; the server exits and does not wait for the call\n"


def test_a_question_that_was_cancelled_does_not_delay_the_end(piped: Callable[..., Piped], talker: Talker) -> None:
    go_on = threading.Event()
    talker.script = after(go_on, "At noon [1].")
    server = piped(environment=talker.settings)  # a call that is waited for would end the process with the code 1
    server.greet()
    server.say(called(1, "rag_upload", name="tide.txt", text="The tide is high at noon."))
    server.hear()
    server.say(called(2, "rag_query", question="When is the tide high?"))
    try:
        wait_until(lambda: bool(talker.seen))
        server.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
        code, answers, errors = server.end()
    finally:
        go_on.set()
    assert (code, [answer for answer in answers if "result" in answer], errors) == (0, [], "")


def test_ctrl_c_ends_it_while_it_waits(piped: Callable[..., Piped]) -> None:
    server = piped()
    server.greet()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(timeout=BOUND) == 0


def test_a_signal_while_it_ends_changes_nothing(piped: Callable[..., Piped]) -> None:
    # Clients send SIGTERM where the end of the input has not ended a server soon enough.
    impatient = """
import os, signal
from agentformer.factory import AgentFormer
close = AgentFormer.close
def closing(self):
    os.kill(os.getpid(), signal.SIGTERM)
    close(self)
    os.write(2, b"closed")
AgentFormer.close = closing
"""
    server = piped(before=impatient)
    server.greet()
    server.say(called(1, "memory_add", content="Soon over."))
    server.hear()
    assert server.end() == (0, [], "closed")


def test_a_client_that_is_gone_ends_it_and_what_it_asked_for_is_done(
    piped: Callable[..., Piped], tmp_path: Path
) -> None:
    server = piped()
    server.greet()
    server.say(*(called(number, "memory_add", content=f"Fact number {number}.") for number in range(1, 6)))
    server.hear()
    server.stdout.close()
    server.stdin.close()
    assert server.process.wait(timeout=BOUND) == 0
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        assert af.backend.count(agentformer.Scope()) >= 1


def test_files_are_read_below_the_folder_and_nowhere_else(bound_talk: Conversation) -> None:
    async def talk(client: Client) -> Any:
        return [await client.call_tool("rag_upload", {"path": path}) for path in ("b.txt", "sub/b.txt", "../a.txt")]

    told = bound_talk(talk)
    assert [each.is_error for each in told] == [False, True, True]
    assert told[1].content[0].text == "path: 'sub/b.txt' cannot be read: No such file or directory"
    assert str(bound_talk.folder) not in told[2].content[0].text


def test_documents_are_resources_read_by_page(open_talk: tuple[Conversation, Talker]) -> None:
    conversation, talker = open_talk
    talker.script = lambda: iter(["At noon [1]."])

    async def talk(client: Client) -> Any:
        await client.call_tool("rag_upload", {"name": "tide.txt", "text": "The tide is high at noon."})
        await client.call_tool("core_memory_append", {"name": "the persona", "text": "You help."})
        (listed,) = (await client.list_resources()).resources
        templates = [each.uri_template for each in (await client.list_resource_templates()).resource_templates]
        whole = await client.read_resource(listed.uri)
        page = await client.read_resource(f"{listed.uri}/pages/1")
        core = await client.read_resource("agentformer://core/the%20persona")
        faults = []
        for uri in (f"{listed.uri}/pages/2", "agentformer://documents/none", "file:///etc/passwd", "agentformer://"):
            with pytest.raises(MCPError) as fault:
                await client.read_resource(uri)
            faults.append(fault.value)
        answer = await client.call_tool("rag_query", {"question": "When is the tide high?"})
        return listed, templates, [each.contents[0].text for each in (whole, page, core)], faults, answer

    listed, templates, texts, faults, answer = conversation(talk)
    assert (listed.name, listed.mime_type, listed.size) == ("tide.txt", "text/plain", 25)
    assert templates[1] == "agentformer://documents/{id}/pages/{number}"
    assert texts == ["[page 1 of 1]\nThe tide is high at noon.\n\n", "The tide is high at noon.", "You help."]
    assert {fault.code for fault in faults} == {-32602}
    assert all("there is no resource" in fault.message for fault in faults)
    citation = answer.structured_content["citations"][0]
    assert listed.uri.endswith(citation["document_id"])
    assert texts[1][citation["start"] : citation["end"]] == citation["quote"]


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    without = (
        "for name in [name for name in sys.modules if name.startswith(('mcp', 'agentformer.mcp_server'))]:\n"
        "    del sys.modules[name]  # of the process that it is a fork of\n"
        "sys.modules['mcp'] = None"
    )
    done = ended(command("mcp", before=without, cwd=tmp_path))
    assert done.returncode == 2
    assert install_command("mcp") in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--without", "memory_ad"], "--without: there is no tool 'memory_ad'; the tools are memory_add"),
        (["--port", "0"], "--port: requires --http"),
        (["--folder", "nowhere"], "--folder: 'nowhere' is not a folder"),
        (["--http", "--host", "0.0.0.0"], "make a key with: agentformer keys add NAME"),
        (["--http", "--host", "no such host"], "'no such host' is not an address of this machine; use 127.0.0.1"),
        (["--http", "--host", "bogus.invalid"], "'bogus.invalid' is not an address of this machine; use 127.0.0.1"),
        (["--http", "--host", ""], "--host: must be a text"),
        (["--user", ""], "--user: must be a text"),
        (["--agent", ""], "--agent: must be a text"),
        (["--project", " "], "--project: must be a text"),
        (["--session", ""], "--session: must be a text"),
        (["--namespace", ""], "--namespace: must be a text"),
        (["--folder", ""], "--folder: '' is not a folder"),
    ],
)
def test_wrong_options_are_told_before_anything_is_served(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["mcp", *options(tmp_path), *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_person_at_a_terminal_is_told_what_this_is(tmp_path: Path) -> None:
    person, terminal = os.openpty()
    on_it = f"import os\nos.dup2(os.open({os.ttyname(terminal)!r}, os.O_RDWR | os.O_NOCTTY), 0)"
    process = command("mcp", *options(tmp_path), before=on_it, imports=MCP, env=ENVIRONMENT)
    assert process.stderr is not None
    assert "press Ctrl-D to end" in process.stderr.readline()
    os.close(terminal)
    os.write(person, b"\x04")
    said, _ = process.communicate(timeout=BOUND)
    os.close(person)
    assert (process.returncode, said) == (0, "")
