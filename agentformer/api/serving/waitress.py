"""Runs the HTTP server with waitress: one process with threads, for systems on which gunicorn does not run."""

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
from agentformer.api.auth import FORM_BYTES, JSON_BYTES
from agentformer.api.concurrency import server_threads
from agentformer.api.serving import FINISH_SECONDS, AcceptPause, Settling, open_listener
from agentformer.servers.listening import url_of
from agentformer.servers.logs import log_to
from agentformer.settings import Settings


def serve(
    settings: Settings,
    started: Callable[[str], None] = lambda address: None,
    reread: Callable[[], Settings] | None = None,
) -> None:
    """Run the HTTP server with waitress, like `agentformer.api.serving.serve`, but in one process. The setting
    `workers` and the function `reread` are not used: it is restarted for new settings.

    waitress reads the whole body of a request before a thread handles the request, so slow clients block no thread.
    """
    with open_listener(settings) as listener:
        url = url_of(listener)
        log_to(sys.stderr, settings)
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # waiting requests are normal
        app, settling = create_app(settings), Settling()

        def answer(environ: Any, start: Any) -> Any:
            settling.count()
            return app(environ, start)

        server = waitress.create_server(
            answer,
            sockets=[listener],
            threads=server_threads(settings),
            # The application itself refuses a body that is longer than any endpoint accepts.
            max_request_body_size=max(settings.max_file_bytes + FORM_BYTES, JSON_BYTES) + 1,
            clear_untrusted_proxy_headers=False,  # the application uses them to detect a proxy, and trusts none
            ident="agentformer",
            log_socket_errors=False,  # it would write a traceback for each attempt to accept a connection
        )
        _pause_when_full(server)
        stopping = threading.Event()

        def stop(number: int, frame: FrameType | None) -> None:
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        started(url)
        try:
            while not stopping.is_set():
                _run_once(server)
            stop_jobs(app)
            _finish(server, FINISH_SECONDS)
        finally:
            server.task_dispatcher.shutdown(cancel_pending=True, timeout=1)
            close_app(app)


def _pause_when_full(server: Any) -> None:
    """Make the server pause when it cannot accept a connection, because too many files are open."""
    accept, pause = server.accept, AcceptPause()

    def accept_or_wait() -> Any:
        try:
            return accept()
        except OSError as error:
            pause.wait(error)
            return None

    server.accept = accept_or_wait


def _run_once(server: Any) -> None:
    """Run the loop of the server once. One run takes at most a second, so that a signal is handled soon."""
    server.asyncore.loop(timeout=1.0, map=server._map, use_poll=server.adj.asyncore_use_poll, count=1)


def _finish(server: Any, seconds: float) -> None:
    """Accept no new connections, and wait at most `seconds` for running requests. Waitress itself would drop them."""
    server.del_channel()
    server.socket.close()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(
        channel.requests or channel.total_outbufs_len for channel in server.active_channels.values()
    ):
        _run_once(server)
