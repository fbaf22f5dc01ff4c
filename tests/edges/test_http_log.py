"""The log of requests: what it says, and what it never does."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.keys import KeyStore
from agentformer.api import create_app
from agentformer.api.app import close_app
from agentformer.settings import Settings


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
    _, method, path, status, ms, size, request_id, key_id = line.split(" ")
    assert (method, path, request_id, key_id) == ("POST", "/api/rag/query", "trace", key.id)
    assert int(status) == response.status_code
    assert float(ms.removesuffix("ms")) > 0
    assert size == f"{len(response.get_data())}B"
    assert "canary" not in line
    assert secret not in logged.text


def test_a_line_in_json_has_the_same(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    app = create_app(
        Settings(index_dir=tmp_path / "j", upload_dir=tmp_path / "u", embedder="hashing", log_format="json")
    )
    try:
        app.test_client().get("/nothing?canary", headers={"X-Request-ID": "trace"})
    finally:
        close_app(app)
    (line,) = lines_of(logged)
    told = json.loads(line)
    assert set(told) == {"time", "method", "path", "status", "ms", "bytes", "request_id", "key_id"}
    assert (told["method"], told["path"], told["status"]) == ("GET", "/nothing", 404)
    assert (told["request_id"], told["key_id"]) == ("trace", "")


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
    assert line.split(" ")[5] == f"{size}B"
    assert size > 0
