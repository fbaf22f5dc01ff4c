"""The JSON client against sockets that do what servers do on bad days."""

from __future__ import annotations

import datetime
import email.utils
import json
import socket
import ssl
from pathlib import Path

import pytest

from agentformer.errors import InvalidInput
from agentformer.http.client import HttpFailure, JsonClient
from agentformer.http.redaction import redact
from agentformer.http.retry_policy import Policy
from tests.embedders.hostile_server import HostileServer, Play, said, saying

pytestmark = pytest.mark.process

KEY = "sk-canary-71ab54f0c9"
GOOD = said('{"answer": 42}')


def in_turn(*answers: bytes) -> Play:
    """One answer for each connection, the last one for all that follow; an empty one closes the connection."""
    left = list(answers)

    def play(connection: socket.socket, path: str) -> None:
        connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    return play


def client(
    server: HostileServer, *, retries: int = 2, timeout: float = 10, key: str = "", max_bytes: int = 1 << 26
) -> JsonClient:
    policy = Policy(timeout, retries=retries, backoff=0.01, max_bytes=max_bytes)
    return JsonClient(server.url, policy, key=key)


def busy(status: str, headers: str = "") -> bytes:
    return said('{"error": "busy"}', status=status, headers=headers)


def test_json_goes_out_and_comes_back() -> None:
    with HostileServer(saying(GOOD)) as server:
        assert JsonClient(f"{server.url}/base/", key=KEY).post("/x", {"text": "ä\ud800"}) == {"answer": 42}
        assert JsonClient(server.url).get("/y") == {"answer": 42}
    assert server.paths == ["/base/x", "/y"]
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert json.loads(body) == {"text": "ä\ud800"}
    assert f"Authorization: Bearer {KEY}".encode() in head
    assert b"Authorization" not in server.requests[1]


def test_a_user_in_the_address_is_sent_as_such_unless_there_is_a_key() -> None:
    with HostileServer(saying(GOOD)) as server:
        url = server.url.replace("http://", "http://us%40er:pass@")
        JsonClient(url).get("/")
        JsonClient(url, key=KEY).get("/")
    assert b"Authorization: Basic dXNAZXI6cGFzcw==" in server.requests[0]
    assert b"Basic" not in server.requests[1]


@pytest.mark.parametrize(
    "status", ["429 Busy", "500 Oops", "502 Gateway", "503 Busy", "504 Gateway", "408 Slow", "409 Conflict"]
)
def test_a_server_in_trouble_is_asked_again(status: str) -> None:
    with HostileServer(in_turn(busy(status), busy(status), GOOD)) as server:
        assert client(server).get("/") == {"answer": 42}
    assert len(server.paths) == 3


