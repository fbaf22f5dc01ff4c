"""Standard input and output as the wire of MCP: nothing else reads or writes there, and a signal ends it cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

import anyio
import anyio.lowlevel
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

from agentformer.mcp_server.messages import is_answered, refusal

_BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
_CHUNK = 1 << 16
_TICKS = 100  # turns of the loop in which what was read last becomes a call


class Wire:
    """The lines of a client, and the lines to it: an input and an output for the SDK's `stdio_server`.

    Lines that are no messages are answered here, and blank ones are passed over. At the end of the input, or after
    `stop`, `ending` is called, and calls that were begun are answered before the wire ends. To be made before anything
    prints, and used in one running loop.
    """

    def __init__(self, ending: Callable[[], None]) -> None:
        self._ending = ending
        self._in, self._out = _claimed(0), _claimed(1)
        self._reader, self._writer = _Aside("reader"), _Aside("writer")
        self._buffer = bytearray()
        self._first = True
        self._unanswered: set[Any] = set()
        self._stopped = anyio.Event()

    def stop(self) -> None:
        """Read no more. Only in the loop's own thread."""
        self._stopped.set()

    async def count(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """A middleware of the server: knows which calls have no answer yet."""
        if ctx.request_id is None:
            return await call_next(ctx)
        self._unanswered.add(ctx.request_id)
        try:
            return await call_next(ctx)
        except asyncio.CancelledError:  # by the client, who is sent no answer then
            self._unanswered.discard(ctx.request_id)
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._stopped.is_set() and (read := await self._line()):
            line, wrong = read
            if wrong is None:
                return line
            if is_answered(wrong):
                await self._say(wrong.model_dump_json(by_alias=True, exclude_unset=True) + "\n")
        self._ending()
        for _ in range(_TICKS):
            await anyio.lowlevel.checkpoint()
        while self._unanswered:
            await anyio.sleep(0.01)
        raise StopAsyncIteration

    async def write(self, text: str) -> None:
        """A whole line. A client that is gone ends the wire."""
        await self._say(text)
        with contextlib.suppress(ValueError, AttributeError):
            self._unanswered.discard(json.loads(text).get("id"))

    async def flush(self) -> None:
        """`write` leaves nothing to flush."""

    async def _say(self, text: str) -> None:
        try:
            await self._writer.run(lambda: _write(self._out, text.encode("utf-8")))
        except OSError:
            self._unanswered.clear()
            self.stop()

    async def _line(self) -> tuple[str, types.JSONRPCError | None] | None:
        """The next line that is not blank, and what is wrong with it; None at the end of the input, or when the wire is
        stopped."""
        line: tuple[str, types.JSONRPCError | None] | None = None

        async def read() -> None:
            nonlocal line
            line = await self._reader.run(self._checked)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await self._stopped.wait()
            group.cancel_scope.cancel()
        return line

    def _checked(self) -> tuple[str, types.JSONRPCError | None] | None:
        while line := self._read():
            if self._first:
                line, self._first = line.removeprefix(_BOM), False
            if line.strip():
                return line, refusal(line)
        return None

    def _read(self) -> str:
        """What is wrong with the input is the end of it. What has no line break at its end counts as a line."""
        while (end := self._buffer.find(b"\n", max(len(self._buffer) - _CHUNK, 0))) < 0:
            try:
                data = os.read(self._in, _CHUNK)
            except OSError:
                data = b""
            if not data:
                end = len(self._buffer) - 1
                break
            self._buffer += data
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line.decode("utf-8", "replace")


class _Aside:
    """A daemon thread for calls that block: one that never returns does not hold up the end of the process, as a
    thread of a pool would."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, call: Callable[[], Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put((future, call))
        return await future

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            try:
                result, error = call(), None
            except OSError as failure:
                result, error = None, failure
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: OSError | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _write(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def _claimed(stream: int) -> int:
    """A descriptor of our own for standard input or output. In its place the input is empty and the output goes to
    standard error: what libraries, models and child processes print must not mix with the protocol."""
    sys.stdout.flush()
    own = os.dup(stream)
    other = os.open(os.devnull, os.O_RDONLY) if stream == 0 else os.dup(2)
    os.dup2(other, stream)
    os.close(other)
    return own
