"""The MCP server for one client over standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice
from types import FrameType
from typing import Any, Self, cast

import anyio
import anyio.lowlevel
import mcp_types as types
import pydantic_core
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.stdio import stdio_server

from agentformer.errors import TooLarge
from agentformer.http.json_limits import check_values
from agentformer.mcp_server.server import (
    MAX_MESSAGE,
    LazyMemory,
    MemoryServer,
    end_abandoned,
    exit_timer,
    message_error,
    rpc_error,
    usable_id,
)
from agentformer.settings import Settings
from agentformer.tools.caller import Caller

_FINISH_SECONDS = 20.0  # seconds for running calls after a signal or after the end of the input
_BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
_CHUNK = 1 << 16
_TICKS = 100  # turns of the event loop until the last line has become a call
_MAX_TOKENS = 500_000  # of a line, in which its id is searched
_TOKEN = re.compile(r'\\.|["\[\]{}]')
_ID_VALUE = re.compile(r'\s*:\s*(-?[0-9]{1,18}(?=\s*[,}])|"(?:[^"\\]|\\.){0,500}")')


def serve(settings: Settings, caller: Caller) -> None:
    """Run the MCP server until the input ends, or until SIGTERM or SIGINT.

    At the end, running calls have 20 seconds to finish, and then the memory is closed. If a call does not finish,
    stored data are not damaged.
    """
    memory = LazyMemory(settings)
    timer = exit_timer(_FINISH_SECONDS)
    try:
        anyio.run(_serve, memory, MemoryServer(memory, caller, settings.threads), timer.start)
    finally:
        memory.close()
        timer.cancel()
    end_abandoned()


def line_error(line: str) -> types.JSONRPCError | None:
    """Return the error response to a line that is not a valid message, or None if the line is valid. Never raises."""
    try:
        check_values(line.encode("utf-8", "surrogatepass"))
        message = pydantic_core.from_json(line)
    except TooLarge as error:
        return rpc_error(types.INVALID_REQUEST, str(error), _id_in(line))
    except ValueError as error:
        return rpc_error(types.PARSE_ERROR, f"the line is not valid JSON: {str(error)[:200]}", _id_in(line))
    return message_error(message)


def needs_response(error: types.JSONRPCError) -> bool:
    """Return False if the error is about a notification, because notifications never get a response."""
    return error.id is not None or error.error.code != types.INVALID_PARAMS


async def _serve(memory: LazyMemory, handlers: MemoryServer, ending: Callable[[], None]) -> None:
    pipes = StandardPipes(ending)
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, so the server is ending already
            loop.call_soon_threadsafe(pipes.stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    memory.open_in_background()
    server = handlers.build()
    server.middleware.append(pipes.track)
    files = cast(Any, pipes)  # the SDK asks for anyio's files, but uses only these methods
    async with stdio_server(stdin=files, stdout=files) as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


class StandardPipes:
    """Standard input and output in the form that the SDK's `stdio_server` needs. An iteration yields the valid lines of
    the input; an invalid line is answered with an error. When the input ends or `stop` is called, `ending` is called,
    and the iteration ends after all running calls are answered. Create the object before any output is printed, and use
    it in one running event loop."""

    def __init__(self, ending: Callable[[], None]) -> None:
        self._ending = ending
        self._in, self._out = _take_over(0), _take_over(1)
        self._reader, self._writer = _DaemonThread("reader"), _DaemonThread("writer")
        self._buffer = bytearray()
        self._first_line = True
        self._unanswered: set[Any] = set()
        self._stopped = anyio.Event()

    def stop(self) -> None:
        """Stop reading the input. Call this method only in the thread of the event loop."""
        self._stopped.set()

    async def track(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Run a call, and remember its id until its response is written, so that the server does not end before this
        response. The server uses this method as middleware."""
        if ctx.request_id is None:
            return await call_next(ctx)
        self._unanswered.add(ctx.request_id)
        try:
            return await call_next(ctx)
        except asyncio.CancelledError:  # cancelled by the client, which gets no response
            self._unanswered.discard(ctx.request_id)
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._stopped.is_set() and (received := await self._next_line()):
            line, error = received
            if error is None:
                return line
            if needs_response(error):
                await self._send(error.model_dump_json(by_alias=True, exclude_unset=True) + "\n")
        self._ending()
        for _ in range(_TICKS):
            await anyio.lowlevel.checkpoint()
        while self._unanswered:
            await anyio.sleep(0.01)
        raise StopAsyncIteration

    async def write(self, text: str) -> None:
        """Write a complete line to the output. If the client has disconnected, the server ends."""
        await self._send(text)
        with contextlib.suppress(ValueError, AttributeError):
            self._unanswered.discard(json.loads(text).get("id"))

    async def flush(self) -> None:
        """Do nothing, because `write` has no buffer."""

    async def _send(self, text: str) -> None:
        try:
            await self._writer.run(lambda: _write(self._out, text.encode("utf-8")))
        except OSError:
            self._unanswered.clear()
            self.stop()

    async def _next_line(self) -> tuple[str, types.JSONRPCError | None] | None:
        """Return a pair: the next line that is not blank, and the error if this line is not a valid message (otherwise
        None). At the end of the input and after `stop`, return None."""
        line: tuple[str, types.JSONRPCError | None] | None = None

        async def read() -> None:
            nonlocal line
            line = await self._reader.run(self._read_and_check)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await self._stopped.wait()
            group.cancel_scope.cancel()
        return line

    def _read_and_check(self) -> tuple[str, types.JSONRPCError | None] | None:
        """Read in the reader thread what `_next_line` returns."""
        while True:
            line, is_long = self._read_line()
            if self._first_line:
                line, self._first_line = line.removeprefix(_BOM), False
            if is_long:
                return line, rpc_error(types.INVALID_REQUEST, f"a message may have at most {MAX_MESSAGE} bytes")
            if line.strip():
                return line, line_error(line)
            if not line:
                return None

    def _read_line(self) -> tuple[str, bool]:
        """Return a pair: the next line with its line break, if it has one, and False. At the end or after a read error,
        the line is "". Of a line with more than `MAX_MESSAGE` bytes, return only the end, and True."""
        is_long = False
        while (end := self._buffer.find(b"\n", max(len(self._buffer) - _CHUNK, 0))) < 0:
            try:
                data = os.read(self._in, _CHUNK)
            except OSError:
                data = b""
            if not data:
                end = len(self._buffer) - 1
                break
            self._buffer += data
            if len(self._buffer) > MAX_MESSAGE:
                is_long = True
                del self._buffer[:-_CHUNK]
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line.decode("utf-8", "replace"), is_long


