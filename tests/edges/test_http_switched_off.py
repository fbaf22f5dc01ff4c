"""A tool that is switched off for a key is off by every door; and nothing that is asked for is silently ignored."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.grant import Grant
from agentformer.tools.toolbox import HINTS
from tests.edges.mounted import SAME, Mounted, grant, mounted

KEYS = b"The caretaker keeps the keys in the blue cupboard."
SAID = {"session_id": "s", "role": "user", "content": "Is tea served?"}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as host:
        yield host


def without(*tools: str) -> Grant:
    return grant("admin", without=tools)


# Method, path, body, the tool that does the same. {entry} and {document} are there, and so is the block `persona`.
SAME_AS: list[tuple[str, str, Any, str]] = [
    ("POST", "/api/memory", {"content": "Aino prefers coffee."}, "memory_add"),
    ("POST", "/api/memory/batch", {"items": [{"content": "Aino prefers coffee."}]}, "memory_add"),
    ("POST", "/api/memory/search", {"text": "tea"}, "memory_search"),
    ("GET", "/api/memory/{entry}", None, "memory_get"),
    ("PATCH", "/api/memory/{entry}", {"content": "Aino prefers coffee."}, "memory_update"),
    ("DELETE", "/api/memory/{entry}", None, "memory_delete"),
    ("POST", "/api/memory/core/persona/append", {"text": "Be kind."}, "core_memory_append"),
    ("POST", "/api/memory/core/persona/replace", {"old": "brief", "new": "kind"}, "core_memory_replace"),
    ("DELETE", "/api/memory/core/persona", None, "memory_delete"),
    ("GET", "/api/memory/messages?session_id=s", None, "conversation_search"),
    ("POST", "/api/memory/clean", {}, "memory_consolidate"),
    ("GET", "/api/memory/audit", None, "memory_audit"),
    ("POST", "/api/rag/upload", "file", "rag_upload"),
    ("POST", "/api/rag/query", {"question": "Who keeps the keys?"}, "rag_query"),
    ("GET", "/api/rag/documents", None, "rag_list"),
    ("DELETE", "/api/rag/documents/{document}", None, "memory_delete"),
]


@pytest.mark.parametrize(("method", "path", "body", "tool"), SAME_AS)
def test_what_a_tool_does_is_refused_to_a_key_without_it(
    host: Mounted, method: str, path: str, body: Any, tool: str
) -> None:
    entry = host.add("Aino prefers tea.")
    host.post("/api/memory/core/persona/append", {"text": "Be brief."})
    host.post("/api/memory/messages", SAID)
    document = host.af.rag.upload(KEYS, name="keys.txt").id
    path = path.format(entry=entry, document=document)

    def ask(asking: Grant) -> Any:
        sent: dict[str, Any] = {} if body is None else {"json": body}
        if body == "file":
            sent = {"data": {"file": (io.BytesIO(KEYS + b" And the doors."), "doors.txt")}}
        return host.ask(method, path, asking, **sent, headers=SAME)

    before = stored(host)
    refused = ask(without(tool))
    assert (refused.status_code, refused.json["type"]) == (403, "urn:agentformer:problem:forbidden"), refused.text
    assert refused.json["detail"] == f"the tool {tool} is switched off for this key"
    assert refused.json == host.post(f"/api/tools/{tool}", {}, without(tool), headers=SAME).json
    assert stored(host) == before
    assert ask(without(*(HINTS.keys() - {tool}))).status_code < 300


def stored(host: Mounted) -> list[tuple[str, int]]:
    return [(entry.id, entry.version) for entry in host.af.memory.list(limit=100, include_archived=True)]


def test_a_right_that_is_missing_is_told_before_a_tool(host: Mounted) -> None:
    told = host.post("/api/memory", {"content": "x"}, grant("read", without=("memory_add",)))
    assert "no right to write" in told.json["detail"]


def test_the_document_says_which_tool_an_endpoint_stands_for(host: Mounted) -> None:
    paths = host.client.get("/m/openapi.json").json["paths"]
    for method, path, _, tool in SAME_AS:
        path = path.partition("?")[0].replace("entry", "entry_id").replace("document}", "document_id}")
        described = paths[path.replace("persona", "{name}")][method.lower()]
        assert f"Refused for keys without the tool `{tool}`" in described["description"]


# Queries


def needs(parameter: Any) -> bool:
    return bool(parameter["in"] == "query" and parameter["required"])


def test_no_endpoint_with_a_right_ignores_a_query(host: Mounted) -> None:
    entry, document = host.add("Aino prefers tea."), host.af.rag.upload(KEYS, name="keys.txt").id
    there = {"entry_id": entry, "document_id": document, "name": "persona", "job_id": "x"}
    looked_at = 0
    for path, methods in host.client.get("/m/openapi.json").json["paths"].items():
        for method, described in methods.items():
            if not described["security"]:
                assert host.ask(method, f"{path}?dry_run=1").status_code == 200
                continue
            looked_at += 1
            needed = "".join(f"{each['name']}=s&" for each in described["parameters"] if needs(each))
            answer = host.ask(method, f"{path.format(**there)}?{needed}dry_run=1")
            assert (answer.status_code, answer.json["field"]) == (400, "dry_run"), (method, path, answer.text)
            assert "400" in described["responses"]
    assert looked_at > 25
    assert host.ask("GET", f"/api/memory/{entry}").status_code == 200


def test_an_upload_does_not_go_elsewhere_than_its_address_says(host: Mounted) -> None:
    form = {"file": (io.BytesIO(KEYS), "keys.txt")}
    answer = host.ask("POST", "/api/rag/upload?namespace=theirs", data=form)
    assert (answer.status_code, answer.json["field"]) == (400, "namespace")
    assert host.af.backend.namespaces() == []
    assert host.ask("GET", "/api/status?=x").status_code == 400
