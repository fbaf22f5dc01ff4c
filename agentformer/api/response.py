"""Responses: JSON, problem documents for every error, and streams of server-sent events."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from queue import Empty, Queue
from typing import Any, TypeVar

from flask import Blueprint, Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from agentformer.access.grant import Grant
from agentformer.errors import AgentFormerError
from agentformer.http.problems import PROBLEM, Problem, problem_json, problem_of
from agentformer.tools.result_json import event_json
from agentformer.types import AnswerEvent

log = logging.getLogger("agentformer")

EVENT_STREAM = "text/event-stream"
Event = tuple[str, Mapping[str, Any]]  # name and data
T = TypeVar("T")

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies must not buffer events
_SILENCE_SECONDS = 3.0  # without an event, before a comment checks that the client is still connected
_COMMENT = ":\n\n"
_INTERRUPTED = "The answer was interrupted by a server error. The part before it is valid. Ask again."
_MAX_THREADS = 64  # at once; further generators run in the thread of their caller, without comments
_threads = threading.BoundedSemaphore(_MAX_THREADS)


def reply(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of type `application/json` in UTF-8."""
    try:
        body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from a model or a file name
        body = json.dumps(value, allow_nan=False).encode()
    return Response(body, status, headers, content_type="application/json")


def reply_to_reader(grant: Grant, value: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Return 200 with the value, or 204 without the right to read."""
    return reply(value, 200, headers) if grant.may("read") else Response(status=204, headers=headers)


def reply_page(name: str, items: Sequence[Mapping[str, Any]], limit: int) -> Response:
    """Return a page of items. `next` is the id of the last item, or None if the page is not full."""
    return reply({name: items, "next": items[-1]["id"] if len(items) == limit else None})


def prefers_events() -> bool:
    """Return True if the header `Accept` prefers server-sent events to JSON."""
    return request.accept_mimetypes.best_match(["application/json", EVENT_STREAM]) == EVENT_STREAM


def problem(status: int, kind: str, detail: str = "", **members: Any) -> Response:
    """Return a response of type `application/problem+json`."""
    return _response(Problem(status, problem_json(status, kind, detail, **members)))


def handle_errors(target: Flask | Blueprint) -> None:
    """Answer every error of a whole application, or of the views of a blueprint, with a problem document."""
    target.register_error_handler(AgentFormerError, _expected)
    target.register_error_handler(HTTPException, _http)
    target.register_error_handler(Exception, _unexpected)


def _response(problem: Problem) -> Response:
    return Response(problem.as_json(), problem.status, problem.headers, content_type=PROBLEM)


def _expected(error: AgentFormerError) -> Response:
    problem = problem_of(error)
    if problem.status >= 500:
        log.error("%s %s: %s", request.method, request.path, error)
    return _response(problem)


def _http(error: HTTPException) -> Response:
    kind = (error.name or "error").lower().replace(" ", "-")
    response = problem(error.code or 500, kind, error.description or "", title=error.name or "Error")
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def _unexpected(error: Exception) -> Response:
    log.exception("%s %s", request.method, request.path)
    return problem(500, "internal")


def answer_stream(events: Generator[AnswerEvent, None, None]) -> Response:
    """Stream an answer as events `token` and `error`, and at the end an event `answer`."""
    return stream(_named(events), _INTERRUPTED)


def stream(events: Generator[Event | None, None, None], interrupted: str) -> Response:
    """Stream events. None is sent as a comment. If a server error interrupts the stream, `interrupted` is the detail of
    the last event.

    If the client disconnects, the thread of the server is released, and `events` is closed at its next event.
    """
    return Response(_encoded(events, interrupted), content_type=f"{EVENT_STREAM}; charset=utf-8", headers=_HEADERS)


def in_thread(items: Generator[T, None, None], seconds: float) -> Generator[T | None, None, None]:
    """Yield the items of a generator that runs in a thread. Whenever `seconds` pass without an item, yield None.

    Errors of `items` are raised here. Closing this generator does not wait: `items` is closed at its next item or at
    its end.
    """
    if not _threads.acquire(blocking=False):
        with closing(items):
            yield from items
        return
    queue: Queue[T | _End] = Queue(1)  # one item, so that the generator waits for a slow reader
    cancelled = threading.Event()
    threading.Thread(target=_produce, args=(items, queue, cancelled), name="agentformer-stream", daemon=True).start()
    try:
        while True:
            try:
                item = queue.get(timeout=seconds)
            except Empty:
                yield None
                continue
            if isinstance(item, _End):
                break
            yield item
    finally:
        cancelled.set()
        with suppress(Empty):
            queue.get_nowait()  # so that the producer does not wait for space
    if item.error:
        raise item.error


class _End:
    """The end of a generator, with its error if it raised one."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


def _produce(items: Generator[T, None, None], queue: Queue[T | _End], cancelled: threading.Event) -> None:
    """Put all items into the queue, and then the end."""
    error: Exception | None = None
    try:
        with closing(items):
            for item in items:
                queue.put(item)
                if cancelled.is_set():
                    break
    except Exception as raised:  # noqa: BLE001 - it is raised again by the reader
        error = raised
    finally:
        _threads.release()
        if not cancelled.is_set():
            queue.put(_End(error))


def _named(events: Generator[AnswerEvent, None, None]) -> Generator[Event, None, None]:
    with closing(events):
        for event in events:
            yield event_json(event)


def _encoded(events: Generator[Event | None, None, None], interrupted: str) -> Iterator[str]:
    try:
        with closing(in_thread(events, _SILENCE_SECONDS)) as items:
            for event in items:
                yield _event(*event) if event else _COMMENT
    except Exception:  # the status was sent already, so the error can only be an event
        log.exception("a stream was interrupted")
        problem = problem_json(500, "internal")
        yield _event("error", {"type": problem["type"], "title": problem["title"], "detail": interrupted})


def _event(name: str, data: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n"
