"""Endpoints to watch the memory: the events of its entries as a page or as a stream, and webhooks, which get them."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from flask import Response, request
from pydantic import Field

from agentformer.access.permissions import PERMISSIONS, Grant
from agentformer.api.endpoints.jobs import follow
from agentformer.api.models import MAX_LISTED, Limit, Name, ResponseModel
from agentformer.api.operations import Router, Service
from agentformer.api.request import ParameterModel, RequestModel
from agentformer.api.response import EVENT_STREAM, Event, prefers_events, reply
from agentformer.errors import Unauthenticated
from agentformer.events.event_log import Filter
from agentformer.records.events import CURSOR, check_cursor

EVENTS, WEBHOOKS = "/api/events", "/api/webhooks"
_LAST = "Last-Event-ID"
_HEADERS = {
    "Accept": f"With `{EVENT_STREAM}`, the response is a stream of the events from now on.",
    _LAST: {
        "description": "In a stream: the id of the last event that the client has got. The stream continues after it.",
        "pattern": f"^({CURSOR})?$",
    },
}
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,60}[A-Za-z0-9])?"  # a part of a host name
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_POLL_SECONDS = 0.5
_SILENT_POLLS = 6  # reads without an event, after which a comment is sent
_CHECK_SECONDS = 5.0  # between two checks of the key of a stream
_INTERRUPTED = "A server error interrupted this stream. Connect again with the header Last-Event-ID."

router = Router("events")

Type = Literal["stored", "changed", "learnt", "superseded", "removed"]
Types = Annotated[list[Type], Field(max_length=5, description="The types of events. By default, all types.")]
_NAMESPACES = "The namespaces. By default, all that the key may use."
Namespaces = Annotated[list[Name], Field(max_length=100, description=_NAMESPACES)]
Place = Annotated[str, Field(max_length=40, pattern=f"^({CURSOR})?$")]
Url = Annotated[
    str,
    Field(
        max_length=2_000,
        pattern=rf"^https?://{_LABEL}(\.{_LABEL}){{0,9}}(:{_PORT})?(/[!-~]*)?$",
        examples=["https://example.org/hook"],
    ),
]
Content = Annotated[bool, Field(description="Add the present state of each entry. Needs the tool memory_get.")]


class EventsQuery(ParameterModel):
    """Query parameters of the events."""

    namespace: Namespaces = Field(default=[])
    type: Types = Field(default=[])
    content: Content = False
    after: Place = Field(default="", description="The id of the last event that the client has got.")
    limit: Limit = 100


class ChangedEntry(ResponseModel):
    """The entry of an event, as it was after the change."""

    entry_id: str
    namespace: str
    kind: str
    tier: str
    version: int
    entry: dict[str, Any] | None = Field(
        default=None, description="Only with `content`: the entry as it is now, or null if it was removed or moved."
    )


class EntryEvent(ResponseModel):
    """A change of an entry."""

    id: str
    type: Type
    timestamp: str = Field(description="The time of the change, in ISO 8601 and UTC.")
    data: ChangedEntry


class Events(ResponseModel):
    """Events in the order of the changes."""

    events: list[EntryEvent]
    next: str = Field(description="The value of `after` for the next request.")
    lost: bool = Field(description="True if events after `after` are no longer known. Then list the entries anew.")
    more: bool = Field(description="True if further events may be known already.")


class NewWebhook(RequestModel):
    """A URL that gets events."""

    url: Url
    events: Types = Field(default=[])
    namespaces: Namespaces = Field(default=[])
    content: Content = False


class StoredWebhook(ResponseModel):
    """A webhook and its progress, without its secret."""

    id: str
    url: str = Field(description="The URL without its query.")
    events: list[Type] = Field(description="An empty list means all types.")
    namespaces: list[str] = Field(description="An empty list means all namespaces.")
    content: bool
    key_id: str = Field(description="The key that made the webhook. Its present rights limit the events.")
    made_at: str
    state: Literal["active", "failing", "gone"] = Field(
        description="`failing`: the last attempt failed. `gone`: the receiver answered 410, and gets no more events."
    )
    delivered: int = Field(ge=0)
    delivered_at: str | None
    failures: int = Field(ge=0, description="The failed attempts at the next event.")
    error: str = Field(description="The reason of the last failure, or an empty text.")
    retry_at: str | None = Field(description="The time of the next attempt after a failure.")


class StoredWebhooks(ResponseModel):
    """The webhooks that the key may see, the oldest first."""

    webhooks: list[StoredWebhook]


class MadeWebhook(StoredWebhook):
    """A new webhook with the secret that signs its requests. No later response has the secret."""

    secret: str


@router.route("GET", EVENTS, "events", {200: (Events, EVENT_STREAM)}, headers=_HEADERS, errors=(429, 501))
def get_events(service: Service, grant: Grant, query: EventsQuery) -> Response:
    """List the changes of entries, or stream them as they happen.

    If the header `Accept` prefers `text/event-stream`, the response is a stream. It begins with `ready`, whose id is
    the present place in the feed, or with `lost` if events after `Last-Event-ID` are no longer known. Otherwise, the
    response is a page of the known events, from the oldest one on. A memory keeps its newest 100,000 events."""
    for namespace in query.namespace:
        grant.namespace(namespace)
    if query.content:
        PERMISSIONS["memory_get"].require(grant)
    wanted = Filter(query.type, query.namespace, query.content).allowed(grant)
    assert wanted is not None  # all of it was checked
    log, place = service.af.events, check_cursor(request.headers.get(_LAST, ""), _LAST)
    if not prefers_events():
        return reply(asdict(log.page(query.after, wanted, query.limit)))
    after = place or query.after or log.last()
    return follow(service, _stream(service, grant, wanted, after), _INTERRUPTED)


@router.route("GET", WEBHOOKS, "webhooks", {200: StoredWebhooks}, errors=(501,))
def list_webhooks(service: Service, grant: Grant) -> Response:
    """List the webhooks and their progress. A key that is limited to namespaces sees the webhooks of these only."""
    hooks = [(hook, state) for hook, state in service.af.webhooks.all() if hook.visible_to(grant)]
    return reply({"webhooks": [hook.as_json(state) for hook, state in hooks]})


@router.route("POST", WEBHOOKS, "webhooks", {201: MadeWebhook}, errors=(409, 501))
def add_webhook(service: Service, grant: Grant, body: NewWebhook) -> Response:
    """Send the events from now on to a URL. The field `secret` is shown only in this response.

    Each event is a POST request with the JSON object of the event, signed as in the specification Standard Webhooks.
    Private addresses and addresses without encryption need the setting `webhook_private_hosts`."""
    if body.content:
        PERMISSIONS["memory_get"].require(grant)
    # Each delivery looks up the key of the webhook. An id from a host application is not in the keys of the memory.
    maker = grant if service.guard.keys is not None else replace(grant, key_id="")
    hook = service.af.webhooks.add(
        body.url, events=body.events, namespaces=body.namespaces, content=body.content, grant=maker
    )
    state = next(state for each, state in service.af.webhooks.all() if each.id == hook.id)
    return reply({**hook.as_json(state), "secret": hook.secret}, 201)


@router.route("DELETE", f"{WEBHOOKS}/{{webhook_id}}", "webhooks", {204: None}, errors=(501,))
def remove_webhook(service: Service, grant: Grant, webhook_id: str) -> Response:
    """Remove a webhook. A request that is in progress is completed."""
    service.af.webhooks.remove(webhook_id, lambda hook: hook.visible_to(grant))
    return Response(status=204)


def _stream(service: Service, grant: Grant, wanted: Filter, after: str) -> Generator[Event | None, None, None]:
    """Yield the events after a cursor, and None after some seconds without one. The stream ends when the server stops,
    and when the key is revoked or may no longer read the events."""
    yield "ready", {"next": after}, after
    polls, checked = 0, time.monotonic()
    while True:
        if time.monotonic() >= checked + _CHECK_SECONDS:
            checked, allowed = time.monotonic(), _allowed(service, grant, wanted)
            if allowed is None:
                return
            wanted = allowed
        page = service.af.events.page(after, wanted, MAX_LISTED)
        if page.lost:
            yield "lost", {"next": page.next}, page.next
        for event in page.events:
            yield event["type"], event, event["id"]
        polls = 0 if page.events or page.lost else polls + 1
        if polls and polls % _SILENT_POLLS == 0:
            yield None
        after = page.next
        if not page.more and service.jobs.stopped(_POLL_SECONDS):
            return


def _allowed(service: Service, grant: Grant, wanted: Filter) -> Filter | None:
    """Return the filter within the present rights of the caller, or None if the caller may read nothing of it."""
    if service.guard.keys is not None:
        if not grant.key_id:  # enough until the first key is made
            return None if service.guard.keys.ever_made else wanted
        try:
            grant = service.guard.keys.grant_by_id(grant.key_id)
        except Unauthenticated:
            return None
    return wanted.allowed(grant)
