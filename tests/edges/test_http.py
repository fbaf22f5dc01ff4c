"""The HTTP edge: what each endpoint gives, and what a wrong request is told."""

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


def test_partial_success_is_told_per_file(client: Any) -> None:
    made = upload(client, (b"", "empty.pdf"), (KEYS.encode(), "keys.txt"))
    assert made.status_code == 201
    assert [d["status"] for d in made.json["documents"]] == ["failed", "ready"]
    assert upload(client, (b"", "empty.pdf")).status_code == 422


def test_namespace_and_metadata_come_from_the_form(client: Any) -> None:
    upload(client, (KEYS.encode(), "keys.txt"), namespace="ours", metadata=json.dumps({"site": "north"}))
    ask = {"question": "Who keeps the keys?"}
    assert client.post("/api/rag/query", json=ask).json["mode"] == "none"
    assert client.post("/api/rag/query", json={**ask, "namespace": "ours"}).json["mode"] == "extractive"
    filtered = {**ask, "namespace": "ours", "filters": {"site": "south"}}
    assert client.post("/api/rag/query", json=filtered).json["hits"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{not json", "body"),
        (b"[1]", "body"),
        (b"{}", "question"),
        (b'{"question": "  "}', "question"),
        (b'{"question": 7}', "question"),
        (b'{"question": "x", "top_k": "3"}', "top_k"),
        (b'{"question": "x", "top_k": true}', "top_k"),
        (b'{"question": "x", "top_k": 0}', "top_k"),
        (b'{"question": "x", "colour": "red"}', "colour"),
        (b'{"question": "x", "filters": []}', "filters"),
        (b'{"question": "x", "filters": [1]}', "filters"),
        (b'{"question": "x", "namespace": 1}', "namespace"),
        (b'{"question": "\\ud800"}', "question"),
        (b'{"question": "x", "filters": {"a": ' + b"9" * 400 + b"}}", "filters"),
        (b'{"question": "x", "filters": {"a": ' + b"[" * 500 + b"]" * 500 + b"}}", "filters"),
        (b'{"question": "x", "filters": ' + b'{"a":' * 20000 + b"1" + b"}" * 20000 + b"}", "body"),
        (b'{"question": "x", "filters": {"\\udfff": 1}}', "filters"),
        (b'{"question": "x", "\\ud800": 1}', "body"),
        (b'{"question": "x", "filters": {' + b",".join(b'"k%d": 1' % n for n in range(101)) + b"}}", "filters"),
        (b'{"question": "x", "top_k": 3.5}', "top_k"),
        (b'{"question": "x", "top_k": NaN}', "top_k"),
        (b'{"question": "x", "top_k": 1e400}', "top_k"),
        (b'{"question": "x", "top_k": ' + b"9" * 5000 + b"}", "body"),
        (b'{"question": "x", "max_tokens": 4097}', "max_tokens"),
        (b'{"question": "x", "stream": "true"}', "stream"),
        (b'{"question": "\xff"}', "body"),
        (b"\xef\xbb\xbf{}", "body"),
        (b"null", "body"),
        (b'"x"', "body"),
        (b"7", "body"),
        (b'{"question": "x"} more', "body"),
        (b"", "question"),
    ],
)
def test_a_wrong_query_is_a_problem_document_that_names_the_field(client: Any, body: bytes, field: str) -> None:
    upload(client, (KEYS.encode(), "keys.txt"))
    answer = client.post("/api/rag/query", data=body, content_type="application/json")
    assert (answer.status_code, answer.content_type) == (400, "application/problem+json")
    assert answer.json["type"] == "urn:agentformer:problem:invalid-input"
    assert answer.json["field"] == field


@pytest.mark.parametrize(
    ("question", "told"), [(5, "must be text"), ([], "must be text"), (None, "is empty"), ("", "is empty")]
)
def test_what_is_wrong_with_a_question_is_told(client: Any, question: Any, told: str) -> None:
    answer = client.post("/api/rag/query", json={"question": question})
    assert (answer.status_code, answer.json["field"]) == (400, "question")
    assert told in answer.json["detail"]


