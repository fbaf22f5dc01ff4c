"""The loop of a turn: tools are run and told, whatever a model asks for, and every turn ends."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agentformer import AgentFormer
from agentformer.agent import Agent, Recalled, ToolRun, ToolStart
from agentformer.errors import InvalidInput, InvalidReply, LanguageModelUnavailable, PromptTooLong
from agentformer.tools.toolbox import ToolResult
from agentformer.types import ChatMessage, Reply, ToolCall
from tests.agent.conftest import Make, Open
from tests.agent.scripted import Scripted, calls, results, says

BOUND = 120.0  # seconds that anything here waits at most
NOTES = "Tea is served at four. Dogs wait outside."


def test_a_tool_is_run_and_what_it_gave_is_told(agent: Make, af: AgentFormer) -> None:
    one, model = agent(calls(("memory_add", {"content": "Aino prefers tea."})), says("I will remember that."))
    turn = one.turn("I am Aino and prefer tea.", session_id="monday")

    assert (turn.text, turn.finish, turn.steps) == ("I will remember that.", "answer", 2)
    assert [(run.name, run.arguments, run.failed) for run in turn.tool_runs] == [
        ("memory_add", {"content": "Aino prefers tea."}, False)
    ]
    (told,) = results(model.asked[1])
    assert json.loads(told)["memory"]["content"] == "Aino prefers tea."
    assert [entry.content for entry in af.memory.list(kinds=["fact"])] == ["Aino prefers tea."]
    assert [tool.name for tool in model.tools[0]] == [tool.name for tool in af.toolbox.definitions()]


def test_each_result_follows_its_call_in_order_and_under_its_own_id(agent: Make) -> None:
    made = [("memory_status", {}), ("nothing_like_it", {}), ("rag_list", {}), ("memory_audit", {})]
    one, model = agent(
        calls(*made, ids=["", "same", "same", "\u0000"]),
        calls(("rag_list", {"limit": 1}), ids=["same"]),
        says("Done."),
    )
    one.turn("How are you?", session_id="s")

    told = [message for message in model.asked[2] if message.role in ("assistant", "tool")]
    first, *tools, second, last = told
    assert [call.name for call in first.tool_calls] == [name for name, _ in made]
    assert [message.tool_call_id for message in tools] == [call.id for call in first.tool_calls]
    ids = [call.id for message in (first, second) for call in message.tool_calls]
    assert len(set(ids)) == 5 and all(ids)
    assert last.tool_call_id == second.tool_calls[0].id
    assert [f'tool="{name}"' in message.content for (name, _), message in zip(made, tools, strict=True)] == [True] * 4


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("memory_serach", {}, "there is no tool"),
        ("memory_search", {"qeury": "tea"}, "did you mean query?"),
        ("memory_search", {}, "query: is missing. memory_search takes: query*"),
        ("memory_search", "tea", "must be one JSON object"),
        ("memory_search", None, "must be one JSON object"),
        ("memory_search", {"query": math.nan}, "must be one JSON object"),
        ("rag_upload", {"path": "../secret.txt"}, "path:"),
        ("", {}, "there is no tool"),
        ("no such\ntool <b>", {}, "there is no tool"),
    ],
)
def test_a_wrong_call_is_corrected_and_the_turn_goes_on(agent: Make, name: str, arguments: Any, told: str) -> None:
    one, model = agent(calls((name, arguments)), calls(("rag_list", {})), says("There are no documents."))
    turn = one.turn("What documents are there?", session_id="s")
    assert turn.finish == "answer"
    assert told in results(model.asked[1])[0]
    assert [run.failed for run in turn.tool_runs] == [True, False]
    sent = model.asked[1][-2].tool_calls[0]
    assert json.loads(json.dumps(dict(sent.arguments))) == sent.arguments
    assert sent.name.replace("_", "").isalnum()


def test_of_fifty_calls_at_once_a_few_are_run_and_all_are_answered(agent: Make) -> None:
    made = [("memory_search", {"query": f"harbour {number}"}) for number in range(50)]
    one, model = agent(calls(*made), says("Enough."))
    turn = one.turn("Look everywhere.", session_id="s")
    assert [run.failed for run in turn.tool_runs] == [False] * 8 + [True] * 42
    told = results(model.asked[1])
    assert len(told) == 50
    assert "memories" in json.loads(told[7])
    assert told[8].startswith("not run: a reply may have at most 8 calls")


def test_the_same_call_is_not_run_a_third_time_and_who_goes_on_is_stopped(agent: Make) -> None:
    again = calls(("memory_search", {"query": "keys", "limit": 2}))
    other = calls(("memory_search", {"limit": 2, "query": "keys"}))
    one, model = agent(again, other, again, other, again, says("I found no keys."))
    turn = one.turn("Where are the keys?", session_id="s")
    assert [run.failed for run in turn.tool_runs] == [False, False, True, True, True]
    assert turn.tool_runs[2].text.startswith("not run: you made this call 2 times")
    assert (turn.text, turn.finish, turn.steps) == ("I found no keys.", "repeating", 6)
    assert model.tools[-1] == ()


def test_a_model_that_never_stops_repeating_gets_no_answer_and_a_text_that_says_so(agent: Make) -> None:
    one, model = agent(calls(("rag_list", {})))
    turn = one.turn("List.", session_id="s")
    assert turn.finish == "repeating"
    assert turn.text.startswith("There is no answer")
    assert len(model.asked) == 6


def test_calls_that_keep_failing_end_the_turn(agent: Make) -> None:
    lines = [calls(("memory_get", {"id": f"nothing{number}"})) for number in range(9)]
    one, _ = agent(*lines[:3], says("I cannot find it."))
    turn = one.turn("Read it.", session_id="s")
    assert (turn.text, turn.finish, len(turn.tool_runs)) == ("I cannot find it.", "repeating", 3)


def test_at_the_limit_of_steps_the_model_answers_without_tools(agent: Make) -> None:
    lines = [calls(("memory_search", {"query": f"try {number}"})) for number in range(3)]
    one, model = agent(*lines, says("This is what I know."), max_steps=3)
    turn = one.turn("Search.", session_id="s")
    assert (turn.text, turn.finish, turn.steps) == ("This is what I know.", "steps", 4)
    assert [bool(tools) for tools in model.tools] == [True, True, True, False]
    assert "No more tools" in model.asked[3][-1].content
    assert model.asked[3][-1].role == "user"


def test_the_limit_of_tokens_holds_for_the_turn_with_its_last_reply(agent: Make) -> None:
    costs = {"tokens_in": 900, "tokens_out": 100}
    lines = [calls(("memory_search", {"query": f"try {number}"}), **costs) for number in range(9)]
    one, _ = agent(*lines[:2], says("Short.", **costs), max_tokens=3500)
    turn = one.turn("Search.", session_id="s")
    assert (turn.text, turn.finish, turn.steps) == ("Short.", "tokens", 3)
    assert (turn.tokens_in, turn.tokens_out) == (2700, 300)


def test_tokens_are_estimated_where_the_server_counts_none(agent: Make) -> None:
    lines = [calls(("memory_search", {"query": f"try {number}"})) for number in range(9)]
    one, _ = agent(lines[0], says("Short."), max_tokens=100)
    turn = one.turn("Search.", session_id="s")
    assert (turn.finish, turn.steps, turn.tokens_in) == ("tokens", 2, 0)


@pytest.mark.slow
def test_a_model_that_hangs_ends_the_turn_in_time_and_the_message_stays(agent: Make, af: AgentFormer) -> None:
    let_go = threading.Event()

    def hang(messages: Sequence[ChatMessage]) -> Reply:
        let_go.wait(BOUND)
        return says("Too late.")

    one, _ = agent(hang, max_seconds=1)
    turn = one.turn("Are you there?", session_id="s")
    assert (turn.finish, turn.text.startswith("There is no answer")) == ("time", True)
    let_go.set()
    assert af.memory.transcript("s")[0].content == "Are you there?"


class Slow:
    """A toolbox whose tools do as a test says."""

    def __init__(self, af: AgentFormer, act: Any) -> None:
        self.definitions, self.tools, self.act = af.toolbox.definitions, af.toolbox.tools, act

    def run(self, call: ToolCall, caller: object) -> ToolResult:
        return self.act(call)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_tool_that_hangs_is_told_as_such_and_time_is_left_to_answer(
    agent: Make, af: AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentformer.agent.turn._TOOL_SHARE", 0.1)
    let_go, begun = threading.Event(), []

    def hang(call: ToolCall) -> ToolResult:
        begun.append(call.name)
        let_go.wait(BOUND)
        return ToolResult("{}")

    af.toolbox = Slow(af, hang)  # type: ignore[assignment]
    made = [("memory_add", {"content": "a"}), ("memory_add", {"content": "b"})]
    one, model = agent(calls(*made), says("It takes long."), max_seconds=8)
    turn = one.turn("Remember.", session_id="s")
    assert (turn.text, turn.finish) == ("It takes long.", "time")
    told = results(model.asked[1])
    assert told[0].startswith("the call did not finish")
    assert told[1] == "not run: the time of this turn is over"
    let_go.set()
    assert one.close(BOUND)
    assert begun == ["memory_add"]


def test_reads_run_beside_each_other_and_writes_one_after_another(agent: Make, af: AgentFormer) -> None:
    both, order, at_work = threading.Barrier(2, timeout=BOUND), [], threading.Lock()

    def act(call: ToolCall) -> ToolResult:
        if call.name == "memory_search":
            both.wait()  # breaks unless the other search is under way too
        else:
            assert at_work.acquire(blocking=False), "two writes at once"
            order.append(call.arguments["content"])
            at_work.release()
        return ToolResult("{}")

    af.toolbox = Slow(af, act)  # type: ignore[assignment]
    writes = [("memory_add", {"content": f"fact {number}"}) for number in range(5)]
    reads = [("memory_search", {"query": query}) for query in ("one", "two")]
    one, _ = agent(calls(reads[0], *writes, reads[1]), says("Done."))
    turn = one.turn("Both.", session_id="s")
    assert [run.failed for run in turn.tool_runs] == [False] * 7
    assert order == [f"fact {number}" for number in range(5)]


def test_a_model_that_says_nothing_is_asked_once_more(agent: Make) -> None:
    one, model = agent(says(" \n"), says("<think>They wait.</think>Here I am."))
    turn = one.turn("Hello?", session_id="s")
    assert (turn.text, turn.finish) == ("Here I am.", "answer")
    assert model.asked[1][-1].content.startswith("Hello?")  # nobody speaks twice in a row
    assert "Answer the request now" in model.asked[1][-1].content


def test_a_model_that_only_thinks_has_said_nothing(agent: Make) -> None:
    one, model = agent(says("<think>They wait.</think>"))
    turn = one.turn("Hello?", session_id="s")
    assert (turn.finish, [bool(tools) for tools in model.tools]) == ("failed", [True, True, False])
    assert "returned no text" in turn.text


def test_a_reply_that_cannot_be_used_is_told_to_the_model_once(agent: Make) -> None:
    broken = InvalidReply("tiny called 'rag_list' with arguments that are not JSON")
    one, model = agent(broken, says("Sorry."))
    assert one.turn("List.", session_id="s").text == "Sorry."
    assert "arguments that are not JSON" in model.asked[1][-1].content

    one, model = agent(broken)
    turn = one.turn("List.", session_id="s")
    assert (turn.finish, [bool(tools) for tools in model.tools]) == ("failed", [True, True, False])
    assert "arguments that are not JSON" in turn.text


@pytest.mark.parametrize("second", [InvalidReply("tiny called 'rag_list' with arguments that are not JSON"), says("")])
def test_after_two_replies_that_cannot_be_used_the_model_answers_with_what_it_has(
    agent: Make, second: Reply | Exception
) -> None:
    broken = InvalidReply("tiny called 'rag_list' with arguments that are not JSON")
    one, model = agent(calls(("memory_status", {})), broken, second, says("There is one memory."))
    turn = one.turn("How much is there?", session_id="s")
    assert (turn.text, turn.finish, turn.steps) == ("There is one memory.", "repeating", 4)
    assert [bool(tools) for tools in model.tools] == [True, True, True, False]
    assert "No more tools" in model.asked[3][-1].content
    assert results(model.asked[3])


def test_arguments_without_end_are_not_run_and_not_told_back(agent: Make, af: AgentFormer) -> None:
    made = [("memory_add", {"content": "ä" * 16_000}), ("memory_add", {"content": "å" * 15_000})]
    one, model = agent(calls(*made, ids=["i" * 201, "i" * 200]), says("Done."))
    turn = one.turn("Remember.", session_id="s")
    assert [run.failed for run in turn.tool_runs] == [True, False]
    first, second = model.asked[1][-3].tool_calls
    assert (first.arguments, second.arguments) == ({}, made[1][1])
    assert (len(first.id) < 200, second.id) == (True, "i" * 200)
    assert first.id == model.asked[1][-2].tool_call_id
    assert results(model.asked[1])[0].startswith(
        "not run: the arguments have 32015 bytes as JSON, and at most 32000 are allowed"
    )
    assert [entry.content for entry in af.memory.list(kinds=["fact"])] == ["å" * 15_000]


def test_arguments_of_calls_count_as_tokens(agent: Make) -> None:
    def until_the_limit(words: int) -> int:
        lines = [calls(("memory_get", {"id": f"{number} " + "word " * words})) for number in range(2)]
        one, _ = agent(*lines, says("Done."), max_tokens=8_000)
        return one.turn("Read.", session_id="s").steps

    assert (until_the_limit(1), until_the_limit(4_000)) == (3, 2)


def test_without_a_server_the_turn_fails_in_words_and_the_message_is_kept(agent: Make, af: AgentFormer) -> None:
    one, _ = agent(LanguageModelUnavailable("no server for tiny answers; start one"))
    turn = one.turn("I moved to Turku.", session_id="s")
    assert turn.finish == "failed"
    assert turn.text == (
        "The language model did not answer: no server for tiny answers; start one. "
        "Your message is kept in the session s."
    )
    assert [(message.role, message.content) for message in af.memory.transcript("s")] == [("user", "I moved to Turku.")]


def test_a_server_that_goes_away_after_a_tool_ran_leaves_the_run_to_be_seen(agent: Make) -> None:
    one, _ = agent(calls(("memory_add", {"content": "Aino lives in Turku."})), LanguageModelUnavailable("gone"))
    turn = one.turn("I moved to Turku.", session_id="s")
    assert (turn.finish, [run.name for run in turn.tool_runs]) == ("failed", ["memory_add"])


@pytest.mark.parametrize(
    "error",
    [
        InvalidReply('tiny does not take the request (status 400): "library/gemma3:latest does not support tools"'),
        InvalidReply("Unsupported parameter: 'tools' is not supported with this model."),
        InvalidReply('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        LanguageModelUnavailable('is in trouble (status 500): "tools param requires --jinja flag"; try again later'),
    ],
)
def test_a_model_without_tools_answers_from_what_memory_shows_it(
    agent: Make, af: AgentFormer, error: Exception
) -> None:
    af.memory.store("Aino prefers tea.")
    one, model = agent(error, says("Tea."))
    turn = one.turn("What does Aino prefer, tea?", session_id="s")
    assert (turn.text, turn.finish) == ("Tea.", "answer")
    assert "does not support tools" in turn.warnings[-1]
    assert "Aino prefers tea." in model.asked[1][-1].content
    one.turn("And else?", session_id="s")
    assert [bool(tools) for tools in model.tools] == [True, False, False]
    assert "memory_search" not in model.asked[2][0].content


class Small(Scripted):
    """A model that reads so many characters."""

    def __init__(self, reads: int, *lines: Any) -> None:
        super().__init__(*lines)
        self.reads = reads

    def complete(self, messages: Sequence[ChatMessage], **options: Any) -> Reply:
        if sum(len(message.content) for message in messages) > self.reads:
            self.asked.append(messages)
            self.tools.append(())
            raise PromptTooLong("the conversation has too many tokens")
        return super().complete(messages, **options)


def test_a_model_that_cannot_read_all_is_asked_once_more_with_less(af: AgentFormer) -> None:
    for number in range(40):
        af.memory.add_message("s", ("user", "assistant")[number % 2], f"Message {number} of the harbour: {NOTES * 5}")
    af.model = model = Small(9_000, says("So it is."))
    turn = Agent(af).turn("What about the harbour?", session_id="s")
    assert (turn.text, turn.finish, len(model.asked)) == ("So it is.", "answer", 2)
    assert model.asked[1][-1].content.endswith("What about the harbour?")


def test_where_even_the_message_is_too_much_the_turn_says_what_to_do(af: AgentFormer) -> None:
    af.model = model = Small(10, says("Never."))
    turn = Agent(af).turn("What about the harbour?", session_id="s")
    assert (turn.finish, len(model.asked)) == ("failed", 2)
    assert "larger context" in turn.text


def test_what_happens_is_told_in_order(agent: Make, af: AgentFormer) -> None:
    af.memory.store("Aino prefers tea.")
    one, _ = agent(calls(("rag_list", {}), ("memory_get", {"id": "x"})), says("Tea."))
    events: list[Any] = []
    one.turn("What does Aino prefer, tea?", session_id="s", on_event=events.append)
    assert [type(event) for event in events] == [Recalled, ToolStart, ToolStart, ToolRun, ToolRun]
    assert [memory.excerpt for memory in events[0].memories] == ["Aino prefers tea."]


def test_ctrl_c_ends_a_turn_at_once_and_the_message_stays(agent: Make, af: AgentFormer) -> None:
    def stop(event: object) -> None:
        if isinstance(event, ToolStart):
            raise KeyboardInterrupt

    one, _ = agent(calls(("memory_add", {"content": "never"})), says("Never."))
    with pytest.raises(KeyboardInterrupt):
        one.turn("Remember.", session_id="s", on_event=stop)
    assert [message.content for message in af.memory.transcript("s")] == ["Remember."]
    assert af.memory.list(kinds=["fact"]) == []


def test_ctrl_c_between_writes_begins_no_further_one(agent: Make, af: AgentFormer) -> None:
    let_go, begun = threading.Event(), []

    def act(call: ToolCall) -> ToolResult:
        begun.append(call.arguments["content"])
        if begun != ["one"]:
            let_go.wait(BOUND)
        return ToolResult("{}")

    def stop(event: object) -> None:
        if isinstance(event, ToolRun):
            raise KeyboardInterrupt

    af.toolbox = Slow(af, act)  # type: ignore[assignment]
    one, _ = agent(calls(*(("memory_add", {"content": content}) for content in ("one", "two", "three"))))
    with pytest.raises(KeyboardInterrupt):
        one.turn("Remember.", session_id="s", on_event=stop)
    let_go.set()
    assert one.close(BOUND)
    assert "three" not in begun


@pytest.mark.parametrize("name", ["max_steps", "max_seconds", "max_tokens"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "8", True])
def test_limits_that_are_none_are_refused(agent: Make, name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        agent(says("Hello."), **{name: value})


def test_a_limit_of_one_is_allowed(agent: Make) -> None:
    made, _ = agent(says("Hello."), max_steps=1, max_seconds=1, max_tokens=1)
    assert made.close(BOUND)


def test_results_too_long_for_the_model_are_cut_and_older_ones_make_room(agent: Make, opened: Open) -> None:
    af = opened(context_tokens=600)
    long = [af.memory.store(f"Number {number}. " + "The harbour is full of boats. " * 200).id for number in range(3)]
    lines = [calls(("memory_get", {"id": own})) for own in long]
    one, model = agent(*lines, says("Boats."), memory=af)
    turn = one.turn("What is in them?", session_id="s")
    assert turn.text == "Boats."
    told = results(model.asked[-1])
    assert all("cut here" in text for text in told)
    count = af.embedder.token_spans
    assert sum(len(count(text)) for text in told) <= 600 + 3 * 40  # the note on what was cut
    assert len(told[2]) > len(told[0])  # the newest is what the model needs
    assert all(message.content.endswith("</tool-result>") for message in model.asked[-1] if message.role == "tool")
