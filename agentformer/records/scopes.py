"""The entries of a `Scope`: which entries it includes at a moment, when they change, and the salience after decay.
`records.sqlite.scopes` and `memory.backends.postgres.scopes` convert a scope to an SQL condition.

The salience of an entry decays as `rate ** days` (the forgetting curve of Ebbinghaus 1885). Each use of the entry
starts the decay again from the full salience, as in MemoryBank (Zhong et al. 2023). The decay is computed whenever an
entry is read, and the stored salience does not change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime

from agentformer.records.codec import now, now_micros, to_micros
from agentformer.records.filters import Sql
from agentformer.types import (
    DOCUMENT_KINDS,
    UNSEARCHED_KINDS,
    Condition,
    Connection,
    Decay,
    Group,
    MemoryEntry,
    Scope,
    common,
)

EQUAL = ("session_id", "agent_id", "user_id", "project", "parent_id", "document_id", "source_type", "source_id")
_DAY = 86_400_000_000  # microseconds

INDEXED = ("sha256", "name", "origin")  # metadata keys with an index for text values; see `records.sqlite.schema`
OWNERS = ("user_id", "project")  # the fields that `Scope.or_nobody` applies to
# The condition for entries that a search may return. Only these entries have vectors.
SEARCHED = f"kind NOT IN ({', '.join(repr(kind) for kind in sorted(UNSEARCHED_KINDS))})"
IS_DOCUMENT = f"kind IN ({', '.join(repr(kind) for kind in sorted(DOCUMENT_KINDS))})"
# The partial indexes of `records.sqlite.schema` have the same conditions.
_LIVE = "archived_at IS NULL"
_CURRENT = "(superseded_by IS NULL OR valid_to > updated_at)"  # or superseded in advance, see `is_visible`
_UNARCHIVED = Condition("exists", "$archived_at", False)
_BOUNDS = ("valid_from", "valid_to", "expires_at")  # columns with a time at which an entry enters or leaves a scope
# The first time after a given time at which an entry of a namespace may enter or leave a scope.
_NEXT_BOUNDS = " UNION ALL ".join(
    f"SELECT min({name}) AS bound FROM entries WHERE namespace = ? AND {name} > ?" for name in _BOUNDS
)
NEXT_CHANGE = common(f"SELECT min(bound) FROM ({_NEXT_BOUNDS}) AS bounds")
_CHANGED_BETWEEN = common(
    " UNION ".join(f"SELECT num FROM entries WHERE namespace = ? AND {name} > ? AND {name} <= ?" for name in _BOUNDS)
)


def is_selective(scope: Scope) -> bool:
    """Return whether the scope matches only a few entries, because it names a record of the host application, a parent,
    a document, an indexed metadata value, or entries that have expired (see `expired`). It is then faster to find these
    entries with the index of this field and to sort them, than to read an index that already has the wanted order."""
    indexed = any(key in INDEXED and isinstance(value, str) for key, value in scope.metadata.items())
    record = scope.source_type is not None and scope.source_id is not None
    has_expired = isinstance(scope.where, Group) and scope.where.filters[-1:] == (_UNARCHIVED,)
    return indexed or record or has_expired or scope.parent_id is not None or scope.document_id is not None


def expired(scope: Scope, moment: datetime) -> Scope:
    """Return the scope of the entries in `scope` that have expired at `moment` and that are not archived yet."""
    where = Group("and", (Condition("lte", "$expires_at", moment), _UNARCHIVED))
    return dataclasses.replace(scope, include_archived=True, where=where)


def is_visible(entry: MemoryEntry, scope: Scope, moment: datetime) -> bool:
    """Return whether a scope includes an entry at `moment` (now), as far as this depends on the times of the entry, and
    on archiving and supersession; see `Scope`. If an entry was superseded in advance, its `valid_to` is later than its
    last change, and it is visible until then."""
    at = scope.as_of or moment
    if not scope.include_archived:
        if entry.archived_at is not None and not (scope.include_summarized and entry.archived_by is not None):
            return False
        if entry.superseded_by is not None and not (
            entry.valid_to and (scope.as_of or (entry.updated_at and entry.valid_to > entry.updated_at))
        ):
            return False
        if entry.expires_at is not None and entry.expires_at <= max(moment, at):
            return False
    elif scope.as_of is None:
        return True
    start = starts_at(entry) if scope.as_of and entry.kind not in DOCUMENT_KINDS else entry.valid_from
    return (start is None or start <= at) and (entry.valid_to is None or at < entry.valid_to)


def starts_at(entry: MemoryEntry) -> datetime | None:
    """Return the time from which an entry holds: `valid_from`, or else the earlier of `occurred_at` and
    `created_at`."""
    return entry.valid_from or min(filter(None, (entry.occurred_at, entry.created_at)), default=None)


def visibility(scope: Scope) -> Iterator[Sql]:
    """Yield the SQL form of `is_visible`, with a `?` for each value."""
    at, moment = to_micros(scope.as_of), now_micros()
    if not scope.include_archived:
        yield f"({_LIVE} OR archived_by IS NOT NULL)" if scope.include_summarized else _LIVE, []
        yield _CURRENT if at is None else "(superseded_by IS NULL OR valid_to IS NOT NULL)", []
        yield "(expires_at IS NULL OR expires_at > ?)", [moment if at is None else max(moment, at)]
        if at is None:
            yield "(valid_from IS NULL OR valid_from <= ?)", [moment]
    if at is not None:
        started = f"created_at <= ? OR occurred_at <= ? OR {IS_DOCUMENT}"
        yield f"(valid_from <= ? OR (valid_from IS NULL AND ({started})))", [at, at, at]
    if at is not None or not scope.include_archived:
        yield "(valid_to IS NULL OR valid_to > ?)", [moment if at is None else at]


def times(scope: Scope) -> Iterator[Sql]:
    """Yield the conditions on the times of an entry, with a `?` for each value."""
    for column, start, end in (
        ("occurred_at", scope.occurred_from, scope.occurred_to),
        ("coalesce(occurred_at, created_at)", scope.since, scope.until),
    ):
        for sign, bound in ((">=", start), ("<", end)):
            if bound is not None:
                yield f"{column} {sign} ?", [to_micros(bound)]


def least_salience(scope: Scope) -> Iterator[Sql]:
    """Yield the conditions on the stored salience and on the salience after decay, with a `?` for each value."""
    if scope.min_salience <= 0:
        return
    yield "salience >= ?", [scope.min_salience]
    if rates := sorted(scope.decay.rates.items()):
        rate = f"CASE category {' '.join('WHEN ? THEN ?' for _ in rates)} ELSE 1.0 END"
        values = [*(value for pair in rates for value in pair), to_micros(scope.decay.at or now()), scope.min_salience]
        yield f"decayed(salience, {rate}, ? - coalesce(last_accessed, created_at)) >= ?", values


def next_change(connection: Connection, scope: Scope, micros: int) -> int | None:
    """Return the first time after `micros` at which an entry may enter or leave the scope without a change, or None.
    Times are microseconds since 1970-01-01 UTC."""
    if scope.include_archived:  # such a scope does not depend on the clock
        return None
    found = connection.run(NEXT_CHANGE, [scope.namespace, micros] * len(_BOUNDS)).fetchone()[0]
    return None if found is None else int(found)


def changed_between(connection: Connection, scope: Scope, first: int, last: int) -> list[int]:
    """Return the row numbers of the entries that may enter or leave the scope, without a change, after the time `first`
    and until the time `last`."""
    rows = connection.run(_CHANGED_BETWEEN, [scope.namespace, first, last] * len(_BOUNDS))
    return [row[0] for row in rows]


def effective_salience(entry: MemoryEntry, decay: Decay) -> float:
    """Return the salience of an entry after decay, from 0 to 1. The decay begins at `last_accessed`, or at `created_at`
    if the entry was never used. If the decay begins in the future, the salience is not reduced."""
    used = entry.last_accessed or entry.created_at
    rate = decay.rates.get(entry.category, 1.0)
    if used is None or rate == 1.0:
        return entry.salience
    elapsed = (decay.at or datetime.now(UTC)) - used
    return decayed(entry.salience, rate, (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds)


def decayed(salience: float, rate: float, micros: int) -> float:
    """Return the salience that remains after `micros` microseconds. For each day, the salience is multiplied by `rate`.
    SQL statements can call this function under the name `decayed`."""
    return float(salience * rate ** (max(0, micros) / _DAY))
