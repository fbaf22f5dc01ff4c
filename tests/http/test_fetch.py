"""Documents from URLs, fetched from servers on loopback that lie, redirect, wait and never end."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agentformer.errors import FetchFailed, FetchRefused, InvalidInput
from agentformer.http import fetch as fetching
from agentformer.http.fetch import Fetcher, fetch
from agentformer.http.fetch_rules import (
    FetchRules,
    HostPattern,
    Target,
    is_public,
    is_url,
    parse_hosts,
    parse_url,
)
from tests.url_server import Play, Server, answer, serving

pytestmark = pytest.mark.process


def rules(*servers: Server, **options: Any) -> FetchRules:
    hosts = tuple(HostPattern(host, server.port) for server in servers for host in ("127.0.0.1", "localhost"))
    return FetchRules(private_hosts=hosts, **{"seconds": 20.0, "max_bytes": 100_000, **options})


def test_a_document_is_fetched_with_its_name_and_without_data_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(answer()) as server:
        found = fetch(server.url("/a/Länsi%20satama.txt?page=2&token=s3cret#top"), rules(server))
    assert (found.data, found.name) == (b"Ships lie at the pier.", "Länsi satama.txt")
    assert found.url == f"http://127.0.0.1:{server.port}/a/L%C3%A4nsi%20satama.txt?page=2"
    lines = server.requests[0].split("\r\n")
    assert lines[0] == "GET /a/L%C3%A4nsi%20satama.txt?page=2&token=s3cret HTTP/1.1"
    assert {line.partition(":")[0] for line in lines[1:] if line} == {
        *("Host", "User-Agent", "Accept", "Accept-Encoding", "Connection")
    }


def test_a_private_address_is_refused_unless_its_host_is_allowed() -> None:
    with serving(answer()) as server:
        for url in (
            server.url(),
            server.url(host="localhost"),
            server.url(host="2130706433"),
            server.url(host="0x7f.1"),
        ):
            with pytest.raises(FetchRefused, match="private, loopback or other special address"):
                fetch(url, FetchRules())
        with pytest.raises(FetchRefused):
            fetch(server.url(), FetchRules(private_hosts=(HostPattern("127.0.0.1", server.port + 1),)))
        assert server.requests == []
        allowed = Fetcher(FetchRules())
        assert allowed.get(server.url(), allow_private=True).data
        with pytest.raises(FetchRefused, match="is not in the setting url_hosts"):
            allowed.get(server.url(host="example.org"), listed=True)


def test_a_redirect_is_followed_to_an_allowed_host_and_never_to_another_private_one() -> None:
    with serving(answer()) as last:
        moves = {"/a.txt": "/b.txt", "/b.txt": last.url("/c.txt"), "/loop": "/loop", "/file": "file:///etc/passwd"}
        moves |= {"/secret": f"http://user:s3cret@127.0.0.1:{last.port}/", "/bad": "http://[::1"}

        def move(connection: socket.socket, path: str) -> None:
            answer(b"", f"Location: {moves[path]}", "Set-Cookie: a=b", status="302 Found")(connection, path)

        with serving(move) as first:
            found = fetch(first.url("/a.txt"), rules(first, last))
            assert (found.url, found.name) == (first.url("/a.txt"), "a.txt")
            assert "Cookie" not in last.requests[0] and "Referer" not in last.requests[0]
            with pytest.raises(FetchRefused, match=f"127.0.0.1:{last.port} has a private"):
                fetch(first.url("/a.txt"), rules(first))
            with pytest.raises(FetchRefused):
                Fetcher(FetchRules()).get(first.url("/a.txt"), allow_private=True)
            with pytest.raises(FetchFailed, match="more than 5 redirects"):
                fetch(first.url("/loop"), rules(first))
            for path in ("/file", "/secret", "/bad"):
                with pytest.raises(FetchFailed, match="invalid or unsupported address") as caught:
                    fetch(first.url(path), rules(first, last))
                assert "s3cret" not in str(caught.value)
        assert len(last.requests) == 1


def test_a_redirect_from_https_to_http_is_refused() -> None:
    with pytest.raises(FetchRefused, match="without encryption"):
        fetching._redirected(parse_url("https://example.org/a"), "http://example.org/b")


def test_the_checked_address_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name has a public address when it is checked, and a loopback address ever after."""
    resolved: list[str] = []
    connected: list[Any] = []

    def resolve(host: str, port: int, **options: Any) -> list[Any]:
        resolved.append(host)
        address = "93.184.215.14" if len(resolved) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def connect(sock: socket.socket, place: Any) -> None:
        connected.append(place)
        raise ConnectionRefusedError

    with serving(answer()) as server:
        monkeypatch.setattr(fetching.socket, "getaddrinfo", resolve)
        monkeypatch.setattr(fetching.socket.socket, "connect", connect, raising=False)
        with pytest.raises(FetchFailed, match="refused the connection"):
            fetch(server.url(host="rebinding.example"), FetchRules())
        assert (resolved, connected) == (["rebinding.example"], [("93.184.215.14", server.port)])
        with pytest.raises(FetchRefused, match="special address"):
            fetch(server.url(host="rebinding.example"), FetchRules())
        assert server.requests == []


