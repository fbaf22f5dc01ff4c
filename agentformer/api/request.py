"""Reads the bodies, query strings and forms of requests, and validates them with models."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from flask import request
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge, UnsupportedMediaType

from agentformer.access.permissions import Grant
from agentformer.errors import InvalidInput, TooLarge
from agentformer.http.json_limits import check_values, is_storable, with_few_unknown
from agentformer.servers.slow_clients import TimedSocket
from agentformer.settings import Settings

Model = TypeVar("Model", bound=BaseModel)

_MAX_LEVELS = 190  # of nested values that the parser of bodies reads in any case
_MAX_SHOWN = 80  # characters of a wrong value or name in a message
_MESSAGES = {
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
    "none_required": "must be null",
}
_TYPE_NAMES = re.compile(r"constrained-|\[|^(str|int|float|bool)$")  # of pydantic, in the location of an error


class _InputModel(BaseModel):
    """Base class of the models of requests."""

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, value: Any) -> Any:
        """Leave out all unknown fields but the first, because pydantic makes an error for each of them."""
        refuses = isinstance(value, dict) and cls.model_config["extra"] == "forbid"
        return with_few_unknown(value, cls, 1) if refuses else value


class RequestModel(_InputModel):
    """Base class of JSON bodies. A value must have exactly the declared JSON type. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _whole_number(cls, value: Any) -> Any:
        """Convert a number such as 3.0 to the integer 3, because JSON Schema counts 3.0 as an integer."""
        return int(value) if isinstance(value, float) and value.is_integer() else value


