"""`MemoryManager`: what callers say, checked and turned into entries, scopes and queries for a backend."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agentformer.errors import InvalidInput, NotFound
from agentformer.records.ids import new_id
from agentformer.types import DEFAULT_NAMESPACE, TIERS, Hits, MemoryBackend, MemoryEntry, Query, Scope, Tier

MAX_CONTENT = 1_000_000  # code points of one entry; longer texts are documents, and belong to `rag.upload`
_MAX_NAME = 200  # code points of a namespace, kind or session id
_STORE_FIELDS = ("content", "tier", "kind", "namespace", "session_id", "title", "metadata", "occurred_at", "salience")


class MemoryManager:
    """Stores, finds, and removes memories. Thread-safe as its backend is."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    def store(
        self,
        content: str,
        *,
        tier: Tier = "semantic",
        kind: str = "fact",
        namespace: str = DEFAULT_NAMESPACE,
        session_id: str | None = None,
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        occurred_at: datetime | str | None = None,
        salience: float = 1.0,
    ) -> MemoryEntry:
        """Remember `content`; it is on disk when this returns, and found by every search from then on.

        `occurred_at` is an aware datetime or ISO 8601 with a zone. Raises `InvalidInput` naming the field.
        """
        return self.store_many(
            [
                {
                    "content": content,
                    "tier": tier,
                    "kind": kind,
                    "namespace": namespace,
                    "session_id": session_id,
                    "title": title,
                    "metadata": metadata,
                    "occurred_at": occurred_at,
                    "salience": salience,
                }
            ]
        )[0]

    def store_many(self, items: Iterable[str | Mapping[str, Any]], **common: Any) -> list[MemoryEntry]:
        """Remember many at once: all or none, in one transaction, embedded together.

        An item is a content or a mapping of `store`'s arguments; `common` gives arguments for all of them.
        Returns the entries in the order of `items`.
        """
        entries = [_entry({**common, **({"content": item} if isinstance(item, str) else item)}) for item in items]
        return list(self._backend.store(entries)) if entries else []

    def search(
        self,
        text: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        limit: int = 10,
        tiers: Sequence[Tier] = (),
        kinds: Sequence[str] = (),
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        occurred_from: datetime | str | None = None,
        occurred_to: datetime | str | None = None,
        min_score: float = 0.0,
        mode: str = "hybrid",
    ) -> Hits:
        """The best `limit` entries of the scope, best first; see `Hit` for what each carries.

        `mode` is `hybrid`, `dense` or `lexical`. Raises `InvalidInput` naming the field.
        """
        if not isinstance(text, str):
            raise InvalidInput("text", f"must be a string, got {type(text).__name__}")
        if limit < 1:
            raise InvalidInput("limit", f"must be at least 1, got {limit}")
        if mode not in ("hybrid", "dense", "lexical"):
            raise InvalidInput("mode", f"must be hybrid, dense or lexical, got {mode!r}")
        scope = Scope(
            namespace=_name("namespace", namespace),
            tiers=tuple(_tier(tier) for tier in tiers),
            kinds=tuple(kinds),
            session_id=session_id,
            metadata=_metadata(metadata),
            occurred_from=_moment("occurred_from", occurred_from),
            occurred_to=_moment("occurred_to", occurred_to),
        )
        return self._backend.search(Query(text, scope, limit, min_score, mode))  # type: ignore[arg-type]

    def get(self, entry_id: str) -> MemoryEntry:
        """The entry of this id, archived or not. Raises `NotFound`."""
        found = self._backend.get([entry_id])
        if not found:
            raise NotFound(f"there is no entry {entry_id}")
        return found[0]

    def remove(self, entry_id: str) -> None:
        """Delete an entry and its parts, with vectors, terms and history. Raises `NotFound`."""
        if not self._backend.remove([entry_id]):
            raise NotFound(f"there is no entry {entry_id}")

    def status(self) -> dict[str, Any]:
        """Counts and state of the backend, as JSON values."""
        return dict(self._backend.status())


def _entry(values: Mapping[str, Any]) -> MemoryEntry:
    if unknown := sorted(set(values) - set(_STORE_FIELDS)):
        raise InvalidInput(unknown[0], f"is not a field to store; fields are {', '.join(_STORE_FIELDS)}")
    session_id = values.get("session_id")
    return MemoryEntry(
        id=new_id(),
        content=_content(values.get("content")),
        tier=_tier(values.get("tier", "semantic")),
        kind=_name("kind", values.get("kind", "fact")),
        namespace=_name("namespace", values.get("namespace", DEFAULT_NAMESPACE)),
        session_id=None if session_id is None else _name("session_id", session_id),
        title=str(values.get("title") or ""),
        metadata=_metadata(values.get("metadata")),
        occurred_at=_moment("occurred_at", values.get("occurred_at")),
        salience=_salience(values.get("salience", 1.0)),
    )


def _content(content: Any) -> str:
    if not isinstance(content, str):
        raise InvalidInput("content", f"must be a string, got {type(content).__name__}")
    if not content.strip():
        raise InvalidInput("content", "is empty; give the text to remember")
    if len(content) > MAX_CONTENT:
        raise InvalidInput("content", f"has {len(content)} characters, over {MAX_CONTENT}; upload it as a document")
    return _encodable("content", content)


def _encodable(field: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(field, "holds half of a surrogate pair, which is no text; decode it properly") from None
    return text


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_NAME:
        raise InvalidInput(field, f"must be a text of 1 to {_MAX_NAME} characters, got {str(value)[:80]!r}")
    return _encodable(field, value)


def _tier(value: Any) -> Tier:
    for tier in TIERS:
        if value == tier:
            return tier
    raise InvalidInput("tier", f"must be one of {', '.join(TIERS)}, got {value!r}")


def _metadata(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput("metadata", "must be a mapping with strings as keys")
    try:
        json.dumps(dict(value), allow_nan=False).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise InvalidInput("metadata", f"must be JSON values: {error}") from None
    return dict(value)


def _moment(field: str, value: Any) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(field, f"must be ISO 8601 such as 2026-11-20T09:30:00+00:00, got {value!r}") from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(field, "must have a time zone, such as 2026-11-20T09:30:00+00:00")
    return value.astimezone(UTC)


def _salience(value: Any) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value) or not 0 <= value <= 1:
        raise InvalidInput("salience", f"must be a number in 0..1, got {value!r}")
    return float(value)
