"""Declarations of endpoints. One declaration serves Flask, the validation of requests and the OpenAPI document."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from flask import Blueprint, Response, request
from pydantic import BaseModel
from werkzeug.exceptions import MethodNotAllowed

from agentformer.access.grant import Grant, Right
from agentformer.api.request import body_of, check_no_query, form_of, query_of
from agentformer.errors import Busy

View = Callable[..., Any]
Header = str | Mapping[str, Any]  # a description, or a JSON Schema with one
Returns = type[BaseModel] | Sequence[Any] | None  # a model, several models and media types, or no content
Authorize = Callable[[], Grant]  # for the current request; raises `Unauthenticated`
Result = TypeVar("Result")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"})
_WAIT_SECONDS = 1.0  # for a free thread, and only while threads become free
_RETRY_AFTER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An endpoint, as the OpenAPI document describes it."""

    method: str
    path: str  # with parameters in braces, such as /api/jobs/{job_id}
    right: Right | Literal["any"] | None  # "any": any key, and the view checks its rights; None: no key is needed
    returns: Mapping[int, Returns]  # by status
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    form: type[BaseModel] | None = None  # fields of multipart/form-data besides the files
    headers: Mapping[str, Header] = field(default_factory=dict)  # optional headers of the request
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)  # path parameter -> its allowed values
    errors: Collection[int] = ()  # statuses of problems besides those that follow from the other fields
    tag: str
    tool: str | None = None  # the tool that does the same: a key without it is refused here too
    uses_model: bool | Callable[[Any], bool] = False  # may wait for a model: always, or for some bodies
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # entered before the body is read


@dataclass(frozen=True, slots=True)
class Declared:
    """An operation with the text of its view's docstring."""

    operation: Operation
    summary: str
    description: str


class Operations:
    """The endpoints of one blueprint."""

    def __init__(self, blueprint: Blueprint, authorize: Authorize, threads: ThreadLimit) -> None:
        self._blueprint = blueprint
        self._authorize = authorize
        self.threads = threads
        self.declared: list[Declared] = []

    def declare(self, operation: Operation) -> Callable[[View], View]:
        """Register the decorated view for an operation; its docstring becomes summary and description.

        The view is called with `grant` (unless `right` is None), the path's parameters by name, and `query`, `body` or
        `form`. Checks run in this order: key, right, tool, query, body. A query string is refused if the operation has
        no query model. If the operation uses a model, the request needs a free thread, else it is answered with 429.
        """

        def register(view: View) -> View:
            summary, _, description = (view.__doc__ or "").strip().partition("\n\n")
            self.declared.append(Declared(operation, " ".join(summary.split()), " ".join(description.split())))
            self._add_rule(operation.path, operation.method.lower(), self._checked(operation, view), [operation.method])
            return view

        return register

    def complete(self) -> None:
        """Answer all other methods of the declared paths with a problem that lists the allowed methods.

        Call this after the last declaration. Without this call, the host application could answer these methods, or the
        request could reach another endpoint: DELETE /api/memory/search would delete the entry with the id `search`.
        """
        operations = [declared.operation for declared in self.declared]
        for path in dict.fromkeys(operation.path for operation in operations):
            methods = {operation.method for operation in operations if operation.path == path}
            methods |= {"HEAD"} if "GET" in methods else set()
            self._add_rule(path, "other", _not_allowed(sorted({*methods, "OPTIONS"})), _METHODS - methods)

    def _add_rule(self, path: str, name: str, view: View, methods: Collection[str]) -> None:
        self._blueprint.add_url_rule(
            re.sub(r"{(\w+)}", r"<\1>", path),
            endpoint=f"{name} {path}".replace(".", " "),  # `url_for` takes this name after a dot
            view_func=view,
            methods=methods,
            provide_automatic_options=False,
            merge_slashes=False,  # an empty id must not lead to another endpoint
        )

    def _checked(self, operation: Operation, view: View) -> View:
        @functools.wraps(view)
        def run(**parameters: str) -> Any:
            arguments: dict[str, Any] = {**parameters, **self._grant(operation)}
            if operation.query is not None:
                arguments["query"] = query_of(operation.query)
            elif operation.right is not None:
                check_no_query()
            with operation.around():
                if operation.body is not None:
                    arguments["body"] = body_of(operation.body)
                if operation.form is not None:
                    arguments["form"] = form_of(operation.form)
                uses_model = operation.uses_model
                if uses_model(arguments["body"]) if callable(uses_model) else uses_model:
                    return self.threads.run(functools.partial(view, **arguments))
                return view(**arguments)

        return run

    def _grant(self, operation: Operation) -> dict[str, Grant]:
        """Return the argument `grant` of a view. Raises `Unauthenticated` and `Forbidden`."""
        if operation.right is None:
            return {}
        grant = self._authorize()
        if operation.right != "any":
            grant.require(operation.right)
        if operation.tool is not None:
            grant.require_tool(operation.tool)
        return {"grant": grant}


class ThreadLimit:
    """A limit on the number of threads for requests that may take long. Such requests wait for a model, upload files or
    follow a job.

    The limit is lower than the number of threads, so other requests always find a free thread. A request over the limit
    waits while threads become free. If no thread has become free for some time, the request is refused at once, because
    a waiting request also blocks a thread. Thread-safe.
    """

    def __init__(self, threads: int, *, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._threads = max(1, threads)
        self._wait_seconds = wait_seconds
        self._used = 0
        self._changed = threading.Condition()
        self._changed_at = time.monotonic()

    def acquire(self) -> Callable[[], None]:
        """Take a thread and return the function that releases it. A second call of this function does nothing, because
        a server may close a response twice. Raises `Busy`."""
        with self._changed:
            deadline = time.monotonic() + self._wait_seconds
            while self._used >= self._threads:
                left = min(deadline, self._changed_at + self._wait_seconds) - time.monotonic()
                if left <= 0:
                    message = f"Server busy: all worker threads are in use. Retry after {_RETRY_AFTER} s."
                    raise Busy("threads", message, _RETRY_AFTER)
                self._changed.wait(left)
            self._used += 1
            self._changed_at = time.monotonic()
        released = False

        def release() -> None:
            nonlocal released
            with self._changed:
                if not released:
                    released = True
                    self._used -= 1
                    self._changed_at = time.monotonic()
                    self._changed.notify()

        return release

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold a thread in a `with` block. Raises `Busy`."""
        release = self.acquire()
        try:
            yield
        finally:
            release()

    def run(self, view: Callable[[], Result]) -> Result:
        """Return the response of `view`. A streamed response keeps its thread until the response is closed. Raises
        `Busy`."""
        release = self.acquire()
        streamed = False
        try:
            response = view()
            if isinstance(response, Response) and response.is_streamed:
                response.call_on_close(release)
                streamed = True
            return response
        finally:
            if not streamed:
                release()


def _not_allowed(methods: Sequence[str]) -> View:
    def view(**parameters: str) -> Response:
        if request.method != "OPTIONS":
            raise MethodNotAllowed(valid_methods=methods)
        return Response(status=204, headers={"Allow": ", ".join(methods)})

    return view