class ParameterModel(_InputModel):
    """Base class of query strings and forms. Converts text to the types of the fields. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class BoundedBody:
    """The body of a request, with a limited length. It replaces the stream `wsgi.input`. Reading raises
    `ClientDisconnected` if the body has fewer bytes than `length` (None if unknown), and `RequestEntityTooLarge` if it
    has more than `max_bytes`. Some servers would treat an interrupted body as complete, and Werkzeug would cut off a
    body that is too long."""

    def __init__(self, stream: Any, max_bytes: int, length: int | None) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._length = length
        self._read = 0

    @property
    def too_long(self) -> bool:
        return self._read > self._max_bytes

    def read(self, size: int = -1) -> bytes:
        return self._count(self._stream.read(self._allowed(size)), size)

    def readline(self, size: int = -1) -> bytes:
        return self._count(self._stream.readline(self._allowed(size)), size)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _allowed(self, size: int) -> int:
        """Return the number of bytes that may be read now, at most `size`. No byte after the end of the body is read,
        because some servers would wait for it. If the length is unknown, one byte more than the limit is read, to
        detect a body that is too long."""
        end = self._max_bytes + 1 if self._length is None else self._length
        left = max(end - self._read, 0)
        return left if size is None or size < 0 else min(size, left)

    def _count(self, data: bytes, requested: int) -> bytes:
        self._read += len(data)
        if self.too_long:
            raise RequestEntityTooLarge
        if not data and requested != 0 and self._length is not None and self._read < self._length:
            raise ClientDisconnected
        return data


def body_of(model: type[Model]) -> Model:
    """Return the JSON body of the current request as a model. An empty body counts as an empty object. Raises
    `InvalidInput` for an invalid body, `TooLarge` for a body with too many values, and `UnsupportedMediaType` for a
    content type that is not JSON."""
    data = request.get_data(cache=True)
    if data and not request.is_json:
        raise UnsupportedMediaType("the body is not JSON; send it with the content type application/json")
    check_values(data)
    try:
        return model.model_validate_json(data or b"{}")
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid" and (name := _unusable_field(data)):
            raise InvalidInput(
                name[:_MAX_SHOWN], "contains half of a surrogate pair, or is nested too deep; send another value"
            ) from None
        raise _invalid_input(error, model, "body") from None
    except ValueError:
        raise InvalidInput("body", "is not JSON in UTF-8; encode the body in UTF-8") from None


def is_arriving() -> bool:
    """Return whether reading the body of the current request may have to wait for the client. Only the server gunicorn
    calls a view before the body of the request has arrived."""
    connection = request.environ.get("gunicorn.socket")
    return isinstance(connection, TimedSocket) and not connection.has_body(request.content_length)


def client_left(environ: Mapping[str, Any]) -> bool:
    """Return whether the client of a request has closed its connection. Return False if the server does not report
    this. Call this function in the thread that handles the request."""
    if callable(is_disconnected := environ.get("waitress.client_disconnected")):
        return bool(is_disconnected())
    connection = environ.get("gunicorn.socket")
    return isinstance(connection, TimedSocket) and connection.is_closed_by_client()


def check_no_query() -> None:
    """Raise `InvalidInput` if the current request has a query string. Endpoints without parameters call this function,
    because the client could believe that an ignored parameter has an effect."""
    for name in request.args:
        raise InvalidInput(
            name[:_MAX_SHOWN] or "query",
            "is not allowed in the URL; remove it, because this endpoint has no parameters",
        )


def arguments_of(parameters: Any, grant: Grant, **options: Any) -> dict[str, Any]:
    """Return the fields of a body or query string as a dictionary. If the request has no namespace, `namespace` is the
    default namespace of the grant. `options` are options of pydantic's `model_dump`. Raises `Forbidden` for a namespace
    that the grant does not allow."""
    return {**parameters.model_dump(**options), "namespace": grant.namespace(parameters.namespace)}


def check_length(name: str, text: str, settings: Settings) -> None:
    """Raise `TooLarge` if the text is longer than the setting `max_question_chars`. The error calls the text `name`."""
    limit = settings.max_question_chars
    if len(text) > limit:
        raise TooLarge("max_question_chars", f"the {name} has {len(text)} characters; shorten it to at most {limit}")


def _unusable_field(data: bytes) -> str | None:
    """Return the name of the first field in a JSON body whose value cannot be stored, because the value contains half
    of a surrogate pair or is nested too deep. JSON allows such values. Return None if all values can be stored. The
    name of a field in a list has the form `items[0].content`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None if is_storable(value, _MAX_LEVELS) else "body"
    name = next((name for name, each in value.items() if not is_storable(each, _MAX_LEVELS)), None)
    items = value[name] if name is not None and isinstance(value[name], list) else ()
    for n, item in enumerate(items):
        if not is_storable(item, _MAX_LEVELS):
            inner = item.items() if isinstance(item, dict) else ()
            inside = next((f".{key}" for key, each in inner if not is_storable(each, _MAX_LEVELS)), "")
            return f"{name}[{n}]{inside}"
    return name


def parameters_of(model: type[Model], parameters: MultiDict[str, str], place: str) -> Model:
    """Return the query string or the form of the current request as a model. `place` is `query` or `form`. Raises
    `InvalidInput` for an invalid parameter."""
    arguments: dict[str, Any] = {}
    for name in parameters:
        values = parameters.getlist(name)
        if name in model.model_fields and _is_list(model, name):
            arguments[name] = values
        elif len(values) > 1:
            raise InvalidInput(name, f"is given {len(values)} times; give this parameter once")
        else:
            arguments[name] = values[0]
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        raise _invalid_input(error, model, place) from None


@cache
def _is_list(model: type[BaseModel], name: str) -> bool:
    schema = model.model_json_schema()["properties"][name]
    return any(choice.get("type") == "array" for choice in (schema, *schema.get("anyOf", ())))


