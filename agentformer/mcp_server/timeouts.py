"""Timeouts for clients, and the limit of connections, of the HTTP server. Both are for uvicorn."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentformer.http.problems import Problem, problem_json
from agentformer.http.server_timeouts import MCP, TimeBudget

MAX_CONNECTIONS = 512  # at once; most machines allow 1,024 file descriptors
_MAX_REFUSED = 128  # further connections that get a response at one time; the rest is closed at once
SAFE_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

_TOO_SLOW = Problem(
    408,
    problem_json(
        408, "incomplete-request", "The request was incomplete or too slow. Send it again.", title="Request Timeout"
    ),
    SAFE_HEADERS,
).as_http()
_TOO_MANY = Problem(
    503,
    problem_json(503, "busy", "Close unused connections, and retry after 2 s.", title="Too many connections"),
    {**SAFE_HEADERS, "Retry-After": "2"},
).as_http()


class TimeoutProtocol(H11Protocol):
    """Uvicorn's protocol with timeouts for the client, because uvicorn itself waits without limit for headers and
    bodies. The time for making the response is not limited."""

    _ended = False  # the last response is sent; further data are dropped
    _phase: Any = None  # the request and its part that is being received; None while nothing is expected
    _budget: TimeBudget
    _counted_at = 0.0  # loop time of the last change of the budget
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse a connection beyond the limit. For any other connection, wait for the headers of a request."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS + _MAX_REFUSED:
            self._ended = True
            transport.abort()
        elif len(self.connections) > MAX_CONNECTIONS:
            self._close_with(_TOO_MANY)
        else:
            self._update_timer(0)

    def data_received(self, data: bytes) -> None:
        """Pass data on, and give the client more time."""
        if not self._ended:
            super().data_received(data)
            self._update_timer(len(data))

    def on_response_complete(self) -> None:
        """Wait for the next request. Its first bytes may have arrived before this response was complete."""
        super().on_response_complete()
        self._update_timer(0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        self._ended = True
        self._cancel_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Close the connection if the client reads nothing for the idle time."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(MCP.idle, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the timer of `pause_writing`."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if the client does not read the last response."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(MCP.idle, self.transport.abort)

    def shutdown(self) -> None:
        """Finish running calls, and drop incomplete requests."""
        if self._ended or self._is_receiving():
            self._end_call()
            self.transport.abort()
        else:
            with suppress(h11.LocalProtocolError):
                super().shutdown()

    def _is_receiving(self) -> bool:
        """Return True if the client still has to send a part of the request."""
        return self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        )

    def _update_timer(self, received: int) -> None:
        """Start the timer again after the client has sent this many bytes."""
        self._cancel_timer()
        if self._ended or self.transport.is_closing() or not self._is_receiving():
            self._phase = None
            return
        phase, now = (self.cycle, self.conn.their_state), self.loop.time()
        is_body = self.conn.their_state is h11.SEND_BODY
        if phase != self._phase:
            self._phase, self._budget = phase, TimeBudget(MCP.body if is_body else MCP.headers, MCP)
        else:
            self._budget.spend(now - self._counted_at, received if is_body else 0)
        self._counted_at = now
        self._timer = self.loop.call_later(self._budget.left, self._time_out)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        has_response = self.conn.their_state is h11.SEND_BODY and self.cycle.response_started
        self._close_with(b"" if has_response else _TOO_SLOW)

    def _close_with(self, response: bytes) -> None:
        """Send a response and close the connection a moment later. If it were closed at once, the client could lose the
        response."""
        self._ended = True
        self._end_call()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write(response)
        with suppress(OSError):
            self.transport.write_eof()
        self.loop.call_later(MCP.linger, self.transport.abort)

    def _end_call(self) -> None:
        """Report a disconnect to the application that handles the request."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
