"""Protection of the servers in this package against slow clients: limits for the time of the headers, for the time of
the body, and for the transfer rate."""

from __future__ import annotations

import errno
import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ServerTimeouts:
    """The limits of a server for its clients: times in seconds, and the lowest transfer rate in bytes per second."""

    headers: float  # seconds for the headers of a request
    body: float  # seconds for the body, in addition to the time that `rate` gives for its length
    idle: float  # seconds without a byte in either direction
    rate: int  # least bytes per second that a client must send or read
    linger: float  # seconds after a refusal in which the client can finish sending and read the response


# Only the time of waiting is counted. Any network connection in use is faster than 1 KiB/s.
HTTP_API = ServerTimeouts(headers=10.0, body=30.0, idle=20.0, rate=1024, linger=2.0)
# The complete time is counted, and bodies are in memory. The largest message (64 MiB) has about five minutes.
MCP = ServerTimeouts(headers=20.0, body=30.0, idle=20.0, rate=256 * 1024, linger=1.0)

HEAD_BYTES = 64 * 1024  # bytes of the headers of a request; no more is read before a thread is assigned
_PEEK_BYTES = 64 * 1024  # largest body that is expected in the buffer of a socket
MAX_SLOW_READERS = 24  # clients of a process that read slowly at the same time; each of them blocks a thread
_READ_SECONDS = 1.0  # a client that takes no byte for a longer time counts as slow
_slow_readers = threading.BoundedSemaphore(MAX_SLOW_READERS)
_BODY_GRACE_SECONDS = 0.1  # a body that arrives within this time after its headers is not slow
_POLL_SECONDS = 0.005
_HEADERS_END = re.compile(rb"\r\n\r\n|(?<!\r)\n")  # all parsers stop at a line that ends with \n without \r


class HeadersTooLong(Exception):
    """A client sent more than `HEAD_BYTES` bytes, but not yet the end of the request's headers."""


class TimeBudget:
    """The time that a client has left to send a request, or to read a response. Each transferred byte adds some time,
    so a client that is fast enough never runs out of time."""

    def __init__(self, seconds: float, timeouts: ServerTimeouts) -> None:
        self._left = seconds
        self._timeouts = timeouts

    @property
    def left(self) -> float:
        """The number of seconds that the next read or write may take. It is 0 if the client has been too slow."""
        return max(0.0, min(self._left, self._timeouts.idle))

    def spend(self, seconds: float, transferred: int) -> None:
        """Subtract the seconds that have passed, and add the time for the bytes that were transferred meanwhile."""
        self._left += transferred / self._timeouts.rate - seconds


