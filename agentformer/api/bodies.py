"""What a request's body holds, checked before anything is done with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flask import request

from agentformer.errors import InvalidInput


def json_object(known: Collection[str], example: str) -> dict[str, Any]:
    """The JSON object that the request carries. Raises `InvalidInput` for anything else, and for unknown fields."""
    try:
        body = request.get_json(silent=True)
    except RecursionError:
        body = None
    if not isinstance(body, dict):
        raise InvalidInput("body", f"must be a JSON object such as {example}")
    if unknown := sorted(set(body) - set(known)):
        raise InvalidInput(unknown[0], f"is not known here; fields are {', '.join(sorted(known))}")
    return body


def required(body: Mapping[str, Any], field: str, what: str) -> Any:
    """The value of a field; null counts as missing. Raises `InvalidInput`."""
    value = body.get(field)
    if value is None:
        raise InvalidInput(field, f"is missing; give {what}")
    return value
