"""Filters of entries: functions that parse and check the JSON form of a filter. `records.sqlite.scopes` and
`memory.backends.postgres.scopes` convert a filter to an SQL condition.

As JSON, a condition is `{"type": "gte", "key": "year", "value": 2026}`, and a group is `{"type": "and", "filters":
[...]}`, as in the API of OpenAI. Any other object is the short form: the entry must have the given value for each key,
as in `{"year": 2026}`. An object whose `type` is the name of a comparison or group is never the short form, so that a
misspelt key in a condition is an error and does not select wrong entries.

A value is never converted to another type: the number 1 is neither the text "1" nor true. If a key is absent, only
`ne`, `nin` and `exists` with false match. `gt`, `gte`, `lt` and `lte` match only values of the same type: numbers, or
texts in the order of their code points.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from agentformer.errors import InvalidInput
from agentformer.records import fields
from agentformer.records.codec import to_micros
from agentformer.types import Condition, Filter, Group, Where

COMPARISONS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "exists")
GROUPS = ("and", "or", "not")
ORDERED = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}  # comparisons of order
_MAX_DEPTH = 20  # levels of groups
_MAX_VALUES = 500  # conditions and compared values of one filter; SQLite allows 1,000 levels in an expression
MAX_IDS = 20_000  # maximum number of ids in a condition `in` or `nin` on a field of _IDS; SQL receives them as one list
_IDS = ("$id", "$document_id")
MAX_NUMBER = 2**63  # databases do not compare larger numbers exactly; `gt`, `gte`, `lt` and `lte` refuse them
METADATA = "$metadata."  # optional prefix of a metadata key
Sql = tuple[str, list[Any]]  # a condition on the table `entries`, and its parameters
_TYPES: dict[str, tuple[type, ...]] = {"text": (str,), "number": (int, float), "time": (datetime,)}


class Field(NamedTuple):
    """A field that a condition can name: the column in SQL, and the type of its values."""

    column: str
    type: str  # "text", "number" or "time"


_FIELDS: Mapping[str, Field] = {
    **{
        name: Field(name, "text")
        for name in (
            *("id", "content", "tier", "kind", "session_id", "agent_id", "user_id", "project", "title", "category"),
            *("role", "speaker", "source_type", "source_id", "parent_id", "pair_id", "document_id", "superseded_by"),
        )
    },
    **{name: Field(name, "number") for name in ("page", "salience", "version")},
    **{
        name: Field(name, "time")
        for name in ("occurred_at", "valid_from", "valid_to", "expires_at", "created_at", "updated_at", "archived_at")
    },
}


def _field_of(key: str) -> Field | None:
    """Return the field of an entry that the key of a condition names, or None for a key of the metadata."""
    return _FIELDS.get(key[1:]) if key.startswith("$") and not key.startswith(METADATA) else None


def parse(value: Where | None, name: str = "where") -> Filter | None:
    """Return the checked filter for a JSON object or a `Filter`. Return None for None and for an empty object. Raises
    `InvalidInput` for an invalid filter; the error names the argument `name` and the position inside the filter."""
    if value is None or (isinstance(value, Mapping) and not value):
        return None
    left = [_MAX_VALUES]
    return _parse(value, name, _MAX_DEPTH, left)


def to_json(filter: Filter) -> dict[str, Any]:
    """Return the JSON form of a filter."""
    if isinstance(filter, Group):
        return {"type": filter.type, "filters": [to_json(part) for part in filter.filters]}
    values = filter.value if isinstance(filter.value, tuple) else (filter.value,)
    plain = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    return {"type": filter.type, "key": filter.key, "value": plain if isinstance(filter.value, tuple) else plain[0]}


def both(one: Where | None, other: Where | None) -> Filter | None:
    """Combine two filters with "and". If only one is given, return it. Return None if both are None."""
    parts = tuple(part for part in (parse(one), parse(other)) if part is not None)
    return Group("and", parts) if len(parts) > 1 else parts[0] if parts else None


def json_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal. Numbers are compared by value, and true is not equal to 1. The order of
    the items of a list matters, and the order of the keys of an object does not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parse(value: Any, place: str, depth: int, left: list[int]) -> Filter:
    """Check a part of a filter. An object without `type` requires equal values. `_checked` explains `left`."""
    if depth == 0:
        raise InvalidInput(place, f"is nested more than {_MAX_DEPTH} levels deep; use fewer groups")
    if isinstance(value, (Condition, Group)):
        value = _as_json(value)
    if not isinstance(value, Mapping):
        raise InvalidInput(place, 'must be an object, such as {"type": "eq", "key": "site", "value": "north"}')
    kind = value.get("type")
    if kind in GROUPS:
        return _group(value, place, depth, left)
    if kind in COMPARISONS:
        return _condition(value, place, left)
    _refuse_wrong_type(value, place)
    parts = tuple(_checked(Condition("eq", key, item), place, left) for key, item in value.items())
    if not parts:
        raise InvalidInput(place, "is an empty object; give a condition")
    return parts[0] if len(parts) == 1 else Group("and", parts)


def _refuse_wrong_type(value: Mapping[str, Any], place: str) -> None:
    """Raise `InvalidInput` if the `type` of an object is missing or unknown, but the object has the other keys of a
    condition or of a group. `place` is the position of the object in the filter."""
    group = "filters" in value and ("type" in value or isinstance(value["filters"], (list, tuple)))
    if group or ("key" in value and ("type" in value or "value" in value)):
        names = GROUPS if group else COMPARISONS
        raise InvalidInput(f"{place}.type", f"must be one of {', '.join(names)}, got {fields.shown(value.get('type'))}")


def _as_json(value: Filter) -> dict[str, Any]:
    if isinstance(value, Group):
        return {"type": value.type, "filters": value.filters}
    return {"type": value.type, "key": value.key, "value": value.value}


def _check_keys(value: Mapping[str, Any], keys: tuple[str, ...], place: str) -> None:
    """Raise `InvalidInput` if an object does not have exactly the keys `keys`. The message names the missing and the
    unknown keys."""
    missing = [f"lacks the key {key!r}" for key in keys if key not in value]
    unknown = [f"has the unknown key {key!r:.80}" for key in value if key not in keys]
    if not missing and not unknown:
        return
    kind = value["type"]
    metadata = json.dumps({"type": "eq", "key": "type", "value": kind})
    raise InvalidInput(
        place,
        f"{' and '.join([*missing, *unknown[:3]])}; an object of type {kind!r} has exactly the keys {', '.join(keys)}. "
        f"To compare a metadata key named 'type', write {metadata}",
    )


def _group(value: Mapping[str, Any], place: str, depth: int, left: list[int]) -> Group:
    _check_keys(value, ("type", "filters"), place)
    kind, parts = value["type"], value["filters"]
    if not isinstance(parts, (list, tuple)) or not parts:
        raise InvalidInput(f"{place}.filters", "must be a list with at least one filter")
    if kind == "not" and len(parts) != 1:
        raise InvalidInput(f"{place}.filters", f"must contain exactly one filter for the type 'not', got {len(parts)}")
    return Group(kind, tuple(_parse(part, f"{place}.filters[{n}]", depth - 1, left) for n, part in enumerate(parts)))


def _condition(value: Mapping[str, Any], place: str, left: list[int]) -> Condition:
    _check_keys(value, ("type", "key", "value"), place)
    compared = value["value"]
    if value["type"] in ("in", "nin"):
        if not isinstance(compared, (list, tuple)):
            raise InvalidInput(f"{place}.value", f"must be a list for the type {value['type']!r}")
        compared = tuple(compared)
    return _checked(Condition(value["type"], value["key"], compared), place, left)


def _checked(condition: Condition, place: str, left: list[int]) -> Condition:
    """Check a condition, and return it with its values in the form in which they are compared. `left` contains one
    number: the number of values that the rest of the filter may contain. It is reduced by the number of values in this
    condition."""
    key, kind, value = condition.key, condition.type, condition.value
    if not isinstance(key, str) or not key or len(key) > fields.MAX_NAME:
        raise InvalidInput(
            f"{place}.key", f"must be a text of 1 to {fields.MAX_NAME} characters, got {str(key)[:80]!r}"
        )
    fields.encodable(f"{place}.key", key)
    if key.startswith("$") and not key.startswith(METADATA) and _field_of(key) is None:
        names = ", ".join(f"${name}" for name in _FIELDS)
        raise InvalidInput(f"{place}.key", f"{key!r:.80} is not a field; the fields are {names}")
    values = value if kind in ("in", "nin") else (value,)
    by_id = key in _IDS and kind in ("in", "nin")
    if by_id and len(values) > MAX_IDS:
        raise InvalidInput(place, f"contains more than {MAX_IDS} ids; use a smaller filter")
    single = sum(isinstance(value, str) and "\0" in value for value in values)  # each is compared on its own
    left[0] -= 1 + single if by_id else max(1, len(values))
    if left[0] < 0:
        raise InvalidInput(place, f"contains more than {_MAX_VALUES} values; use a smaller filter")
    if kind == "exists":
        return Condition(kind, key, fields.flag(f"{place}.value", value))
    field = _field_of(key)
    checked = tuple(_checked_value(item, field, kind, f"{place}.value") for item in values)
    return Condition(kind, key, checked if kind in ("in", "nin") else checked[0])


def _checked_value(value: Any, field: Field | None, kind: str, place: str) -> Any:
    if field is not None and field.type == "time":
        if (moment := fields.moment(place, value)) is None:
            raise InvalidInput(place, "must be a time in ISO 8601 with a time zone")
        return moment
    if kind in ORDERED and not (isinstance(value, str) or _is_number(value)):
        raise InvalidInput(
            place, f"must be a number or a text for the type {kind!r}, got {json.dumps(value, default=str):.80}"
        )
    if kind in ORDERED and _is_number(value) and not -MAX_NUMBER <= value < MAX_NUMBER:
        raise InvalidInput(place, f"must be from -2^63 to 2^63 - 1 for the type {kind!r}, got {fields.shown(value)}")
    if isinstance(value, str):
        return fields.encodable(place, value)
    return fields.metadata({"value": value}, place)["value"]


def to_sql(filter: Filter, convert: Callable[[Field | None, Condition], Sql]) -> Sql:
    """Return an SQL condition that is true if an entry matches the filter, and otherwise false. It is never NULL.
    `convert` returns the condition of a comparison without negation (`eq`, `in`, `exists` with true, or one of
    `ORDERED`) for a database. Its first argument is the field, or None for a key of the metadata."""
    if isinstance(filter, Group):
        parts = [to_sql(part, convert) for part in filter.filters]
        values = [value for _, more in parts for value in more]
        if filter.type == "not":
            return f"NOT ({parts[0][0]})", values
        return f"({f' {filter.type.upper()} '.join(text for text, _ in parts)})", values
    condition, negated = _positive(filter)
    text, values = convert(_field_of(filter.key), condition)
    return (f"NOT ({text})" if negated else text), values


def _positive(condition: Condition) -> tuple[Condition, bool]:
    """Return a condition without negation, and whether its result must be negated. For example, `ne` is converted to an
    `eq` condition and True."""
    if condition.type == "exists":
        return Condition("exists", condition.key, True), not condition.value
    negated = {"ne": "eq", "nin": "in"}.get(condition.type)
    if negated:
        return Condition("eq" if negated == "eq" else "in", condition.key, condition.value), True
    return condition, False


def comparable(field: Field, condition: Condition) -> list[Any]:
    """Return the values of a condition that have the type of the field, in the form in which the column stores them. A
    value of another type matches no entry."""
    values = condition.value if condition.type == "in" else (condition.value,)
    kind = _TYPES[field.type]
    return [_stored(value) for value in values if isinstance(value, kind) and not isinstance(value, bool)]


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_micros(value)
    return float(value) if isinstance(value, int) and not -MAX_NUMBER <= value < MAX_NUMBER else value


def any_of(parts: Sequence[Sql]) -> Sql:
    """Return a condition that is true if one of these conditions is true."""
    if not parts:
        return "1 = 0", []
    text = " OR ".join(f"({text})" for text, _ in parts)
    return f"({text})", [value for _, values in parts for value in values]