def _invalid_input(error: ValidationError, model: type[BaseModel], place: str) -> InvalidInput:
    """Return an `InvalidInput` that describes the most useful error of a validation by pydantic. `place` is the part of
    the request that is not valid: `body`, `query` or `form`."""
    details = _most_specific(error.errors(include_url=False))
    name, path = _field_of(details["loc"], place)
    kind = details["type"]
    if kind == "json_invalid":
        return InvalidInput(place, f"is not JSON: {details['msg'].removeprefix('Invalid JSON: ')}")
    if kind == "extra_forbidden" and not path:
        return InvalidInput(name[:_MAX_SHOWN], f"is not a known name{_known_names(details['loc'], model)}")
    if kind == "missing":
        return InvalidInput(name, "is missing")
    if kind == "model_type":
        got = f", got {_shortened(details['input'])}" if details["loc"] else ""
        return InvalidInput(name, f"must be a JSON object{_example(details['loc'], model)}{got}")
    if kind == "too_short":
        return InvalidInput(name, f"is empty; send at least one item{_example(details['loc'], model)}")
    message = _MESSAGES.get(kind) or details["msg"]
    if kind == "too_long":
        message = f"must have at most {details['ctx']['max_length']} items"
    if kind == "string_pattern_mismatch" and not any(map(str.isprintable, str(details["input"]).strip())):
        message = "is empty"
    inner = f" (in {'.'.join(path[:3])})" if path else ""
    return InvalidInput(name[:_MAX_SHOWN], f"{message}{inner}, got {_shortened(details['input'])}")


def _field_of(loc: Sequence[str | int], place: str) -> tuple[str, list[str]]:
    """Return the name of an invalid field, such as `items[0].content`, and the path inside the value of this field.
    `loc` is the location of the error that pydantic reports; names of types in it are left out. If `loc` is empty, the
    name is `place`."""
    if not loc:
        return place, []
    name = str(loc[0])
    inside = [part for part in loc[1:] if isinstance(part, int) or not _TYPE_NAMES.search(part)]
    for number, part in enumerate(inside):
        if isinstance(part, int):
            name += f"[{part}]"
        elif number and isinstance(inside[number - 1], int):
            name += f".{part}"
        else:
            return name, [str(rest) for rest in inside[number:]]
    return name, []


def _known_names(loc: Sequence[str | int], model: type[BaseModel]) -> str:
    """Return the end of a message about an unknown field: a similar name, or all known names. Return "" for a field
    inside another field."""
    if len(loc) > 1:
        return ""
    similar = difflib.get_close_matches(str(loc[0])[:_MAX_SHOWN], model.model_fields, 1)
    if similar:
        return f"; did you mean {similar[0]}?"
    return f"; the known names are {', '.join(sorted(model.model_fields)) or 'none'}"


def _example(loc: Sequence[str | int], model: type[BaseModel]) -> str:
    """Return an example of a valid value, as the end of an error message. `loc` is the location of the value:
    a field or an item of a field, or the whole body if `loc` is empty. Return "" if the model has no example."""
    if loc:
        examples = model.model_fields[str(loc[0])].examples or [None]
        value = examples[0][0] if len(loc) > 1 and isinstance(examples[0], list) else examples[0]
    else:
        required = {name: field.examples for name, field in model.model_fields.items() if field.is_required()}
        value = {name: examples[0] for name, examples in required.items() if examples}
        value = value if len(value) == len(required) else None
    return f", such as {json.dumps(value)}" if value else ""


def _most_specific(errors: Sequence[Any]) -> Any:
    """Return the error that helps the client most. pydantic reports one error for each type that a field allows. If the
    value has one of these types, return the first error that is not about the type. Otherwise, return the first error.
    """
    first = errors[0]
    others = [error for error in errors if error["loc"][:1] == first["loc"][:1]] if _is_type(first) else []
    return next((error for error in others if not _is_type(error)), first)


def _is_type(error: Any) -> bool:
    return str(error["type"]).endswith("_type")


def _shortened(value: Any) -> str:
    value = value[: _MAX_SHOWN + 1] if isinstance(value, (str, list)) else value  # the rest is not shown
    text = "an object" if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
