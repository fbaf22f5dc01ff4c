"""The session of the Agents SDK keeps items as its SQLite session does, and remembers messages."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

pytest.importorskip("agents.memory", reason="openai-agents is not installed; run `make test-integrations`")

from agents import SQLiteSession
from agents.memory import Session

from agentformer import AgentFormer
from agentformer.errors import InvalidInput
from agentformer.integrations.openai_agents import AgentFormerSession, function_tools
from tests.integrations.conftest import ticks_during

ITEMS: list[Any] = [
    {"role": "user", "content": "Aino prefers green tea."},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oulu"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "The wombat thermometer shows rain."},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It rains in Oulu."}]},
]


def test_random_operations_do_what_the_sqlite_session_does(af: AgentFormer) -> None:
    choose = random.Random(1)

    async def run() -> None:
        ours, theirs = AgentFormerSession("s1", af), SQLiteSession("s1")
        assert isinstance(ours, Session)
        for n in range(120):
            kind = choose.choice(("add", "add", "get", "pop", "limit") if n % 40 else ("clear",))
            items = choose.choices(ITEMS, k=choose.randint(0, 3))
            results = []
            for session in (ours, theirs):
                if kind == "add":
                    results.append(await session.add_items(items))
                elif kind == "pop":
                    results.append(await session.pop_item())
                elif kind == "clear":
                    results.append(await session.clear_session())
                else:
                    results.append(await session.get_items(None if kind == "get" else len(items)))
            assert results[0] == results[1], kind

    asyncio.run(run())


def test_messages_are_remembered_and_tool_output_is_never_found(af: AgentFormer) -> None:
    session = AgentFormerSession("s1", af, user_id="aino")
    asyncio.run(session.add_items(ITEMS))
    found = [hit.entry.content for hit in af.memory.search("tea or rain of the wombat thermometer", user_id="aino")]
    assert "Aino prefers green tea." in found and not any("thermometer" in text for text in found)
    assert [entry.role for entry in af.memory.transcript("s1")] == ["user", "assistant"]
    asyncio.run(session.clear_session())
    assert af.memory.count(include_archived=True) == 0


def test_a_function_tool_stores_and_finds(af: AgentFormer) -> None:
    tools = {tool.name: tool for tool in function_tools(af)}
    context: Any = None
    stored = asyncio.run(tools["memory_add"].on_invoke_tool(context, json.dumps({"content": "Aino prefers tea."})))
    assert json.loads(stored)["memory"]["content"] == "Aino prefers tea."
    found = asyncio.run(tools["memory_search"].on_invoke_tool(context, json.dumps({"query": "tea"})))
    assert json.loads(found)["memories"][0]["content"] == "Aino prefers tea."
    assert asyncio.run(tools["memory_search"].on_invoke_tool(context, "{}")).startswith("Error: ")


def test_the_event_loop_is_never_blocked(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    slow = af.memory.add_checked
    monkeypatch.setattr(af.memory, "add_checked", lambda *a, **k: (time.sleep(0.1), slow(*a, **k))[1])
    session = AgentFormerSession("s1", af)
    assert ticks_during(lambda n: session.add_items([{"role": "user", "content": f"message {n}"}])) >= 10
    assert len(asyncio.run(session.get_items())) == 20


def test_a_session_without_a_user_has_only_what_belongs_to_nobody(af: AgentFormer) -> None:
    async def run() -> None:
        aino, nobody = AgentFormerSession("shared", af, user_id="aino"), AgentFormerSession("shared", af)
        await aino.add_items(ITEMS[:1])
        assert await nobody.get_items() == [] and await nobody.pop_item() is None
        await nobody.add_items(ITEMS[1:])
        assert (await aino.get_items(), await nobody.get_items()) == (ITEMS[:1], ITEMS[1:])
        await nobody.clear_session()
        assert (await aino.get_items(), await nobody.get_items()) == (ITEMS[:1], [])
        assert af.memory.count(user_id="aino", kinds=["message"]) == 1

    asyncio.run(run())


def test_items_that_are_popped_at_once_are_returned_once(af: AgentFormer) -> None:
    items: list[Any] = [{"role": "user", "content": f"message {n}"} for n in range(12)]

    async def run() -> None:
        sessions = [AgentFormerSession("s1", af) for _ in range(4)]
        await sessions[0].add_items(items)
        popped = await asyncio.gather(*(sessions[n % 4].pop_item() for n in range(14)))
        assert sorted(map(str, popped)) == sorted(map(str, [*items, None, None]))
        assert await sessions[0].get_items() == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("bad", "problem"), [({"output": "x" * 1_000_001}, "the limit is 1000000"), ({"output": object()}, "is not JSON")]
)
def test_items_are_added_together_or_not_at_all(af: AgentFormer, bad: Any, problem: str) -> None:
    session = AgentFormerSession("s1", af)
    with pytest.raises(InvalidInput, match=rf"items\[1\].*{problem}.*no item was added"):
        asyncio.run(session.add_items([ITEMS[0], bad]))
    assert asyncio.run(session.get_items()) == [] and af.memory.count(include_archived=True) == 0


def test_a_clear_while_items_are_added_leaves_no_message_behind(af: AgentFormer) -> None:
    async def run() -> None:
        session = AgentFormerSession("s1", af, user_id="aino")
        for n in range(12):
            await asyncio.gather(session.add_items([{"role": "user", "content": f"w{n}"}]), session.clear_session())
        await session.clear_session()

    asyncio.run(run())
    assert af.memory.count(include_archived=True) == 0


def test_an_entry_of_another_program_is_no_item(af: AgentFormer) -> None:
    place: Any = {"session_id": "s1", "source_type": "openai_agents", "source_id": "x", "searchable": False}
    af.memory.store("not JSON", **place)
    session = AgentFormerSession("s1", af)
    assert asyncio.run(session.get_items()) == [] and asyncio.run(session.pop_item()) is None


def test_a_name_that_no_tool_has_is_refused(af: AgentFormer) -> None:
    with pytest.raises(InvalidInput, match=r"names of tools \(memory_add, .*'memroy_add'"):
        function_tools(af, ["memory_search", "memroy_add"])


def test_arguments_that_are_nested_too_deep_are_an_error_text(af: AgentFormer) -> None:
    (tool,) = function_tools(af, ["memory_search"])
    context: Any = None
    assert asyncio.run(tool.on_invoke_tool(context, "[" * 100_000)).startswith("Error: ")
