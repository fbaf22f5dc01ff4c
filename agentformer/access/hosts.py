"""Listening sockets, the host and the origin of HTTP requests, and the authentication of requests.

A request with a key gets the rights of the key. If no key was ever made, requests from this machine get all rights, and
the server does not listen at an address that other machines can reach.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from agentformer.access.keys import KeyStore
from agentformer.access.permissions import EVERYTHING, Grant
from agentformer.errors import InvalidInput, Unauthenticated

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/?#@\\\s]+)(:[0-9]{0,5})?")  # the port may be empty (RFC 3986, 3.2.3)
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_MAKE_KEY = "make a key with: agentformer keys add NAME"
_PROXY_HEADERS = (  # headers of proxies; only their presence counts, because a client can send any value
    *("Forwarded", "Forwarded-For", "Via", "X-Forwarded", "X-Forwarded-By", "X-Forwarded-For", "X-Forwarded-Host"),
    *("X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Proto", "X-Forwarded-Protocol", "X-Forwarded-Scheme"),
    *("X-Forwarded-Server", "X-Forwarded-Ssl", "X-Original-Forwarded-For", "X-Original-Host", "X-Real-IP"),
    *("X-Client-IP", "X-Cluster-Client-IP", "X-ProxyUser-IP", "True-Client-IP", "Fastly-Client-IP"),
    *("X-Envoy-External-Address", "X-Azure-ClientIP", "X-Amzn-Trace-Id", "CDN-Loop"),
    *("CF-Connecting-IP", "CF-Connecting-IPv6", "CF-Ray", "Tailscale-User-Login"),
)
_PROXY_NAMES = frozenset(map(str.lower, _PROXY_HEADERS))


class Headers(Protocol):
    """The headers of an HTTP request. The case of a header name does not matter."""

    def get(self, key: str, /) -> str | None: ...

    def items(self) -> Iterable[tuple[str, str]]: ...


@dataclass(frozen=True, slots=True)
class Host:
    """The host to which a client has sent a request, without the port."""

    name: str  # in lower case; an IPv6 address has no brackets; "" if the header is invalid
    literal: bool = False  # True for an IP address, which no name server can redirect


def authenticate(keys: KeyStore, headers: Headers, peer: str | None, host: str = "localhost") -> Grant:
    """Return the rights of an HTTP request. `peer` is the IP address of the sender. `host` is the value of the header
    `Host`; a caller that has already checked this header omits `host`. Raises `Unauthenticated` if the request has no
    valid key but needs one, `Busy` after too many requests, and `StoreError` if the keys cannot be read."""
    scheme, _, secret = (headers.get("Authorization") or "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return keys.grant_of(secret.strip(), peer or "")
    if scheme or keys.ever_made:
        raise Unauthenticated("a key is required; send the key in the header Authorization: Bearer KEY")
    if any(name.lower() in _PROXY_NAMES for name, _ in headers.items()):
        raise Unauthenticated(f"a request through a proxy needs a key, because the real sender is unknown; {_MAKE_KEY}")
    if not (is_local(peer) and is_local(host_of(host).name)):
        raise Unauthenticated(f"requests from other machines need a key, and no key exists yet; {_MAKE_KEY}")
    return EVERYTHING


def check_bind_address(host: str, address: str, keys: KeyStore) -> None:
    """Raise `InvalidInput` if other machines can reach the address of `host` while no key exists."""
    if not keys.ever_made and not is_local(address):
        raise InvalidInput("host", f"{host} can be reached by other machines, so a key must exist first; {_MAKE_KEY}")


@functools.lru_cache(maxsize=256)
def host_of(header: str | None) -> Host:
    """Parse the value of the header `Host`, and return the host without the port. The name of the returned host is
    empty if the header is missing or not valid."""
    match = _HOST.fullmatch((header or "").lower())
    if match is None:
        return Host("")
    name = match[1].strip("[]").removesuffix(".")
    return Host(name, ip_address(name) is not None)


@functools.lru_cache(maxsize=256)
def is_local(name: str | None) -> bool:
    """Return whether the name is `localhost` or a loopback IP address."""
    address = ip_address(name or "")
    return name == "localhost" or (address is not None and address.is_loopback)


def hosts_in(text: str) -> frozenset[str]:
    """Return the host names in the setting `allowed_hosts`. Raises `InvalidInput` if a name is not valid."""
    hosts = {host.strip("[]") for host in text.lower().replace(",", " ").split()}
    for host in hosts:
        if ip_address(host) is None and not _NAME.fullmatch(host):
            problem = f"{host[:80]!r} is not a host name; write a host name such as memory.example.org"
            raise InvalidInput("allowed_hosts", f"{problem}, without http:// and without a port")
    return frozenset(hosts)


def networks_in(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Return the networks in the setting `trusted_proxies`: addresses, or networks such as `10.0.0.0/8`. Raises
    `InvalidInput` if one is not valid."""
    try:
        return tuple(map(ipaddress.ip_network, text.replace(",", " ").split()))
    except ValueError as error:
        raise InvalidInput("trusted_proxies", f"{error}; write addresses or networks such as 10.0.0.0/8") from None


def origins_in(text: str) -> frozenset[str]:
    """Parse the setting `cors_origins`, and return the set of origins, such as `https://app.example.org`. Raises
    `InvalidInput` if an origin is not valid."""
    origins = {origin.removesuffix("/") for origin in text.lower().replace(",", " ").split()}
    for origin in origins:
        if not origin_host(origin):
            problem = f"{origin[:80]!r} is not an origin; write an origin such as https://app.example.org:8443"
            raise InvalidInput(
                "cors_origins", f"{problem}; * is not allowed, because any web page could use this server"
            )
    return frozenset(origins)


def origin_host(origin: str) -> str:
    """Return the host and the port of an origin, in the form of the header `Host`: `app.example.org:8443`. Return "" if
    the origin is `null` or not valid."""
    try:
        parts = urlsplit(origin.lower())
        usable = (
            parts.hostname and not parts.netloc.endswith(":") and f"{parts.scheme}://{parts.netloc}" == origin.lower()
        )
    except ValueError:
        return ""
    host = host_of(parts.netloc)
    return parts.netloc if usable and (host.literal or _NAME.fullmatch(host.name)) else ""


def ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is, or None. An IPv4 address that is written as an IPv6 address is an IPv4
    address. An address with a zone, which may be any text, is none."""
    try:
        address = ipaddress.ip_address(text if "%" not in text else "")
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


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
