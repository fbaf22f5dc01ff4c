"""Endpoints, each declared once: for Flask, for the check of what comes in, and for the OpenAPI document."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flask import Blueprint
from pydantic import BaseModel

from agentformer.access.grant import Grant, Right
from agentformer.api.incoming import body_of, form_of, query_of

View = Callable[..., Any]
Authorize = Callable[[], Grant]  # of the request that is being answered; raises `Unauthenticated`


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint as the OpenAPI document tells it."""

    method: str
    path: str  # with parameters in braces, such as /api/jobs/{job_id}
    right: Right | None  # None: no key is needed
    returns: Mapping[int, Any]  # status -> a model, media types, or None for an empty answer
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    form: type[BaseModel] | None  # of multipart/form-data, beside its parts `file`
    headers: Mapping[str, str]  # that the request may carry -> what they say
    faults: Collection[int]  # further statuses that this endpoint answers with a problem
    tag: str
    summary: str
    description: str


class Operations:
    """The endpoints of one blueprint. `authorize` tells who asks."""

    def __init__(self, blueprint: Blueprint, authorize: Authorize) -> None:
        self._blueprint = blueprint
        self._authorize = authorize
        self.declared: list[Operation] = []

    def declare(
        self,
        method: str,
        path: str,
        *,
        right: Right | None,
        returns: Mapping[int, type[BaseModel] | Sequence[Any] | None],
        body: type[BaseModel] | None = None,
        query: type[BaseModel] | None = None,
        form: type[BaseModel] | None = None,
        headers: Mapping[str, str] | None = None,
        faults: Collection[int] = (),
        tag: str = "",
    ) -> Callable[[View], View]:
        """Declare an endpoint. Its view is called with `grant` (but for `right=None`), the path's parameters by name,
        and `body`, `query`, `form` as far as they are declared; its docstring is the endpoint's description.

        In `returns` a sequence has models and media types: what the endpoint may answer with, by what is asked for.
        Of one path and method there is one endpoint. Order of checks: key, right, query, body.
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
                faults,
                tag,
                " ".join(summary.split()),
                " ".join(description.split()),
            )
            self.declared.append(declared)
            self._blueprint.add_url_rule(
                re.sub(r"{(\w+)}", r"<\1>", path),
                endpoint=f"{method.lower()} {path}".replace(".", " "),
                view_func=self._checked(declared, view),
                methods=[method.upper()],
            )
            return view

        return register

    def _checked(self, declared: Operation, view: View) -> View:
        @functools.wraps(view)
        def run(**given: str) -> Any:
            values: dict[str, Any] = dict(given)
            if declared.right is not None:
                values["grant"] = grant = self._authorize()
                grant.require(declared.right)
            if declared.query is not None:
                values["query"] = query_of(declared.query)
            if declared.body is not None:
                values["body"] = body_of(declared.body)
            if declared.form is not None:
                values["form"] = form_of(declared.form)
            return view(**values)

        return run
