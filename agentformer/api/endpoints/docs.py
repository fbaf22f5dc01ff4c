"""Endpoints of the description of this API: the OpenAPI document, and the page /docs, which shows the document."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flask import Response, request
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from agentformer.api.openapi import FORM, JSON, Schema
from agentformer.api.operations import Router, Service
from agentformer.api.response import reply
from agentformer.http.problems import PROBLEM

_TEMPLATES = Path(__file__).parent / "templates"
_HTML = "text/html"

router = Router("server")


@router.route("GET", "/openapi.json", None, {200: (JSON,)})
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
    return {**service.document(), "servers": [{"url": request.script_root.rstrip("/") + service.prefix or "/"}]}


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


def _bounds(schema: Schema, least: str, most: str) -> str:
    low, high = schema.get(least), schema.get(most)
    unit = {"minLength": " characters", "minItems": " items"}.get(least, "")
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
    if FORM in content:
        words = ["curl", "-sS", address, "-F", "file=@report.pdf"]
    elif JSON in content:
        body = json.dumps(_example(content[JSON]["schema"], shared), ensure_ascii=False)
        words = [*words, "-H", f"Content-Type: {JSON}", "-d", body]
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
