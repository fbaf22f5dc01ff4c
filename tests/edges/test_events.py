"""Watching a memory: streams of events and signed webhooks, from real servers, with kills and receivers that fail."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

import agentformer
from agentformer.access.keys import KeyStore
from agentformer.errors import InvalidInput, NotFound, NotOffered
from agentformer.events import Filter
from agentformer.events.delivery import Delivery
from agentformer.events.webhooks import MAX_WEBHOOKS, signature
from agentformer.records.offers import leases_of
from agentformer.types import common
from tests.edges.running import BOUND, Running, wait_until

pytestmark = pytest.mark.process
FAST = "from agentformer.events import delivery\ndelivery._FIRST_PAUSE = delivery.POLL_SECONDS = 0.05"
JSON = {"Content-Type": "application/json"}


class Receiver:
    """An HTTP server that records the requests of webhooks. `answers` are the statuses of the next requests, then 204.
    While `held` is clear, requests are not answered."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.held = threading.Event()
        self.held.set()
        handler = type("Handler", (_Receiving,), {"receiver": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.host = f"127.0.0.1:{self.http.server_port}"
        self.url = f"http://{self.host}/hook?token=s3cret"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    def ids(self) -> list[str]:
        return [event["data"]["entry_id"] for event in self.events()]

    def close(self) -> None:
        self.held.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(BOUND)


class _Receiving(BaseHTTPRequestHandler):
    receiver: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.receiver.held.wait(BOUND)
        self.send_response(self.receiver.answers.pop(0) if self.receiver.answers else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Receiver]]:
    """A server that may send to a receiver, for the tests that neither kill it nor make keys."""
    receiver = Receiver()
    environ = {"AGENTFORMER_WEBHOOK_PRIVATE_HOSTS": receiver.host}
    server = Running(tmp_path_factory.mktemp("watched"), before=FAST, **environ)
    yield server, receiver
    server.close()
    receiver.close()


@pytest.fixture
def served(shared: tuple[Running, Receiver]) -> Iterator[tuple[Running, Receiver]]:
    server, receiver = shared
    receiver.got.clear()
    yield shared
    for hook in server.ask("GET", "/api/webhooks")[1]["webhooks"]:
        assert server.ask("DELETE", f"/api/webhooks/{hook['id']}")[0] == 204


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    servers: list[Running] = []

    def start(*receivers: Receiver, before: str = FAST, **environ: str) -> Running:
        hosts = " ".join(each.host for each in receivers)
        environ = {"AGENTFORMER_WEBHOOK_PRIVATE_HOSTS": hosts, "AGENTFORMER_WEBHOOK_SECONDS": "1", **environ}
        servers.append(Running(tmp_path, before=before, **environ))
        assert servers[-1].port, servers[-1].told()
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def remember(server: Running, *texts: str, **fields: Any) -> list[str]:
    return [server.post("/api/memory", content=text, **fields)[1]["id"] for text in texts]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", **JSON}


@contextmanager
def watching(server: Running, query: str = "", **headers: str) -> Iterator[Callable[[], tuple[str, str, Any]]]:
    """Follow the events of a server. The yielded function returns the id, the name and the data of the next event, or
    empty texts at the end of the stream."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
    connection.request("GET", f"/api/events{query}", headers={"Accept": "text/event-stream", **headers})
    response = connection.getresponse()
    assert response.status == 200, response.read()

    def following() -> tuple[str, str, Any]:
        fields: dict[str, str] = {}
        deadline = time.monotonic() + BOUND
        for line in response:
            assert time.monotonic() < deadline, fields
            name, _, value = line.decode().rstrip("\n").partition(": ")
            fields[name] = value
            if not name and "data" in fields:
                return fields.get("id", ""), fields["event"], json.loads(fields["data"])
        return "", "", {}

    try:
        yield following
    finally:
        connection.close()


def test_a_watcher_sees_each_change_once_and_continues_where_it_left(served: tuple[Running, Receiver]) -> None:
    server, _ = served
    remember(server, "Nobody watches this yet.")
    with watching(server) as following:
        assert following()[1] == "ready"
        (old,) = remember(server, "The depot is in Turku.")
        first = following()
        assert first[1] == "stored"
        data = {"entry_id": old, "namespace": "default", "kind": "fact", "tier": "semantic", "version": 1}
        assert (first[2]["id"], first[2]["data"]) == (first[0], {**data, "tier": first[2]["data"]["tier"]})
    (new,) = remember(server, "The depot is in Oulu.")
    with agentformer.connect(index_dir=server.folder / "indexes", embedder="hashing") as af:
        af.memory.supersede(old, new)  # in another process than the server
    server.ask("PATCH", f"/api/memory/{new}", json.dumps({"title": "The depot"}), JSON)
    server.ask("DELETE", f"/api/memory/{old}")
    with watching(server, **{"Last-Event-ID": first[0]}) as following:
        assert following()[1] == "ready"
        seen = [following() for _ in range(4)]
    assert [(name, event["data"]["entry_id"]) for _, name, event in seen] == [
        ("stored", new),
        ("superseded", old),
        ("changed", new),
        ("removed", old),
    ]
    status, page = server.ask("GET", f"/api/events?after={first[0]}&type=removed&type=changed")
    assert (status, [event["id"] for event in page["events"]]) == (200, [seen[2][0], seen[3][0]])
    assert (page["lost"], page["more"], page["next"]) == (False, False, seen[3][0])
    assert server.ask("GET", "/api/events?after=nonsense")[1]["field"] == "after"
    foreign = server.ask("GET", f"/api/events?after={seen[0][0][:-8]}00000000")[1]
    assert (foreign["lost"], len(foreign["events"])) == (True, 6)


def test_a_key_sees_the_events_that_it_may_read_until_it_is_revoked(
    serve: Callable[..., Running], tmp_path: Path
) -> None:
    keys = KeyStore(tmp_path / "indexes")
    _, admin = keys.make("admin", ("admin",))
    writer = keys.make("writer", ("write",), ["ours"])[1]
    ours, reader = keys.make("reader", ("read",), ["ours"], without=["memory_get"])
    server = serve(before=f"{FAST}\nfrom agentformer.api.endpoints import events\nevents._CHECK_SECONDS = 0.0")

    def store(namespace: str, text: str) -> Any:
        body = json.dumps({"content": text, "namespace": namespace})
        return server.ask("POST", "/api/memory", body, bearer(admin))[1]["id"]

    assert server.ask("GET", "/api/events", headers=bearer(writer))[0] == 403
    for path in ("/api/events?namespace=theirs", "/api/events?content=true", "/api/webhooks"):
        assert server.ask("GET", path, headers=bearer(reader))[0] == 403, path
    with watching(server, **bearer(reader)) as following:
        assert following()[1] == "ready"
        store("theirs", "Nobody else reads this.")
        own = store("ours", "We read this.")
        assert following()[2]["data"]["entry_id"] == own
        keys.revoke(ours.id)
        assert following() == ("", "", {})
    page = server.ask("GET", "/api/events?content=true&namespace=ours", headers=bearer(admin))[1]
    assert [event["data"]["entry"]["content"] for event in page["events"]] == ["We read this."]


def test_a_webhook_gets_signed_events_without_texts_and_each_again_until_it_is_taken(
    served: tuple[Running, Receiver],
) -> None:
    server, receiver = served
    remember(server, "Too early.")
    receiver.answers = [500, 302, 429]
    status, hook = server.post("/api/webhooks", url=receiver.url, events=["stored"])
    assert (status, hook["url"], hook["state"]) == (201, f"http://{receiver.host}/hook", "active")
    ids = remember(server, *(f"The code is {number}." for number in range(3)))
    wait_until(lambda: receiver.ids()[-1:] == ids[-1:])
    assert receiver.ids() == [ids[0]] * 3 + ids
    assert len({headers["webhook-id"] for headers, _ in receiver.got[:4]}) == 1
    key = base64.b64decode(hook["secret"].removeprefix("whsec_"))
    for headers, body in receiver.got:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        assert json.loads(body)["id"] == headers["webhook-id"]
        assert b"code" not in body
    wait_until(lambda: server.ask("GET", "/api/webhooks")[1]["webhooks"][0]["delivered"] == 3)
    (listed,) = server.ask("GET", "/api/webhooks")[1]["webhooks"]
    assert (listed["failures"], listed["error"], "secret" in listed) == (0, "", False)
    assert server.ask("DELETE", f"/api/webhooks/{hook['id']}")[0] == 204
    assert server.ask("DELETE", f"/api/webhooks/{hook['id']}")[0] == 404
    assert "s3cret" not in server.told()


def test_the_signature_is_that_of_the_specification() -> None:
    body = b'{"event_type":"ping","data":{"success":true}}'
    assert signature("whsec_plJ3nmyCDGBKInavdOK15jsl", "msg_loFOjxBNrRLzqYUf", 1731705121, body) == (
        "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="
    )


def test_a_killed_server_loses_no_event_and_sends_again_under_the_same_id(
    serve: Callable[..., Running], receiver: Receiver
) -> None:
    server = serve(receiver)
    server.post("/api/webhooks", url=receiver.url, content=True)
    ids: list[str] = []
    for number in range(3):
        receiver.held.clear()
        ids += remember(server, *(f"Fact {number}.{part}" for part in range(4)))
        wait_until(lambda expected=4 * number: len(set(receiver.ids())) > expected)
        server.end(signal.SIGKILL)
        server.close()
        receiver.held.set()
        server = serve(receiver)
        wait_until(lambda expected=4 * number + 4: len(set(receiver.ids())) == expected)
    taken = {headers["webhook-id"]: event for (headers, _), event in zip(receiver.got, receiver.events(), strict=True)}
    assert sorted(event["data"]["entry_id"] for event in taken.values()) == sorted(ids)
    assert len(receiver.got) > len(ids)  # the request during the kill was repeated
    assert {event["data"]["entry"]["content"] for event in taken.values()} >= {"Fact 0.0", "Fact 2.3"}


def test_a_stuck_receiver_delays_neither_stores_nor_other_receivers(
    serve: Callable[..., Running], receiver: Receiver
) -> None:
    stuck = Receiver()
    stuck.held.clear()
    try:
        server = serve(receiver, stuck, AGENTFORMER_WEBHOOK_SECONDS="60")
        for each in (stuck, receiver):
            assert server.post("/api/webhooks", url=each.url)[0] == 201
        ids = remember(server, *(f"Number {number}." for number in range(20)))
        wait_until(lambda: receiver.ids() == ids)
        assert len(stuck.got) <= 1
        server.end()
    finally:
        stuck.close()


def test_a_private_address_or_one_without_encryption_gets_nothing_unless_it_is_allowed(
    served: tuple[Running, Receiver],
) -> None:
    server, receiver = served
    url = receiver.url.replace("127.0.0.1", "localhost")
    urls = [url, url.replace("http:", "https:"), "http://example.org/", "https://169.254.169.254/"]
    for url in urls:
        assert server.post("/api/webhooks", url=url)[0] == 201
    assert server.post("/api/webhooks", url="ftp://example.org")[1]["field"] == "url"
    assert server.post("/api/webhooks", url="https://a:b@example.org")[1]["field"] == "url"
    remember(server, "The safe is open.")
    wait_until(lambda: all(hook["failures"] for hook in server.ask("GET", "/api/webhooks")[1]["webhooks"]))
    errors = [hook["error"] for hook in server.ask("GET", "/api/webhooks")[1]["webhooks"]]
    assert [("webhook_private_hosts" in error, "no encryption" in error) for error in errors] == [
        (False, True),
        (True, False),
        (False, True),
        (True, False),
    ]
    assert not receiver.got and all("s3cret" not in error for error in errors)


def test_a_webhook_has_the_present_rights_of_its_key(
    serve: Callable[..., Running], receiver: Receiver, tmp_path: Path
) -> None:
    keys = KeyStore(tmp_path / "indexes")
    admin, secret = keys.make("admin", ("admin",))
    tenant, theirs = keys.make("tenant", ("admin",), ["a", "b"])
    server, numbers = serve(receiver), itertools.count(1)

    def ask(method: str, path: str, key: str, **body: Any) -> Any:
        return server.ask(method, path, json.dumps(body) if body else None, bearer(key))

    assert ask("POST", "/api/webhooks", theirs, url=receiver.url, namespaces=["c"])[0] == 403
    made = ask("POST", "/api/webhooks", theirs, url=receiver.url)[1]
    assert (made["namespaces"], made["key_id"]) == (["a", "b"], tenant.id)
    other = ask("POST", "/api/webhooks", secret, url="https://example.org/", namespaces=["c"])[1]
    assert [hook["id"] for hook in ask("GET", "/api/webhooks", theirs)[1]["webhooks"]] == [made["id"]]
    assert ask("DELETE", f"/api/webhooks/{other['id']}", theirs)[0] == 404

    def store(namespace: str) -> Any:
        text = f"It rains for the {next(numbers)}. time."
        return ask("POST", "/api/memory", secret, content=text, namespace=namespace)[1]["id"]

    seen, _ = store("a"), store("c")
    wait_until(lambda: receiver.ids() == [seen])
    keys.change(tenant.id, namespaces=["b"])
    store("a")
    seen_too = store("b")
    wait_until(lambda: receiver.ids() == [seen, seen_too])
    keys.revoke(tenant.id)
    store("b")
    wait_until(lambda: "revoked" in ask("GET", "/api/webhooks", secret)[1]["webhooks"][0]["error"])
    assert receiver.ids() == [seen, seen_too]
    assert admin.id not in receiver.got[0][1].decode()


def test_a_receiver_that_is_gone_gets_nothing_more(served: tuple[Running, Receiver]) -> None:
    server, receiver = served
    server.post("/api/webhooks", url=receiver.url)
    receiver.answers = [410]
    remember(server, "One.", "Two.")
    wait_until(lambda: server.ask("GET", "/api/webhooks")[1]["webhooks"][0]["state"] == "gone")
    assert len(receiver.got) == 1


def test_two_servers_of_one_database_deliver_each_event_once(
    serve: Callable[..., Running], receiver: Receiver, postgres_url: str
) -> None:
    shared = {"AGENTFORMER_BACKEND": "postgres", "AGENTFORMER_POSTGRES_URL": postgres_url}
    shared |= {"AGENTFORMER_POSTGRES_SCHEMA": f"t{os.getpid()}_events", "AGENTFORMER_WEBHOOK_SECONDS": "10"}
    servers = [serve(receiver, **shared) for _ in range(2)]
    assert servers[0].post("/api/webhooks", url=receiver.url)[0] == 201
    with watching(servers[1]) as following:
        assert following()[1] == "ready"
        ids = [remember(servers[number % 2], f"Number {number}.")[0] for number in range(30)]
        assert [following()[2]["data"]["entry_id"] for _ in ids] == ids
    server = servers[1]
    wait_until(lambda: server.ask("GET", "/api/webhooks")[1]["webhooks"][0]["delivered"] == 30)
    assert receiver.ids() == ids
    servers[0].ask("DELETE", f"/api/memory/{ids[0]}")
    wait_until(lambda: len(receiver.got) == 31)
    assert receiver.events()[-1]["type"] == "removed"


def test_events_of_a_memory_in_python(tmp_path: Path) -> None:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        start = af.events.last()
        assert (start, af.events.page("", Filter()).events) == ("0-", [])
        af.memory.add_message("s", "user", "My sister Aino lives in Vaasa.")
        report = af.learner.learn(agentformer.Scope())
        (note,) = [entry.id for entry in [af.memory.store("A note.", namespace="team")]]
        af.backend.update(note, {"namespace": "other"})
        af.rag.upload(_file(tmp_path, "The office opens at nine."))
        moved = [(e["type"], e["data"]["namespace"]) for e in af.events.page(start, Filter()).events]
        assert moved == [
            ("stored", "default"),
            *[("learnt", "default")] * len(report.facts),
            ("stored", "team"),
            ("removed", "team"),
            ("stored", "other"),
            ("stored", "default"),  # the document, without its page and chunk
        ]
        assert report.facts
        shown = af.events.page(start, Filter(namespaces=["team"], content=True)).events
        assert [event["data"]["entry"] for event in shown] == [None, None]
        for number in range(MAX_WEBHOOKS):
            af.webhooks.add(f"https://example.org/{number}")
        with pytest.raises(agentformer.AgentFormerError, match="20 webhooks"):
            af.webhooks.add("https://example.org/")
        with pytest.raises(NotFound):
            af.webhooks.remove("unknown")
        with pytest.raises(InvalidInput, match="not a type of event"):
            af.webhooks.add("https://example.org/", events=["read"])
    with (
        agentformer.connect(index_dir=tmp_path / "j", upload_dir=tmp_path / "u", backend="local_json") as af,
        pytest.raises(NotOffered, match="no change feed"),
    ):
        af.events.last()


def test_a_watcher_learns_that_events_are_lost(tmp_path: Path) -> None:
    """The oldest events are deleted at last, and a restored backup has other ones."""
    posted: list[Any] = []

    def post(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        posted.append((headers["webhook-id"], json.loads(body)))
        return 204, ""

    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        af.memory.store("Before.")
        hook, place = af.webhooks.add("https://example.org/"), af.events.last()
        entries = [af.memory.store(f"Fact {number}.") for number in range(3)]
        with af.backend.feed.writing() as connection:  # type: ignore[attr-defined]
            connection.run(common("DELETE FROM events WHERE seq <= 2"))
        page = af.events.page(place, Filter())
        assert (page.lost, [event["data"]["entry_id"] for event in page.events]) == (True, [e.id for e in entries[1:]])
        delivery = Delivery(af.events, af.webhooks, af.keys, leases_of(af.backend), post, 30.0)
        delivery.tick()
        wait_until(lambda: len(posted) == 3)
        delivery.close()
        assert [event["type"] for _, event in posted] == ["lost", "stored", "stored"]
        assert posted[0][0] == f"lost-{place}"
        ((_, state),) = af.webhooks.all()
        assert (state.after, state.failures) == (af.events.last(), 0)
        af.webhooks.remove(hook.id)


def _file(folder: Path, text: str) -> Path:
    path = folder / "office.txt"
    path.write_text(text)
    return path
