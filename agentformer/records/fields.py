"""What may be stored: each check returns the value as it is kept, or raises `InvalidInput` naming the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.types import TIERS, UNSEARCHED_KINDS, Tier

MAX_CONTENT = 1_000_000  # code points of one entry; longer texts are documents, and belong to `rag.upload`
MAX_LIMIT = 10_000  # hits of one search
_MAX_DEPTH = 100
_MAX_KEYS = 100  # of metadata; each key of a filter is a condition of its own
_MAX_NAME = 200  # code points of a namespace, kind or session id


def content(content: Any) -> str:
    if not isinstance(content, str):
        raise InvalidInput("content", f"must be a string, got {type(content).__name__}")
    if not content.strip():
        raise InvalidInput("content", "is empty; give the text to remember")
    if len(content) > MAX_CONTENT:
        raise InvalidInput("content", f"has {len(content)} characters, over {MAX_CONTENT}; upload it as a document")
    return encodable("content", content)


def encodable(field: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(field, "holds half of a surrogate pair, which is no text; decode it properly") from None
    return text


def kind(value: Any) -> str:
    if value in UNSEARCHED_KINDS:
        raise InvalidInput("kind", f"{value!r} is kept for uploaded documents; use rag.upload, or another kind")
    return name("kind", value)


def name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_NAME:
        raise InvalidInput(field, f"must be a text of 1 to {_MAX_NAME} characters, got {str(value)[:80]!r}")
    return encodable(field, value)


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
        return value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidInput(field, f"is out of range: {value}") from None


def salience(value: Any) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value) or not 0 <= value <= 1:
        raise InvalidInput("salience", f"must be a number in 0..1, got {value!r}")
    return float(value)
