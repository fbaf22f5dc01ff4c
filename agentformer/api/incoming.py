"""What a request carries, checked against a model before anything is done with it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from flask import request
from pydantic import BaseModel, ConfigDict, ValidationError
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import UnsupportedMediaType

from agentformer.errors import InvalidInput

Model = TypeVar("Model", bound=BaseModel)


class Asked(BaseModel):
    """Base of what a body holds: JSON types as they are, no unknown fields."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class AskedText(BaseModel):
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
        raise _told(error, model, "body") from None
    except ValueError:
        raise InvalidInput("body", "is not JSON in UTF-8") from None


def query_of(model: type[Model]) -> Model:
    """The query string. Raises `InvalidInput`."""
    return _fields_of(model, request.args, "query")


def form_of(model: type[Model]) -> Model:
    """The text fields of a form. Raises `InvalidInput`."""
    return _fields_of(model, request.form, "form")


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
    place = f" (in {'.'.join(path[1:4])})" if len(path) > 1 and not _is_branch(path[1]) else ""
    return InvalidInput(name[:80], f"{fault['msg']}{place}, got {_short(fault['input'])}")


def _is_branch(part: str) -> bool:
    """Names that pydantic gives to the alternatives of a union."""
    return "[" in part or part in ("str", "int", "float", "bool", "none")


def _short(value: Any) -> str:
    shown = "an object" if isinstance(value, Mapping) else repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
