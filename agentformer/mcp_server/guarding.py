"""Keys over HTTP: each request is let in by its own key, before anything of its body is read."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentformer.access.asking import grant_of_request
from agentformer.access.keys import KeyStore
from agentformer.errors import StoreError, TooLarge, Unauthenticated
from agentformer.mcp_server.callers import GRANT

log = logging.getLogger("agentformer")

_SAFE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Guard:
    """An ASGI application before another, which finds the request's `Grant` in its scope. Answers that are not MCP's
    own are problem documents (RFC 9457)."""

    def __init__(self, app: ASGIApp, keys: KeyStore, *, max_bytes: int) -> None:
        self._app = app
        self._keys = keys
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._let_in(scope, receive, send)
        except Unauthenticated as error:
            challenge = {"WWW-Authenticate": 'Bearer realm="agentformer"'}
            answer = _problem(401, "unauthenticated", "A key is needed", str(error), challenge)
        except StoreError as error:  # whose words name a file
            log.error("keys cannot be read: %s", error)
            answer = _problem(503, "unavailable", "Keys cannot be read now")
        except TooLarge as error:
            answer = _problem(413, "too-large", "A limit stands in the way", str(error), limit=error.limit)
        else:
            return
        await answer(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `Unauthenticated`, `StoreError` or `TooLarge` before anything was answered."""
        headers = Headers(scope=scope)
        peer = (scope.get("client") or (None,))[0]
        scope[GRANT] = await anyio.to_thread.run_sync(grant_of_request, self._keys, headers, peer)
        if scope["method"] != "POST":  # there are no sessions to listen to or to end: each request stands for itself
            headers_of = {"Allow": "POST"}
            answer = _problem(405, "method-not-allowed", "Only POST is served here", headers=headers_of)
            await answer(scope, receive, send)
            return
        body = await self._body(headers.get("content-length", ""), receive)
        if body is None:
            return  # the client went away before it had said all
        first = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(first, None) or await receive()

        await self._app(scope, replay, send)

    async def _body(self, declared: str, receive: Receive) -> bytes | None:
        """The whole body; None for a client that is gone. Raises `TooLarge`."""
        if len(declared) < 20 and declared.isdecimal() and int(declared) > self._max_bytes:
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> TooLarge:
        how = "bring larger files in by the HTTP API or `agentformer ingest`"
        return TooLarge("max_message_bytes", f"a message may have {self._max_bytes} bytes; {how}")


def _problem(
    status: int, kind: str, title: str, detail: str = "", headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    body = {"type": f"urn:agentformer:problem:{kind}", "title": title, "status": status, **more}
    if detail:
        body["detail"] = detail
    return Response(
        json.dumps(body), status, headers={**_SAFE, **(headers or {})}, media_type="application/problem+json"
    )
