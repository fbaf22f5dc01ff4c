"""Serves the console: the page at `/` and `/console`, the files that the page loads, and the map of the entries.

The files need no key, because they contain no data. The page asks for a key when an endpoint requires one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

from flask import Blueprint, Response, abort, request
from pydantic import Field

from agentformer.access.permissions import Grant
from agentformer.api.models import Namespace, ResponseModel
from agentformer.api.operations import Router, Service
from agentformer.api.request import ParameterModel
from agentformer.api.response import reply
from agentformer.console import page as console
from agentformer.console.map import SCALE, MapPoints
from agentformer.types import MemoryBackend

_PAGE, _ASSET = "/console", "/console/<name>"
_MAX_ROOT = 200  # characters of the path below which an application is mounted
_WAIT_SECONDS = 1.0  # of a request for a map that is being computed; the page then sends the request again

router = Router("memories")


class MapQuery(ParameterModel):
    """Query parameters of a map: the namespace, and whether the map is computed again."""

    namespace: Namespace = None
    renew: bool = Field(default=False, description="Compute the map again, even if the store has hardly changed.")


class MapDocument(ResponseModel):
    """A document whose passages are points of the map."""

    id: str
    name: str


class Map(ResponseModel):
    """Entries as points in two dimensions. `ids`, `x`, `y`, `tier`, `kind`, `session` and `document` have a value for
    each point. The values of `tier`, `kind`, `session` and `document` are indexes in the lists `tiers`, `kinds`,
    `sessions` and `documents`; -1 means that the point has no such value."""

    state: Literal["ready", "computing", "failed"] = Field(
        description="While the map is `computing`, the points are those of the former map, if there is one."
    )
    problem: str = Field(description="The reason why the map could not be computed, or an empty text.")
    space: str = Field(description="The embedding model of the vectors, or an empty text if there are no vectors.")
    total: int = Field(description="The number of entries of the namespace that a search can return.")
    explained: float = Field(
        ge=0, le=1, description="The share of the variance of the vectors that the two dimensions show."
    )
    scale: int = Field(description="The largest coordinate; the smallest is 0.")
    ids: list[str]
    x: list[int]
    y: list[int]
    tier: list[int]
    kind: list[int]
    session: list[int]
    document: list[int]
    tiers: list[str]
    kinds: list[str]
    sessions: list[str]
    documents: list[MapDocument]


@router.route("GET", "/api/memory/map", "map", {200: Map})
def memory_map(service: Service, grant: Grant, query: MapQuery) -> Response:
    """Return the entries of a namespace as points in two dimensions, computed from their vectors.

    Similar entries are near each other. The map is computed in the background. It is computed again if it is older than
    ten minutes, or if the number of entries has changed. In a namespace of more than 2,000 entries, a change of the
    number by at most 2% does not count. If there are more than 20,000 entries, only every second, third or n-th entry
    is shown. To search within an area, send the ids of its
    points in the filter `where` of a search, as `{"type": "in", "key": "$id", "value": [...]}`."""
    state = service.maps.get(grant.namespace(query.namespace), renew=query.renew, wait_seconds=_WAIT_SECONDS)
    points = state.points or MapPoints("", (), (), (), 0, 0.0)
    return reply({"state": state.state, "problem": state.problem, **_map_json(points, service.af.backend)})


def _map_json(points: MapPoints, backend: MemoryBackend) -> dict[str, Any]:
    """Return the fields of `Map`, except `state` and `problem`."""
    columns: dict[str, list[int]] = {}
    names: dict[str, list[str]] = {}
    for column, values in (
        ("tier", [entry.tier for entry in points.entries]),
        ("kind", [entry.kind for entry in points.entries]),
        ("session", [entry.session_id for entry in points.entries]),
        ("document", [entry.document_id for entry in points.entries]),
    ):
        columns[column], names[f"{column}s"] = _coded(values)
    ids = names.pop("documents")
    document_names = {entry.id: entry.content for entry in backend.get(ids)}
    documents = [{"id": document_id, "name": document_names.get(document_id, "")} for document_id in ids]
    return {
        "space": points.space,
        "total": points.total,
        "explained": round(points.explained, 4),
        "scale": SCALE,
        "ids": [entry.id for entry in points.entries],
        "x": [*points.x],
        "y": [*points.y],
        **columns,
        **names,
        "documents": documents,
    }


def _coded(values: Sequence[str | None]) -> tuple[list[int], list[str]]:
    """Return the index of each value in a list of the distinct values (-1 for None), and this list. The indexes make a
    column of repeated texts shorter."""
    places: dict[str, int] = {}
    coded = [-1 if value is None else places.setdefault(value, len(places)) for value in values]
    return coded, [*places]


def add_console(blueprint: Blueprint, prefix: str, *, at_root: bool) -> None:
    """Add the page of the console and its files to the blueprint. `prefix` is the prefix of the blueprint. If `at_root`
    is true, the page is also at the path `/` below the prefix. In a host application, `at_root` is false, because the
    host application may have its own page there."""

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
    """Let a browser cache the response. Before each use, the browser must ask the server whether the response has
    changed."""
    response.headers["Cache-Control"] = "no-cache"
    response.set_etag(hashlib.sha256(response.get_data()).hexdigest()[:32])
    response.make_conditional(request)
    return response
