"""Rules of all HTTP operations: rights, tools, namespaces, and invalid requests."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.permissions import Grant
from agentformer.tools.toolbox import HINTS
from tests.edges.mounted import SAME, Mounted, grant, mounted

KEYS = b"The caretaker keeps the keys in the blue cupboard."
MESSAGE = {"session_id": "s", "role": "user", "content": "Is tea served?"}
READ_B = grant("read", only=("b",))
ADMIN_A = grant("admin", only=("a",))
WRITE = grant("write")
NOBODY = "00000000-0000-7000-8000-000000000000"
PROBLEM = "urn:agentformer:problem:"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as host:
        yield host


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A memory for requests whose effects do not matter."""
    with mounted(tmp_path_factory.mktemp("shared")) as host:
        host.add("Aino prefers tea.")
        host.post("/api/memory/core/persona/append", {"text": "Be brief."})
        host.af.rag.upload(KEYS, name="keys.txt")
        yield host


Described = tuple[str, str, dict[str, Any]]


def operations(host: Mounted) -> list[Described]:
    """Method, path and description of all operations that need a key, with existing ids in the paths. Those with the
    protocol of OpenAI have errors of another form; see `test_openai_attacks.py`."""
    (entry,) = host.af.memory.list(kinds=("fact",))
    (document,) = host.af.rag.documents()
    ids = {"entry_id": entry.id, "document_id": document.id, "name": "persona"}
    ids |= dict.fromkeys(("job_id", "key_id", "webhook_id"), "x")
    paths = host.client.get("/m/openapi.json").json["paths"]
    found = [
        (method, path.replace("tools/{name}", "tools/memory_search").format(**ids), operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if operation["security"] and not path.startswith("/v1/")
    ]
    assert len(found) > 25
    return found


def json_operations(host: Mounted) -> list[Described]:
    return [
        (method, path, operation)
        for method, path, operation in operations(host)
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]


# Invalid requests


def test_every_operation_refuses_unknown_parameters(shared: Mounted) -> None:
    for method, path, operation in operations(shared):
        required = "".join(
            f"{each['name']}=s&" for each in operation["parameters"] if each["in"] == "query" and each["required"]
        )
        answer = shared.ask(method, f"{path}?{required}dry_run=1")
        assert (answer.status_code, answer.json["field"]) == (400, "dry_run"), (method, path, answer.text)
        assert "400" in operation["responses"]
    for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
        assert shared.ask("GET", f"{path}?dry_run=1").status_code == 200


def test_every_operation_refuses_bodies_that_are_not_json(shared: Mounted) -> None:
    for method, path, _ in json_operations(shared):
        malformed = shared.ask(method, path, data=b"{", content_type="application/json")
        assert (malformed.status_code, malformed.json["field"]) == (400, "body"), (method, path, malformed.text)
        untyped = shared.ask(method, path, data=b"[")
        assert (untyped.status_code, untyped.content_type) == (415, "application/problem+json"), (method, path)


def test_every_operation_refuses_unknown_and_missing_fields(shared: Mounted) -> None:
    schemas = shared.client.get("/m/openapi.json").json["components"]["schemas"]
    for method, path, operation in json_operations(shared):
        unknown = shared.ask(method, path, json={"no_such_field": 1})
        assert (unknown.status_code, unknown.json["type"]) == (400, f"{PROBLEM}invalid-input"), (method, path)
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        for field in schemas[reference.rpartition("/")[2]].get("required", ())[:1]:
            missing = shared.ask(method, path)
            assert (missing.status_code, missing.json["field"]) == (400, field), (method, path, missing.text)


def test_an_upload_is_stored_only_in_the_namespace_of_its_form(host: Mounted) -> None:
    form = {"file": (io.BytesIO(KEYS), "keys.txt")}
    answer = host.ask("POST", "/api/rag/upload?namespace=theirs", data=form)
    assert (answer.status_code, answer.json["field"]) == (400, "namespace")
    assert host.af.backend.namespaces() == []
    assert host.ask("GET", "/api/status?=x").status_code == 400


def test_fixed_paths_are_not_ids(shared: Mounted) -> None:
    post = "OPTIONS, POST"
    paths = dict.fromkeys(("search", "batch", "context", "clean", "restore", "reindex"), post)
    paths |= dict.fromkeys(("audit", "core"), "GET, HEAD, OPTIONS") | {"messages": "GET, HEAD, OPTIONS, POST"}
    for path, allowed in paths.items():
        for method in {"GET", "PATCH", "DELETE", "PUT"} - set(allowed.split(", ")):
            answer = shared.ask(method, f"/api/memory/{path}")
            assert (answer.status_code, answer.headers["Allow"]) == (405, allowed), (method, answer.text)


def test_ids_that_do_not_exist_are_404_and_invalid_ids_are_400(shared: Mounted) -> None:
    for entry_id in ("no-such-id", "%00", "..%5C..", "%F0%9F%98%80", "%ED%A0%80", "' OR 1=1"):
        assert shared.ask("GET", f"/api/memory/{entry_id}").status_code == 404
    for entry_id in ("x" * 201, "%20"):
        assert shared.ask("GET", f"/api/memory/{entry_id}").status_code == 400


# Rights and tools

RIGHTS: list[tuple[str, str, Any, str]] = [
    ("POST", "/api/memory", {"content": "x"}, "write"),
    ("POST", "/api/memory/batch", {"items": [{"content": "x"}]}, "write"),
    ("GET", "/api/memory", None, "read"),
    ("GET", "/api/memory/x", None, "read"),
    ("PATCH", "/api/memory/x", {"content": "x"}, "change"),
    ("DELETE", "/api/memory/x", None, "change"),
    ("GET", "/api/memory/x/history", None, "read"),
    ("POST", "/api/memory/search", {"text": "x"}, "read"),
    ("POST", "/api/memory/count", {}, "read"),
    ("POST", "/api/memory/remove", {"ids": ["a"]}, "change"),
    ("POST", "/api/memory/messages", {"session_id": "s", "role": "user", "content": "x"}, "write"),
    ("GET", "/api/memory/messages?session_id=s", None, "read"),
    ("POST", "/api/memory/context", {"task": "x"}, "read"),
    ("POST", "/api/memory/clean", {}, "change"),
    ("POST", "/api/memory/restore", {"summary_id": "x"}, "change"),
    ("POST", "/api/memory/reindex", {}, "admin"),
    ("GET", "/api/memory/audit", None, "read"),
    ("GET", "/api/memory/core", None, "read"),
    ("GET", "/api/memory/core/c", None, "read"),
    ("POST", "/api/memory/core/c/append", {"text": "x"}, "change"),
    ("DELETE", "/api/memory/core/c", None, "change"),
]


def test_each_operation_needs_its_right(shared: Mounted) -> None:
    for method, path, body, right in RIGHTS:
        sent = {} if body is None else {"json": body}
        for other in ("read", "write"):
            answer = shared.ask(method, path, grant(other), **sent)  # type: ignore[arg-type]
            assert (answer.status_code == 403) == (other != right), (method, path, answer.text)
        assert shared.ask(method, path, grant("admin"), **sent).status_code != 403


# Method, path, body, and the tool that does the same.
TOOLS: list[tuple[str, str, Any, str]] = [
    ("POST", "/api/memory", {"content": "Aino prefers coffee."}, "memory_add"),
    ("POST", "/api/memory/batch", {"items": [{"content": "Aino prefers coffee."}]}, "memory_add"),
    ("POST", "/api/memory/search", {"text": "tea"}, "memory_search"),
    ("POST", "/api/memory/count", {}, "memory_search"),
    ("POST", "/api/memory/remove", {"ids": ["a"]}, "memory_delete"),
    ("GET", "/api/memory/{entry}", None, "memory_get"),
    ("PATCH", "/api/memory/{entry}", {"content": "Aino prefers coffee."}, "memory_update"),
    ("DELETE", "/api/memory/{entry}", None, "memory_delete"),
    ("POST", "/api/memory/core/persona/append", {"text": "Be kind."}, "core_memory_append"),
    ("POST", "/api/memory/core/persona/replace", {"old": "brief", "new": "kind"}, "core_memory_replace"),
    ("DELETE", "/api/memory/core/persona", None, "memory_delete"),
    ("GET", "/api/memory/messages?session_id=s", None, "conversation_search"),
    ("POST", "/api/memory/clean", {}, "memory_consolidate"),
    ("POST", "/api/memory/learn", {}, "memory_learn"),
    ("GET", "/api/memory/learn", None, "memory_learn"),
    ("GET", "/api/memory/profile?user_id=a", None, "memory_profile"),
    ("GET", "/api/memory/audit", None, "memory_audit"),
    ("POST", "/api/rag/upload", "file", "rag_upload"),
    ("POST", "/api/rag/query", {"question": "Who keeps the keys?"}, "rag_query"),
    ("GET", "/api/rag/documents", None, "rag_list"),
    ("DELETE", "/api/rag/documents/{document}", None, "memory_delete"),
]


def without(*tools: str) -> Grant:
    return grant("admin", without=tools)


def stored(host: Mounted) -> list[tuple[str, int]]:
    return [(entry.id, entry.version) for entry in host.af.memory.list(limit=100, include_archived=True)]


def test_an_operation_is_refused_to_a_key_without_its_tool(host: Mounted) -> None:
    for method, template, body, tool in TOOLS:
        entry = host.add(f"Aino prefers tea before {method} {template}.")
        host.post("/api/memory/core/persona/append", {"text": "Be brief."})
        host.post("/api/memory/messages", MESSAGE)
        document = host.af.rag.upload(KEYS, name="keys.txt").id
        path = template.format(entry=entry, document=document)

        def ask(asking: Grant, method: str = method, path: str = path, body: Any = body) -> Any:
            sent: dict[str, Any] = {} if body is None else {"json": body}
            if body == "file":
                sent = {"data": {"file": (io.BytesIO(KEYS + b" And the doors."), "doors.txt")}}
            return host.ask(method, path, asking, **sent, headers=SAME)

        before = stored(host)
        refused = ask(without(tool))
        assert (refused.status_code, refused.json["type"]) == (403, f"{PROBLEM}forbidden"), refused.text
        assert refused.json["detail"] == f"the tool {tool} is switched off for this key"
        assert refused.json == host.post(f"/api/tools/{tool}", {}, without(tool), headers=SAME).json
        assert stored(host) == before
        assert ask(without(*(HINTS.keys() - {tool}))).status_code < 300, (method, path)


def test_a_missing_right_is_reported_before_a_missing_tool(shared: Mounted) -> None:
    answer = shared.post("/api/memory", {"content": "x"}, grant("read", without=("memory_add",)))
    assert "does not have the right to write" in answer.json["detail"]


def test_the_openapi_document_names_the_tool_of_each_operation(shared: Mounted) -> None:
    paths = shared.client.get("/m/openapi.json").json["paths"]
    for method, path, _, tool in TOOLS:
        path = path.partition("?")[0].replace("entry", "entry_id").replace("document}", "document_id}")
        described = paths[path.replace("persona", "{name}")][method.lower()]
        assert f"A key without the tool `{tool}` is refused" in described["description"]


# Namespaces

BY_ID: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/api/memory/{}", {}),
    ("GET", "/api/memory/{}/history", {}),
    ("PATCH", "/api/memory/{}", {"json": {"content": "Mine now."}}),
    ("PATCH", "/api/memory/{}", {"json": {"content": "Mine now."}, "headers": {"If-Match": '"1"'}}),
    ("PATCH", "/api/memory/{}", {"json": {"content": "Mine now."}, "headers": {"If-Match": '"77"'}}),
    ("PATCH", "/api/memory/{}", {"json": {}}),
    ("DELETE", "/api/memory/{}", {}),
    ("DELETE", "/api/memory/{}", {"headers": {"If-Match": '"77"'}}),
    ("POST", "/api/memory/restore", {"json": {"summary_id": "{}"}}),
    ("POST", "/api/tools/memory_get", {"json": {"id": "{}"}}),
    ("POST", "/api/tools/memory_update", {"json": {"id": "{}", "content": "Mine now."}}),
    ("POST", "/api/tools/memory_update", {"json": {"id": "{}", "content": "Mine now.", "expected_version": 77}}),
    ("POST", "/api/tools/memory_delete", {"json": {"id": "{}"}}),
]


