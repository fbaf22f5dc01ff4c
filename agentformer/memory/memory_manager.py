"""`MemoryManager`: what callers say, checked and turned into entries, scopes and queries for a backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from agentformer.errors import InvalidInput, NotFound
from agentformer.records import fields
from agentformer.records.ids import new_id
from agentformer.types import DEFAULT_NAMESPACE, UNSEARCHED_KINDS, Hits, MemoryBackend, MemoryEntry, Query, Scope, Tier

MAX_TITLE = 300  # code points
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
        entries = [_entry({**common, **(item if isinstance(item, Mapping) else {"content": item})}) for item in items]
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
        fields.encodable("text", text)
        if not isinstance(min_score, (int, float)):
            raise InvalidInput("min_score", f"must be a number, got {min_score!r}")
        if mode not in ("hybrid", "dense", "lexical"):
            raise InvalidInput("mode", f"must be hybrid, dense or lexical, got {mode!r}")
        scope = Scope(
            namespace=fields.name("namespace", namespace),
            tiers=tuple(fields.tier(tier) for tier in _listed("tiers", tiers)),
            kinds=tuple(fields.name("kinds", kind) for kind in _listed("kinds", kinds)),
            session_id=None if session_id is None else fields.name("session_id", session_id),
            metadata=fields.metadata(metadata),
            occurred_from=fields.moment("occurred_from", occurred_from),
            occurred_to=fields.moment("occurred_to", occurred_to),
        )
        return self._backend.search(Query(text, scope, fields.limit("limit", limit), min_score, mode))  # type: ignore[arg-type]

    def get(self, entry_id: str) -> MemoryEntry:
        """The entry of this id, archived or not. Raises `NotFound`."""
        found = self._backend.get([entry_id])
        if not found:
            raise NotFound(f"there is no entry {entry_id}")
        return found[0]

    def remove(self, entry_id: str) -> None:
        """Delete an entry and its parts, with vectors, terms and history. Raises `NotFound`, and `InvalidInput`
        for a document, whose original would stay: that is `rag.remove`."""
        if self.get(entry_id).kind in UNSEARCHED_KINDS:
            raise InvalidInput("entry_id", f"{entry_id} is an uploaded document; remove it with rag.remove")
        if not self._backend.remove([entry_id]):
            raise NotFound(f"there is no entry {entry_id}")

    def reindex(self) -> int:
        """Embed what could not be embedded when it was stored. Returns how many entries still wait."""
        return self._backend.embed_pending()

    def status(self) -> dict[str, Any]:
        """Counts and state of the backend, as JSON values."""
        return dict(self._backend.status())


def _listed(field: str, values: Sequence[Any]) -> Sequence[Any]:
    if isinstance(values, str):
        raise InvalidInput(field, f"must be a list, such as [{values!r}]")
    return values


def _entry(values: Mapping[str, Any]) -> MemoryEntry:
    if unknown := sorted(set(values) - set(_STORE_FIELDS)):
        raise InvalidInput(unknown[0], f"is not a field to store; fields are {', '.join(_STORE_FIELDS)}")
    session_id = values.get("session_id")
    return MemoryEntry(
        id=new_id(),
        content=fields.content(values.get("content")),
        tier=fields.tier(values.get("tier", "semantic")),
        kind=fields.kind(values.get("kind", "fact")),
        namespace=fields.name("namespace", values.get("namespace", DEFAULT_NAMESPACE)),
        session_id=None if session_id is None else fields.name("session_id", session_id),
        title=fields.encodable("title", str(values.get("title") or ""))[:MAX_TITLE],
        metadata=fields.metadata(values.get("metadata")),
        occurred_at=fields.moment("occurred_at", values.get("occurred_at")),
        salience=fields.salience(values.get("salience", 1.0)),
    )
