"""Keys over HTTP: each request is let in by its own key, before anything of its body is read."""

from __future__ import annotations

import logging

import anyio.to_thread
import mcp_types as types
import pydantic_core
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentformer.access.hosts import authenticate, host_of, origin_host
from agentformer.access.keys import KeyStore
from agentformer.errors import Busy, StoreError, TooLarge, Unauthenticated
from agentformer.mcp_server.callers import GRANT
from agentformer.mcp_server.messages import fault
from agentformer.mcp_server.problem import problem

log = logging.getLogger("agentformer")

_BODIES = 4  # of the largest size that are held at once
_SMALL = 64 * 1024  # bytes of a message that always has room: what bounds these is the number of connections


class Guard:
    """An ASGI application before another, which finds the request's `Grant` in its scope. Answers that are not MCP's
    own are problem documents (RFC 9457)."""

    def __init__(self, app: ASGIApp, keys: KeyStore, *, max_bytes: int) -> None:
        self._app = app
        self._keys = keys
        self._max_bytes = max_bytes
        self._held = 0  # bytes of the bodies of all requests that have no answer yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._let_in(scope, receive, send)
        except Unauthenticated as error:
            challenge = {"WWW-Authenticate": 'Bearer realm="agentformer"'}
            answer = problem(401, "unauthenticated", "A key is needed", str(error), challenge)
        except StoreError as error:  # whose words name a file
            log.error("keys cannot be read: %s", error)
            answer = problem(503, "unavailable", "Keys cannot be read now")
        except TooLarge as error:
            answer = problem(413, "too-large", "A limit stands in the way", str(error), limit=error.limit)
        except Busy as error:
            wait = {"Retry-After": str(error.retry_after)}
            answer = problem(429, "busy", "Too much is under way now", str(error), wait, limit=error.limit)
        else:
            return
        await answer(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `Unauthenticated`, `StoreError`, `TooLarge` or `Busy` before anything was answered."""
        headers = Headers(scope=scope)
        if (refused := _misnamed(headers)) is not None:
            await refused(scope, receive, send)
            return
        peer = (scope.get("client") or (None,))[0]
        scope[GRANT] = await anyio.to_thread.run_sync(authenticate, self._keys, headers, peer)
        if scope["method"] != "POST":  # there are no sessions to listen to or to end: each request stands for itself
            headers_of = {"Allow": "POST"}
            answer = problem(405, "method-not-allowed", "Only POST is served here", headers=headers_of)
            await answer(scope, receive, send)
            return
        body = bytearray()
        try:
            if await self._read(headers.get("content-length", ""), receive, body):
                await self._pass_on(bytes(body), scope, receive, send)
        finally:
            self._held -= len(body)

    async def _pass_on(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        if (wrong := await anyio.to_thread.run_sync(_fault, body)) is not None:
            told = wrong.model_dump_json(by_alias=True, exclude_unset=True)
            await Response(told, 400, media_type="application/json")(scope, receive, send)
            return
        first = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(first, None) or await receive()

        await self._app(scope, replay, send)

    async def _read(self, declared: str, receive: Receive, body: bytearray) -> bool:
        """Read all of a body; false for a client that went away before. What is in `body` counts as held, also after an
        error. Raises `TooLarge` and `Busy`."""
        if len(declared) < 20 and declared.isdecimal() and int(declared) > self._max_bytes:
            raise self._too_large()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return False
            piece = message.get("body", b"")
            if len(body) + len(piece) > self._max_bytes:
                raise self._too_large()
            large = len(body) + len(piece) > _SMALL
            if large and self._held + len(piece) > _BODIES * self._max_bytes:
                raise Busy("max_message_bytes", "too many large messages are under way; try again", 5)
            body += piece
            self._held += len(piece)
            if not message.get("more_body", False):
                return True

    def _too_large(self) -> TooLarge:
        how = "bring larger files in by the HTTP API or `agentformer ingest`"
        return TooLarge("max_message_bytes", f"a message may have {self._max_bytes} bytes; {how}")


def _misnamed(headers: Headers) -> Response | None:
    """A refusal of a host or an origin that is written as none is: what looks like a port could be another host."""
    host, origin = headers.get("host"), headers.get("origin", "").lower()
    if host is not None and not host_of(host).name:
        return problem(421, "misdirected-request", "Misdirected Request", "the header Host names no host")
    if origin.startswith("http") and not origin_host(origin):
        return problem(403, "forbidden", "Forbidden", "the header Origin names no origin")
    return None


def _fault(body: bytes) -> types.JSONRPCError | None:
    """What the SDK would take for a notification, or has other words for in each version of the protocol. What cannot
    be decoded it answers itself."""
    try:
        return fault(pydantic_core.from_json(body))
    except ValueError:
        return None
