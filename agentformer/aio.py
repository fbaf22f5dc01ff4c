"""`agentformer.aio`: the same memory for programs with an event loop.

    from agentformer import aio

    async with aio.connect() as af:
        await af.rag.upload("handbook.pdf")
        answer = await af.rag.query("Who holds the keys?")
        async for event in af.rag.stream("Who holds the keys?"):
            ...

Every public call of `AgentFormer`, of its `memory`, `rag` and `toolbox`, and of an `Agent` is a coroutine here, with
the same name, arguments, result and errors; a call that yields its result in pieces is an asynchronous iterator. The
calls run in a pool of threads of bounded size, so the event loop is never blocked, also not by opening the memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar, Unpack

from agentformer.agent import Agent, AgentOptions
from agentformer.agent.turn import Turn, TurnEvent
from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer
from agentformer.factory import connect as open_memory
from agentformer.memory.hierarchical import CoreMemory
from agentformer.memory.memory_manager import MemoryManager
from agentformer.tools.rag_tool import RAGTool
from agentformer.tools.toolbox import Toolbox

T = TypeVar("T")
P = TypeVar("P")

THREADS = 8  # of the pool: calls that run at the same time; further calls wait
_END = object()
_CLOSING = 0.02  # seconds between two attempts to close a generator that another thread still runs


def connect(*, threads: int = THREADS, **settings: Any) -> AsyncAgentFormer:
    """Return the memory with these settings, which are those of `agentformer.connect`. It is opened by its first call,
    or by `async with`. At most `threads` calls run at the same time. Raises `InvalidInput` for an invalid number."""
    return AsyncAgentFormer(lambda: open_memory(**settings), threads=threads)


class Calls(Generic[P]):
    """The public calls of one part as coroutines. The names are those of the class of the part."""

    def __init__(self, part: type[P], get: Callable[[], P], pool: _Pool) -> None:
        self._part = part
        self._get = get
        self._pool = pool

    def __dir__(self) -> list[str]:
        return public_calls(self._part)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the call `name` as a function whose result is awaited, or iterated with `async for` for a stream."""
        method = None if name.startswith("_") else inspect.getattr_static(self._part, name, None)
        if not inspect.isfunction(method):
            raise AttributeError(f"{self._part.__name__} has no call {name!r}")

        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            def begin() -> Any:
                return getattr(self._get(), name)(*arguments, **options)

            return self._pool.pieces(begin) if is_stream(method) else self._pool.run(begin)

        return call


class AsyncAgent(Calls[Agent]):
    """An `Agent` as coroutines. `turn` returns the whole turn; `events` yields what happens in it."""

    async def events(self, message: str, *, session_id: str) -> AsyncIterator[TurnEvent | Turn]:
        """Yield the events of a turn while it runs, and at the end the `Turn`; see `Agent.turn`."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def found(event: TurnEvent) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

        running = asyncio.ensure_future(self.turn(message, session_id=session_id, on_event=found))
        running.add_done_callback(lambda done: queue.put_nowait(_END))
        while (event := await queue.get()) is not _END:
            yield event
        yield await running


class AsyncAgentFormer(Calls[AgentFormer]):
    """An `AgentFormer` whose calls are coroutines; `connect` returns one. Close it by `async with` or `aclose`."""

    def __init__(self, open_memory: Callable[[], AgentFormer], *, threads: int = THREADS) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise InvalidInput("threads", f"must be a number of 1 or more, got {threads!r:.80}")
        self._open, self._lock = open_memory, threading.Lock()
        self._opened: AgentFormer | None = None
        super().__init__(AgentFormer, self._memory, _Pool(threads))
        self.memory = Calls(MemoryManager, lambda: self._memory().memory, self._pool)
        self.core = Calls(CoreMemory, lambda: self._memory().memory.core, self._pool)
        self.rag = Calls(RAGTool, lambda: self._memory().rag, self._pool)
        self.toolbox = Calls(Toolbox, lambda: self._memory().toolbox, self._pool)

    async def agent(self, **options: Unpack[AgentOptions]) -> AsyncAgent:
        """Return an agent with these options; see `Agent`."""
        agent = await self._pool.run(lambda: Agent(self._memory(), **options))
        return AsyncAgent(Agent, lambda: agent, self._pool)

    async def aclose(self) -> None:
        """Wait for the calls that run, and close the memory. A second call has no effect."""
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        await self._pool.run(self._memory)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.shield(self.aclose())

    def _memory(self) -> AgentFormer:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _close(self) -> None:
        self._pool.close()
        with self._lock:
            if self._opened is not None:
                self._opened.close()


def public_calls(part: type) -> list[str]:
    """Return the names of the public calls of a class, sorted."""
    names = (name for name in dir(part) if not name.startswith("_"))
    return [name for name in names if inspect.isfunction(inspect.getattr_static(part, name))]


def is_stream(method: Callable[..., Any]) -> bool:
    """Return whether a call yields its result in pieces."""
    return str(method.__annotations__.get("return", "")).startswith("Generator")


class _Pool:
    """Threads in which calls run. A call has the context variables of the task that made it."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="agentformer")

    async def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call. If the task is cancelled, a call that has not begun is dropped; one that has
        begun ends by itself, and its result is dropped."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, call)

    async def pieces(self, begin: Callable[[], Generator[T, None, None]]) -> AsyncIterator[T]:
        """Yield the pieces of a generator. It is closed if the reader stops before the end."""
        generator = await self.run(begin)
        try:
            while (piece := await self.run(functools.partial(next, generator, _END))) is not _END:
                yield piece
        finally:
            await asyncio.shield(self.run(functools.partial(_closed, generator)))

    def close(self) -> None:
        """Wait for the calls that run. Later calls raise `RuntimeError`."""
        self._threads.shutdown(cancel_futures=True)


def _closed(generator: Generator[Any, None, None]) -> None:
    """Close a generator, after its present piece if another thread runs it."""
    while True:
        try:
            return generator.close()
        except ValueError:  # it runs
            time.sleep(_CLOSING)
