"""What a request carries, checked against a model before anything is done with it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from flask import request
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_core import from_json
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import UnsupportedMediaType

from agentformer.errors import InvalidInput

Model = TypeVar("Model", bound=BaseModel)


_WORDS = {
    "string_type": "must be text",
    "string_unicode": "must be text",
    "string_too_short": "is empty",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
}


class RequestModel(BaseModel):
    """Base of what a body holds: JSON types as they are, no unknown fields."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        """JSON has one kind of number: 3.0 is a whole one, as JSON Schema has it."""
        return int(value) if isinstance(value, float) and value.is_integer() else value


class ParameterModel(BaseModel):
    """Base of what a query string or a form holds: text that is read as what it stands for."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def body_of(model: type[Model]) -> Model:
    """The JSON body. An empty one is an empty object. Raises `InvalidInput`; a body of another type is a 415."""
    data = request.get_data(cache=True)
    if data and not request.is_json:
        raise UnsupportedMediaType("send the body as application/json")
    try:
        return model.model_validate_json(data or b"{}")
    except ValidationError as error:
        if field := _unusable_part(data):
            raise InvalidInput(field, "holds half of a surrogate pair, or is nested too deep") from None
        raise _told(error, model, "body") from None
    except ValueError:
        raise InvalidInput("body", "is not JSON in UTF-8") from None


def query_of(model: type[Model]) -> Model:
    """The query string. Raises `InvalidInput`."""
    return _fields_of(model, request.args, "query")


def check_no_query() -> None:
    """For an endpoint that takes no query string: what is ignored would be relied upon. Raises `InvalidInput`."""
    for name in request.args:
        raise InvalidInput(name[:80] or "query", "is not taken in the address; nothing is, here")


def form_of(model: type[Model]) -> Model:
    """The text fields of a form. Raises `InvalidInput`."""
    return _fields_of(model, request.form, "form")


def _unusable_part(data: bytes) -> str | None:
    """The field whose value is JSON, but no text or nesting that can be used."""
    try:
        value = json.loads(data)
        parts = value if isinstance(value, dict) else {}
        return next((str(name)[:80] for name in parts if not _usable(parts[name])), None)
    except (ValueError, RecursionError):
        return None


def _usable(value: Any) -> bool:
    try:
        from_json(json.dumps(value))
    except ValueError:
        return False
    return True


def _fields_of(model: type[Model], given: MultiDict[str, str], what: str) -> Model:
    values: dict[str, Any] = {}
    for name in given:
        each = given.getlist(name)
        if name in model.model_fields and _takes_several(model, name):
            values[name] = each
        elif len(each) > 1:
            raise InvalidInput(name, f"is given {len(each)} times; give it once")
        else:
            values[name] = each[0]
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _told(error, model, what) from None


def _takes_several(model: type[BaseModel], name: str) -> bool:
    shape = model.model_json_schema()["properties"][name]
    return any(each.get("type") == "array" for each in (shape, *shape.get("anyOf", ())))


def _told(error: ValidationError, model: type[BaseModel], what: str) -> InvalidInput:
    """The first fault, in the words of this package."""
    fault = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in fault["loc"]]
    kind, name = fault["type"], path[0] if path else what
    if kind == "json_invalid":
        return InvalidInput(what, f"is not JSON: {fault['msg'].removeprefix('Invalid JSON: ')}")
    if kind == "extra_forbidden" and len(path) == 1:
        known = model.model_fields
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"fields are {', '.join(sorted(known)) or 'none'}"
        return InvalidInput(name[:80], f"is not known here; {hint}")
    if kind == "missing":
        return InvalidInput(name, "is missing")
    if kind == "model_type":
        return InvalidInput(what, "must be a JSON object")
    said = _WORDS.get(kind) or fault["msg"]
    if kind == "string_pattern_mismatch" and not any(map(str.isprintable, str(fault["input"]).strip())):
        said = "is empty"
    place = f" (in {'.'.join(path[1:4])})" if len(path) > 1 and not _is_branch(path[1]) else ""
    return InvalidInput(name[:80], f"{said}{place}, got {_short(fault['input'])}")


def _is_branch(part: str) -> bool:
    """Names that pydantic gives to the alternatives of a union."""
    return "[" in part or part in ("str", "int", "float", "bool", "none")


def _short(value: Any) -> str:
    shown = "an object" if isinstance(value, Mapping) else repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
