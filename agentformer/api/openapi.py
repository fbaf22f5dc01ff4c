"""The OpenAPI 3.1 document, built from the declared endpoints.

The package flask-openapi3 is not used, because it needs its own Flask class, accepts malformed JSON as null, and reads
form fields as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from agentformer._version import __version__
from agentformer.access.permissions import Permission
from agentformer.api.models import Problem
from agentformer.api.openai.models import OpenAIError
from agentformer.api.operations import Operation
from agentformer.http.problems import PROBLEM

JSON = "application/json"
FORM = "multipart/form-data"
_REF = "#/components/schemas/{model}"
_ABOUT = (
    "A memory for agents, and answers from documents with page-exact citations. Send a key as "
    "`Authorization: Bearer KEY`. Until the first key is made, requests from the same machine need no key."
)
_FILES = {
    "type": "array",
    "items": {"type": "string", "format": "binary"},
    "minItems": 1,
    "description": "One or more files. Each file is a part of the form with the name `file`.",
}
_KEYS = {
    "any": "Requires a key.",
    "change": "Requires a key with the rights `read` and `write`.",
}

Schema = dict[str, Any]


def openapi_document(operations: Sequence[Operation]) -> Schema:
    """Return the OpenAPI document of these endpoints, without the field `servers`, which depends on the request."""
    schemas = _Schemas(operations)
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "AgentFormer", "version": __version__, "description": _ABOUT},
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": schemas.shared,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The JSON Schemas of all models, for the OpenAPI document. `shared` contains the schemas of bodies and responses,
    to which the endpoints refer by name. The fields of query strings and forms are listed in each endpoint instead."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        errors = dict.fromkeys(_error_model(operation) for operation in operations)
        used: list[type[BaseModel]] = [
            Problem,
            *errors,
            *(model for operation in operations for model in _models(operation)),
        ]
        models = dict.fromkeys(used)
        self._refs, generated = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
        self._all: dict[str, Schema] = _without_titles(generated["$defs"])
        inline = {self._name(model) for op in operations for model in (op.query, op.form) if model is not None}
        self.shared = {name: schema for name, schema in self._all.items() if name not in inline}

    def ref(self, model: type[BaseModel]) -> Schema:
        return self._refs[model, "validation"]

    def of(self, model: type[BaseModel]) -> Schema:
        return self._all[self._name(model)]

    def _name(self, model: type[BaseModel]) -> str:
        return str(self.ref(model)["$ref"]).rpartition("/")[2]


def _models(operation: Operation) -> Iterator[type[BaseModel]]:
    returned = [item for returns in operation.returns.values() for item in _items(returns)]
    models = (operation.query, operation.form, operation.body, *returned)
    yield from (model for model in models if model is not None and not isinstance(model, str))


def _items(returns: Any) -> Sequence[Any]:
    """Return the models and media types of a response as a sequence, for a loop. For a response without content, it is
    empty."""
    if returns is None:
        return ()
    return returns if isinstance(returns, (list, tuple)) else (returns,)


def _operation(operation: Operation, schemas: _Schemas) -> Schema:
    key = _key_text(operation.permission)
    summary, _, description = (operation.view.__doc__ or "").strip().partition("\n\n")
    schema: Schema = {
        "operationId": "_".join(re.findall(r"\w+", f"{operation.method.lower()} {operation.path}")),
        "tags": [operation.tag],
        "summary": " ".join(summary.split()),
        "description": " ".join([*description.split(), key]),
        "parameters": [*_parameters(operation, schemas)],
        "responses": _responses(operation, schemas),
        "security": [{"bearer": []}] if operation.permission else [],
    }
    if body := _body(operation, schemas):
        schema["requestBody"] = body
    return schema


def _key_text(permission: Permission | None) -> str:
    """Return the sentences that describe the key which an endpoint requires. `permission` is None if no key is
    needed."""
    if permission is None:
        return "Requires no key."
    text = _KEYS.get(permission.right, f"Requires a key with the right `{permission.right}`.")
    tools = " or ".join(f"`{name}`" for name in permission.tools)
    return f"{text} A key without the tool {tools} is refused." if tools else text


def _parameters(operation: Operation, schemas: _Schemas) -> Iterator[Schema]:
    for name in re.findall(r"{(\w+)}", operation.path):
        values = {"enum": [*operation.choices[name]]} if name in operation.choices else {"minLength": 1}
        yield _parameter(name, "path", {"type": "string", **values}, True)
    if operation.query is not None:
        query = schemas.of(operation.query)
        for name, schema in query["properties"].items():
            yield _parameter(name, "query", schema, name in query.get("required", ()))
    for name, header in operation.headers.items():
        schema = {"description": header} if isinstance(header, str) else dict(header)
        yield _parameter(name, "header", {"type": "string", **schema}, False)


def _parameter(name: str, place: str, schema: Schema, required: bool) -> Schema:
    schema = _without_null(schema)
    description = {"description": schema.pop("description")} if "description" in schema else {}
    return {"name": name, "in": place, "required": required, "schema": schema, **description}


def _without_null(schema: Schema) -> Schema:
    """Return the schema of a parameter or a form field without null, because a parameter can be absent but cannot be
    null."""
    result = {key: value for key, value in schema.items() if key != "anyOf"}
    if choices := [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]:
        result |= choices[0] if len(choices) == 1 else {"anyOf": choices}
    if result.get("default", ...) is None:
        del result["default"]
    return result


def _body(operation: Operation, schemas: _Schemas) -> Schema | None:
    if operation.form is not None:
        form = schemas.of(operation.form)
        fields = {"file": _FILES, **{name: _without_null(value) for name, value in form.get("properties", {}).items()}}
        whole = {**form, "properties": fields, "required": ["file", *form.get("required", ())]}
        return {"required": True, "content": {FORM: {"schema": whole}}}
    if operation.body is not None:
        required = bool(schemas.of(operation.body).get("required"))
        return {"required": required, "content": {JSON: {"schema": schemas.ref(operation.body)}}}
    return None


def _responses(operation: Operation, schemas: _Schemas) -> Schema:
    responses: Schema = {}
    for status, returns in operation.returns.items():
        response = responses[str(status)] = {"description": HTTPStatus(status).phrase}
        for item in _items(returns):
            content = response.setdefault("content", {})
            if isinstance(item, str):
                content[item] = {}
            else:
                content[JSON] = {"schema": schemas.ref(item)}
    model = _error_model(operation)
    problem = {PROBLEM if model is Problem else JSON: {"schema": schemas.ref(model)}}
    for status in sorted(_error_statuses(operation) - set(operation.returns)):
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": problem}
    return responses | {"default": {"description": "Other errors", "content": problem}}


def _error_model(operation: Operation) -> type[BaseModel]:
    return OpenAIError if operation.path.startswith("/v1/") else Problem


def _error_statuses(operation: Operation) -> set[int]:
    """Return the HTTP statuses of the errors of an endpoint: the statuses in `errors`, and the statuses that follow
    from other fields, such as 404 from a parameter in the path."""
    statuses = {*operation.errors}
    statuses |= {400, 401, 403} if operation.permission else set()
    statuses |= {404} if "{" in operation.path else set()
    statuses |= {413, 415} if operation.body or operation.form else set()
    statuses |= {429} if operation.uses_model or operation.body else set()
    return statuses


def _without_titles(schema: Any) -> Any:
    """Return the schema without the titles that pydantic generates. A property with the name `title` stays, because its
    value is a schema and not text."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)
    }
