"""Running the application until SIGTERM: by gunicorn where it runs, else by waitress."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable

from agentformer.access.hosts import hosts_in, listen, origins_in
from agentformer.access.keys import KeyStore
from agentformer.registry import lookup
from agentformer.settings import Settings

FINISH_SECONDS = 20  # for running requests after a signal: less than most supervisors wait before they kill
_BACKLOG = 512  # connections that wait to be accepted: more than clients open at once while a worker is busy


def serve(settings: Settings, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve until SIGTERM or SIGINT; running requests have 20 seconds to finish, then the memory is closed.

    Stored data are never harmed by the end. `started` is called with the URL when the server accepts requests; port 0
    takes a free one. Raises `InvalidInput` for an address that cannot be used, or that other machines reach while
    there is no key, and the errors of opening the memory.
    """
    server = settings.server
    if server == "auto":
        server = "gunicorn" if os.name == "posix" and importlib.util.find_spec("gunicorn") else "waitress"
    lookup("servers", server)(settings, started)


def open_listener(settings: Settings) -> socket.socket:
    """Return a socket that listens where the settings say. Raises `InvalidInput` for wrong hosts and origins too, once
    and not in each worker, and what `listen` raises."""
    hosts_in(settings.allowed_hosts)
    origins_in(settings.cors_origins)
    return listen(settings.host, settings.port, KeyStore(settings.index_dir), backlog=_BACKLOG)
