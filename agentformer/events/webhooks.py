"""Webhooks: URLs that get the events of a memory, each with a secret that signs them. They are stored in the memory, so
that all its servers deliver to them.

A request is signed as in the specification Standard Webhooks: `webhook-signature` is the HMAC-SHA-256 of the id, the
time and the body of the request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from agentformer.access.permissions import Grant
from agentformer.errors import Conflict, NotFound
from agentformer.events.event_log import EventType, types_of
from agentformer.http.fetch_rules import parse_url
from agentformer.records import fields, meta
from agentformer.records.events import last
from agentformer.types import RecordStore

MAX_WEBHOOKS = 20  # of one memory; each has a thread while it gets events
_HOOK, _STATE = "webhook/", "webhook_state/"
_PREFIX = "whsec_"


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """The progress of a webhook. `after` is the cursor after the last event that its receiver has got. `failures`
    counts the attempts at the next event; the next one is at `next_at`, in seconds since 1970. A receiver that has
    answered with 410 is `gone`, and gets no more events."""

    after: str
    failures: int = 0
    next_at: float = 0.0
    error: str = ""
    delivered: int = 0
    delivered_at: str | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that gets events. Empty `events` and `namespaces` mean all. `key_id` is the key that made the webhook, and
    its rights limit the events; it is empty for a webhook that was made without a key."""

    id: str
    url: str
    secret: str = field(repr=False)
    events: tuple[EventType, ...] = ()
    namespaces: tuple[str, ...] = ()
    content: bool = False
    key_id: str = ""
    made_at: str = ""

    def visible_to(self, grant: Grant) -> bool:
        """Return whether a caller may see and delete the webhook: it gets events of the caller's namespaces only."""
        return not grant.namespaces or (bool(self.namespaces) and all(map(grant.reaches, self.namespaces)))

    def as_json(self, state: DeliveryState) -> dict[str, Any]:
        """Return the webhook with its progress as JSON values, without its secret and the query of its URL."""
        retry = datetime.fromtimestamp(state.next_at, UTC).isoformat() if state.failures else None
        return {
            "id": self.id,
            "url": parse_url(self.url).shown,
            "events": list(self.events),
            "namespaces": list(self.namespaces),
            "content": self.content,
            "key_id": self.key_id,
            "made_at": self.made_at,
            "state": "gone" if state.gone else "failing" if state.failures else "active",
            "delivered": state.delivered,
            "delivered_at": state.delivered_at,
            "failures": state.failures,
            "error": state.error,
            "retry_at": retry,
        }


class Webhooks:
    """The webhooks of a memory, in its database. A change is visible to all processes at once."""

    def __init__(self, database: RecordStore) -> None:
        self._database = database

    def add(
        self,
        url: str,
        *,
        events: Iterable[str] = (),
        namespaces: Iterable[str] = (),
        content: bool = False,
        grant: Grant | None = None,
    ) -> Webhook:
        """Store a webhook that gets the events from now on, and return it with its secret. `grant` has the rights of
        the caller. Raises `InvalidInput` for an invalid value, `Forbidden` for a namespace that the grant does not
        allow, and `Conflict` if there are too many webhooks."""
        parse_url(url)
        names = tuple(dict.fromkeys(fields.names("namespaces", namespaces)))
        if grant is not None:
            names = tuple(map(grant.namespace, names)) or grant.namespaces
        hook = Webhook(
            id=secrets.token_hex(4),
            url=url.strip(),
            secret=_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode(),
            events=types_of(list(events), "events"),
            namespaces=names,
            content=content,
            key_id=grant.key_id if grant else "",
            made_at=datetime.now(UTC).isoformat(),
        )
        with self._database.writing() as connection:
            if len(meta.values(connection, _HOOK)) >= MAX_WEBHOOKS:
                raise Conflict(f"there are {MAX_WEBHOOKS} webhooks already; remove one first")
            meta.set_value(connection, _HOOK + hook.id, json.dumps({**asdict(hook), "version": 1}))
            state = DeliveryState(last(connection))
            meta.set_value(connection, _STATE + hook.id, json.dumps(asdict(state)))
        return hook

    def all(self) -> list[tuple[Webhook, DeliveryState]]:
        """Return all webhooks with their progress, oldest first."""
        with self._database.reading() as connection:
            hooks, states = meta.values(connection, _HOOK), meta.values(connection, _STATE)
        found = [(_hook(text), DeliveryState(**json.loads(states[key]))) for key, text in hooks.items()]
        return sorted(found, key=lambda pair: (pair[0].made_at, pair[0].id))

    def remove(self, webhook_id: str, visible: Callable[[Webhook], bool] = lambda hook: True) -> Webhook:
        """Delete a webhook, and return it. Raises `NotFound` if there is no such webhook that is `visible`."""
        with self._database.writing() as connection:
            text = meta.get_value(connection, _HOOK + webhook_id)
            if not text or not visible(hook := _hook(text)):
                raise NotFound(f"there is no webhook {webhook_id[:80]}; list them with: agentformer webhooks list")
            meta.delete_value(connection, _HOOK + webhook_id)
            meta.delete_value(connection, _STATE + webhook_id)
        return hook

    def set_state(self, webhook_id: str, state: DeliveryState) -> bool:
        """Store the progress of a webhook. Return False if it was removed."""
        with self._database.writing() as connection:
            if not meta.get_value(connection, _HOOK + webhook_id):
                return False
            meta.set_value(connection, _STATE + webhook_id, json.dumps(asdict(state)))
        return True


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature` of a request: version and HMAC. `secret` begins with `whsec_`, `timestamp`
    is in seconds since 1970."""
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    digest = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _hook(text: str) -> Webhook:
    values = json.loads(text)
    del values["version"]
    return replace(Webhook(**values), events=tuple(values["events"]), namespaces=tuple(values["namespaces"]))
