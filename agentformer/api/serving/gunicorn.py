"""Runs the HTTP server with gunicorn: an arbiter process starts worker processes. Each worker opens the memory and
answers requests in threads.

A thread takes a connection when the headers of a request are complete, reads the body, and answers. Each connection is
a `TimedSocket`, a socket with time limits, so that slow clients do not block all threads.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from selectors import EVENT_READ
from types import FrameType
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger
from gunicorn.http.errors import (
    ExpectationFailed,
    LimitRequestHeaders,
    LimitRequestLine,
    ParseException,
    UnsupportedTransferCoding,
)
from gunicorn.util import write_nonblock
from gunicorn.workers.gthread import ThreadWorker

from agentformer import errors
from agentformer._version import __version__
from agentformer.api.app import close_app, create_app, stop_jobs
from agentformer.api.concurrency import ConnectionCounts, server_threads
from agentformer.api.response import problem
from agentformer.api.serving import FINISH_SECONDS, AcceptPause, Settling, check_names, open_listener
from agentformer.errors import AgentFormerError
from agentformer.factory import load_shared_modules
from agentformer.servers.listening import url_of
from agentformer.servers.logs import log_to
from agentformer.servers.problems import Problem, problem_json
from agentformer.servers.slow_clients import HTTP_API, HeadersTooLong, TimedSocket
from agentformer.settings import Settings

log = logging.getLogger("agentformer")

_CLOSE_SECONDS = 10  # seconds for a worker to close its memory after its last request
_WORKER_TIMEOUT = 300  # seconds without a sign of life; loading a model takes less
_KEEP_ALIVE_SECONDS = 30  # seconds for an idle connection, which needs no thread
_IDLE_AT_END_SECONDS = 2.0  # seconds for a connection without a request, while the server stops
_DRAIN_SECONDS = 0.1  # seconds to read the rest of a body, so that the connection can be used again
_ACTIVE_SECONDS = 1.0  # a connection without a request for longer is not active
_COUNT_SECONDS = 0.05  # seconds between two counts of the active connections
_DEFER_PAUSE = 0.0005  # seconds in which another worker can accept a connection
_PIPE_BYTES = 4096  # that a pipe stores as a unit, so that several workers may write at the same time
_HTTP_ERRORS = (  # the first class that matches decides
    (LimitRequestLine, 414, "URI Too Long"),
    (LimitRequestHeaders, 431, "Request Header Fields Too Large"),
    (HeadersTooLong, 431, "Request Header Fields Too Large"),
    (ExpectationFailed, 417, "Expectation Failed"),
    (UnsupportedTransferCoding, 501, "Not Implemented"),
    (ParseException, 400, "Bad Request"),
)


def serve(
    settings: Settings,
    started: Callable[[str], None] = lambda address: None,
    reread: Callable[[], Settings] | None = None,
) -> None:
    """Run the HTTP server with gunicorn, like `agentformer.api.serving.serve`.

    In a worker process, this function ends with `SystemExit`. In the arbiter process, `SystemExit` is raised only if a
    worker failed with an unexpected error.
    """
    listener = open_listener(settings)
    log_to(sys.stderr, settings)
    url, failure, arbiter = url_of(listener), StartupPipe(), os.getpid()
    if settings.workers > 1 and sys.platform == "linux":  # other systems cannot fork with some libraries loaded
        load_shared_modules(settings)

    def ready() -> None:
        log.info("serving on %s, workers: %d, version %s", url, settings.workers, __version__)
        started(url)

    application = _Application(settings, listener.detach(), failure, ready, reread)
    try:
        _Arbiter(application).run()
    except SystemExit as end:
        if os.getpid() != arbiter:
            raise
        if error := failure.receive():
            raise error from None
        if end.code:
            raise
        log.info("stopped")
    finally:
        failure.close()


class StartupPipe:
    """A pipe through which a worker sends an error to the arbiter. Create the pipe before the workers are forked."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    def send(self, error: AgentFormerError) -> None:
        """Send an error to the arbiter. If several errors are sent, the arbiter receives only the first error."""
        message = {"kind": type(error).__name__, "text": str(error)[:1000], "field": getattr(error, "field", "")}
        with contextlib.suppress(OSError):
            os.write(self._write, json.dumps(message).encode()[: _PIPE_BYTES - 1] + b"\n")

    def receive(self) -> AgentFormerError | None:
        """Return the error that a worker sent, with its class and message, or None if no error was sent."""
        try:
            message = json.loads(os.read(self._read, _PIPE_BYTES).partition(b"\n")[0])
        except (OSError, ValueError):
            return None
        kind = getattr(errors, message["kind"], AgentFormerError)
        error: AgentFormerError = kind.__new__(kind, message["text"])
        vars(error)["field"] = message["field"]
        return error

    def close(self) -> None:
        """Close both ends of the pipe."""
        for end in (self._read, self._write):
            os.close(end)


