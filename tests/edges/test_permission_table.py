"""The permission table, asked through every door: each operation, by callers with all sets of rights, with each tool
switched off."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flask", reason="the extra `server` is not installed")

from agentformer.access.permissions import PERMISSIONS, Grant, Right
from agentformer.api.app import _OPERATIONS
from agentformer.errors import AgentFormerError, Forbidden, NotFound
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import HINTS
from tests.edges.mounted import Mounted, grant, mounted
from tests.faults.long_form import LONG

DESTRUCTIVE = ("memory_delete", "rag_upload", "rag_sync")
READ, WRITE, CHANGE, ADMIN = {"read"}, {"write"}, {"read", "write"}, {"admin"}
# What each tool needs.
TOOLS: dict[str, set[str]] = {
    "memory_add": WRITE,
    "memory_search": READ,
    "memory_get": READ,
    "memory_update": CHANGE,
    "memory_delete": CHANGE,
    "core_memory_append": CHANGE,
    "core_memory_replace": CHANGE,
    "conversation_search": READ,
    "memory_consolidate": CHANGE,
    "memory_learn": CHANGE,
    "memory_profile": READ,
    "memory_audit": READ,
    "memory_status": READ,
    "rag_upload": WRITE,
    "rag_query": READ,
    "rag_list": READ,
    "rag_sync": CHANGE,
}
# What each endpoint needs, and the tools that do the same.
ENDPOINTS: dict[str, tuple[set[str], tuple[str, ...]]] = {
    "POST /api/memory": (WRITE, ("memory_add",)),
    "POST /api/memory/batch": (WRITE, ("memory_add",)),
    "GET /api/memory": (READ, ("memory_search",)),
    "GET /api/namespaces": (READ, ()),
    "GET /api/memory/{entry_id}": (READ, ("memory_get",)),
    "GET /api/memory/{entry_id}/history": (READ, ("memory_get",)),
    "GET /api/memory/{entry_id}/salience": (READ, ("memory_get",)),
    "GET /api/memory/map": (READ, ("memory_search",)),
    "PATCH /api/memory/{entry_id}": (CHANGE, ("memory_update",)),
    "DELETE /api/memory/{entry_id}": (CHANGE, ("memory_delete",)),
    "POST /api/memory/search": (READ, ("memory_search",)),
    "POST /api/memory/count": (READ, ("memory_search",)),
    "POST /api/memory/remove": (CHANGE, ("memory_delete",)),
    "GET /api/memory/export": (ADMIN, ()),
    "POST /api/memory/messages": (WRITE, ("memory_add",)),
    "GET /api/memory/messages": (READ, ("conversation_search",)),
    "POST /api/memory/context": (READ, ("memory_search", "conversation_search")),
    "POST /api/memory/clean": (CHANGE, ("memory_consolidate",)),
    "POST /api/memory/restore": (CHANGE, ("memory_consolidate",)),
    "POST /api/memory/learn": (CHANGE, ("memory_learn",)),
    "GET /api/memory/learn": (READ, ("memory_learn",)),
    "POST /api/memory/learn/undo": (CHANGE, ("memory_learn",)),
    "GET /api/memory/profile": (READ, ("memory_profile",)),
    "POST /api/memory/reindex": (ADMIN, ()),
    "GET /api/memory/audit": (READ, ("memory_audit",)),
    "GET /api/memory/core": (READ, ("memory_search",)),
    "GET /api/memory/core/{name}": (READ, ("memory_get",)),
    "POST /api/memory/core/{name}/append": (CHANGE, ("core_memory_append",)),
    "POST /api/memory/core/{name}/replace": (CHANGE, ("core_memory_replace",)),
    "DELETE /api/memory/core/{name}": (CHANGE, ("memory_delete",)),
    "POST /api/rag/upload": (WRITE, ("rag_upload",)),
    "POST /api/rag/sync": (CHANGE, ("rag_sync",)),
    "POST /api/rag/query": (READ, ("rag_query",)),
    "POST /api/rag/context": (READ, ("rag_query",)),
    "GET /api/rag/documents": (READ, ("rag_list",)),
    "GET /api/rag/documents/{document_id}": (READ, ("rag_list",)),
    "DELETE /api/rag/documents/{document_id}": (CHANGE, ("memory_delete",)),
    "GET /api/rag/removals": (READ, ("rag_list",)),
    "DELETE /api/rag/removals/{document_id}": (CHANGE, ("memory_delete",)),
    "GET /api/rag/documents/{document_id}/content": (READ, ("rag_query",)),
    "GET /api/rag/documents/{document_id}/chunks": (READ, ("rag_query",)),
    "GET /api/rag/documents/{document_id}/pages": (READ, ("rag_query",)),
    "GET /api/rag/documents/{document_id}/image": (READ, ("rag_query",)),
    "GET /api/jobs": (READ, ("rag_upload",)),
    "GET /api/jobs/{job_id}": (READ, ("rag_upload",)),
    "DELETE /api/jobs/{job_id}": (WRITE, ("rag_upload",)),
    "GET /api/status": (ADMIN, ("memory_status",)),
    "GET /metrics": ({"metrics"}, ()),
    "GET /api/checks": (ADMIN, ("memory_status",)),
    "POST /api/checks": (ADMIN, ("memory_status",)),
    "GET /api/nodes": (ADMIN, ("memory_status",)),
    "GET /api/events": (READ, ("memory_search",)),
    "GET /api/trail": (ADMIN, ()),
    "GET /api/webhooks": (ADMIN, ("memory_search",)),
    "POST /api/webhooks": (ADMIN, ("memory_search",)),
    "DELETE /api/webhooks/{webhook_id}": (ADMIN, ("memory_search",)),
    "GET /api/keys": (ADMIN, ()),
    "POST /api/keys": (ADMIN, ()),
    "PATCH /api/keys/{key_id}": (ADMIN, ()),
    "POST /api/keys/{key_id}/rotate": (ADMIN, ()),
    "DELETE /api/keys/{key_id}": (ADMIN, ()),
    "POST /v1/files": (CHANGE, ("rag_upload",)),
    "GET /v1/files": (READ, ("rag_list",)),
    "GET /v1/files/{file_id}": (READ, ("rag_list",)),
    "GET /v1/files/{file_id}/content": (READ, ("rag_query",)),
    "DELETE /v1/files/{file_id}": (CHANGE, ("memory_delete",)),
    "POST /v1/vector_stores": (CHANGE, ("rag_upload",)),
    "GET /v1/vector_stores": (READ, ("rag_list",)),
    "GET /v1/vector_stores/{vector_store_id}": (READ, ("rag_list",)),
    "POST /v1/vector_stores/{vector_store_id}": (CHANGE, ("rag_upload",)),
    "DELETE /v1/vector_stores/{vector_store_id}": (CHANGE, ("memory_delete",)),
    "POST /v1/vector_stores/{vector_store_id}/files": (CHANGE, ("rag_upload",)),
    "GET /v1/vector_stores/{vector_store_id}/files": (READ, ("rag_list",)),
    "GET /v1/vector_stores/{vector_store_id}/files/{file_id}": (READ, ("rag_list",)),
    "POST /v1/vector_stores/{vector_store_id}/files/{file_id}": (CHANGE, ("rag_upload",)),
    "DELETE /v1/vector_stores/{vector_store_id}/files/{file_id}": (CHANGE, ("memory_delete",)),
    "GET /v1/vector_stores/{vector_store_id}/files/{file_id}/content": (READ, ("rag_query",)),
    "POST /v1/vector_stores/{vector_store_id}/search": (READ, ("rag_query",)),
    "POST /v1/embeddings": (READ, ()),
    "GET /v1/models": (set(), ()),
    "GET /v1/models/{model}": (set(), ()),
    "POST /v1/chat/completions": (READ, ("memory_search", "conversation_search", "rag_query")),
    "GET /api/tools": (set(), ()),
    "POST /api/tools/{name}": (set(), ()),
}
FORMER: tuple[Right, ...] = ("read", "write", "admin")
SETS: list[tuple[Right, ...]] = [
    *(rights for count in range(len(FORMER) + 1) for rights in itertools.combinations(FORMER, count)),
    ("metrics",),
    ("read", "metrics"),
]


@contextmanager
def opened(folder: Path) -> Iterator[Mounted]:
    with mounted(folder, sync_roots=str(folder)) as host:  # else there is no tool to sync folders
        host.af.memory.core.append("persona", "Be kind.")
        host.af.rag.upload(b"The boat is red.", name="rules.txt")
        yield host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Mounted]:
    with opened(tmp_path) as host:
        yield host


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A host for requests that change nothing."""
    with opened(tmp_path_factory.mktemp("shared")) as host:
        yield host


