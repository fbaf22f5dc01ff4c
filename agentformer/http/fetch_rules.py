"""The rules for fetching documents from URLs: the allowed hosts and addresses, and the URL that identifies a
document."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from agentformer.errors import FetchRefused, InvalidInput

DEFAULT_PORTS = {"http": 80, "https": 443}
_LONGEST = 4_000  # characters of a URL
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_PATTERN = re.compile(r"(\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::([1-9]\d{0,4}))?")
# Parameters of a query that give access. They are sent, but they are not a part of the document's identity.
_SECRET = re.compile(
    r"x-amz-.*|x-goog-.*|sig|signature|.*token|.*secret|.*password|.*passwd|(?:api|access)?[_-]?key|auth|authorization",
    re.IGNORECASE,
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # addresses of IPv4 in IPv6 (RFC 6052)
_UNICAST6 = ipaddress.IPv6Network("2000::/3")  # the only part of IPv6 for the public internet
# The special-purpose registries of IANA (RFC 6890). They are listed here because the lists in the `ipaddress` module
# differ between Python versions. The few addresses in them that may be public, such as 192.0.0.9, serve no documents.
_SPECIAL4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
_SPECIAL6 = tuple(
    ipaddress.IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)


class Target(NamedTuple):
    """The parts of a URL. `path` includes the query."""

    scheme: str
    host: str  # in lower case and ASCII; an IPv6 address without brackets
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The host, and the port if it is not the default port of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The URL for messages, without the query."""
        return f"{self.scheme}://{self.authority}{self.path.partition('?')[0]}"

    @property
    def identity(self) -> str:
        """The URL that identifies a document: without a fragment and without secret parameters, such as tokens."""
        path, mark, query = self.path.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        kept = [(name, value) for name, value in pairs if not _SECRET.fullmatch(name)]
        if len(kept) < len(pairs):
            query = urlencode(kept)
            mark = "?" if query else ""
        return f"{self.scheme}://{self.authority}{path}{mark}{query}"


class HostPattern(NamedTuple):
    """A pattern of hosts: a name, "*.NAME" for all subdomains of a name, or "*" for all hosts. Without a port,
    the pattern matches the default port of the scheme."""

    host: str
    port: int | None = None

    def matches(self, target: Target) -> bool:
        """Return whether the host and the port of the target match."""
        if target.port != (self.port or DEFAULT_PORTS[target.scheme]):
            return False
        suffix = self.host.removeprefix("*")
        return target.host.endswith(suffix) if self.host.startswith("*") else target.host == self.host.strip("[]")


def is_url(text: object) -> bool:
    """Return whether a text is the URL of a document, and not a path."""
    return isinstance(text, str) and bool(re.match(r"https?://", text, re.IGNORECASE))


def parse_url(url: str) -> Target:
    """Return the parts of a URL. Raises `InvalidInput` if it is no URL of HTTP or HTTPS, or contains a user name or
    a password."""
    if not isinstance(url, str) or len(url) > _LONGEST or not url.isprintable():
        raise InvalidInput("url", f"must be a URL with at most {_LONGEST} printable characters")
    try:
        parts = urlsplit(url.strip())
        host = (parts.hostname or "").rstrip(".")
        port = parts.port if parts.port is not None else DEFAULT_PORTS.get(parts.scheme, 0)
        host = ipaddress.IPv6Address(host).compressed if ":" in host else host.encode("idna").decode("ascii").lower()
    except (ValueError, UnicodeError):
        raise InvalidInput("url", "is not a valid URL; check its host and its port") from None
    if parts.scheme not in DEFAULT_PORTS or not port or not (":" in host or _HOST.fullmatch(host)):
        raise InvalidInput("url", "must be a URL such as https://example.org/report.pdf")
    if "@" in parts.netloc:
        raise InvalidInput("url", "contains a user name or a password, which are never sent; remove them")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    query = quote(parts.query, safe="/?%:@!$&'()*+,;=~[]")
    return Target(parts.scheme, host, port, f"{path}?{query}" if query else path)


def parse_hosts(setting: str, text: str) -> tuple[HostPattern, ...]:
    """Return the patterns of a list such as "example.org, *.example.net, 127.0.0.1:8000". Raises `InvalidInput`, which
    names the `setting`, for an invalid pattern."""
    found = []
    for word in text.replace(",", " ").lower().split():
        match = _PATTERN.fullmatch(word)
        if not match or int(match[2] or 1) > 65_535:
            raise InvalidInput(setting, "must be hosts such as example.org, *.example.net, localhost:8000, or *")
        found.append(HostPattern(match[1], int(match[2]) if match[2] else None))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class FetchRules:
    """The hosts from which documents may be fetched, and the limits of one fetch. `hosts` is None if every host is
    allowed. Only `private_hosts` may have private, loopback and other special addresses. `prefix` is the beginning of
    the names of the settings that errors name."""

    hosts: tuple[HostPattern, ...] | None = None
    private_hosts: tuple[HostPattern, ...] = ()
    seconds: float = 60.0  # time limit for the whole fetch, with its redirects
    max_bytes: int = 256 << 20
    redirects: int = 5
    prefix: str = "url"

    def refuse_host(self, target: Target) -> None:
        """Raise `FetchRefused` if the host of the target is not allowed."""
        allowed = (*(self.hosts or ()), *self.private_hosts)
        if self.hosts is not None and not any(pattern.matches(target) for pattern in allowed):
            raise FetchRefused(
                f"{target.shown} was not requested: the host {target.authority} is not in the setting url_hosts"
            )

    def refuse_address(self, target: Target, address: str) -> None:
        """Raise `FetchRefused` if the host of the target has a special address that is not allowed for this host."""
        if not is_public(address) and not any(pattern.matches(target) for pattern in self.private_hosts):
            raise FetchRefused(
                f"{target.shown} was not requested: {target.authority} has a private, loopback or other special "
                f"address; to allow it, add the host to the setting {self.prefix}_private_hosts"
            )


@dataclass(frozen=True, slots=True)
class Download:
    """A fetched document. `url` identifies the document: it is the requested URL without secrets, even after a
    redirect. `name` is the last part of the path, or else the host."""

    url: str
    name: str
    data: bytes


def is_public(address: str) -> bool:
    """Return whether an IP address is public. An IPv6 address that contains an IPv4 address (mapped, or of NAT64) is
    public only if the IPv4 address is public. Tunnel addresses (6to4, Teredo) are never public."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None and ip not in _NAT64:
            return ip in _UNICAST6 and not any(ip in network for network in _SPECIAL6)
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return not any(ip in network for network in _SPECIAL4)
