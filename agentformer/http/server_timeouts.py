"""Timeouts of our servers for slow clients: time for headers, time for a body, and a least transfer rate."""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ServerTimeouts:
    """Limits of one server, in seconds and bytes per second."""

    headers: float  # for the headers of a request
    body: float  # for the body, plus the time that `rate` allows for its length
    idle: float  # without a byte in either direction
    rate: int  # bytes per second that a client must send or read at least
    linger: float  # after a refusal, so that a client that is still sending can read the response


# Only waiting counts, so that 1 KiB/s is enough: less than any line in use.
HTTP_API = ServerTimeouts(headers=10.0, body=30.0, idle=20.0, rate=1024, linger=2.0)
# All time counts, and bodies are held in memory: the largest message (64 MiB) has about five minutes.
MCP = ServerTimeouts(headers=20.0, body=30.0, idle=20.0, rate=256 * 1024, linger=1.0)

HEAD_BYTES = 64 * 1024  # of the headers of a request, and of what is read before a thread is needed
_DISCARD_BYTES = 64 * 1024
_HEADERS_END = re.compile(rb"\r\n\r\n|(?<!\r)\n")  # no parser goes on after a line that ends with a bare \n


class HeadersTooLong(Exception):
    """More than `HEAD_BYTES` came without an end of the headers."""


class TimeBudget:
    """The time that a client may still take for one direction of one request. Transferred bytes add time."""

    def __init__(self, seconds: float, timeouts: ServerTimeouts) -> None:
        self._left = seconds
        self._timeouts = timeouts

    @property
    def left(self) -> float:
        """Seconds until the client is too slow; 0 if it already is."""
        return max(0.0, min(self._left, self._timeouts.idle))

    def spend(self, seconds: float, transferred: int) -> None:
        """Subtract the time that has passed, and add the time that the transferred bytes earn."""
        self._left += transferred / self._timeouts.rate - seconds


class TimedSocket(socket.socket):
    """A connection of a server with threads, which no slow client can block for long.

    The headers of a request are read without blocking, before a thread is needed. After that, the time that a thread
    waits for the client is counted; the time for making the response is not. When the time is over, reading returns
    the end of the stream and writing raises `BrokenPipeError`. A timeout that a caller sets replaces these limits.
    Not thread-safe.
    """

    _buffer: bytearray  # received, but not yet returned by `recv`
    _reading: TimeBudget | None  # None until the headers are read
    _ended = False

    @classmethod
    def replacing(cls, plain: socket.socket) -> TimedSocket:
        """Take over the connection of `plain`, which is detached."""
        timeout = plain.gettimeout()
        timed = cls(fileno=plain.detach())
        timed.settimeout(timeout)
        timed._buffer = bytearray()
        timed.expect_headers()
        return timed

    def expect_headers(self, received: bytes = b"") -> None:
        """Begin a new request. `received` are its first bytes, if they came with the previous request."""
        self._buffer[:0] = received
        self._searched = 0
        self._complete = self._too_long = False
        self._reading = None
        self._writing = TimeBudget(HTTP_API.body, HTTP_API)

    def receive_headers(self) -> bool:
        """Read the available bytes without waiting; the socket must be non-blocking.

        Return True if a thread can take over: the headers are complete or too long, or the connection has ended.
        """
        if self._has_headers():
            return True
        if (free := HEAD_BYTES - len(self._buffer)) > 0:
            with suppress(BlockingIOError):
                data = self._receive_now(free)
                self._buffer += data
                self._ended = not data
        self._too_long = not self._has_headers() and len(self._buffer) >= HEAD_BYTES
        return self._complete or self._too_long or self._ended

    def take_buffer(self) -> bytes:
        """Return the bytes behind the last request, and remove them from the buffer."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def expect_body(self) -> None:
        """Start the time for the body, after the headers are read."""
        self._reading = TimeBudget(HTTP_API.body, HTTP_API)

    def end_writing(self) -> bool:
        """Send the end of the stream. Return False if the connection is already closed.

        Closing at once could discard a response that the client has not read yet: call `discard` for a moment.
        """
        self._ended = True
        try:
            self.shutdown(socket.SHUT_WR)
            self.setblocking(False)
        except OSError:
            return False
        return True

    def discard(self) -> bool:
        """Discard the available bytes without waiting. Return False at the end of the connection."""
        try:
            return bool(self._receive_now(_DISCARD_BYTES))
        except BlockingIOError:
            return True

    def setblocking(self, flag: bool, /) -> None:
        """Ignore a closed socket: gunicorn would count the error as a second end of the connection."""
        if self.fileno() >= 0:
            super().setblocking(flag)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return b"" at the end of the stream or of the time. Raises `HeadersTooLong`."""
        if self._buffer:
            data = bytes(self._buffer[:size])
            del self._buffer[:size]
        elif self._too_long:
            raise HeadersTooLong
        elif self._ended or self._reading is None:
            return b""
        elif self.gettimeout() is not None:
            return super().recv(size, flags)
        else:
            return self._receive_in_time(size, flags, self._reading)
        if self._reading:
            self._reading.spend(0, len(data))
        return data

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Raises `BrokenPipeError` also for a client that reads too slowly."""
        if self.gettimeout() is not None:
            return super().sendall(data, flags)
        rest = memoryview(data).cast("B")
        while rest:
            try:
                with self._counting(self._writing) as sent:
                    sent.append(super().send(rest, flags))
            except TimeoutError:
                raise BrokenPipeError(errno.EPIPE, "the client reads too slowly") from None
            rest = rest[sent[0] :]
        return None

    def _receive_in_time(self, size: int, flags: int, budget: TimeBudget) -> bytes:
        try:
            with self._counting(budget) as received:
                data = super().recv(size, flags)
                received.append(len(data))
        except (TimeoutError, ConnectionError):
            return b""
        return data

    def _receive_now(self, size: int) -> bytes:
        """Return b"" also for a broken connection. Raises `BlockingIOError` if nothing is available."""
        try:
            return super().recv(size)
        except (BlockingIOError, InterruptedError):
            raise BlockingIOError from None
        except OSError:
            return b""

    def _has_headers(self) -> bool:
        if not self._complete:
            self._complete = _HEADERS_END.search(self._buffer, self._searched) is not None
            self._searched = max(0, len(self._buffer) - 3)  # up to three bytes of the end may have come
        return self._complete

    @contextmanager
    def _counting(self, budget: TimeBudget) -> Iterator[list[int]]:
        """Yield a list for the number of transferred bytes. Raises `TimeoutError` when the budget is used up."""
        transferred: list[int] = []
        if not budget.left:
            raise TimeoutError
        self.settimeout(budget.left)
        started = time.monotonic()
        try:
            yield transferred
        finally:
            self.settimeout(None)
            budget.spend(time.monotonic() - started, sum(transferred))
