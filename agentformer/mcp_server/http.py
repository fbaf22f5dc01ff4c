"""Serving many clients over HTTP (streamable HTTP, without sessions)."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp

from agentformer.access.hosts import check_bind_address, is_local
from agentformer.access.keys import KeyStore
from agentformer.errors import InvalidInput
from agentformer.mcp_server.ending import watchdog
from agentformer.mcp_server.guarding import Guard
from agentformer.mcp_server.opening import Opening
from agentformer.mcp_server.patience import PatientProtocol
from agentformer.mcp_server.server import MemoryServer
from agentformer.settings import Settings
from agentformer.tools.caller import Caller

PATH = "/mcp"
_FINISH_SECONDS = 20  # that running calls have after a signal: less than most supervisors wait before they kill
_GIVE_UP_SECONDS = 25.0  # after which a call that cannot be stopped is left behind
_MAX_MESSAGE = 64 * 1024 * 1024  # bytes, all in memory: a file of 48 MB in base64
_BACKLOG = 128  # connections that wait to be taken
_LOCAL = ("127.0.0.1", "localhost", "[::1]")


def serve(settings: Settings, caller: Caller, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve until SIGTERM or SIGINT; calls in progress have 20 seconds to finish, and the memory is closed.

    Requests that have not come whole by then are dropped. `started` is told the address once requests are taken; port 0
    takes a free one. Raises `InvalidInput` for an address that is not this machine's, or that others could reach while
    there is no key, and what opening the memory raises.
    """
    keys = KeyStore(settings.index_dir)
    family, address = _resolved(settings.host, settings.port)
    check_bind_address(settings.host, settings.host, keys)
    listening = _bound(family, address, settings.host)
    opening, last_resort = Opening(settings), watchdog(_GIVE_UP_SECONDS)
    try:
        opening.memory()
        config = _config(application(settings, caller, opening, keys))
        server = _Server(config, settings.host, started, ending=last_resort.start)
        for number in (signal.SIGTERM, signal.SIGINT):
            # Uvicorn takes them over while it runs, and at its end raises them again.
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        server.run(sockets=[listening])
    finally:
        listening.close()
        opening.close()
        last_resort.cancel()


def application(settings: Settings, caller: Caller, opening: Opening, keys: KeyStore) -> ASGIApp:
    """MCP behind the keys, as an ASGI application."""
    # Or answers under way would be cut at a signal.
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
    most = min(settings.max_file_bytes * 4 // 3 + 1024 * 1024, _MAX_MESSAGE)
    app = (
        MemoryServer(opening, caller, settings.threads)
        .build()
        .streamable_http_app(
            streamable_http_path=PATH,
            stateless_http=True,
            max_request_body_size=most,
            transport_security=_trusted(settings),
        )
    )
    return Guard(app, keys, max_bytes=most)


class _Server(uvicorn.Server):
    """Tells `started` its address when it listens, and `ending` when it stops to."""

    def __init__(
        self, config: uvicorn.Config, host: str, started: Callable[[str], None], ending: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._host = f"[{host}]" if ":" in host else host
        self._tell, self._ending = started, ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            self._tell(f"http://{self._host}:{sockets[0].getsockname()[1]}{PATH}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_config=None,  # ours
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who asks is who connects
        timeout_graceful_shutdown=_FINISH_SECONDS,
    )


def _trusted(settings: Settings) -> TransportSecuritySettings:
    """Which names requests may be addressed to, against DNS rebinding. An address that others reach is served with keys
    only, which a page that plays such tricks has not; there the names are checked where the settings give some."""
    names = settings.allowed_hosts.lower().replace(",", " ").split()
    local = is_local(settings.host)
    hosts = [*(_LOCAL if local or names else ()), *names]
    origins = [f"http://{name}" for name in _LOCAL] + settings.cors_origins.lower().replace(",", " ").split()
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(hosts),
        allowed_hosts=[pattern for name in hosts for pattern in (name, f"{name}:*")],
        allowed_origins=[pattern for origin in origins for pattern in (origin, f"{origin}:*")],
    )


def _resolved(host: str, port: int) -> tuple[int, Any]:
    """Family and address of a socket. Raises `InvalidInput`."""
    name = "127.0.0.1" if host == "localhost" else host
    try:
        found = socket.getaddrinfo(name or ".", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise _elsewhere(host) from None
    return found[0], found[4]


def _bound(family: int, address: Any, host: str) -> socket.socket:
    """A listening socket. Raises `InvalidInput`."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _elsewhere(host) from None
        raise InvalidInput("port", f"{host}:{address[1]} cannot be used: {error.strerror or error}") from None
    return listening


def _elsewhere(host: str) -> InvalidInput:
    return InvalidInput("host", f"{host[:80]!r} is no address of this machine; use 127.0.0.1")
