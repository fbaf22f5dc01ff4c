"""What may be stored: each check returns the value as it is kept, or raises `InvalidInput` naming the field."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.types import DOCUMENT_KINDS, TIERS, MemoryEntry, Tier

MAX_CONTENT = 1_000_000  # code points of one entry; longer texts are documents, and belong to `rag.upload`
MAX_LIMIT = 10_000  # hits of one search
_MAX_DEPTH = 100
_MAX_KEYS = 100  # of metadata; each key of a filter is a condition of its own
MAX_NAME = 200  # code points of a namespace, kind or session id

# What the store itself keeps, and no update changes.
_FIXED = frozenset(
    {
        "id",
        "created_at",
        "updated_at",
        "version",
        "archived_by",
        "access_count",
        "match_count",
        "read_count",
        "repeat_count",
    }
)
_CHANGEABLE = frozenset(field.name for field in dataclasses.fields(MemoryEntry)) - _FIXED


def check_changeable(names: Iterable[str]) -> None:
    """Raises `InvalidInput` for a field that no update may change."""
    if wrong := sorted(set(names) - _CHANGEABLE):
        raise InvalidInput(wrong[0], f"cannot be changed; these can: {', '.join(sorted(_CHANGEABLE))}")


def content(content: Any) -> str:
    if not isinstance(content, str):
        raise InvalidInput("content", f"must be a string, got {type(content).__name__}")
    if not content.strip():
        raise InvalidInput("content", "is empty; give the text to remember")
    if len(content) > MAX_CONTENT:
        raise InvalidInput("content", f"has {len(content)} characters, over {MAX_CONTENT}; upload it as a document")
    return encodable("content", content)


def text(field: str, value: Any, most: int = MAX_CONTENT) -> str:
    """A text that may be empty."""
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be a string, got {type(value).__name__}")
    if len(value) > most:
        raise InvalidInput(field, f"has {len(value)} characters, over {most}")
    return encodable(field, value)


def encodable(field: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(field, "holds half of a surrogate pair, which is no text; decode it properly") from None
    return text


def kind(value: Any) -> str:
    if isinstance(value, str) and value in DOCUMENT_KINDS:
        raise InvalidInput("kind", f"{value!r} is kept for uploaded documents; use rag.upload, or another kind")
    return name("kind", value)


def name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME:
        raise InvalidInput(field, f"must be a text of 1 to {MAX_NAME} characters, got {str(value)[:80]!r}")
    return encodable(field, value)


def optional_name(field: str, value: Any) -> str | None:
    return None if value is None else name(field, value)


def flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(field, f"must be true or false, got {value!r:.80}")
    return value


def names(field: str, values: Any) -> tuple[str, ...]:
    """A list of names; a single text is refused, since it would be read as its letters."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput(field, f"must be a list, such as [{str(values)[:80]!r}]")
    return tuple(name(field, value) for value in values)


def limit(field: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIMIT:
        raise InvalidInput(field, f"must be a whole number in 1..{MAX_LIMIT}, got {value!r:.80}")
    return value


def tier(value: Any) -> Tier:
    for tier in TIERS:
        if value == tier:
            return tier
    raise InvalidInput("tier", f"must be one of {', '.join(TIERS)}, got {value!r}")


def metadata(value: Any, field: str = "metadata") -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(field, "must be a mapping with strings as keys")
    if len(value) > _MAX_KEYS:
        raise InvalidInput(field, f"has {len(value)} keys, over {_MAX_KEYS}")
    try:
        text = json.dumps(dict(value), allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
        # Numbers beyond a double's range and nesting beyond SQLite's are JSON, but cannot be kept or compared.
        _bounded(value, _MAX_DEPTH)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(field, f"must be JSON values: {str(error)[:120]}") from None
    return dict(value)


def _bounded(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    if isinstance(value, int):
        float(value)
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ():
        _bounded(inner, depth - 1)


def moment(field: str, value: Any) -> datetime | None:
    """In UTC."""
    there = moment_there(field, value)
    return there and there.astimezone(UTC)


def moment_there(field: str, value: Any) -> datetime | None:
    """In the zone in which it was given, which says what day it is."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(field, f"must be ISO 8601 such as 2026-11-20T09:30:00+00:00, got {value!r}") from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(field, "must have a time zone, such as 2026-11-20T09:30:00+00:00")
    try:
        value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidInput(field, f"is out of range: {value}") from None
    return value


def salience(value: Any, field: str = "salience") -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidInput(field, f"must be a number in 0..1, got {value!r:.80}")
    return float(value)
