"""Endpoints to list, add, change and revoke the keys of the server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from flask import Response
from pydantic import ConfigDict, Field

from agentformer.access.keys import MAX_DAYS, Key, KeyStore
from agentformer.access.limits import HIGHEST, Limits
from agentformer.access.permissions import RIGHTS, Grant, Right
from agentformer.api.models import Moment, Name, ResponseModel
from agentformer.api.operations import Router, Service
from agentformer.api.request import RequestModel
from agentformer.api.response import reply
from agentformer.errors import Conflict, Forbidden, InvalidInput, NotFound
from agentformer.records import fields
from agentformer.records.fields import MAX_NAME
from agentformer.tools.toolbox import HINTS

KEYS = "/api/keys"
_KEY = f"{KEYS}/{{key_id}}"
_OTHER_KEYS = "the host application checks who may send requests, so this memory has no keys of its own"
_FIRST_KEY = (
    "the first key must have the right admin and must reach all namespaces, because every request needs a key as soon "
    "as one exists; first add a key with the right admin, and then use that key to add this one"
)

router = Router("server")

Rights = Annotated[list[Right], Field(min_length=1, max_length=len(RIGHTS))]
Namespaces = Annotated[list[Name], Field(max_length=100, description="An empty list means all namespaces.")]
Tool = Annotated[str, Field(json_schema_extra={"enum": [*HINTS]})]
Tools = Annotated[list[Tool], Field(max_length=100, description="Tools that are switched off for the key.")]
_PRINTABLE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]"  # no control characters and line breaks
_NOT_BLANK = _PRINTABLE.replace("]", r"\s\ufeff]")
RequestsPerMinute = Annotated[
    int,
    Field(
        ge=0,
        le=HIGHEST["requests_per_minute"],
        description="Requests that a server process accepts in a minute. 0: no limit.",
    ),
]
MaxEntries = Annotated[
    int,
    Field(
        ge=0,
        le=HIGHEST["max_entries"],
        description="Entries in the namespaces of the key, with pages and chunks of documents. 0: no limit.",
    ),
]
MaxBytes = Annotated[
    int,
    Field(
        ge=0,
        le=HIGHEST["max_bytes"],
        description="Bytes of texts and uploaded files in the namespaces of the key. 0: no limit.",
    ),
]
QuestionsPerDay = Annotated[
    int,
    Field(
        ge=0,
        le=HIGHEST["questions_per_day"],
        description="Questions to a language model on a day in UTC, in all processes together. 0: no limit.",
    ),
]
KeyName = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=rf"^{_PRINTABLE}*{_NOT_BLANK}{_PRINTABLE}*$")]


class StoredKey(ResponseModel):
    """A key, without its secret text."""

    id: str
    name: str
    rights: list[str]
    namespaces: list[str] = Field(description="An empty list means all namespaces.")
    without: list[str] = Field(description="Tools that are switched off for the key.")
    made_at: str
    expires_at: str | None
    last_used_on: str | None = Field(description="The day of the last use, in UTC.")
    requests_per_minute: RequestsPerMinute
    max_entries: MaxEntries
    max_bytes: MaxBytes
    questions_per_day: QuestionsPerDay
    own: bool = Field(description="True for the key that this request uses.")


class StoredKeys(ResponseModel):
    """All keys that were not revoked, the oldest first."""

    keys: list[StoredKey]
    required: bool = Field(
        description="True if every request needs a key. False until the first key is made: until then, programs on "
        "the machine of the server need no key."
    )
    tools: list[str] = Field(description="The names of all tools.")
    needs: dict[str, str] = Field(
        description="The right that each tool requires. `change` means `read` and `write` together."
    )
    destructive: list[str] = Field(description="The tools that can delete or overwrite data.")


class MadeKey(StoredKey):
    """A new key with its secret text, the field `key`. The text is not stored, and no later response contains it."""

    key: str


class RotatedKey(MadeKey):
    """A new key, and the time at which the former one expires."""

    former_id: str
    former_expires_at: str


class _WithLimits(RequestModel):
    requests_per_minute: RequestsPerMinute = 0
    max_entries: MaxEntries = 0
    max_bytes: MaxBytes = 0
    questions_per_day: QuestionsPerDay = 0

    def limits(self) -> dict[str, int]:
        """Return the limits that the request names."""
        return {name: getattr(self, name) for name in Limits._fields if name in self.model_fields_set}


class NewKey(_WithLimits):
    """A key to add."""

    name: KeyName
    rights: Rights = Field(default=["read", "write"])
    namespaces: Namespaces = Field(default=[])
    without: Tools = Field(default=[])
    days: Annotated[int, Field(ge=1, le=MAX_DAYS)] | None = Field(
        default=None, description="The key expires after this many days. By default, it does not expire."
    )
    expires: Moment | None = Field(default=None, description="The time at which the key expires, instead of `days`.")


class Rotation(RequestModel):
    """How to rotate a key."""

    overlap_hours: float = Field(
        default=24, ge=0, le=MAX_DAYS * 24, description="The former key is accepted for so many hours."
    )


class KeyChange(_WithLimits):
    """New values of a key. A field that is left out keeps its value."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    name: KeyName = Field(default_factory=str)
    rights: Rights = Field(default_factory=list)
    namespaces: Namespaces = Field(default_factory=list)
    without: Tools = Field(default_factory=list)


