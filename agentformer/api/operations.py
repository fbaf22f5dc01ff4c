"""Declarations of endpoints. Flask, the validation of requests and the OpenAPI document use the same declarations."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from flask import Blueprint, Response, request
from pydantic import BaseModel
from werkzeug.exceptions import ClientDisconnected, MethodNotAllowed

from agentformer.access.permissions import PERMISSIONS, Permission
from agentformer.api.auth import Guard
from agentformer.api.concurrency import ThreadLimit
from agentformer.api.request import body_of, check_no_query, client_left, is_arriving, parameters_of
from agentformer.api.store_counts import StoreCounts
from agentformer.console.map import Maps
from agentformer.console.page import CheckRuns
from agentformer.factory import AgentFormer
from agentformer.http import tracing
from agentformer.jobs.queue import Jobs
from agentformer.lazy import Lazy
from agentformer.llms.forwarding import ChatForwarder
from agentformer.llms.in_process import ModelChat
from agentformer.rag.removals import Removals

View = Callable[..., Any]
Header = str | Mapping[str, Any]  # a description, or a JSON Schema with a description
Returns = type[BaseModel] | Sequence[Any] | None  # a model, several models and media types, or no content

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Service:
    """The objects that all endpoints of one memory use: the memory, its upload jobs, limits of requests, and keys."""

    af: AgentFormer
    jobs: Jobs
    threads: ThreadLimit
    uploads: ThreadLimit  # limits the uploads in progress
    bodies: ThreadLimit  # limits the requests whose bodies are still arriving; uploads do not count
    followers: threading.BoundedSemaphore  # limits the clients that follow jobs and events
    readiness: Callable[[], Mapping[str, str]]  # returns the state of each part
    operations: Sequence[Operation]  # all endpoints
    chat: Lazy[ChatForwarder | ModelChat | None]  # answers chat requests; None if no model is configured
    prefix: str  # the prefix of all paths in a host application
    guard: Guard  # checks the requests
    store_counts: StoreCounts
    checks: CheckRuns
    maps: Maps
    removals: Removals


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """The declaration of one endpoint: its method, path, permission and models, and the view. The view is the
    function that returns the response."""

    method: str
    path: str  # with parameters in braces, such as /api/jobs/{job_id}
    needs: str | None  # the operation in the table of `access.permissions`; None: no key is needed
    returns: Mapping[int, Returns]  # by status
    tag: str
    view: View  # its docstring is the text of the endpoint
    query: type[BaseModel] | None
    body: type[BaseModel] | None
    form: type[BaseModel] | None  # the fields of multipart/form-data that are not files
    headers: Mapping[str, Header] = field(default_factory=dict)  # optional headers of the request
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)  # path parameter -> its allowed values
    errors: Collection[int] = ()  # statuses of errors that do not follow from the other fields
    # True if a request may wait for a model; or a function of the service and the body that returns this.
    uses_model: bool | Callable[[Service, Any], bool] = False
    around: Callable[[Service], AbstractContextManager[Any]] = nullcontext  # entered before the body is read
    entries: Callable[[Any], int] = lambda body: 1  # the least number of new entries, if the operation adds entries

    @property
    def permission(self) -> Permission | None:
        """The permission that a request requires, or None if no key is needed."""
        return None if self.needs is None else PERMISSIONS[self.needs]


class Router:
    """The endpoints of one module, which are declared with `route`."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.operations: list[Operation] = []

    def route(
        self, method: str, path: str, needs: str | None, returns: Mapping[int, Returns], **more: Any
    ) -> Callable[[View], View]:
        """Return a decorator that declares a view as an endpoint. The docstring of the view becomes the summary and the
        description of the endpoint.

        `needs` is a key of the table `access.permissions.PERMISSIONS`, or None if the endpoint needs no access key.
        `returns` contains the pydantic model or the media types of the response for each status. `more` contains
        further fields of `Operation`. The view gets the `Service`, and as keyword arguments `grant` (unless `needs` is
        None), the parameters in the path, and `query`, `body` or `form`, whose annotations are pydantic models. The
        checks run in this order: access key, permission, query, body. If the endpoint needs an access key and the view
        has no parameter `query`, a query string is refused. An endpoint with `uses_model` returns 429 if no thread is
        free."""

        def register(view: View) -> View:
            types = get_type_hints(view)
            query, body, form = (types.get(name) for name in ("query", "body", "form"))
            operation = Operation(method, path, needs, returns, self.tag, view, query, body, form, **more)
            self.operations.append(operation)
            return view

        return register