def callers(tools: tuple[str, ...]) -> Iterator[tuple[Grant, bool]]:
    """Callers with each set of rights, with one tool switched off or none, and whether this tool is among `tools`.
    Unless the tests run in their long form, other tools are switched off for one set of rights only."""
    for rights in SETS:
        for off in (None, *HINTS) if LONG or len(rights) == len(FORMER) else (None, *tools):
            yield grant(*rights, without=() if off is None else (off,)), off in tools


def suffices(own: Grant, needed: set[str]) -> bool:
    return (needed <= {*own.rights} or "admin" in own.rights) and (bool(needed) or own.rights != {"metrics"})


def test_every_endpoint_is_in_the_table() -> None:
    declared = {f"{operation.method} {operation.path}": operation.needs for operation in _OPERATIONS}
    assert {name for name, needs in declared.items() if needs is not None} == ENDPOINTS.keys()
    assert {*filter(None, declared.values()), *HINTS} <= PERMISSIONS.keys()
    assert TOOLS.keys() == HINTS.keys()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_each_endpoint_needs_its_right_and_its_tools(shared: Mounted, endpoint: str) -> None:
    """The permission is checked before the request, so an empty request tells whether the caller is refused."""
    needed, tools = ENDPOINTS[endpoint]
    method, path = endpoint.split()
    for own, is_off in callers(tools):
        answer = shared.ask(method, re.sub("{[^}]*}", "none", path), own)
        assert (answer.status_code == 403) == (is_off or not suffices(own, needed)), (own, answer.text)


