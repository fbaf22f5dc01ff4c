"""The memory service of Google ADK keeps the events of a session once, and finds them for their user."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("google.adk.memory", reason="google-adk is not installed; run `make test-integrations`")

from google.adk.events import Event
from google.adk.sessions import Session
from google.genai.types import Content, Part

from agentformer import AgentFormer
from agentformer.integrations.adk import AgentFormerMemoryService
from tests.integrations.conftest import ticks_during


def session(*texts: str, user: str = "aino", app: str = "app", id: str = "s1") -> Session:
    events = [
        Event(
            id=f"e{n}", author="user", timestamp=1_700_000_000 + n, content=Content(role="user", parts=[Part(text=t)])
        )
        for n, t in enumerate(texts)
    ]
    return Session(id=id, app_name=app, user_id=user, events=[*events, Event(id="empty", author="agent")])


def found(service: AgentFormerMemoryService, query: str, user: str = "aino", app: str = "app") -> list[Any]:
    response = asyncio.run(service.search_memory(app_name=app, user_id=user, query=query))
    return [(memory.content.parts[0].text, memory.author, memory.timestamp) for memory in response.memories]


def test_a_session_that_is_added_again_is_kept_once(af: AgentFormer) -> None:
    service = AgentFormerMemoryService(af)
    asyncio.run(service.add_session_to_memory(session("Aino prefers green tea.")))
    grown = session("Aino prefers green tea.", "The ferry leaves at nine.")
    for _ in range(2):
        asyncio.run(service.add_session_to_memory(grown))
    asyncio.run(service.add_events_to_memory(app_name="app", user_id="aino", events=grown.events, session_id="s1"))
    assert af.memory.count() == 2
    assert found(service, "Which tea?") == [("Aino prefers green tea.", "user", "2023-11-14T22:13:20+00:00")]


def test_users_and_applications_are_separate(af: AgentFormer) -> None:
    service = AgentFormerMemoryService(af)
    for user, app in (("aino", "app"), ("pekka", "app"), ("aino", "other")):
        asyncio.run(service.add_session_to_memory(session(f"{user} drinks tea in {app}.", user=user, app=app)))
    assert [text for text, *_ in found(service, "tea")] == ["aino drinks tea in app."]
    assert found(service, "tea", user="nobody") == [] == found(service, " ")


def test_the_event_loop_is_never_blocked(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    service = AgentFormerMemoryService(af)
    slow = af.memory.search
    monkeypatch.setattr(af.memory, "search", lambda *a, **k: (time.sleep(0.1), slow(*a, **k))[1])
    assert ticks_during(lambda n: service.search_memory(app_name="app", user_id="aino", query=f"tea {n}")) >= 10


def test_events_whose_names_join_to_one_text_are_kept_apart(af: AgentFormer) -> None:
    service = AgentFormerMemoryService(af)
    asyncio.run(service.add_session_to_memory(session("Tea at four.", app="a/b", id="c")))
    asyncio.run(service.add_session_to_memory(session("Tea at nine.", app="a", id="b/c")))
    assert [text for text, *_ in found(service, "tea", app="a/b")] == ["Tea at four."]
    assert [text for text, *_ in found(service, "tea", app="a")] == ["Tea at nine."]


def test_an_entry_of_another_program_is_no_event(af: AgentFormer) -> None:
    for n, metadata in enumerate(({}, {"role": 5})):
        place: Any = {"user_id": "aino", "source_type": "adk", "source_id": str(n)}
        af.memory.store(f"tea {n}", metadata={"app_name": "app", **metadata}, **place)
    assert found(AgentFormerMemoryService(af), "tea") == []