def entries_of_b(host: Mounted) -> dict[str, str]:
    """Ids of all kinds of entries in the namespace b."""
    memory = host.af.memory
    for n in range(10):
        memory.add_message("s", "user", f"Boat {n} is blue.", namespace="b")
    (summary,) = memory.clean(namespace="b").summaries
    old, new = (memory.store(text, namespace="b").id for text in ("Aino prefers tea.", "Aino prefers coffee."))
    memory.supersede(old, new)
    memory.update(new, content="Aino prefers cocoa.")
    host.af.rag.upload(b"The keys hang in the cupboard.", name="keys.txt", namespace="b")
    kinds = {kind: memory.list(namespace="b", kinds=(kind,))[0].id for kind in ("document", "page", "chunk")}
    block = memory.core.append("persona", "Be brief.", namespace="b")
    return {"fact": new, "superseded": old, "summary": summary, "block": block.id, **kinds}


@pytest.mark.slow
def test_an_entry_of_another_namespace_looks_like_one_that_does_not_exist(host: Mounted) -> None:
    ids = entries_of_b(host)
    before = {kind: host.af.backend.get([entry_id])[0] for kind, entry_id in ids.items()}

    def ask(method: str, path: str, more: dict[str, Any], entry_id: str) -> Any:
        body = {
            name: value.replace("{}", entry_id) if value == "{}" else value
            for name, value in more.get("json", {}).items()
        }
        sent = {"json": body} if "json" in more else {}
        return host.ask(method, path.format(entry_id), ADMIN_A, headers={**SAME, **more.get("headers", {})}, **sent)

    for method, path, more in BY_ID:
        for kind, entry_id in ids.items():
            hidden, absent = ask(method, path, more, entry_id), ask(method, path, more, NOBODY)
            assert hidden.status_code == absent.status_code == 404, (kind, hidden.text)
            assert hidden.data == absent.data.replace(NOBODY.encode(), entry_id.encode()), kind
            assert [*hidden.headers] == [*absent.headers]
    host.af.memory.close()  # writes the counters
    for kind, entry in before.items():
        assert host.af.backend.get([entry.id])[0] == entry, f"the {kind} was changed"


