"""The MCP server over HTTP: keys, hosts, limits and its end. Every request stands for itself."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
pytest.importorskip("flask", reason="the extra `server` is not installed")

import anyio
import httpx2
from click.testing import CliRunner
from mcp.client import Client
from mcp.shared.exceptions import MCPError

import agentformer
from agentformer.access.keys import KeyStore
from agentformer.cli import main
from tests.backends.postgres_server import stored_keys
from tests.edges.doors import BOUND, HttpServer, after, options
from tests.edges.running import wait_until
from tests.edges.talking import Talker

pytestmark = pytest.mark.process
Start = Callable[..., HttpServer]
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
WEB = httpx2.Client(timeout=BOUND, headers={"Connection": "close"})  # which reads the certificates once


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[HttpServer] = []

    def start(*arguments: str, **more: Any) -> HttpServer:
        started.append(HttpServer(tmp_path, *arguments, **more))
        assert started[-1].url.startswith("http://"), started[-1].told
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """One without keys, for tests that change nothing."""
    server = HttpServer(
        tmp_path_factory.mktemp("open"),
        environment={"AGENTFORMER_ALLOWED_HOSTS": "memory.example.org", "AGENTFORMER_MAX_FILE_BYTES": "1000"},
    )
    yield server
    server.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """One for tests that make keys."""
    server = HttpServer(tmp_path_factory.mktemp("guarded"))
    yield server
    server.close()


@pytest.fixture
def talker() -> Iterator[Talker]:
    talker = Talker()
    yield talker
    talker.close()


def bounded(run: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def within() -> Any:
        with anyio.fail_after(BOUND):
            return await run()

    return anyio.run(within)


def post(server: HttpServer, message: Any, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return WEB.post(server.url, content=json.dumps(message), headers={**JSON, **named})


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def told(answer: httpx2.Response) -> dict[str, Any]:
    """The message of an answer that is one event, or JSON."""
    assert answer.status_code == 200, answer.text
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return json.loads(data[-1] if data else answer.text)


def names(answer: httpx2.Response) -> set[str]:
    return {tool["name"] for tool in told(answer)["result"]["tools"]}


def test_without_keys_this_machine_is_served_and_a_wrong_key_is_refused(open_server: HttpServer) -> None:
    assert "memory_add" in names(post(open_server, LIST))
    refused = post(open_server, LIST, Authorization="Bearer af_00000000_wrong")
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"] == 'Bearer realm="agentformer"'
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:agentformer:problem:unauthenticated"
    assert post(open_server, LIST, Authorization="Basic YTpi").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"X_Forwarded_For": "127.0.0.1"}, 401),
        ({"Forwarded": "for=127.0.0.1"}, 401),
        ({"Origin": "http://localhost:5173"}, 403),  # a page of another port is a page of another program
        ({"Origin": "http://localhost:5173", "Host": "localhost:5173"}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "memory.example.org"}, 200),
        ({"Host": "memory.example.org:443"}, 200),
        ({"Host": "other.example.org"}, 421),
        ({"Host": "127.0.0.1:evil"}, 421),
        ({"Host": "localhost:@evil.com"}, 421),
        ({"Host": "memory.example.org:80@evil.com"}, 421),
        ({"Origin": "http://localhost:@evil.com"}, 403),
        ({"Origin": "http://localhost:evil"}, 403),
    ],
)
def test_pages_that_play_tricks_with_names_and_proxies_are_refused(
    open_server: HttpServer, headers: dict[str, str], status: int
) -> None:
    assert post(open_server, LIST, **headers).status_code == status


def test_each_request_has_the_grant_of_its_own_key_until_it_is_revoked(guarded: HttpServer) -> None:
    keys = stored_keys(guarded.folder / "i")
    assert names(post(guarded, LIST))
    reading, read = keys.make("reading", ["read"], ["work"])
    writing, write = keys.make("writing", ["write"], ["work"])
    assert post(guarded, LIST).status_code == 401
    assert "memory_add" not in names(post(guarded, LIST, Authorization=f"Bearer {read}"))
    assert "memory_search" not in names(post(guarded, LIST, Authorization=f"bearer {write}"))

    async def run() -> Any:
        async with guarded.client(write) as writer, guarded.client(read) as reader:
            added = await writer.call_tool("memory_add", {"content": "The crane is blue."})
            found = await reader.call_tool("memory_search", {"query": "crane"})
            refused = await reader.call_tool("memory_add", {"content": "x"})
            keys.revoke(reading.id)
            with pytest.raises(MCPError):
                await reader.call_tool("memory_search", {"query": "crane"})
            return added, found, refused

    added, found, refused = bounded(run)
    assert added.structured_content["memory"]["namespace"] == "work"
    assert [each["content"] for each in found.structured_content["memories"]] == ["The crane is blue."]
    assert refused.is_error
    keys.revoke(writing.id)
    assert post(guarded, LIST, Authorization=f"Bearer {read}").status_code == 401
    assert post(guarded, LIST).status_code == 401  # the last key's end opens nothing


def test_the_limits_of_a_key_hold_and_are_in_the_headers(guarded: HttpServer) -> None:
    keys = stored_keys(guarded.folder / "i")
    key = {"Authorization": f"Bearer {keys.make('team', namespaces=['limited'], max_entries=1)[1]}"}
    fact = call("memory_add", content="Anna lives in Turku.")
    assert not told(post(guarded, fact, **key))["result"].get("isError")
    refused = told(post(guarded, call("memory_add", content="Anna likes tea."), **key))["result"]
    assert refused["isError"] and "may store 1 entries" in refused["content"][0]["text"]
    slow = {"Authorization": f"Bearer {keys.make('slow', requests_per_minute=1, questions_per_day=5)[1]}"}
    first = post(guarded, LIST, **slow)
    assert first.status_code == 200 and first.headers["RateLimit-Policy"] == '"key";q=1;w=60, "questions";q=5;w=86400'
    second = post(guarded, LIST, **slow)
    assert second.status_code == 429 and second.headers["RateLimit"].startswith('"key";r=0;t=')
    assert int(second.headers["Retry-After"]) > 0
    scraper = {"Authorization": f"Bearer {keys.make('prometheus', ['metrics'])[1]}"}
    assert names(post(guarded, LIST, **scraper)) == set()
    assert told(post(guarded, fact, **scraper))["result"]["isError"]


def test_documents_of_namespaces_that_a_key_does_not_reach_look_like_none(guarded: HttpServer) -> None:
    folder = guarded.folder
    with agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing") as af:
        work = af.rag.upload(b"The crane is blue.", name="crane.txt", namespace="work")
        home = af.rag.upload(b"The cat is grey.", name="cat.txt", namespace="home")
    keys = stored_keys(folder / "i")
    working, writing = keys.make("working", ["read"], ["work"])[1], keys.make("blind", ["write"])[1]

    async def run() -> Any:
        async with guarded.client(working) as client, guarded.client(writing) as blind:
            listed = [each.name for each in (await client.list_resources()).resources]
            assert (await blind.list_resources()).resources == []
            faults = []
            for asked, of in ((client, home.id), (client, "0" * len(home.id)), (blind, work.id)):
                with pytest.raises(MCPError) as fault:
                    await asked.read_resource(f"agentformer://documents/{of}")
                faults.append((fault.value.code, fault.value.message.replace(of, "ID")))
            return listed, faults

    listed, faults = bounded(run)
    assert listed == ["crane.txt"]
    assert len(set(faults)) == 1


@pytest.mark.usefixtures("faiss_files")
def test_what_the_server_was_started_with_bounds_every_key_and_damaged_keys_let_nobody_in(
    start: Start, tmp_path: Path
) -> None:
    admin = KeyStore(tmp_path / "i").make("admin", ["admin"])[1]
    server = start("--read-only", "--without", "memory_audit", "--namespace", "work")
    seen = names(post(server, LIST, Authorization=f"Bearer {admin}"))
    assert "memory_search" in seen
    assert not seen & {"memory_add", "memory_audit"}
    (tmp_path / "i" / "keys.json").write_text("{")
    for headers in ({}, {"Authorization": f"Bearer {admin}"}):
        refused = post(server, LIST, **headers)
        assert refused.status_code == 503
        assert str(tmp_path) not in refused.text


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "OPTIONS"])
def test_there_are_no_sessions_to_listen_to(open_server: HttpServer, method: str) -> None:
    answer = WEB.request(method, open_server.url, headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


def test_a_message_that_is_too_large_is_refused_by_the_name_of_the_limit(open_server: HttpServer) -> None:
    for body in (b"x" * 2_000_000, (b"x" * 100_000 for _ in range(20))):
        refused = WEB.post(open_server.url, content=body, headers=JSON)
        assert (refused.status_code, refused.json()["limit"]) == (413, "max_message_bytes")
    assert names(post(open_server, LIST))


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", b"[" * 100_000, b"\xff\xfe", b'{"jsonrpc": "2.0"}', b"[]", b"null", b'{"id": 1e999}'],
)
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
def test_bodies_that_are_no_messages_are_refused(open_server: HttpServer, body: bytes, version: str) -> None:
    headers = {**JSON, "MCP-Protocol-Version": version}
    answer = WEB.post(open_server.url, content=body, headers=headers)
    assert 400 <= answer.status_code < 500
    assert "Traceback" not in answer.text
    assert names(post(open_server, LIST))


@pytest.mark.parametrize("number", [None, 1.5, {}, [], True])
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
def test_a_request_whose_id_is_none_is_refused_and_no_notification(
    open_server: HttpServer, number: Any, version: str
) -> None:
    refused = post(open_server, {**LIST, "id": number}, MCP_Protocol_Version=version)
    assert refused.status_code == 400
    assert (refused.json()["error"]["code"], refused.json()["id"]) == (-32600, None)
    assert post(open_server, {**LIST, "params": []}).json()["id"] == 1


def test_half_a_surrogate_pair_is_corrected(open_server: HttpServer) -> None:
    refused = post(open_server, call("memory_add", content="\ud800"), MCP_Protocol_Version="2025-06-18")
    assert refused.status_code == 400
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = call("memory_add", content="x", title="\ud800")
    message["params"]["_meta"] = meta
    named = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": "tools/call", "Mcp_Name": "memory_add"}
    result = told(post(open_server, message, **named))["result"]
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("title: contains half of a surrogate pair")


def test_a_client_that_hangs_up_harms_nobody_and_a_signal_lets_calls_under_way_finish(
    start: Start, talker: Talker
) -> None:
    go_on = threading.Event()
    talker.script = after(go_on, "At noon [1].")
    server = start(environment=talker.settings)

    async def run() -> Any:
        async with server.client(mode="legacy") as old, server.client() as new:
            await old.call_tool("rag_upload", {"name": "tide.txt", "text": "The tide is high at noon."})
            await new.list_tools()  # which it asks for after its first result else
            hang_up(server, talker)
            answers: list[Any] = []

            async def ask(client: Client) -> None:
                answers.append(await client.call_tool("rag_query", {"question": "When is the tide high?"}))

            async with anyio.create_task_group() as group:
                group.start_soon(ask, old)
                group.start_soon(ask, new)
                while len(talker.seen) < 3:
                    await anyio.sleep(0.02)
                server.process.terminate()
                while await is_listening(server):
                    await anyio.sleep(0.02)
                go_on.set()
            return answers

    try:
        answers = bounded(run)
    finally:
        go_on.set()
    assert [answer.structured_content["mode"] for answer in answers] == ["llm", "llm"]
    assert server.ended() == (0, "")


def hang_up(server: HttpServer, talker: Talker) -> None:
    """Leave while a call waits for its answer, and leave before all of a call is said."""
    body = json.dumps(call("rag_query", question="When is the tide high?")).encode()
    host, port = server.url.removeprefix("http://").removesuffix("/mcp").split(":")
    head = "".join(
        f"{name}: {value}\r\n" for name, value in {"Host": host, **JSON, "Content-Length": len(body)}.items()
    )
    for sent in (body, body[:20]):
        with socket.create_connection((host, int(port)), timeout=BOUND) as connection:
            connection.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + sent)
            if sent is body:
                wait_until(lambda: bool(talker.seen))
    assert names(post(server, LIST))


HASTY = "import agentformer.mcp_server.http as http; http._FINISH_SECONDS, http._EXIT_SECONDS = 1, 1.5"
STUCK = """import pathlib, time
from agentformer.memory.memory_manager import MemoryManager
MemoryManager.store = lambda *args, **values: (pathlib.Path({!r}).touch(), time.sleep(600))
"""


def test_a_question_that_does_not_return_is_abandoned(start: Start, talker: Talker) -> None:
    go_on = threading.Event()
    talker.script = after(go_on, "At noon [1].")
    server = start(before=HASTY, environment=talker.settings)

    async def run() -> None:
        async with server.client() as client:
            await client.call_tool("rag_upload", {"name": "tide.txt", "text": "The tide is high at noon."})

    bounded(run)
    asking = threading.Thread(target=call_in_vain, args=(server, "rag_query", {"question": "When is the tide high?"}))
    asking.start()
    try:
        wait_until(lambda: bool(talker.seen))
        assert server.end()[0] == 0
    finally:
        go_on.set()
        asking.join()


def test_a_change_that_does_not_return_is_left_behind(start: Start, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    server = start(before=f"{HASTY}\n" + STUCK.format(str(reached)))
    storing = threading.Thread(
        target=call_in_vain, args=(server, "memory_add", {"content": "The tide is high at noon."})
    )
    storing.start()
    try:
        wait_until(reached.exists)
        code, errors = server.end()
    finally:
        storing.join()
    assert code == 1
    assert "a call did not finish within 1.5 seconds; the server exits and does not wait for the call\n" in errors


def call_in_vain(server: HttpServer, tool: str, values: dict[str, str]) -> None:
    with suppress(httpx2.HTTPError):
        post(server, call(tool, **values))


async def is_listening(server: HttpServer) -> bool:
    host, port = server.url.removeprefix("http://").removesuffix("/mcp").split(":")
    try:
        async with await anyio.connect_tcp(host, int(port)):
            return True
    except OSError:
        return False


def test_a_port_that_is_taken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(socket.socket, "listen", None)  # so that one that listens fails, and does not serve
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(main, ["mcp", "--http", "--port", port, *options(tmp_path)])
    assert (done.exit_code, "cannot be used: Address already in use" in done.stderr) == (2, True)


def test_a_memory_that_cannot_be_opened_is_told_before_anything_is_served(tmp_path: Path) -> None:
    (tmp_path / "i").write_text("a file where a folder should be")
    server = HttpServer(tmp_path)
    assert server.told.startswith("error: ")
    assert server.process.wait(timeout=BOUND) == 3
