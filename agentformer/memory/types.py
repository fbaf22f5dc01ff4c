"""The keyword arguments that calls of the memory share, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from agentformer.types import Tier


class Place(TypedDict, total=False):
    """The owner of an entry. A search does not filter by missing keys; `namespace` defaults to "default"."""

    namespace: str
    session_id: str | None
    agent_id: str | None
    user_id: str | None
    project: str | None


class _Common(TypedDict, total=False):
    metadata: Mapping[str, Any] | None  # JSON; a list under `aliases` holds other names of the entry
    occurred_at: datetime | str | None  # aware, or ISO 8601 with a zone
    speaker: str | None
    source_type: str | None  # the type of a record of the host application
    source_id: str | None  # the id of that record
    pair_id: str | None
    parent_id: str | None


class MessageFields(_Common, total=False):
    """Arguments of `add_message` besides session, role and content."""

    namespace: str
    agent_id: str | None
    user_id: str | None
    project: str | None


class StoredFields(Place, _Common, total=False):
    """Arguments of `store` besides the content."""

    tier: Tier
    kind: str
    title: str
    category: str
    salience: float  # 0..1


class ScopeFields(Place, total=False):
    """Filters of a call."""

    tiers: Sequence[str]
    kinds: Sequence[str]
    categories: Sequence[str]
    metadata: Mapping[str, Any] | None  # equality of these keys
    occurred_from: datetime | str | None  # inclusive
    occurred_to: datetime | str | None  # exclusive
    source_type: str | None
    source_id: str | None
    parent_id: str | None
    min_salience: float  # 0..1, after decay
    include_archived: bool
    or_nobody: bool  # with a user or a project: entries without one match too
