"""Serving one client over standard input and output."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import anyio
from mcp.server.stdio import stdio_server

from agentformer.mcp_server.ending import watchdog
from agentformer.mcp_server.opening import Opening
from agentformer.mcp_server.server import MemoryServer
from agentformer.mcp_server.wire import Wire
from agentformer.settings import Settings
from agentformer.tools.caller import Caller

_FINISH_SECONDS = 20.0  # that calls in progress have after a signal or the end of the input


def serve(settings: Settings, caller: Caller) -> None:
    """Serve until the input ends, or SIGTERM or SIGINT comes: calls in progress are answered, and the memory is
    closed. What they have not finished within 20 seconds is cut off; nothing that is stored is harmed by it."""
    opening = Opening(settings)
    last_resort = watchdog(_FINISH_SECONDS)
    try:
        anyio.run(_serve, opening, MemoryServer(opening, caller, settings.threads), last_resort.start)
    finally:
        opening.close()
        last_resort.cancel()


async def _serve(opening: Opening, memories: MemoryServer, ending: Callable[[], None]) -> None:
    wire = Wire(ending)
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop has ended: what a signal asks for is being done already
            loop.call_soon_threadsafe(wire.stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    opening.begin()
    server = memories.build()
    server.middleware.append(wire.count)
    lines = cast(Any, wire)  # the SDK asks for anyio's files, of which it uses no more than this
    async with stdio_server(stdin=lines, stdout=lines) as (received, sent):
        await server.run(received, sent, server.create_initialization_options())