def add_rules(blueprint: Blueprint, service: Service) -> None:
    """Add the endpoints of the service to the blueprint. Each path handles all methods: for a method that has no
    endpoint, the response is a problem document that names the allowed methods. Otherwise the request could reach
    another endpoint: DELETE /api/memory/search would delete the entry `search`."""
    paths: dict[str, dict[str, View]] = {}
    for operation in service.operations:
        view = functools.partial(_handle, operation, service)
        paths.setdefault(operation.path, {})[operation.method] = view
    for path, views in paths.items():
        blueprint.add_url_rule(
            re.sub(r"{(\w+)}", r"<\1>", path),
            endpoint=path.replace(".", " "),  # `url_for` finds this name after a dot
            view_func=functools.partial(_dispatch, views),
            methods=_METHODS,
            provide_automatic_options=False,
            merge_slashes=False,  # an empty id must not lead to another endpoint
        )


def _dispatch(views: Mapping[str, View], **parameters: str) -> Any:
    """Call the view for the method of the current request. `views` contains the view of each method, and `parameters`
    are the values in the path. Raises `MethodNotAllowed` if there is no view for the method."""
    view = views.get("GET" if request.method == "HEAD" else request.method)
    if view is not None:
        return view(**parameters)
    allowed = sorted({*views, "OPTIONS", *(("HEAD",) if "GET" in views else ())})
    if request.method != "OPTIONS":
        raise MethodNotAllowed(valid_methods=allowed)
    return Response(status=204, headers={"Allow": ", ".join(allowed)})


def _handle(operation: Operation, service: Service, **parameters: Any) -> Any:
    """Handle the current request in a span, which is a child of the span in the header `traceparent`."""
    route = {"http.request.method": operation.method, "http.route": operation.path}
    with tracing.server_span(f"{operation.method} {operation.path}", request.headers.get, route) as span:
        response = _handled(operation, service, **parameters)
        if span.recording:
            span.set({"http.response.status_code": response.status_code})
        return response


def _handled(operation: Operation, service: Service, **parameters: Any) -> Any:
    """Check the current request, call the view and return its response. `parameters` are the values in the path. Raises
    `Unauthenticated`, `Forbidden`, `KeyFull`, `InvalidInput` or `Busy` if a check fails."""
    adds, incoming = operation.permission.adds if operation.permission else "", request.content_length or 0
    if operation.permission is not None:
        parameters["grant"] = grant = service.guard.authorize()
        operation.permission.require(grant)
        if adds and grant.allowance is not None:  # refused before the body is read
            service.af.limits.require_room(grant.allowance, incoming, int(adds == "entries"))
    if operation.query is not None:
        parameters["query"] = parameters_of(operation.query, request.args, "query")
    elif operation.permission is not None:
        check_no_query()
    with operation.around(service):
        if operation.body is not None:
            with service.bodies.reserve() if is_arriving() else nullcontext():
                parameters["body"] = body_of(operation.body)
        if operation.form is not None:
            parameters["form"] = parameters_of(operation.form, request.form, "form")
        room: AbstractContextManager[None] = nullcontext()
        if adds and grant.allowance is not None:
            entries = operation.entries(parameters.get("body")) if adds == "entries" else 0
            room = service.af.limits.reserve(grant.allowance, incoming, entries)
        waits = operation.uses_model
        waits = waits(service, parameters["body"]) if callable(waits) else waits

        def view() -> Any:
            if waits:
                _check_client(operation)
            with room:
                return operation.view(service, **parameters)

        return service.threads.run(view) if waits else view()


def _check_client(operation: Operation) -> None:
    """Check the client of a request that may have waited for a thread. If the operation only reads, and the client has
    closed the connection meanwhile, raise `ClientDisconnected`."""
    permission = operation.permission
    if permission is not None and permission.right == "read" and client_left(request.environ):
        raise ClientDisconnected
