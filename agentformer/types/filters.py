"""Types for filters: trees of conditions on the metadata and the fields of entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Comparison = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "exists"]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one value of an entry. `key` is a key of the metadata, or `$` and the name of a field, such as
    `$kind`; `$metadata.KEY` is the metadata key KEY, whatever its first character is. `value` is a JSON value: a list
    (here a tuple) for `in` and `nin`, a bool for `exists`, and otherwise the value to compare with."""

    type: Comparison
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Group:
    """A filter that combines other filters. With `and`, all `filters` must match; with `or`, at least one must match;
    with `not`, the only filter must not match."""

    type: Literal["and", "or", "not"]
    filters: tuple[Filter, ...]


Filter: TypeAlias = Condition | Group
Where: TypeAlias = Filter | Mapping[str, Any]  # a filter, or its JSON form; see `records.filters.parse`