def test_another_namespace_is_403_with_or_without_entries(host: Mounted) -> None:
    host.add("Aino prefers tea.", namespace="b")
    message = {"session_id": "s", "role": "user", "content": "x"}

    def answers(namespace: str) -> list[str]:
        bodies: dict[str, dict[str, Any]] = {
            "": {"content": "x"},
            "/search": {"text": "x"},
            "/context": {"task": "x"},
            "/clean": {},
            "/reindex": {},
            "/messages": message,
            "/core/c/append": {"text": "x"},
            "/core/c/replace": {"old": "x", "new": "y"},
        }
        answers = [
            host.post(f"/api/memory{path}", {**body, "namespace": namespace}, ADMIN_A) for path, body in bodies.items()
        ]
        answers.append(host.post("/api/memory/batch", {"items": [{"content": "x", "namespace": namespace}]}, ADMIN_A))
        for method, path in (
            *(("GET", "?"), ("GET", "/messages?session_id=s&"), ("GET", "/audit?"), ("GET", "/core?")),
            *(("GET", "/core/c?"), ("DELETE", "/core/c?")),
        ):
            answers.append(host.ask(method, f"/api/memory{path}namespace={namespace}", ADMIN_A))
        assert {answer.status_code for answer in answers} == {403}
        return [str({**answer.json, "request_id": ""}) for answer in answers]

    assert [text.replace("namespace b", "namespace c") for text in answers("b")] == answers("c")


