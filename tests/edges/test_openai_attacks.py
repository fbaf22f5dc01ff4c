"""Malformed, huge, foreign and hostile requests to /v1: every answer is an error in OpenAI's shape, and nothing else
happens."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.api.app import _OPERATIONS
from agentformer.api.auth import JSON_BYTES
from agentformer.api.openai.lookup import file_id, namespace_of, store_id
from agentformer.errors import NotFound
from tests.edges.mounted import Mounted, grant, mounted

OURS = [operation for operation in _OPERATIONS if operation.path.startswith("/v1/")]
NOBODY = f"file-{'0' * 64}"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    with mounted(tmp_path_factory.mktemp("host"), max_file_bytes=1_000_000) as host:
        host.af.rag.upload(b"The caretaker keeps the keys.", name="keys.txt")
        host.af.rag.upload(b"The south pier is closed.", name="pier.txt", namespace="south")
        yield host


def known(host: Mounted, namespace: str = "default") -> str:
    (document,) = host.af.rag.documents(namespace=namespace)
    return file_id(host.af.backend.get([document.id])[0])


def path_of(host: Mounted, path: str) -> str:
    values = {"vector_store_id": "vs_default", "file_id": known(host), "model": "default"}
    return re.sub(r"{(\w+)}", lambda match: values[match[1]], path)


def refused(answer: Any, *statuses: int) -> dict[str, Any]:
    """The error of an answer, which has OpenAI's shape."""
    assert answer.status_code in statuses, (answer.status_code, answer.text)
    assert answer.content_type == "application/json"
    (error,) = answer.json.values()
    assert error.keys() == {"message", "type", "param", "code"} and error["message"] and error["type"]
    assert answer.headers["X-Request-ID"]
    return dict(error)


def upload(host: Mounted, *files: tuple[bytes, str], **more: Any) -> Any:
    data = {"file": [(io.BytesIO(content), name) for content, name in files], "purpose": "assistants", **more}
    return host.ask("POST", "/v1/files", data=data)


def test_every_operation_refuses_unknown_parameters_and_bodies_that_are_not_json(host: Mounted) -> None:
    assert len(OURS) == 21
    for operation in OURS:
        path = path_of(host, operation.path)
        assert refused(host.ask(operation.method, f"{path}?dry_run=1"), 400)["param"] == "dry_run"
        if operation.body is None:
            continue
        for data in (b"{", b"\xff\xfe", b"[]", b"null", b'"x"'):
            error = refused(host.ask(operation.method, path, data=data, content_type="application/json"), 400)
            assert error["param"] == "body", (path, data, error)
        refused(host.ask(operation.method, path, data=b"{}"), 415)
        missing = [name for name, field in operation.body.model_fields.items() if field.is_required()]
        if missing:
            assert refused(host.ask(operation.method, path, json={}), 400)["param"] == missing[0]


