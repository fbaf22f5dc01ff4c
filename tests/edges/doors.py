"""The doors to the toolbox, all alike: Python, HTTP, MCP over standard input and output, and MCP over HTTP."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import anyio.from_thread
import httpx2
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

import agentformer
from agentformer.access.keys import KeyStore
from agentformer.access.permissions import EVERYTHING, Grant
from agentformer.api.app import close_app, create_app
from agentformer.errors import AgentFormerError
from agentformer.settings import load_settings
from agentformer.tools.caller import Caller
from tests.forked import MCP, start

BOUND = 120.0  # seconds that anything here waits at most
Who = Literal["owner", "reader", "harbour"]
GRANTS: dict[Who, Grant] = {
    "owner": EVERYTHING,
    "reader": Grant(frozenset({"read"})),
    "harbour": Grant(frozenset({"read", "write"}), ("harbour",), frozenset({"memory_delete"})),
}
OPTIONS: dict[Who, list[str]] = {
    "owner": [],
    "reader": ["--read-only"],
    "harbour": ["--namespace", "harbour", "--without", "memory_delete"],
}
ENVIRONMENT = {"AGENTFORMER_CLEAN_EVERY": "0", "AGENTFORMER_EMBEDDER": "hashing"}


@dataclass(frozen=True)
class Told:
    """What a caller is told: a value, or the words of a correction."""

    text: str
    value: dict[str, Any] = field(default_factory=dict)
    failed: bool = False

    def __getitem__(self, name: str) -> Any:
        assert not self.failed, self.text
        return self.value[name]


class Door(Protocol):
    reads_files: bool

    def call(self, name: str, arguments: dict[str, Any], who: Who) -> Told: ...

    def names(self, who: Who) -> list[str]: ...


def options(folder: Path) -> list[str]:
    """Where the memory in `folder` is, for a command."""
    return ["--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u"]


def keys_of(folder: Path) -> dict[Who, str]:
    """A key of each kind, made now."""
    store = KeyStore(folder / "i")
    return {who: store.make(who, g.rights, g.namespaces, g.without)[1] for who, g in GRANTS.items()}


class PythonDoor:
    reads_files = True

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        settings = {"clean_every": 0, "embedder": "hashing"}
        self._af = stack.enter_context(agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", **settings))
        self._folder = folder

    def call(self, name: str, arguments: dict[str, Any], who: Who) -> Told:
        caller = Caller(grant=GRANTS[who], folder=self._folder)
        try:
            return Told("", self._af.toolbox.call(name, arguments, caller))
        except AgentFormerError as error:
            return Told(str(error), failed=True)

    def names(self, who: Who) -> list[str]:
        return [tool.name for tool in self._af.toolbox.definitions(GRANTS[who])]


class HttpDoor:
    reads_files = False

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._keys = keys_of(folder)
        settings = load_settings(
            {"index_dir": folder / "i", "upload_dir": folder / "u", "clean_every": 0, "embedder": "hashing"}
        )
        app = create_app(settings)
        stack.callback(close_app, app)
        self._client = app.test_client()

    def call(self, name: str, arguments: dict[str, Any], who: Who) -> Told:
        answer = self._client.post(f"/api/tools/{name}", json=arguments, headers=self._bearer(who))
        told = answer.get_json()
        if answer.status_code == 200:
            return Told("", told["result"])
        assert answer.content_type == "application/problem+json"
        return Told(told.get("detail", told["title"]), failed=True)

    def names(self, who: Who) -> list[str]:
        listed = self._client.get("/api/tools", headers=self._bearer(who)).get_json()
        return [tool["function"]["name"] for tool in listed["tools"]]

    def _bearer(self, who: Who) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._keys[who]}"}


class McpDoor:
    """`connect` gives a client for who asks; clients live as long as the door."""

    def __init__(self, connect: Callable[[Who], Client], stack: ExitStack, *, reads_files: bool) -> None:
        self.reads_files = reads_files
        self._connect = connect
        self._stack = stack
        self._portal = stack.enter_context(anyio.from_thread.start_blocking_portal())
        self._clients: dict[Who, Client] = {}

    def call(self, name: str, arguments: dict[str, Any], who: Who) -> Told:
        told = self._portal.call(self._client(who).call_tool, name, arguments)
        assert len(told.content) == 1
        return Told(told.content[0].text, told.structured_content or {}, told.is_error)

    def names(self, who: Who) -> list[str]:
        return [tool.name for tool in self._portal.call(self._client(who).list_tools).tools]

    def _client(self, who: Who) -> Client:
        if who not in self._clients:
            context = self._portal.wrap_async_context_manager(self._connect(who))
            self._clients[who] = self._stack.enter_context(context)
        return self._clients[who]


_RELAY = 'cat < "$2" & cat > "$1"; wait'  # its own input and output are those of the server
_servers: list[Any] = []  # kept until the end: they report their end to this process


def stdio_transport(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Any:
    """`agentformer mcp` as a forked process, which reads and writes the memory in `folder`. The client starts a shell
    that passes everything on between it and the server."""
    pipes = [str(folder / f"{name}{len(_servers)}") for name in ("input", "output")]
    for pipe in pipes:
        os.mkfifo(pipe)
    code = (
        "import os\n"
        f"for number, (pipe, mode) in enumerate(zip({pipes}, (os.O_RDONLY, os.O_WRONLY))):\n"
        "    os.dup2(os.open(pipe, mode), number)\n"
        "from agentformer.cli import main\n"
        f"main({['mcp', *options(folder), *arguments]})"
    )
    environ = {**os.environ, **ENVIRONMENT, **(environment or {})}
    with Path(os.devnull).open("w") as nowhere:
        _servers.append(start(code, MCP, cwd=folder, env=environ, stderr=nowhere))
    return stdio_client(StdioServerParameters(command="sh", args=["-c", _RELAY, "sh", *pipes]))


class HttpServer:
    """`agentformer mcp --http` as a process of its own; `before` is Python that it runs first."""

    def __init__(
        self, folder: Path, *arguments: str, environment: dict[str, str] | None = None, before: str = ""
    ) -> None:
        self.folder = folder
        command = ["mcp", "--http", "--port", "0", *options(folder), *arguments]
        code = f"{before}\nfrom agentformer.cli import main\nmain({command})"
        environ = {**os.environ, **ENVIRONMENT, **(environment or {})}
        self.process = start(code, MCP, cwd=folder, env=environ, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        self.told = self.process.stderr.readline()
        self.url = self.told.removeprefix("serving MCP on ").strip()

    def client(self, key: str = "", **options: Any) -> Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        http = httpx2.AsyncClient(headers=headers, timeout=BOUND)
        return Client(streamable_http_client(self.url, http_client=http), **options)

    def end(self) -> tuple[int, str]:
        """SIGTERM, the exit code, and what was said on standard error."""
        self.process.terminate()
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for the end, and return the exit code and the standard error. A second signal, which `end` would send,
        ends a process with another code while its interpreter shuts down."""
        _, said = self.process.communicate(timeout=BOUND)
        return self.process.returncode, said

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=BOUND)


def after(event: threading.Event, text: str) -> Callable[[], Iterator[str]]:
    """A script for a language model that answers when the test says so."""

    def script() -> Iterator[str]:
        event.wait(BOUND)
        yield text

    return script


def mcp_stdio_door(folder: Path, stack: ExitStack) -> McpDoor:
    return McpDoor(lambda who: Client(stdio_transport(folder, *OPTIONS[who])), stack, reads_files=True)


def mcp_http_door(folder: Path, stack: ExitStack) -> McpDoor:
    keys, server = keys_of(folder), HttpServer(folder)
    stack.callback(server.close)
    return McpDoor(lambda who: server.client(keys[who]), stack, reads_files=False)


DOORS: dict[str, Callable[[Path, ExitStack], Door]] = {
    "python": PythonDoor,
    "http": HttpDoor,
    "mcp-stdio": mcp_stdio_door,
    "mcp-http": mcp_http_door,
}
