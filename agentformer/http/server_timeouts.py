"""Timeouts of our servers for slow clients: time for the headers, time for the body, and a least transfer rate."""

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
    """The limits of one server, in seconds and in bytes per second."""

    headers: float  # seconds for the headers of a request
    body: float  # seconds for the body, in addition to the time that `rate` gives for its length
    idle: float  # seconds without a byte in either direction
    rate: int  # least bytes per second that a client must send or read
    linger: float  # seconds after a refusal in which the client can finish sending and read the response


# Only the time of waiting is counted. Any network connection in use is faster than 1 KiB/s.
HTTP_API = ServerTimeouts(headers=10.0, body=30.0, idle=20.0, rate=1024, linger=2.0)
# The complete time is counted, and bodies are in memory. The largest message (64 MiB) has about five minutes.
MCP = ServerTimeouts(headers=20.0, body=30.0, idle=20.0, rate=256 * 1024, linger=1.0)

HEAD_BYTES = 64 * 1024  # bytes of the headers of a request; no more is read before a thread is needed
_DISCARD_BYTES = 64 * 1024
_HEADERS_END = re.compile(rb"\r\n\r\n|(?<!\r)\n")  # all parsers stop at a line that ends with \n without \r


class HeadersTooLong(Exception):
    """The client sent more than `HEAD_BYTES` bytes before the end of the headers."""


class TimeBudget:
    """The time that a client has left in one direction of one request. Transferred bytes add time."""

    def __init__(self, seconds: float, timeouts: ServerTimeouts) -> None:
        self._left = seconds
        self._timeouts = timeouts

    @property
    def left(self) -> float:
        """The seconds left; 0 if the client is too slow already."""
        return max(0.0, min(self._left, self._timeouts.idle))

    def spend(self, seconds: float, transferred: int) -> None:
        """Subtract the time that has passed, and add the time that the transferred bytes earn."""
        self._left += transferred / self._timeouts.rate - seconds


class TimedSocket(socket.socket):
    """A connection of a server with threads. No slow client can block a thread for long.

    The headers of a request are read without blocking, before a thread is needed. After that, the time that a thread
    waits for the client is counted. When no time is left, reading returns the end of the stream, and writing raises
    `BrokenPipeError`. If a caller sets a timeout, it replaces these limits. Not thread-safe.
    """

    _buffer: bytearray  # received, but not yet returned by `recv`
    _reading: TimeBudget | None  # None until the headers are read
    _ended = False

    @classmethod
    def replacing(cls, plain: socket.socket) -> TimedSocket:
        """Take over the connection of the socket `plain`, and detach `plain`."""
        timeout = plain.gettimeout()
        timed = cls(fileno=plain.detach())
        timed.settimeout(timeout)
        timed._buffer = bytearray()
        timed.expect_headers()
        return timed

    def expect_headers(self, received: bytes = b"") -> None:
        """Begin a new request. `received` are the bytes of it that came with the previous request."""
        self._buffer[:0] = received
        self._searched = 0
        self._complete = self._too_long = False
        self._reading = None
        self._writing = TimeBudget(HTTP_API.body, HTTP_API)

    def receive_headers(self) -> bool:
        """Read the available bytes of the non-blocking socket. Return True if a thread can continue: the headers are
        complete or too long, or the connection has ended."""
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
        """Return the bytes after the last request, and remove them from the buffer."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def expect_body(self) -> None:
        """Start the time for the body after the headers are read."""
        self._reading = TimeBudget(HTTP_API.body, HTTP_API)

    def end_writing(self) -> bool:
        """Send the end of the stream. Return False if the connection is already closed. Then call `discard` for a short
        time before closing, because otherwise the client may lose a response that it has not read."""
        self._ended = True
        try:
            self.shutdown(socket.SHUT_WR)
            self.setblocking(False)
        except OSError:
            return False
        return True

    def discard(self) -> bool:
        """Read and drop the available bytes without waiting. Return False at the end of the connection."""
        try:
            return bool(self._receive_now(_DISCARD_BYTES))
        except BlockingIOError:
            return True

    def setblocking(self, flag: bool, /) -> None:
        """Do nothing for a closed socket, because gunicorn would handle the error as a second end of the connection."""
        if self.fileno() >= 0:
            super().setblocking(flag)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return the received bytes, or b"" at the end of the stream or of the time. Raises `HeadersTooLong`."""
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
            try:
                with self._counting(self._reading) as received:
                    received.append(len(data := super().recv(size, flags)))
            except (TimeoutError, ConnectionError):
                return b""
            return data
        if self._reading:
            self._reading.spend(0, len(data))
        return data

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Send the data. Raises `BrokenPipeError`, also if the client reads too slowly."""
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

    def _receive_now(self, size: int) -> bytes:
        """Return the available bytes, or b"" for a broken connection. Raises `BlockingIOError` for no bytes."""
        try:
            return super().recv(size)
        except (BlockingIOError, InterruptedError):
            raise BlockingIOError from None
        except OSError:
            return b""

    def _has_headers(self) -> bool:
        if not self._complete:
            self._complete = _HEADERS_END.search(self._buffer, self._searched) is not None
            self._searched = max(0, len(self._buffer) - 3)  # up to three bytes of the end may be in the buffer already
        return self._complete

    @contextmanager
    def _counting(self, budget: TimeBudget) -> Iterator[list[int]]:
        """Yield a list for the number of transferred bytes. Raises `TimeoutError` when no time is left."""
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
