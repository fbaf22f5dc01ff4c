"""Conversion of a `Scope` to an SQL condition of SQLite, and computation of the salience after decay. All access
restrictions of a query are in this condition. `memory.backends.postgres.scopes` has that of PostgreSQL.

The salience of an entry decays as `rate ** days` (the forgetting curve of Ebbinghaus 1885). Each use of the entry
starts the decay again from the full salience, as in MemoryBank (Zhong et al. 2023). The decay is computed whenever an
entry is read, and the stored salience does not change.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agentformer.records.codec import now, now_micros, to_micros
from agentformer.records.filters import equals_sql, filter_sql, json_equal, parse
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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EQUAL = ("session_id", "agent_id", "user_id", "project", "parent_id", "document_id", "source_type", "source_id")
_MAX_VARIABLES = 500  # values per statement; every SQLite build allows more bound variables
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


def where(scope: Scope) -> tuple[str, list[Any]]:
    """Return an SQL condition on the table `entries`, and the list of its parameters.

    The condition also controls which index SQLite uses: a plus sign before the name of a column prevents the use of its
    index. Without the plus sign, SQLite could use the index of the kind to find the entries of a session, for example,
    and would read many more rows."""
    return _where(scope, {})


def _where(scope: Scope, owned: Mapping[str, bool]) -> tuple[str, list[Any]]:
    """Return the condition of `where`. A scope with `or_nobody` matches two groups of entries: the entries of its owner
    (user or project), and the entries without an owner. `owned` limits the condition to one of these groups: it maps
    the column of the owner to True (entries of the owner) or to False (entries without an owner)."""
    selective, session = is_selective(scope), scope.session_id is not None
    user = scope.user_id is not None and (not scope.or_nobody or "user_id" in owned)
    many = {"session_id": selective, "user_id": selective or session, "tier": selective or session or user}
    many["kind"] = many["tier"]
    sign = {column: "+" for column, selects_many in many.items() if selects_many}
    by_id = scope.parent_id is not None or scope.document_id is not None  # indexed without the namespace
    parts = ["+namespace = ?" if by_id else "namespace = ?"]
    values: list[Any] = [scope.namespace]

    members = ("tier", scope.tiers), ("kind", scope.kinds), ("category", scope.categories), ("page", scope.pages)
    for column, allowed in members:
        if allowed:
            parts.append(f"{sign.get(column, '')}{column} IN ({','.join('?' * len(allowed))})")
            values += allowed
    if scope.except_kinds:
        parts.append(f"+kind NOT IN ({','.join('?' * len(scope.except_kinds))})")
        values += scope.except_kinds
    for column in EQUAL:
        if (value := getattr(scope, column)) is not None:
            if not owned.get(column, True):
                parts.append(f"{column} IS NULL")
                continue
            or_null = scope.or_nobody and column in OWNERS and column not in owned
            parts.append(f"({column} = ? OR {column} IS NULL)" if or_null else f"{sign.get(column, '')}{column} = ?")
            values.append(value)
    tree = parse(scope.where)
    conditions = (*_time_conditions(scope), *_metadata_conditions(scope), *_salience_conditions(scope))
    for condition, more in (*conditions, *([filter_sql(tree)] if tree else [])):
        parts.append(condition)
        values += more
    for condition, more in _visibility_conditions(scope):
        parts.append(condition)
        values += more
    return " AND ".join(parts), values


def is_visible(entry: MemoryEntry, scope: Scope, moment: datetime) -> bool:
    """Return whether a scope includes an entry at `moment` (now), as far as this depends on the times of the entry, and
    on archiving and supersession; see `Scope`. If an entry was superseded in advance, its `valid_to` is later than its
    last change, and it is visible until then."""
    at = scope.as_of or moment
    if not scope.include_archived:
        if entry.archived_at is not None and not (scope.include_summarized and entry.archived_by is not None):
            return False
        if entry.superseded_by is not None and not (
            entry.valid_to and (scope.as_of or _is_later(entry.valid_to, entry))
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


def _is_later(end: datetime, entry: MemoryEntry) -> bool:
    return entry.updated_at is not None and end > entry.updated_at


def _visibility_conditions(scope: Scope) -> Iterator[tuple[str, list[Any]]]:
    """Yield the SQL form of `is_visible`."""
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


def in_groups(values: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the values in groups that are small enough for one SQL statement. Each item is a pair: the placeholders,
    such as `?,?`, and their values."""
    for start in range(0, len(values), _MAX_VARIABLES):
        group = values[start : start + _MAX_VARIABLES]
        yield ",".join("?" * len(group)), group


