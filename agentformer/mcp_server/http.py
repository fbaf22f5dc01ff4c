"""The MCP server over HTTP for many clients, with the transport "streamable HTTP" and without sessions. Each request is
authenticated by its own key, or by an access token of an OAuth issuer."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import anyio.to_thread
import h11
import pydantic_core
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import JSONRPCError
from sse_starlette.sse import AppStatus
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentformer.access.authentication import authenticate
from agentformer.access.hosts import host_of, is_local, origin_host
from agentformer.access.keys import KeyStore
from agentformer.access.limits import quota_headers
from agentformer.builders import open_keys
from agentformer.errors import AgentFormerError, Busy, InvalidInput, StoreError, TooLarge, Unauthenticated
from agentformer.http.json_limits import check_values
from agentformer.mcp_server.oauth import WELL_KNOWN, Challenge, Tokens
from agentformer.mcp_server.server import (
    GRANT,
    MAX_MESSAGE,
    USER,
    LazyMemory,
    MemoryServer,
    end_abandoned,
    exit_timer,
    message_error,
)
from agentformer.servers.listening import listen, url_of
from agentformer.servers.logs import log_to
from agentformer.servers.problems import PROBLEM, Problem, problem_json, problem_of
from agentformer.servers.slow_clients import MCP, TimeBudget
from agentformer.settings import Settings
from agentformer.tools.caller import Caller

PATH = "/mcp"
_FINISH_SECONDS = 20  # for running calls after a signal: less than most supervisors wait before they kill
_EXIT_SECONDS = 25.0  # seconds after which the server no longer waits for a call that cannot be stopped
_MAX_LARGE_BODIES = 4  # messages of the largest size that are in memory at the same time
_SMALL = (
    64 * 1024
)  # bytes of a message that is always accepted; the limit of connections limits the number of such messages
_BACKLOG = 128  # connections that wait to be accepted
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_MAX_CONNECTIONS = 512  # at once; most machines allow 1,024 file descriptors
_MAX_REFUSED = 128  # further connections that get an error at the same time; all others are closed at once
_OTHER_ORIGIN = "web pages of this origin are not allowed; add the origin to the setting cors_origins"
_SAFE_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_METADATA_HEADERS = {**_SAFE_HEADERS, "Access-Control-Allow-Origin": "*"}  # public, also for clients in web pages
_TOO_SLOW = problem_json(
    408,
    "incomplete-request",
    "The request was incomplete or too slow. Send the request again.",
    title="Request Timeout",
)
_TOO_MANY = problem_json(503, "busy", "Close unused connections, and retry after 2 s.", title="Too many connections")

log = logging.getLogger("agentformer")


def serve(settings: Settings, caller: Caller, started: Callable[[str], None] = lambda address: None) -> None:
    """Run the MCP server over HTTP until SIGTERM or SIGINT. After the signal, incomplete requests are dropped, running
    calls have 20 seconds to finish, and then the memory is closed.

    `caller` sets the user and the project of every call, and the rights that a call can have at most. When the server
    accepts requests, `started` is called with the URL. If the port is 0, the system chooses a free port. Raises
    `InvalidInput` if the address cannot be used, or if other machines can reach it and no key was ever made. Raises an
    error if the memory cannot be opened."""
    with open_keys(settings) as keys:
        _serve(settings, caller, keys, started)


def _serve(settings: Settings, caller: Caller, keys: KeyStore, started: Callable[[str], None]) -> None:
    memory, timer = LazyMemory(settings), exit_timer(_EXIT_SECONDS)
    listener = listen(settings.host, settings.port, keys, backlog=_BACKLOG, protected=bool(settings.oauth_issuer))
    log_to(sys.stderr, settings)
    try:
        tokens = _tokens(settings, url_of(listener) + PATH)
        memory.get()
        config = uvicorn.Config(
            application(settings, caller, memory, keys, tokens),
            http=_TimeoutProtocol,
            ws="none",
            log_config=None,  # logging is configured by the command line
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the peer of the connection is the client; headers are not trusted
            timeout_graceful_shutdown=_FINISH_SECONDS,
        )
        server = _Server(config, lambda: started(url_of(listener) + PATH), timer.start)
        for number in (signal.SIGTERM, signal.SIGINT):
            # Uvicorn replaces these handlers while it runs, and raises the signals again at its end.
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        server.run(sockets=[listener])
    finally:
        listener.close()
        memory.close()
        timer.cancel()
    end_abandoned()


def _tokens(settings: Settings, address: str) -> Tokens | None:
    """Return the check of access tokens, or None without an issuer. `address` is that of this server."""
    if not settings.oauth_issuer:
        return None
    if not settings.oauth_resource and not is_local(settings.host):
        raise InvalidInput("oauth_resource", "is missing; give the address by which clients reach this MCP server")
    return Tokens(settings.oauth_issuer, settings.oauth_resource or address)


def application(
    settings: Settings, caller: Caller, memory: LazyMemory, keys: KeyStore, tokens: Tokens | None = None
) -> ASGIApp:
    """Return the MCP server as an ASGI application that authenticates each request."""
    # Without this, a signal would cut off responses.
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
    max_bytes = min(settings.max_file_bytes * 4 // 3 + 1024 * 1024, MAX_MESSAGE)
    server = MemoryServer(memory, caller, settings.threads).build()
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        max_request_body_size=max_bytes,
        transport_security=_transport_security(settings),
    )
    origins = _listed(settings.cors_origins)
    return AccessMiddleware(app, keys, max_bytes=max_bytes, origins=origins, tokens=tokens)


class AccessMiddleware:
    """Authenticates each request and reads the complete body before the MCP SDK handles the request. The size of a
    body, and the memory for all bodies, are limited. The `Grant` of the request is stored in the ASGI scope. Errors are
    answered with problem documents."""

    def __init__(
        self, app: ASGIApp, keys: KeyStore, *, max_bytes: int, origins: Collection[str], tokens: Tokens | None = None
    ) -> None:
        """`origins` are the origins of web pages, in lower case, that may use a server without keys. `tokens` checks
        access tokens; with it, every request needs a key or a token."""
        self._tokens = tokens
        self._app = app
        self._keys = keys
        self._max_bytes = max_bytes
        self._origins = origins
        self._bytes_in_memory = 0  # bodies of all requests without a response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._handle(scope, receive, send)
            return
        except StoreError as error:  # its message names a file
            log.error("the keys cannot be read: %s", error)
            problem = Problem(503, problem_json(503, "unavailable", title="The keys cannot be read"))
        except Challenge as challenge:
            problem = problem_of(challenge.error)
            problem = Problem(problem.status, problem.document, {"WWW-Authenticate": challenge.header})
        except AgentFormerError as error:
            problem = problem_of(error)
        await _response(problem)(scope, receive, _with_quotas(scope, send))

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. An error of access, of the store or of a limit is raised before the response begins."""
        headers = Headers(scope=scope)
        problem = _header_problem(headers)
        if self._tokens and problem is None and scope["method"] == "GET" and scope["path"].startswith(WELL_KNOWN):
            await JSONResponse(self._tokens.metadata, headers=_METADATA_HEADERS)(scope, receive, send)
            return
        foreign = problem is None and _is_from_other_origin(headers, self._origins)
        if foreign and not await anyio.to_thread.run_sync(lambda: self._keys.ever_made):
            problem = Problem(403, problem_json(403, "forbidden", _OTHER_ORIGIN, title="Forbidden"))
        if problem is None:
            peer = (scope.get("client") or (None,))[0]
            await anyio.to_thread.run_sync(self._authenticate, scope, headers, peer)
            if scope["method"] != "POST":  # without sessions, GET and DELETE have no meaning
                document = problem_json(405, "method-not-allowed", title="Only POST is supported here")
                problem = Problem(405, document, {"Allow": "POST"})
        if problem is not None:
            await _response(problem)(scope, receive, _with_quotas(scope, send))
            return
        body = bytearray()
        try:
            if await self._read(headers.get("content-length", ""), receive, body):
                await anyio.to_thread.run_sync(check_values, bytes(body))
                await self._forward(bytes(body), scope, receive, _with_quotas(scope, send))
        finally:
            self._bytes_in_memory -= len(body)

    def _authenticate(self, scope: Scope, headers: Headers, peer: str | None) -> None:
        """Store the rights of a request in its ASGI scope, and the user of a token. Raises `Unauthenticated`, or
        `Challenge` if tokens are accepted."""
        scheme, _, secret = headers.get("authorization", "").strip().partition(" ")
        if self._tokens is None:
            scope[GRANT] = authenticate(self._keys, headers, peer)
        elif scheme.lower() == "bearer" and secret.count(".") == 2:  # a JWT; a key has no dots
            verified = self._tokens.verify(secret.strip())
            scope[GRANT], scope[USER] = verified.grant, verified.user_id
        elif scheme.lower() == "bearer":
            try:
                scope[GRANT] = authenticate(self._keys, headers, peer)
            except Unauthenticated as error:
                raise self._tokens.challenge(error, "invalid_token") from None
        else:
            needed = Unauthenticated("an access token or a key is required, in the header Authorization: Bearer TOKEN")
            raise self._tokens.challenge(needed)

    async def _forward(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request whose body was read already. An invalid message is answered with status 400 instead."""
        if (error := await anyio.to_thread.run_sync(_body_error, body)) is not None:
            content = error.model_dump_json(by_alias=True, exclude_unset=True)
            await Response(content, 400, media_type="application/json")(scope, receive, send)
            return
        first = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(first, None) or await receive()

        await self._app(scope, replay, send)

    async def _read(self, declared: str, receive: Receive, body: bytearray) -> bool:
        """Read the complete request body into `body`. `declared` is its length in the header Content-Length. Return
        False if the client disconnects. The size of the body is added to the count of bytes of all bodies in memory.
        The caller must subtract it, even after an error. Raises `TooLarge` if the body is over the limit, and `Busy` if
        other bodies use too much memory."""
        alternative = "upload larger files by the HTTP API or `agentformer ingest`"
        message = f"a message may have at most {self._max_bytes} bytes; {alternative}"
        too_large = TooLarge("max_message_bytes", message)
        if len(declared) < 20 and declared.isdecimal() and int(declared) > self._max_bytes:
            raise too_large
        while True:
            event = await receive()
            if event["type"] != "http.request":
                return False
            piece = event.get("body", b"")
            size = len(body) + len(piece)
            if size > self._max_bytes:
                raise too_large
            if size > _SMALL and self._bytes_in_memory + len(piece) > _MAX_LARGE_BODIES * self._max_bytes:
                raise Busy("max_message_bytes", "too many large messages are in progress; retry after 5 s", 5)
            body += piece
            self._bytes_in_memory += len(piece)
            if not event.get("more_body", False):
                return True


def _with_quotas(scope: Scope, send: Send) -> Send:
    """Return a function that sends the response with what the key of the request has left of its limits."""

    async def send_with(message: Message) -> None:
        grant = scope.get(GRANT)
        if message["type"] == "http.response.start" and grant is not None and grant.allowance is not None:
            quotas = quota_headers(grant.allowance.quotas)
            added = [(name.lower().encode(), value.encode()) for name, value in quotas.items()]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return send_with


class _Server(uvicorn.Server):
    """A uvicorn server that calls `started` when the server accepts connections, and `ending` when the server stops."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start, self._on_end = started, ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, and then call `started`."""
        await super().startup(sockets)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)


