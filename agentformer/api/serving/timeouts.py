"""A connection on which nobody can keep a thread waiting for long."""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

HEADER_SECONDS = 10.0  # of waiting for the headers of a request
BODY_SECONDS = 30.0  # of waiting after that, beside what `LEAST_RATE` allows for
IDLE_SECONDS = 20.0  # without a byte
LINGER_SECONDS = 2.0  # at the end, for who is still sending a body that was refused, and reads the answer after it
LEAST_RATE = 1024  # bytes that a client takes or gives in a second of waiting: less than any line that is in use

HEAD_BYTES = 64 * 1024  # of the headers of a request, and of what is read ahead of a thread

_PIECE = 64 * 1024
_HEAD_ENDS = re.compile(rb"\r\n\r\n|(?<!\r)\n")  # after a line that ends otherwise no parser goes on


class HeadersTooLong(Exception):
    """Over `HEAD_BYTES` came without an end of the headers."""


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
    """A socket that is read ahead until the headers of a request are whole, so that no thread waits for them; after
    that it counts how long it waited for the other side. Who is too slow is gone: reading ends, and writing breaks.
    Only waiting counts, not the time in which an answer is made. A timeout that somebody else has set holds instead
    of ours. Not thread-safe."""

    _held: bytearray  # read, but not yet asked for
    _reading: _Patience | None  # None until the headers are read: there is nothing to wait for
    _over = False

    @classmethod
    def instead_of(cls, plain: socket.socket) -> PatientSocket:
        """The same connection; `plain` is left without one."""
        timeout = plain.gettimeout()
        patient = cls(fileno=plain.detach())
        patient.settimeout(timeout)
        patient._held = bytearray()
        patient.expect_headers()
        return patient

    def expect_headers(self, begun: bytes = b"") -> None:
        """A request begins, with these bytes if a former one was read together with them."""
        self._held[:0] = begun
        self._looked = 0
        self._ready = self._too_long = False
        self._reading = None
        self._writing = _Patience(BODY_SECONDS, LEAST_RATE)

    def gather(self) -> bool:
        """Read what has come, without waiting: of a socket that does not block. True if a thread can go on with it:
        the headers are whole, or too long, or nothing more comes."""
        if self._is_ready():
            return True
        if (room := HEAD_BYTES - len(self._held)) > 0:
            with suppress(BlockingIOError):
                piece = self._received(room)
                self._held += piece
                self._over = not piece
        self._too_long = not self._is_ready() and len(self._held) >= HEAD_BYTES
        return self._ready or self._too_long or self._over

    def read_ahead(self) -> bytes:
        """What came with the last request and was not asked for; it is kept no longer."""
        data = bytes(self._held)
        self._held.clear()
        return data

    def expect_body(self) -> None:
        """The headers are here. What comes now may be long."""
        self._reading = _Patience(BODY_SECONDS, LEAST_RATE)

    def part(self) -> bool:
        """Say that nothing more comes. Where the connection still stands, closing it at once could drop what the
        other side has not read yet: `drop` what it sends for a moment."""
        self._over = True
        try:
            self.shutdown(socket.SHUT_WR)
            self.setblocking(False)
        except OSError:
            return False
        return True

    def drop(self) -> bool:
        """Forget what has come, without waiting. False at the end of the connection."""
        try:
            return bool(self._received(_PIECE))
        except BlockingIOError:
            return True

    def setblocking(self, flag: bool, /) -> None:
        """Of a connection that is closed there is nothing to set, and no error: gunicorn would count it twice."""
        if self.fileno() >= 0:
            super().setblocking(flag)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """b"" at the end: of what is sent, of the connection, or of our patience. Raises `HeadersTooLong`."""
        if self._held:
            data = bytes(self._held[:size])
            del self._held[:size]
        elif self._too_long:
            raise HeadersTooLong
        elif self._over or self._reading is None:
            return b""
        elif self.gettimeout() is not None:
            return super().recv(size, flags)
        else:
            return self._waited_for(size, flags, self._reading)
        if self._reading:
            self._reading.spend(0, len(data))
        return data

    def _waited_for(self, size: int, flags: int, patience: _Patience) -> bytes:
        try:
            with self._waiting(patience) as moved:
                data = super().recv(size, flags)
                moved.append(len(data))
        except (TimeoutError, ConnectionError):
            return b""
        return data

    def _received(self, size: int) -> bytes:
        """Like `recv` of a socket that does not block, but that a broken connection has ended."""
        try:
            return super().recv(size)
        except (BlockingIOError, InterruptedError):
            raise BlockingIOError from None
        except OSError:
            return b""

    def _is_ready(self) -> bool:
        if not self._ready:
            self._ready = _HEAD_ENDS.search(self._held, self._looked) is not None
            self._looked = max(0, len(self._held) - 3)  # of an end, three bytes may be here
        return self._ready

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
