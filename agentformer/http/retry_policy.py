"""The rules for all requests to the servers of models: how long a response may take, how large it may be, and which
failed requests are sent again.

A timeout for each read is not enough, because a server that sends one byte per second would never reach this timeout.
So each response also has a deadline and a maximum size. They are checked at every read from the network.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal

MAX_BYTES = 64 * 1024 * 1024  # size of one response; 64 vectors of 4,096 numbers are 6 MiB of text
CONNECT_SECONDS = 5.0  # a running host accepts at once; for a missing host, do not wait for the complete timeout
_SHORTEST_SHARE = 0.05  # share of the time for a response; with less time left, a retry would exceed its deadline
_LONGEST_WAIT = 30.0  # longest Retry-After in seconds; the deadline may shorten the wait
# Phrases from the error messages of Ollama, OpenAI, vLLM, llama.cpp, LM Studio, text-embeddings-inference and gateways.
_OVERFLOW = re.compile(
    r"context[ _-]?(length|size|window)|maximum (input|context)|exceed_context|too many tokens|tokens per request"
    r"|(input|prompt|text) length|(input|prompt|text)( \(\d+ tokens\))?( is)? too (long|large)"
    r"|(larger|longer) than the (max|context|physical batch)|reduce the length|less than \d+ tokens",
    re.IGNORECASE,
)


def is_overflow(status: int, message: str) -> bool:
    """Return True if the server refused the request because the input is too long for the model. Some servers report
    this with the status 500, so the message is examined. The status 429 means too many tokens per minute, which is
    another problem, so the result for this status is False."""
    return status == 413 or (status != 429 and bool(_OVERFLOW.search(message)))


def is_temporary(status: int) -> bool:
    """Return True if this HTTP status means that the same request may succeed later."""
    return status in (408, 409, 429) or (status >= 500 and status != 501)


class OverLimit(Exception):
    """A response took too long, was too large or was compressed. The message continues a sentence that begins with "the
    server". `exceeded` is the name of the time limit in `Policy` that was exceeded, so that a message can advise the
    user to raise it. `exceeded` is "" if the response did not exceed a time limit."""

    def __init__(self, message: str, exceeded: Literal["timeout", "seconds", ""] = "") -> None:
        super().__init__(message)
        self.exceeded = exceeded


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits for requests to one server: how long the server may be silent (`timeout`), how long and how large a
    complete response may be (`seconds`, `max_bytes`), and how often a failed request is sent again. If `seconds` is 0,
    `timeout` is also the limit for a complete response. A request with all its retries and waits ends after at most
    `timeout + seconds`. No retry starts later than `2 * timeout` after the first attempt, or when too little time is
    left for its response."""

    timeout: float = 60.0  # seconds without a byte
    seconds: float = 0.0  # for one complete response; 0: the same as `timeout`
    retries: int = 2
    backoff: float = 0.5  # seconds before the first retry; doubled for each further retry
    max_bytes: int = MAX_BYTES


class Attempts:
    """Counts the attempts of one request. The time limits of the policy begin when this object is created."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._seconds = policy.seconds or policy.timeout
        self._start = time.monotonic()
        self._retries = 0

    def limit(self) -> ResponseLimit:
        """Return the time and size limits for the response to the next attempt."""
        left = self._start + self._policy.timeout + self._seconds - time.monotonic()
        return ResponseLimit(self._policy.timeout, min(self._seconds, left), self._policy.max_bytes)

    def retry(self, status: int = 0, headers: Any = None, message: str = "") -> bool:
        """Decide whether a failed request may be sent again, and if so, wait and return True. A retry is allowed if the
        connection was lost, or if the error is temporary and the input is not too long. Return False in all other
        cases, and if no retry or no time is left. Do not call this after a timeout, because the server may still be
        working on the request. The header `Retry-After`, or else the policy, determines the time to wait. `status` is
        the HTTP status, or 0 for a lost connection; `message` is the error message of the server. The method `get` of
        `headers` must ignore upper and lower case."""
        if self._retries >= self._policy.retries:
            return False
        if status and (not is_temporary(status) or is_overflow(status, message)):
            return False
        wait = _retry_after(headers or {})
        if wait is None:
            spread: float = random.uniform(0.5, 1.5)  # noqa: S311 - clients that failed together retry at different times
            wait = self._policy.backoff * 2.0**self._retries * spread
        timeout = self._policy.timeout
        latest = self._start + timeout + min(timeout, self._seconds * (1 - _SHORTEST_SHARE))
        if wait > _LONGEST_WAIT or time.monotonic() + wait >= latest:
            return False
        self._retries += 1
        time.sleep(wait)
        return time.monotonic() < latest  # a busy machine may sleep longer


class ResponseLimit:
    """The time and the number of bytes that are left for one response."""

    def __init__(self, timeout: float, seconds: float, max_bytes: int) -> None:
        self._timeout = timeout
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._max_bytes = max_bytes
        self._bytes = 0

    def left(self) -> float:
        """Return the number of seconds left for the response. Raise `OverLimit` if no time is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.too_slow()
        return left

    def too_slow(self) -> OverLimit:
        """Return the exception for a response that was not complete at its deadline."""
        return OverLimit(f"did not finish its response within {self._seconds:.3g} s", "seconds")

    def read(self, receive: Callable[[float], Any], timeout: float | None = None) -> Any:
        """Read from the network by calling `receive(seconds)`, and return the bytes that it returns. `seconds` is the
        longest time that this read may take: `timeout`, or the timeout of the policy if `timeout` is None, but not more
        than the time left. Raise `OverLimit` if the time or the size of the response is exceeded."""
        left = self.left()
        wait = min(left, self._timeout if timeout is None else timeout)
        try:
            data = receive(wait)
        except Exception as error:
            if not isinstance(error, TimeoutError) and not isinstance(error.__cause__, TimeoutError):
                raise
            data = None
        if data is None:  # raised here, without the timeout as its cause: it is not a lost connection
            raise self.too_slow() if wait == left else OverLimit(f"sent nothing for {wait:.3g} s", "timeout")
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            raise OverLimit(f"sent more than {self._max_bytes} bytes in one response")
        return data


def _retry_after(headers: Any) -> float | None:
    """Return the number of seconds that the server requests in the header `retry-after-ms` or `Retry-After`. Return
    None if there is no such header."""
    for name, per_second in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name) or ""
        try:
            seconds = float(value) / per_second
        except ValueError:
            try:
                seconds = max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
            except (ValueError, TypeError, OverflowError):
                continue
        if seconds >= 0:
            return seconds
    return None
