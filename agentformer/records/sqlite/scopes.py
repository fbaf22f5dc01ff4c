"""Conversion of a `Scope` to an SQL condition of SQLite. All access restrictions of a query are in this condition.
`memory.backends.postgres.scopes` has that of PostgreSQL.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentformer.records.codec import to_micros
from agentformer.records.filters import (
    MAX_NUMBER,
    METADATA,
    ORDERED,
    Field,
    Sql,
    any_of,
    comparable,
    json_equal,
    parse,
    to_sql,
)
from agentformer.records.scopes import EQUAL, INDEXED, OWNERS, SEARCHED, is_selective, least_salience, times, visibility
from agentformer.types import Condition, Scope

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAX_VARIABLES = 500  # values per statement; every SQLite build allows more bound variables
# Columns with a useful index.
_SELECTIVE = frozenset({"id", "source_id", "parent_id", "document_id", "superseded_by", "expires_at"})


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
    conditions = (*times(scope), *_metadata_conditions(scope), *least_salience(scope))
    for condition, more in (*conditions, *([to_sql(tree, _comparison)] if tree else [])):
        parts.append(condition)
        values += more
    for condition, more in visibility(scope):
        parts.append(condition)
        values += more
    return " AND ".join(parts), values


def _metadata_conditions(scope: Scope) -> Iterator[Sql]:
    for key, value in scope.metadata.items():
        if key in INDEXED and isinstance(value, str):  # redundant, but SQLite can use an index for it
            yield f"json_extract(metadata, '$.{key}') = ?", [value]
        yield _in_metadata(key, _equals(value))


def _comparison(field: Field | None, condition: Condition) -> Sql:
    """Return the condition of a comparison (see `filters.to_sql`). If the entry has no value, it is false, not NULL."""
    if field is None:
        return _of_metadata(condition)
    column = field.column if field.column in _SELECTIVE else f"+{field.column}"
    if condition.type == "exists":
        return f"{column} IS NOT NULL", []
    values = comparable(field, condition)
    if condition.type in ORDERED:
        collation = " COLLATE BINARY" if field.type == "text" else ""
        parts = [(f"{column}{collation} {ORDERED[condition.type]} ?", [value]) for value in values]
    elif field.type == "text" and len(values) > 1:
        together = [value for value in values if "\0" not in value]
        parts = [(f"{column} IN (SELECT value FROM json_each(?))", [json.dumps(together)])]
        parts += [(f"{column} = ?", [value]) for value in values if "\0" in value]
    else:
        parts = [(f"{column} = ?", [value]) for value in values]
    text, bound = any_of(parts)
    return f"({column} IS NOT NULL AND {text})", bound


def _of_metadata(condition: Condition) -> Sql:
    key, value = condition.key.removeprefix(METADATA), condition.value
    if condition.type == "exists":
        return _in_metadata(key, ("1 = 1", []))
    if condition.type not in ORDERED:
        return _in_metadata(key, _equals_any(value if condition.type == "in" else (value,)))
    kind, collation = ("= 'text'", " COLLATE BINARY") if isinstance(value, str) else ("IN ('integer', 'real')", "")
    return _in_metadata(key, (f"m.type {kind} AND m.value{collation} {ORDERED[condition.type]} ?", [value]))


def _in_metadata(key: str, condition: Sql) -> Sql:
    """Return a condition that is true if the metadata have this key, and the condition is true for its item `m`."""
    text, values = condition
    return f"EXISTS (SELECT 1 FROM json_each(metadata) AS m WHERE m.key = ? AND ({text}))", [key, *values]


def _equals_any(wanted: Sequence[Any]) -> Sql:
    texts = [value for value in wanted if isinstance(value, str) and "\0" not in value]
    others = [value for value in wanted if not isinstance(value, str) or "\0" in value]
    parts = [_equals(value) for value in (*others, *texts[:1])]
    if len(texts) > 1:
        parts[-1] = ("m.type = 'text' AND m.value IN (SELECT value FROM json_each(?))", [json.dumps(texts)])
    return any_of(parts)


def _equals(value: Any) -> Sql:
    """Return a condition, with its parameters, that is true if a metadata value equals `value`. The query must
    read the metadata as `json_each(metadata) AS m`. SQLite itself compares most values. The SQL function
    `metadata_equals` compares lists, objects, texts with a NUL, and numbers that SQLite would round."""
    if value is None:
        return "m.type = 'null'", []
    if isinstance(value, bool):  # SQLite reads JSON true as 1, which must not equal the number 1
        return "m.type = ?", ["true" if value else "false"]
    if isinstance(value, (int, float)) and -MAX_NUMBER <= value < MAX_NUMBER:
        return "m.type IN ('integer', 'real') AND m.value = ?", [value]
    if isinstance(value, str) and "\0" not in value:
        return "m.type = 'text' AND m.value = ?", [value]
    return "metadata_equals(metadata, m.key, ?)", [json.dumps(value)]


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


def metadata_equals(metadata: str, key: str, value: str) -> bool:
    """Return whether the metadata, a JSON object, has this value under this key. `value` is JSON. SQL statements can
    call this function under the name `metadata_equals`."""
    return json_equal(json.loads(metadata).get(key), json.loads(value))


def in_groups(values: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the values in groups that are small enough for one SQL statement. Each item is a pair: the placeholders,
    such as `?,?`, and their values."""
    for start in range(0, len(values), _MAX_VARIABLES):
        group = values[start : start + _MAX_VARIABLES]
        yield ",".join("?" * len(group)), group
