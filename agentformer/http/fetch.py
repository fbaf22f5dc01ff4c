"""Fetches a document from a URL, or posts data to one. A private or other special address is used only if the rules
allow it. Each request has a time limit.

The host is resolved once, every address is checked, and the connection is made to a checked address, so a name that
changes its address in between has no effect. Each redirect is checked like the first URL. No credentials, cookies or
other data of this machine are sent, and no proxy is used.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

from agentformer._version import __version__
from agentformer.errors import FetchFailed, FetchRefused, InvalidInput
from agentformer.http.client import bounded_socket
from agentformer.http.fetch_rules import Download, FetchRules, HostPattern, Target, parse_url
from agentformer.http.retry_policy import CONNECT_SECONDS, OverLimit, ResponseLimit

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PIECE = 1 << 16
_HEADER_BYTES = 1 << 20  # bytes of all headers and redirects, in addition to the document
_SILENCE = 20.0  # seconds without a byte
_REST_SECONDS = 0.3  # wait for bytes after the announced length, if the server keeps the connection open
_ENCODINGS = {"identity": 0, "gzip": 31, "x-gzip": 31, "deflate": 15}  # with the window bits of zlib; 0: none
_HEADERS = {
    "User-Agent": f"agentformer/{__version__}",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Connection": "close",
}
_NAMED = re.compile(r"\.\w{1,8}$")
_SUFFIXES = {"text/csv": ".csv", "text/markdown": ".md", "text/tab-separated-values": ".tsv"}
_Address = tuple[socket.AddressFamily, Any]  # family, and the address for `connect`


class _Response(NamedTuple):
    location: str  # the target of a redirect, or ""
    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches documents as `rules` allow."""

    rules: FetchRules

    def get(self, url: str, *, allow_private: bool = False, listed: bool = False) -> Download:
        """Return the document at a URL. With `allow_private`, the host of this URL may have a private address, but the
        hosts of redirects may not. With `listed`, only hosts that the rules name are allowed. Raises the errors of
        `fetch`."""
        rules = replace(self.rules, hosts=self.rules.hosts or ()) if listed else self.rules
        if allow_private:
            target = parse_url(url)
            rules = replace(rules, private_hosts=(*rules.private_hosts, HostPattern(target.host, target.port)))
        return fetch(url, rules)


def fetch(url: str, rules: FetchRules) -> Download:
    """Return the document at a URL. Raises `InvalidInput` for an invalid URL, and `FetchRefused` if the rules do not
    allow a host or an address. Raises `FetchFailed` if the server sends no complete document with status 200, if there
    are too many redirects or bytes, or if the fetch takes too long. The messages contain no query and no
    credentials."""
    first = target = parse_url(url)
    limit = _limit(rules)
    for _ in range(rules.redirects + 1):
        rules.refuse_host(target)
        response = _request(target, rules, limit)
        if not response.location:
            return Download(first.identity, _name(first, response.media_type), response.data)
        target = _redirected(target, response.location)
    raise FetchFailed(f"{first.shown} was not requested: there are more than {rules.redirects} redirects")


def post(url: str, body: bytes, headers: Mapping[str, str], rules: FetchRules) -> tuple[int, str]:
    """Send a POST request, and return the status and the header `Retry-After` of the response, or "". The body of the
    response is not read, and a redirect is not followed. Raises the errors of `fetch`, and `FetchRefused` for an
    address without encryption, unless its host is one of `FetchRules.private_hosts`."""
    target, limit = parse_url(url), _limit(rules)
    rules.refuse_host(target)
    if target.scheme == "http" and not any(pattern.matches(target) for pattern in rules.private_hosts):
        raise FetchRefused(f"{target.shown} was not requested: it has no encryption; use https")
    with _exchange(target, rules, limit, "POST", body, headers) as response:
        return response.status, response.getheader("Retry-After", "")


def _limit(rules: FetchRules) -> _Limit:
    limit = _Limit(_SILENCE, rules.seconds, rules.max_bytes + _HEADER_BYTES)
    limit.advice = f"raise the setting {rules.prefix}_seconds"
    return limit


