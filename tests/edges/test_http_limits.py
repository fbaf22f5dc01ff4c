"""Limits of keys and the right `metrics` over HTTP, MCP over HTTP and in tool calls."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access import limits as limits_module
from agentformer.access.keys import KeyStore
from agentformer.access.limits import WRONG_A_MINUTE
from agentformer.api.app import close_app, create_app
from agentformer.settings import load_settings
from tests.edges.running import wait_until


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(limits_module, "_AGAIN", 0)
    monkeypatch.setattr(limits_module, "_SHARE", 0)
    monkeypatch.setattr(limits_module, "_ROOM_SECONDS", 600)
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing", "clean_every": 0}
    app = create_app(load_settings({**where, "llm_model": "echo"}))
    yield app
    close_app(app)


@pytest.fixture
def keys(app: Any) -> KeyStore:
    store: KeyStore = app.extensions["agentformer"].keys
    store.questions._clock = lambda: datetime(2026, 11, 30, 12, tzinfo=UTC)  # a day that does not end
    return store


class Client:
    """Requests with one key."""

    def __init__(self, app: Any, key: str) -> None:
        self._client = app.test_client()
        self._headers = {"Authorization": f"Bearer {key}"}

    def ask(self, method: str, path: str, **more: Any) -> Any:
        headers = {**self._headers, **more.pop("headers", {})}
        return self._client.open(path, method=method, headers=headers, **more)

    def add(self, content: str) -> Any:
        return self.ask("POST", "/api/memory", json={"content": content})

    def upload(self, name: str, text: str, **more: Any) -> Any:
        return self.ask("POST", "/api/rag/upload", data={"file": (io.BytesIO(text.encode()), name)}, **more)


def kind(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json["type"].rpartition(":")[2]


def test_a_full_key_stores_nothing_by_any_door_and_may_delete(app: Any, keys: KeyStore) -> None:
    client = Client(app, keys.make("team", namespaces=["team"], max_entries=1)[1])
    made = client.add("Anna lives in Turku.")
    assert made.status_code == 201
    assert made.headers["RateLimit-Policy"] == '"entries";q=1' and made.headers["RateLimit"] == '"entries";r=0'
    refused = client.add("Anna likes tea.")
    assert kind(refused) == (403, "key-full") and refused.json["limit"] == "max_entries"
    assert "contain 1; delete some" in refused.json["detail"]
    assert refused.headers["RateLimit"] == '"entries";r=0' and "Retry-After" not in refused.headers
    tool = client.ask("POST", "/api/tools/memory_add", json={"content": "Anna likes tea."})
    assert kind(tool) == (403, "key-full")
    message = {"session_id": "s", "role": "user", "content": "Hello."}
    for path, more in (
        ("/api/memory/messages", {"json": message}),
        ("/api/memory/core/human/append", {"json": {"text": "Likes tea."}}),
        ("/v1/vector_stores", {"json": {"name": "team"}}),
    ):
        answer = client.ask("POST", path, **more)
        assert answer.status_code in (403, 404), (path, answer.text)
    assert kind(client.upload("tea.txt", "Tea is served at four.")) == (403, "key-full")
    assert client.ask("PATCH", f"/api/memory/{made.json['id']}", json={"title": "Home"}).status_code == 200
    assert client.ask("GET", "/api/memory").status_code == 200
    chat = client.ask("POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Tea?"}]})
    assert chat.status_code == 200 and chat.headers["X-AgentFormer-Remembered"] == "false"
    assert client.ask("DELETE", f"/api/memory/{made.json['id']}").status_code == 204
    assert client.add("Anna likes tea.").status_code == 201
    entries = app.extensions["agentformer"].backend.size(["team"]).entries
    assert entries == 1


def test_a_batch_that_does_not_fit_stores_nothing(app: Any, keys: KeyStore) -> None:
    client = Client(app, keys.make("team", namespaces=["team"], max_entries=3)[1])
    items = [{"content": f"Fact {number}."} for number in range(4)]
    refused = client.ask("POST", "/api/memory/batch", json={"items": items})
    assert kind(refused) == (403, "key-full") and "the request has 4" in refused.json["detail"]
    assert client.ask("GET", "/api/memory").json["entries"] == []
    made = client.ask("POST", "/api/memory/batch", json={"items": items[:3]})
    assert made.status_code == 201 and made.headers["RateLimit"] == '"entries";r=0'


def test_parallel_requests_store_no_more_than_fits(app: Any, keys: KeyStore) -> None:
    secret = keys.make("team", namespaces=["team"], max_entries=20)[1]

    def add(number: int) -> int:
        items = [{"content": f"Fact {number} of {each}."} for each in range(10)]
        return int(Client(app, secret).ask("POST", "/api/memory/batch", json={"items": items}).status_code)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(add, range(4))) == [201, 201, 403, 403]
    assert app.extensions["agentformer"].backend.size(["team"]).entries == 20


def test_a_body_that_does_not_fit_is_refused(app: Any, keys: KeyStore) -> None:
    client = Client(app, keys.make("team", max_bytes=1_000)[1])
    refused = client.upload("long.txt", "Tea. " * 300)
    assert kind(refused) == (403, "key-full") and refused.json["limit"] == "max_bytes"
    assert client.upload("short.txt", "Tea is served at four.").status_code == 201


def test_a_job_that_waited_is_refused_when_the_key_is_full(app: Any, keys: KeyStore) -> None:
    made, secret = keys.make("team", max_entries=100)
    client = Client(app, secret)
    service = app.extensions["agentformer.mounted"][0]
    service.jobs._worker.stopping.set()  # so that the job waits
    job = client.upload("tea.txt", "Tea is served at four.", headers={"Prefer": "respond-async"}).json
    client.add("Anna lives in Turku.")
    keys.change(made.id, max_entries=1)
    service.jobs._worker.stopping.clear()
    service.jobs._worker.wake()
    wait_until(lambda: service.jobs.get(job["id"]).ended)
    ended = client.ask("GET", f"/api/jobs/{job['id']}").json
    assert ended["state"] == "failed" and "may store 1 entries" in ended["documents"][0]["reason"]


def test_questions_are_limited_by_every_door(app: Any, keys: KeyStore) -> None:
    client = Client(app, keys.make("team", questions_per_day=3)[1])
    client.upload("tea.txt", "Tea is served at four.")
    question = {"question": "When is tea served?"}
    asked = client.ask("POST", "/api/rag/query", json=question)
    assert asked.status_code == 200 and asked.headers["RateLimit"].startswith('"questions";r=2;t=')
    assert asked.headers["RateLimit-Policy"] == '"questions";q=3;w=86400'
    assert client.ask("POST", "/api/tools/rag_query", json=question).status_code == 200
    chat = {"messages": [{"role": "user", "content": "When is tea served?"}]}
    assert client.ask("POST", "/v1/chat/completions", json=chat).status_code == 200
    stream = {**question, "stream": True}
    for path, body in (("/api/rag/query", question), ("/api/rag/query", stream), ("/api/tools/rag_query", question)):
        refused = client.ask("POST", path, json=body)
        assert kind(refused) == (429, "busy") and refused.json["limit"] == "questions_per_day"
        assert 0 < int(refused.headers["Retry-After"]) <= 86_400
        assert refused.headers["RateLimit"].startswith('"questions";r=0;t=')
    refused = client.ask("POST", "/v1/chat/completions", json=chat)
    assert refused.status_code == 429 and refused.json["error"]["type"] == "rate_limit_error"
    assert client.ask("POST", "/api/rag/context", json=question).status_code == 200, "no model is called"
    assert client.ask("GET", "/api/memory").headers["RateLimit"].startswith('"questions";r=0;t=')


@pytest.mark.process
def test_a_model_that_fails_uses_up_no_question(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # nothing listens on it from now on
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}
    model = {"llm_model": "openai:m", "llm_base_url": f"http://127.0.0.1:{port}/v1", "llm_api_key": "k"}
    app = create_app(load_settings({**where, **model}))
    try:
        client = Client(app, app.extensions["agentformer"].keys.make("team", questions_per_day=1)[1])
        client.upload("tea.txt", "Tea is served at four.")
        question = {"question": "When is tea served?"}
        chat = {"messages": [{"role": "user", "content": "When is tea served?"}]}
        for path, body, status in (
            ("/api/rag/query", question, 200),
            ("/api/rag/query", {**question, "stream": True}, 200),
            ("/api/tools/rag_query", question, 200),
            ("/v1/chat/completions", chat, 502),
            ("/v1/chat/completions", {**chat, "stream": True}, 502),
            ("/api/rag/query", {**question, "document_id": "unknown"}, 404),
        ):
            answer = client.ask("POST", path, json=body)
            assert answer.status_code == status, (path, answer.text)
            assert answer.get_data(), "a stream is read to its end"
        assert client.ask("GET", "/api/memory").headers["RateLimit"].startswith('"questions";r=1;t=')
    finally:
        close_app(app)


def test_a_429_has_the_headers_of_the_limit(app: Any, keys: KeyStore) -> None:
    client = Client(app, keys.make("team", requests_per_minute=1)[1])
    assert client.ask("GET", "/api/memory").headers["RateLimit"] == '"key";r=0;t=60'
    refused = client.ask("GET", "/api/memory")
    assert kind(refused) == (429, "busy") and refused.headers["RateLimit-Policy"] == '"key";q=1;w=60'
    assert refused.headers["RateLimit"].startswith('"key";r=0;t=') and 0 < int(refused.headers["Retry-After"]) <= 60


def test_limits_are_shown_changed_and_kept_over_http(app: Any, keys: KeyStore) -> None:
    boss = Client(app, keys.make("boss", ["admin"])[1])
    limits = {"requests_per_minute": 60, "max_entries": 10, "max_bytes": 1000, "questions_per_day": 5}
    made = boss.ask("POST", "/api/keys", json={"name": "team", **limits}).json
    path = f"/api/keys/{made['id']}"
    assert limits.items() <= made.items()
    changed = boss.ask("PATCH", path, json={"max_bytes": 0}).json
    assert {**limits, "max_bytes": 0}.items() <= changed.items()
    rotated = boss.ask("POST", f"{path}/rotate", json={}).json
    assert {**limits, "max_bytes": 0}.items() <= rotated.items()
    listed = boss.ask("GET", "/api/keys").json["keys"]
    assert [key["max_entries"] for key in listed] == [0, 10, 10]
    for wrong in (-1, 10**30, "5", None, 1.5):
        answer = boss.ask("PATCH", path, json={"max_entries": wrong})
        assert kind(answer) == (400, "invalid-input") and answer.json["field"] == "max_entries"
    own = boss.ask("PATCH", f"/api/keys/{keys.all()[0].id}", json={"max_entries": 5})
    assert own.status_code == 409


def test_the_right_metrics_reads_metrics_and_nothing_else(app: Any, keys: KeyStore) -> None:
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
    scraper = Client(app, keys.make("prometheus", ["metrics"])[1])
    assert scraper.ask("GET", "/metrics").status_code == 200
    assert Client(app, keys.make("boss", ["admin"])[1]).ask("GET", "/metrics").status_code == 200
    assert Client(app, keys.make("team")[1]).ask("GET", "/metrics").status_code == 403
    boss = Client(app, keys.make("admin", ["admin"])[1])
    refused = boss.ask("POST", "/api/keys", json={"name": "one", "rights": ["metrics"], "namespaces": ["team"]})
    assert kind(refused) == (400, "invalid-input") and refused.json["field"] == "namespaces"
    document = app.test_client().get("/openapi.json").json
    refused = 0
    for path, methods in document["paths"].items():
        for method in methods.keys() & {"get", "post", "put", "patch", "delete"}:
            answer = scraper.ask(method.upper(), path.replace("{", "").replace("}", ""))
            if methods[method]["security"] and path != "/metrics":
                assert answer.status_code == 403, (method, path, answer.text)
                refused += 1
    assert refused > 40
    for _ in range(WRONG_A_MINUTE):
        assert Client(app, "af_wrong").ask("GET", "/metrics").status_code == 401
    slowed = Client(app, "af_wrong").ask("GET", "/metrics")
    assert slowed.status_code == 429 and int(slowed.headers["Retry-After"]) > 0
    assert Client(app, "af_wrong").ask("GET", "/api/memory").status_code == 429, "the same count"
    assert scraper.ask("GET", "/metrics").status_code == 200
