"""What clients send that is no message: which error answers it, since the SDK leaves some of it unanswered."""

from __future__ import annotations

import json
import re
from typing import Any

import mcp_types as types
import pydantic_core
from pydantic import ValidationError

_MARK = re.compile(r'\\.|["\[\]{}]')
_VALUE = re.compile(r'\s*:\s*(-?[0-9]{1,18}(?=\s*[,}])|"(?:[^"\\]|\\.){0,500}")')


def refusal(line: str) -> types.JSONRPCError | None:
    """The answer to a line that is no message; None for one that is. Never raises."""
    try:
        message = pydantic_core.from_json(line)
    except ValueError as error:
        return _error(types.PARSE_ERROR, f"this cannot be read as JSON: {str(error)[:200]}", _id_in(line))
    return fault(message)


def fault(message: Any) -> types.JSONRPCError | None:
    """What is wrong with a decoded message; None where nothing is."""
    if not isinstance(message, dict):
        what = "a batch is not taken here" if isinstance(message, list) else "this is no message"
        return _error(types.INVALID_REQUEST, f"{what}; send one JSON object")
    asked = "method" in message
    own = _usable(message.get("id")) if asked or not {"result", "error"} & message.keys() else None
    if message.get("jsonrpc") != "2.0":
        return _error(types.INVALID_REQUEST, 'jsonrpc must be "2.0"', own)
    if asked and "id" in message and own is None:
        return _error(types.INVALID_REQUEST, "id must be a whole number or a text")
    if asked and not isinstance(message["method"], str):
        return _error(types.INVALID_REQUEST, "method must be a text", own)
    if asked and not isinstance(message.get("params"), dict | None):
        return _error(types.INVALID_PARAMS, "params must be an object", own)
    try:
        types.jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        return _error(types.INVALID_REQUEST, "this is neither a request nor a notification nor an answer", own)
    return None


def is_answered(error: types.JSONRPCError) -> bool:
    """Whether this may be sent where answers find their questions by id: a notification gets none, right or wrong."""
    return error.id is not None or error.error.code != types.INVALID_PARAMS


def _error(code: int, text: str, of: int | str | None = None) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=of, error=types.ErrorData(code=code, message=text))


def _usable(value: Any) -> int | str | None:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _id_in(line: str) -> int | str | None:
    """The id of a message that cannot be decoded, for numbers, nesting or characters that are too much for it."""
    depth, begun, found = 0, -1, None  # `begun`: where the text began that we are in; -1 outside of any
    for mark in _MARK.finditer(line):
        if mark[0] == '"':
            whole = begun >= 0 and line[begun : mark.end()] == '"id"'
            begun = mark.start() if begun < 0 else -1
            if whole and depth == 1 and (value := _VALUE.match(line, mark.end())):
                found = value[1]
        elif begun < 0:
            depth += 1 if mark[0] in "{[" else -1 if mark[0] in "}]" else 0
    try:
        own = _usable(json.loads(found)) if found else None
        str(own).encode()  # half a surrogate pair cannot be sent back
    except ValueError:
        return None
    return own
