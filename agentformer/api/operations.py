"""Endpoints, each declared once: for Flask, for the check of what comes in, and for the OpenAPI document."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from flask import Blueprint, Response, request
from pydantic import BaseModel
from werkzeug.exceptions import MethodNotAllowed

from agentformer.access.grant import Grant, Right
from agentformer.api.request import body_of, check_no_query, form_of, query_of
from agentformer.api.thread_limit import ThreadLimit

View = Callable[..., Any]
Header = str | Mapping[str, Any]  # a description, or a JSON Schema with one
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"})

Authorize = Callable[[], Grant]  # of the request that is being answered; raises `Unauthenticated`
Asks = Callable[[Any], bool]  # whether a request with this body may wait for a model


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint as the OpenAPI document tells it."""

    method: str
    path: str  # with parameters in braces, such as /api/jobs/{job_id}
    right: Right | Literal["any"] | None  # "any": whatever key, the view looks at its rights; None: no key is needed
    returns: Mapping[int, Any]  # status -> a model, media types, or None for an empty answer
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    form: type[BaseModel] | None  # of multipart/form-data, beside its parts `file`
    headers: Mapping[str, Header]  # that the request may carry -> what they say
    choices: Mapping[str, Sequence[str]]  # parameter in the path -> what it may be; others may be any text
    faults: Collection[int]  # further statuses that this endpoint answers with a problem
    tag: str
    summary: str
    description: str
    tool: str | None  # which does the same, so that a key without it may not ask here either


def always(body: Any) -> bool:
    return True


class Operations:
    """The endpoints of one blueprint. `authorize` tells who asks; in `room` is a place for each request that may hold
    its thread for long."""

    def __init__(self, blueprint: Blueprint, authorize: Authorize, room: ThreadLimit) -> None:
        self._blueprint = blueprint
        self._authorize = authorize
        self.room = room
        self.declared: list[Operation] = []

    def declare(
        self,
        method: str,
        path: str,
        *,
        right: Right | Literal["any"] | None,
        returns: Mapping[int, type[BaseModel] | Sequence[Any] | None],
        body: type[BaseModel] | None = None,
        query: type[BaseModel] | None = None,
        form: type[BaseModel] | None = None,
        headers: Mapping[str, Header] | None = None,
        choices: Mapping[str, Sequence[str]] | None = None,
        faults: Collection[int] = (),
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        asks: Asks | None = None,
        tag: str = "",
        tool: str | None = None,
    ) -> Callable[[View], View]:
        """Declare an endpoint. Its view is called with `grant` (but for `right=None`), the path's parameters by name,
        and `body`, `query`, `form` as far as they are declared; its docstring is the endpoint's description.

        In `returns` a sequence has models and media types: what the endpoint may answer with, by what is asked for.
        Of one path and method there is one endpoint. Order of checks: key, right, `tool`, query, body. A query string
        that nothing here would look at is refused.
        `around` is entered when the right was checked, before the body is read, and left when the view is done.
        Where `asks` says so of the body, the view may wait for a model and needs a place in the room: else it is a 429.
        """

        def register(view: View) -> View:
            summary, _, description = (view.__doc__ or "").strip().partition("\n\n")
            declared = Operation(
                method.upper(),
                path,
                right,
                returns,
                body,
                query,
                form,
                headers or {},
                choices or {},
                {*faults, 429} if asks else faults,
                tag,
                " ".join(summary.split()),
                " ".join(description.split()),
                tool,
            )
            self.declared.append(declared)
            self._blueprint.add_url_rule(
                _rule(path),
                endpoint=_endpoint(method.lower(), path),
                view_func=self._checked(declared, view, around, asks),
                methods=[method.upper()],
                provide_automatic_options=False,
                merge_slashes=False,  # an id that is empty must not lead to another endpoint
            )
            return view

        return register

    def complete(self) -> None:
        """When all are declared: answer on every path the methods that it does not take, with a problem that tells
        those it does. Else an application that mounts this would answer them, or an endpoint with a parameter in its
        path would take them, such as DELETE /api/memory/search for the entry called search."""
        for path in dict.fromkeys(operation.path for operation in self.declared):
            taken = {operation.method for operation in self.declared if operation.path == path}
            taken |= {"HEAD"} if "GET" in taken else set()
            self._blueprint.add_url_rule(
                _rule(path),
                endpoint=_endpoint("other", path),
                view_func=_others(sorted({*taken, "OPTIONS"})),
                methods=_METHODS - taken,
                provide_automatic_options=False,
                merge_slashes=False,
            )

    def _checked(
        self,
        declared: Operation,
        view: View,
        around: Callable[[], AbstractContextManager[None]],
        asks: Asks | None,
    ) -> View:
        @functools.wraps(view)
        def run(**given: str) -> Any:
            values: dict[str, Any] = dict(given)
            if declared.right is not None:
                values["grant"] = grant = self._authorize()
                if declared.right != "any":
                    grant.require(declared.right)
                if declared.tool is not None:
                    grant.require_tool(declared.tool)
            if declared.query is not None:
                values["query"] = query_of(declared.query)
            elif declared.right is not None:
                check_no_query()
            with around():
                if declared.body is not None:
                    values["body"] = body_of(declared.body)
                if declared.form is not None:
                    values["form"] = form_of(declared.form)
                if asks and asks(values.get("body")):
                    return self.room.answer(functools.partial(view, **values))
                return view(**values)

        return run


def _others(allowed: Sequence[str]) -> View:
    def others(**given: str) -> Response:
        if request.method != "OPTIONS":
            raise MethodNotAllowed(valid_methods=allowed)
        return Response(status=204, headers={"Allow": ", ".join(allowed)})

    return others


def _rule(path: str) -> str:
    return re.sub(r"{(\w+)}", r"<\1>", path)


def _endpoint(what: str, path: str) -> str:
    """Flask's name for it; `url_for` takes it with a dot before it."""
    return f"{what} {path}".replace(".", " ")
