"""gunicorn: one process watches over others, each of which has the memory open and answers with threads.

A thread takes a connection when the headers of a request are whole; reads the body, and answers. So that clients who
send or read slowly, or not at all, do not hold all threads, every connection is a `PatientSocket`.
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
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from selectors import EVENT_READ
from types import FrameType
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.http.errors import (
    ExpectationFailed,
    LimitRequestHeaders,
    LimitRequestLine,
    ParseException,
    UnsupportedTransferCoding,
)
from gunicorn.util import write_nonblock
from gunicorn.workers.gthread import ThreadWorker
from werkzeug.exceptions import BadRequest

from agentformer.api.app import close_app, create_app, stop_jobs
from agentformer.api.request_log import log_requests_to
from agentformer.api.serving import timeouts as patience
from agentformer.api.serving.listening import FINISH_SECONDS, listen, url_of
from agentformer.api.serving.startup_pipe import Failure
from agentformer.api.serving.timeouts import HeadersTooLong, PatientSocket
from agentformer.errors import AgentFormerError
from agentformer.settings import Settings

_CLOSE_SECONDS = 10  # for a process to close its memory after its last request
_WEDGED_SECONDS = 300  # without a sign of life; loading a model must fit in, and takes no more
_KEEP_SECONDS = 30  # that an idle connection stays open; it costs no thread
_SILENT_SECONDS = 2.0  # that a connection without a request stays open at the end
_DRAIN_SECONDS = 0.1  # for the rest of a body that nobody wants, so that the connection can be used again
_REFUSED = (  # the first class that fits decides
    (LimitRequestLine, 414, "URI Too Long"),
    (LimitRequestHeaders, 431, "Request Header Fields Too Large"),
    (HeadersTooLong, 431, "Request Header Fields Too Large"),
    (ExpectationFailed, 417, "Expectation Failed"),
    (UnsupportedTransferCoding, 501, "Not Implemented"),
    (ParseException, 400, "Bad Request"),
)


def serve(settings: Settings, started: Callable[[str], None] = lambda address: None) -> None:
    """See `agentformer.api.serving.serve`. Ends by `SystemExit` in the processes that it makes, and where one of them
    fails without an error of ours."""
    listener = listen(settings)
    url, failure, watcher = url_of(listener), Failure(), os.getpid()
    application = _Application(settings, listener.detach(), failure, lambda: started(url))
    try:
        _Watcher(application).run()
    except SystemExit as ended:
        if os.getpid() != watcher:
            raise
        if error := failure.told():
            raise error from None
        if ended.code:
            raise
    finally:
        failure.close()


class _Application(BaseApplication):  # type: ignore[misc]
    """What gunicorn runs. The memory is opened by each process that answers, and never before it is forked off:
    neither databases nor the threads of a model survive that."""

    def __init__(self, settings: Settings, listener: int, failure: Failure, ready: Callable[[], None]) -> None:
        self.settings = settings
        self.failure = failure
        self.ready = ready
        self._listener = listener
        self._flask: Flask | None = None
        super().__init__()

    def load_config(self) -> None:
        for name, value in {
            "bind": f"fd://{self._listener}",
            "workers": self.settings.workers,
            "threads": self.settings.threads,
            "worker_class": _Worker,
            "timeout": _WEDGED_SECONDS,
            "graceful_timeout": FINISH_SECONDS + _CLOSE_SECONDS,
            "keepalive": _KEEP_SECONDS,
            "limit_request_line": 8190,
            "forwarded_allow_ips": "",  # nobody is trusted to say who asks
            "sendfile": False,  # it would go past our socket
            "control_socket_disable": True,
            "loglevel": "error",  # its warnings quote what clients send
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        log_requests_to(sys.stderr)
        self._flask = app = create_app(self.settings)

        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            environ["wsgi.input"] = _Body(environ["wsgi.input"])
            return app.wsgi_app(environ, start_response)

        return answer

    def stop_jobs(self) -> None:
        if self._flask is not None:
            stop_jobs(self._flask)

    def close(self) -> None:
        if self._flask is not None:
            close_app(self._flask)


class _Watcher(Arbiter):  # type: ignore[misc]
    """Ends in good order by SIGTERM, SIGINT and, unless it is to be ignored as by `nohup`, SIGHUP; a second SIGINT
    hurries."""

    def init_signals(self) -> None:
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        super().init_signals()
        if ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def handle_int(self) -> None:
        self.handle_term()

    def handle_hup(self) -> None:
        self.handle_term()


class _Worker(ThreadWorker):  # type: ignore[misc]
    def init_process(self) -> None:
        self._parting: deque[Any] = deque()  # connections that are answered for the last time
        self.cfg.set("graceful_timeout", FINISH_SECONDS)  # of this process alone: the watcher waits for longer
        super().init_process()

    def init_signals(self) -> None:
        super().init_signals()
        for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to everybody; the watcher sees to it
            signal.signal(number, signal.SIG_IGN)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.app.stop_jobs()  # else whoever follows one would be waited for
        super().handle_exit(sig, frame)

    def load_wsgi(self) -> None:
        try:
            super().load_wsgi()
        except AgentFormerError as error:
            self.app.failure.tell(error)
            os.kill(self.ppid, signal.SIGTERM)  # instead of another process that fails the same way
            sys.exit(0)

    def run(self) -> None:
        if self.age == 1:
            self.app.ready()
        super().run()
        self.app.close()
        if self.nr_conns > 0:  # threads that do not end would keep the process
            logging.shutdown()
            os._exit(0)

    def set_accept_enabled(self, enabled: bool) -> None:
        """At the end, take who has connected already, and let nobody else wait in vain."""
        super().set_accept_enabled(enabled)
        if enabled or self.alive:
            return
        for listener in self.sockets:
            before = -1
            while before < self.nr_conns:
                before = self.nr_conns
                self.accept(listener)
            listener.close()
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, time.monotonic() + _SILENT_SECONDS)

    def enqueue_req(self, conn: Any) -> None:
        """A connection gets a thread when the headers of a request are here, and not before."""
        if isinstance(conn.sock, PatientSocket):
            conn.sock.expect_headers(conn.parser.unreader.take_buffered())
        else:
            conn.sock = PatientSocket.instead_of(conn.sock)
        conn.sock.setblocking(False)
        if conn.sock.gather():
            self._answer(conn)
            return
        conn.timeout = time.monotonic() + (patience.HEADER_SECONDS if self.alive else _SILENT_SECONDS)
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def on_pending_socket_readable(self, conn: Any, client: PatientSocket) -> None:
        if client.gather():
            self.poller.unregister(client)
            self.pending_conns.remove(conn)
            self._answer(conn)

    def _answer(self, conn: Any) -> None:
        conn.data_ready = True  # else the thread would wait for what is read already
        super().enqueue_req(conn)

    def handle(self, conn: Any) -> Any:
        keep = super().handle(conn)
        if keep and (ahead := conn.sock.read_ahead()):
            unreader = conn.parser.unreader
            unreader.unread(unreader.take_buffered() + ahead)  # where it is looked for, before the socket is watched
        return keep

    def _keepalive_after(self, conn: Any, keepalive: bool) -> bool:
        return bool(keepalive and conn.parser.finish_body(deadline=time.monotonic() + _DRAIN_SECONDS))

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Connections that are not kept part without a thread."""
        if not fs.cancelled() and not fs.exception() and fs.result():
            super().finish_request(conn, fs)
        elif conn.sock.part():
            conn.timeout = time.monotonic() + patience.LINGER_SECONDS
            self._parting.append(conn)
            self.poller.register(conn.sock, EVENT_READ, partial(self._on_parting_readable, conn))
        else:
            self._close(conn)

    def _on_parting_readable(self, conn: Any, client: PatientSocket) -> None:
        if not client.drop():
            self._parting.remove(conn)
            self.poller.unregister(client)
            self._close(conn)

    def murder_pending(self) -> None:
        super().murder_pending()
        while self._parting and self._parting[0].timeout <= time.monotonic():
            conn = self._parting.popleft()
            self.poller.unregister(conn.sock)
            self._close(conn)

    def _close(self, conn: Any) -> None:
        self.nr_conns -= 1
        conn.close()

    def handle_request(self, req: Any, conn: Any) -> Any:
        conn.sock.expect_body()
        return super().handle_request(req, conn)

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """What is no HTTP is told as every other problem is, and quotes nothing."""
        for kind, status, title in _REFUSED:
            if isinstance(exc, kind):
                with contextlib.suppress(OSError):
                    write_nonblock(client, _problem(status, title))
                return
        super().handle_error(req, client, addr, exc)


class _Body:
    """A body whose faults are told as those of the request."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int = -1) -> bytes:
        return self._checked(self._body.read, size)

    def readline(self, size: int = -1) -> bytes:
        return self._checked(self._body.readline, size)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    @staticmethod
    def _checked(read: Callable[[int], bytes], size: int) -> bytes:
        try:
            return read(size)
        except ParseException:
            raise BadRequest("the body is not sent in chunks as HTTP has them") from None


def _problem(status: int, title: str) -> bytes:
    kind = title.lower().replace(" ", "-")
    body = json.dumps({"type": f"urn:agentformer:problem:{kind}", "title": title, "status": status})
    head = (
        f"HTTP/1.1 {status} {title}\r\nConnection: close\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode("ascii")
