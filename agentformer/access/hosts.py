"""Names of hosts and origins, as requests and settings give them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentformer.errors import InvalidInput

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:/?#@\\\s]+)(:[0-9]{0,5})?")  # the port may be empty (RFC 3986, 3.2.3)
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


@dataclass(frozen=True, slots=True)
class Host:
    """A host as it was asked for, without its port."""

    name: str  # in small letters; an address without brackets; "" for what is no host
    literal: bool = False  # an address, so that no name server had a say in it


def host_of(header: str | None) -> Host:
    """What the header `Host` names."""
    found = _HOST.fullmatch((header or "").lower())
    if found is None:
        return Host("")
    name = found[1].strip("[]").removesuffix(".")
    return Host(name, _address(name) is not None)


def is_local(name: str | None) -> bool:
    """Whether this is `localhost` or an address of this machine alone."""
    address = _address(name or "")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return name == "localhost" or (address is not None and address.is_loopback)


def hosts_in(text: str) -> frozenset[str]:
    """The hosts of the setting `allowed_hosts`. Raises `InvalidInput`."""
    hosts = {host.strip("[]") for host in text.lower().replace(",", " ").split()}
    for host in hosts:
        if _address(host) is None and not _NAME.fullmatch(host):
            raise InvalidInput(
                "allowed_hosts",
                f"{host[:80]!r} is not the name of a host; write names such as memory.example.org, "
                "without http:// and without a port",
            )
    return frozenset(hosts)


def origins_in(text: str) -> frozenset[str]:
    """The origins of the setting `cors_origins`, as browsers write them. Raises `InvalidInput`."""
    origins = {origin.removesuffix("/") for origin in text.lower().replace(",", " ").split()}
    for origin in origins:
        if not origin_host(origin):
            raise InvalidInput(
                "cors_origins",
                f"{origin[:80]!r} is not an origin; write each as https://app.example.org, with its "
                "port if it has one; * is not taken, since every page could ask then",
            )
    return frozenset(origins)


def origin_host(origin: str) -> str:
    """Host and port of an origin; "" for what is none, such as `null`."""
    try:
        parts = urlsplit(origin.lower())
        usable = (
            parts.hostname and not parts.netloc.endswith(":") and f"{parts.scheme}://{parts.netloc}" == origin.lower()
        )
    except ValueError:
        return ""
    host = host_of(parts.netloc)
    return parts.netloc if usable and (host.literal or _NAME.fullmatch(host.name)) else ""


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
