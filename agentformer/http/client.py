"""Two HTTP clients: one for JSON, which uses only the standard library, and one for the package `openai`.

The clients do not follow redirects, so that texts and keys are sent only to the configured address.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from agentformer.errors import MissingExtra
from agentformer.http.redaction import credentials, error_message, redact, redact_url
from agentformer.http.retry_policy import CONNECT_SECONDS, Attempts, OverLimit, Policy, ResponseLimit, is_temporary

_SENT = frozenset({"host", "accept", "connection", "content-type", "content-length", "transfer-encoding", "user-agent"})
_EXAMINED = 2000  # characters of an error response that are examined before a retry
Cause = Literal["refused", "timeout", "host", "size", "lost", ""]


class HttpFailure(Exception):
    """A request failed. The message begins with the server's address. `status` is the HTTP status, or 0 if no complete
    response arrived; `cause` is the reason why no response arrived. `excerpt` is the error message of the server
    without secrets. `retryable` is true if the same request may succeed later."""

    def __init__(
        self, message: str, *, status: int = 0, excerpt: str = "", retryable: bool = False, cause: Cause = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.excerpt = excerpt
        self.retryable = retryable
        self.cause = cause


class JsonClient:
    """A client that exchanges JSON with one server. It uses only the standard library. Each request opens a new
    connection, and no proxy is used. Thread-safe."""

    def __init__(self, base_url: str, policy: Policy | None = None, *, key: str = "") -> None:
        parts = urlsplit(base_url)
        # Characters outside ASCII are sent as %C3%A4. A path that is already encoded is not changed.
        self._parts = parts._replace(path=quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"))
        self.address = redact_url(base_url)
        self._credentials = credentials(base_url, key)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if self._credentials.authorization:
            self._headers["Authorization"] = self._credentials.authorization
        self._policy = policy or Policy()

    def get(self, path: str) -> Any:
        """Send a GET request and return the JSON value of the response. Raise `HttpFailure` if the request fails."""
        return self._request("GET", path, None)

    def post(self, path: str, payload: object) -> Any:
        """Send `payload` as JSON in a POST request, and return the JSON value of the response. Raise `HttpFailure` if
        the request fails."""
        return self._request("POST", path, json.dumps(payload, allow_nan=False).encode("ascii"))

    def _request(self, method: str, path: str, body: bytes | None) -> Any:
        """Return the JSON of the response with status 200. Without a response, the request is sent again only if the
        connection was lost or refused: after a timeout, the server may still be working on it."""
        attempts = Attempts(self._policy)
        while True:
            try:
                response, content = self._send(method, path, body, attempts.limit())
            except HttpFailure as failure:
                if failure.cause not in ("lost", "refused") or not attempts.retry():
                    raise
                continue
            if response.status == 200:
                return self._parsed(content)
            refusal = self._refusal(response, content)
            if not attempts.retry(response.status, response.headers, refusal.excerpt):
                raise refusal

    def _send(
        self, method: str, path: str, body: bytes | None, limit: ResponseLimit
    ) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            with self._connected(limit) as connection:
                connection.request(method, self._parts.path + path, body, self._headers)
                response = connection.getresponse()
                content = response.read(self._policy.max_bytes)  # a header does not decide how much memory is allocated
                if response.length:  # fewer bytes than the header promised
                    raise ConnectionAbortedError
                return response, content
        except OverLimit as error:
            cause: Cause = "timeout" if error.exceeded else "size"
            raise self._failure(str(error), retryable=cause == "timeout", cause=cause) from None
        except TimeoutError:
            raise self._failure(str(limit.too_slow()), retryable=True, cause="timeout") from None
        except ssl.SSLCertVerificationError as error:
            raise self._failure(f"has an untrusted certificate ({error.verify_message})") from None
        except ConnectionRefusedError:
            raise self._failure("refused the connection", retryable=True, cause="refused") from None
        except (socket.gaierror, UnicodeError):
            raise self._failure("cannot be reached: the host name is unknown", retryable=True, cause="host") from None
        except (OSError, http.client.HTTPException) as error:
            reason = f"closed the connection ({type(error).__name__})"
            raise self._failure(reason, retryable=True, cause="lost") from None

    @contextmanager
    def _connected(self, limit: ResponseLimit) -> Iterator[http.client.HTTPConnection]:
        """Open a connection for one request and close it at the end. A read or a write raises an error when `limit` has
        no time left."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        seconds = min(limit.left(), CONNECT_SECONDS)
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=seconds)
        try:
            connection.connect()
        except TimeoutError:
            raise OverLimit(f"did not accept the connection within {seconds:.3g} s", "timeout") from None
        with connection.sock as sock:
            connection.sock = bounded_socket(sock, limit)
            yield connection

    def _refusal(self, response: http.client.HTTPResponse, body: bytes) -> HttpFailure:
        status, secrets = response.status, self._credentials.secrets
        # The message of a 401 or 403 is about the key and may contain it in any form.
        excerpt = "" if status in (401, 403) else redact(error_message(body), secrets)
        reason = f"returned HTTP {status}"
        if 300 <= status < 400:
            target = redact(redact_url(response.getheader("Location", "")), secrets)
            reason = f"{reason}, a redirect to {target}; redirects are not followed"
        reason = f"{reason}: {excerpt}" if excerpt else reason
        return self._failure(reason, status=status, excerpt=excerpt, retryable=is_temporary(status))

    def _parsed(self, body: bytes) -> Any:
        try:
            return json.loads(body, parse_constant=_reject_constant)
        except (ValueError, RecursionError):
            kind = "HTML instead of JSON" if body.lstrip()[:1] == b"<" else "invalid JSON"
            raise self._failure(f"returned {kind}", status=200) from None

    def _failure(self, reason: str, **fields: Any) -> HttpFailure:
        return HttpFailure(f"{self.address} {reason}", **fields)