def _time_conditions(scope: Scope) -> Iterator[tuple[str, list[Any]]]:
    for column, start, end in (
        ("occurred_at", scope.occurred_from, scope.occurred_to),
        ("coalesce(occurred_at, created_at)", scope.since, scope.until),
    ):
        for sign, bound in ((">=", start), ("<", end)):
            if bound is not None:
                yield f"{column} {sign} ?", [to_micros(bound)]


def _salience_conditions(scope: Scope) -> list[tuple[str, list[Any]]]:
    """Return the SQL conditions on the stored salience and on the salience after decay, each with its parameters."""
    if scope.min_salience <= 0:
        return []
    conditions: list[tuple[str, list[Any]]] = [("salience >= ?", [scope.min_salience])]
    if scope.decay.rates:
        rates = sorted(scope.decay.rates.items())
        rate = f"CASE category {' '.join('WHEN ? THEN ?' for _ in rates)} ELSE 1.0 END"
        values: list[Any] = [value for pair in rates for value in pair]
        moment = to_micros(scope.decay.at or now())
        decayed_salience = f"decayed(salience, {rate}, ? - coalesce(last_accessed, created_at)) >= ?"
        conditions.append((decayed_salience, [*values, moment, scope.min_salience]))
    return conditions


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


def searchable_numbers(
    connection: sqlite3.Connection, scope: Scope, among: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Return the row numbers of the entries that match the scope and that a search may return, in ascending order. If
    `among` is given, only row numbers in `among` are returned."""
    import numpy as np

    table, conditions = "entries", _indexed_conditions(scope)
    if among is not None:  # CROSS JOIN makes SQLite look up each number in this order
        table = "(SELECT value AS wanted FROM json_each(?)) AS w CROSS JOIN entries ON entries.num = wanted"
        condition, values = where(scope)
        conditions = [(condition, [json.dumps([*among]), *values])]
    texts = []
    for condition, values in conditions:
        # The numbers are read as one text, because a million Python rows would take a second.
        query = f"SELECT group_concat(num) FROM {table} WHERE {condition} AND {SEARCHED}"
        texts.append(connection.execute(query, values).fetchone()[0])
    nums = np.fromstring(",".join(filter(None, texts)), dtype=np.int64, sep=",")
    nums.sort()
    return nums


def _indexed_conditions(scope: Scope) -> list[tuple[str, list[Any]]]:
    """Return the scope as several conditions, so that SQLite can use an index for each condition. An entry that matches
    the scope meets exactly one condition. The single condition that `where` returns may contain an "OR", and SQLite
    would then read all entries."""
    columns = [column for column in OWNERS if scope.or_nobody and getattr(scope, column) is not None]
    more, bounds = "", list[Any]()
    for sign, bound in ((">=", scope.occurred_from), ("<", scope.occurred_to)):
        if bound is not None:  # redundant, because an entry with `occurred_at` is indexed by this time
            more += f" AND coalesce(occurred_at, created_at) {sign} ?"
            bounds.append(to_micros(bound))
    conditions = []
    for flags in itertools.product((True, False), repeat=len(columns)):
        condition, values = _where(scope, dict(zip(columns, flags, strict=True)))
        conditions.append((condition + more, [*values, *bounds]))
    return conditions


def _metadata_conditions(scope: Scope) -> list[tuple[str, list[Any]]]:
    conditions: list[tuple[str, list[Any]]] = []
    for key, value in scope.metadata.items():
        comparison, compared = equals_sql(value)
        condition, values = f"EXISTS (SELECT 1 FROM json_each(metadata) AS m WHERE m.key = ? AND {comparison})", [key]
        values += compared
        # this first condition is redundant, but SQLite can use an index for it
        if key in INDEXED and isinstance(value, str):
            condition, values = f"json_extract(metadata, '$.{key}') = ? AND {condition}", [value, *values]
        conditions.append((condition, values))
    return conditions


def metadata_equals(metadata: str, key: str, value: str) -> bool:
    """Return whether the metadata, a JSON object, has this value under this key. `value` is JSON. SQL statements can
    call this function under the name `metadata_equals`."""
    return json_equal(json.loads(metadata).get(key), json.loads(value))
