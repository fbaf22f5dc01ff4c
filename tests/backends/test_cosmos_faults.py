"""Nodes of the backend `cosmos_db` that die in the middle of a write, servers that fail, and errors that users see."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentformer.builders import build_backend
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput, MissingExtra, StoreBusy, StoreError, TooLarge
from agentformer.memory.backends.cosmos_db import head
from agentformer.memory.backends.cosmos_db.backend import CosmosMemoryBackend, check_consistency
from agentformer.memory.backends.cosmos_db.container import Container, CosmosAddress
from agentformer.settings import Settings
from agentformer.testing import by_words, make_entry
from agentformer.types import Scope
from tests.backends.cosmos_emulator import KEY, Emulator, running
from tests.faults.long_form import LONG

pytestmark = pytest.mark.process
EVERYTHING = Scope(include_archived=True)
SECRET = base64.b64encode(b"a canary that nobody may see").decode()


class Died(BaseException):
    """Stands for a kill of the process: no code of the package handles it."""


@pytest.fixture
def open_node(emulator: Emulator, tmp_path: Path) -> Iterator[Callable[[], CosmosMemoryBackend]]:
    """A function that opens the store of the test on a new node."""
    opened = []

    def open_one() -> CosmosMemoryBackend:
        cache = Path(tempfile.mkdtemp(prefix="node-", dir=tmp_path))
        address = CosmosAddress(emulator.url, KEY, tmp_path.name[-40:], discover=False)
        opened.append(CosmosMemoryBackend(cache, HashingEmbedder(), address))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


def kill_at(monkeypatch: pytest.MonkeyPatch, backend: CosmosMemoryBackend, request: int) -> list[int]:
    """Make the node die before its request number `request` that writes. The node also stops renewing its right."""
    count = [0]
    for name in ("create", "replace", "delete"):
        original = getattr(backend._container, name)

        def call(*arguments: Any, original: Callable[..., Any] = original) -> Any:
            count[0] += 1
            if count[0] > request:
                raise Died
            return original(*arguments)

        monkeypatch.setattr(backend._container, name, call)
    return count


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the thread dies with its node
@pytest.mark.parametrize("inline", [1_000_000, 1])
def test_a_summary_and_its_originals_change_together_wherever_a_node_dies(
    open_node: Callable[[], CosmosMemoryBackend], monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr(head, "LEASE_SECONDS", 0.2)
    monkeypatch.setattr(head, "_INLINE_BYTES", inline)
    monkeypatch.setattr(head, "_THREADS", 100)  # one thread, so that the order of the requests is always the same
    observer = open_node()
    seen, point, died = set[bool](), 0, True
    while died:
        originals = observer.store([make_entry(f"the stoat said {n}", namespace=f"n{point}") for n in range(3)])
        summary = make_entry("stoats say much", kind="summary", namespace=f"n{point}")
        victim = open_node()
        with monkeypatch.context() as patch:
            count = kill_at(patch, victim, point)
            try:
                victim.consolidate(summary, [entry.id for entry in originals])
                died = False
            except Died:
                died = True
        scope = Scope(f"n{point}", include_archived=True)
        early = [(e.id, e.archived_by) for e in observer.list(scope)]  # before anybody has finished the write
        observer.store([make_entry("the next write", namespace="elsewhere")])
        for backend in (observer, open_node()) if LONG or point % 4 == 0 else (observer,):
            late = [(e.id, e.archived_by) for e in backend.list(scope)]
            assert late == early
            before = [(entry.id, None) for entry in originals]
            after = [*((entry.id, summary.id) for entry in originals), (summary.id, None)]
            assert late in (before, after)
            seen.add(late == after)
        point += 1 if LONG else 3 if inline > 1 else 8
    assert seen == {True, False} and count[0] > 6
    assert [check for check in observer.verify() if check.found] == []
    assert not list(observer._container.query("SELECT c.id FROM c WHERE c.type = 'intent'"))


def test_a_node_that_was_taken_for_dead_changes_nothing(
    open_node: Callable[[], CosmosMemoryBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "LEASE_SECONDS", 0.3)
    monkeypatch.setattr(head.Writer, "_renew", lambda self: None)
    slow, other = open_node(), open_node()
    with pytest.raises(StoreBusy, match="another node has taken the right to write"):  # noqa: SIM117
        with slow._database.writing() as connection:
            other.store([make_entry("written meanwhile", id="a")])
            connection.execute("INSERT INTO absent_documents VALUES ('slow', 'x', '')")
    assert slow.absent_documents() == other.absent_documents() == []
    assert [e.id for e in slow.list(EVERYTHING)] == ["a"]


def test_a_late_write_never_replaces_a_newer_item(emulator: Emulator, tmp_path: Path) -> None:
    container = Container(CosmosAddress(emulator.url, KEY, "late", discover=False))
    for seq in (2, 1):
        head.put(container, head.Change({"id": "i", "pk": "p", "seq": seq}, fresh=True))
    stored = container.read("i", "p")
    assert stored is not None and stored["seq"] == 2
    head.put(container, head.Change({"id": "i", "pk": "p", "seq": 3}))
    assert (container.read("i", "p") or {})["seq"] == 3
    container.close()


def test_concurrent_writers_on_many_nodes_lose_nothing(open_node: Callable[[], CosmosMemoryBackend]) -> None:
    nodes = [open_node() for _ in range(3)]
    (shared,) = nodes[0].store([make_entry("counted")])

    def work(number: int) -> None:
        for n in range(3):
            nodes[number].store([make_entry(f"okapi {number} {n}", id=f"{number}-{n}")])
            nodes[number].update(shared.id, {"title": f"{number} {n}"})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sorted(f"{number}-{n}" for number in range(3) for n in range(3))
    for backend in nodes:
        assert by_words(backend, "okapi") == expected
        assert backend.get([shared.id])[0].version == 10 and len(backend.history(shared.id)) == 9


def test_a_replaced_container_replaces_the_local_copy(emulator: Emulator, tmp_path: Path) -> None:
    address = CosmosAddress(emulator.url, KEY, "replaced", discover=False)
    first = CosmosMemoryBackend(tmp_path, HashingEmbedder(), address)
    first.store([make_entry("a former numbat", id="old")])
    assert by_words(first, "numbat") == ["old"]
    first._container._client.delete_database("replaced")
    with pytest.raises(StoreError):
        first.list(Scope())
    first.close()
    second = CosmosMemoryBackend(tmp_path, HashingEmbedder(), address)
    assert second.count(EVERYTHING) == 0 and by_words(second, "numbat") == []
    second.store([make_entry("a new numbat", id="new")])
    assert by_words(second, "numbat") == ["new"]
    assert [check for check in second.verify() if check.found] == []
    second.close()


def test_a_long_text_is_refused_and_nothing_is_stored(open_node: Callable[[], CosmosMemoryBackend]) -> None:
    backend = open_node()
    with pytest.raises(TooLarge, match="several entries"):
        backend.store([make_entry("short"), make_entry("ä" * 1_000_000, kind="document")])
    assert backend.count(EVERYTHING) == 0 and open_node().count(EVERYTHING) == 0
    (entry,) = backend.store([make_entry("ä" * 400_000, kind="document")])
    assert [e.content for e in open_node().get([entry.id])] == ["ä" * 400_000]


def test_an_entry_that_moves_to_another_namespace_is_found_there_on_each_node(
    open_node: Callable[[], CosmosMemoryBackend],
) -> None:
    one, two = open_node(), open_node()
    moved, kept = one.store([make_entry("quokka x", namespace="a"), make_entry("quokka x", namespace="A")])
    assert [e.id for e in two.list(Scope("a"))] == [moved.id]
    one.update(moved.id, {"namespace": "A"})
    assert list(two.list(Scope("a"))) == [] and {e.id for e in two.list(Scope("A"))} == {moved.id, kept.id}


class _Answers(BaseHTTPRequestHandler):
    """Answers every request with the status and the headers of the server."""

    def do_GET(self) -> None:
        body = json.dumps({"message": "no", "code": "no"}).encode()
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("x-ms-retry-after-ms", "20")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_GET

    def log_message(self, *arguments: object) -> None:
        return


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [
        (401, StoreError, "refused the key"),
        (403, StoreError, "refused the key"),
        (429, StoreBusy, "request units"),
        (413, TooLarge, "2 MB"),
        (400, StoreError, "status 400"),
    ],
)
def test_an_error_of_the_account_is_typed_and_shows_no_key(
    status: int, kind: type[Exception], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.status = status  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    address = CosmosAddress(f"http://127.0.0.1:{server.server_port}", SECRET, discover=False, patience=1)
    with caplog.at_level(logging.DEBUG), pytest.raises(kind, match=told) as raised:
        Container(address)
    server.shutdown()
    server.server_close()
    assert SECRET not in f"{raised.value!r} {caplog.text} {address!r}"


class _Throttled(BaseHTTPRequestHandler):
    """Passes requests to the emulator, but answers every third request with 429."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.count += 1  # type: ignore[attr-defined]
        if self.server.count % 3 == 0:  # type: ignore[attr-defined]
            self._answer(429, b"{}", {"x-ms-retry-after-ms": "5"})
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.target)  # type: ignore[attr-defined]
        connection.request(self.command, self.path, body, dict(self.headers))
        response = connection.getresponse()
        wanted = ("etag", "x-ms-continuation", "content-type")
        headers = {name: value for name, value in response.getheaders() if name.lower() in wanted}
        self._answer(response.status, response.read(), headers)
        connection.close()

    do_POST = do_PUT = do_DELETE = do_GET

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers.items(), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        return


