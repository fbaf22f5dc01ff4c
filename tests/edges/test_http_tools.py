"""The toolbox over HTTP: lists of tools, results, errors, and namespaces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.permissions import EVERYTHING, Grant
from agentformer.api.endpoints import tools as models
from tests.edges.mounted import Mounted, grant, mounted, shaped

READ, WRITE = grant("read"), grant("write")
READING = {
    "memory_profile",
    "memory_search",
    "memory_get",
    "conversation_search",
    "memory_audit",
    "memory_status",
    "rag_query",
    "rag_list",
}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as host:
        yield host


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """For calls that store nothing."""
    with mounted(tmp_path_factory.mktemp("quiet")) as host:
        yield host
        assert host.af.backend.namespaces() == []


def listed(host: Mounted, asking: Grant) -> dict[str, dict[str, Any]]:
    told = shaped(models.Tools, host.ask("GET", "/api/tools", asking))
    return {tool["function"]["name"]: tool for tool in told["tools"]}


def called(host: Mounted, tool: str, asking: Grant = EVERYTHING, **arguments: Any) -> Any:
    return shaped(models.ToolResult, host.post(f"/api/tools/{tool}", arguments, asking))["result"]


def test_the_list_has_schemas_and_annotations(host: Mounted) -> None:
    tools = listed(host, EVERYTHING)
    schemas = host.af.toolbox.schemas()
    assert [{name: tool[name] for name in ("type", "function")} for tool in tools.values()] == schemas
    hints = {name: tool["annotations"] for name, tool in tools.items()}
    assert {name for name in hints if hints[name]["read_only"]} == READING
    assert hints["memory_delete"]["destructive"] and not hints["memory_add"]["destructive"]
    assert not any(hint["read_only"] and hint["destructive"] for hint in hints.values())


def test_the_list_has_the_tools_of_the_key(quiet: Mounted) -> None:
    everything = set(listed(quiet, EVERYTHING))
    assert set(listed(quiet, READ)) == READING
    assert set(listed(quiet, WRITE)) == {"memory_add", "rag_upload"}
    assert set(listed(quiet, grant("read", "write"))) == everything
    assert set(listed(quiet, grant("admin", without=("memory_delete",)))) == everything - {"memory_delete"}


def test_every_listed_tool_can_be_called(host: Mounted) -> None:
    entry_id = called(host, "memory_add", content="Aino prefers tea.")["memory"]["id"]
    arguments: dict[str, dict[str, Any]] = {
        "memory_add": {"content": "Onni prefers coffee."},
        "memory_search": {"query": "tea"},
        "memory_get": {"id": entry_id},
        "memory_update": {"id": entry_id, "content": "Aino prefers cocoa."},
        "core_memory_append": {"name": "persona", "text": "Be brief."},
        "core_memory_replace": {"name": "persona", "old": "brief", "new": "kind"},
        "conversation_search": {"query": "tea"},
        "memory_consolidate": {},
        "memory_learn": {},
        "memory_profile": {"user_id": "aino"},
        "memory_audit": {},
        "memory_status": {},
        "rag_upload": {"name": "keys.txt", "text": "The keys hang in the blue cupboard."},
        "rag_query": {"question": "Where do the keys hang?"},
        "rag_list": {},
        "memory_delete": {"id": entry_id},
    }
    assert set(arguments) == set(listed(host, EVERYTHING))
    results = {name: called(host, name, **given) for name, given in arguments.items()}
    assert results["rag_query"]["citations"][0]["document"] == "keys.txt"
    assert results["core_memory_replace"]["block"]["content"] == "Be kind."


def test_invalid_arguments_are_400_with_a_correction(quiet: Mounted) -> None:
    half = "\ud800"
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        ("memory_search", {}, "query", "memory_search takes: query*"),
        ("memory_search", {"query": "x", "tiers": ["attic"]}, "tiers.0", "semantic"),
        ("memory_add", {"content": "x", "namespace": " "}, "namespace", "1 to 200 characters"),
        ("rag_upload", {"path": "/etc/passwd"}, "path", "give text or content_base64"),
        ("memory_add", {"content": "x", "metadata": {"a": [half]}}, "metadata", "surrogate"),
        ("rag_query", {"question": half}, "question", "surrogate"),
    ]
    for name, arguments, field, message in cases:
        answer = quiet.post(f"/api/tools/{name}", arguments)
        assert (answer.status_code, answer.json["type"]) == (400, "urn:agentformer:problem:invalid-input")
        assert answer.json["field"] == field and message in answer.json["detail"], answer.text


def test_a_body_that_is_not_an_object_is_400(quiet: Mounted) -> None:
    for data in (b"[]", b"null", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"query": NaN}'):
        answer = quiet.ask("POST", "/api/tools/memory_search", data=data, content_type="application/json")
        assert (answer.status_code, answer.content_type) == (400, "application/problem+json"), answer.text


def test_an_unknown_tool_is_404(quiet: Mounted) -> None:
    for name in ("no_such_tool", "__class__", "%00", "memory_add%2F..", "x" * 300):
        answer = quiet.post(f"/api/tools/{name}", {})
        assert answer.status_code == 404 and len(answer.data) < 2000


def test_a_tool_needs_its_own_right(host: Mounted) -> None:
    assert host.post("/api/tools/memory_add", {"content": "x"}, READ).status_code == 403
    assert host.post("/api/tools/memory_search", {"query": "x"}, WRITE).status_code == 403
    assert host.post("/api/tools/memory_add", {"content": "x"}, WRITE).status_code == 200


def test_a_tool_without_arguments_needs_no_body(quiet: Mounted) -> None:
    assert quiet.ask("POST", "/api/tools/rag_list").json == {"result": {"documents": [], "next": None}}


def test_tools_stay_in_the_namespaces_of_the_key(host: Mounted) -> None:
    host.add("The safe is behind the picture.", namespace="b")
    asking = grant("admin", only=("a",))
    made = called(host, "memory_add", asking, content="Aino prefers tea.")
    assert made["memory"]["namespace"] == "a"
    assert "safe" not in json.dumps(called(host, "memory_search", asking, query="Where is the safe?"))
    status = called(host, "memory_status", asking)
    assert (status["namespace"], status["memories"]["semantic"], "store" in status) == ("a", 1, False)
    for name, arguments in (
        ("memory_search", {"query": "safe"}),
        ("memory_add", {"content": "x"}),
        ("memory_status", {}),
        ("memory_audit", {}),
        ("memory_consolidate", {}),
        ("memory_learn", {}),
        ("memory_profile", {"user_id": "aino"}),
        ("rag_list", {}),
        ("rag_query", {"question": "safe?"}),
        ("rag_upload", {"name": "x.txt", "text": "x"}),
        ("core_memory_append", {"name": "x", "text": "x"}),
        ("core_memory_replace", {"name": "x", "old": "x", "new": "y"}),
        ("conversation_search", {"query": "safe"}),
    ):
        answer = host.post(f"/api/tools/{name}", {**arguments, "namespace": "b"}, asking)
        assert answer.status_code == 403, (name, answer.text)
    assert len(host.af.memory.list(namespace="b")) == 1


def test_a_stale_version_is_409_and_changes_nothing(host: Mounted) -> None:
    entry_id = host.add("One.")
    answer = host.post("/api/tools/memory_update", {"id": entry_id, "content": "Two.", "expected_version": 7})
    assert (answer.status_code, answer.json["type"]) == (409, "urn:agentformer:problem:conflict")
    assert host.af.backend.get([entry_id])[0].content == "One."
