"""JSON over HTTP on the standard library, for providers that have no client library of their own.

Every request is bounded: in time as a whole, also against a server that sends a byte now and then, and in bytes.
Redirects are not followed and no proxy is asked, so a text and its key go to the address that was set, or nowhere.
"""

from __future__ import annotations

import base64
import email.utils
import http.client
import io
import json
import math
import random
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Literal, cast
from urllib.parse import quote, unquote, urlsplit

from agentformer.errors import InvalidInput
from agentformer.http.redact_text import masked, one_line
from agentformer.http.redaction import shown

MAX_BODY = 64 * 1024 * 1024  # 1,000 vectors of 4,096 numbers
_QUOTED = 200  # characters of a server's own words that an error repeats
_LONGEST_WAIT = 30.0  # seconds that a server may ask us to wait, where the deadline allows it at all
_TRY_AGAIN = (429, 500, 502, 503, 504)


Cause = Literal["refused", "timeout", "host", "size", ""]  # the connection, the time, no such host, too many bytes


class HttpFailure(Exception):
    """A request failed. `status` is 0 where no whole answer came; `excerpt` is what the server said, cleaned and
    without secrets; `retryable` tells whether the same request may succeed later. `cause` is why no answer came, where
    that decides what to do."""

    def __init__(
        self, message: str, *, status: int = 0, excerpt: str = "", retryable: bool = False, cause: Cause = ""
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.status = status
        self.excerpt = excerpt
        self.retryable = retryable
        self.wait: float | None = None  # seconds that the server asked for


class _Lost(HttpFailure):
    """The connection was refused or broke; unlike a timeout this cost no time, so it is tried again."""


class JsonClient:
    """One server. Thread-safe; each request has its own connection.

    `timeout` is seconds for one attempt from connecting to the last byte, `deadline` for all attempts and the waits
    between them (default: twice the timeout). 429, 5xx and lost connections are tried again `retries` times, unless
    `final` knows the server's words to mean that no repetition helps. A timeout is not repeated.
    """

    def __init__(
        self,
        base_url: str,
        *,
        key: str = "",
        timeout: float = 60.0,
        deadline: float = 0.0,
        retries: int = 2,
        backoff: float = 0.5,
        max_body: int = MAX_BODY,
        final: Callable[[str], bool] = lambda excerpt: False,
    ) -> None:
        parts = urlsplit(base_url)
        # Letters outside ASCII travel as %C3%A4; what is written so already stays.
        self._parts = parts._replace(path=quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"))
        self.address = shown(base_url)
        self._headers, self._secrets = _credentials(base_url, key)
        self._timeout = timeout
        self._deadline = deadline or 2 * timeout
        self._retries = retries
        self._backoff = backoff
        self._max_body = max_body
        self._final = final

    def get(self, path: str) -> Any:
        """The JSON that GET answers. Raises `HttpFailure`."""
        return self._repeated("GET", path, None)

    def post(self, path: str, payload: object) -> Any:
        """The JSON that POST of `payload` answers. Raises `HttpFailure`."""
        return self._repeated("POST", path, json.dumps(payload, allow_nan=False).encode("ascii"))

    def _repeated(self, method: str, path: str, body: bytes | None) -> Any:
        end = time.monotonic() + self._deadline
        for attempt in range(self._retries + 1):
            try:
                return self._once(method, path, body, min(end, time.monotonic() + self._timeout))
            except HttpFailure as failure:
                again = isinstance(failure, _Lost) or failure.status in _TRY_AGAIN
                if not again or attempt == self._retries or self._final(failure.excerpt):
                    raise
                wait = self._wait(attempt, failure)
                if wait > _LONGEST_WAIT or time.monotonic() + wait >= end:
                    raise
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _wait(self, attempt: int, failure: HttpFailure) -> float:
        if failure.wait is not None:
            return failure.wait
        spread: float = random.uniform(0.5, 1.5)  # noqa: S311 - so that clients that failed together come back apart
        return self._backoff * 2.0**attempt * spread

    def _once(self, method: str, path: str, body: bytes | None, end: float) -> Any:
        try:
            with self._connected(end) as connection:
                connection.request(method, self._parts.path + path, body, self._headers)
                answer = connection.getresponse()
                text = self._body(answer)
        except (TimeoutError, _TooSlow):
            what = f"did not answer within {self._timeout:g} s"
            raise self._failure(what, retryable=True, cause="timeout") from None
        except ssl.SSLCertVerificationError as error:
            raise self._failure(f"has a certificate that is not trusted ({error.verify_message})") from None
        except ConnectionRefusedError:
            raise _Lost(f"{self.address} refused the connection", retryable=True, cause="refused") from None
        except (socket.gaierror, UnicodeError):
            what = "cannot be reached: there is no such host"
            raise self._failure(what, retryable=True, cause="host") from None
        except (OSError, http.client.HTTPException) as error:
            raise _Lost(f"{self.address} broke the connection ({type(error).__name__})", retryable=True) from None
        if answer.status != 200:
            raise self._refusal(answer, text)
        return self._parsed(text)

    def _connected(self, end: float) -> _Connection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return _Connection(kind, self._parts.hostname or "", self._parts.port, end)

    def _body(self, answer: http.client.HTTPResponse) -> bytes:
        data = answer.read(self._max_body + 1)
        if len(data) > self._max_body:
            raise self._failure(f"sent more than {self._max_body} bytes in one answer", cause="size")
        if answer.length:  # bytes that were announced and never came
            raise ConnectionAbortedError
        return data

    def _refusal(self, answer: http.client.HTTPResponse, body: bytes) -> HttpFailure:
        refused = answer.status in (401, 403)  # whose words are mostly about the key, and may hold it in any guise
        excerpt = "" if refused else cleaned(_words(body), self._secrets)
        what = f"answered {answer.status}"
        if 300 <= answer.status < 400:
            where = shown(answer.getheader("Location", ""))
            what = f"answered {answer.status}, a redirect to {cleaned(where, self._secrets)}, which is not followed"
        failure = self._failure(
            f"{what}: {excerpt}" if excerpt else what,
            status=answer.status,
            excerpt=excerpt,
            retryable=answer.status in (408, *_TRY_AGAIN),
        )
        failure.wait = _seconds(answer.getheader("Retry-After", ""))
        return failure

    def _parsed(self, body: bytes) -> Any:
        try:
            return json.loads(body, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            kind = "HTML" if body.lstrip()[:1] == b"<" else "something that is not whole, valid JSON"
            raise self._failure(f"answered with {kind}; is this the right address?", status=200) from None

    def _failure(
        self, what: str, *, status: int = 0, excerpt: str = "", retryable: bool = False, cause: Cause = ""
    ) -> HttpFailure:
        return HttpFailure(f"{self.address} {what}", status=status, excerpt=excerpt, retryable=retryable, cause=cause)


def cleaned(text: str, secrets: tuple[str, ...] = ()) -> str:
    """A server's words for an error text: on one line, no part of a secret in it, at most 200 characters."""
    line = masked(one_line(text), secrets)
    return line if len(line) <= _QUOTED else line[: _QUOTED - 1] + "…"


class _TooSlow(Exception):
    """The time for one attempt has passed."""


class _Connection:
    """A connection of `http.client` on which every read and write ends when the time does."""

    def __init__(self, kind: type[http.client.HTTPConnection], host: str, port: int | None, end: float) -> None:
        self._connection = kind(host, port, timeout=_left(end))
        self._end = end

    def __enter__(self) -> http.client.HTTPConnection:
        self._connection.connect()
        self._connection.sock = cast(Any, _BoundedSocket(self._connection.sock, self._end))
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class _BoundedSocket:
    """The part of a socket that `http.client` uses; its timeout is always what is left of the attempt."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock = sock
        self._end = end

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left(self._end))
        self._sock.sendall(data)

    def makefile(self, mode: Literal["rb"]) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock, self._end), 65_536)

    def close(self) -> None:
        self._sock.close()


class _Reader(io.RawIOBase):
    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open when the connection is done with it
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._end))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise _TooSlow
    return left


def _credentials(url: str, key: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Headers of every request, and what no error may repeat. Raises `InvalidInput` for a key that cannot be sent."""
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput("api key", "holds characters that an HTTP header cannot carry")
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode() if user or password else ""
    if key:
        headers["Authorization"] = f"Bearer {key}"
    elif encoded:
        headers["Authorization"] = f"Basic {encoded}"
    secrets = {key, encoded, password, parts.password or ""} - {""}
    return headers, tuple(sorted(secrets, key=len, reverse=True))  # one may be a part of another


def _words(body: bytes) -> str:
    """What an error's body says: the message of its JSON, else all of it; nothing of HTML."""
    text = body.decode("utf-8", "replace")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return "" if text.lstrip().startswith("<") else text
    error = found.get("error", found.get("message", "")) if isinstance(found, dict) else text
    if isinstance(error, dict):
        error = error.get("message", "")
    return error if isinstance(error, str) else text


def _seconds(retry_after: str) -> float | None:
    """Of a Retry-After header, which holds seconds or a date; None for one that is missing or unusable."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
