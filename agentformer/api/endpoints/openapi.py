"""The OpenAPI 3.1 document of the declared endpoints, and its endpoints: `/openapi.json`, and the HTML page `/docs`.

The package flask-openapi3 is not used, because it needs its own Flask class, accepts malformed JSON as null, and reads
form fields as JSON.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flask import Response, request
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from agentformer._version import __version__, build
from agentformer.access.permissions import Permission
from agentformer.api.models import Problem
from agentformer.api.openai.models import OpenAIError
from agentformer.api.operations import Operation, Router, Service
from agentformer.api.response import reply
from agentformer.servers.problems import PROBLEM

_TEMPLATES = Path(__file__).parent / "templates"
_HTML = "text/html"
_JSON = "application/json"
_FORM = "multipart/form-data"
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
router = Router("server")


@functools.cache
def openapi_document(operations: tuple[Operation, ...]) -> Schema:
    """Return the OpenAPI document of these endpoints, without the field `servers`, which depends on the request."""
    schemas = _Schemas(operations)
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "AgentFormer", "version": __version__, "description": _ABOUT, **_build()},
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
        used: list[type[BaseModel]] = [Problem, *map(_error_model, operations)]
        used += [model for operation in operations for model in _models(operation)]
        models = dict.fromkeys(used)  # each once, in this order
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
    """Return the models and media types of a response as a sequence. It is empty for a response without content."""
    if returns is None:
        return ()
    return returns if isinstance(returns, (list, tuple)) else (returns,)


def _build() -> Schema:
    """Return the commit and date of the build, as an extension of OpenAPI. A copy without a build has none."""
    return {"x-build": text} if (text := build()) else {}


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
    """Return the sentences about the key that an endpoint requires. `permission` is None if no key is needed."""
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
    """Return the schema of a parameter or a form field without null: it can be absent, but it cannot be null."""
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
        return {"required": True, "content": {_FORM: {"schema": whole}}}
    if operation.body is not None:
        required = bool(schemas.of(operation.body).get("required"))
        return {"required": required, "content": {_JSON: {"schema": schemas.ref(operation.body)}}}
    return None


def _responses(operation: Operation, schemas: _Schemas) -> Schema:
    responses: Schema = {}
    for status, returns in operation.returns.items():
        response = responses[str(status)] = {"description": HTTPStatus(status).phrase}
        for item in _items(returns):
            content = response.setdefault("content", {})
            if isinstance(item, str):  # a media type
                content[item] = {}
            else:
                content[_JSON] = {"schema": schemas.ref(item)}
    model = _error_model(operation)
    problem = {PROBLEM if model is Problem else _JSON: {"schema": schemas.ref(model)}}
    for status in sorted(_error_statuses(operation) - set(operation.returns)):
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": problem}
    return responses | {"default": {"description": "Other errors", "content": problem}}


def _error_model(operation: Operation) -> type[BaseModel]:
    return OpenAIError if operation.path.startswith("/v1/") else Problem


def _error_statuses(operation: Operation) -> set[int]:
    """Return the HTTP statuses of the errors of an endpoint: the statuses in `operation.errors`, and the statuses that
    follow from its other fields, such as 404 if the path contains a parameter."""
    statuses = {*operation.errors}
    statuses |= {400, 401, 403, 429} if operation.permission else set()
    statuses |= {404} if "{" in operation.path else set()
    statuses |= {413, 415} if operation.body or operation.form else set()
    return statuses


def _without_titles(schema: Any) -> Any:
    """Return the schema without the titles (texts) that pydantic generates. A property named `title` stays."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)
    }


@router.route("GET", "/openapi.json", None, {200: (_JSON,)})
def openapi(service: Service) -> Response:
    """Return the description of this HTTP API as an OpenAPI document."""
    return reply(_document(service))