def test_numbers_are_whole_as_json_has_it_and_nul_is_a_character(client: Any) -> None:
    upload(client, (KEYS.encode(), "keys.txt"))
    answer = client.post("/api/rag/query", json={"question": "Who keeps the keys?\x00", "top_k": 1.0})
    assert (answer.status_code, len(answer.json["hits"])) == (200, 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_question_over_the_limit_is_told_which(client: Any, stream: bool) -> None:
    answer = client.post("/api/rag/query", json={"question": "ä" * 8001, "stream": stream})
    assert (answer.status_code, answer.json["limit"]) == (413, "max_question_chars")
    assert "8001" in answer.json["detail"]
    assert client.post("/api/rag/query", json={"question": "ä" * 8000}).status_code == 200


def test_what_is_not_asked_for_may_be_null(client: Any) -> None:
    names = ("top_k", "namespace", "filters", "max_tokens", "stream")
    answer = client.post("/api/rag/query", json={"question": "Who?", **dict.fromkeys(names)})
    assert (answer.status_code, answer.json["mode"]) == (200, "none")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_of_another_type_is_refused(client: Any, kind: str) -> None:
    answer = client.post("/api/rag/query", data=b'{"question": "x"}', headers={"Content-Type": kind})
    assert (answer.status_code, answer.content_type) == (415, "application/problem+json")
    assert "application/json" in answer.json["detail"]


def test_a_wrong_value_is_told_shortly_and_in_words(client: Any) -> None:
    answer = client.post("/api/rag/query", json={"question": ["x" * 100_000]})
    assert answer.json["detail"].startswith("question: must be text, got ['xxx")
    assert len(answer.data) < 500
    near = client.post("/api/rag/query", json={"question": "x", "filter": {}})
    assert near.json["detail"] == "filter: is not known here; did you mean filters?"
    long = client.post("/api/rag/query", json={"question": "x", "y" * 100_000: 1})
    assert (long.status_code, len(long.data) < 500) == (400, True)


@pytest.mark.parametrize(
    ("form", "field"), [({}, "file"), ({"file": (io.BytesIO(b"x"), "x.txt"), "metadata": "[1]"}, "metadata")]
)
def test_a_wrong_upload_names_the_field(client: Any, form: dict[str, Any], field: str) -> None:
    answer = client.post("/api/rag/upload", data=form)
    assert (answer.status_code, answer.json["field"]) == (400, field)


def test_unknown_paths_and_methods_are_problem_documents(client: Any) -> None:
    assert (client.get("/nowhere").status_code, client.get("/nowhere").json["status"]) == (404, 404)
    assert client.get("/api/rag/query").json["type"] == "urn:agentformer:problem:method-not-allowed"
    for path in (
        "//",
        "/api/rag/documents//chunks",
        "/api/rag/query/",
        "/static/x",
        "/%00",
        "/" + "x" * 5000,
    ):
        answer = client.get(path)
        assert (answer.status_code, answer.content_type) == (404, "application/problem+json"), path


def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    app = create_app(load_settings({"index_dir": tmp_path / "i", "embedder": "hashing", "max_file_bytes": 1000}))
    answer = upload(app.test_client(), (b"x" * 2_000_000, "big.txt"))
    assert (answer.status_code, answer.content_type) == (413, "application/problem+json")
    app.extensions["agentformer"].close()


def test_an_internal_error_tells_no_path_and_no_trace(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("/home/someone/secret.py is broken")

    monkeypatch.setattr(client.application.extensions["agentformer"].rag, "query", broken)
    answer = client.post("/api/rag/query", json={"question": "x"})
    assert answer.status_code == 500
    assert b"secret" not in answer.data and b"Traceback" not in answer.data


@pytest.mark.parametrize(("error", "kind"), [(StoreDamaged, "store-damaged"), (StoreError, "store-unusable")])
def test_a_store_that_cannot_be_used_says_so_and_tells_no_path(
    client: Any, monkeypatch: pytest.MonkeyPatch, error: type[StoreError], kind: str
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise error("/home/someone/memory.sqlite3 is damaged")

    monkeypatch.setattr(client.application.extensions["agentformer"].rag, "query", broken)
    answer = client.post("/api/rag/query", json={"question": "x"})
    assert (answer.status_code, answer.json["type"]) == (500, f"urn:agentformer:problem:{kind}")
    assert b"someone" not in answer.data


def test_an_application_that_exists_mounts_it_under_a_prefix(tmp_path: Path) -> None:
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


def test_the_hosts_own_error_pages_stay(tmp_path: Path) -> None:
    app = flask.Flask("host")
    app.register_error_handler(404, lambda error: ("the host's own 404", 404))
    with agentformer.connect(index_dir=tmp_path / "i", embedder="hashing") as memory:
        init_app(app, memory, url_prefix="/memory")
        init_app(app, memory, url_prefix="/other")
        client = app.test_client()
        assert client.get("/memoryland").text == "the host's own 404"
        assert client.get("/other/healthz").json == {"status": "ok"}
