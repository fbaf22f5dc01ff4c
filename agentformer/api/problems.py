"""Errors as problem documents (RFC 9457): a stable type, what is wrong, the field; never a trace or a path."""

from __future__ import annotations

import logging
from typing import Any

from flask import Blueprint, Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from agentformer.api.response import to_json
from agentformer.errors import (
    AgentFormerError,
    Busy,
    Conflict,
    DocumentError,
    EmbedderUnavailable,
    Forbidden,
    InvalidInput,
    LimitExceeded,
    MissingExtra,
    NotFound,
    SpaceMismatch,
    StoreDamaged,
    StoreError,
    StoreFull,
    TooLarge,
    Unauthenticated,
)

PROBLEM = "application/problem+json"

log = logging.getLogger("agentformer")

# The first class that fits decides.
_STATUS: tuple[tuple[type[AgentFormerError], int, str], ...] = (
    (InvalidInput, 400, "invalid-input"),
    (Unauthenticated, 401, "unauthenticated"),
    (Forbidden, 403, "forbidden"),
    (NotFound, 404, "not-found"),
    (Conflict, 409, "conflict"),
    (SpaceMismatch, 409, "space-mismatch"),
    (TooLarge, 413, "too-large"),
    (DocumentError, 422, "unreadable-document"),
    (Busy, 429, "busy"),
    (MissingExtra, 501, "missing-extra"),
    (EmbedderUnavailable, 503, "embedder-unavailable"),
    (StoreFull, 507, "store-full"),
    (StoreDamaged, 500, "store-damaged"),
    (StoreError, 500, "store-unusable"),
    (AgentFormerError, 500, "internal"),
)
_TITLES = {
    "invalid-input": "An argument is wrong",
    "unauthenticated": "A key is needed",
    "forbidden": "This key may not do that",
    "too-large": "A limit stands in the way",
    "busy": "Too much is under way now",
    "missing-extra": "An optional part is not installed",
    "not-found": "There is no such thing",
    "conflict": "It was changed meanwhile",
    "space-mismatch": "The store was made with another embedder",
    "unreadable-document": "The document cannot be read",
    "embedder-unavailable": "The embedder cannot be used now",
    "store-full": "There is no room",
    "store-damaged": "The memory is damaged: its log says where, and `agentformer doctor` what to do",
    "store-unusable": "The memory cannot be used: its log says why",
    "internal": "Something went wrong here",
}
_TOLD = frozenset(
    {400, 401, 403, 404, 409, 413, 422, 429, 501, 503}
)  # messages that speak of the request and not of the server's disks


def problem(status: int, kind: str, detail: str = "", **more: Any) -> Response:
    """A response of type `application/problem+json`."""
    return Response(to_json(problem_json(status, kind, detail, **more)), status, content_type=PROBLEM)


def problem_json(status: int, kind: str, detail: str = "", **more: Any) -> dict[str, Any]:
    """A problem document as JSON values; `more` are further members, or a title for a kind that has none here."""
    told = {"type": f"urn:agentformer:problem:{kind}", "title": _TITLES.get(kind, kind), "status": status, **more}
    return {**told, "detail": detail} if detail else told


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
    more |= {"limit": error.limit} if isinstance(error, LimitExceeded) else {}
    told = problem(status, kind, str(error) if status in _TOLD else "", **more)
    if isinstance(error, Busy):
        told.headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, Unauthenticated):
        told.headers["WWW-Authenticate"] = 'Bearer realm="agentformer"'
    return told


def _http(error: HTTPException) -> Response:
    kind = (error.name or "error").lower().replace(" ", "-")
    told = problem(error.code or 500, kind, error.description or "", title=error.name or "Error")
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        told.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return told


def _unforeseen(error: Exception) -> Response:
    log.exception("%s %s", request.method, request.path)
    return problem(500, "internal")
