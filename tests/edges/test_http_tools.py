"""The toolbox over HTTP: what is listed for whom, and what a call gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.grant import EVERYTHING, Grant
from agentformer.api import tools as models
from tests.edges.mounted import Mounted, grant, mounted, shaped

READ, WRITE = grant("read"), grant("write")
READING = {
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


def test_the_list_is_what_a_language_model_is_given_and_what_each_tool_does(host: Mounted) -> None:
    tools = listed(host, EVERYTHING)
    schemas = host.af.toolbox.schemas()
    assert [{name: tool[name] for name in ("type", "function")} for tool in tools.values()] == schemas
    hints = {name: tool["annotations"] for name, tool in tools.items()}
    assert {name for name in hints if hints[name]["read_only"]} == READING
    assert hints["memory_delete"]["destructive"] and not hints["memory_add"]["destructive"]
    assert not any(hint["read_only"] and hint["destructive"] for hint in hints.values())


def test_each_key_is_shown_what_it_may_call(quiet: Mounted) -> None:
    everything = set(listed(quiet, EVERYTHING))
    assert set(listed(quiet, READ)) == READING
    assert set(listed(quiet, WRITE)) == everything - READING
    assert set(listed(quiet, grant("admin", without=("memory_delete",)))) == everything - {"memory_delete"}


def test_what_one_call_remembers_another_recalls(host: Mounted) -> None:
    made = called(host, "memory_add", content="Aino prefers tea.")
    (found,) = called(host, "memory_search", query="What does Aino drink?")["memories"]
    assert (found["id"], found["content"]) == (made["memory"]["id"], "Aino prefers tea.")
    assert called(host, "memory_delete", id=found["id"]) == {"forgotten": 1}
    assert called(host, "memory_search", query="What does Aino drink?")["memories"] == []


def test_every_tool_that_is_listed_answers_over_http(host: Mounted) -> None:
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


@pytest.mark.parametrize(
    ("name", "arguments", "field", "said"),
    [
        ("memory_search", {}, "query", "memory_search takes: query*"),
        ("memory_search", {"query": "x", "limt": 3}, "limt", "did you mean limit?"),
        ("memory_search", {"query": "x", "limit": 99}, "limit", "less than or equal to 50"),
        ("memory_search", {"query": "x", "tiers": ["attic"]}, "tiers.0", "semantic"),
        ("memory_add", {"content": ""}, "content", "memory_add takes"),
        ("memory_add", {"content": "x", "kind": "page"}, "kind", "such as fact"),
        ("memory_add", {"content": "x", "namespace": " "}, "namespace", "1 to 200 characters"),
        ("rag_upload", {"path": "/etc/passwd"}, "path", "give text or content_base64"),
        ("rag_upload", {"name": "x.pdf", "content_base64": "!"}, "content_base64", "base64"),
    ],
)
def test_wrong_arguments_are_400_with_a_correction_to_act_on(
    quiet: Mounted, name: str, arguments: dict[str, Any], field: str, said: str
) -> None:
    answer = quiet.post(f"/api/tools/{name}", arguments)
    assert (answer.status_code, answer.json["type"]) == (400, "urn:agentformer:problem:invalid-input")
    assert answer.json["field"] == field and said in answer.json["detail"], answer.text


HALF = "\ud800"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("memory_add", {"content": HALF}),
        ("memory_add", {"content": "x", "title": HALF}),
        ("memory_add", {"content": "x", "metadata": {"a": [HALF]}}),
        ("memory_add", {"content": "x", "metadata": {HALF: 1}}),
        ("memory_add", {"content": "x", HALF: 1}),
        ("memory_add", {"content": "x", "namespace": HALF}),
        ("memory_search", {"query": HALF}),
        ("memory_search", {"query": "x", "kinds": [HALF]}),
        ("memory_get", {"id": HALF}),
        ("memory_update", {"id": HALF, "content": "x"}),
        ("core_memory_append", {"name": HALF, "text": "x"}),
        ("core_memory_replace", {"name": "x", "old": HALF, "new": "x"}),
        ("conversation_search", {"query": "x", "session_id": HALF}),
        ("memory_consolidate", {"session_id": HALF}),
        ("rag_upload", {"name": "x.txt", "text": HALF}),
        ("rag_query", {"question": HALF}),
        ("rag_query", {"question": "x", "filters": {"a": HALF}}),
        ("rag_list", {"after": HALF}),
    ],
)
def test_half_a_surrogate_pair_is_400_wherever_it_stands(quiet: Mounted, name: str, arguments: dict[str, Any]) -> None:
    answer = quiet.post(f"/api/tools/{name}", arguments)
    assert (answer.status_code, answer.content_type) == (400, "application/problem+json"), answer.text
    assert quiet.af.backend.namespaces() == []


@pytest.mark.parametrize("data", [b"[]", b"null", b'"x"', b"{", b"\xff", b"[" * 100_000, b'{"query": NaN}'])
def test_a_body_that_is_no_json_object_is_400(quiet: Mounted, data: bytes) -> None:
    answer = quiet.ask("POST", "/api/tools/memory_search", data=data, content_type="application/json")
    assert (answer.status_code, answer.content_type) == (400, "application/problem+json"), answer.text


def test_a_tool_without_arguments_needs_no_body(quiet: Mounted) -> None:
    assert quiet.ask("POST", "/api/tools/rag_list").json == {"result": {"documents": [], "next": None}}


@pytest.mark.parametrize("name", ["no_such_tool", "__class__", "%00", "memory_add%2F..", "x" * 300])
def test_an_unknown_tool_is_404(quiet: Mounted, name: str) -> None:
    answer = quiet.post(f"/api/tools/{name}", {})
    assert answer.status_code == 404 and len(answer.data) < 2000


def test_a_tool_needs_its_own_right(host: Mounted) -> None:
    assert host.post("/api/tools/memory_add", {"content": "x"}, READ).status_code == 403
    assert host.post("/api/tools/memory_search", {"query": "x"}, WRITE).status_code == 403
    assert host.post("/api/tools/memory_add", {"content": "x"}, WRITE).status_code == 200


def test_a_tool_that_is_switched_off_for_a_key_is_403_for_it_alone(host: Mounted) -> None:
    entry_id = host.add("Aino prefers tea.")
    asking = grant("admin", without=("memory_delete",))
    assert host.post("/api/tools/memory_delete", {"id": entry_id}, asking).status_code == 403
    assert host.af.backend.get([entry_id])
    assert host.post("/api/tools/memory_delete", {"id": entry_id}, grant("admin")).status_code == 200


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
