"""The file that keys are kept in: JSON that only its owner may read, replaced as a whole."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, Self

from agentformer.access.grant import RIGHTS, Right
from agentformer.errors import StoreDamaged, StoreError
from agentformer.records.files import file_bytes, write_atomically

_VERSION = 1
OWNER_ONLY = 0o600
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is kept: all but its secret."""

    id: str
    name: str
    rights: tuple[Right, ...]
    namespaces: tuple[str, ...]  # (): every one
    without: frozenset[str]  # tools that are switched off
    digest: str = field(repr=False)  # SHA-256 of the whole key, hexadecimal
    made_at: datetime
    expires_at: datetime | None = None
    last_used_on: date | None = None  # in UTC

    def used(self, today: date) -> Self:
        return replace(self, last_used_on=today)


def read_keys(path: Path, before: tuple[bytes, tuple[Key, ...]] | None) -> tuple[bytes, tuple[Key, ...]] | None:
    """The file's bytes and keys; `before` itself if they are the same; None where there is no file. Raises
    `StoreDamaged`, `StoreError`."""
    try:
        data = file_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror or error}); nobody gets in until it can") from None
    if before is not None and data == before[0]:
        return before
    try:
        kept = json.loads(data)
        if kept["version"] != _VERSION:
            raise ValueError(kept["version"])
        keys = tuple(_key(each) for each in kept["keys"])
        if len({key.id for key in keys}) != len(keys):
            raise ValueError("the same id twice")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise StoreDamaged(
            f"{path} is damaged, or of a newer version; nobody gets in until it is put back from a copy, or it is "
            "taken away and new keys are made"
        ) from None
    return data, keys


def write_keys(path: Path, keys: tuple[Key, ...]) -> None:
    """Raises `OSError`."""
    kept = {"version": _VERSION, "keys": [_json(key) for key in keys]}
    write_atomically(path, json.dumps(kept, indent=1).encode(), mode=OWNER_ONLY)


def _json(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "rights": list(key.rights),
        "namespaces": list(key.namespaces),
        "without": sorted(key.without),
        "sha256": key.digest,
        "made_at": key.made_at.isoformat(),
        "expires_at": key.expires_at and key.expires_at.isoformat(),
        "last_used_on": key.last_used_on and key.last_used_on.isoformat(),
    }


def _key(kept: dict[str, Any]) -> Key:
    """Raises `ValueError`, `TypeError` or `KeyError` for anything but what `_json` gives: a value that is taken for
    another, such as no namespaces for some, would open what was closed."""
    rights = tuple(right for right in RIGHTS if right in _texts(kept["rights"]))
    if not rights or len(rights) != len(kept["rights"]) or not _SHA256.fullmatch(kept["sha256"]):
        raise ValueError("rights or digest")
    expires, used = kept["expires_at"], kept["last_used_on"]
    key_id, name = _texts([kept["id"], kept["name"]])
    return Key(
        key_id,
        name,
        rights=rights,
        namespaces=_texts(kept["namespaces"]),
        without=frozenset(_texts(kept["without"])),
        digest=kept["sha256"],
        made_at=_moment(kept["made_at"]),
        expires_at=None if expires is None else _moment(expires),
        last_used_on=None if used is None else date.fromisoformat(used),
    )


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise TypeError("not a list of texts")
    return tuple(values)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment
