"""JSON out of a model's text, valid under a JSON Schema or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from agentformer.errors import InvalidInput, MissingExtra
from agentformer.llms.wire import loads

_FENCE = re.compile(r"\A\s*```[ \t]*\w*[ \t]*\n(.*?)\n?[ \t]*```\s*\Z", re.DOTALL)
_THOUGHT = re.compile(r"\A.*</think>", re.DOTALL)  # what a reasoning model says to itself first
_ERRORS = 5  # that a model is told at once
# OpenAI's strict mode: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
_LOOSE = frozenset(
    (
        *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "contains"),
        *("patternProperties", "unevaluatedProperties", "propertyNames", "minProperties", "maxProperties"),
        *("prefixItems", "minLength", "maxLength", "uniqueItems"),
    )
)


class Mismatch(ValueError):
    """A text is not valid under the schema; the text says why, for the model."""


class Schema:
    """A checked JSON Schema. Raises `InvalidInput` for one that is none; nothing is ever fetched for a `$ref`.

    A schema is the caller's own, not the model's: what its `pattern` costs is not bounded, so it must be one that does
    not backtrack without end, as `^(a+)+$` does.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            from jsonschema.exceptions import SchemaError
            from jsonschema.validators import Draft202012Validator, validator_for
            from jsonschema_specifications import REGISTRY
        except ImportError as error:
            raise MissingExtra("llm", "an answer by a JSON Schema", error) from None
        try:
            self.wire: dict[str, Any] = json.loads(json.dumps(dict(schema), allow_nan=False))
            kind = validator_for(self.wire, default=Draft202012Validator)
            kind.check_schema(self.wire)
        except SchemaError as error:
            raise InvalidInput("schema", f"is no valid JSON Schema: {error.message:.200}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput("schema", f"must be a JSON Schema, an object of JSON values: {error}") from None
        self._validator = kind(self.wire, registry=REGISTRY)

    @property
    def is_object(self) -> bool:
        """Whether the value is an object, the only one that `json_object` can give."""
        return self.wire.get("type") == "object"

    @property
    def strict(self) -> bool:
        """Whether the schema stays within what strict decoding takes."""
        return self.is_object and "anyOf" not in self.wire and all(_is_strict(part) for part in _parts(self.wire))

    @property
    def instruction(self) -> str:
        """What tells a model the schema where the server does not."""
        schema = json.dumps(self.wire, ensure_ascii=False)
        return f"Answer with one JSON value and nothing else. It must be valid under this JSON Schema:\n{schema}"

    def read(self, text: str) -> tuple[str, Any]:
        """The JSON in `text`, which may be fenced, and its value. Raises `Mismatch`, also for what only some readers
        take for JSON, such as an object with one key twice."""
        text = _THOUGHT.sub("", text)
        fenced = _FENCE.match(text)
        text = (fenced[1] if fenced else text).strip()
        try:
            value = loads(text)
        except ValueError as error:
            raise Mismatch(f"This is not JSON: {error}") from None
        if errors := self._errors(value):
            raise Mismatch("\n".join(errors))
        return text, value

    def _errors(self, value: Any) -> list[str]:
        from referencing.exceptions import Unresolvable

        try:
            found = islice(self._validator.iter_errors(value), _ERRORS)
            return [f"{error.json_path}: {error.message:.200}" for error in found]
        except Unresolvable as error:
            raise InvalidInput("schema", f"has a $ref that leads nowhere: {error.ref!r:.200}") from None
        except RecursionError:
            raise InvalidInput("schema", "refers to itself without end") from None


def _parts(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and every schema inside it."""
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
