"""Reads JSON from the reply of a language model. The JSON is parsed strictly, and its value is checked against a JSON
Schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from agentformer.errors import InvalidInput, MissingExtra

_FENCE = re.compile(r"\s*+```[ \t]*+\w*+[ \t]*+\n")  # the beginning of a block of code
_REASONING = re.compile(r"\A.*</think>", re.DOTALL)
_ERRORS = 5  # problems that are reported to a model in one message
# OpenAI's strict mode: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
_LOOSE = {
    *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "contains"),
    *("patternProperties", "unevaluatedProperties", "propertyNames", "minProperties", "maxProperties"),
    *("prefixItems", "minLength", "maxLength", "uniqueItems"),
}


class Mismatch(ValueError):
    """Raised if the reply of a model is not JSON, or if its JSON is not valid under the schema. The message describes
    the problem in a form that can be sent to the model."""


class Schema:
    """A JSON Schema whose syntax has been checked. Raises `InvalidInput` if it is not a valid JSON Schema. If it has a
    `$ref` to an address, nothing is downloaded. The time for matching a `pattern` has no limit, so do not use a pattern
    with nested repetition, such as `^(a+)+$`."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            from jsonschema.exceptions import SchemaError
            from jsonschema.validators import Draft202012Validator, validator_for
            from jsonschema_specifications import REGISTRY
        except ImportError as error:
            raise MissingExtra("llm", "a reply that follows a JSON Schema", error) from None
        try:
            self.wire: dict[str, Any] = json.loads(json.dumps(dict(schema), allow_nan=False))  # as it is sent
            kind = validator_for(self.wire, default=Draft202012Validator)
            kind.check_schema(self.wire)
        except SchemaError as error:
            raise InvalidInput("schema", f"is not a valid JSON Schema: {error.message:.200}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput("schema", f"must be a JSON Schema, which is an object of JSON values: {error}") from None
        self._validator = kind(self.wire, registry=REGISTRY)

    @property
    def is_object(self) -> bool:
        """True if the schema allows only JSON objects, as the reply format `json_object` of servers does."""
        return self.wire.get("type") == "object"

    @property
    def strict(self) -> bool:
        """True if OpenAI's strict mode accepts the schema; the server then ensures that the reply is valid."""
        return self.is_object and "anyOf" not in self.wire and all(_is_strict(part) for part in _parts(self.wire))

    @property
    def instruction(self) -> str:
        """The prompt that asks for JSON of this schema, for a server that does not pass the schema to the model."""
        schema = json.dumps(self.wire, ensure_ascii=False)
        return f"Answer with one JSON value and nothing else. It must be valid under this JSON Schema:\n{schema}"

    def read(self, text: str) -> tuple[str, Any]:
        """Find the JSON in the reply `text`, and return the JSON as text and as a parsed value. The JSON may be in a
        Markdown code block. Raise `Mismatch` if the JSON is not valid under the schema, or if parsers could read it in
        different ways, such as an object with the same key twice."""
        text = _REASONING.sub("", text)
        fence, text = _FENCE.match(text), text.rstrip()
        if fence and text.endswith("```") and len(text) >= fence.end() + 3:
            text = text[fence.end() : -3]
        text = text.strip()
        try:
            value = parse_json(text)
        except ValueError as error:
            raise Mismatch(f"This is not JSON: {error}") from None
        if errors := self._errors(value):
            raise Mismatch("\n".join(errors))
        return text, value

    def _errors(self, value: Any) -> list[str]:
        from referencing.exceptions import Unresolvable

        try:
            errors = islice(self._validator.iter_errors(value), _ERRORS)
            return [f"{error.json_path}: {error.message:.200}" for error in errors]
        except Unresolvable as error:
            raise InvalidInput("schema", f"has a $ref to a missing definition: {error.ref!r:.200}") from None
        except RecursionError:
            raise InvalidInput("schema", "contains a $ref that refers to itself without an end") from None


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the schema and the schemas in it, under the keywords that OpenAI's strict mode knows."""
    if isinstance(schema, list):
        for item in schema:
            yield from _parts(item)
    elif isinstance(schema, dict):
        yield schema
        for name, inner in schema.items():
            if name in ("properties", "$defs", "definitions"):
                yield from _parts(list(inner.values()))
            elif name in ("items", "anyOf", "additionalProperties"):
                yield from _parts(inner)


def _is_strict(part: Mapping[str, Any]) -> bool:
    if _LOOSE & part.keys():
        return False
    if part.get("type") != "object" and "properties" not in part:
        return True
    names = set(part.get("properties", {}))
    return part.get("additionalProperties") is False and names == set(part.get("required", []))


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raise `ValueError` if the text is not JSON, or if parsers could read the text in
    different ways. This is the case for NaN, a number that is too large for a double, the same key twice in an object,
    a lone surrogate, and nesting that is too deep."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_number, object_pairs_hook=_members)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a text contains a lone surrogate") from None
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text:.40} is too large")
    return number


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError(f"duplicate key in the object that begins with {pairs[0][0]!r:.40}")
    return members
