"""An example of calling each endpoint, as one types it into a shell."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from agentformer.api.openapi import FORM, JSON, Schema


def curl(method: str, url: str, operation: Schema, shared: Mapping[str, Schema]) -> str:
    """What must be given, and no more; parameters of the path are in capitals, to be filled in."""
    address = re.sub(r"{(\w+)}", lambda found: found[1].upper(), url)
    asked = [each for each in operation["parameters"] if each["in"] == "query" and each["required"]]
    if asked:
        address += "?" + "&".join(f"{each['name']}={_plain(_example(each['schema'], shared))}" for each in asked)
    words = ["curl", "-sS", *(() if method == "GET" else ("-X", method)), address]
    content = operation.get("requestBody", {}).get("content", {})
    if FORM in content:
        words = ["curl", "-sS", address, "-F", "file=@report.pdf"]
    elif JSON in content:
        body = json.dumps(_example(content[JSON]["schema"], shared), ensure_ascii=False)
        words = [*words, "-H", f"Content-Type: {JSON}", "-d", body]
    return shlex.join(words)


def _example(schema: Schema, shared: Mapping[str, Schema]) -> Any:
    """A value that fits a schema: an example that it gives, else the plainest one."""
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
