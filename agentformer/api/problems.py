"""Errors as problem documents (RFC 9457): a stable type, what is wrong, the field; never a trace or a path."""

from __future__ import annotations

import logging

from flask import Blueprint, Flask, Response, json, request
from werkzeug.exceptions import HTTPException

from agentformer.errors import (
    AgentFormerError,
    Conflict,
    DocumentError,
    EmbedderUnavailable,
    InvalidInput,
    NotFound,
    SpaceMismatch,
    StoreFull,
)

log = logging.getLogger("agentformer")

# The first class that fits decides.
_STATUS: tuple[tuple[type[AgentFormerError], int, str], ...] = (
    (InvalidInput, 400, "invalid-input"),
    (NotFound, 404, "not-found"),
    (Conflict, 409, "conflict"),
    (SpaceMismatch, 409, "space-mismatch"),
    (DocumentError, 422, "unreadable-document"),
    (EmbedderUnavailable, 503, "embedder-unavailable"),
    (StoreFull, 507, "store-full"),
    (AgentFormerError, 500, "internal"),
)
_TITLES = {
    "invalid-input": "An argument is wrong",
    "not-found": "There is no such thing",
    "conflict": "It was changed meanwhile",
    "space-mismatch": "The store was made with another embedder",
    "unreadable-document": "The document cannot be read",
    "embedder-unavailable": "The embedder cannot be used now",
    "store-full": "There is no room",
    "internal": "Something went wrong here",
}
_TOLD = frozenset({400, 404, 409, 422, 503})  # messages that speak of the request and not of the server's disks


def problem(status: int, kind: str, detail: str = "", **more: str) -> Response:
    """A response of type `application/problem+json`."""
    body = {"type": f"urn:agentformer:problem:{kind}", "title": _TITLES.get(kind, kind), "status": status, **more}
    if detail:
        body["detail"] = detail
    return Response(json.dumps(body), status, content_type="application/problem+json")


def handle_errors(target: Flask | Blueprint) -> None:
    """Answer every error of an application of ours, or of a blueprint's own views, with a problem document."""
    target.register_error_handler(AgentFormerError, _ours)
    target.register_error_handler(HTTPException, _http)
    target.register_error_handler(Exception, _unforeseen)


def _ours(error: AgentFormerError) -> Response:
    status, kind = next((s, k) for cls, s, k in _STATUS if isinstance(error, cls))
    if status >= 500:
        log.error("%s %s: %s", request.method, request.path, error)
    more = {"field": error.field} if isinstance(error, InvalidInput) else {}
    return problem(status, kind, str(error) if status in _TOLD else "", **more)


def _http(error: HTTPException) -> Response:
    kind = (error.name or "error").lower().replace(" ", "-")
    return problem(error.code or 500, kind, error.description or "")


def _unforeseen(error: Exception) -> Response:
    log.exception("%s %s", request.method, request.path)
    return problem(500, "internal")
