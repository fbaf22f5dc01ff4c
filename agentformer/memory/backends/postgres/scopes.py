"""Conversion of a `Scope` to an SQL condition in the SQL of PostgreSQL. `records.scopes` has that of SQLite. All access
restrictions of a query are in this condition.

The functions `json_items`, `json_extract`, `metadata_equals` and `decayed` are defined in the schema; see `schema`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentformer.records.filters import (
    MAX_NUMBER,
    METADATA,
    ORDERED,
    Field,
    Sql,
    any_of,
    comparable,
    parse,
    to_sql,
)
from agentformer.records.scopes import EQUAL, INDEXED, OWNERS, least_salience, times, visibility
from agentformer.types import Condition, Scope


def where(scope: Scope) -> tuple[str, list[Any]]:
    """Return an SQL condition on the table `entries`, and the list of its parameters."""
    tree = parse(scope.where)
    parts = [
        *_fields(scope),
        *_marked(times(scope)),
        *_metadata(scope),
        *_marked(least_salience(scope)),
        *([to_sql(tree, _comparison)] if tree else []),
        *_marked(visibility(scope)),
    ]
    return " AND ".join(text for text, _ in parts), [value for _, values in parts for value in values]


def _fields(scope: Scope) -> Iterator[Sql]:
    yield "namespace = %s", [scope.namespace]
    members = ("tier", scope.tiers), ("kind", scope.kinds), ("category", scope.categories), ("page", scope.pages)
    for column, allowed in members:
        if allowed:
            yield f"{column} = ANY(%s)", [[*allowed]]
    if scope.except_kinds:
        yield "kind <> ALL(%s)", [[*scope.except_kinds]]
    for column in EQUAL:
        if (value := getattr(scope, column)) is not None:
            or_null = scope.or_nobody and column in OWNERS
            yield f"({column} = %s OR {column} IS NULL)" if or_null else f"{column} = %s", [value]


def _marked(conditions: Iterable[Sql]) -> Iterator[Sql]:
    """Yield conditions that SQLite and PostgreSQL have in common, with the mark of a value of PostgreSQL."""
    for text, values in conditions:
        yield text.replace("?", "%s"), values


def _metadata(scope: Scope) -> Iterator[Sql]:
    for key, value in scope.metadata.items():
        if key in INDEXED and isinstance(value, str):  # redundant, but an index has this expression
            yield f"json_extract(metadata, '$.{key}') = %s", [value]
        yield _in_metadata(key, _equals(value))


def _comparison(field: Field | None, condition: Condition) -> Sql:
    """Return the condition of a comparison (see `filters.to_sql`). If the entry has no value, it is false, not NULL."""
    if field is None:
        return _of_metadata(condition)
    column = field.column
    if condition.type == "exists":
        return f"{column} IS NOT NULL", []
    values = comparable(field, condition)
    if condition.type in ORDERED:
        collation = ' COLLATE "C"' if field.type == "text" else ""
        parts = [(f"{column}{collation} {ORDERED[condition.type]} %s", [value]) for value in values]
    elif field.type == "text" and len(values) > 1:
        parts = [(f"{column} = ANY(%s)", [values])]
    else:
        parts = [(f"{column} = %s", [value]) for value in values]
    text, bound = any_of(parts)
    return f"({column} IS NOT NULL AND {text})", bound


def _of_metadata(condition: Condition) -> Sql:
    key, value = condition.key.removeprefix(METADATA), condition.value
    if condition.type == "exists":
        return _in_metadata(key, ("true", []))
    if condition.type not in ORDERED:
        return _in_metadata(key, _equals_any(value if condition.type == "in" else (value,)))
    sign = ORDERED[condition.type]
    if isinstance(value, str):
        return _in_metadata(key, (f"m.type = 'text' AND m.value COLLATE \"C\" {sign} %s", [value]))
    return _in_metadata(key, (f"m.number {sign} %s::text::numeric", [value]))


def _in_metadata(key: str, condition: Sql) -> Sql:
    """Return a condition that is true if the metadata have this key, and the condition is true for its item `m`."""
    text, values = condition
    return f"EXISTS (SELECT 1 FROM json_items(metadata) AS m WHERE m.key = %s AND ({text}))", [key, *values]


def _equals_any(wanted: Sequence[Any]) -> Sql:
    texts = [value for value in wanted if isinstance(value, str) and "\0" not in value]
    parts = [_equals(value) for value in wanted if not isinstance(value, str) or "\0" in value]
    if texts:
        parts.append(("m.type = 'text' AND m.value = ANY(%s)", [texts]))
    return any_of(parts)


def _equals(value: Any) -> Sql:
    """Return a condition that is true if the value of the item `m` of the metadata equals `value`."""
    if value is None:
        return "m.type = 'null'", []
    if isinstance(value, bool):
        return "m.type = %s", ["true" if value else "false"]
    if isinstance(value, (int, float)) and -MAX_NUMBER <= value < MAX_NUMBER:
        return "m.number = %s::text::numeric", [value]
    if isinstance(value, str) and "\0" not in value:
        return "m.type = 'text' AND m.value = %s", [value]
    return "metadata_equals(metadata, m.key, %s)", [json.dumps(value)]
