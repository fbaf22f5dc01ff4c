"""The HTTP client under the `openai` package, with limits that hold whatever a server sends, or does not send.

A read timeout alone bounds nothing: one byte a second resets it for ever, in the headers as in the body. So each
response has a deadline and a number of bytes, kept where bytes come from the network. Both generations of the HTTP
library, httpx and httpx2, offer the two public hooks that this needs: events of the client, and the `trace` extension.
Repetitions are made here too, since the package waits as long as a server tells it to, whatever its timeout.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from agentformer.errors import MissingExtra

MAX_BYTES = 64 * 1024 * 1024  # of one response; 64 vectors of 4,096 numbers as text are 6 MiB
CONNECT_SECONDS = 5.0  # a host that is up accepts at once; one that is not must not cost the whole timeout
_SENT = frozenset({"host", "accept", "connection", "content-type", "content-length", "transfer-encoding", "user-agent"})
_AGAIN = frozenset({408, 409, 429})  # and 5xx but for 501, as the package has it
_BACKOFF = 0.5  # seconds before the first repetition, then twice as long each time
_LONGEST_WAIT = 30.0  # seconds that a server may ask us to wait, where the deadline allows it at all


class OverLimit(Exception):
    """A response broke a limit; the text completes "the server ...". `longer`: the limit of time that it was."""

    def __init__(self, text: str, longer: Literal["timeout", "seconds", ""] = "") -> None:
        super().__init__(text)
        self.longer = longer


class _Limit:
    """What is left of one response's time and bytes."""

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._max_bytes = max_bytes
        self._bytes = 0

    def read(self, read: Callable[..., bytes], max_bytes: int, timeout: float | None) -> bytes:
        """One read, within the time left. Its timeout is no connection error, so that it is not tried again: the
        server is busy with the first request."""
        left = self._until - time.monotonic()
        wait = left if timeout is None else min(left, timeout)
        if left <= 0:
            raise OverLimit(f"did not finish within {self._seconds:.3g} s", "seconds")
        try:
            data = read(max_bytes, wait)
        except Exception as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            data = None
        if data is None:
            if wait == left:
                raise OverLimit(f"did not finish within {self._seconds:.3g} s", "seconds")
            raise OverLimit(f"did not go on within {wait:.3g} s", "timeout")
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            raise OverLimit(f"sent more than {self._max_bytes >> 20} MiB")
        return data


class _Guard:
    """Hooks of one client: what is sent, how often, and the limits of what comes back."""

    def __init__(self, authorization: str, timeout: float, seconds: float, max_bytes: int) -> None:
        self._authorization = authorization
        self._timeout = timeout
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._here = threading.local()

    def send(
        self, send: Callable[..., Any], retries: int, final: Callable[[str], bool], request: Any, **options: Any
    ) -> Any:
        """`send` the request, again where that may help and the waits end within twice the timeout.

        A timeout is not tried again: the server is busy with the first request. Nor is an error that is `final`.
        """
        start = time.monotonic()
        for attempt in range(retries + 1):
            left = start + self._timeout + self._seconds - time.monotonic()
            limit = _Limit(min(self._seconds, left), self._max_bytes)
            request.extensions["trace"] = partial(self._traced, limit)
            patience = self._timeout + min(self._timeout, self._seconds)
            until = start + patience if attempt < retries else -math.inf
            try:
                response = send(request, **options)
                wait = _wait(response, attempt, final)
            except Exception as error:
                wait = _backoff(attempt)
                if not _is_lost(error) or time.monotonic() + wait >= until:
                    raise
            else:
                if time.monotonic() + wait >= until:
                    return response
                response.close()
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def request(self, request: Any) -> None:
        """Send what the request needs: no headers from the environment, and no answer that unpacks to gigabytes."""
        for name in [name for name in request.headers if name.lower() not in _SENT]:
            del request.headers[name]
        request.headers["Accept-Encoding"] = "identity"
        if self._authorization:
            request.headers["Authorization"] = self._authorization

    def response(self, response: Any) -> None:
        secret = self._authorization.rpartition(" ")[2]
        for name in [name for name, value in response.headers.items() if secret and secret in value]:
            del response.headers[name]
        if response.headers.get("content-encoding", "identity") != "identity":
            raise OverLimit("compressed its answer, which was not asked for")

    def _traced(self, limit: _Limit, event: str, info: dict[str, Any]) -> None:
        """Bound new connections; and while headers are read, in this thread, say whose limit it is."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._bound(info["return_value"])
        elif event.endswith("receive_response_headers.started"):
            self._here.limit = limit
        elif "receive_response_headers." in event:
            self._here.limit = None
            if "return_value" in info:  # what the library logs next; a server may send a key back in a header
                info["return_value"] = info["return_value"][:3]

    def _bound(self, stream: Any) -> None:
        """A connection serves one request at a time, so the limit that its headers came under is that of the body."""
        unbounded = stream.read
        limit: _Limit | None = None

        def read(max_bytes: int, timeout: float | None = None) -> bytes:
            nonlocal limit
            limit = getattr(self._here, "limit", None) or limit
            data: bytes = limit.read(unbounded, max_bytes, timeout) if limit else unbounded(max_bytes, timeout)
            return data

        stream.read = read


def _wait(response: Any, attempt: int, final: Callable[[str], bool]) -> float:
    """Seconds until the same request may succeed; infinite where repeating it is of no use."""
    status = response.status_code
    if status not in _AGAIN and (status < 500 or status == 501):
        return math.inf
    if status >= 500:
        response.read()
        if final(response.text):
            return math.inf
    for name, per_second in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:  # a date there is passed over: clocks differ
            asked = float(response.headers[name]) / per_second
        except (KeyError, ValueError):
            continue
        if asked >= 0:
            return asked if asked <= _LONGEST_WAIT else math.inf
    return _backoff(attempt)


def _backoff(attempt: int) -> float:
    spread: float = random.uniform(0.5, 1.5)  # noqa: S311 - so that clients that failed together come back apart
    return _BACKOFF * 2.0**attempt * spread


def _is_lost(error: BaseException) -> bool:
    """A connection that was refused or broke; unlike a timeout this cost no time."""
    return any(kind.__name__ in ("NetworkError", "RemoteProtocolError") for kind in type(error).__mro__)


def open_http(
    *,
    timeout: float,
    seconds: float,
    max_bytes: int = MAX_BYTES,
    authorization: str = "",
    retries: int = 0,
    final: Callable[[str], bool] = lambda said: False,
) -> Any:
    """An HTTP client as the `openai` package takes it. `timeout`: seconds without a byte; `seconds` and `max_bytes`:
    of one response as a whole. All `retries` and the waits before them end within twice the timeout; the body of a 5xx
    that is `final` is not tried again. A broken limit raises `OverLimit`; without the package it raises
    `MissingExtra`."""
    try:
        import openai
    except ImportError as error:
        raise MissingExtra("llm", "a server that speaks the OpenAI protocol", error) from None
    guard = _Guard(authorization, timeout, seconds, max_bytes)
    http: Any = openai.DefaultHttpxClient(
        timeout=openai.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        follow_redirects=False,  # a key goes to the server that was named, and nowhere else
        event_hooks={"request": [guard.request], "response": [guard.response]},
    )
    http.send = partial(guard.send, http.send, retries, final)
    return http
