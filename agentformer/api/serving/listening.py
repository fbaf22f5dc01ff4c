"""The socket that is served on, and who could reach it."""

from __future__ import annotations

import os
import socket
from typing import Any

from agentformer.access.hosts import check_bind_address, hosts_in, origins_in
from agentformer.access.keys import KeyStore
from agentformer.errors import InvalidInput
from agentformer.settings import Settings

FINISH_SECONDS = 20  # that running requests have after a signal: less than most supervisors wait before they kill
_BACKLOG = 512  # connections that wait to be taken: more than clients start at once while a worker is busy


def listen(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say. Raises `InvalidInput` for an address that cannot be used, or that
    others reach while there is no key, `StoreDamaged` and `StoreError` for keys that cannot be read."""
    hosts_in(settings.allowed_hosts), origins_in(settings.cors_origins)  # told here once, and not by each worker
    family, kind, protocol, address = _resolved(settings)
    check_bind_address(settings.host, str(address[0]), KeyStore(settings.index_dir))
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        told = f"{_shown(str(address[0]))}:{settings.port} cannot be used: {error.strerror or error}"
        raise InvalidInput("port", f"{told}; choose another") from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{_shown(host)}:{port}"


def _resolved(settings: Settings) -> tuple[int, int, int, Any]:
    host = "127.0.0.1" if settings.host == "localhost" else settings.host
    try:
        found = socket.getaddrinfo(host or ".", settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise InvalidInput("host", f"{host[:80]!r} is no address of this machine; use 127.0.0.1") from None
    family, kind, protocol, _, address = found[0]
    return family, kind, protocol, address


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
