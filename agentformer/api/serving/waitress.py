"""waitress: one process with threads, for systems that gunicorn does not run on."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import waitress

from agentformer.api.app import close_app, create_app, stop_jobs
from agentformer.api.auth import JSON_BYTES
from agentformer.api.multipart import FORM_BYTES
from agentformer.api.request_log import log_requests_to
from agentformer.api.serving.listening import FINISH_SECONDS, listen, url_of
from agentformer.settings import Settings


def serve(settings: Settings, started: Callable[[str], None] = lambda address: None) -> None:
    """See `agentformer.api.serving.serve`. `workers` has no meaning here. Bodies are read before a thread is needed,
    so that slow clients hold none."""
    with listen(settings) as listener:
        url = url_of(listener)
        log_requests_to(sys.stderr)
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # that requests wait is no fault
        app = create_app(settings)
        server = waitress.create_server(
            app,
            sockets=[listener],
            threads=settings.threads,
            max_request_body_size=_most_bytes(settings),
            clear_untrusted_proxy_headers=False,  # they tell that a proxy is there; nothing else believes them
            ident="agentformer",
        )
        stopping = threading.Event()

        def stop(number: int, frame: FrameType | None) -> None:
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        started(url)
        try:
            while not stopping.is_set():
                _turn(server)
            stop_jobs(app)
            _finish(server, FINISH_SECONDS)
        finally:
            server.task_dispatcher.shutdown(cancel_pending=True, timeout=1)
            close_app(app)


def _most_bytes(settings: Settings) -> int:
    """From where on waitress refuses a body itself: more than the application takes of any kind, so that it decides."""
    return max(settings.max_file_bytes + FORM_BYTES, JSON_BYTES) + 1


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
