"""Runs the HTTP server until SIGTERM: with gunicorn on systems that support it, otherwise with waitress."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from agentformer.access.hosts import hosts_in, networks_in, origins_in
from agentformer.builders import open_keys
from agentformer.errors import is_passing
from agentformer.registry import lookup
from agentformer.servers.listening import listen, passed_listener
from agentformer.settings import Settings

log = logging.getLogger("agentformer")

FINISH_SECONDS = 20  # seconds for running requests after a signal; less than most supervisors wait before they kill
_FIRST_PASSED = 3  # SD_LISTEN_FDS_START
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
_PAUSE_SECONDS = 0.1  # between two attempts to accept a connection while too many files are open
_WARNING_SECONDS = 60.0
_SETTLED = 500  # requests after which modules, models and indexes are loaded
_BACKLOG = 512  # connections that wait to be accepted: more than clients open at once while a worker is busy


def serve(
    settings: Settings,
    started: Callable[[str], None] = lambda address: None,
    reread: Callable[[], Settings] | None = None,
) -> None:
    """Run the HTTP server until SIGTERM or SIGINT. After the signal, running requests have 20 seconds to finish, and
    then the memory is closed. When the server accepts requests, `started` is called with its URL. If the port is 0, the
    system chooses a free port. At SIGHUP, gunicorn calls `reread`, and new workers with these settings take over.
    Raises `InvalidInput` if the address cannot be used, or if other machines can reach it and no key was ever made.
    Raises an error if the memory cannot be opened."""
    limit_arenas()
    server = settings.server
    if server == "auto":
        server = "gunicorn" if os.name == "posix" and importlib.util.find_spec("gunicorn") else "waitress"
    lookup("servers", server)(settings, started, reread)


def limit_arenas() -> None:
    """Let the threads of this process, and of those that it forks, share two arenas of glibc's allocator, as
    `MALLOC_ARENA_MAX=2` in the environment does. With an arena for each thread, a server of many threads keeps several
    times the memory that it uses. A value in the environment stays."""
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


class Settling:
    """Counts the requests of a server until modules, models and indexes are loaded. Then the objects of this process
    are frozen: collections of garbage do not visit them any more, and so do not stop all threads for up to 200 ms.

    A frozen object that is no longer used is still freed by its reference count. Only frozen objects that refer to each
    other in a circle stay in memory when they are dropped later. This cannot grow: it is at most what was loaded by
    then, most of which lives as long as the process. Only a server does this, because its process is its own."""

    def __init__(self) -> None:
        self._answered = 0

    def count(self) -> None:
        """Count a request. Two threads may add only one together; the number need not be exact, and freezing twice has
        no other effect than freezing once."""
        self._answered += 1
        if self._answered == _SETTLED:
            gc.collect()
            gc.freeze()


class AcceptPause:
    """Waits after an attempt to accept a connection that failed because too many files are open. The connection is
    accepted when another one is closed. Without the pause, the server would try again all the time."""

    def __init__(self) -> None:
        self._next_warning = 0.0  # monotonic clock

    def wait(self, error: OSError) -> None:
        """Log a warning, at most one in a minute, and wait. Raise `error` if it is not an error that passes."""
        if not is_passing(error):
            raise error
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + _WARNING_SECONDS
            log.warning("connections cannot be accepted now and wait: %s", error.strerror)
        time.sleep(_PAUSE_SECONDS)


def check_names(settings: Settings) -> None:
    """Raise `InvalidInput` if the settings contain invalid hosts, origins or proxies."""
    hosts_in(settings.allowed_hosts)
    origins_in(settings.cors_origins)
    networks_in(settings.trusted_proxies)


def open_listener(settings: Settings) -> socket.socket:
    """Return a socket that listens at the address in the settings, or the socket that systemd has passed on. Raises
    `InvalidInput` if the address cannot be used, or if the settings contain invalid hosts, origins or proxies."""
    check_names(settings)
    passed, files = (os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS"))
    with open_keys(settings) as keys:
        if passed == str(os.getpid()) and files == "1":
            return passed_listener(_FIRST_PASSED, keys)
        return listen(settings.host, settings.port, keys, backlog=_BACKLOG)