class TimedSocket(socket.socket):
    """The connection of a client to a server that uses a thread for each request. A slow client cannot occupy a thread
    for long. Not thread-safe.

    The headers of a request are received before a thread is assigned, by reads that do not block. Then the time that
    the thread waits for the client is counted. When the client has no time left, `recv` returns b"" as at the end of
    the stream, and `sendall` raises `BrokenPipeError`. A timeout that a caller sets on the socket replaces these
    limits."""

    _buffer: bytearray  # received, but not yet returned by `recv`
    _reading: TimeBudget | None  # None until the headers are read
    _ended = False
    _received = 0  # bytes of the body that `recv` had returned when the headers were complete

    @classmethod
    def replacing(cls, plain: socket.socket) -> TimedSocket:
        """Return a `TimedSocket` for the connection of the socket `plain`, so that the time limits apply to the
        connection. After this call, `plain` cannot be used."""
        timeout = plain.gettimeout()
        timed = cls(fileno=plain.detach())
        timed.settimeout(timeout)
        timed._buffer = bytearray()
        timed.expect_headers()
        return timed

    def expect_headers(self, received: bytes = b"") -> None:
        """Prepare the connection for a new request. `received` are the bytes of the new request that arrived together
        with the previous request."""
        self._buffer[:0] = received
        self._searched = 0
        self._complete = self._too_long = False
        self._reading = None
        self._writing = TimeBudget(HTTP_API.body, HTTP_API)

    def receive_headers(self) -> bool:
        """Read the bytes that have arrived, without blocking. Return True if a thread can continue with the request:
        its headers are complete or too long, or the connection has ended."""
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
        """Return the bytes that arrived after the last request, and empty the buffer. They are the beginning of the
        next request."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def expect_body(self, received: int = 0) -> None:
        """Start to count the time for the body of the request. Call this method when the headers are complete.
        `received` is the number of bytes of the body that `recv` has already returned together with the headers."""
        self._received = received
        self._reading = TimeBudget(HTTP_API.body, HTTP_API)

    def has_body(self, size: int | None) -> bool:
        """Return whether a body of `size` bytes has arrived completely. Many clients send the body just after the
        headers, so wait a short time for the body. Return False at once for a long body, and for a body of unknown size
        (None). Call this method before the body is read."""
        if size is None:
            return False
        missing = size - self._received - len(self._buffer)
        if missing <= 0 or missing > _PEEK_BYTES:
            return missing <= 0
        if self._holds(missing):
            return True
        deadline = time.monotonic() + _BODY_GRACE_SECONDS
        self._wait_for_bytes(_BODY_GRACE_SECONDS)
        while not (arrived := self._holds(missing)) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return arrived

    def _wait_for_bytes(self, seconds: float) -> None:
        """Wait until a byte arrives, or until the connection ends, but at most `seconds`. No byte is removed from the
        connection. Clients send the body in one piece, so it is usually complete when its first byte arrives."""
        timeout = self.gettimeout()
        self.settimeout(seconds)
        with suppress(OSError):
            super().recv(1, socket.MSG_PEEK)
        self.settimeout(timeout)

    def _holds(self, size: int) -> bool:
        try:
            return len(super().recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)) >= size
        except OSError:
            return False

    def is_closed_by_client(self) -> bool:
        """Return whether the client has closed the connection and all bytes were read. This call consumes no byte."""
        try:
            return super().recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def end_writing(self) -> bool:
        """Signal to the client that no more bytes will be sent. Return False if the connection is already closed. If
        the result is True, call `discard` repeatedly for a short time before you close the socket: closing at once
        could delete a response that the client has not read yet."""
        self._ended = True
        try:
            self.shutdown(socket.SHUT_WR)
            self.setblocking(False)
        except OSError:
            return False
        return True

    def discard(self) -> bool:
        """Read the bytes that have arrived, and ignore them. Return False if the client has closed the connection."""
        try:
            return bool(self._receive_now(HEAD_BYTES))
        except BlockingIOError:
            return True

    def setblocking(self, flag: bool, /) -> None:
        """Set the blocking mode, unless the socket is closed. After an error, gunicorn would close the socket again."""
        if self.fileno() >= 0:
            super().setblocking(flag)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return bytes that the client has sent. Return b"" if the client has closed the connection or has no time
        left. Raise `HeadersTooLong` if the headers are too long."""
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
        """Send all bytes of `data` to the client. Raise `BrokenPipeError` if the client reads too slowly, if too many
        other clients read slowly at the same time, or if the connection is broken."""
        if self.gettimeout() is not None:
            return super().sendall(data, flags)
        rest = memoryview(data).cast("B")
        with ExitStack() as held:
            seconds = _READ_SECONDS
            while rest:
                try:
                    with self._counting(self._writing, seconds) as sent:
                        sent.append(super().send(rest, flags))
                except TimeoutError:
                    if seconds == math.inf or not _slow_readers.acquire(blocking=False):
                        raise BrokenPipeError(errno.EPIPE, "the client reads too slowly") from None
                    held.callback(_slow_readers.release)
                    seconds = math.inf
                else:
                    rest = rest[sent[0] :]
        return None

    def _receive_now(self, size: int) -> bytes:
        """Return the bytes that have arrived, or b"" if the connection is broken. Raise `BlockingIOError` if no bytes
        have arrived."""
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
    def _counting(self, budget: TimeBudget, most: float = math.inf) -> Iterator[list[int]]:
        """Measure the time of the `with` block and subtract it from `budget`. The block appends the number of
        transferred bytes to the yielded list. Raise `TimeoutError` if no time is left, or after `most` seconds."""
        transferred: list[int] = []
        if not budget.left:
            raise TimeoutError
        self.settimeout(min(budget.left, most))
        started = time.monotonic()
        try:
            yield transferred
        finally:
            self.settimeout(None)
            budget.spend(time.monotonic() - started, sum(transferred))
