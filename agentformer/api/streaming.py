"""Server-sent events: what comes bit by bit, such as an answer that is spoken."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from flask import Response

from agentformer.api.problems import problem_json
from agentformer.api.response import to_json
from agentformer.api.threaded_stream import pulled
from agentformer.tools.shapes import event_json
from agentformer.types import AnswerEvent

EVENT_STREAM = "text/event-stream"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies pass each event on as it comes
_SILENCE = 3.0  # seconds without an event, after which a comment shows whether the client is still there

log = logging.getLogger("agentformer")


def event_stream(events: Generator[AnswerEvent, None, None]) -> Response:
    """The events `token` and `error` as they come, and last `answer`."""
    return stream_of(_named(events), _BROKE_OFF)


def stream_of(events: Generator[tuple[str, Mapping[str, Any]] | None, None, None], broke_off: str) -> Response:
    """Events by their name and data, as they come, and None for a sign of life; `broke_off` is told where they end by
    an error of ours. A client that goes away is noticed also in a silence, and frees the server's thread; `events` is
    closed as soon as it comes to its next one."""
    return Response(_sent(events, broke_off), content_type=f"{EVENT_STREAM}; charset=utf-8", headers=_HEADERS)


def _named(events: Generator[AnswerEvent, None, None]) -> Generator[tuple[str, Mapping[str, Any]], None, None]:
    with closing(events):
        for event in events:
            yield event_json(event)


def _sent(events: Generator[tuple[str, Mapping[str, Any]] | None, None, None], broke_off: str) -> Iterator[str]:
    try:
        with closing(pulled(events, _SILENCE)) as coming:
            for event in coming:
                yield _event(*event) if event else _COMMENT
    except Exception:  # the status was sent already, so that an error can only be an event
        log.exception("a stream broke off")
        told = problem_json(500, "internal")
        yield _event("error", {"type": told["type"], "title": told["title"], "detail": broke_off})


def _event(name: str, data: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {to_json(data)}\n\n"


_COMMENT = ":\n\n"
_BROKE_OFF = "The answer broke off by an error of this server; what came before it is valid. Ask again."
