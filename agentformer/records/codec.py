"""A `MemoryEntry` as a row and as JSON, and back, without loss."""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from numbers import Integral, Real
from operator import itemgetter
from typing import Any

from agentformer.errors import InvalidInput, StoreDamaged
from agentformer.records.fields import encodable
from agentformer.records.integrity import checksums as crc
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
COLUMNS = (*_PLAIN, *TIMES, "metadata", "derived_from", *_SOURCE_COLUMNS, "checksum")
# What SQL changes in place; the checksum of an entry is over all else.
COUNTED = ("access_count", "match_count", "read_count", "repeat_count", "last_accessed", "archived_at", "archived_by")
# The order that checksums are made in. A new column that may be NULL is appended, and old checksums hold.
CHECKED = (
    *("id", "content", "tier", "kind", "namespace", "session_id", "agent_id", "user_id", "project", "title", "context"),
    *("metadata", "source_type", "source_id", "parent_id", "pair_id", "derived_from", "role", "speaker", "raw"),
    *("category", "occurred_at", "created_at", "updated_at", "salience", "superseded_by", "version"),
    *("document_id", "source_name", "page", "label", "span_start", "span_end"),
)
_WHOLE = frozenset({*TIMES, *COUNTED[:4], "version", "page", "span_start", "span_end"})  # INTEGER
_NUMBERS = _WHOLE | {"salience"}  # the others are TEXT
_MOST = 2**63 - 1  # what SQLite keeps as an integer
_Getter = Callable[[sqlite3.Row], tuple[Any, ...]]
_UNDECODABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
_checked_values: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*CHECKED)
_FIELDS = [f.name for f in dataclasses.fields(MemoryEntry)]
_PLACE = {name: place for place, name in enumerate(_FIELDS)}
_METADATA, _SOURCE, _DERIVED_FROM = (_PLACE[name] for name in ("metadata", "source", "derived_from"))
_TIME_PLACES = tuple(_PLACE[name] for name in TIMES)


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
    """Column name to value. Raises `InvalidInput` for what no column keeps: metadata that is not JSON, a text for a
    number, half of a surrogate pair."""
    row: dict[str, Any] = {name: getattr(entry, name) for name in _PLAIN}
    row |= {name: to_micros(getattr(entry, name)) for name in TIMES}
    row["metadata"] = _object(entry.metadata)
    row["derived_from"] = json.dumps([[link.id, link.type] for link in entry.derived_from], ensure_ascii=False)
    row |= {column: getattr(entry.source, name, None) for column, name in _SOURCE_COLUMNS.items()}
    row = {name: value if value is None else _kept(name, value) for name, value in row.items()}
    row["checksum"] = crc.of_values(_checked_values(row))
    return row


def check_texts(entries: Iterable[MemoryEntry]) -> None:
    """Raises `InvalidInput` where what is embedded is no text; `to_row` looks at all else."""
    for entry in entries:
        for name in ("content", "title", "context"):
            value = getattr(entry, name)
            if not isinstance(value, str):
                raise InvalidInput(name, f"must be text, got {value!r:.80}")
            if not value.isascii():
                encodable(name, value)


def _kept(column: str, value: Any) -> Any:
    """A value as SQLite gives it back from this column: checksums are compared with what was read. Raises
    `InvalidInput`."""
    if isinstance(value, str) and column not in _NUMBERS:
        text = str.__str__(value)
        return text if text.isascii() else encodable(column, text)
    number = _number(value)
    if column in _WHOLE and number is not None and number == int(number) and abs(number) <= _MOST:
        return int(number)
    if column == "salience" and number is not None:
        return float(number) + 0.0  # there is no negative zero
    if column in _NUMBERS or number is None:
        what = "a number" if column == "salience" else "a whole number" if column in _WHOLE else "text"
        raise InvalidInput(column, f"must be {what}, got {value!r:.80}")
    return str(number)


def _number(value: Any) -> int | float | None:
    """A number, of other libraries too, as our own; None for what is none, or is not finite."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None


def _object(metadata: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(metadata), ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput("metadata", f"must be JSON values: {error}") from None


def from_row(stored: sqlite3.Row) -> MemoryEntry:
    """The entry of a row of all columns. Raises `StoreDamaged` where that is not what was written."""
    fields, checked = _in_order(tuple(stored.keys()))
    *values, checksum = checked(stored)
    if checksum is not None and crc.of_values(values) != checksum:
        raise crc.damaged(crc.entry_name(stored["id"]))
    try:
        return _decoded([*fields(stored)], stored)
    except _UNDECODABLE as error:
        raise undecodable(crc.entry_name(stored["id"]), error) from error


def _decoded(values: list[Any], stored: sqlite3.Row) -> MemoryEntry:
    for place in _TIME_PLACES:
        if values[place] is not None:
            values[place] = _moment(values[place])
    values[_METADATA] = {} if values[_METADATA] == "{}" else {**json.loads(values[_METADATA])}
    links = values[_DERIVED_FROM]
    values[_DERIVED_FROM] = () if links == "[]" else tuple(Link(*pair) for pair in json.loads(links))
    if values[_SOURCE] is not None:
        values[_SOURCE] = Source(**{name: stored[column] for column, name in _SOURCE_COLUMNS.items()})
    return MemoryEntry(*values)


def undecodable(what: str, error: Exception) -> StoreDamaged:
    """The error for a row that cannot be what was written: no JSON, no time. What it holds is not told."""
    return crc.damaged(what, f"it cannot be decoded ({type(error).__name__})")


@lru_cache(maxsize=16)
def _in_order(columns: tuple[str, ...]) -> tuple[_Getter, _Getter]:
    """What takes the fields of an entry, in their order, from a row of these columns, and what takes the columns with a
    checksum and the checksum: a `Row` finds each name by looking through all of them."""
    place = {name: place for place, name in enumerate(columns)}
    fields = itemgetter(*(place["document_id" if name == "source" else name] for name in _FIELDS))
    return fields, itemgetter(*(place[name] for name in (*CHECKED, "checksum")))


@lru_cache(maxsize=1024)
def _moment(micros: int) -> datetime:
    """Many times are asked for twice: most entries were changed last when they were made."""
    return _EPOCH + micros * _MICROSECOND


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


def from_state(stored: sqlite3.Row, entry_id: str) -> MemoryEntry:
    """The former state of an entry, of a row of its history. Raises `StoreDamaged` where it is not what was written."""
    what = f"a former version of {crc.entry_name(entry_id)}"
    checksum = stored["checksum"]
    if checksum is not None and state_checksum(stored["entry"], stored["version"], stored["state"]) != checksum:
        raise crc.damaged(what)
    try:
        state = from_json(json.loads(stored["state"]))
    except _UNDECODABLE as error:
        raise undecodable(what, error) from error
    if state.id != entry_id:
        raise crc.damaged(what, "it is of another entry")
    return state


def state_checksum(num: int, version: int, state: str) -> int:
    """Of a row of the history: the entry's number, the version, and the state as JSON."""
    return crc.of_text(state, num, version)
