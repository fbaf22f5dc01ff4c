"""Answers over HTTP that are not MCP's own: problem documents (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

_SAFE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_TYPE = "application/problem+json"


def problem(
    status: int, kind: str, title: str, detail: str = "", headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    body = _body(status, kind, title, detail, **more)
    return Response(body, status, headers={**_SAFE, **(headers or {})}, media_type=_TYPE)


def last_words(status: int, kind: str, title: str, detail: str, headers: Mapping[str, str] | None = None) -> bytes:
    """The same as it goes over the wire, for a connection that is closed after it."""
    body = _body(status, kind, title, detail).encode()
    named = {"Content-Type": _TYPE, "Content-Length": str(len(body)), "Connection": "close", **_SAFE, **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode() + body


def _body(status: int, kind: str, title: str, detail: str, **more: Any) -> str:
    body = {"type": f"urn:agentformer:problem:{kind}", "title": title, "status": status, **more}
    return json.dumps({**body, "detail": detail} if detail else body)
