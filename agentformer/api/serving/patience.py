"""A connection on which nobody can keep a thread waiting for long."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

HEADER_SECONDS = 10.0  # of waiting for the headers of a request
BODY_SECONDS = 30.0  # of waiting after that, beside what `LEAST_RATE` allows for
IDLE_SECONDS = 20.0  # without a byte
LINGER_SECONDS = 5.0  # at the end, for who is still sending a body that was refused, and reads the answer after it
LINGER_IDLE_SECONDS = 1.0
LEAST_RATE = 1024  # bytes that a client takes or gives in a second of waiting: less than any line that is in use

_PIECE = 64 * 1024


class _Patience:
    """How long the other side may let us wait, in one direction and one request."""

    def __init__(self, seconds: float, rate: int) -> None:
        self._left = seconds
        self._rate = rate

    def limit(self) -> float:
        """Seconds until who waits gives up. Raises `TimeoutError` when it has to."""
        if self._left <= 0:
            raise TimeoutError
        return min(self._left, IDLE_SECONDS)

    def spend(self, seconds: float, moved: int) -> None:
        self._left += (moved / self._rate if self._rate else 0) - seconds


class PatientSocket(socket.socket):
    """A socket that counts how long it waited for the other side in one request. Who is too slow is gone: reading
    ends, and writing breaks. Only waiting counts, not the time in which an answer is made. A timeout that somebody
    else has set holds instead of ours. Not thread-safe."""

    _over = False

    @classmethod
    def instead_of(cls, plain: socket.socket) -> PatientSocket:
        """The same connection; `plain` is left without one."""
        timeout = plain.gettimeout()
        patient = cls(fileno=plain.detach())
        patient.settimeout(timeout)
        patient.expect_headers()
        return patient

    def expect_headers(self) -> None:
        """A request begins."""
        self._reading = _Patience(HEADER_SECONDS, 0)
        self._writing = _Patience(BODY_SECONDS, LEAST_RATE)

    def expect_body(self) -> None:
        """The headers are here. What comes now may be long."""
        self._reading = _Patience(BODY_SECONDS, LEAST_RATE)

    def linger(self) -> None:
        """Say that nothing more comes, and give the other side a moment to read what came: closing at once would drop
        it. Nothing is read from here on."""
        deadline = time.monotonic() + LINGER_SECONDS
        with suppress(OSError):
            self.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self.settimeout(min(left, LINGER_IDLE_SECONDS))
                if not super().recv(_PIECE):
                    break
        self._over = True

    def setblocking(self, flag: bool, /) -> None:
        """Of a connection that is closed there is nothing to set, and no error: gunicorn would count it twice."""
        if self.fileno() >= 0:
            super().setblocking(flag)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """b"" at the end: of what is sent, of the connection, or of our patience."""
        if self._over:
            return b""
        if self.gettimeout() is not None:
            return super().recv(size, flags)
        data = b""
        try:
            with self._waiting(self._reading) as moved:
                data = super().recv(size, flags)
                moved.append(len(data))
        except (TimeoutError, ConnectionError):
            return b""
        return data

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Raises `BrokenPipeError` also for who takes it too slowly."""
        if self.gettimeout() is not None:
            return super().sendall(data, flags)
        rest = memoryview(data).cast("B")
        while rest:
            try:
                with self._waiting(self._writing) as moved:
                    moved.append(super().send(rest, flags))
            except TimeoutError:
                raise BrokenPipeError(errno.EPIPE, "the client reads too slowly") from None
            rest = rest[moved[0] :]
        return None

    @contextmanager
    def _waiting(self, patience: _Patience) -> Iterator[list[int]]:
        """A list for the number of bytes that went. Raises `TimeoutError` when patience ends."""
        moved: list[int] = []
        self.settimeout(patience.limit())
        started = time.monotonic()
        try:
            yield moved
        finally:
            self.settimeout(None)
            patience.spend(time.monotonic() - started, sum(moved))