@pytest.mark.parametrize("name", TOOLS)
def test_each_tool_needs_its_right_and_itself(shared: Mounted, name: str) -> None:
    for own, is_off in callers((name,)):
        refused = is_off or not suffices(own, TOOLS[name])
        assert (name not in {tool.name for tool in shared.af.toolbox.definitions(own)}) == refused
        assert (shared.post(f"/api/tools/{name}", {"unknown": 1}, own).status_code == 403) == refused
        with pytest.raises(Forbidden if refused else AgentFormerError) as raised:
            shared.af.toolbox.call(name, {"unknown": 1}, Caller(own))
        assert isinstance(raised.value, Forbidden) == refused


def test_each_resource_needs_its_right_and_its_tools(host: Mounted) -> None:
    resources = pytest.importorskip("agentformer.mcp_server.resources", reason="the extra `mcp` is not installed")
    (document,) = host.af.rag.documents()
    for uri, tool in (
        ("core/persona", "memory_get"),
        (f"documents/{document.id}", "rag_query"),
        (f"documents/{document.id}/pages/1", "rag_query"),
    ):
        for own, is_off in callers((tool,)):
            refused = is_off or not suffices(own, READ)
            try:
                resources.read_resource(host.af, Caller(own), f"agentformer://{uri}")
            except NotFound:
                assert refused, own
            else:
                assert not refused, own
    for own, is_off in callers(("rag_list",)):
        listed = resources.list_resources(host.af, Caller(own), None).resources
        assert len(listed) == (0 if is_off or not suffices(own, READ) else 1)


