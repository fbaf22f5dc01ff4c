"""The HTTP API: documents and questions, errors, and mounting below a prefix."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

flask = pytest.importorskip("flask", reason="the extra `server` is not installed")

import agentformer  # noqa: E402
from agentformer.api import create_app, init_app  # noqa: E402
from agentformer.errors import StoreDamaged, StoreError  # noqa: E402
from agentformer.settings import load_settings  # noqa: E402
from tests.readers.conftest import make_pdf  # noqa: E402

KEYS = "The caretaker keeps the keys in the blue cupboard."


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    app = create_app(load_settings({"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u", "embedder": "hashing"}))
    with app.test_client() as client:
        yield client
    app.extensions["agentformer"].close()


def upload(client: Any, *files: tuple[bytes, str], **form: str) -> Any:
    parts = [("file", (io.BytesIO(data), name)) for data, name in files]
    return client.post("/api/rag/upload", data={"file": [part[1] for part in parts], **form})


@pytest.mark.process
def test_upload_then_query_gives_citations(client: Any) -> None:
    made = upload(client, (make_pdf([["Nothing."], [KEYS]]), "rules.pdf"), (b"Tea at four.", "tea.txt"))
    assert made.status_code == 201
    assert [(d["name"], d["status"], d["pages"]) for d in made.json["documents"]] == [
        ("rules.pdf", "ready", 2),
        ("tea.txt", "ready", 1),
    ]
    answer = client.post("/api/rag/query", json={"question": "Who keeps the keys?", "top_k": 1}).json
    assert len(answer["hits"]) == 1
    assert (answer["citations"][0]["document"], answer["citations"][0]["page"]) == ("rules.pdf", 2)
    assert answer["citations"][0]["quote"] == KEYS


def test_each_uploaded_file_has_its_own_status(client: Any) -> None:
    made = upload(client, (b"", "empty.pdf"), (KEYS.encode(), "keys.txt"))
    assert made.status_code == 201
    assert [d["status"] for d in made.json["documents"]] == ["failed", "ready"]
    assert upload(client, (b"", "empty.pdf")).status_code == 422


def test_namespace_and_metadata_come_from_the_form(client: Any) -> None:
    made = upload(client, (KEYS.encode(), "keys.txt"), namespace="ours", metadata=json.dumps({"site": "north"}))
    ask = {"question": "Who keeps the keys?"}
    assert client.post("/api/rag/query", json=ask).json["mode"] == "none"
    assert client.post("/api/rag/query", json={**ask, "namespace": "ours"}).json["mode"] == "extractive"
    filtered = {**ask, "namespace": "ours", "metadata": {"site": "south"}}
    assert client.post("/api/rag/query", json=filtered).json["hits"] == []
    for name in ("metadata", "filters"):  # the present and the former name
        for site, count in (("north", 1), ("south", 0)):
            answer = client.post("/api/rag/query", json={**ask, "namespace": "ours", name: {"site": site}})
            assert len(answer.json["hits"]) == count
    document = made.json["documents"][0]["id"]
    for limit, count in (
        ({"since": "2020-01-01"}, 1),
        ({"until": "2020-01-01"}, 0),
        ({"document_id": document}, 1),
    ):
        answer = client.post("/api/rag/query", json={**ask, "namespace": "ours", **limit})
        assert len(answer.json["hits"]) == count
    answer = client.post("/api/rag/query", json={**ask, "since": "yesterday"})
    assert (answer.status_code, answer.json["field"]) == (400, "since")
    answer = client.post("/api/rag/query", json={**ask, "since": "2026-05-09", "until": "2026-05-08"})
    assert (answer.status_code, answer.json["field"]) == (400, "until") and "since, but 2026-05-08" in answer.json[
        "detail"
    ]
    for path in ("/api/rag/query", "/api/rag/context"):
        answer = client.post(path, json={**ask, "namespace": "ours", "document_id": "another"})
        assert (answer.status_code, "there is no document another" in answer.json["detail"]) == (404, True)


def test_invalid_input_is_a_problem_document_that_names_the_field(client: Any) -> None:
    filters = {"a": {"b": int("9" * 400)}}
    for body in ({"question": " "}, {"question": "x", "metadata": filters}):
        answer = client.post("/api/rag/query", json=body)
        assert (answer.status_code, answer.content_type) == (400, "application/problem+json")
        assert (answer.json["type"], answer.json["title"]) == ("urn:agentformer:problem:invalid-input", "Invalid input")
        assert answer.json["field"] == [*body][-1]
        assert answer.json["detail"].startswith(f"{answer.json['field']}: ")


def test_optional_fields_may_be_null(client: Any) -> None:
    names = ("top_k", "namespace", "metadata", "max_tokens", "stream")
    answer = client.post("/api/rag/query", json={"question": "Who?\x00", **dict.fromkeys(names)})
    assert (answer.status_code, answer.json["mode"]) == (200, "none")


def test_a_question_over_the_limit_is_413_and_names_the_setting(client: Any) -> None:
    for stream in (True, False):
        answer = client.post("/api/rag/query", json={"question": "ä" * 8001, "stream": stream})
        assert (answer.status_code, answer.json["limit"]) == (413, "max_question_chars")
        assert "8001" in answer.json["detail"]
    assert client.post("/api/rag/query", json={"question": "ä" * 8000}).status_code == 200


def test_unknown_paths_and_methods_are_problem_documents(client: Any) -> None:
    assert (client.get("/nowhere").status_code, client.get("/nowhere").json["status"]) == (404, 404)
    assert client.get("/api/rag/query").json["type"] == "urn:agentformer:problem:method-not-allowed"
    for path in (
        "/api/rag/documents//chunks",
        "/api/rag/query/",
        "/static/x",
        "/%00",
        "/" + "x" * 5000,
    ):
        answer = client.get(path)
        assert (answer.status_code, answer.content_type) == (404, "application/problem+json"), path


def test_an_internal_error_shows_no_path_and_no_traceback(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("/home/someone/secret.py is broken")

    monkeypatch.setattr(client.application.extensions["agentformer"].rag, "query", broken)
    answer = client.post("/api/rag/query", json={"question": "x"})
    assert answer.status_code == 500
    assert b"secret" not in answer.data and b"Traceback" not in answer.data


@pytest.mark.parametrize(("error", "kind"), [(StoreDamaged, "store-damaged"), (StoreError, "store-unusable")])
def test_a_damaged_store_has_its_own_problem_type_without_a_path(
    client: Any, monkeypatch: pytest.MonkeyPatch, error: type[StoreError], kind: str
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise error("/home/someone/memory.sqlite3 is damaged")

    monkeypatch.setattr(client.application.extensions["agentformer"].rag, "query", broken)
    answer = client.post("/api/rag/query", json={"question": "x"})
    assert (answer.status_code, answer.json["type"]) == (500, f"urn:agentformer:problem:{kind}")
    assert b"someone" not in answer.data


def test_an_existing_application_mounts_the_endpoints_below_a_prefix(tmp_path: Path) -> None:
    app = flask.Flask("host")

    @app.get("/")
    def home() -> str:
        return "the host's own page"

    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as memory:
        init_app(app, memory, url_prefix="/memory")
        client = app.test_client()
        made = client.post("/memory/api/rag/upload", data={"file": (io.BytesIO(KEYS.encode()), "keys.txt")})
        assert made.status_code == 201
        asked = client.post("/memory/api/rag/query", json={"question": "Who keeps the keys?"})
        assert asked.json["citations"][0]["document"] == "keys.txt"
        assert client.get("/").text == "the host's own page"
        assert client.get("/nowhere").content_type.startswith("text/html")
        wrong = client.post("/memory/api/rag/query", json={})
        assert (wrong.status_code, wrong.content_type) == (400, "application/problem+json")


def test_error_pages_of_the_host_application_stay(tmp_path: Path) -> None:
    app = flask.Flask("host")
    app.register_error_handler(404, lambda error: ("the host's own 404", 404))
    with agentformer.connect(index_dir=tmp_path / "i", embedder="hashing") as memory:
        init_app(app, memory, url_prefix="/memory")
        init_app(app, memory, url_prefix="/other")
        client = app.test_client()
        assert client.get("/memoryland").text == "the host's own 404"
        assert client.get("/other/healthz").json == {"status": "ok"}