@router.route("GET", KEYS, "keys", {200: StoredKeys})
def list_keys(service: Service, grant: Grant) -> Response:
    """List the keys and their rights. The texts of the keys are not stored, and cannot be shown.

    A key that is limited to namespaces is refused, here and in the other endpoints for keys.
    """
    store = _store(service, grant)
    destructive = [name for name, hints in HINTS.items() if hints.permission.destructive]
    keys = [_key_json(key, grant) for key in store.all()]
    needs = {name: hints.permission.right for name, hints in HINTS.items()}
    tools = {"tools": [*HINTS], "needs": needs, "destructive": destructive}
    return reply({"keys": keys, "required": store.ever_made, **tools})


@router.route("POST", KEYS, "keys", {201: MadeKey}, errors=(409,))
def add_key(service: Service, grant: Grant, body: NewKey) -> Response:
    """Add a key. The field `key` is shown only in this response.

    As soon as a key exists, every request needs a key, even a request from the machine of the server. So the first key
    must have the right `admin` and reach all namespaces: without such a key, nobody could add or revoke keys over HTTP.
    Tools that are switched off for the key that sends this request are switched off for the new key too."""
    store = _store(service, grant)
    if body.days and body.expires:
        raise InvalidInput("expires", "cannot be used together with days; give one of them")
    expires = datetime.now(UTC) + timedelta(days=body.days) if body.days else fields.moment("expires", body.expires)
    without = _without(body.without, grant)
    if not store.ever_made and ("admin" not in body.rights or body.namespaces):
        raise Conflict(_FIRST_KEY)
    key, secret = store.make(body.name, _rights(body.rights), body.namespaces, without, expires, **body.limits())
    service.af.note("key-added", key.id)
    return reply({**_key_json(key, grant), "key": secret}, 201)


@router.route("PATCH", _KEY, "keys", {200: StoredKey}, errors=(409,))
def change_key(service: Service, grant: Grant, body: KeyChange, key_id: str) -> Response:
    """Change the name, the rights, the namespaces, the disabled tools or limits of a key. Its text stays the same.

    The change applies from the next request on. The key that sends this request can change its own name, but not its
    own rights, namespaces, tools or limits. Tools that are switched off for this key are switched off for the changed
    key too.
    """
    store = _store(service, grant)
    given = body.model_fields_set
    if not given:
        raise InvalidInput("body", "is empty; give a field to change, such as rights")
    if given != {"name"}:
        _check_other(key_id, grant)
    key = store.change(
        key_id,
        name=body.name if "name" in given else None,
        rights=_rights(body.rights) if "rights" in given else None,
        namespaces=body.namespaces if "namespaces" in given else None,
        without=_without(body.without, grant) if "without" in given else None,
        **body.limits(),
    )
    service.af.note("key-changed", key.id)
    return reply(_key_json(key, grant))


@router.route("POST", f"{_KEY}/rotate", "keys", {201: RotatedKey}, errors=(409,))
def rotate_key(service: Service, grant: Grant, body: Rotation, key_id: str) -> Response:
    """Replace the text of a key: make a new key with the same name, rights and limits, and let the former one expire.

    Until the former key expires, both are accepted. The field `key` is shown only in this response. The new key has the
    lifetime of the former one. A key may rotate itself; a key with disabled tools may rotate only itself."""
    store = _store(service, grant)
    if grant.without and key_id != grant.key_id:
        raise Forbidden("a key with disabled tools can rotate only itself; use a key without disabled tools")
    key, secret, former = store.rotate(key_id, timedelta(hours=body.overlap_hours))
    ends = former.as_json()["expires_at"]
    values = {**_key_json(key, grant), "key": secret, "former_id": former.id, "former_expires_at": ends}
    service.af.note("key-rotated", former.id)
    service.af.note("key-added", key.id)
    return reply(values, 201)


@router.route("DELETE", _KEY, "keys", {204: None}, errors=(409,))
def revoke_key(service: Service, grant: Grant, key_id: str) -> Response:
    """Revoke a key. The next request with this key is refused.

    A key cannot revoke itself, so that an administrator is not locked out: send the request with another key, or use
    the command `agentformer keys revoke`."""
    store = _store(service, grant)
    _check_other(key_id, grant)
    store.revoke(key_id)
    service.af.note("key-revoked", key_id)
    return Response(status=204)


def _store(service: Service, grant: Grant) -> KeyStore:
    grant.require_all_namespaces()
    if service.guard.keys is None:
        raise NotFound(_OTHER_KEYS)
    return service.guard.keys


def _check_other(key_id: str, grant: Grant) -> None:
    if key_id == grant.key_id:
        raise Conflict(
            "a key cannot restrict or revoke itself; send the request with another key that has the right admin"
        )


def _rights(rights: list[Right]) -> list[Right]:
    return [*dict.fromkeys(rights)]


def _without(requested: list[str], grant: Grant) -> set[str]:
    """Return the tools that must be switched off for a new or changed key: the `requested` tools, and those that are
    switched off for the caller. So a caller cannot give a key a tool that the caller may not use. Raises `InvalidInput`
    for an unknown tool."""
    for name in requested:
        if name not in HINTS:
            raise InvalidInput("without", f"{name!r:.80} is not a tool; the tools are {', '.join(HINTS)}")
    return {*requested, *grant.without}


def _key_json(key: Key, grant: Grant) -> dict[str, object]:
    return {**key.as_json(), "own": bool(key.id) and key.id == grant.key_id}