def test_a_lost_connection_is_tried_again() -> None:
    with HostileServer(in_turn(b"", b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{", GOOD)) as server:
        assert client(server).get("/") == {"answer": 42}
    assert len(server.paths) == 3


def test_after_the_last_retry_the_servers_words_are_passed_on() -> None:
    with HostileServer(saying(busy("503 Busy"))) as server, pytest.raises(HttpFailure, match="503: busy") as caught:
        client(server, retries=1).get("/")
    assert len(server.paths) == 2
    assert (caught.value.status, caught.value.excerpt, caught.value.retryable) == (503, "busy", True)


@pytest.mark.parametrize("status", ["400 Bad", "401 No", "403 No", "404 Gone", "413 Long", "204 Empty", "501 Not Here"])
def test_a_refusal_is_not_repeated(status: str) -> None:
    with HostileServer(saying(busy(status))) as server, pytest.raises(HttpFailure) as caught:
        client(server).get("/")
    assert len(server.paths) == 1
    assert caught.value.status == int(status[:3]) and not caught.value.retryable


def test_an_error_that_no_repetition_mends_is_not_repeated() -> None:
    with (
        HostileServer(saying(said('{"error": "input is too long"}', status="500 Oops"))) as server,
        pytest.raises(HttpFailure, match="too long"),
    ):
        client(server).get("/")
    assert len(server.paths) == 1


def test_retry_after_is_waited_for() -> None:
    soon = email.utils.format_datetime(datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1))
    answers = in_turn(busy("429 Busy", "Retry-After: 0\r\n"), busy("429 Busy", f"Retry-After: {soon}\r\n"), GOOD)
    with HostileServer(answers) as server:
        # A backoff of ten minutes would be beyond the deadline, so only the server's own word lets it go on.
        assert JsonClient(server.url, Policy(10, backoff=600)).get("/") == {"answer": 42}


@pytest.mark.parametrize("wait", ["3600", "31", "1e300", "inf", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_server_that_wants_to_be_left_alone_for_long_is(wait: str) -> None:
    with (
        HostileServer(saying(busy("429 Busy", f"Retry-After: {wait}\r\n"))) as server,
        pytest.raises(HttpFailure, match="429"),
    ):
        client(server, timeout=300).get("/")
    assert len(server.paths) == 1


@pytest.mark.parametrize("wait", ["nonsense", "nan", "-1", ""])
def test_a_retry_after_that_cannot_be_read_is_not_obeyed(wait: str) -> None:
    with HostileServer(in_turn(busy("429 Busy", f"Retry-After: {wait}\r\n"), GOOD)) as server:
        assert client(server).get("/") == {"answer": 42}


DRIPS = {
    "the status line": (b"", b"H"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
    "one header": (b"HTTP/1.1 200 OK\r\nX-More: ", b"x"),
    "the body": (b"HTTP/1.1 200 OK\r\n\r\n[", b"1, "),
    "an announced body": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n[", b"1, "),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n1\r\n"),
    "an error's body": (b"HTTP/1.1 500 Oops\r\n\r\n", b"x"),
    "promises": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("what", DRIPS)
def test_a_server_that_never_comes_to_an_end_is_left_after_the_timeout(what: str) -> None:
    with (
        HostileServer(lambda connection, path: server.drip(connection, *DRIPS[what])) as server,
        pytest.raises(HttpFailure) as caught,
    ):
        client(server, timeout=0.5).get("/")
    assert len(server.paths) == 1
    assert caught.value.retryable or what == "headers"  # a hundred headers are refused before the time is up


def test_a_server_that_takes_the_connection_and_is_silent_is_left_after_the_timeout() -> None:
    with (
        HostileServer(lambda connection, path: server.wait()) as server,
        pytest.raises(HttpFailure, match=r"did not finish its response within 0\.5 s") as caught,
    ):
        client(server, timeout=0.5).get("/")
    assert len(server.paths) == 1 and caught.value.status == 0 and caught.value.retryable


def test_a_server_that_does_not_read_is_left_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # nobody accepts, so the kernel's buffers fill up
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(HttpFailure, match="did not finish"):
            JsonClient(url, Policy(0.5, retries=0)).post("/", "x" * 50_000_000)


def test_all_attempts_together_have_a_deadline() -> None:
    with HostileServer(saying(busy("503 Busy"))) as server, pytest.raises(HttpFailure, match="503"):
        client(server, retries=1_000_000, timeout=2).get("/")
    assert 1 < len(server.paths) < 1000


def test_an_answer_without_end_is_left_at_the_limit_of_its_size() -> None:
    def flood(connection: socket.socket, path: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"[" * 65_536)

    with HostileServer(flood) as server, pytest.raises(HttpFailure, match="more than 1000000 bytes"):
        client(server, max_bytes=1_000_000).get("/")
    assert len(server.paths) == 1


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_not_followed_and_the_key_goes_nowhere(status: str) -> None:
    with HostileServer(saying(GOOD)) as other:
        there = f"Location: http://u:{KEY}@127.0.0.1:{other.port}/x?token={KEY}\r\n"
        with (
            HostileServer(saying(said("", status=status, headers=there))) as server,
            pytest.raises(HttpFailure, match=r"redirect to http://127\.0\.0\.1") as caught,
        ):
            client(server, key=KEY).post("/", {})
    assert other.paths == [] and KEY not in str(caught.value)


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with HostileServer(saying(busy("400 Bad"))) as proxy, HostileServer(saying(GOOD)) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert client(server).get("/") == {"answer": 42}
    assert proxy.paths == []


@pytest.mark.parametrize("body", ["<html></html>", '{"a": ', "", "NaN", '{"a": Infinity}', b"\xff\xfe", "[" * 100_000])
def test_what_is_not_json_is_an_error(body: str | bytes) -> None:
    with HostileServer(saying(said(body))) as server, pytest.raises(HttpFailure, match=r"HTML|invalid JSON") as caught:
        client(server).get("/")
    assert len(server.paths) == 1 and caught.value.status == 200 and server.url in str(caught.value)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "400 Bad Request"])
@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"error": f"key {KEY} is wrong"}),
        json.dumps({"error": f"key {KEY[4:-1]} is wrong"}),
        json.dumps({"error": {"message": f"Bearer {KEY}"}}),
        json.dumps({"message": KEY}),
        json.dumps([KEY]),
        " " * 3150 + KEY,
        KEY * 1000,
    ],
)
def test_a_server_that_repeats_the_key_is_not_quoted_with_it(body: str, status: str) -> None:
    with HostileServer(saying(said(body, status=status))) as server, pytest.raises(HttpFailure) as caught:
        client(server, key=KEY).get("/")
    shown = str(caught.value) + repr(caught.value) + repr(vars(caught.value))
    assert not any(KEY[i : i + 6] in shown for i in range(len(KEY) - 5)) and len(caught.value.excerpt) <= 200
    assert ("[key]" in caught.value.excerpt) == (status.startswith("400"))


def test_a_servers_words_are_one_short_line() -> None:
    assert redact("a\r\n\x1b[31mb\u202ec \x00  d", ()) == "a [31mb c d"
    assert len(redact("word " * 100, ())) == 200


@pytest.mark.parametrize("key", ["with\nnewline", "schlüssel", "nul\x00"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        JsonClient("http://127.0.0.1:1", key=key)
    assert key not in str(caught.value)


def test_a_refused_connection_and_an_unknown_host_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(HttpFailure, match=rf"http://127.0.0.1:{port} refused the connection") as caught:
        JsonClient(f"http://127.0.0.1:{port}", Policy(retries=0)).get("/")
    assert (caught.value.status, caught.value.cause, caught.value.retryable) == (0, "refused", True)
    with pytest.raises(HttpFailure, match="host name is unknown"):
        JsonClient(f"http://{'a' * 70}.invalid", Policy(retries=0)).get("/")


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path))

    with HostileServer(saying(GOOD), tls=context) as server:
        url = server.url.replace("http", "https")
        with pytest.raises(HttpFailure, match=rf"{url} has an untrusted certificate") as caught:
            JsonClient(url, Policy(10), key=KEY).get("/")
    assert server.requests == [] and not caught.value.retryable


def certificate(folder: Path) -> Path:
    """A self-signed one with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "server.pem"
    path.write_bytes(private + signed.public_bytes(encoding))
    return path
