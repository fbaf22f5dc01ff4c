"""The sockets at which servers listen. If no key was ever made, a server does not listen at an address that other
machines can reach."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from agentformer.access.authentication import MAKE_KEY
from agentformer.access.hosts import is_local
from agentformer.access.keys import KeyStore
from agentformer.errors import InvalidInput


def listen(host: str, port: int, keys: KeyStore, *, backlog: int, protected: bool = False) -> socket.socket:
    """Return a socket that listens at `host` and `port`. If `port` is 0, the system chooses a free port. `backlog` is
    the number of connections that may wait to be accepted. Raises `InvalidInput` if the address cannot be used, or if
    other machines can reach it while no key exists, unless `protected` is True: requests then need a token anyway.
    Raises `StoreDamaged` or `StoreError` if the keys cannot be read."""
    family, address = _resolve(host, port)
    if not protected:
        check_bind_address(host, str(address[0]), keys)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on other systems, this option would allow two servers on the same port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _not_of_this_machine(host) from None
        message = f"{_bracketed(str(address[0]))}:{port} cannot be used: {error.strerror or error}"
        raise InvalidInput("port", f"{message}; choose another address or port") from None
    return listener


def passed_listener(number: int, keys: KeyStore) -> socket.socket:
    """Return the listening socket with this file number, which systemd has passed on; systemd goes on listening while
    the server is restarted. Raises `InvalidInput` if it is not a TCP socket, or if other machines can reach it while no
    key exists."""
    listener = socket.socket(fileno=number)
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        raise InvalidInput("host", "the socket of systemd is not a TCP socket; set ListenStream to an address and port")
    address = str(listener.getsockname()[0])
    check_bind_address(address, address, keys)
    return listener


def check_bind_address(host: str, address: str, keys: KeyStore) -> None:
    """Raise `InvalidInput` if other machines can reach the address of `host` while no key exists."""
    if not keys.ever_made and not is_local(address):
        raise InvalidInput("host", f"{host} can be reached by other machines, so a key must exist first; {MAKE_KEY}")


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket, without a slash at the end."""
    host, port = listener.getsockname()[:2]
    return f"http://{_bracketed(host)}:{port}"


def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Return the address family and the socket address for a host and a port. Raises `InvalidInput` if the host is not
    an address of this machine."""
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