def test_a_key_with_one_namespace_uses_it_by_default(host: Mounted) -> None:
    made = host.post("/api/memory", {"content": "Aino prefers tea."}, ADMIN_A)
    assert made.json["namespace"] == "a"
    assert host.ask("GET", f"/api/memory/{made.json['id']}", ADMIN_A).status_code == 200
    assert host.ask("GET", "/api/memory", ADMIN_A).json["entries"][0]["id"] == made.json["id"]
    assert host.ask("GET", "/api/memory", READ_B).json == {"entries": [], "next": None}


def test_a_key_with_several_namespaces_has_no_default(shared: Mounted) -> None:
    answer = shared.post("/api/memory", {"content": "x"}, grant("write", only=("a", "b")))
    assert (answer.status_code, answer.json["field"]) == (400, "namespace")


def test_a_key_without_the_right_to_read_gets_no_stored_content(host: Mounted) -> None:
    secret = "The safe is behind the picture."
    entry_id = host.add(secret, metadata={"code": "4711"})
    host.post("/api/memory/core/persona/append", {"text": secret})
    for text in (secret, "Something new."):
        for answer in (
            host.post("/api/memory", {"content": text}, WRITE),
            host.post("/api/memory/batch", {"items": [{"content": text}]}, WRITE),
        ):
            assert (answer.status_code, answer.data) == (204, b"")
            assert not {"Location", "ETag"} & {*answer.headers.keys()}
    assert host.ask("PATCH", f"/api/memory/{entry_id}", WRITE, json={"title": "x"}).status_code == 403
    guesses = [host.post("/api/memory/core/persona/replace", {"old": old, "new": old}, WRITE) for old in ("Be", "Do")]
    assert [answer.status_code for answer in guesses] == [403, 403]
    assert guesses[0].json["detail"] == guesses[1].json["detail"]
