"""Listening sockets: an address that other machines reach is opened only if there is a key."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from agentformer.access.hosts import check_bind_address
from agentformer.access.keys import KeyStore
from agentformer.errors import InvalidInput


def listen(host: str, port: int, keys: KeyStore, *, backlog: int) -> socket.socket:
    """Return a socket that listens at `host` and `port`; port 0 takes a free one.

    Raises `InvalidInput` for an address that cannot be used, or that other machines reach while there is no key.
    Raises `StoreDamaged` and `StoreError` for keys that cannot be read.
    """
    family, address = _resolve(host, port)
    check_bind_address(host, str(address[0]), keys)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere this option lets two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _not_of_this_machine(host) from None
        message = f"{_bracketed(str(address[0]))}:{port} cannot be used: {error.strerror or error}; choose another"
        raise InvalidInput("port", message) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket, without a slash at the end."""
    host, port = listener.getsockname()[:2]
    return f"http://{_bracketed(host)}:{port}"


def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Return the address family and the socket address. Raises `InvalidInput`."""
    name = "127.0.0.1" if host == "localhost" else host
    try:
        results = socket.getaddrinfo(name or ".", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise _not_of_this_machine(host) from None
    return results[0][0], results[0][4]


def _not_of_this_machine(host: str) -> InvalidInput:
    return InvalidInput("host", f"{host[:80]!r} is not an address of this machine; use 127.0.0.1")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
