"""The HTTP client under the `openai` package, with limits that hold whatever a server sends, or does not send.

A read timeout alone bounds nothing: one byte a second resets it for ever, in the headers as in the body. So each
response has a deadline and a number of bytes, kept where bytes come from the network. Both generations of the HTTP
library, httpx and httpx2, offer the two public hooks that this needs: events of the client, and the `trace` extension.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from agentformer.errors import MissingExtra

MAX_BYTES = 64 * 1024 * 1024  # of one response; 64 vectors of 4,096 numbers as text are 6 MiB
CONNECT_SECONDS = 5.0  # a host that is up accepts at once; one that is not must not cost the whole timeout
_SENT = frozenset({"host", "accept", "connection", "content-type", "content-length", "transfer-encoding", "user-agent"})
_RETRY = "x-stainless-retry-count"  # of the package: which attempt at a call this is


class OverLimit(Exception):
    """A response broke a limit; the text completes "the server ..."."""


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
            raise OverLimit(f"did not finish within {self._seconds:g} s")
        try:
            data = read(max_bytes, wait)
        except Exception as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            data = None
        if data is None:
            limit = self._seconds if wait == left else wait
            raise OverLimit(f"did not {'finish' if wait == left else 'go on'} within {limit:g} s")
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            raise OverLimit(f"sent more than {self._max_bytes >> 20} MiB")
        return data


class _Guard:
    """Hooks of one client: what is sent, and the limits of what comes back."""

    def __init__(self, authorization: str, seconds: float, max_bytes: int) -> None:
        self._authorization = authorization
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._here = threading.local()

    def request(self, request: Any) -> None:
        """Send what the request needs: no headers from the environment, and no answer that unpacks to gigabytes."""
        if request.headers.get(_RETRY, "0") == "0":
            self._here.broken = ""
        elif broken := getattr(self._here, "broken", ""):  # version 2 of the package repeats whatever fails
            raise OverLimit(broken)
        for name in [name for name in request.headers if name.lower() not in _SENT]:
            del request.headers[name]
        request.headers["Accept-Encoding"] = "identity"
        if self._authorization:
            request.headers["Authorization"] = self._authorization
        request.extensions["trace"] = partial(self._traced, _Limit(self._seconds, self._max_bytes))

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
            try:
                data: bytes = limit.read(unbounded, max_bytes, timeout) if limit else unbounded(max_bytes, timeout)
            except OverLimit as error:
                self._here.broken = str(error)
                raise
            return data

        stream.read = read


def open_http(*, timeout: float, seconds: float, max_bytes: int = MAX_BYTES, authorization: str = "") -> Any:
    """An HTTP client as the `openai` package takes it. `timeout`: seconds without a byte; `seconds` and `max_bytes`:
    of one response as a whole. A broken limit raises `OverLimit`; without the package it raises `MissingExtra`."""
    try:
        import openai
    except ImportError:
        raise MissingExtra("llm", "a server that speaks the OpenAI protocol") from None
    guard = _Guard(authorization, seconds, max_bytes)
    return openai.DefaultHttpxClient(
        timeout=openai.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        follow_redirects=False,  # a key goes to the server that was named, and nowhere else
        event_hooks={"request": [guard.request], "response": [guard.response]},
    )
