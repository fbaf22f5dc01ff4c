"""`run` never raises: whatever a model asks for, it is told something short that it can act on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.access.grant import Grant
from agentformer.errors import Forbidden, InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import HINTS, Outcome
from agentformer.types import ToolCall


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with agentformer.connect(
        index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", clean_every=0
    ) as af:
        yield af


def run(af: AgentFormer, name: Any, arguments: Any, caller: Caller | None = None) -> Outcome:
    outcome = af.toolbox.run(ToolCall("1", name, arguments), caller or Caller())
    outcome.text.encode("utf-8")
    return outcome


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"inner": value}
    return value


def test_a_result_is_the_same_as_text_and_as_a_value(af: AgentFormer) -> None:
    outcome = run(af, "memory_add", {"content": "Åbo, 東京, 🦆"})
    assert not outcome.failed
    assert json.loads(outcome.text) == outcome.value
    assert "東京" in outcome.text


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize(
    "arguments",
    [
        None,
        [],
        "content",
        7,
        {1: 2},
        {"content": None},
        {"": ""},
        {"content": "x\ud800", "query": "\udc00", "id": "\ud800", "name": "\ud800", "question": "\ud800"},
        dict.fromkeys(("content", "query", "id", "name", "question", "text", "path", "old", "new"), "\x00"),
        dict.fromkeys(("content", "query", "id", "name", "question", "old"), "x" * 2000000),
        {name: deep(200) for name in ("content", "query", "id", "name", "metadata", "filters")},
        {name: float("nan") for name in ("content", "salience", "limit", "start", "top_k")},
        dict.fromkeys(("limit", "start", "top_k", "expected_version", "salience"), 10**400),
        {f"argument{number}": number for number in range(5_000)},
    ],
    ids=lambda value: type(value).__name__ + str(len(value) if isinstance(value, dict) else ""),
)
def test_no_arguments_make_it_raise(af: AgentFormer, name: str, arguments: Any) -> None:
    outcome = run(af, name, arguments)
    if outcome.failed:
        assert len(outcome.text) < 1_000
        assert "error of its own" not in outcome.text


@pytest.mark.parametrize("name", ["", "memory", "memory_add ", "__class__", "\ud800", "x" * 10_000, None, 7, [], {}])
def test_an_unknown_tool_is_told_which_there_are(af: AgentFormer, name: Any) -> None:
    outcome = run(af, name, {}, Caller(grant=Grant(frozenset({"read"}))))
    assert outcome.failed
    assert outcome.text.startswith("there is no tool ")
    assert outcome.text.endswith(
        "there are: memory_search, memory_get, conversation_search, memory_audit, memory_status, rag_query, rag_list"
    )
    assert len(outcome.text) < 300


@pytest.mark.parametrize(
    "metadata",
    [{"a": float("nan")}, {"a": float("inf")}, {"a": deep(99)}, {"a": 10**400}, {str(n): n for n in range(101)}],
)
def test_metadata_that_cannot_be_kept_is_corrected_and_nothing_is_kept(af: AgentFormer, metadata: Any) -> None:
    for name, more in (("memory_add", {"content": "x"}), ("rag_upload", {"name": "a.txt", "text": "x"})):
        assert run(af, name, {**more, "metadata": metadata}).text.startswith("metadata: ")
    assert run(af, "rag_query", {"question": "x", "filters": metadata}).text.startswith("filters: ")
    assert af.backend.count(agentformer.Scope()) == 0


def test_a_store_that_cannot_be_used_is_told_without_a_path(af: AgentFormer, tmp_path: Path) -> None:
    (tmp_path / "i" / "memory.sqlite3").write_bytes(b"this is no database" * 1000)
    for file in ("memory.sqlite3-wal", "memory.sqlite3-shm"):
        (tmp_path / "i" / file).unlink(missing_ok=True)
    af.close()
    outcome = run(af, "memory_add", {"content": "x"})
    assert outcome.failed
    assert str(tmp_path) not in outcome.text


def test_memories_of_another_user_or_project_are_not_seen(af: AgentFormer) -> None:
    aino, bo = Caller(user_id="aino", project="harbour"), Caller(user_id="bo", project="harbour")
    entry_id = af.toolbox.call("memory_add", {"content": "The safe opens with 4711."}, aino)["memory"]["id"]
    assert af.toolbox.call("memory_search", {"query": "safe"}, aino)["memories"]
    assert af.toolbox.call("memory_search", {"query": "safe"}, bo)["memories"] == []
    for name, more in (("memory_get", {}), ("memory_update", {"title": "x"}), ("memory_delete", {})):
        with pytest.raises(NotFound, match=f"^there is no entry {entry_id}$"):
            af.toolbox.call(name, {"id": entry_id, **more}, bo)
    assert af.toolbox.call("memory_get", {"id": entry_id}, aino)["memory"]["user_id"] == "aino"


def test_the_audit_speaks_of_ones_own_memories_only(af: AgentFormer) -> None:
    aino, bo = Caller(user_id="aino"), Caller(user_id="bo")
    text = "The ferry to Nauvo leaves from the northern pier of the old harbour every morning"
    for end in (".", "!"):
        af.toolbox.call("memory_add", {"content": text + end}, aino)
    af.toolbox.call("core_memory_append", {"name": "log", "text": "word " * 450}, aino)
    mine, theirs = (af.toolbox.call("memory_audit", {}, caller) for caller in (aino, bo))
    assert len(mine["near_duplicates"]) == 1
    assert [block["title"] for block in mine["oversized"]] == ["log"]
    assert (theirs["near_duplicates"], theirs["oversized"]) == ([], [])
    assert set(theirs) == set(mine)


def test_core_blocks_belong_to_the_caller(af: AgentFormer) -> None:
    aino, bo = Caller(user_id="aino", agent_id="helper"), Caller(user_id="bo", agent_id="helper")
    af.toolbox.call("core_memory_append", {"name": "persona", "text": "Answer Aino briefly."}, aino)
    with pytest.raises(NotFound):
        af.toolbox.call("core_memory_replace", {"name": "persona", "old": "Aino", "new": "Bo"}, bo)
    assert [block.content for block in af.memory.core.blocks(user_id="aino", agent_id="helper")] == [
        "Answer Aino briefly."
    ]


def test_consolidating_means_the_callers_own_session(af: AgentFormer) -> None:
    for session in ("monday", "tuesday"):
        for number in range(12):
            af.memory.add_message(session, "user", f"Message {number} of {session} is about pier {number}.")
    report = af.toolbox.call("memory_consolidate", {}, Caller(session_id="monday"))
    assert report["archived"] == 5
    assert len(af.memory.list(session_id="tuesday", kinds=("message",))) == 12


def test_an_uploaded_document_is_not_changed_as_a_memory(af: AgentFormer) -> None:
    document = af.toolbox.call("rag_upload", {"name": "a.txt", "text": "The crane is blue."})["document"]
    for name, more in (("memory_update", {"content": "x"}), ("memory_delete", {})):
        assert run(af, name, {"id": document["id"], **more}).failed
    assert af.rag.documents()[0].id == document["id"]


def test_rights_and_switched_off_tools_are_checked_before_arguments(af: AgentFormer) -> None:
    with pytest.raises(Forbidden, match="no right to write"):
        af.toolbox.call("memory_add", {}, Caller(grant=Grant(frozenset({"read"}))))
    with pytest.raises(Forbidden, match="switched off"):
        af.toolbox.call("rag_list", {}, Caller(grant=Grant(frozenset({"read"}), without=frozenset({"rag_list"}))))


def test_a_key_of_several_namespaces_is_asked_which_one(af: AgentFormer) -> None:
    caller = Caller(grant=Grant(frozenset({"read", "write"}), ("work", "home")))
    with pytest.raises(InvalidInput, match="this key reaches work, home"):
        af.toolbox.call("memory_add", {"content": "x"}, caller)
    assert af.toolbox.call("memory_add", {"content": "x", "namespace": "home"}, caller)["memory"]["namespace"] == "home"
    only = Caller(grant=Grant(frozenset({"read"}), ("home",)))
    assert len(af.toolbox.call("memory_search", {"query": "x"}, only)["memories"]) == 1


def test_who_may_only_write_is_shown_nothing_that_was_there(af: AgentFormer) -> None:
    writer = Caller(grant=Grant(frozenset({"write"})))
    secret = af.memory.store("The safe opens with 4711.")
    af.memory.core.append("persona", "The safe opens with 4711.")
    told = [
        af.toolbox.call("memory_add", {"content": secret.content.upper().title()}, writer),
        af.toolbox.call("memory_add", {"content": secret.content}, writer),
        af.toolbox.call("memory_update", {"id": secret.id, "salience": 0.5}, writer),
        af.toolbox.call("core_memory_append", {"name": "persona", "text": "Be kind."}, writer),
    ]
    assert "4711" not in str(told)
    assert told[2]["memory"]["id"] == secret.id