def test_throttled_requests_are_repeated(emulator: Emulator, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Throttled)
    server.target, server.count = emulator.port, 1  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = CosmosAddress(f"http://127.0.0.1:{server.server_port}", KEY, "throttled", discover=False)
    backend = CosmosMemoryBackend(tmp_path, HashingEmbedder(), address)
    entries = backend.store([make_entry(f"numbat {n}") for n in range(12)])
    backend.update(entries[0].id, {"title": "changed"})
    assert by_words(backend, "numbat") == [entry.id for entry in entries]
    assert [check for check in backend.verify() if check.found] == []
    backend.close()
    server.shutdown()
    server.server_close()


def test_a_commit_whose_answer_is_lost_is_found_again(
    open_node: Callable[[], CosmosMemoryBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, other = open_node(), open_node()
    replace = Container.replace

    def lose_the_answer(container: Container, item: dict[str, Any], etag: str) -> dict[str, Any]:
        answer = replace(container, item, etag)
        if container is backend._container and item.get("changes"):
            raise StoreError("the connection was lost")
        return answer

    monkeypatch.setattr(Container, "replace", lose_the_answer)
    (entry,) = backend.store([make_entry("stored once")])
    assert [e.id for e in other.list(EVERYTHING)] == [entry.id] == [e.id for e in backend.list(EVERYTHING)]


def test_a_server_that_is_gone_is_reported_and_found_again(tmp_path: Path) -> None:
    with running() as emulator:
        address = CosmosAddress(emulator.url, KEY, discover=False)
        backend = CosmosMemoryBackend(tmp_path, HashingEmbedder(), address)
        backend.store([make_entry("kept nowhere else")])
        emulator.stop()
        for call in (lambda: backend.list(Scope()), lambda: backend.store([make_entry("more")])):
            with pytest.raises(StoreError, match="cannot be reached") as raised:
                call()
            assert KEY not in str(raised.value)
        backend.close()


def test_settings_choose_the_backend(emulator: Emulator, tmp_path: Path) -> None:
    given: dict[str, Any] = {"backend": "cosmos_db", "index_dir": tmp_path, "routes": ()}
    with pytest.raises(InvalidInput, match="cosmos_endpoint"):
        build_backend(Settings(**given), HashingEmbedder())
    with pytest.raises(InvalidInput, match="AGENTFORMER_COSMOS_KEY"):
        build_backend(Settings(**given, cosmos_endpoint=emulator.url), HashingEmbedder())
    with pytest.raises(InvalidInput, match="Base64") as raised:
        build_backend(Settings(**given, cosmos_endpoint=emulator.url, cosmos_key="canary!!"), HashingEmbedder())
    assert "canary" not in str(raised.value)
    settings = Settings(**given, cosmos_endpoint=emulator.url, cosmos_key=KEY, cosmos_database="chosen")
    assert KEY not in repr(settings)
    backend = build_backend(settings, HashingEmbedder())
    backend.store([make_entry("numbat")])
    assert backend.status()["entries"] == 1 and "chosen/memory" in backend.status()["container"]
    assert KEY not in str(backend.status())
    backend.close()


def test_an_account_that_answers_with_former_versions_is_refused(emulator: Emulator) -> None:
    container = Container(CosmosAddress(emulator.url, KEY, "weak", discover=False))
    assert container.consistency() == "Session"
    with pytest.raises(StoreError, match="set it to Strong"):
        check_consistency(container)
    container.close()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.cosmos", None)
    with pytest.raises(MissingExtra, match=r"\[cosmos\]"):
        Container(CosmosAddress("http://127.0.0.1:9", KEY))
