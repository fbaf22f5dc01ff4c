"""Problem documents (RFC 9457). Every server of this package answers a failed request with such a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

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

# The first class that matches is used.
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
    "invalid-input": "Invalid input",
    "unauthenticated": "Authentication required",
    "forbidden": "Permission denied",
    "too-large": "Limit exceeded",
    "busy": "Server busy",
    "missing-extra": "Optional package not installed",
    "not-found": "Not found",
    "conflict": "Version conflict",
    "space-mismatch": "Embedding space mismatch",
    "unreadable-document": "Unreadable document",
    "embedder-unavailable": "Embedder unavailable",
    "store-full": "Storage full",
    "store-damaged": "Store damaged: see the server's log, then run `agentformer doctor`",
    "store-unusable": "Store unavailable: see the server's log",
    "internal": "Internal server error",
}
# The messages of these classes describe the request. Other messages may name files of the server and are only logged.
_SHOWS_MESSAGE = frozenset({400, 401, 403, 404, 409, 413, 422, 429, 501, 503})


@dataclass(frozen=True, slots=True)
class Problem:
    """A status, the members of the JSON document, and additional headers."""

    status: int
    document: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the document as JSON in ASCII."""
        return json.dumps(self.document)

    def as_http(self) -> bytes:
        """Return a complete HTTP/1.1 response, for a server that closes the connection after the response."""
        body = self.as_json().encode()
        headers = {"Connection": "close", "Content-Type": PROBLEM, "Content-Length": str(len(body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n{lines}\r\n".encode() + body


def problem_of(error: AgentFormerError) -> Problem:
    """Return the problem for an error: status, type, `field` or `limit`, and the headers that the status needs."""
    status, kind = next((status, kind) for cls, status, kind in _STATUS if isinstance(error, cls))
    members: dict[str, str] = {}
    headers: dict[str, str] = {}
    if isinstance(error, InvalidInput):
        members["field"] = error.field
    if isinstance(error, LimitExceeded):
        members["limit"] = error.limit
    if isinstance(error, Busy):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="agentformer"'
    detail = str(error) if status in _SHOWS_MESSAGE else ""
    return Problem(status, problem_json(status, kind, detail, **members), headers)


def problem_json(status: int, kind: str, detail: str = "", **members: Any) -> dict[str, Any]:
    """Return a problem document. `members` are additional members, such as `title` for a kind without a known title."""
    title = _TITLES.get(kind, kind)
    document = {"type": f"urn:agentformer:problem:{kind}", "title": title, "status": status, **members}
    return {**document, "detail": detail} if detail else document
