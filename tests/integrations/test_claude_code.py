"""Claude Code, which the package `claude-agent-sdk` brings, with a scripted model: what one session says, the next
one knows, over hooks and over MCP."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sdk = pytest.importorskip("claude_agent_sdk", reason="claude-agent-sdk is not installed")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / ".venv" / "bin" / "agentformer")
BOUND = 120.0
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not Path(PROGRAM).exists(), reason="there is no .venv with agentformer"),
]
Block = dict[str, Any]


class Model:
    """A server with the protocol of Anthropic. `script` gets the messages of a request, and returns the reply: a text,
    or the name and the input of a tool."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.script: Callable[[list[Any]], str | tuple[str, Any]] = lambda messages: "Noted."
        handler = type("Handler", (_Handler,), {"model": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(BOUND)


class _Handler(BaseHTTPRequestHandler):
    model: Model

    def do_HEAD(self) -> None:
        self._send("application/json", b"")

    def do_GET(self) -> None:
        self._send("application/json", b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
            self._send("application/json", b'{"input_tokens": 10}')
            return
        self.model.seen.append(body)
        reply = self.model.script(body["messages"]) if body.get("tools") else "Noted."
        block, stop = _block(reply)
        if not body.get("stream"):
            self._send("application/json", json.dumps(_message(body, [block], stop)).encode())
            return
        self._send("text/event-stream", "".join(_events(body, block, stop)).encode())

    def _send(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


def _block(reply: str | tuple[str, Any]) -> tuple[Block, str]:
    if isinstance(reply, str):
        return {"type": "text", "text": reply}, "end_turn"
    name, values = reply
    return {"type": "tool_use", "id": f"toolu_{time.monotonic_ns()}", "name": name, "input": values}, "tool_use"


def _message(body: dict[str, Any], content: list[Block], stop: str | None) -> dict[str, Any]:
    head = {"id": f"msg_{time.monotonic_ns()}", "type": "message", "role": "assistant", "model": body["model"]}
    usage = {"input_tokens": 10, "output_tokens": 10}
    return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}


def _events(body: dict[str, Any], block: Block, stop: str) -> Iterator[str]:
    empty = {**block, "input": {}} if block["type"] == "tool_use" else {**block, "text": ""}
    delta = (
        {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        if block["type"] == "tool_use"
        else {"type": "text_delta", "text": block["text"]}
    )
    for name, values in (
        ("message_start", {"message": _message(body, [], None)}),
        ("content_block_start", {"index": 0, "content_block": empty}),
        ("content_block_delta", {"index": 0, "delta": delta}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 10}}),
        ("message_stop", {}),
    ):
        yield f"event: {name}\ndata: {json.dumps({'type': name, **values})}\n\n"


class Agent:
    """Claude Code in a project folder and a home folder of its own."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.folder, self.model = folder / "project", model
        self.place = ["--index-dir", str(folder / "index"), "--upload-dir", str(folder / "uploads")]
        self.folder.mkdir(parents=True)
        (folder / "home").mkdir()
        subprocess.run(["git", "init", "-q", str(self.folder)], check=True)
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
        self.environ = {
            **kept,
            "HOME": str(folder / "home"),
            "AGENTFORMER_EMBEDDER": "hashing",
            "ANTHROPIC_API_KEY": "sk-ant-not-a-key",
            "ANTHROPIC_BASE_URL": model.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def agentformer(self, *arguments: str) -> str:
        line = [PROGRAM, *arguments, *self.place]
        done = subprocess.run(line, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=BOUND)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, prompt: str, **options: Any) -> list[Any]:
        """Ask in a new session, and return the messages of the SDK."""
        given = sdk.ClaudeAgentOptions(
            cwd=str(self.folder), env=self.environ, setting_sources=["user", "project", "local"], max_turns=4, **options
        )

        async def run() -> list[Any]:
            return [message async for message in sdk.query(prompt=prompt, options=given)]

        messages = asyncio.run(asyncio.wait_for(run(), BOUND))
        assert messages[-1].subtype == "success", messages[-1]
        return messages

    def settled(self) -> None:
        """Wait until the companion of the hooks has stored what was captured."""
        until = time.monotonic() + BOUND
        while json.loads(self.agentformer("hooks", "--json"))["waiting"]:
            assert time.monotonic() < until
            time.sleep(0.2)


def patiently(file: Path) -> None:
    """Give the hooks in a file more time than people would wait, because a busy machine is no failure."""
    text = file.read_text().replace(" --agent claude-code", " --deadline 60 --agent claude-code")
    assert " --deadline 60" in text
    file.write_text(text.replace('"timeout": 5', '"timeout": 90'))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    model = Model()
    yield Agent(tmp_path, model)
    model.close()


def test_a_session_over_hooks_remembers_in_the_next_one(agent: Agent) -> None:
    agent.agentformer("install", "claude-code", "--project", "--yes")
    patiently(agent.folder / ".claude" / "settings.local.json")
    agent.ask("The release of the harbour app is on Friday, and Aino signs it.")
    agent.settled()
    agent.model.seen.clear()
    agent.ask("Who signs the release of the harbour app?")
    (asked, *_) = [body for body in agent.model.seen if body.get("tools")]
    told = json.dumps(asked["messages"])
    assert "<recalled-memory" in told and "Aino signs it" in told
    agent.settled()
    listed = agent.agentformer("hooks", "list")
    assert "Aino signs it" in listed and "Who signs the release" in listed


def test_the_plugin_is_valid_and_a_session_with_it_remembers_in_the_next_one(agent: Agent) -> None:
    market = agent.folder.parent / "market"
    for name in (".claude-plugin", "plugins"):
        shutil.copytree(ROOT / name, market / name)
    patiently(market / "plugins" / "claude-code" / "hooks" / "hooks.json")
    claude = str(Path(sdk.__file__).parent / "_bundled" / "claude")
    memory = Path(agent.environ["HOME"]) / ".agentformer"
    agent.place = ["--index-dir", str(memory / "indexes"), "--upload-dir", str(memory / "uploads")]
    agent.environ["PATH"] = f"{Path(PROGRAM).parent}{os.pathsep}{agent.environ['PATH']}"
    for arguments, told in (
        (["validate", str(ROOT / "plugins" / "claude-code")], "Validation passed\n"),
        (["validate", str(ROOT)], "Validation passed\n"),
        (["marketplace", "add", str(market)], "Successfully added marketplace"),
        (["install", "agentformer-memory@agentformer"], "Successfully installed plugin"),
    ):
        done = subprocess.run(
            [claude, "plugin", *arguments], env=agent.environ, cwd=agent.folder, capture_output=True, timeout=BOUND
        )
        assert told in done.stdout.decode(), done.stdout.decode()
    agent.ask("The ferry to the island leaves at seven.")
    agent.settled()
    agent.model.seen.clear()
    agent.ask("When does the ferry to the island leave?")
    (asked, *_) = [body for body in agent.model.seen if body.get("tools")]
    assert "leaves at seven" in json.dumps(asked["messages"])
    agent.settled()


def test_a_session_over_mcp_remembers_in_the_next_one(agent: Agent) -> None:
    server = {"type": "stdio", "command": PROGRAM, "args": ["mcp", *agent.place], "env": agent.environ}
    tools = {"mcp_servers": {"agentformer": server}, "allowed_tools": ["mcp__agentformer"]}

    def script(*calls: tuple[str, Any]) -> Callable[[list[Any]], str | tuple[str, Any]]:
        left = [*calls]
        return lambda messages: left.pop(0) if left else "Done."

    agent.model.script = script(("mcp__agentformer__memory_add", {"content": "The spare key hangs in the boathouse."}))
    agent.ask("Remember where the spare key is: in the boathouse.", **tools)
    agent.model.script = script(("mcp__agentformer__memory_search", {"query": "Where is the spare key?"}))
    agent.model.seen.clear()
    agent.ask("Where is it?", **tools)
    results = [
        json.dumps(part)
        for body in agent.model.seen
        for message in body["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "tool_result"
    ]
    assert results and all("hangs in the boathouse" in result for result in results)
