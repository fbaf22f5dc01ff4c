"""The OpenAPI 3.1 document, made from the endpoints as they are declared.

Not by flask-openapi3: it needs the host application to be a Flask class of its own, takes malformed JSON for null, and
reads form fields as JSON.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from flask import Response, request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from agentformer._version import __version__
from agentformer.api.models.common import Problem
from agentformer.api.operations import Operation, Operations
from agentformer.api.problems import PROBLEM
from agentformer.api.response import reply

JSON = "application/json"
FORM = "multipart/form-data"
_REF = "#/components/schemas/{model}"
_ABOUT = (
    "A memory that an agent can trust, and answers from documents with page-exact citations. Keys are sent as "
    "`Authorization: Bearer KEY`. Where no key was ever made, requests from the same machine need none."
)
_FILES = {
    "type": "array",
    "items": {"type": "string", "format": "binary"},
    "minItems": 1,
    "description": "One or more parts of this name, each a file with its name.",
}

_NEEDS = {None: "Needs no key.", "any": "Needs a key."}

Schema = dict[str, Any]


def add_openapi(operations: Operations, prefix: str) -> Callable[[], Schema]:
    """Declare `/openapi.json`. Returns what makes the document for the request that is being answered."""

    @functools.cache
    def made() -> Schema:
        return described(operations.declared)

    def document() -> Schema:
        return {**made(), "servers": [{"url": request.script_root.rstrip("/") + prefix or "/"}]}

    @operations.declare("GET", "/openapi.json", right=None, returns={200: (JSON,)}, tag="server")
    def openapi() -> Response:
        """This interface as an OpenAPI document."""
        return reply(document())

    return document


def described(declared: Sequence[Operation]) -> Schema:
    """The document of these endpoints. Paths are below the address that `servers` is to name."""
    schemas = _Schemas(declared)
    paths: dict[str, Schema] = {}
    for operation in declared:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "AgentFormer", "version": __version__, "description": _ABOUT},
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in declared)],
        "paths": paths,
        "components": {
            "schemas": schemas.shared,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The JSON Schema of each model. Those of queries and forms are taken apart, and not shared."""

    def __init__(self, declared: Sequence[Operation]) -> None:
        models: list[type[BaseModel]] = [Problem, *(model for operation in declared for model in _models(operation))]
        each = dict.fromkeys(models)
        self._refs, made = models_json_schema([(model, "validation") for model in each], ref_template=_REF)
        self._all: dict[str, Schema] = _untitled(made["$defs"])
        apart = {self._name(model) for op in declared for model in (op.query, op.form) if model is not None}
        self.shared = {name: schema for name, schema in self._all.items() if name not in apart}

    def ref(self, model: type[BaseModel]) -> Schema:
        return self._refs[model, "validation"]

    def of(self, model: type[BaseModel]) -> Schema:
        return self._all[self._name(model)]

    def _name(self, model: type[BaseModel]) -> str:
        return str(self.ref(model)["$ref"]).rpartition("/")[2]


def _models(operation: Operation) -> Iterator[type[BaseModel]]:
    yield from (each for each in (operation.query, operation.form, operation.body) if each is not None)
    for answer in operation.returns.values():
        yield from (each for each in _each(answer) if not isinstance(each, str))


def _each(answer: Any) -> Sequence[Any]:
    """The models and media types of an answer."""
    if answer is None:
        return ()
    return answer if isinstance(answer, (list, tuple)) else (answer,)


def _operation(operation: Operation, schemas: _Schemas) -> Schema:
    needs = _NEEDS.get(operation.right, f"Needs a key with the right to {operation.right}.")
    if operation.tool:
        needs += f" Refused to a key for which the tool `{operation.tool}` is switched off."
    told: Schema = {
        "operationId": "_".join(re.findall(r"\w+", f"{operation.method.lower()} {operation.path}")),
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": f"{operation.description} {needs}".strip(),
        "parameters": [*_parameters(operation, schemas)],
        "responses": _responses(operation, schemas),
        "security": [{"bearer": []}] if operation.right else [],
    }
    if body := _body(operation, schemas):
        told["requestBody"] = body
    return told


def _parameters(operation: Operation, schemas: _Schemas) -> Iterator[Schema]:
    for name in re.findall(r"{(\w+)}", operation.path):
        values = {"enum": [*operation.choices[name]]} if name in operation.choices else {"minLength": 1}
        yield _parameter(name, "path", {"type": "string", **values}, True)
    if operation.query is not None:
        asked = schemas.of(operation.query)
        for name, schema in asked["properties"].items():
            yield _parameter(name, "query", schema, name in asked.get("required", ()))
    for name, told in operation.headers.items():
        schema = {"description": told} if isinstance(told, str) else dict(told)
        yield _parameter(name, "header", {"type": "string", **schema}, False)


def _parameter(name: str, place: str, schema: Schema, required: bool) -> Schema:
    sent = _sent(schema)
    described = {"description": sent.pop("description")} if "description" in sent else {}
    return {"name": name, "in": place, "required": required, "schema": sent, **described}


def _sent(schema: Schema) -> Schema:
    """Of a parameter or a form's field: null cannot be sent there, and leaving it out says the same."""
    told = {key: value for key, value in schema.items() if key != "anyOf"}
    if choices := [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]:
        told |= choices[0] if len(choices) == 1 else {"anyOf": choices}
    if told.get("default", ...) is None:
        del told["default"]
    return told


def _body(operation: Operation, schemas: _Schemas) -> Schema | None:
    if operation.form is not None:
        form = schemas.of(operation.form)
        fields = {"file": _FILES, **{name: _sent(value) for name, value in form.get("properties", {}).items()}}
        whole = {**form, "properties": fields, "required": ["file", *form.get("required", ())]}
        return {"required": True, "content": {FORM: {"schema": whole}}}
    if operation.body is not None:
        required = bool(schemas.of(operation.body).get("required"))
        return {"required": required, "content": {JSON: {"schema": schemas.ref(operation.body)}}}
    return None


def _responses(operation: Operation, schemas: _Schemas) -> Schema:
    told: Schema = {}
    for status, answer in operation.returns.items():
        told[str(status)] = {"description": HTTPStatus(status).phrase}
        if content := {_media_type(each): _content(each, schemas) for each in _each(answer)}:
            told[str(status)]["content"] = content
    problem = {PROBLEM: {"schema": schemas.ref(Problem)}}
    for status in sorted(_faults(operation) - set(operation.returns)):
        told[str(status)] = {"description": HTTPStatus(status).phrase, "content": problem}
    return told | {"default": {"description": "What else went wrong", "content": problem}}


def _media_type(answer: Any) -> str:
    return answer if isinstance(answer, str) else JSON


def _content(answer: Any, schemas: _Schemas) -> Mapping[str, Any]:
    return {} if isinstance(answer, str) else {"schema": schemas.ref(answer)}


def _faults(operation: Operation) -> set[int]:
    """The statuses of problems, as far as they follow from what an endpoint takes."""
    faults = {*operation.faults}
    faults |= {400, 401, 403} if operation.right else set()
    faults |= {404} if "{" in operation.path else set()
    faults |= {413, 415} if operation.body or operation.form else set()
    return faults


def _untitled(schema: Any) -> Any:
    """Without the titles that pydantic makes of names. A property may be called `title`; its value is no text."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
