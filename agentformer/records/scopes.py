"""A `Scope` as an SQL condition: the one place where it is decided what a call may see."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentformer.records.codec import now, to_micros
from agentformer.types import UNSEARCHED_KINDS, Scope

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EQUAL = (
    "session_id",
    "agent_id",
    "user_id",
    "project",
    "parent_id",
    "document_id",
    "source_type",
    "source_id",
)

INDEXED = ("sha256", "name")  # keys of metadata with an index of their texts; see `records.schema`
OWNERS = ("user_id", "project")  # that `Scope.or_nobody` speaks of


def names_few(scope: Scope) -> bool:
    """Does it name a record, a whole or a file? These have few entries, and an index that is not in any order."""
    known = any(key in INDEXED and isinstance(value, str) for key, value in scope.metadata.items())
    record = scope.source_type is not None and scope.source_id is not None
    return known or record or scope.parent_id is not None or scope.document_id is not None


def where(scope: Scope) -> tuple[str, list[Any]]:
    """A condition over `entries`, and its parameters.

    SQLite takes equal to be rare, whatever the column. So a column that says less than another one of the scope has a
    plus before it, with which SQLite looks for no index of it: a session is found by its name, not by going through all
    messages.
    """
    few, session = names_few(scope), scope.session_id is not None
    user = scope.user_id is not None and not scope.or_nobody
    loose = {"session_id": few, "user_id": few or session, "tier": few or session or user}
    loose["kind"] = loose["tier"]
    whole = scope.parent_id is not None or scope.document_id is not None  # found by ids alone, wherever they are
    parts = ["+namespace = ?" if whole else "namespace = ?"]
    values: list[Any] = [scope.namespace]

    def equal(column: str, value: Any, or_null: bool) -> None:
        if value is not None:
            plus = "+" if loose.get(column) else ""
            parts.append(f"({column} = ? OR {column} IS NULL)" if or_null else f"{plus}{column} = ?")
            values.append(value)

    def among(column: str, allowed: tuple[str, ...]) -> None:
        if allowed:
            plus = "+" if loose.get(column) else ""
            parts.append(f"{plus}{column} IN ({','.join('?' * len(allowed))})")
            values.extend(allowed)

    among("tier", scope.tiers)
    among("kind", scope.kinds)
    among("category", scope.categories)
    for column in _EQUAL:
        equal(column, getattr(scope, column), or_null=scope.or_nobody and column in OWNERS)
    if scope.occurred_from is not None:
        parts.append("occurred_at >= ?")
        values.append(to_micros(scope.occurred_from))
    if scope.occurred_to is not None:
        parts.append("occurred_at < ?")
        values.append(to_micros(scope.occurred_to))
    for key, value in scope.metadata.items():
        condition, more = _holds(key, value)
        parts.append(condition)
        values += more
    if scope.min_salience > 0:
        parts.append("salience >= ?")  # decay only takes away
        values.append(scope.min_salience)
        if scope.decay.rates:
            condition, more = _still_salient(scope)
            parts.append(condition)
            values += more
    if not scope.include_archived:
        parts.append("archived_at IS NULL AND superseded_by IS NULL")
    return " AND ".join(parts), values


def _still_salient(scope: Scope) -> tuple[str, list[Any]]:
    """The condition that decay has left enough, by the same function that tells an entry's effective salience."""
    rates = sorted(scope.decay.rates.items())
    rate = f"CASE category {' '.join('WHEN ? THEN ?' for _ in rates)} ELSE 1.0 END"
    values: list[Any] = [value for pair in rates for value in pair]
    moment = to_micros(scope.decay.at or now())
    return (
        f"decayed(salience, {rate}, ? - coalesce(last_accessed, created_at)) >= ?",
        [*values, moment, scope.min_salience],
    )


def searchable(connection: sqlite3.Connection, scope: Scope, among: Sequence[int] | None = None) -> NDArray[np.int64]:
    """The numbers of all entries of the scope that a search may return, or of those `among` some; ascending."""
    import numpy as np

    condition, values = where(scope)
    marks = ",".join("?" * len(UNSEARCHED_KINDS))
    values += sorted(UNSEARCHED_KINDS)
    table = "entries"
    if among is not None:  # CROSS JOIN keeps the order: each of these is looked up, whatever indexes there are
        table = "(SELECT value AS wanted FROM json_each(?)) CROSS JOIN entries ON entries.num = wanted"
        values = [json.dumps([*among]), *values]
    # As one text: a row of Python for each of a million entries would take a second.
    query = f"SELECT group_concat(num) FROM {table} WHERE {condition} AND kind NOT IN ({marks})"
    told = connection.execute(query, values).fetchone()[0]
    nums = np.fromstring(told or "", dtype=np.int64, sep=",")
    nums.sort()
    return nums


def _holds(key: str, value: Any) -> tuple[str, list[Any]]:
    """That the metadata have this value under the key."""
    condition = "EXISTS (SELECT 1 FROM json_each(metadata) AS m WHERE m.key = ? AND " + _json_equal(value) + ")"
    values = [key, *_json_values(value)]
    if key in INDEXED and isinstance(value, str):  # says no more, but SQLite has an index of it
        return f"json_extract(metadata, '$.{key}') = ? AND {condition}", [value, *values]
    return condition, values


def _json_equal(value: Any) -> str:
    if value is None:
        return "m.type = 'null'"
    if isinstance(value, bool):
        return "m.type = ?"  # SQLite reads JSON true as 1, which must not equal the number 1
    if isinstance(value, (int, float)):
        return "m.type IN ('integer', 'real') AND m.value = ?"
    if isinstance(value, str):
        return "m.type = 'text' AND m.value = ?"
    return "CASE WHEN m.type IN ('object', 'array') THEN json(m.value) = json(?) ELSE 0 END"


def _json_values(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return [float(value)]  # as SQLite itself reads such a number from JSON
    if isinstance(value, (int, float, str)):
        return [value]
    return [json.dumps(value, ensure_ascii=False, sort_keys=True)]
