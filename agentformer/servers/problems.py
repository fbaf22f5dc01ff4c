"""Problem documents: JSON descriptions of an error in the format of RFC 9457. All servers of this package answer a
failed request with a problem document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from agentformer import errors
from agentformer.http.redaction import without_addresses

PROBLEM = "application/problem+json"

# Class, status, type and title. The first class that matches is used.
_KINDS: tuple[tuple[type[errors.AgentFormerError], int, str, str], ...] = (
    (errors.InvalidInput, 400, "invalid-input", "Invalid input"),
    (errors.Unauthenticated, 401, "unauthenticated", "Authentication required"),
    (errors.Forbidden, 403, "forbidden", "Permission denied"),
    (errors.KeyFull, 403, "key-full", "Limit of the key reached"),
    (errors.FetchRefused, 403, "fetch-refused", "Address not allowed"),
    (errors.NotFound, 404, "not-found", "Not found"),
    (errors.Conflict, 409, "conflict", "Version conflict"),
    (errors.SpaceMismatch, 409, "space-mismatch", "Embedding space mismatch"),
    (errors.TooLarge, 413, "too-large", "Limit exceeded"),
    (errors.DocumentError, 422, "unreadable-document", "Unreadable document"),
    (errors.FetchFailed, 422, "fetch-failed", "Document cannot be fetched"),
    (errors.Busy, 429, "busy", "Too many requests"),
    (errors.NotOffered, 501, "not-offered", "Not offered by the store of this memory"),
    (errors.MissingExtra, 501, "missing-extra", "Optional package not installed"),
    (errors.EmbedderUnavailable, 503, "embedder-unavailable", "Embedder unavailable"),
    (errors.StoreBusy, 503, "store-busy", "Store busy or not reachable now"),
    (errors.StoreReadOnly, 503, "store-read-only", "Store read-only"),
    (errors.StoreFull, 507, "store-full", "Storage full"),
    (errors.StoreDamaged, 500, "store-damaged", "Store damaged: see the server's log, then run `agentformer doctor`"),
    (errors.StoreError, 500, "store-unusable", "Store unavailable: see the server's log"),
    (errors.AgentFormerError, 500, "internal", "Internal server error"),
)
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_TITLES = {kind: title for _, _, kind, title in _KINDS}
# Messages of errors with these statuses describe the request. Others may name files of the server, and are only logged.
_SHOWS_MESSAGE = frozenset({400, 401, 403, 404, 409, 413, 422, 429, 501, 503})


@dataclass(frozen=True, slots=True)
class Problem:
    """The response to a failed request: HTTP status, content of the problem document, and additional headers."""

    status: int
    document: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the problem document as JSON. The text contains only ASCII characters."""
        return json.dumps(self.document)

    def as_http(self) -> bytes:
        """Return the bytes of a complete HTTP/1.1 response. The response has the header `Connection: close`, so the
        server must close the connection after sending these bytes."""
        body = self.as_json().encode()
        headers = {"Connection": "close", "Content-Type": PROBLEM, "Content-Length": str(len(body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n{lines}\r\n".encode() + body


def openai_error(problem: Problem) -> dict[str, Any]:
    """Return the error of a problem in the format of OpenAI, for the endpoints with the protocol of OpenAI."""
    document = problem.document
    kind = str(document["type"]).rpartition(":")[2]
    default = "server_error" if problem.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": document.get("detail") or document["title"],
            "type": _OPENAI_TYPES.get(problem.status, default),
            "param": document.get("field") or None,
            "code": kind.replace("-", "_"),
        }
    }


def problem_of(error: errors.AgentFormerError) -> Problem:
    """Return the problem that describes this error. The class of the error determines the status, the type and the
    headers. The message is included only if it cannot contain internal details of the server."""
    status, kind = next((status, kind) for cls, status, kind, _ in _KINDS if isinstance(error, cls))
    members: dict[str, str] = {}
    headers: dict[str, str] = {}
    if isinstance(error, errors.InvalidInput):
        members["field"] = error.field
    if isinstance(error, errors.DocumentError):
        members["reason_code"] = error.code
    if isinstance(error, errors.LimitExceeded):
        members["limit"] = error.limit
    if isinstance(error, (errors.Busy, errors.StoreBusy)):
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, errors.Busy):
        headers.update(error.headers)
    if isinstance(error, errors.Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="agentformer"'
    shown = status in _SHOWS_MESSAGE and not isinstance(error, errors.StoreError)
    detail = without_addresses(str(error)) if shown and isinstance(error, errors.EmbedderError) else str(error)
    detail = detail if shown else ""
    return Problem(status, problem_json(status, kind, detail, **members), headers)


def problem_json(status: int, kind: str, detail: str = "", **members: Any) -> dict[str, Any]:
    """Return the content of a problem document. `kind` is the last part of its type, and `detail` is the message about
    this error. `members` are further fields of the document, such as the field `title` for a `kind` that is not in the
    table of this module."""
    title = _TITLES.get(kind, kind)
    document = {"type": f"urn:agentformer:problem:{kind}", "title": title, "status": status, **members}
    return {**document, "detail": detail} if detail else document
