"""The filters of Haystack as filters of a memory, and the metadata that they compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from agentformer.integrations.adapting import missing

try:
    from haystack.errors import FilterError
except ImportError as error:
    raise missing("haystack", error) from error

_VALUE = "meta."  # before the path of a value
_TIME = "time."  # before the path of a date: seconds since 1970
_ORDER = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_LOGIC = {"AND": "and", "OR": "or", "NOT": "and"}
_NOTHING = {"type": "exists", "key": "$id", "value": False}


def key_values(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `meta` that filters compare, by their paths. A date also has its time in seconds."""
    found: dict[str, Any] = {}
    for path, value in _paths(meta, ""):
        found[f"{_VALUE}{path}"] = value.isoformat() if isinstance(value, datetime) else value
        if (seconds := _seconds(value)) is not None:
            found[f"{_TIME}{path}"] = seconds
    return found


def where_of(filters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the filter of a memory that means the same. Raises `FilterError` for a malformed filter."""
    if not filters:
        return None
    if not isinstance(filters, Mapping):
        raise FilterError(f"filters must be a dictionary, not {type(filters).__name__}")
    return _comparison(filters) if "field" in filters else _group(filters)


def _paths(value: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        yield f"{before}{name}", item
        if isinstance(item, Mapping):
            yield from _paths(item, f"{before}{name}.")


def _seconds(value: Any) -> float | None:
    """Return the time of a date, or of a text in ISO 8601, in seconds since 1970. A time without a zone is in UTC."""
    if isinstance(value, str) and len(value) >= 10 and value[4:5] == "-":
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def _group(filters: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("operator", "conditions"):
        if name not in filters:
            raise FilterError(f"'{name}' key missing in {filters}")
    operator, conditions = filters["operator"], filters["conditions"]
    if not isinstance(operator, str) or operator not in _LOGIC:
        raise FilterError(f"Unknown logical operator '{operator}'. Valid operators are: {sorted(_LOGIC)}")
    if not isinstance(conditions, (list, tuple)):
        raise FilterError(f"'conditions' must be a list, not {type(conditions).__name__}")
    parts = [where_of(condition) for condition in conditions]
    if not parts:
        everything = {"type": "not", "filters": [_NOTHING]}
        return everything if operator == "AND" else _NOTHING
    group = {"type": _LOGIC[operator], "filters": parts}
    return {"type": "not", "filters": [group]} if operator == "NOT" else group


def _comparison(condition: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("operator", "value"):
        if name not in condition:
            raise FilterError(f"'{name}' key missing in {condition}")
    path, operator, value = condition["field"], condition["operator"], condition["value"]
    if not isinstance(path, str) or not isinstance(operator, str):
        raise FilterError(f"'field' and 'operator' must be texts in {condition!r:.200}")
    if operator in _ORDER:
        return _ordered(path, _ORDER[operator], value)
    if operator in ("==", "!="):
        equal = _equal(path, value)
        return equal if operator == "==" else {"type": "not", "filters": [equal]}
    if operator not in ("in", "not in"):
        raise FilterError(f"Unknown comparison operator '{operator}'")
    if not isinstance(value, list):
        raise FilterError(f"Filter value must be a `list` when using operator '{operator}', received {type(value)}")
    parts = [_equal(path, item) for item in value]
    one = {"type": "or", "filters": parts} if parts else _NOTHING
    return one if operator == "in" else {"type": "not", "filters": [one]}


def _key(path: str, before: str = _VALUE) -> str:
    if path in ("id", "content"):
        return "$source_id" if path == "id" else "$content"
    if path in ("blob", "embedding", "sparse_embedding", "score"):
        raise FilterError(f"documents cannot be filtered by '{path}'; use a field of meta")
    return f"{before}{path.removeprefix('meta.')}"


def _equal(path: str, value: Any) -> dict[str, Any]:
    if value is None:
        absent = {"type": "exists", "key": _key(path), "value": False}
        return {"type": "or", "filters": [{"type": "eq", "key": _key(path), "value": None}, absent]}
    plain = value.isoformat() if isinstance(value, datetime) else value
    return {"type": "eq", "key": _key(path), "value": plain}


def _ordered(path: str, kind: str, value: Any) -> dict[str, Any]:
    if value is None:
        return _NOTHING
    if isinstance(value, (str, datetime)):
        seconds = _seconds(value)
        if seconds is None:
            raise FilterError("Strings are only comparable if they are ISO formatted dates.")
        return {"type": kind, "key": _key(path, _TIME), "value": seconds}
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FilterError(f"Filter value can't be of type {type(value)} using operators '>', '>=', '<', '<='")
    return {"type": kind, "key": _key(path), "value": value}
