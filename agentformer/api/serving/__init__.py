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
    """Serve until SIGTERM or SIGINT. Running requests have 20 seconds to finish. After that, the memory is closed.

    `started` is called with the URL when the server accepts requests. With port 0, the system chooses a free port.
    Raises `InvalidInput` for an address that cannot be used, or that other machines can reach while no key exists. Also
    raises the errors of opening the memory.
    """
    server = settings.server
    if server == "auto":
        server = "gunicorn" if os.name == "posix" and importlib.util.find_spec("gunicorn") else "waitress"
    lookup("servers", server)(settings, started)


def open_listener(settings: Settings) -> socket.socket:
    """Return a socket that listens at the configured address. Raises `InvalidInput` for invalid hosts or origins, and
    the errors of `listen`."""
    hosts_in(settings.allowed_hosts)
    origins_in(settings.cors_origins)
    return listen(settings.host, settings.port, KeyStore(settings.index_dir), backlog=_BACKLOG)
