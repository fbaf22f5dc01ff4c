"""`/docs`: the OpenAPI document as one page for people. It has no script and fetches nothing."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Response, request
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from agentformer.api.examples import curl
from agentformer.api.openapi import Schema
from agentformer.api.operations import Operations
from agentformer.api.problems import PROBLEM

_TEMPLATES = Path(__file__).parent / "templates"
_HTML = "text/html"


@dataclass(frozen=True, slots=True)
class Row:
    """A parameter, a field or an answer: its type in words, and the models that it speaks of."""

    name: str
    kind: str
    models: tuple[str, ...]
    required: bool
    description: str


def add_docs_page(operations: Operations, document: Callable[[], Schema]) -> None:
    """Declare `/docs`; `document` makes the OpenAPI document for the request that is being answered."""
    css = (_TEMPLATES / "docs.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    headers = {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}

    @functools.cache
    def template() -> Any:
        environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True)
        environment.filters["code"] = _code
        return environment.get_template("docs.html")

    @operations.declare("GET", "/docs", right=None, returns={200: (_HTML,)}, tag="server")
    def docs() -> Response:
        """This interface as a page to read."""
        page = template().render(css=Markup(css), **_page(document(), request.host_url.rstrip("/")))  # noqa: S704 - ours
        return Response(page, headers=headers, content_type=f"{_HTML}; charset=utf-8")


def _page(document: Schema, host: str) -> dict[str, Any]:
    base = document["servers"][0]["url"].rstrip("/")
    shared = document["components"]["schemas"]
    tags: dict[str, list[dict[str, Any]]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            told = _endpoint(operation, shared)
            example = curl(method.upper(), f"{host}{base}{path}", operation, shared)
            tags[operation["tags"][0]].append({**told, "method": method.upper(), "path": path, "curl": example})
    info = document["info"]
    return {
        "title": info["title"],
        "version": info["version"],
        "about": info["description"],
        "base": base,
        "tags": tags,
        "schemas": [
            {"name": name, "description": schema.get("description", ""), "fields": [*_fields(schema)]}
            for name, schema in sorted(shared.items())
        ],
    }


def _endpoint(operation: Schema, shared: Mapping[str, Schema]) -> dict[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    body_type = next(iter(content), "")
    schema: Schema = content[body_type]["schema"] if body_type else {}
    answers = operation["responses"].items()
    return {
        "id": operation["operationId"],
        "summary": operation["summary"],
        "description": operation["description"],
        "parameters": [
            _row(each["name"], {**each["schema"], "description": each.get("description", "")}, each["required"])
            for each in operation["parameters"]
        ],
        "body_type": body_type,
        "fields": [*_fields(shared[_model(schema)] if "$ref" in schema else schema)],
        "answers": [_answer(status, answer) for status, answer in answers if PROBLEM not in answer.get("content", {})],
        "problems": [status for status, answer in answers if PROBLEM in answer.get("content", {}) and status.isdigit()],
    }


def _answer(status: str, answer: Schema) -> dict[str, Any]:
    content = answer.get("content", {})
    schemas = [each["schema"] for each in content.values() if "schema" in each]
    return {
        "status": status,
        "description": answer["description"],
        "types": ", ".join(content),
        "kind": "",
        "models": tuple(dict.fromkeys(name for schema in schemas for name in _models(schema))),
    }


def _fields(schema: Schema) -> Iterator[Row]:
    for name, value in schema.get("properties", {}).items():
        yield _row(name, value, name in schema.get("required", ()))


def _row(name: str, schema: Schema, required: bool) -> Row:
    return Row(name, _kind(schema), tuple(dict.fromkeys(_models(schema))), required, schema.get("description", ""))


def _kind(schema: Schema) -> str:
    """The type in a few words, with its bounds."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(str(each) for each in schema["enum"])
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
    """What stands between backticks, as code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


def _models(schema: Any) -> Iterator[str]:
    """The names of all models that a schema refers to."""
    if isinstance(schema, list):
        for each in schema:
            yield from _models(each)
    elif isinstance(schema, Mapping):
        if "$ref" in schema:
            yield _model(schema)
        for each in schema.values():
            yield from _models(each)


def _model(schema: Mapping[str, Any]) -> str:
    return re.sub(r".*/", "", str(schema["$ref"]))