def bounded_socket(sock: socket.socket, limit: ResponseLimit) -> Any:
    """Return an object that `http.client` uses as its socket. The object wraps `sock`, and limits each read and write.
    Its method `close` does nothing, because `http.client` calls it before the response is read."""

    def sendall(data: bytes) -> None:
        sock.settimeout(limit.left())
        sock.sendall(data)

    def receive(size: int, timeout: float) -> bytes:
        sock.settimeout(timeout)
        return sock.recv(size)

    class Reader(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            data = limit.read(partial(receive, len(buffer)))
            buffer[: len(data)] = data
            return len(data)

    def makefile(mode: str) -> io.BufferedReader:
        return io.BufferedReader(Reader(), 65_536)

    return SimpleNamespace(sendall=sendall, makefile=makefile, close=lambda: None)


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def open_http(policy: Policy, authorization: str = "") -> Any:
    """Return an HTTP client for the package `openai`, with the limits of `policy`. The client raises `OverLimit` if a
    response takes too long or is too large. `authorization` is the value of the header `Authorization`, or "". The
    package uses either the library httpx or the library httpx2. So this function uses only parts that are public in
    both: the event hooks of a client, and the extension `trace` of a request. Raise `MissingExtra` if the package is
    not installed."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("llm", "a server of the OpenAI protocol", error) from None
    hooks = _Hooks(policy, authorization)
    http: Any = openai.DefaultHttpxClient(
        timeout=openai.Timeout(policy.timeout, connect=min(policy.timeout, CONNECT_SECONDS)),
        follow_redirects=False,  # a key is sent to the configured server only
        event_hooks={"request": [hooks.request], "response": [hooks.response]},
    )
    http.send = partial(hooks.send, http.send)
    return http


class _Hooks:
    def __init__(self, policy: Policy, authorization: str) -> None:
        self._policy = policy
        self._authorization = authorization
        self._thread = threading.local()

    def send(self, send: Any, request: Any, **options: Any) -> Any:
        """Send the request, and retry a failed request if the policy allows a retry. The function `send` is the
        original method of the HTTP client. The package `openai` makes no retries of its own, because a server could
        delay them without limit."""
        attempts = Attempts(self._policy)
        while True:
            request.extensions["trace"] = partial(self._trace, attempts.limit())
            try:
                response = send(request, **options)
            except Exception as error:
                # A refused or broken connection took little time. Only then is the request sent again.
                lost = any(kind.__name__ in ("NetworkError", "RemoteProtocolError") for kind in type(error).__mro__)
                if not lost or not attempts.retry():
                    raise
                continue
            message = ""
            if response.status_code >= 500:
                response.read()
                message = response.text[:_EXAMINED]
            if not attempts.retry(response.status_code, response.headers, message):
                return response
            response.close()

    def request(self, request: Any) -> None:
        """Change the headers of a request before it is sent. Remove the headers that `httpx` or `openai` adds from
        environment variables. Ask for a response without compression, because a small compressed response could become
        gigabytes of memory."""
        for name in [name for name in request.headers if name.lower() not in _SENT]:
            del request.headers[name]
        request.headers["Accept-Encoding"] = "identity"
        if self._authorization:
            request.headers["Authorization"] = self._authorization

    def response(self, response: Any) -> None:
        """Remove the response headers that contain the API key, because the HTTP libraries log the headers. Raise
        `OverLimit` if the response is compressed."""
        secret = self._authorization.rpartition(" ")[2]
        for name in [name for name, value in response.headers.items() if secret and secret in value]:
            del response.headers[name]
        if response.headers.get("content-encoding", "identity") != "identity":
            raise OverLimit("compressed its response, although the request forbids compression")

    def _trace(self, limit: ResponseLimit, event: str, info: dict[str, Any]) -> None:
        """Handle an event of the HTTP library, so that a response cannot exceed `limit`. If a new connection was
        opened, its reads are limited from now on. If this thread begins to read a response, `limit` applies to this
        response."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._wrap(info["return_value"])
        elif event.endswith("receive_response_headers.started"):
            self._thread.limit = limit
        elif "receive_response_headers." in event:
            self._thread.limit = None
            if "return_value" in info:  # the library logs the headers next; a server may repeat a key in a header
                info["return_value"] = info["return_value"][:3]

    def _wrap(self, stream: Any) -> None:
        """Limit the time and the size of all reads on the connection `stream`. The thread that reads the headers of a
        response sets the limit. The limit also applies to the body, even if another thread reads the body."""
        receive = stream.read
        limit: ResponseLimit | None = None

        def read(max_bytes: int, timeout: float | None = None) -> Any:
            nonlocal limit
            limit = getattr(self._thread, "limit", None) or limit
            return limit.read(partial(receive, max_bytes), timeout) if limit else receive(max_bytes, timeout)

        stream.read = read