WRONG: list[tuple[str, Any, str]] = [
    ("/v1/vector_stores", {"name": 7}, "name"),
    ("/v1/vector_stores", {"name": "x" * 201}, "name"),
    ("/v1/vector_stores", {"name": "n", "metadata": {"a": {"b": 1}}}, "metadata"),
    ("/v1/vector_stores", {"name": "n", "metadata": {str(n): n for n in range(17)}}, "metadata"),
    ("/v1/vector_stores", {"name": "n", "expires_after": {"anchor": "last_active_at", "days": 1}}, "expires_after"),
    ("/v1/vector_stores", {"name": "n", "chunking_strategy": {"type": "static"}}, "chunking_strategy"),
    ("/v1/vector_stores/vs_default/files", {"file_id": [1]}, "file_id"),
    ("/v1/vector_stores/vs_default/files", {"file_id": "FILE", "attributes": {"a": [1]}}, "attributes"),
    ("/v1/vector_stores/vs_default/search", {"query": []}, "query"),
    ("/v1/vector_stores/vs_default/search", {"query": "   "}, "query"),
    ("/v1/vector_stores/vs_default/search", {"query": ["x"] * 9}, "query"),
    ("/v1/vector_stores/vs_default/search", {"query": "x", "max_num_results": 51}, "max_num_results"),
    (
        "/v1/vector_stores/vs_default/search",
        {"query": "x", "filters": {"type": "eq", "key": "$sql", "value": 1}},
        "filters.key",
    ),
    (
        "/v1/vector_stores/vs_default/search",
        {"query": "x", "ranking_options": {"score_threshold": 2}},
        "ranking_options",
    ),
    ("/v1/embeddings", {"model": "default", "input": [[1, 2]]}, "input"),
    ("/v1/embeddings", {"model": "default", "input": ["x", " "]}, "input[1]"),
    ("/v1/embeddings", {"model": "default", "input": ["x"] * 2049}, "input"),
    ("/v1/embeddings", {"model": "default", "input": "x", "encoding_format": "hex"}, "encoding_format"),
    ("/v1/chat/completions", {"messages": "Hello?"}, "messages"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": ["Hello?"]}, "messages[0]"),
    ("/v1/chat/completions", {"messages": [{}], "stream": "yes"}, "stream"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG)
def test_wrong_values_are_refused_with_their_name(host: Mounted, path: str, body: Any, param: str) -> None:
    sent = json.loads(json.dumps(body).replace("FILE", known(host)))
    error = refused(host.post(path, sent), 400)
    assert (error["param"], error["type"]) == (param, "invalid_request_error"), error


def test_a_deep_or_huge_body_is_refused(host: Mounted) -> None:
    deep = b'{"messages": [{"role": "user", "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"
    refused(host.ask("POST", "/v1/chat/completions", data=deep, content_type="application/json"), 400, 404)
    huge = b'{"input": "' + b"x" * JSON_BYTES + b'", "model": "default"}'
    refused(host.ask("POST", "/v1/embeddings", data=huge, content_type="application/json"), 413)
    nan = b'{"messages": [{"role": "user", "content": "Hello?"}], "temperature": NaN}'
    refused(host.ask("POST", "/v1/chat/completions", data=nan, content_type="application/json"), 400, 404)


def test_ids_that_no_store_and_no_file_can_have_are_404(host: Mounted) -> None:
    for id in (
        "vs_",
        "default",
        "vs_none",
        "vs_~ZGVmYXVsdA",
        "vs_~",
        "vs_~%FF",
        "%00",
        "x" * 900,
        "vs_a%20b",
    ):
        refused(host.ask("GET", f"/v1/vector_stores/{id}"), 404, 400)
        refused(host.post(f"/v1/vector_stores/{id}/search", {"query": "x"}), 404, 400)
    for id in (NOBODY, "file-", "file-x", known(host).upper(), f"{known(host)}0", "%00", "' OR 1=1"):
        for method in ("GET", "DELETE"):
            refused(host.ask(method, f"/v1/files/{id}"), 404)
            refused(host.ask(method, f"/v1/vector_stores/vs_default/files/{id}"), 404)
        refused(host.post("/v1/vector_stores/vs_default/files", {"file_id": id}), 404)
    refused(host.post("/v1/vector_stores", {"name": "half", "file_ids": [known(host), NOBODY]}), 404)
    assert "half" not in host.af.backend.namespaces()
    for path in ("/v1/vector_stores/vs_default/unknown", "/v1/files/"):
        assert host.ask("GET", path).status_code == 404
    assert host.ask("PUT", "/v1/files").status_code == 405


def test_store_ids_name_each_namespace_once() -> None:
    names = ["default", "a b", "Ä", "~x", "x/y", "..", "vs_x", "x" * 150, "日本", "a.b-c_d"]
    assert [namespace_of(store_id(name)) for name in names] == names
    assert len({store_id(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[\w.~-]+", store_id(name), re.ASCII) for name in names)
    with pytest.raises(NotFound):
        namespace_of("vs_~ZGVmYXVsdA")  # another spelling of vs_default


def test_uploads_that_are_wrong_store_nothing(host: Mounted) -> None:
    before = host.ask("GET", "/v1/files").json
    assert refused(upload(host, (b"x", "a.txt"), (b"y", "b.txt")), 400)["param"] == "file"
    assert refused(upload(host), 415)["code"] == "unsupported_media_type"
    assert refused(upload(host, (b"x", "a.txt"), purpose="fine-tune"), 400)["param"] == "purpose"
    assert refused(upload(host, (b"x", "a.txt"), colour="red"), 400)["param"] == "colour"
    assert refused(upload(host, (b"x", "///")), 400)["param"] == "file"
    assert refused(upload(host, (b"x" * 1_000_001, "a.txt")), 400)["param"] == "file"
    assert refused(upload(host, (b"x" * 3_000_000, "a.txt")), 413)["code"] == "too_large"
    assert refused(host.ask("POST", "/v1/files", json={"file": "x"}), 415)
    assert host.ask("GET", "/v1/files").json == before
    made = upload(host, (b"climb", "../../etc/passwd")).json
    assert "/" not in made["filename"].replace("etc/", "") and not made["filename"].startswith((".", "/"))
    content = host.ask("GET", f"/v1/files/{made['id']}/content")
    assert (content.data, content.content_type) == (b"climb", "application/octet-stream")
    assert "sandbox" in content.headers["Content-Security-Policy"]
    assert host.ask("DELETE", f"/v1/files/{made['id']}").status_code == 200


def test_a_key_of_one_namespace_learns_and_changes_nothing_of_others(host: Mounted) -> None:
    south, own = known(host, "south"), grant("admin", only=("default",))
    for operation in OURS:
        if "{" not in operation.path or "{model}" in operation.path:
            continue
        path = operation.path.format(vector_store_id="vs_south", file_id=south)
        body = {"query": "pier", "file_id": south, "attributes": {}, "name": "mine"}
        sent = (
            {}
            if operation.body is None
            else {"json": {k: v for k, v in body.items() if k in operation.body.model_fields}}
        )
        error = refused(host.ask(operation.method, path, own, **sent), 404)
        assert "pier" not in json.dumps(error) and error["code"] == "not_found"
    for header in ("south", "S" * 300):
        asked = host.ask("GET", "/v1/files", own, headers={"X-AgentFormer-Namespace": header})
        refused(asked, 403, 400)
    assert [document.name for document in host.af.rag.documents(namespace="south")] == ["pier.txt"]
    assert host.af.rag.original(host.af.rag.documents(namespace="south")[0].id) == b"The south pier is closed."


def test_a_document_that_is_going_to_be_deleted_is_in_no_store(host: Mounted) -> None:
    made = host.af.rag.upload(b"The barn is empty.", name="barn.txt", namespace="barns")
    query = {"query": "Is the barn empty?"}
    assert len(host.post("/v1/vector_stores/vs_barns/search", query).json["data"]) == 1
    client = {"headers": {"X-AgentFormer-Namespace": "barns"}}
    assert host.ask("DELETE", f"/api/rag/documents/{made.id}?undo_seconds=60").status_code == 202
    assert host.ask("GET", "/v1/files", **client).json["data"] == []
    refused(host.post("/v1/vector_stores/vs_barns/search", query), 404)
    host.af.rag.upload(b"The mill is empty.", name="mill.txt", namespace="barns")
    found = host.post("/v1/vector_stores/vs_barns/search", query).json["data"]
    assert [hit["filename"] for hit in found] == ["mill.txt"]
    assert host.ask("DELETE", f"/api/rag/removals/{made.id}").status_code == 204
    found = host.post("/v1/vector_stores/vs_barns/search", query).json["data"]
    assert found[0]["filename"] == "barn.txt"


def test_wrong_headers_of_a_chat_are_named(host: Mounted, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Hello?"}]}
    assert refused(host.post("/v1/chat/completions", body), 404)["message"].startswith("no language model")
    for name, value in [
        ("X-AgentFormer-Remember", "perhaps"),
        ("X-AgentFormer-Memory-Tokens", "-1"),
        ("X-AgentFormer-Memory-Tokens", "1e3"),
        ("X-AgentFormer-Memory-Tokens", "99999999"),
        ("X-AgentFormer-Session", "s" * 300),
        ("X-AgentFormer-User", "u" * 300),
    ]:
        assert refused(host.post("/v1/chat/completions", body, headers={name: value}), 400)["param"] == name


@pytest.mark.parametrize("name", ["X-AgentFormer-User", "X-AgentFormer-Session", "X-AgentFormer-Namespace"])
def test_a_header_that_is_sent_twice_is_refused(host: Mounted, name: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hello?"}]}
    for twice in ([(name, "aino"), (name, "ben")], [(name, "aino, ben")]):  # servers join both values in either way
        error = refused(host.post("/v1/chat/completions", body, headers=twice), 400)
        assert error["param"] == name and "sent twice" in error["message"]


def test_too_many_texts_to_embed_are_refused_with_the_limit(host: Mounted) -> None:
    error = refused(host.post("/v1/embeddings", {"model": "default", "input": ["x"] * 2049}), 400)
    assert error["param"] == "input" and "must have at most 2048 items" in error["message"]
    error = refused(host.post("/v1/embeddings", {"model": "default", "input": ["x", " "]}), 400)
    assert error["param"] == "input[1]" and "is empty" in error["message"]


def test_two_clients_that_create_the_same_store_get_two_stores(host: Mounted) -> None:
    made: list[str] = []

    def create() -> None:
        client = host.app.test_client()
        made.append(client.post("/m/v1/vector_stores", json={"name": "race"}).json["id"])

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == len({*made}) == 4
    long = [host.post("/v1/vector_stores", {"name": "x" * 200}).json["id"] for _ in range(2)]
    assert len({*long}) == 2
    made += long
    for id in made:
        assert host.ask("DELETE", f"/v1/vector_stores/{id}").status_code == 200
