"""The endpoints that look after memories."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api import create_app
from agentformer.errors import EmbedderUnavailable
from agentformer.settings import load_settings


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
    app = create_app(load_settings({**where, "embedder": "hashing", "clean_every": 0}))
    with app.test_client() as client:
        yield client
    app.extensions["agentformer"].close()


def talk(client: Any, count: int, session_id: str = "s", namespace: str = "default") -> list[str]:
    memory = client.application.extensions["agentformer"].memory
    texts = [f"Boat {n} is blue and lies at pier {n}." for n in range(count)]
    return [memory.add_message(session_id, "user", text, namespace=namespace).id for text in texts]


def test_clean_summarises_and_restore_brings_back(client: Any) -> None:
    ids = talk(client, 10)
    report = client.post("/api/memory/clean", json={"session_id": "s"}).json
    assert report["archived"] == 5 and len(report["summaries"]) == 1
    memory = client.application.extensions["agentformer"].memory
    assert [entry.id for entry in memory.list(kinds=("message",))] == ids[5:]
    restored = client.post("/api/memory/restore", json={"summary_id": report["summaries"][0]})
    assert (restored.status_code, [entry["id"] for entry in restored.json["entries"]]) == (200, ids[:5])
    assert [entry.id for entry in memory.list(kinds=("message",))] == ids
    again = client.post("/api/memory/restore", json={"summary_id": report["summaries"][0]})
    assert (again.status_code, again.json["type"]) == (409, "urn:agentformer:problem:conflict")


def test_clean_keeps_to_its_namespace_and_session(client: Any) -> None:
    talk(client, 10, "one")
    talk(client, 10, "two")
    talk(client, 10, "one", "other")
    assert client.post("/api/memory/clean", json={"session_id": "one"}).json["archived"] == 5
    assert client.post("/api/memory/clean", json={}).json["archived"] == 5
    assert client.post("/api/memory/clean", json={"namespace": "other"}).json["archived"] == 5


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("clean", b"", 400, "body"),
        ("clean", b"[]", 400, "body"),
        ("clean", b"{", 400, "body"),
        ("clean", b'{"everything": true}', 400, "everything"),
        ("clean", b'{"namespace": null}', 400, "namespace"),
        ("clean", b'{"namespace": ""}', 400, "namespace"),
        ("clean", b'{"namespace": ["default"]}', 400, "namespace"),
        ("clean", b'{"session_id": 7}', 400, "session_id"),
        ("clean", b'{"session_id": "\\ud800"}', 400, "session_id"),
        ("restore", b"{}", 400, "summary_id"),
        ("restore", b'{"summary_id": null}', 400, "summary_id"),
        ("restore", b'{"summary_id": ["x"]}', 400, "summary_id"),
        ("restore", b'{"summary_id": "x", "namespace": "y"}', 400, "namespace"),
        ("restore", b'{"summary_id": "no-such-id"}', 404, None),
        ("restore", b'{"summary_id": "\\ud800"}', 400, "summary_id"),
    ],
)
def test_a_wrong_request_is_a_problem_document(client: Any, path: str, body: bytes, status: int, field: str) -> None:
    answer = client.post(f"/api/memory/{path}", data=body, content_type="application/json")
    assert (answer.status_code, answer.content_type) == (status, "application/problem+json")
    assert answer.json.get("field") == field


def test_an_entry_that_is_no_summary_cannot_be_restored(client: Any) -> None:
    (entry_id,) = talk(client, 1)
    assert client.post("/api/memory/restore", json={"summary_id": entry_id}).status_code == 400


@pytest.mark.parametrize("body", [{}, {"summary_id": None}])
def test_a_missing_id_is_called_missing(client: Any, body: dict[str, Any]) -> None:
    answer = client.post("/api/memory/restore", json=body).json
    assert (answer["field"], answer["detail"]) == ("summary_id", "summary_id: is missing; give the id of a summary")


def test_reindex_embeds_what_waited_and_tells_what_still_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise EmbedderUnavailable("nobody answers at http://127.0.0.1:1")

    where = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embed_retry_seconds": 0}
    app = create_app(load_settings({**where, "embedder": "hashing"}))
    client = app.test_client()
    with monkeypatch.context() as patch:
        patch.setattr("agentformer.embedders.hashing.HashingEmbedder.__init__", refuse)
        entry = app.extensions["agentformer"].memory.store("Aino prefers tea.")
        told = client.post("/api/memory/reindex").json
        assert told["pending"] == 1
        (waiting,) = told["waiting"]
        assert (waiting["entry_id"], waiting["attempts"]) == (entry.id, 2) and "nobody answers" in waiting["last_error"]
    assert client.post("/api/memory/reindex", json={"namespace": "default"}).json == {"pending": 0, "waiting": []}
    assert client.post("/api/memory/reindex", json={"all": True}).status_code == 400
    assert client.post("/api/memory/reindex", data=b"[").status_code == 400
    app.extensions["agentformer"].close()


def test_a_chunked_body_of_reindex_is_read(client: Any) -> None:
    answer = client.post(
        "/api/memory/reindex",
        input_stream=io.BytesIO(b'{"namespace": 5}'),
        headers={"Transfer-Encoding": "chunked"},
        content_type="application/json",
        environ_overrides={"wsgi.input_terminated": True},  # as servers say that undo the chunks themselves
    )
    assert (answer.status_code, answer.json["field"]) == (400, "namespace")
    assert client.post("/api/memory/reindex").status_code == 200