class _DaemonThread:
    """A daemon thread that runs blocking calls one after another. The process can end even if a call never returns."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run `call` in the thread and return the result. Raises the `OSError` that `call` raises."""
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            awaited = future.set_running_or_notify_cancel()
            try:
                result = call()
            except OSError as error:
                if awaited:
                    future.set_exception(error)
            else:
                if awaited:
                    future.set_result(result)


def _write(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _take_over(stream: int) -> int:
    """Return a new descriptor of standard input (`stream` 0) or standard output (`stream` 1), which only the server
    uses. Then the descriptor 0 reads nothing, and 1 writes to standard error, so that the output of libraries, models
    and child processes does not mix with the messages of the protocol."""
    sys.stdout.flush()
    private = os.dup(stream)
    replacement = os.open(os.devnull, os.O_RDONLY) if stream == 0 else os.dup(2)
    os.dup2(replacement, stream)
    os.close(replacement)
    return private


def _id_in(line: str) -> int | str | None:
    """Return the id of a message that the JSON decoder rejects because of its numbers, nesting or characters. Return
    None if no valid id is found."""
    depth, string_start, value = 0, -1, None  # string_start: -1 outside of strings
    for token in islice(_TOKEN.finditer(line), _MAX_TOKENS):
        if token[0] == '"':
            is_id = string_start >= 0 and line[string_start : token.end()] == '"id"'
            string_start = token.start() if string_start < 0 else -1
            if is_id and depth == 1 and (match := _ID_VALUE.match(line, token.end())):
                value = match[1]
        elif string_start < 0:
            depth += 1 if token[0] in "{[" else -1 if token[0] in "}]" else 0
    try:
        message_id = usable_id(json.loads(value)) if value else None
        str(message_id).encode()  # half of a surrogate pair cannot be sent back
    except ValueError:
        return None
    return message_id
