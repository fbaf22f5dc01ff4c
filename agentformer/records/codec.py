"""A `MemoryEntry` as a row and as JSON, and back, without loss."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.types import Link, MemoryEntry, Source

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
TIMES = ("occurred_at", "created_at", "updated_at", "last_accessed", "archived_at")
_SOURCE_COLUMNS = {
    "document_id": "document_id",
    "source_name": "name",
    "page": "page",
    "label": "label",
    "span_start": "start",
    "span_end": "end",
}
_PLAIN = tuple(
    f.name for f in dataclasses.fields(MemoryEntry) if f.name not in {*TIMES, "metadata", "source", "derived_from"}
)
COLUMNS = (*_PLAIN, *TIMES, "metadata", "derived_from", *_SOURCE_COLUMNS)


def to_micros(moment: datetime | None) -> int | None:
    """Microseconds since 1970 in UTC; `moment` has a time zone."""
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + micros * _MICROSECOND


def now() -> datetime:
    """The present, in UTC."""
    return datetime.now(UTC)


def happened_at(entry: MemoryEntry) -> datetime:
    """When it happened, or, where that is not known, when it was stored."""
    return entry.occurred_at or entry.created_at or _EPOCH


def to_row(entry: MemoryEntry) -> dict[str, Any]:
    """Column name to value. Raises `InvalidInput` for metadata that is not JSON."""
    row: dict[str, Any] = {name: getattr(entry, name) for name in _PLAIN}
    row |= {name: to_micros(getattr(entry, name)) for name in TIMES}
    row["metadata"] = _object(entry.metadata)
    row["derived_from"] = json.dumps([[link.id, link.type] for link in entry.derived_from])
    row |= {column: getattr(entry.source, name, None) for column, name in _SOURCE_COLUMNS.items()}
    return row


def _object(metadata: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(metadata), ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput("metadata", f"must be JSON values: {error}") from None


def from_row(row: sqlite3.Row) -> MemoryEntry:
    values: dict[str, Any] = {name: row[name] for name in _PLAIN}
    values |= {name: from_micros(row[name]) for name in TIMES}
    values["metadata"] = json.loads(row["metadata"])
    values["derived_from"] = tuple(Link(*pair) for pair in json.loads(row["derived_from"]))
    if row["document_id"] is not None:
        values["source"] = Source(**{name: row[column] for column, name in _SOURCE_COLUMNS.items()})
    return MemoryEntry(**values)


def to_json(entry: MemoryEntry) -> dict[str, Any]:
    """JSON values; times as ISO 8601 in UTC."""
    values = dataclasses.asdict(entry)
    for name in TIMES:
        moment: datetime | None = getattr(entry, name)
        values[name] = moment.isoformat() if moment else None
    return values


def from_json(values: Mapping[str, Any]) -> MemoryEntry:
    """The inverse of `to_json`; unknown keys raise `TypeError`."""
    read = dict(values)
    for name in TIMES:
        read[name] = datetime.fromisoformat(read[name]) if read.get(name) else None
    read["source"] = Source(**read["source"]) if read.get("source") else None
    read["derived_from"] = tuple(Link(**link) for link in read.get("derived_from", ()))
    return MemoryEntry(**read)
