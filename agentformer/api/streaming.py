"""Server-sent events: an answer that is spoken, over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from flask import Response, json

from agentformer.api.problems import problem
from agentformer.api.pulling import pulled
from agentformer.tools.shapes import event_json
from agentformer.types import AnswerEvent

EVENT_STREAM = "text/event-stream"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies pass each event on as it comes
_SILENCE = 3.0  # seconds without an event, after which a comment shows whether the client is still there

log = logging.getLogger("agentformer")


def event_stream(events: Generator[AnswerEvent, None, None]) -> Response:
    """The events `token` and `error` as they come, and last `answer`. A client that goes away is noticed also while
    the model is silent, and frees the server's thread; the model's stream ends with its next piece."""
    return Response(_sent(events), content_type=f"{EVENT_STREAM}; charset=utf-8", headers=_HEADERS)


def _sent(events: Generator[AnswerEvent, None, None]) -> Iterator[str]:
    try:
        with closing(pulled(events, _SILENCE)) as coming:
            for event in coming:
                yield _event(*event_json(event)) if event else _COMMENT
    except Exception:  # the status was sent already, so that an error can only be an event
        log.exception("an answer broke off")
        told = problem(500, "internal").get_json()
        yield _event("error", {"type": told["type"], "title": told["title"], "detail": _BROKE_OFF})


def _event(name: str, data: Mapping[str, Any]) -> str:
    """JSON in ASCII has no line break, and carries half a character that a model may send."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=True)}\n\n"


_COMMENT = ":\n\n"
_BROKE_OFF = "The answer broke off by an error of this server; what came before it is valid. Ask again."
