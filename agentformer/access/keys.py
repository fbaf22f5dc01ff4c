"""API keys: make, list, revoke and check them. The keys are stored as JSON, in a file that only its owner can read, or
in the database of a memory that several machines share.

A key is a text `af_ID_SECRET`, in which the secret has 256 random bits. Only the SHA-256 of the key is stored.
A slow password hash is not needed, because nobody can guess such a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import secrets
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from filelock import Timeout

from agentformer.access.key_storage import KeyFile, KeyPlace, Remembered
from agentformer.access.limits import (
    HIGHEST,
    NO_LIMITS,
    WRONG_A_MINUTE,
    Allowance,
    DayCounts,
    Limits,
    Rates,
    checked_limits,
    quota_headers,
)
from agentformer.access.permissions import RIGHTS, Grant, Right
from agentformer.errors import (
    Busy,
    Conflict,
    InvalidInput,
    NotFound,
    StoreBusy,
    StoreDamaged,
    StoreError,
    Unauthenticated,
)
from agentformer.records import fields

PREFIX = "af_"
MAX_DAYS = 36_500  # the longest lifetime of a key
_VERSION = 1
_LOCAL = "local_access"  # a field of the file; if it is true, programs on this machine need no key
_SUM = "checksum"  # a field of each record; a file of a former version has none
KEY = re.compile(r"af_([0-9a-f]{8})_[0-9a-f]{8,}")  # a key in a text
_SHA256 = re.compile("[0-9a-f]{64}")
_CONTROL_CATEGORIES = ("Cc", "Zl", "Zp")  # control characters, line and paragraph separators
_MAX_QUOTED = 200  # characters of a damaged file
_LOCK_SECONDS = 10.0  # seconds to wait for the lock; a change takes milliseconds
# From this number of keys on, the days of their uses are written together, because each write takes time.
_MANY, _NOTE_SECONDS = 500, 10.0


@dataclass(frozen=True, slots=True)
class Key:
    """A stored API key: its name, rights, namespaces and times, without its secret."""

    id: str
    name: str
    rights: tuple[Right, ...]
    namespaces: tuple[str, ...]  # (): all namespaces
    without: frozenset[str]  # tools that are switched off
    digest: str = field(repr=False)  # SHA-256 of the whole key, hexadecimal
    made_at: datetime
    expires_at: datetime | None = None
    last_used_on: date | None = None  # in UTC
    limits: Limits = NO_LIMITS
    replaced_by: str = ""  # the id of the key that replaces this one, which expires; "": none

    def as_json(self) -> dict[str, Any]:
        """Return the key as JSON values, without its digest."""
        return {
            "id": self.id,
            "name": self.name,
            "rights": list(self.rights),
            "namespaces": list(self.namespaces),
            "without": sorted(self.without),
            "made_at": self.made_at.isoformat(),
            "expires_at": self.expires_at and self.expires_at.isoformat(),
            "last_used_on": self.last_used_on and self.last_used_on.isoformat(),
            **self.limits._asdict(),
        }


Keys = tuple[Key, ...]


class _Stored(NamedTuple):
    """The stored bytes at the last read, and their keys in order, by digest and by id. `keys` is None if programs on
    this machine need no key."""

    data: bytes
    keys: Keys | None
    by_digest: Mapping[str, Key]
    by_id: Mapping[str, Key]


class KeyStore:
    """The API keys of a memory. `place` is the folder of the file `keys.json`, or an object that stores the keys
    elsewhere. Every method reads the stored keys again, and so sees the changes of other processes. Methods raise
    `StoreDamaged` if the stored keys are not valid, and `StoreError` if they cannot be read. In both cases, no request
    is accepted."""

    def __init__(self, place: Path | KeyPlace) -> None:
        self._place = KeyFile(place) if isinstance(place, Path) else place
        self.questions = DayCounts(self._place.beside("questions.json"))
        self._cache: _Stored | None = None
        self._original: KeyStore | None = None  # the keys of which this is a view; see `remembering`
        self._rates = Rates()
        self._lock = threading.Lock()
        self._noted: set[tuple[str, date]] = set()  # uses of today that this process has stored or tried to store
        self._to_note: dict[str, date] = {}  # days of uses that are not stored yet, by key id
        self._noted_at = -math.inf  # monotonic time of the last write of days

    @property
    def ever_made(self) -> bool:
        """True if a key was ever made, and `reset` was not called since then. Then every request needs a key, even
        after the last key is revoked. Once this process has read a key, the value stays True in this process, even if
        somebody deletes the stored keys."""
        return self._keys() is not None

    def stored(self) -> bytes | None:
        """Return the keys as they are stored, for a backup, or None if no key was ever made."""
        return self._place.read()

    def all(self) -> Keys:
        """Return all keys that were not revoked, oldest first. Keys that have expired are included."""
        return self._keys() or ()

    def make(
        self,
        name: str,
        rights: Iterable[Right] = ("read", "write"),
        namespaces: Iterable[str] = (),
        without: Iterable[str] = (),
        expires: datetime | None = None,
        **limits: int,
    ) -> tuple[Key, str]:
        """Make a key, and return the `Key` and its secret text. The secret text is not stored. If `namespaces` is
        empty, the key may use all namespaces. `without` names tools that are switched off for the key. The key is
        refused from the time `expires` on; if `expires` is None, the key does not expire. `limits` are fields of
        `Limits`. Raises `InvalidInput` for an invalid value, `StoreFull` if the key cannot be written, and `Busy` if
        another process holds the lock."""
        now = datetime.now(UTC)
        expires = fields.moment("expires", expires)
        if expires is not None and expires <= now:
            raise InvalidInput("expires", "is in the past; give a later time")
        template = Key(
            "",
            _printable_name(name),
            rights=_rights(rights),
            namespaces=tuple(dict.fromkeys(fields.names("namespaces", namespaces))),
            without=frozenset(fields.names("without", without)),
            digest="",
            made_at=now,
            expires_at=expires,
            limits=Limits(**checked_limits(limits)),
        )
        _check_reach(template)
        with self._changing() as keys:
            return _added(keys, template)

    def rotate(self, key_id: str, overlap: timedelta = timedelta(days=1)) -> tuple[Key, str, Key]:
        """Make a new key with the name, the rights, the namespaces and the limits of a key, and let the former key
        expire after `overlap`, in which both are accepted. A former key that expires earlier keeps its time, and the
        new key gets a lifetime as long as that of the former one. Return the new `Key`, its secret text, and the former
        key. Raises `NotFound` if there is no such key, `Conflict` if it was replaced already or has expired, and the
        errors of `make`."""
        if not timedelta(0) <= overlap <= timedelta(days=MAX_DAYS):
            raise InvalidInput("overlap", f"must be in 0..{MAX_DAYS} days")
        with self._changing_key(key_id) as (keys, index):
            former, now = keys[index], datetime.now(UTC)
            _check_not_over(former, now)
            lifetime = former.expires_at and former.expires_at - former.made_at
            expires = now + lifetime if lifetime else None
            new = replace(former, made_at=now, expires_at=expires, last_used_on=None, replaced_by="")
            key, secret = _added(keys, new)
            ends = min(former.expires_at or now + overlap, now + overlap)
            keys[index] = former = replace(former, expires_at=ends, replaced_by=key.id)
        return key, secret, former

    def change(
        self,
        key_id: str,
        *,
        name: str | None = None,
        rights: Iterable[Right] | None = None,
        namespaces: Iterable[str] | None = None,
        without: Iterable[str] | None = None,
        **limits: int,
    ) -> Key:
        """Change the name, the rights, the namespaces, the disabled tools or limits of a key, and return the new `Key`.
        The text of the key stays the same, and the next request with it has the new rights. What is not given stays as
        it is. Raises `NotFound` if there is no such key, and the errors of `make`."""
        changes: dict[str, Any] = {}
        if name is not None:
            changes["name"] = _printable_name(name)
        if rights is not None:
            changes["rights"] = _rights(rights)
        if namespaces is not None:
            changes["namespaces"] = tuple(dict.fromkeys(fields.names("namespaces", namespaces)))
        if without is not None:
            changes["without"] = frozenset(fields.names("without", without))
        new_limits = checked_limits(limits)
        with self._changing_key(key_id) as (keys, index):
            changes["limits"] = keys[index].limits._replace(**new_limits)
            keys[index] = key = replace(keys[index], **changes)
            if rights is not None or namespaces is not None:
                _check_reach(key)
        return key

    def revoke(self, key_id: str) -> Key:
        """Delete a key, and return the deleted `Key`. Later requests with the key are refused. Raises `NotFound` if
        there is no such key."""
        with self._changing_key(key_id) as (keys, index):
            return keys.pop(index)

    @contextmanager
    def _changing_key(self, key_id: str) -> Iterator[tuple[list[Key], int]]:
        """Yield the list of all keys, which the caller may change, and the index of the key with this id. Raises
        `NotFound` if there is no such key."""
        unknown = NotFound(f"there is no key with the id {key_id[:80]}; list the keys with: agentformer keys list")
        if all(key.id != key_id for key in self.all()):
            raise unknown  # before the lock creates its file and its folder
        with self._changing() as keys:
            index = next((index for index, key in enumerate(keys) if key.id == key_id), None)
            if index is None:
                raise unknown
            yield keys, index

    def reset(self) -> None:
        """Allow programs on this machine to send requests without a key again, as before the first key was made. In
        running servers, this applies from the next request on. Raises `Conflict` if a key exists."""
        if not self.ever_made:
            return
        with self._changing(local=True) as keys:
            if keys:
                ids = ", ".join(key.id for key in keys)
                raise Conflict(f"keys exist ({ids}); revoke each key first with: agentformer keys revoke ID")

    def grant_of(self, secret: str, peer: str = "") -> Grant:
        """Return the rights of the key with this secret text. Raises `Unauthenticated` if there is no such key, or if
        the key has expired, and `Busy` if the key has sent too many requests, or the address `peer` too many wrong
        keys. A right key is accepted from every address. The key is looked up by its SHA-256, which an attacker cannot
        choose: the time for a wrong key says nothing about the ids and the texts of others."""
        digest = _digest(secret)
        key = self._read().by_digest.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            if peer and (wait := self._rates.take(f"address {peer}", WRONG_A_MINUTE)[1]):
                message = "too many requests with wrong keys came from this address; send the right key, or wait"
                raise Busy("wrong_keys", message, math.ceil(wait))
            raise Unauthenticated(
                "this key does not exist in this memory, or was revoked; ask the administrator for a key"
            )
        grant = _grant(key)
        if grant.allowance is not None:
            self._spend(grant.allowance)
        self._note_use(key, datetime.now(UTC).date())
        return grant

    def _spend(self, allowance: Allowance) -> None:
        """Count a request of a key with limits. Raises `Busy` if it is one too many."""
        limits, quotas, wait = allowance.limits, allowance.quotas, 0.0
        if limits.requests_per_minute:
            quotas["key"], wait = self._rates.take(f"key {allowance.key_id}", limits.requests_per_minute)
        if limits.questions_per_day:
            quotas["questions"] = self.questions.quota(allowance.key_id, limits.questions_per_day)
        if wait:
            message = f"this key may send {limits.requests_per_minute} requests a minute to this server; wait"
            raise Busy("requests_per_minute", message, math.ceil(wait), quota_headers(quotas))

    def grant_by_id(self, key_id: str) -> Grant:
        """Return the present rights of the key with this id, for work that goes on after the request with the key.
        Raises `Unauthenticated` if the key was revoked or has expired."""
        key = self._read().by_id.get(key_id)
        if key is None:
            raise Unauthenticated("this key was revoked; ask the administrator for a key")
        return _grant(key)

    def allowance(self, key_id: str) -> Allowance | None:
        """Return the limits of the key with this id, or None if it has none or was revoked."""
        key = self._read().by_id.get(key_id) if key_id else None
        return _allowance(key) if key else None

    def remembering(self) -> KeyStore:
        """Return a view of the keys for requests that must be answered while the place of the keys does not answer, as
        when its database hangs, or while the stored keys are damaged: it then has the keys that were read last. Both
        count requests and wrong keys together."""
        view = KeyStore(Remembered(self._place))
        view._rates = self._rates
        view._original = self
        return view

    def _note_use(self, key: Key, today: date) -> None:
        """Store today as the day of the last use of a key, at most once a day. If the day cannot be stored immediately,
        the request continues without an error."""
        if key.last_used_on == today or (key.id, today) in self._noted:
            return
        with self._lock:
            if self._noted and next(iter(self._noted))[1] != today:
                self._noted.clear()
            self._noted.add((key.id, today))
            self._to_note[key.id] = today
            now = time.monotonic()
            if len(self.all()) >= _MANY and now - self._noted_at < _NOTE_SECONDS:
                return
            self._noted_at, days, self._to_note = now, self._to_note, {}
        with suppress(StoreError, Busy), self._changing(timeout=0) as keys:
            keys[:] = [replace(each, last_used_on=days.get(each.id, each.last_used_on)) for each in keys]

    def _keys(self) -> Keys | None:
        """Return the stored keys. Return None if no key was ever stored, or if `reset` was called after the last key
        was revoked. If this process has read keys and they were deleted since then, return an empty tuple."""
        return self._read().keys

    def _read(self) -> _Stored:
        """Return the stored keys. Their place is asked at each call, so a change of another process is seen at once."""
        cache = self._cache
        try:
            data = self._place.read()
            if data is None:
                return _Stored(b"", None if cache is None or cache.keys is None else (), {}, {})
            if cache is None or data != cache.data:
                keys = _parse(str(self._place), data)
        except (StoreBusy, StoreDamaged):
            if self._original is None or (last := self._original._cache) is None:
                raise
            return last
        if cache is None or data != cache.data:
            by_digest, by_id = ({getattr(key, name): key for key in keys or ()} for name in ("digest", "id"))
            self._cache = cache = _Stored(data, keys, by_digest, by_id)
        elif data is not cache.data:  # bytes that are the same object are compared faster
            self._cache = cache = cache._replace(data=data)
        return cache

    @contextmanager
    def _changing(self, *, timeout: float | None = None, local: bool = False) -> Iterator[list[Key]]:
        """Yield a list of all keys, which the caller may change. At the end of the context, the changed list is stored.
        If this list is empty, and `local` is true or there was never a key, programs on this machine need no key from
        then on. Raises `Busy` if another process holds the lock, and `StoreFull` if the keys cannot be written."""
        try:
            with self._place.locked(_LOCK_SECONDS if timeout is None else timeout):
                before = self._keys()
                keys = list(before or ())
                yield keys
                content = {"version": _VERSION, "keys": [_record(key) for key in keys]}
                if not keys and (local or before is None):
                    content[_LOCAL] = True  # without this field, an empty list means that all requests are refused
                self._place.write(json.dumps(content, indent=1).encode())
        except Timeout:
            raise Busy("keys", "another process is changing the keys; try again in a moment") from None


def _parse(place: str, data: bytes) -> Keys | None:
    """Return the keys in the stored bytes `data`, or None if programs on this machine need no key. `place` names the
    storage in the message of the error. Raises `StoreDamaged` if the bytes are not valid."""
    try:
        content = json.loads(data)
        if content["version"] != _VERSION:
            raise ValueError(content["version"])
        if changed := [repr(each["id"]) for each in content["keys"] if each.get(_SUM) not in (None, _sum(each))]:
            raise StoreDamaged(
                f"{place} is damaged: the record of the key {', '.join(changed)[:_MAX_QUOTED]} does not match its "
                "checksum; all requests are refused until you restore the file from a copy, or remove this record from "
                "the file and make a new key"
            )
        keys = tuple(_key(values) for values in content["keys"])
        if len({key.id for key in keys}) != len(keys):
            raise ValueError("the same id twice")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise StoreDamaged(
            f"{place} is damaged, or was written by a newer version; all requests are refused until you restore it "
            "from a copy, or delete it and make new keys"
        ) from None
    return None if content.get(_LOCAL) is True and not keys else keys


def _record(key: Key) -> dict[str, Any]:
    """Return the JSON values of a key in `keys.json`."""
    values = {**key.as_json(), "sha256": key.digest}
    if key.replaced_by:
        values["replaced_by"] = key.replaced_by
    return {**values, _SUM: _sum(values)}


def _sum(values: dict[str, Any]) -> str:
    """Return the checksum of the JSON values of a key. One changed bit could give the key another namespace."""
    return _digest(json.dumps({name: value for name, value in values.items() if name != _SUM}, sort_keys=True))


def _key(values: dict[str, Any]) -> Key:
    """Return the key that has these JSON values in `keys.json`. Raises `ValueError`, `TypeError` or `KeyError` if a
    value is missing, unknown or invalid, because a wrong value could give a key more rights."""
    rights = tuple(right for right in RIGHTS if right in _texts(values["rights"]))
    if not rights or len(rights) != len(values["rights"]) or not _SHA256.fullmatch(values["sha256"]):
        raise ValueError("rights or digest")
    expires, used = values["expires_at"], values["last_used_on"]
    key_id, name = _texts([values["id"], values["name"]])
    replaced_by = values.get("replaced_by", "")
    if not isinstance(replaced_by, str):
        raise TypeError("replaced_by")
    return Key(
        key_id,
        name,
        rights=rights,
        namespaces=_texts(values["namespaces"]),
        without=frozenset(_texts(values["without"])),
        digest=values["sha256"],
        made_at=_moment(values["made_at"]),
        expires_at=None if expires is None else _moment(expires),
        last_used_on=None if used is None else date.fromisoformat(used),
        limits=Limits(**checked_limits({name: values.get(name, 0) for name in HIGHEST})),
        replaced_by=replaced_by,
    )


def _grant(key: Key) -> Grant:
    """Return the rights of a key. Raises `Unauthenticated` if it has expired."""
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        raise Unauthenticated("this key has expired; ask the administrator for a new key")
    return Grant(frozenset(key.rights), key.namespaces, key.without, key.id, _allowance(key))


def _allowance(key: Key) -> Allowance | None:
    return Allowance(key.id, key.limits, key.namespaces) if any(key.limits) else None


def _added(keys: list[Key], template: Key) -> tuple[Key, str]:
    """Add a key like `template` with a new id and a new secret text. Return both."""
    used = {key.id for key in keys}
    while (key_id := secrets.token_hex(4)) in used:
        pass
    secret = f"{PREFIX}{key_id}_{secrets.token_hex(32)}"
    key = replace(template, id=key_id, digest=_digest(secret))
    keys.append(key)
    return key, secret


def _check_reach(key: Key) -> None:
    """Raise `InvalidInput` if the key has the right `metrics` and is limited to namespaces."""
    if "metrics" in key.rights and key.namespaces:
        raise InvalidInput(
            "namespaces",
            "cannot be used with the right metrics, because the metrics are those of all namespaces; give the key no "
            "namespaces, or leave out the right metrics",
        )


def _check_not_over(key: Key, now: datetime) -> None:
    """Raise `Conflict` if the key was replaced or has expired: its times do not say how long a new key shall live."""
    ends = f"{key.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if key.expires_at else ""
    if key.expires_at and key.expires_at <= now:
        raise Conflict(f"key {key.id} expired at {ends}; make a new key with: agentformer keys add NAME")
    if key.replaced_by:
        raise Conflict(f"key {key.id} was replaced by key {key.replaced_by}, and expires at {ends}; rotate that key")


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise TypeError("not a list of texts")
    return tuple(values)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment


def _rights(requested: Iterable[Right]) -> tuple[Right, ...]:
    names = fields.names("rights", requested)
    if not names or not set(names) <= set(RIGHTS):
        raise InvalidInput("rights", f"must be one or more of {', '.join(RIGHTS)}")
    return tuple(right for right in RIGHTS if right in names)


def _printable_name(name: str) -> str:
    """Return the name of a key. Raises `InvalidInput` if it has control characters or line breaks."""
    if any(unicodedata.category(letter) in _CONTROL_CATEGORIES for letter in fields.name("name", name)):
        raise InvalidInput("name", "has control characters or line breaks; give a plain name, such as office")
    return name


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