def test_one_private_address_among_public_ones_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("93.184.215.14", "169.254.169.254")]

    monkeypatch.setattr(fetching.socket, "getaddrinfo", resolve)
    with pytest.raises(FetchRefused):
        fetch("http://metadata.example/", FetchRules())


def endless(connection: socket.socket, path: str) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(10_000):
        connection.sendall(b"x" * 1_000)


def drip(connection: socket.socket, path: str) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    until = time.monotonic() + 10
    while time.monotonic() < until:
        connection.sendall(b"x")
        time.sleep(0.02)


def waiting(connection: socket.socket, path: str) -> None:
    answer()(connection, path)
    time.sleep(1)  # keeps the connection open, although it was asked to close it


BIG = b"x" * 200_000
CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("play", "message"),
    [
        (answer(b"short", length=50), "sent fewer bytes than it announced"),
        (answer(b"longer than this", length=5), "sent more bytes than it announced"),
        (answer(b"abc", "Content-Length: 2"), "announces an invalid length"),
        (answer(b"abc", "Content-Length: x", length=None), "announces an invalid length"),
        (answer(BIG), "has 200,000 bytes; the limit is 100,000 bytes"),
        (answer(BIG, length=None), "has more than 100,000 bytes"),
        (answer(b"5\r\nships\r\n", CHUNKED, length=None), "sent no complete response"),
        (answer(gzip.compress(bytes(1 << 24)), "Content-Encoding: gzip"), "has more than 100,000 bytes"),
        (answer(gzip.compress(b"ships")[:-6], "Content-Encoding: gzip"), "damaged compressed response"),
        (answer(b"ships", "Content-Encoding: gzip"), "sent no complete response"),
        (answer(b"ships", "Content-Encoding: br"), "compressed its response in a way"),
        (answer(b"ships", status="404 Not Found"), "returned HTTP 404"),
        (answer(b"ships", status="304 Not Modified"), "returned HTTP 304"),
        (lambda connection, path: None, "sent no complete response"),
        (lambda connection, path: connection.sendall(b"\xff\x00 nothing of HTTP\r\n\r\n"), "sent no complete response"),
        (lambda connection, path: connection.sendall(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000), "sent no complete"),
        (endless, "has more than 100,000 bytes"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_refused_with_the_reason(play: Play, message: str) -> None:
    with serving(play) as server, pytest.raises(FetchFailed, match=message) as caught:
        fetch(server.url("/a.txt?token=s3cret"), rules(server))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "play",
    [
        answer(gzip.compress(b"ships"), "Content-Encoding: gzip"),
        answer(zlib.compress(b"ships"), "Content-Encoding: deflate"),
        answer(b"5\r\nships\r\n0\r\n\r\n", CHUNKED, length=None),
        answer(b"ships", length=None),
        answer(b"ships", status="200 OK"),
    ],
)
def test_each_way_to_send_a_body_is_read(play: Play) -> None:
    with serving(play) as server:
        assert fetch(server.url(), rules(server)).data == b"ships"


def test_a_server_that_keeps_the_connection_open_does_not_delay_the_document() -> None:
    with serving(waiting) as server:
        assert fetch(server.url(), rules(server)).data == b"Ships lie at the pier."


def test_a_slow_drip_ends_at_the_limit_of_time() -> None:
    with serving(drip) as server, pytest.raises(FetchFailed, match=r"within 0\.5 s; raise the setting url_seconds"):
        fetch(server.url(), rules(server, seconds=0.5))


def test_a_host_that_is_resolved_too_slowly_or_not_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    event = threading.Event()

    def resolve(host: str, port: int, **options: Any) -> list[Any]:
        if host == "unknown.example":
            raise socket.gaierror
        event.wait(10)
        return []

    monkeypatch.setattr(fetching.socket, "getaddrinfo", resolve)
    with pytest.raises(FetchFailed, match="not resolved in time"):
        fetch("http://slow.example/", FetchRules(seconds=0.2))
    event.set()
    with pytest.raises(FetchFailed, match="host name is unknown"):
        fetch("http://unknown.example/", FetchRules())


def test_the_name_of_a_text_without_an_extension_follows_from_its_type() -> None:
    target = parse_url("http://example.org/export?format=csv")
    assert fetching._name(target, "text/csv") == "export.csv"
    assert fetching._name(target, "text/html") == "export"
    assert fetching._name(parse_url("http://example.org/a.txt"), "text/csv") == "a.txt"
    assert fetching._name(parse_url("http://example.org"), "text/html") == "example.org"


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("255.255.255.255", "192.0.2.1", "198.18.0.1", "::", "::1", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b:1::808:808", "2001:db8::1"),
        *("192.0.0.8", "192.0.0.9", "192.0.0.170", "192.0.0.192", "192.88.99.1", "198.51.100.1", "203.0.113.1"),
        *("240.0.0.1", "::ffff:192.0.0.8", "64:ff9b::c058:6301", "100::1", "2001::1", "2001:20::1", "2002:808:808::"),
        *("3fff::1", "5f00::1", "4000::1", "fd00::1", "::ffff:0:8.8.8.8"),
        "no address",
    ],
)
def test_special_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_usual_addresses_are_public() -> None:
    beside = ("191.255.255.255", "192.0.1.1", "192.88.98.1", "223.255.255.255", "2001:200::1", "3ffe::1", "2003::1")
    usual = ("93.184.215.14", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::808:808", "::ffff:8.8.8.8")
    for address in (*usual, *beside):
        assert is_public(address), address


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "ftp://example.org/",
            "file:///etc/passwd",
            "http://",
            "http:///a",
            "http://example.org:0/",
            "http://a b/",
        ),
        *(
            "http://example.org:99999/",
            "http://user:pass@example.org/",
            "http://user@example.org",
            "http://@example.org",
        ),
        *("http://exa\nmple.org/", "http://[::1/", "http://-a.example/", "http://a..b/", "http://a\\b/", "example.org"),
        "http://example.org/" + "a" * 4_000,
    ],
)
def test_an_invalid_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_url(url)
    assert "pass" not in str(caught.value).replace("a password", "")