class _TimeoutProtocol(H11Protocol):
    """Uvicorn's HTTP protocol with time limits for the client, because uvicorn itself waits without limit for headers
    and bodies. The time to make a response is not limited."""

    _ended = False  # the last response is sent; further data are dropped
    _phase: Any = None  # the request and its part that is being received; None while nothing is expected
    _budget: TimeBudget
    _counted_at = 0.0  # loop time of the last change of the budget
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse the connection if there are too many connections. Otherwise, wait for the headers of a request."""
        super().connection_made(transport)
        if len(self.connections) > _MAX_CONNECTIONS + _MAX_REFUSED:
            self._ended = True
            transport.abort()
        elif len(self.connections) > _MAX_CONNECTIONS:
            self._close_with(Problem(503, _TOO_MANY, {**_SAFE_HEADERS, "Retry-After": "2"}).as_http())
        else:
            self._update_timer(0)

    def data_received(self, data: bytes) -> None:
        """Handle the received data, and restart the timer for the rest of the request."""
        if not self._ended:
            super().data_received(data)
            self._update_timer(len(data))

    def on_response_complete(self) -> None:
        """Wait for the next request. The beginning of the next request may have arrived before this response was
        complete."""
        super().on_response_complete()
        self._update_timer(0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers of the connection."""
        self._ended = True
        self._cancel_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start a timer that closes the connection, because the client does not read the response."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(MCP.idle, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the timer that `pause_writing` started, because the client reads again."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if the client does not read the last response."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(MCP.idle, self.transport.abort)

    def shutdown(self) -> None:
        """Prepare for the end of the server. A running call may finish, but an incomplete request is dropped."""
        if self._ended or self._is_receiving():
            self._end_call()
            self.transport.abort()
        else:
            with suppress(h11.LocalProtocolError):
                super().shutdown()

    def _is_receiving(self) -> bool:
        """Return True if the client still has to send a part of the request."""
        return self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        )

    def _update_timer(self, received: int) -> None:
        """Restart the timer for the rest of the request. `received` is the number of bytes since the last call."""
        self._cancel_timer()
        if self._ended or self.transport.is_closing() or not self._is_receiving():
            self._phase = None
            return
        phase, now = (self.cycle, self.conn.their_state), self.loop.time()
        is_body = self.conn.their_state is h11.SEND_BODY
        if phase != self._phase:
            self._phase, self._budget = phase, TimeBudget(MCP.body if is_body else MCP.headers, MCP)
        else:
            self._budget.spend(now - self._counted_at, received if is_body else 0)
        self._counted_at = now
        self._timer = self.loop.call_later(self._budget.left, self._time_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        has_response = self.conn.their_state is h11.SEND_BODY and self.cycle.response_started
        self._close_with(b"" if has_response else Problem(408, _TOO_SLOW, _SAFE_HEADERS).as_http())

    def _close_with(self, response: bytes) -> None:
        """Send `response`, and close the connection a moment later, so that the client does not lose the response."""
        self._ended = True
        self._end_call()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write(response)
        with suppress(OSError):
            self.transport.write_eof()
        self.loop.call_later(MCP.linger, self.transport.abort)

    def _end_call(self) -> None:
        """Signal the application that the client has disconnected, so that the application stops waiting for the
        client."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()


def _transport_security(settings: Settings) -> TransportSecuritySettings:
    """Return the allowed values of the headers Host and Origin. With these values, the SDK prevents DNS rebinding: a
    foreign host name that points to this server. If other machines can reach the server, requests need a key, which a
    foreign web page does not have. Then the headers are checked only if the setting `allowed_hosts` is not empty."""
    names = _listed(settings.allowed_hosts)
    hosts = [*(_LOCAL if names or is_local(settings.host) else ()), *names]
    origins = [f"http://{name}" for name in _LOCAL] + _listed(settings.cors_origins)
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(hosts),
        allowed_hosts=[pattern for name in hosts for pattern in (name, f"{name}:*")],
        allowed_origins=[pattern for origin in origins for pattern in (origin, f"{origin}:*")],
    )


def _listed(names: str) -> list[str]:
    return names.lower().replace(",", " ").split()


def _is_from_other_origin(headers: Headers, allowed: Collection[str]) -> bool:
    """Return whether a web page of another origin sent a request, such as a page of another port of this machine, and
    `allowed` does not contain this origin."""
    if (origin := headers.get("origin", "").lower()) in allowed and origin:
        return False
    if origin:
        return origin_host(origin) != headers.get("host", "").lower().removesuffix(":")
    return headers.get("sec-fetch-site") in ("cross-site", "same-site")


def _header_problem(headers: Headers) -> Problem | None:
    """Return an error for a malformed header Host or Origin, or None if both are valid. In a malformed header, a port
    such as `:80@evil.com` could name another host."""
    host, origin = headers.get("host"), headers.get("origin", "").lower()
    if host is not None and not host_of(host).name:
        document = problem_json(421, "misdirected-request", "Invalid Host header", title="Misdirected Request")
        return Problem(421, document)
    if origin.startswith("http") and not origin_host(origin):
        return Problem(403, problem_json(403, "forbidden", "Invalid Origin header", title="Forbidden"))
    return None


def _body_error(body: bytes) -> JSONRPCError | None:
    """Return the JSON-RPC error for a body that is not a valid message, or None. Without this check, the SDK could
    handle an invalid message as a notification. The SDK itself reports a body that is not JSON."""
    try:
        return message_error(pydantic_core.from_json(body))
    except ValueError:
        return None


def _response(problem: Problem) -> Response:
    headers = {**_SAFE_HEADERS, **problem.headers}
    return Response(problem.as_json(), problem.status, headers=headers, media_type=PROBLEM)