@router.route("GET", "/docs", None, {200: (_HTML,)})
def docs(service: Service) -> Response:
    """Return the description of this HTTP API as an HTML page."""
    css = Markup((_TEMPLATES / "docs.css").read_text(encoding="utf-8"))  # noqa: S704 - a file of this package
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    headers = {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    document = _document(service)
    base = document["servers"][0]["url"].rstrip("/")
    schemas = document["components"]["schemas"]
    page = _template().render(css=css, document=document, base=base, schemas=schemas, host=request.host_url.rstrip("/"))
    return Response(page, headers=headers, content_type=f"{_HTML}; charset=utf-8")


def _document(service: Service) -> Schema:
    """Return the OpenAPI document. Its field `servers` contains the path under which the current request reached the
    API, because a proxy or a host application may add a prefix."""
    return {
        **openapi_document(service.operations),
        "servers": [{"url": request.script_root.rstrip("/") + service.prefix or "/"}],
    }


@functools.cache
def _template() -> Any:
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True)
    environment.filters |= {
        "code": _code,
        "kind": _kind,
        "models": lambda schema: [*dict.fromkeys(_component_names(schema))],
    }
    environment.globals |= {"curl": _curl, "PROBLEM": PROBLEM}
    return environment.get_template("docs.html")


def _kind(schema: Schema) -> str:
    """Return the type that a schema describes, in a few words and with its limits, such as `whole number (1..200)`."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(choice) for choice in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}{_bounds(schema, 'minItems', 'maxItems')}"
    name = "object" if "$ref" in schema else schema.get("type", "anything")
    kind = {"string": "text", "number": "number", "integer": "whole number", "boolean": "true or false"}.get(name, name)
    return f"{kind}{_bounds(schema, 'minimum', 'maximum')}{_bounds(schema, 'minLength', 'maxLength')}"


def _bounds(schema: Schema, low_field: str, high_field: str) -> str:
    """Return the limits in parentheses, such as " (at least 1)", or "" if the schema has neither field."""
    low, high = schema.get(low_field), schema.get(high_field)
    unit = {"minLength": " characters", "minItems": " items"}.get(low_field, "")
    if low is None and high is None:
        return ""
    if unit and low == 1 and high is None:
        return " (not empty)"
    if high is None or low is None:
        return f" (at {f'least {low}' if high is None else f'most {high}'}{unit})"
    return f" ({low}..{high}{unit})"


def _code(text: str) -> Markup:
    """Return the text as HTML. Text between backticks becomes a `<code>` element."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


def _component_names(schema: Any) -> Iterator[str]:
    """Yield the names of all models that a schema refers to, for links to them. A name may occur several times."""
    if isinstance(schema, list):
        for item in schema:
            yield from _component_names(item)
    elif isinstance(schema, Mapping):
        if "$ref" in schema:
            yield _model(schema)
        for item in schema.values():
            yield from _component_names(item)


def _model(schema: Mapping[str, Any]) -> str:
    return re.sub(r".*/", "", str(schema["$ref"]))


def _curl(method: str, url: str, operation: Schema, shared: Mapping[str, Schema]) -> str:
    """Return an example call as a `curl` command that contains only the required values. A parameter in the path is
    replaced by its name in capital letters."""
    address = re.sub(r"{(\w+)}", lambda match: match[1].upper(), url)
    query = [item for item in operation["parameters"] if item["in"] == "query" and item["required"]]
    if query:
        address += "?" + "&".join(f"{item['name']}={_plain(_example(item['schema'], shared))}" for item in query)
    words = ["curl", "-sS", *(() if method == "GET" else ("-X", method)), address]
    content = operation.get("requestBody", {}).get("content", {})
    if _FORM in content:
        words = ["curl", "-sS", address, "-F", "file=@report.pdf"]
    elif _JSON in content:
        body = json.dumps(_example(content[_JSON]["schema"], shared), ensure_ascii=False)
        words = [*words, "-H", f"Content-Type: {_JSON}", "-d", body]
    return shlex.join(words)


def _example(schema: Schema, shared: Mapping[str, Schema]) -> Any:
    """Return a value that matches the schema. If the schema contains an example, return this example, otherwise a
    simple value. `shared` contains the schemas of all models by name."""
    if "$ref" in schema:
        return _example(shared[schema["$ref"].rpartition("/")[2]], shared)
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    for name in ("const", "default"):
        if schema.get(name) is not None:
            return schema[name]
    if choices := schema.get("anyOf"):
        return _example(choices[0], shared)
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        names = schema.get("required") or [*properties][: schema.get("minProperties", 0)]
        return {name: _example(properties[name], shared) for name in names if name in properties}
    if kind == "array":
        return [_example(schema.get("items", {}), shared)]
    return {"integer": schema.get("minimum", 1), "number": schema.get("minimum", 0.5), "boolean": True}.get(
        str(kind), "..."
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