class _Application(BaseApplication):  # type: ignore[misc]
    """The application that gunicorn runs. Each worker opens the memory after the worker was forked, because open
    databases and the threads of a model do not survive a fork."""

    def __init__(
        self,
        settings: Settings,
        listener: int,
        failure: StartupPipe,
        ready: Callable[[], None],
        reread: Callable[[], Settings] | None,
    ) -> None:
        self.settings = settings
        self.reread = reread
        self.failure = failure
        self.ready = ready
        self._listener = listener
        self._flask: Flask | None = None
        self.connections = ConnectionCounts()
        super().__init__()

    def load_config(self) -> None:
        """Set the options of gunicorn. Some options come from the settings."""
        for name, value in {
            "bind": f"fd://{self._listener}",
            "workers": self.settings.workers,
            "threads": server_threads(self.settings),
            "worker_class": _Worker,
            "pre_fork": _give_slot,
            "timeout": _WORKER_TIMEOUT,
            "graceful_timeout": FINISH_SECONDS + _CLOSE_SECONDS,
            "keepalive": _KEEP_ALIVE_SECONDS,
            "limit_request_line": 8190,
            "forwarded_allow_ips": "",  # no proxy is trusted
            "sendfile": False,  # it would bypass the TimedSocket
            "control_socket_disable": True,
            "loglevel": "error",  # warnings quote the requests of clients
            "logger_class": _Log,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Open the memory and return the Flask application. gunicorn calls this method in each worker."""
        log_to(sys.stderr, self.settings)
        self._flask = create_app(self.settings)
        message = "the body is not in valid HTTP chunks; send it again"
        self._flask.register_error_handler(
            ParseException, lambda error: problem(400, "bad-request", message, title="Bad Request")
        )
        return self._flask

    def stop_jobs(self) -> None:
        if self._flask is not None:
            stop_jobs(self._flask)

    def close(self) -> None:
        if self._flask is not None:
            close_app(self._flask)


class _Log(Logger):  # type: ignore[misc]
    """The log of gunicorn, as a part of the log of the server."""

    def setup(self, cfg: Any) -> None:
        """Set up the logs of gunicorn, and pass their lines on to the log of the server."""
        super().setup(cfg)
        for logger in (self.error_log, self.access_log):
            logger.handlers.clear()
            logger.propagate = True


class _Arbiter(Arbiter):  # type: ignore[misc]
    """The process that starts and ends the workers. SIGTERM and SIGINT end the server gracefully. A second SIGINT ends
    the process at once. SIGHUP reads the settings again, and new workers take over; if the server was started in a
    terminal, SIGHUP means that the terminal was closed, and ends the server. A SIGHUP that was ignored at the start, as
    with `nohup`, stays ignored."""

    def init_signals(self) -> None:
        """Install the signal handlers. If SIGHUP was ignored before, SIGHUP stays ignored."""
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        super().init_signals()
        if ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    handle_int = Arbiter.handle_term

    def handle_hup(self) -> None:
        """Read the settings again and replace the workers, or end the server if it was started in a terminal. If the
        settings are not valid, log the reason and change nothing. The address stays that of the start."""
        application: _Application = self.app
        if application.reread is None or _has_terminal():
            self.handle_term()
            return
        try:
            settings = application.reread()
            check_names(settings)
        except AgentFormerError as error:
            log.error("the settings are not read again: %s", error)
            return
        log_to(sys.stderr, settings)
        application.settings = replace(settings, host=application.settings.host, port=application.settings.port)
        self.reload()
        log.warning("the settings were read again; %d new workers take over", self.num_workers)


def _has_terminal() -> bool:
    """Return whether a terminal controls this process."""
    try:
        os.close(os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def share_processors(workers: int) -> None:
    """Limit the threads of libraries in this worker process to its share of the processors. Otherwise the models of the
    workers would compete for the same processors. A limit that the user has set stays."""
    if workers > 1:
        processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors // workers)))


def _give_slot(arbiter: Arbiter, worker: _Worker) -> None:
    """Give a new worker its slot in the shared memory, in which it counts its connections. gunicorn calls this function
    before the fork."""
    worker.slot = worker.app.connections.free_slot({other.slot for other in arbiter.WORKERS.values()})
    worker.app.connections.set(worker.slot, 0)


class _Worker(ThreadWorker):  # type: ignore[misc]
    slot = 0
    _active = 0  # connections with a request in the last second
    _counted, _counted_at = 0, 0.0  # all connections at the last count, and its time by the monotonic clock

    def init_process(self) -> None:
        """Start the worker. When the server ends, the worker stops waiting for running requests before the arbiter
        stops waiting for the worker. So the worker has time to close the memory."""
        self._lingering: deque[Any] = deque()  # connections after their last response
        self._settling = Settling()
        self._pause = AcceptPause()
        self.cfg.set("graceful_timeout", FINISH_SECONDS)
        share_processors(self.cfg.workers)
        super().init_process()

    def init_signals(self) -> None:
        """Install the signal handlers, but ignore SIGINT and SIGHUP. A terminal sends these signals to all processes,
        and the arbiter handles them."""
        super().init_signals()
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGTERM. Stop the upload jobs first, so that the worker does not wait for clients that follow them."""
        self.app.stop_jobs()
        super().handle_exit(sig, frame)

    def load_wsgi(self) -> None:
        """Load the application. If this fails, send the error to the arbiter and stop the arbiter, because another
        worker would fail with the same error."""
        try:
            super().load_wsgi()
        except AgentFormerError as error:
            self.app.failure.send(error)
            os.kill(self.ppid, signal.SIGTERM)
            sys.exit(0)

    def run(self) -> None:
        """Serve requests until the worker ends, and close the memory. The first worker reports the start."""
        if self.age == 1:
            self.app.ready()
        super().run()
        self.app.close()
        if self.nr_conns > 0:  # threads that do not end would keep the process alive
            logging.shutdown()
            os._exit(0)

    def notify(self) -> None:
        """Signal the arbiter that the worker is alive, and share the number of active connections with the other
        workers."""
        super().notify()
        now = time.monotonic()
        if self.alive and (now - self._counted_at > _COUNT_SECONDS or self.nr_conns != self._counted):
            self._counted_at, self._counted = now, self.nr_conns
            recent = now + _KEEP_ALIVE_SECONDS - _ACTIVE_SECONDS  # the time limit of a connection idle for a second
            active = sum(1 for _ in takewhile(lambda conn: conn.timeout > recent, reversed(self.keepalived_conns)))
            self._active = self.nr_conns - len(self.keepalived_conns) + active
            self.app.connections.set(self.slot, self._active)

    def accept(self, listener: socket.socket) -> None:
        """Accept a new connection, unless another worker has fewer active connections."""
        if self.alive and self.app.connections.should_defer(self.slot):
            time.sleep(_DEFER_PAUSE)
            return
        before = self.nr_conns
        try:
            super().accept(listener)
        except OSError as error:
            self._pause.wait(error)
        if self.alive and self.nr_conns > before:
            self._active += 1
            self.app.connections.set(self.slot, self._active)

    def set_accept_enabled(self, enabled: bool) -> None:
        """Start or stop accepting new connections. If the worker ends, first accept the waiting connections, then close
        the listening sockets, and shorten the time limit of connections without a request."""
        super().set_accept_enabled(enabled)
        if enabled or self.alive:
            return
        self.app.connections.leave(self.slot)
        for listener in self.sockets:
            before = -1
            while before < self.nr_conns:
                before = self.nr_conns
                self.accept(listener)
            listener.close()
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, time.monotonic() + _IDLE_AT_END_SECONDS)

    def enqueue_req(self, conn: Any) -> None:
        """Give the connection to a thread when the headers of a request are complete. Until then, it uses no thread."""
        if isinstance(conn.sock, TimedSocket):
            conn.sock.expect_headers(conn.parser.unreader.take_buffered())
        else:
            conn.sock = TimedSocket.replacing(conn.sock)
        conn.sock.setblocking(False)
        if conn.sock.receive_headers():
            self._enqueue(conn)
            return
        conn.timeout = time.monotonic() + (HTTP_API.headers if self.alive else _IDLE_AT_END_SECONDS)
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def on_pending_socket_readable(self, conn: Any, client: TimedSocket) -> None:
        """Read more of the headers. When the headers are complete, give the connection to a thread."""
        if client.receive_headers():
            self.poller.unregister(client)
            self.pending_conns.remove(conn)
            self._enqueue(conn)

    def _enqueue(self, conn: Any) -> None:
        conn.data_ready = True  # else the thread would wait for bytes that were read already
        super().enqueue_req(conn)

    def handle(self, conn: Any) -> Any:
        """Answer a request. If the first bytes of the next request have arrived with this one, give these bytes back to
        the parser, because the operating system will not report them again. Return whether the connection stays open.
        """
        keep = super().handle(conn)
        if keep and (rest := conn.sock.take_buffer()):
            unreader = conn.parser.unreader
            unreader.unread(unreader.take_buffered() + rest)
        return keep

    def _keepalive_after(self, conn: Any, keepalive: bool) -> bool:
        """Return whether the connection can be used again: the client allows it, and the rest of the body has arrived.
        The rest is read in two attempts, because the system can pause the thread until the first deadline has passed.
        """
        attempts = range(2) if keepalive else ()
        return any(conn.parser.finish_body(deadline=time.monotonic() + _DRAIN_SECONDS) for _ in attempts)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Keep the connection for the next request, or close it. Before a connection is closed, the client has a short
        time to read the response. This waiting needs no thread."""
        if not fs.cancelled() and not fs.exception() and fs.result():
            super().finish_request(conn, fs)
        elif conn.sock.end_writing():
            conn.timeout = time.monotonic() + HTTP_API.linger
            self._lingering.append(conn)
            self.poller.register(conn.sock, EVENT_READ, partial(self._on_lingering_readable, conn))
        else:
            self._close(conn)

    def _on_lingering_readable(self, conn: Any, client: TimedSocket) -> None:
        if not client.discard():
            self._lingering.remove(conn)
            self.poller.unregister(client)
            self._close(conn)

    def murder_pending(self) -> None:
        """Close the connections whose time limit has passed."""
        super().murder_pending()
        while self._lingering and self._lingering[0].timeout <= time.monotonic():
            conn = self._lingering.popleft()
            self.poller.unregister(conn.sock)
            self._close(conn)

    def _close(self, conn: Any) -> None:
        self.nr_conns -= 1
        conn.close()

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Answer a request. The time limit for its body starts now. Bytes that arrived with the headers count as
        received."""
        received = conn.parser.unreader.take_buffered()  # the beginning of the body
        conn.parser.unreader.unread(received)
        conn.sock.expect_body(len(received))
        self._settling.count()
        return super().handle_request(req, conn)

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """Answer invalid HTTP with a problem document, which repeats nothing from the request."""
        for error, status, title in _HTTP_ERRORS:
            if isinstance(exc, error):
                document = problem_json(status, title.lower().replace(" ", "-"), title=title)
                with contextlib.suppress(OSError):
                    write_nonblock(client, Problem(status, document).as_http())
                return
        super().handle_error(req, client, addr, exc)
