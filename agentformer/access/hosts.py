"""The host and the origin of HTTP requests, and the settings that list hosts, origins and proxies."""

from __future__ import annotations

import functools
import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentformer.errors import InvalidInput

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/?#@\\\s]+)(:[0-9]{0,5})?")  # the port may be empty (RFC 3986, 3.2.3)
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


@dataclass(frozen=True, slots=True)
class Host:
    """The host to which a client has sent a request, without the port."""

    name: str  # in lower case; an IPv6 address has no brackets; "" if the header is invalid
    literal: bool = False  # True for an IP address, which no name server can redirect


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
