"""What goes out as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flask import Response


def to_json(value: Mapping[str, Any]) -> str:
    """In ASCII and on one line, whatever reads lines. Not by the host application's own JSON provider, which may be of
    another opinion. Raises `ValueError` for what JSON has no word for, such as NaN."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def reply(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of type `application/json`, which people can read too."""
    try:
        body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # half a character, that a model or a file name gave
        body = to_json(value).encode()
    return Response(body, status, headers, content_type="application/json")