def _redirected(target: Target, location: str) -> Target:
    try:
        following = parse_url(urljoin(f"{target.scheme}://{target.authority}{target.path}", location))
    except (InvalidInput, ValueError):
        raise FetchFailed(f"{target.shown} redirects to an invalid or unsupported address") from None
    if target.scheme == "https" and following.scheme == "http":
        raise FetchRefused(f"{target.shown} redirects to an address without encryption: {following.shown}")
    return following


def _addresses(target: Target, rules: FetchRules, limit: _Limit) -> list[_Address]:
    """Resolve the host of a target, and return its addresses. Raises `FetchRefused` if one of them is not allowed."""
    found: list[Any] = []
    failed: list[Exception] = []

    def resolve() -> None:
        try:
            found.extend(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    # In a thread, because a resolver may wait longer than the limit.
    thread = threading.Thread(target=resolve, daemon=True, name="agentformer-resolve")
    thread.start()
    thread.join(_left(target, limit))
    if thread.is_alive():
        raise FetchFailed(f"{target.shown} was not requested: the host name was not resolved in time")
    addresses = [(family, place) for family, _, _, _, place in found]
    if failed or not addresses:
        raise FetchFailed(f"{target.shown} was not requested: the host name is unknown")
    for _, place in addresses:
        rules.refuse_address(target, str(place[0]))
    return addresses


def _request(target: Target, rules: FetchRules, limit: _Limit) -> _Response:
    """Send one request, and read the response: a document with status 200, or the address of a redirect. Raises
    `FetchFailed` for any other response, and if the response is not complete."""
    with _exchange(target, rules, limit, "GET") as response:
        if response.status in _REDIRECTS and (location := response.getheader("Location")):
            return _Response(location, b"", "")
        if response.status != 200:
            raise FetchFailed(f"{target.shown} returned HTTP {response.status}")
        data = _body(target, response, rules.max_bytes, limit)
        return _Response("", data, response.headers.get_content_type())


@contextmanager
def _exchange(
    target: Target,
    rules: FetchRules,
    limit: _Limit,
    method: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[http.client.HTTPResponse]:
    """Send a request, and yield the response, whose body was not read yet. Raises `FetchFailed` if there is none, or if
    reading it fails."""
    addresses = _addresses(target, rules, limit)
    try:
        with _connected(target, addresses, limit) as sock:
            connection = http.client.HTTPConnection(target.host)
            connection.sock = bounded_socket(sock, limit)
            connection.request(method, target.path, body, {"Host": target.authority, **_HEADERS, **(headers or {})})
            yield connection.getresponse()
    except OverLimit as error:
        advice = f"; {limit.advice}" if error.exceeded == "seconds" else ""
        raise FetchFailed(f"{target.shown} {error}{advice}") from None
    except TimeoutError:
        raise FetchFailed(f"{target.shown} {limit.too_slow()}; {limit.advice}") from None
    except ssl.SSLCertVerificationError as error:
        raise FetchFailed(f"{target.shown} has an untrusted certificate ({error.verify_message})") from None
    except ConnectionRefusedError:
        raise FetchFailed(f"{target.shown} refused the connection") from None
    except (OSError, http.client.HTTPException, ValueError, zlib.error) as error:
        raise FetchFailed(f"{target.shown} sent no complete response ({type(error).__name__})") from None


@contextmanager
def _connected(target: Target, addresses: list[_Address], limit: _Limit) -> Iterator[socket.socket]:
    """Connect to the first address that accepts the connection, and close the connection at the end."""
    sock = _first(target, addresses, limit)
    with sock:
        sock.settimeout(_left(target, limit))
        if target.scheme == "http":
            yield sock
            return
        with ssl.create_default_context().wrap_socket(sock, server_hostname=target.host) as encrypted:
            yield encrypted


def _first(target: Target, addresses: list[_Address], limit: _Limit) -> socket.socket:
    """Return a socket that is connected to the first address that accepts, or raise the error of the last address."""
    failure: OSError | None = None
    for family, place in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(min(_left(target, limit), CONNECT_SECONDS))
            sock.connect(place)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    if isinstance(failure, TimeoutError):
        raise OverLimit(f"did not accept the connection within {CONNECT_SECONDS:.3g} s", "timeout")
    assert failure is not None  # there is at least one address
    raise failure


def _left(target: Target, limit: _Limit) -> float:
    try:
        return limit.left()
    except OverLimit as error:
        raise FetchFailed(f"{target.shown} {error}; {limit.advice}") from None


class _Limit(ResponseLimit):
    """The limits of a fetch. `silence` is the longest time in seconds that a read may wait for the server. A caller may
    change `silence` between reads. `advice` is a part of the message for a request that takes too long."""

    silence = _SILENCE
    advice = ""

    def read(self, receive: Callable[[float], Any], timeout: float | None = None) -> Any:
        """Read from the network by calling `receive(seconds)`, as `ResponseLimit.read` does. `timeout` is the longest
        time of this read in seconds (default: `silence`)."""
        return super().read(receive, self.silence if timeout is None else timeout)


def _pieces(target: Target, response: http.client.HTTPResponse, most: int, limit: _Limit) -> Iterator[bytes]:
    """Yield the bytes of the body. Raises `FetchFailed` if the server sends more or fewer bytes than it announces, or
    announces more than `most` bytes."""
    announced = response.headers.get_all("Content-Length") or []
    left = response.length
    if not response.chunked and (len(set(announced)) > 1 or (announced and left is None)):
        raise FetchFailed(f"{target.shown} announces an invalid length")
    if left is not None and left > most:
        raise FetchFailed(f"{target.shown} has {left:,} bytes; the limit is {most:,} bytes (setting max_file_bytes)")
    if left is None:
        while piece := response.read(_PIECE):
            yield piece
        return
    stream: Any = response.fp  # the response itself would hide bytes after the announced ones
    while left and (piece := stream.read(min(_PIECE, left))):
        left -= len(piece)
        yield piece
    if left:
        raise FetchFailed(f"{target.shown} sent fewer bytes than it announced; fetch it again")
    if _has_more(stream, limit):
        raise FetchFailed(f"{target.shown} sent more bytes than it announced, so the document may be incomplete")


def _has_more(stream: Any, limit: _Limit) -> bool:
    """Return whether the server sends more bytes than it announced."""
    limit.silence = _REST_SECONDS
    try:
        return bool(stream.peek(1))
    except OverLimit as error:
        if error.exceeded == "timeout":
            return False
        raise


def _body(target: Target, response: http.client.HTTPResponse, most: int, limit: _Limit) -> bytes:
    """Return the decompressed body of a response. Raises `FetchFailed` if the body is too large or damaged."""
    encoding = (response.getheader("Content-Encoding") or "identity").strip().lower()
    if encoding not in _ENCODINGS:
        raise FetchFailed(f"{target.shown} compressed its response in a way that was not requested")
    bits = _ENCODINGS[encoding]
    decoder = zlib.decompressobj(bits) if bits else None
    parts, size = [], 0
    for piece in _pieces(target, response, most, limit):
        part = decoder.decompress(piece, most + 1 - size) if decoder else piece
        size += len(part)
        if size > most:
            raise FetchFailed(f"{target.shown} has more than {most:,} bytes, the limit (setting max_file_bytes)")
        parts.append(part)
    if decoder and (not decoder.eof or decoder.unused_data):
        raise FetchFailed(f"{target.shown} sent a damaged compressed response")
    return b"".join(parts)


def _name(target: Target, media_type: str) -> str:
    """Return the name of a document: the last part of the path, or else the host. If the name has no extension, the
    extension of a text format such as CSV is added, because the content does not show the format."""
    name = unquote(target.path.partition("?")[0].rstrip("/").rpartition("/")[2]).replace("/", "_") or target.host
    suffix = "" if _NAMED.search(name) else _SUFFIXES.get(media_type, "")
    return f"{name}{suffix}"
