"""Builds responses: JSON, problem documents for errors, and streams of server-sent events."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, Queue
from typing import Any, TypeVar

import pydantic_core
from flask import Blueprint, Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from agentformer.actor import ACTOR, NOBODY, Actor
from agentformer.errors import AgentFormerError, is_passing, store_failure
from agentformer.http import tracing
from agentformer.servers.problems import PROBLEM, Problem, openai_error, problem_json, problem_of
from agentformer.tools.result_json import event_json
from agentformer.types import AnswerEvent

log = logging.getLogger("agentformer")

EVENT_STREAM = "text/event-stream"
Event = tuple[str, Mapping[str, Any]] | tuple[str, Mapping[str, Any], str]  # name, data, and the id if it has one
T = TypeVar("T")

STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies must not buffer events
SILENCE_SECONDS = 3.0  # seconds without an event, after which a comment is sent to see if the client is still there
_COMMENT = ":\n\n"
_INTERRUPTED = (
    "A server error interrupted the answer. The text that was sent before the error is valid. Ask the question again."
)
_MAX_THREADS = 64  # generators in threads of their own; any more run in the thread of the caller, without comments
_threads = threading.BoundedSemaphore(_MAX_THREADS)


def reply(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response in UTF-8."""
    try:
        body = pydantic_core.to_json(value, inf_nan_mode="constants")
    except pydantic_core.PydanticSerializationError:  # half of a surrogate pair, from a model or a file name
        body = b"NaN"
    if b"NaN" in body or b"Infinity" in body:  # in a text, or a number that JSON does not have, which is an error
        body = json.dumps(value, allow_nan=False).encode()
    return Response(body, status, headers, content_type="application/json")


def reply_page(name: str, items: Sequence[Mapping[str, Any]], limit: int) -> Response:
    """Return a response with one page of a list. `name` is the name of the field that contains the items. The field
    `next` is the id of the last item, or null if the page has fewer than `limit` items and so is the last page."""
    return reply({name: items, "next": items[-1]["id"] if len(items) == limit else None})


def prefers_events() -> bool:
    """Return True if the client prefers server-sent events to JSON, according to the header `Accept`."""
    return request.accept_mimetypes.best_match(["application/json", EVENT_STREAM]) == EVENT_STREAM


def problem(status: int, kind: str, detail: str = "", **members: Any) -> Response:
    """Return a problem document (RFC 9457). `kind` is the end of its field `type`; `members` are further fields."""
    return _response(Problem(status, problem_json(status, kind, detail, **members)))


def handle_errors(target: Flask | Blueprint) -> None:
    """Register error handlers that respond with problem documents. For an application, they handle every error. For a
    blueprint, they handle the errors of its views."""
    target.register_error_handler(AgentFormerError, _expected)
    target.register_error_handler(HTTPException, _http)
    target.register_error_handler(Exception, _unexpected)


def speaks_openai() -> bool:
    """Return True if the path of the request is below `/v1` of a memory, where errors have the format of OpenAI."""
    blueprint = current_app.blueprints.get(request.blueprint or "")
    prefix = (blueprint.url_prefix if blueprint else "") or ""
    return request.path.startswith(f"{prefix}/v1/")


def _response(problem: Problem) -> Response:
    if speaks_openai():
        return reply(openai_error(problem), problem.status, problem.headers)
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
    if is_passing(error):  # such as too many open files, from any library
        return _expected(store_failure("the request was not completed", error, ""))
    log.exception("%s %s", request.method, request.path)
    return problem(500, "internal")


def answer_stream(events: Generator[AnswerEvent, None, None]) -> Response:
    """Return a response that streams an answer: events `token`, an event `error` if the model fails, and an event
    `answer` at the end."""
    return stream(_named(events), _INTERRUPTED)


def stream(events: Generator[Event | None, None, None], interrupted: str) -> Response:
    """Return a response that streams the events. An item None is sent as an empty comment, to check that the client is
    still connected. If a server error interrupts the stream, the last event is `error` with the text `interrupted`. If
    the client disconnects, `events` is closed as soon as it yields its next event."""
    return Response(
        _encoded(events, interrupted, tracing.carrier(), ACTOR.get()),
        content_type=f"{EVENT_STREAM}; charset=utf-8",
        headers=STREAM_HEADERS,
    )


def in_thread(
    items: Generator[T, None, None], seconds: float, carry: Callable[..., Any] = lambda task: task
) -> Generator[T | None, None, None]:
    """Yield the items of a generator that runs in another thread, and None whenever `seconds` pass without an item.
    Errors of `items` are raised here. Closing the returned generator does not wait: `items` is closed when it yields
    its next item. If too many threads are in use, `items` runs in the thread of the caller. `carry` makes the thread a
    part of a span (see `tracing.carrier`)."""
    if not _threads.acquire(blocking=False):
        with closing(items):
            yield from items
        return
    queue: Queue[T | _End] = Queue(1)  # one item, so that the generator waits for a slow reader
    cancelled = threading.Event()
    produce = partial(_produce, items, queue, cancelled)
    work = partial(copy_context().run, carry(produce))
    threading.Thread(target=work, name="agentformer-stream", daemon=True).start()
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
    """Marks the end of a generator in a queue. `error` is the exception that the generator raised, or None."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


def _produce(items: Generator[T, None, None], queue: Queue[T | _End], cancelled: threading.Event) -> None:
    """Put all items of the generator into the queue for a reader in another thread, and at the end an `_End`. If the
    reader sets `cancelled`, stop after the next item."""
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


def _encoded(
    events: Generator[Event | None, None, None], interrupted: str, carry: Callable[..., Any], actor: Actor
) -> Iterator[str]:
    """Yield the events as they are sent, and a comment whenever `SILENCE_SECONDS` pass without one, so that the
    connection is not taken for dead. A server reads them after the end of the request, so `actor` is its actor, and
    `carry` keeps the thread in the request's span (see `in_thread`)."""
    ACTOR.set(actor)
    try:
        with closing(in_thread(events, SILENCE_SECONDS, carry)) as items:
            for event in items:
                yield _event(*event) if event else _COMMENT
    except Exception:  # the status was sent already, so the error can only be an event
        log.exception("an error interrupted a stream of events")
        problem = problem_json(500, "internal")
        yield _event("error", {"type": problem["type"], "title": problem["title"], "detail": interrupted})
    finally:
        ACTOR.set(NOBODY)


def _event(name: str, data: Mapping[str, Any], event_id: str = "") -> str:
    place = f"id: {event_id}\n" if event_id else ""
    return f"{place}event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n"
