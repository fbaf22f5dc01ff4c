"""Connections on which nobody can keep the server waiting, or too many others out."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentformer.mcp_server.problem import last_words

HEADER_SECONDS = 20.0  # that the headers of a request may take
BODY_SECONDS = 30.0  # that a body may take, beside what `LEAST_RATE` allows for
IDLE_SECONDS = 20.0  # without a byte, in either direction
LEAST_RATE = 256 * 1024  # bytes of a body in a second: the largest message has five minutes
MOST_CONNECTIONS = 512  # at once; file descriptors are 1,024 on most machines
_MOST_TURNED_AWAY = 128  # that are told why at one time; others are cut
_LINGER_SECONDS = 1.0  # for who is still sending, and reads the answer after it

_TOO_SLOW = last_words(
    408, "incomplete-request", "Request Timeout", "the request did not arrive as a whole, or too slowly; send it again"
)
_TOO_MANY = last_words(
    503, "busy", "Too many connections", "try again in a moment, and close what is not used", {"Retry-After": "2"}
)


class PatientProtocol(H11Protocol):
    """Uvicorn's own, which by itself waits for ever for headers and bodies. Only what the other side is owing has a
    deadline; the time in which an answer is made has none."""

    _over = False  # said all; what comes is dropped
    _phase: Any = None  # of receiving a request; None while none is awaited
    _due = 0.0  # when that phase must have ended
    _timer: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None  # for who does not take what is sent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS + _MOST_TURNED_AWAY:
            self._over = True
            transport.abort()
        elif len(self.connections) > MOST_CONNECTIONS:
            self._end(_TOO_MANY)
        else:
            self._watch(0)

    def data_received(self, data: bytes) -> None:
        if not self._over:
            super().data_received(data)
            self._watch(len(data))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch(0)  # another request may have begun to come before this answer

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._rest()
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(IDLE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(IDLE_SECONDS, self.transport.abort)  # an answer that nobody takes would keep it open

    def shutdown(self) -> None:
        """What is under way is answered; what has not come whole is dropped."""
        if self._over or self._receiving():
            self._drop()
            self.transport.abort()
        else:
            with suppress(h11.LocalProtocolError):
                super().shutdown()

    def _receiving(self) -> bool:
        """Whether the other side has a request to finish."""
        return self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        )

    def _watch(self, received: int) -> None:
        """Set the deadline anew, after this many bytes came."""
        self._rest()
        if self._over or self.transport.is_closing() or not self._receiving():
            self._phase = None
            return
        phase, now = (self.cycle, self.conn.their_state), self.loop.time()
        body = self.conn.their_state is h11.SEND_BODY
        if phase != self._phase:
            self._phase, self._due = phase, now + (BODY_SECONDS if body else HEADER_SECONDS)
        elif body:
            self._due += received / LEAST_RATE
        self._timer = self.loop.call_at(min(self._due, now + IDLE_SECONDS), self._give_up)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        answered = self.conn.their_state is h11.SEND_BODY and self.cycle.response_started
        self._end(b"" if answered else _TOO_SLOW)

    def _end(self, words: bytes) -> None:
        """Say this and close. Closing at once could lose the words: the other side may be sending still."""
        self._over = True
        self._drop()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write(words)
        with suppress(OSError):
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _drop(self) -> None:
        """Let who works at the request know that nothing more comes, and that nothing can be answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