def test_a_url_has_one_form() -> None:
    for url, identity in (
        ("HTTP://Example.ORG", "http://example.org/"),
        ("https://example.org:443/a?b=c#d", "https://example.org/a?b=c"),
        ("https://example.org:8443/ä b", "https://example.org:8443/%C3%A4%20b"),
        ("http://bücher.example./", "http://xn--bcher-kva.example/"),
        ("http://[0:0::1]:80/a", "http://[::1]/a"),
        ("http://a.example/?x=1&X-Amz-Signature=s&api_key=k", "http://a.example/?x=1"),
        ("http://a.example/?access_token=s", "http://a.example/"),
        ("http://a.example/?q=%2F+b", "http://a.example/?q=%2F+b"),
    ):
        assert parse_url(url).identity == identity
    assert [is_url(text) for text in ("HTTPS://a", "http://a", "httpx://a", "/http://a", None)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_patterns_of_hosts() -> None:
    def allows(text: str, url: str) -> bool:
        try:
            FetchRules(hosts=parse_hosts("url_hosts", text)).refuse_host(parse_url(url))
        except FetchRefused:
            return False
        return True

    assert allows("example.org, a.net", "https://example.org/") and allows("example.org", "http://example.org/")
    assert not allows("example.org", "https://www.example.org/") and not allows("example.org", "http://example.org:81/")
    assert allows("*.example.org", "https://www.example.org/") and not allows("*.example.org", "https://example.org/")
    assert not allows("*.example.org", "https://badexample.org/")
    assert (
        allows("*", "https://a.net/") and not allows("*", "https://a.net:22/") and allows("*:22", "https://a.net:22/")
    )
    assert allows("[::1]:8000", "http://[::1]:8000/") and not allows("", "http://a.net/")
    for wrong in ("http://a.net", "a.net/path", "a.net:0", "a.net:70000", "*a.net", "a@b"):
        with pytest.raises(InvalidInput, match="url_hosts"):
            parse_hosts("url_hosts", wrong)
    assert Target("http", "a.net", 80, "/x?key=s3cret").shown == "http://a.net/x"


def certificate(folder: Path, *names: str) -> Path:
    """A self-signed certificate for these names, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "certificate.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(serialization.Encoding.PEM, *form)
    )
    return path


def test_https_needs_a_trusted_certificate_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = certificate(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    with serving(answer(b"ships"), context) as server:
        url = server.url().replace("http:", "https:")
        with pytest.raises(FetchFailed, match="untrusted certificate"):
            fetch(url.replace("127.0.0.1", "localhost"), rules(server))
        trusting = ssl.create_default_context(cafile=str(file))
        monkeypatch.setattr(fetching.ssl, "create_default_context", lambda: trusting)
        assert fetch(url.replace("127.0.0.1", "localhost"), rules(server)).data == b"ships"
        with pytest.raises(FetchFailed, match="untrusted certificate"):
            fetch(url, rules(server))
        assert len(server.requests) == 1
