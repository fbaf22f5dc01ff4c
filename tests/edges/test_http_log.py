"""The log of requests: what it says, and what it never does."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.keys import KeyStore
from agentformer.actor import ACTOR, Actor
from agentformer.api import create_app
from agentformer.api.app import close_app
from agentformer.servers.logs import LineFormatter
from agentformer.settings import Settings
from tests.edges.running import Running


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    app = create_app(Settings(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing"))
    yield app.test_client()
    close_app(app)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("agentformer.requests")
    before = logger.propagate
    logger.propagate = True
    with caplog.at_level(logging.INFO, "agentformer.requests"):
        yield caplog
    logger.propagate = before


def lines_of(logged: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in logged.records if record.name == "agentformer.requests"]


def test_a_request_is_one_line_without_query_header_body_or_key(
    client: Any, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    key, secret = KeyStore(tmp_path / "i").make("office")
    response = client.post(
        "/api/rag/query?canary-1=1",
        json={"question": "canary-2"},
        headers={"Authorization": f"Bearer {secret}", "X-Request-ID": "trace", "User-Agent": "canary-3"},
    )
    (line,) = lines_of(logged)
    method, path, status, ms, size, request_id, key_id, client_address = line.split(" ")
    assert (method, path, request_id, key_id) == ("POST", "/api/rag/query", "trace", key.id)
    assert client_address == "127.0.0.1"
    assert int(status) == response.status_code
    assert float(ms.removesuffix("ms")) > 0
    assert size == f"{len(response.get_data())}B"
    assert "canary" not in line
    assert secret not in logged.text


def test_a_line_in_json_has_the_same(client: Any, logged: pytest.LogCaptureFixture) -> None:
    client.get("/api/memory/nothing?canary", headers={"X-Request-ID": "trace"})
    (record,) = (record for record in logged.records if record.name == "agentformer.requests")
    told = json.loads(LineFormatter("json").format(record))
    assert [*told] == [
        *(
            "time",
            "level",
            "logger",
            "method",
            "path",
            "route",
            "status",
            "ms",
            "bytes",
            "request_id",
            "key_id",
            "client",
        )
    ]
    assert (told["method"], told["path"], told["route"]) == ("GET", "/api/memory/nothing", "/api/memory/<entry_id>")
    assert (told["request_id"], told["key_id"], told["client"]) == ("trace", "", "127.0.0.1")
    assert "canary" not in json.dumps(told)
    assert LineFormatter("text").format(record).split(" ")[1:4] == ["INFO", "GET", "/api/memory/nothing"]


@pytest.mark.unit
def test_a_record_is_one_line_with_the_request_that_wrote_it() -> None:
    token = ACTOR.set(Actor("k1", via="http", request="r1"))
    record = logging.LogRecord("agentformer", logging.WARNING, "x.py", 1, "the store\n%s", ("is busy",), None)
    told = json.loads(LineFormatter("json").format(record))
    text = LineFormatter("text").format(record)
    ACTOR.reset(token)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning",
        "logger": "agentformer",
        "message": "the store\nis busy",
        "request_id": "r1",
        "key_id": "k1",
    }
    assert text.endswith(" WARNING the store is busy")


@pytest.mark.unit
def test_a_traceback_belongs_to_its_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.LogRecord("agentformer", logging.ERROR, "x.py", 1, "failed", (), sys.exc_info())
    assert "ValueError: broken" in json.loads(LineFormatter("json").format(record))["traceback"]
    first, *rest = LineFormatter("text").format(record).splitlines()
    assert first.endswith("ERROR failed") and rest and all(line.startswith("    ") for line in rest)


@pytest.mark.process
def test_a_server_writes_one_stream_of_json(tmp_path: Path) -> None:
    environ = {"AGENTFORMER_LLM_MODEL": "openai:gone", "AGENTFORMER_LLM_BASE_URL": "http://127.0.0.1:9/v1"}
    environ |= {"AGENTFORMER_LLM_RETRIES": "0", "AGENTFORMER_LLM_API_KEY": "sk-canary"}
    running = Running(tmp_path, "--log-format", "json", **environ)
    try:
        assert running.upload("keys.txt", "The caretaker keeps the canary, canary.")[0] == 201
        status, answer = running.post("/api/rag/query", question="Who keeps the canary?")[:2]
        assert status == 200 and "the best sentences: it cannot be used now" in str(answer) and ":9" not in str(answer)
        assert running.end() == 0
    finally:
        running.close()
    lines = [json.loads(line) for line in running.told().splitlines()]
    assert all({"time", "level", "logger"} <= line.keys() for line in lines)
    told = [line.get("message", "") for line in lines]
    assert any(line.startswith("serving on http://127.0.0.1:") for line in told)
    assert [(line["level"], line["message"]) for line in lines if "failed" in line.get("message", "")] == [
        ("warning", "a call of the language model failed: LanguageModelUnavailable at http://127.0.0.1:9/v1")
    ], told
    assert told[-1] == "stopped"
    assert "canary" not in running.told()


def test_a_key_in_place_of_an_id_is_not_logged(client: Any, tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    key, secret = KeyStore(tmp_path / "i").make("office")
    response = client.get(f"/api/memory/{secret}", headers={"X-Request-ID": secret})
    (line,) = lines_of(logged)
    assert f"/api/memory/af_{key.id}_... " in line and secret not in logged.text
    assert secret not in response.headers["X-Request-ID"]


def test_a_path_cannot_forge_a_line(client: Any, logged: pytest.LogCaptureFixture) -> None:
    client.get("/a%0A2026-01-01T00:00:00+00:00%20GET%20/forged%1b[31m%7F%C2%85")
    (line,) = lines_of(logged)
    assert len(line.split(" ")) == 8
    assert line.isascii()
    assert line.isprintable()


def test_an_answer_that_is_streamed_is_logged_at_its_end_with_all_its_bytes(
    client: Any, logged: pytest.LogCaptureFixture
) -> None:
    response = client.post("/api/rag/query", json={"question": "Who?", "stream": True})
    size = len(response.get_data())
    response.close()
    (line,) = lines_of(logged)
    assert line.split(" ")[4] == f"{size}B"
    assert size > 0
