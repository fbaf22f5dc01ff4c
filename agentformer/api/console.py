"""Serves the console: the page at `/` and `/console`, and the files that the page loads.

The files need no key, because they contain no data. The page asks for a key when an endpoint requires one.
"""

from __future__ import annotations

import hashlib

from flask import Blueprint, Response, abort, request

from agentformer import console

_PAGE, _ASSET = "/console", "/console/<name>"
_MAX_ROOT = 200  # characters of the path below which an application is mounted


def add_console(blueprint: Blueprint, prefix: str, *, at_root: bool) -> None:
    """Add the page and its files to the blueprint. If `at_root` is true, the page is also at the root of the blueprint,
    which then is not a page of a host application. `prefix` is the prefix of the blueprint."""

    def page() -> Response:
        root = (request.script_root + prefix)[:_MAX_ROOT]
        headers = {"Content-Security-Policy": console.POLICY}
        return _cached(Response(console.page(root), headers=headers, content_type="text/html; charset=utf-8"))

    for path in (_PAGE, *(["/"] if at_root else [])):
        blueprint.add_url_rule(path, f"console page {path.strip('/')}", page, methods=["GET"])
    blueprint.add_url_rule(_ASSET, "console file", _file, methods=["GET"])


def _file(name: str) -> Response:
    found = console.asset(name)
    if found is None:
        abort(404)
    kind, data = found
    return _cached(Response(data, content_type=f"{kind}; charset=utf-8"))


def _cached(response: Response) -> Response:
    """Let a browser keep the response, and ask each time whether it has changed."""
    response.headers["Cache-Control"] = "no-cache"
    response.set_etag(hashlib.sha256(response.get_data()).hexdigest()[:32])
    response.make_conditional(request)
    return response