RECORD = {"source_type": "row", "source_id": "1"}
SAID = {"session_id": "s", "role": "user", "content": "Hello."}
BLOCK = {"content": "Be kind.", "tier": "core", "title": "persona"}
# Requests that need more than their endpoint: method, path, body, the tool that they need besides.
CASES: list[tuple[str, str, Any, str]] = [
    ("POST", "/api/memory", {"content": "x", **RECORD}, "memory_delete"),
    ("POST", "/api/memory/batch", {"items": [{"content": "x"}, {"content": "x", **RECORD}]}, "memory_delete"),
    ("POST", "/api/memory/messages", {**SAID, **RECORD}, "memory_delete"),
    ("POST", "/api/memory", BLOCK, "core_memory_append"),
    ("POST", "/api/memory/batch", {"items": [{"content": "x"}, BLOCK]}, "core_memory_append"),
    ("PATCH", "/api/memory/BLOCK", {"content": "Be rude."}, "core_memory_replace"),
    ("POST", "/api/tools/memory_update", {"id": "BLOCK", "content": "Be rude."}, "core_memory_replace"),
    ("POST", "/api/tools/rag_upload", {"name": "a", "text": "x", "on_conflict": "fail"}, ""),
    ("POST", "/api/rag/upload", {"on_conflict": "fail"}, ""),
]


def stored(host: Mounted) -> list[tuple[str, str, int]]:
    entries = host.af.memory.list(limit=100, include_archived=True)
    return [(entry.id, entry.content, entry.version) for entry in entries]


@pytest.mark.parametrize(("method", "path", "body", "tool"), CASES)
def test_a_case_that_does_more_needs_more(host: Mounted, method: str, path: str, body: Any, tool: str) -> None:
    host.add("Boats are blue.", **RECORD)
    block = host.af.memory.core.get("persona").id

    def ask(own: Grant) -> int:
        sent: dict[str, Any] = {"json": json.loads(json.dumps(body).replace("BLOCK", block))}
        if path.endswith("rag/upload"):
            sent = {"data": {"file": (io.BytesIO(b"New."), "a.txt"), **body}}
        return int(host.ask(method, path.replace("BLOCK", block), own, **sent).status_code)

    before = stored(host)
    refused = [grant("write"), grant("read"), *([grant("admin", without=(tool,))] if tool else ())]
    for own in refused:
        assert ask(own) == 403, own
        assert stored(host) == before
    others = HINTS.keys() - {tool, path.rpartition("/")[2], "memory_add", "memory_update", "rag_upload"}
    assert ask(grant("read", "write", without=tuple(others))) in (200, 201)


def test_a_key_without_destructive_tools_is_refused_what_is_destructive() -> None:
    assert {name for name in HINTS if PERMISSIONS[name].destructive} == {*DESTRUCTIVE}
    keeper = grant("admin", without=DESTRUCTIVE)
    assert [name for name, needs in PERMISSIONS.items() if needs.destructive and needs.allows(keeper)] == []


def test_a_key_without_destructive_tools_removes_nothing_through_any_endpoint(host: Mounted) -> None:
    host.add("Boats are blue.", **RECORD)
    host.af.memory.add_message("s", "user", "The pier is open.")
    keeper = grant("admin", without=DESTRUCTIVE)
    before = {entry_id for entry_id, *_ in stored(host)}
    bodies = [{"content": "x", **RECORD}, BLOCK, {**SAID, **RECORD}, {"items": [{"content": "x", **RECORD}]}]
    bodies += [{"text": "Be rude."}, {"old": "kind", "new": "rude"}, {"title": "other"}, {"summary_id": "ID"}, {}]
    for operation in _OPERATIONS:
        sent = bodies if operation.body else bodies[-1:]
        named = "_id" in operation.path or operation.path.endswith("restore")
        for entry_id, body in itertools.product(sorted(before) if named else ["none"], sent):
            path = re.sub("{\\w+_id}", entry_id, operation.path).replace("{name}", "persona")
            host.ask(operation.method, path, keeper, json=json.loads(json.dumps(body).replace("ID", entry_id)))
    assert before <= {entry_id for entry_id, *_ in stored(host)}
