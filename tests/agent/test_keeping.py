"""What a turn leaves in memory, and what an agent may reach."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentformer import AgentFormer
from agentformer.access.permissions import Grant
from agentformer.agent import Agent
from agentformer.errors import Forbidden, InvalidInput, LanguageModelUnavailable
from agentformer.records import fields
from tests.agent.conftest import Make, Open
from tests.agent.scripted import calls, says

READ = Grant(frozenset({"read"}))
PLACE: dict[str, Any] = {"user_id": "aino", "agent_id": "helper", "namespace": "home", "project": "boats"}


def test_a_turn_is_kept_as_messages_with_the_tools_that_ran(agent: Make, af: AgentFormer) -> None:
    one, _ = agent(calls(("memory_add", {"content": "Aino has a boat."}), ("nothing", {})), says("Noted."), **PLACE)
    one.turn("I have a boat.", session_id="s")

    asked, answered = af.memory.transcript("s", namespace="home")
    assert [(entry.role, entry.content) for entry in (asked, answered)] == [
        ("user", "I have a boat."),
        ("assistant", "Noted."),
    ]
    assert answered.metadata == {
        "finish": "answer",
        "retrieved": False,
        "tools": [
            {"name": "memory_add", "arguments": '{"content": "Aino has a boat."}', "failed": False},
            {"name": "nothing", "arguments": "{}", "failed": True},
        ],
    }
    (fact,) = af.memory.list(kinds=["fact"], namespace="home")
    for entry in (asked, answered, fact):
        assert (entry.user_id, entry.agent_id, entry.project) == ("aino", "helper", "boats")


def test_after_ten_messages_the_old_ones_become_a_summary(agent: Make, opened: Open) -> None:
    af = opened(clean_every=10)
    one, _ = agent(says("Noted."), memory=af)
    for number in range(4):
        one.turn(f"Boat {number} was lifted on {number + 1} October 2026.", session_id="s")
    assert af.memory.list(kinds=["summary"]) == []
    one.turn("Boat 4 was sold.", session_id="s")
    (summary,) = af.memory.list(kinds=["summary"])
    assert "Boat 0" in summary.content
    assert len(af.memory.transcript("s")) == 10


def test_what_one_session_learned_another_is_shown_and_another_user_is_not(agent: Make, af: AgentFormer) -> None:
    one, _ = agent(
        calls(("memory_add", {"content": "Aino prefers green tea.", "kind": "preference"})), says("Ok."), user_id="aino"
    )
    one.turn("I prefer green tea.", session_id="monday")

    again, model = agent(says("Green tea."), user_id="aino")
    turn = again.turn("Which tea do I prefer?", session_id="tuesday")
    assert "Aino prefers green tea." in [used.excerpt for used in turn.memories]
    assert "Aino prefers green tea." in model.asked[0][-1].content

    other, model = agent(says("I do not know."), user_id="matti")
    assert other.turn("Which tea do I prefer?", session_id="wednesday").memories == ()
    assert "green" not in model.asked[0][-1].content


@pytest.mark.parametrize("options", [{}, {"grant": READ}])
def test_a_session_of_the_same_name_shows_nobody_what_another_user_said(
    agent: Make, af: AgentFormer, options: dict[str, Any]
) -> None:
    one, _ = agent(says("Noted, 4711."), user_id="aino")
    one.turn("My code is 4711.", session_id="monday")
    af.memory.add_message("monday", "user", "I have a boat.", user_id="bob")

    other, model = agent(says("A boat."), user_id="bob", **options)
    other.turn("What do I have?", session_id="monday")
    assert "4711" not in str(model.asked)
    assert [message.content for message in model.asked[0][1:]] == ["I have a boat.\n\nWhat do I have?"]
    nobody, model = agent(says("A code and a boat."), **options)
    nobody.turn("What was said?", session_id="monday")
    assert [message.content for message in model.asked[0][1:3]] == ["My code is 4711.", "Noted, 4711."]


def test_who_begins_a_session_that_others_have_is_not_shown_theirs(agent: Make, af: AgentFormer) -> None:
    af.memory.add_message("monday", "user", "My code is 4711.", user_id="aino")
    one, model = agent(says("Hello."), user_id="bob", grant=READ)
    one.turn("Hello?", session_id="monday")
    assert [message.content for message in model.asked[0][1:]] == ["Hello?"]


def test_with_a_namespace_tools_reach_no_other(agent: Make, af: AgentFormer) -> None:
    secret = af.memory.store("The harbour code is 4711.").id
    made = [("memory_search", {"query": "code", "namespace": "default"}), ("memory_get", {"id": secret})]
    one, model = agent(calls(*made), says("No."), namespace="home")
    assert [run.failed for run in one.turn("Which code?", session_id="s").tool_runs] == [True, True]
    assert "4711" not in str(model.asked)
    one, _ = agent(calls(*made), says("4711."))
    assert [run.failed for run in one.turn("Which code?", session_id="s").tool_runs] == [False, False]


def test_a_folder_that_is_none_is_refused(agent: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for folder in (tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(InvalidInput, match=r"^folder: .* is not a folder; give an existing folder$"):
            agent(says("Never."), folder=folder)


def test_words_of_ours_are_not_kept_as_the_models(agent: Make, af: AgentFormer) -> None:
    one, _ = agent(calls(("rag_list", {})))
    turn = one.turn("List.", session_id="s")
    assert (turn.finish, turn.text.startswith("There is no answer")) == ("repeating", True)
    assert turn.text.endswith("Your message is kept in the session s.")
    assert [entry.content for entry in af.memory.transcript("s")] == ["List."]


def test_without_the_right_to_write_nothing_is_stored_and_the_talk_goes_on(agent: Make, af: AgentFormer) -> None:
    af.memory.add_message("s", "user", "I have a boat.")
    one, model = agent(
        calls(("memory_add", {"content": "never"}), ("memory_search", {"query": "boat"})), says("Hm."), grant=READ
    )
    turn = one.turn("It is called Aallotar.", session_id="s")
    assert [run.failed for run in turn.tool_runs] == [True, False]
    assert {tool.name for tool in model.tools[0]} == {tool.name for tool in af.toolbox.definitions() if tool.read_only}
    one.turn("What is it called?", session_id="s")
    assert [message.content for message in model.asked[-1][1:]] == [
        "I have a boat.\n\nIt is called Aallotar.",
        "Hm.",
        "What is it called?",
    ]
    one.turn("What did I say?", session_id="another")
    assert "Aallotar" not in model.asked[-1][-1].content
    assert [entry.content for entry in af.memory.list(limit=100)] == ["I have a boat."]


def test_a_failed_turn_without_the_right_to_write_does_not_say_that_the_message_is_kept(agent: Make) -> None:
    one, _ = agent(LanguageModelUnavailable("gone"), grant=READ)
    assert one.turn("Hello?", session_id="s").text == "The language model did not answer: gone."


def test_a_grant_bounds_the_agent(agent: Make, af: AgentFormer) -> None:
    af.memory.store("The harbour code is 4711.", namespace="secret")
    grant = Grant(frozenset({"read", "write"}), namespaces=("home",), without=frozenset({"memory_delete"}))
    with pytest.raises(Forbidden):
        agent(says("Hello."), grant=grant, namespace="secret")
    with pytest.raises(Forbidden):
        agent(says("Hello."), grant=Grant(frozenset({"write"})))

    ask = {"query": "harbour code", "namespace": "secret"}
    one, model = agent(calls(("memory_search", ask), ("memory_delete", {"id": "x"})), says("No."), grant=grant)
    turn = one.turn("What is the harbour code?", session_id="s")
    assert [run.failed for run in turn.tool_runs] == [True, True]
    assert "4711" not in str(model.asked)
    assert "memory_delete" not in [tool.name for tool in model.tools[0]]
    assert {entry.namespace for entry in af.memory.transcript("s", namespace="home")} == {"home"}


def test_files_are_read_from_the_folder_alone(agent: Make, tmp_path: Path) -> None:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "notes.txt").write_text("Boats are lifted in October.", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("The code is 4711.", encoding="utf-8")
    made = [("rag_upload", {"path": path}) for path in ("notes.txt", "../secret.txt", str(tmp_path / "secret.txt"))]
    one, _ = agent(calls(*made), says("Read."), folder=folder)
    assert [run.failed for run in one.turn("Read them.", session_id="s").tool_runs] == [False, True, True]
    one, _ = agent(calls(*made), says("Read."))
    assert [run.failed for run in one.turn("Read them.", session_id="s").tool_runs] == [True, True, True]


def test_an_answer_that_cannot_be_stored_is_still_given(
    agent: Make, af: AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "MAX_CONTENT", 10_000)
    one, _ = agent(says("x" * 10_001))
    turn = one.turn("Say much.", session_id="s")
    assert (turn.finish, len(turn.text)) == ("answer", 10_001)
    assert "could not be stored" in turn.warnings[0]
    assert len(af.memory.transcript("s")) == 1


@pytest.mark.parametrize(("message", "session"), [("", "s"), (" \n", "s"), ("Hello.", ""), ("\ud800", "s")])
def test_what_cannot_be_kept_is_refused_before_anybody_is_asked(
    agent: Make, af: AgentFormer, message: str, session: str
) -> None:
    one, model = agent(says("Never."))
    with pytest.raises(InvalidInput):
        one.turn(message, session_id=session)
    assert model.asked == []
    assert af.memory.list() == []


def test_without_a_model_it_is_said_what_is_missing(af: AgentFormer) -> None:
    with pytest.raises(LanguageModelUnavailable, match="AGENTFORMER_LLM_MODEL"):
        Agent(af)


def test_an_answer_that_was_cut_is_told_as_such(agent: Make) -> None:
    one, _ = agent(says("And then", finish="length"))
    turn = one.turn("Tell me.", session_id="s")
    assert turn.warnings == ("the answer was cut at 1024 tokens; raise AGENTFORMER_ANSWER_TOKENS for longer answers",)


def test_several_talks_at_once_stay_apart(agent: Make, af: AgentFormer) -> None:
    one, _ = agent(lambda messages: says(messages[-1].content.rpartition("\n")[2].upper()), namespace="home")
    with ThreadPoolExecutor(4) as pool:
        turns = list(pool.map(lambda number: one.turn(f"word{number}", session_id=f"s{number % 4}"), range(12)))
    assert [turn.text for turn in turns] == [f"WORD{number}" for number in range(12)]
    for session in range(4):
        said = [entry.content for entry in af.memory.transcript(f"s{session}", namespace="home")]
        assert sorted(said) == sorted(
            word for number in range(session, 12, 4) for word in (f"word{number}", f"WORD{number}")
        )
