"""`run` never raises: whatever a model asks for, it is told something short that it can act on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.access.permissions import Grant
from agentformer.errors import Forbidden, InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import HINTS, ToolResult
from agentformer.types import ToolCall


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with agentformer.connect(
        index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", clean_every=0
    ) as af:
        yield af


def run(af: AgentFormer, name: Any, arguments: Any, caller: Caller | None = None) -> ToolResult:
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


# Values that no model should send, and that every tool must answer.
WRONG_ARGUMENTS: list[Any] = [
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
]


def test_no_arguments_make_it_raise(af: AgentFormer) -> None:
    for name, arguments in itertools.product(HINTS, WRONG_ARGUMENTS):
        outcome = run(af, name, arguments)
        if outcome.failed:
            assert len(outcome.text) < 1_000, name
            assert "internal error" not in outcome.text, name


def test_an_unknown_tool_is_told_which_there_are(af: AgentFormer) -> None:
    for name in ("", "memory", "memory_add ", "__class__", "\ud800", "x" * 10_000, None, 7, [], {}):
        outcome = run(af, name, {}, Caller(grant=Grant(frozenset({"read"}))))
        assert outcome.failed
        assert outcome.text.startswith("there is no tool ")
        readers = "memory_search, memory_get, conversation_search, memory_profile, memory_audit, memory_status, "
        readers += "rag_query, rag_list"
        assert outcome.text.endswith(f"the tools are: {readers}")
        assert len(outcome.text) < 300


UNSTORABLE: list[Any] = [
    {"a": float("nan")},
    {"a": float("inf")},
    {"a": deep(99)},
    {"a": 10**400},
    {str(n): n for n in range(101)},
]


def test_metadata_that_cannot_be_kept_is_corrected_and_nothing_is_kept(af: AgentFormer) -> None:
    for metadata in UNSTORABLE:
        for name, more in (("memory_add", {"content": "x"}), ("rag_upload", {"name": "a.txt", "text": "x"})):
            assert run(af, name, {**more, "metadata": metadata}).text.startswith("metadata: ")
        for name in ("metadata", "filters"):  # the present and the former name
            assert run(af, "rag_query", {"question": "x", name: metadata}).text.startswith("metadata: ")
    assert af.backend.count(agentformer.Scope()) == 0


def test_a_model_can_limit_questions_and_searches_to_a_period(af: AgentFormer) -> None:
    af.rag.upload(b"The fee is 5 euros.", name="a.txt")
    for name, question, hits in (("rag_query", "question", "passages"), ("memory_search", "query", "memories")):
        assert run(af, name, {question: "fee", "since": "yesterday"}).text.startswith("since: ")
        for period, count in (({"since": "2020-01-01"}, 1), ({"since": "2020-01-01", "until": "2020-12-31"}, 0)):
            value = run(af, name, {question: "fee", **period}).value
            assert value is not None and len(value[hits]) == count, (name, value)


def test_a_store_that_cannot_be_used_is_told_without_a_path(af: AgentFormer, tmp_path: Path) -> None:
    if af.settings.backend != "faiss":
        pytest.skip("this backend has no files")
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
    assert len(mine["duplicates"]) == 1
    assert [block["title"] for block in mine["oversized"]] == ["log"]
    assert (theirs["duplicates"], theirs["oversized"]) == ([], [])
    assert set(theirs) == set(mine)


def test_the_audit_and_the_status_count_ones_own_memories_only(af: AgentFormer) -> None:
    aino, bo = Caller(user_id="aino"), Caller(user_id="bo", project="harbour")
    for number in range(3):
        af.toolbox.call("memory_add", {"content": f"Aino's fact {number}."}, aino)
    af.toolbox.call("core_memory_append", {"name": "log", "text": "Aino."}, aino)
    af.toolbox.call("memory_add", {"content": "The crane is blue."}, bo)
    af.toolbox.call("core_memory_append", {"name": "log", "text": "Bo."}, bo)
    af.toolbox.call("rag_upload", {"name": "a.txt", "text": "The pier is long."})

    audits = [af.toolbox.call("memory_audit", {}, caller) for caller in (aino, bo)]
    assert [(audit["entries"], audit["unread"]["count"]) for audit in audits] == [(4, 0), (2, 0)]
    mine, theirs, all_of_it = (af.toolbox.call("memory_status", {}, caller) for caller in (aino, bo, Caller()))
    empty = {"episodic": 0, "working": 0}
    assert mine["memories"] == {"core": 1, "semantic": 3, **empty}
    assert theirs["memories"] == {"core": 1, "semantic": 1, **empty}
    assert all_of_it["memories"]["core"] == 2
    assert [state["documents"] for state in (mine, theirs, all_of_it)] == [1, 1, 1]


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


def test_who_is_bound_to_a_user_consolidates_sessions_that_the_user_took_part_in(af: AgentFormer) -> None:
    aino, bo = Caller(user_id="aino"), Caller(user_id="bo")
    for number in range(12):
        af.memory.add_message("monday", "user", f"Message {number} is about pier {number}.", user_id="aino")
    unseen = run(af, "memory_consolidate", {"session_id": "monday"}, bo)
    missing = run(af, "memory_consolidate", {"session_id": "sunday"}, bo)
    assert (unseen.failed, unseen.text) == (True, missing.text.replace("sunday", "monday"))
    assert run(af, "memory_consolidate", {}, bo).text == "session_id: is missing; give the session to summarize"
    assert run(af, "memory_consolidate", {}, Caller(user_id="bo", session_id="monday")).text == unseen.text
    assert len(af.memory.list(session_id="monday", kinds=("message",))) == 12
    assert af.toolbox.call("memory_consolidate", {"session_id": "monday"}, aino)["archived"] == 5
    assert af.toolbox.call("memory_consolidate", {"session_id": "monday"}, aino)["archived"] == 0


def test_who_is_bound_to_a_user_or_project_consolidates_and_deletes_nothing_of_others(af: AgentFormer) -> None:
    owners: list[dict[str, Any]] = [{"user_id": "aino"}, {"user_id": "bo"}, {}, {"user_id": "aino", "project": "p"}]
    for number in range(12):
        for owner in owners:
            af.memory.add_message("monday", "user", f"Message {number} is about pier {number}.", **owner)
    report = af.toolbox.call("memory_consolidate", {"session_id": "monday"}, Caller(user_id="aino", project="p"))
    assert report["archived"] == 5
    assert af.toolbox.call("memory_consolidate", {"session_id": "monday"}, Caller(user_id="bo"))["archived"] == 5
    left = [len(af.memory.list(kinds=("message",), session_id="monday", **owner)) for owner in owners]
    assert left == [24 - 5, 12 - 5, 48 - 10, 12 - 5]
    mine = af.memory.store("mine", user_id="aino")
    parts = [af.memory.store(f"part {n}", parent_id=mine.id, **owner) for n, owner in enumerate(({}, {"project": "p"}))]
    own = af.memory.store("my part", parent_id=mine.id, user_id="aino")
    assert af.toolbox.call("memory_delete", {"id": mine.id}, Caller(user_id="aino"))["forgotten"] == 2
    assert [len(af.backend.get([entry.id])) for entry in (*parts, own)] == [1, 1, 0]


def test_kinds_of_conversations_and_uploads_are_not_remembered(af: AgentFormer) -> None:
    fact = af.memory.store("The crane is blue.")
    for kind in ("message", "chunk", "document", "page", "summary"):
        for name, more in (("memory_add", {"content": "x"}), ("memory_update", {"id": fact.id})):
            assert run(af, name, {**more, "kind": kind}).text == (
                f"kind: {kind!r} is reserved for messages, summaries and documents; give another kind, such as fact"
            )
    assert [entry.kind for entry in af.memory.list()] == ["fact"]


def test_what_was_said_stays_as_it_was_said(af: AgentFormer) -> None:
    said = af.memory.add_message("monday", "user", "The crane is blue.")
    for changes in ({"content": "The crane is red."}, {"kind": "fact"}):
        told = run(af, "memory_update", {"id": said.id, **changes})
        assert "messages cannot be changed" in told.text
    assert not run(af, "memory_update", {"id": said.id, "salience": 0.5}).failed
    assert [(entry.content, entry.kind) for entry in af.memory.list()] == [("The crane is blue.", "message")]


def test_long_contents_and_metadata_are_not_given_whole(af: AgentFormer) -> None:
    long, facts = "The crane is blue. " * 1_000, {"notes": "ä" * 3_000}
    added = af.toolbox.call("memory_add", {"content": long, "metadata": facts})["memory"]
    changed = af.toolbox.call("memory_update", {"id": added["id"], "content": f"{long}!"})["memory"]
    for told, size in ((added, len(long)), (changed, len(long) + 1)):
        assert (told["content"], told["cut"]) == (long[:8_000], f"{size} characters in total; memory_get returns all")
    read = af.toolbox.call("memory_get", {"id": added["id"]})
    assert (len(read["memory"]["content"]), read["next_start"]) == (8_000, 8_000)
    assert "metadata" not in read["memory"]
    assert read["memory"]["metadata_left_out"] == "the metadata have 3013 characters as JSON; the limit is 2000"

    whole = af.memory.store("b" * 8_000)  # as long as one part: there is nothing to continue with
    assert "next_start" not in af.toolbox.call("memory_get", {"id": whole.id})

    for name, metadata in (("a.txt", facts), ("b.txt", {"site": "north"})):
        af.rag.upload(f"{name} is short.".encode(), name=name, metadata=metadata)
    first, second = af.toolbox.call("rag_list", {})["documents"]
    assert ("metadata" in first, "3013 characters" in first["metadata_left_out"]) == (False, True)
    assert (second["metadata"], "metadata_left_out" in second) == ({"site": "north"}, False)


def test_a_caller_that_reads_passages_itself_is_not_told_that_there_is_no_answer(af: AgentFormer) -> None:
    af.rag.upload(b"The crane is blue and stands on the northern pier.", name="crane.txt")
    ask = {"question": "Who invented the telephone?"}
    plain, quoted = (af.toolbox.call("rag_query", ask, Caller(extractive=extractive)) for extractive in (False, True))
    assert plain["mode"] == quoted["mode"] == "none"
    assert plain["answer"] != quoted["answer"] == "No single sentence answers this; read the passages."
    assert plain["passages"] == quoted["passages"] != []
    assert plain["confidence"] == round(plain["confidence"], 2)


def test_an_uploaded_document_is_not_changed_as_a_memory(af: AgentFormer) -> None:
    document = af.toolbox.call("rag_upload", {"name": "a.txt", "text": "The crane is blue."})["document"]
    for name, more in (("memory_update", {"content": "x"}), ("memory_delete", {})):
        assert run(af, name, {"id": document["id"], **more}).failed
    assert af.rag.documents()[0].id == document["id"]


def test_rights_and_switched_off_tools_are_checked_before_arguments(af: AgentFormer) -> None:
    with pytest.raises(Forbidden, match="does not have the right to write"):
        af.toolbox.call("memory_add", {}, Caller(grant=Grant(frozenset({"read"}))))
    with pytest.raises(Forbidden, match="switched off"):
        af.toolbox.call("rag_list", {}, Caller(grant=Grant(frozenset({"read"}), without=frozenset({"rag_list"}))))


def test_a_key_of_several_namespaces_is_asked_which_one(af: AgentFormer) -> None:
    caller = Caller(grant=Grant(frozenset({"read", "write"}), ("work", "home")))
    with pytest.raises(InvalidInput, match="name one of the namespaces of this key: work, home"):
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
    ]
    assert "4711" not in str(told)
    assert told[0] == told[1]
    for name, arguments in (
        ("memory_update", {"id": secret.id, "salience": 0.5}),
        ("memory_delete", {"id": secret.id}),
        ("core_memory_append", {"name": "persona", "text": "Be kind."}),
        ("core_memory_replace", {"name": "persona", "old": "4", "new": "4"}),
    ):
        with pytest.raises(Forbidden, match="does not have the right to read"):
            af.toolbox.call(name, arguments, writer)


def test_a_search_of_one_user_finds_his_own_and_what_is_nobodys(af: AgentFormer) -> None:
    """Documents belong to nobody in particular; what is another user's stays out."""
    af.rag.upload(b"Keys of the harbour hang in the office.", name="rules.txt")
    af.memory.store("Keys of the boat are Aino's.", user_id="aino")
    af.memory.store("Keys of the car are Bob's.", user_id="bob")
    af.memory.store("Keys of the shed are everybody's.")
    for user, own in (("aino", "boat"), ("bob", "car")):
        found = af.toolbox.call("memory_search", {"query": "keys", "limit": 20}, Caller(user_id=user))["memories"]
        assert len(found) == 3
        assert {word for word in ("harbour", "boat", "car", "shed") if word in str(found)} == {"harbour", "shed", own}
