"""SQL conditions for filters. The statements are written for SQLite; PostgreSQL translates them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from agentformer.records.codec import to_micros
from agentformer.records.filters import ORDERED, Field, field_of, metadata_key
from agentformer.types import Condition, Filter, Group

Sql = tuple[str, list[Any]]  # a condition on the table `entries`, and its parameters

_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_SELECTIVE = frozenset({"id", "source_id", "parent_id", "document_id"})  # SQLite may use an index of these columns
_NEVER = "1 = 0"
_TYPES: dict[str, tuple[type, ...]] = {"text": (str,), "number": (int, float), "time": (datetime,)}


def filter_sql(filter: Filter) -> Sql:
    """Return an SQL condition that is true if an entry matches the filter, and otherwise false. It is never NULL."""
    if isinstance(filter, Group):
        parts = [filter_sql(part) for part in filter.filters]
        values = [value for _, more in parts for value in more]
        if filter.type == "not":
            return f"NOT ({parts[0][0]})", values
        return f"({f' {filter.type.upper()} '.join(text for text, _ in parts)})", values
    field = field_of(filter.key)
    positive, negated = _positive(filter)
    text, values = _field_sql(field, positive) if field else _metadata_sql(metadata_key(filter.key), positive)
    return (f"NOT ({text})" if negated else text), values


def json_equals(value: Any) -> Sql:
    """Return an SQL condition, with its parameters, that is true if a metadata value equals `value`. The query must
    read the metadata as `json_each(metadata) AS m`. SQLite itself compares most values. The SQL function
    `metadata_equals` compares lists, objects, texts with a NUL, and numbers that SQLite would round."""
    if value is None:
        return "m.type = 'null'", []
    if isinstance(value, bool):  # SQLite reads JSON true as 1, which must not equal the number 1
        return "m.type = ?", ["true" if value else "false"]
    if isinstance(value, (int, float)) and -(2**63) <= value < 2**63:
        return "m.type IN ('integer', 'real') AND m.value = ?", [value]
    if isinstance(value, str) and "\0" not in value:
        return "m.type = 'text' AND m.value = ?", [value]
    return "metadata_equals(metadata, m.key, ?)", [json.dumps(value)]


def _positive(condition: Condition) -> tuple[Condition, bool]:
    """Return a condition without negation, for which the SQL code is written, and whether its result must be negated:
    for `ne`, an `eq` condition and True."""
    if condition.type == "exists":
        return Condition("exists", condition.key, True), not condition.value
    negated = {"ne": "eq", "nin": "in"}.get(condition.type)
    if negated:
        return Condition("eq" if negated == "eq" else "in", condition.key, condition.value), True
    return condition, False


def _metadata_sql(key: str, condition: Condition) -> Sql:
    if condition.type == "exists":
        text, values = "1 = 1", []
    elif condition.type in ORDERED:
        kind = "= 'text'" if isinstance(condition.value, str) else "IN ('integer', 'real')"
        collation = " COLLATE BINARY" if isinstance(condition.value, str) else ""
        text = f"m.type {kind} AND m.value{collation} {_SIGNS[condition.type]} ?"
        values = [condition.value]
    else:
        text, values = _any_of(condition.value if condition.type == "in" else (condition.value,))
    return f"EXISTS (SELECT 1 FROM json_each(metadata) AS m WHERE m.key = ? AND ({text}))", [key, *values]


def _any_of(wanted: Sequence[Any]) -> Sql:
    texts = [value for value in wanted if isinstance(value, str) and "\0" not in value]
    others = [value for value in wanted if not isinstance(value, str) or "\0" in value]
    parts = [json_equals(value) for value in (*others, *texts[:1])]
    if len(texts) > 1:
        parts[-1] = ("m.type = 'text' AND m.value IN (SELECT value FROM json_each(?))", [json.dumps(texts)])
    return _or(parts)


def _field_sql(field: Field, condition: Condition) -> Sql:
    column = field.column if field.column in _SELECTIVE else f"+{field.column}"
    if condition.type == "exists":
        return f"{column} IS NOT NULL", []
    wanted = condition.value if condition.type == "in" else (condition.value,)
    kind = _TYPES[field.type]
    comparable = [_stored(value) for value in wanted if isinstance(value, kind) and not isinstance(value, bool)]
    if condition.type in ORDERED:
        collation = " COLLATE BINARY" if field.type == "text" else ""
        parts = [(f"{column}{collation} {_SIGNS[condition.type]} ?", [value]) for value in comparable]
    elif field.type == "text" and len(comparable) > 1:
        together = [value for value in comparable if "\0" not in value]
        parts = [(f"{column} IN (SELECT value FROM json_each(?))", [json.dumps(together)])]
        parts += [(f"{column} = ?", [value]) for value in comparable if "\0" in value]
    else:
        parts = [(f"{column} = ?", [value]) for value in comparable]
    text, values = _or(parts)
    return f"({column} IS NOT NULL AND {text})", values


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_micros(value)
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _or(parts: Sequence[Sql]) -> Sql:
    if not parts:
        return _NEVER, []
    text = " OR ".join(f"({text})" for text, _ in parts)
    return f"({text})", [value for _, values in parts for value in values]
