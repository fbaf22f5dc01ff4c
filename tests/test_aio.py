"""`agentformer.aio`: the same calls as coroutines, and an event loop that is never blocked."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agentformer import aio
from agentformer.agent import Agent
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput, LanguageModelUnavailable, NotFound
from agentformer.factory import AgentFormer
from agentformer.memory.hierarchical import CoreMemory
from agentformer.memory.memory_manager import MemoryManager
from agentformer.tools.rag_tool import RAGTool
from agentformer.tools.toolbox import Toolbox
from agentformer.types import Answer, Matrix, Vector

PARTS = {"memory": MemoryManager, "core": CoreMemory, "rag": RAGTool, "toolbox": Toolbox}


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {"index_dir": folder / "index", "upload_dir": folder / "uploads", "embedder": "hashing", **more}


def tea(folder: Path) -> Path:
    file = folder / "tea.txt"
    file.write_text("Tea is served at five in the garden.", "utf-8")
    return file


class Slow:
    """An embedder that takes a while, and counts how many threads it serves at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.seconds, self.now, self.most = seconds, 0, 0
        self._lock = threading.Lock()
        documents, query = HashingEmbedder.embed_documents, HashingEmbedder.embed_query

        def slow_documents(embedder: HashingEmbedder, texts: Any) -> Matrix:
            return self.wait(documents, embedder, texts)

        def slow_query(embedder: HashingEmbedder, text: str) -> Vector:
            return self.wait(query, embedder, text)

        monkeypatch.setattr(HashingEmbedder, "embed_documents", slow_documents)
        monkeypatch.setattr(HashingEmbedder, "embed_query", slow_query)

    def wait(self, call: Any, *given: Any) -> Any:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self._lock:
            self.now -= 1
        return call(*given)


def test_every_public_call_is_there_with_its_name_and_arguments(tmp_path: Path) -> None:
    af = aio.connect(**settings(tmp_path))
    for name, part in {**PARTS, "": AgentFormer}.items():
        calls = getattr(af, name) if name else af
        methods = {each for each, value in inspect.getmembers(part, inspect.isfunction) if not each.startswith("_")}
        assert set(dir(calls)) == methods, name
        own = set(vars(aio.AsyncAgentFormer)) if not name else set()
        for method in methods - own:
            assert inspect.signature(getattr(calls, method)) == inspect.signature(getattr(part, method)), method
    assert [name for name in aio.public_calls(RAGTool) if aio.is_stream(getattr(RAGTool, name))] == ["stream"]
    assert not (tmp_path / "index").exists()  # nothing is opened before the first call
    with pytest.raises(AttributeError, match="has no call 'nothing'"):
        af.memory.nothing()
    with pytest.raises(AttributeError):
        af.memory._backend()


def test_results_and_errors_are_those_of_the_calls(tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.connect(**settings(tmp_path)) as af:
            entry = await af.memory.store("The keys are in the drawer.")
            assert (await af.memory.search("keys"))[0].entry.id == entry.id
            await af.rag.upload(tea(tmp_path))
            assert "five" in (await af.rag.query("When is tea served?")).text
            found = await af.toolbox.call("memory_search", {"query": "keys"})
            assert "drawer" in str(found)
            assert (await af.status())["entries"] >= 2
            with pytest.raises(NotFound):
                await af.memory.get("missing")
            with pytest.raises(LanguageModelUnavailable):
                await af.agent()
        await af.aclose()  # a second close has no effect
        with pytest.raises(RuntimeError):
            await af.memory.count()

    asyncio.run(run())


@pytest.mark.parametrize("threads", [0, -1, True, "8", 2.5])
def test_a_wrong_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(InvalidInput, match="threads"):
        aio.connect(threads=threads)


def test_the_loop_runs_while_an_embedder_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, 0.5)

    async def run() -> int:
        ticks = 0
        async with aio.connect(**settings(tmp_path)) as af:
            storing = asyncio.ensure_future(af.memory.store("Tea is at five."))
            while not storing.done():
                await asyncio.sleep(0.01)
                ticks += 1
        return ticks

    assert asyncio.run(run()) >= 5  # of about fifty; a blocked loop would have one
    assert slow.most == 1


def test_a_crowd_waits_for_the_threads_of_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[int]:
        async with aio.connect(threads=3, **settings(tmp_path)) as af:
            await af.memory.store_many([f"Note {n}" for n in range(20)])
            slow = Slow(monkeypatch, 0.01)
            found = await asyncio.gather(*(af.memory.search(f"note {n}") for n in range(100)))
            return [slow.most, *map(len, found)]

    most, *counts = asyncio.run(run())
    assert 1 <= most <= 3
    assert len(counts) == 100
    assert all(counts)


def test_a_cancelled_call_that_waits_is_not_begun(tmp_path: Path) -> None:
    begun = []

    async def run() -> None:
        async with aio.connect(threads=1, **settings(tmp_path)) as af:
            hold = threading.Event()
            first = asyncio.ensure_future(af._pool.run(hold.wait))
            second = asyncio.ensure_future(af._pool.run(lambda: begun.append(1)))
            await asyncio.sleep(0.05)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            hold.set()
            await first

    asyncio.run(run())
    assert begun == []


def test_a_stream_arrives_in_pieces_and_closes_what_it_reads(tmp_path: Path) -> None:
    closed = []

    def pieces() -> Any:
        try:
            yield from range(1000)
        finally:
            closed.append(True)

    async def run() -> None:
        async with aio.connect(**settings(tmp_path)) as af:
            await af.rag.upload(tea(tmp_path))
            events = [event async for event in af.rag.stream("When is tea served?")]
            assert isinstance(events[-1], Answer)
            assert "five" in events[-1].text
            with pytest.raises(InvalidInput):
                await anext(af.rag.stream(""))
            reading = af._pool.pieces(pieces)
            assert [await anext(reading) for _ in range(3)] == [0, 1, 2]
            await reading.aclose()
            assert closed == [True]

    asyncio.run(run())


def test_a_stream_that_is_cancelled_in_the_middle_of_a_piece_is_closed(tmp_path: Path) -> None:
    closed, going = threading.Event(), threading.Event()

    def pieces() -> Any:
        try:
            yield 0
            going.set()
            time.sleep(0.3)
            yield 1
        finally:
            closed.set()

    async def run() -> None:
        async with aio.connect(**settings(tmp_path)) as af:

            async def read() -> None:
                async for _ in af._pool.pieces(pieces):
                    pass

            reading = asyncio.ensure_future(read())
            await asyncio.to_thread(going.wait, 30)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        assert closed.is_set()

    asyncio.run(run())


def test_an_agent_answers_and_tells_what_it_does(tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.connect(**settings(tmp_path, llm_model="echo:echo")) as af:
            agent = await af.agent(user_id="anna")
            assert set(dir(agent)) == {
                name for name, _ in inspect.getmembers(Agent, inspect.isfunction) if name[0] != "_"
            }
            turn = await agent.turn("Hello there", session_id="s1")
            *events, last = [event async for event in agent.events("Hello again", session_id="s1")]
            assert type(last) is type(turn)
            assert events
            assert last.session_id == "s1"
            with pytest.raises(InvalidInput):
                _ = [event async for event in agent.events("", session_id="s1")]

    asyncio.run(run())
