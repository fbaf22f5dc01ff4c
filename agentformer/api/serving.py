"""Running the application: waitress, with a clean end at SIGTERM."""

from __future__ import annotations

import ipaddress
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import waitress

from agentformer.api.app import close_app, create_app
from agentformer.errors import InvalidInput
from agentformer.settings import Settings

_FINISH_SECONDS = 20.0  # that running requests have after a signal: less than most supervisors wait before they kill


def serve(settings: Settings, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress have 20 seconds to finish, and the memory is closed.

    What they have not finished by then is cut off; nothing that is stored is harmed by it.

    `started` is told the address once the socket listens; port 0 takes a free one. Raises `InvalidInput`
    for an address that others could reach: there is no access control yet.
    """
    host = _loopback(settings.host)
    app = create_app(settings)
    try:
        server = waitress.create_server(
            app,
            host=host,
            port=settings.port,
            threads=settings.threads,
            max_request_body_size=app.config["MAX_CONTENT_LENGTH"],
            clear_untrusted_proxy_headers=True,
            ident="agentformer",
        )
    except OSError as error:
        close_app(app)
        raise InvalidInput("port", f"{host}:{settings.port} cannot be used: {error.strerror or error}") from None

    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    shown = f"[{host}]" if ":" in host else host
    started(f"http://{shown}:{server.effective_port}")
    try:
        while not stopping.is_set():
            _turn(server)
        _finish(server, _FINISH_SECONDS)
    finally:
        server.task_dispatcher.shutdown(cancel_pending=True, timeout=1)
        close_app(app)


def _turn(server: Any) -> None:
    """One round of the server's own loop: at most a second, so that a signal is soon noticed."""
    server.asyncore.loop(timeout=1.0, map=server._map, use_poll=server.adj.asyncore_use_poll, count=1)


def _finish(server: Any, seconds: float) -> None:
    """Take no new connection, and answer for `seconds` the requests that are in progress. Waitress's own end drops
    them."""
    server.del_channel()
    server.socket.close()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(
        channel.requests or channel.total_outbufs_len for channel in server.active_channels.values()
    ):
        _turn(server)


def _loopback(host: str) -> str:
    """The address to listen on: one, and only this machine's."""
    try:
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return "127.0.0.1" if host == "localhost" else host
    except ValueError:
        pass
    raise InvalidInput("host", f"{host!r} can be reached by others, and there is no access control: use 127.0.0.1")
