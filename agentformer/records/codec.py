"""Conversion of a `MemoryEntry` to a row of the database and back, without loss of information."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from numbers import Integral, Real
from operator import attrgetter, itemgetter
from typing import Any

from agentformer.errors import InvalidInput, StoreDamaged
from agentformer.records.entry_json import COUNTS, TIMES, check_validity, entry_from_json
from agentformer.records.fields import encodable
from agentformer.records.integrity import checksums
from agentformer.types import Link, MemoryEntry, Row, Source

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
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
# Columns that SQL statements change in place. The checksum of an entry covers all columns except these.
COUNTED = (*COUNTS, "last_accessed", "archived_at", "archived_by")
# The order in which a checksum is computed. New columns are appended and may be NULL, so old checksums stay valid.
CHECKED = (
    *("id", "content", "tier", "kind", "namespace", "session_id", "agent_id", "user_id", "project", "title", "context"),
    *("metadata", "source_type", "source_id", "parent_id", "pair_id", "derived_from", "role", "speaker", "raw"),
    *("category", "occurred_at", "created_at", "updated_at", "salience", "superseded_by", "version"),
    *("document_id", "source_name", "page", "label", "span_start", "span_end"),
    *("valid_from", "valid_to", "expires_at"),
)
_INTEGERS = frozenset({*TIMES, *COUNTS, "version", "page", "span_start", "span_end"})
_NUMBERS = _INTEGERS | {"salience"}  # the other columns are TEXT
_MAX_INTEGER = 2**63 - 1  # the largest integer of SQLite
_Getter = Callable[[tuple[Any, ...]], tuple[Any, ...]]
_UNDECODABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
# `json.dumps` with these options would create a new encoder at each call
_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, allow_nan=False).encode
_raw_decode = json.JSONDecoder().raw_decode
_encode_list = json.JSONEncoder(ensure_ascii=False).encode
_checked_values: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*CHECKED)
_plain_values: Callable[[MemoryEntry], tuple[Any, ...]] = attrgetter(*_PLAIN)
_time_values: Callable[[MemoryEntry], tuple[Any, ...]] = attrgetter(*TIMES)
_NO_SOURCE = dict.fromkeys(_SOURCE_COLUMNS)
_FIELDS = [f.name for f in dataclasses.fields(MemoryEntry)]
_INDEX = {name: index for index, name in enumerate(_FIELDS)}
_METADATA, _SOURCE, _DERIVED_FROM = (_INDEX[name] for name in ("metadata", "source", "derived_from"))
_TIME_INDEXES = tuple(_INDEX[name] for name in TIMES)


def to_micros(moment: datetime | None) -> int | None:
    """Return the microseconds from 1970-01-01 UTC to `moment`, or None for None. `moment` must have a time zone."""
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int | None) -> datetime | None:
    """Return the UTC time for a number of microseconds since 1970-01-01 UTC, or None if the number is None."""
    return None if micros is None else _EPOCH + micros * _MICROSECOND


_cached_moment = lru_cache(maxsize=1024)(from_micros)  # most entries have equal `created_at` and `updated_at`


def now() -> datetime:
    return datetime.now(UTC)


def now_micros() -> int:
    return (now() - _EPOCH) // _MICROSECOND


def happened_at(entry: MemoryEntry) -> datetime:
    """Return the time of the event that the entry describes, or else the time at which the entry was stored."""
    return entry.occurred_at or entry.created_at or _EPOCH


def to_row(entry: MemoryEntry) -> dict[str, Any]:
    """Return the row for an entry: a value for each column name. Raises `InvalidInput` if `valid_to` is before
    `valid_from`, and for a value that a column cannot store, such as metadata that are not JSON, text instead of a
    number, or half of a surrogate pair."""
    if entry.valid_to is not None:
        check_validity(entry)
    row: dict[str, Any] = dict(zip(_PLAIN, _plain_values(entry), strict=True))
    for name, moment in zip(TIMES, _time_values(entry), strict=True):
        row[name] = None if moment is None else to_micros(moment)
    try:
        row["metadata"] = _encode(dict(entry.metadata)) if entry.metadata else "{}"
    except (TypeError, ValueError) as error:
        raise InvalidInput("metadata", f"must contain only JSON values: {error}") from None
    links = entry.derived_from
    row["derived_from"] = _encode_list([[link.id, link.type] for link in links]) if links else "[]"
    source = entry.source
    row |= {column: getattr(source, name) for column, name in _SOURCE_COLUMNS.items()} if source else _NO_SOURCE
    for name, value in row.items():
        if value is not None and not (value.__class__ is str and value.isascii() and name not in _NUMBERS):
            row[name] = _column_value(name, value)
    row["checksum"] = checksums.of_values(_checked_values(row))
    return row


def check_texts(entries: Iterable[MemoryEntry]) -> None:
    """Raise `InvalidInput` if the content, title or context of an entry is not a string that can be written as UTF-8.
    `to_row` checks the other fields."""
    for entry in entries:
        for name in ("content", "title", "context"):
            value = getattr(entry, name)
            if not isinstance(value, str):
                raise InvalidInput(name, f"must be text, got {value!r:.80}")
            if not value.isascii():
                encodable(name, value)


def _column_value(column: str, value: Any) -> Any:
    """Return the value in the form in which SQLite returns it after it was stored in this column. The checksum is
    computed from this form, so that it is the same before the value is written and after it is read. Raises
    `InvalidInput` if the column cannot store the value."""
    kind = value.__class__  # the usual types come first, because a check against an abstract class is slow
    if kind is str and column not in _NUMBERS and value.isascii():
        return value
    if kind is int and column in _INTEGERS and -_MAX_INTEGER <= value <= _MAX_INTEGER:
        return value
    if kind is float and column == "salience" and 0.0 < value < math.inf:
        return value
    if isinstance(value, str) and column not in _NUMBERS:
        text = str.__str__(value)
        return text if text.isascii() else encodable(column, text)
    number: int | float | None = None  # of any library; None for infinity, for NaN, and for other values
    if isinstance(value, Integral):
        number = int(value)
    elif isinstance(value, Real) and math.isfinite(value):
        number = float(value)
    if column in _INTEGERS and number is not None and number == int(number) and abs(number) <= _MAX_INTEGER:
        return int(number)
    if column == "salience" and number is not None:
        return float(number) + 0.0  # turns -0.0 into 0.0
    if column in _NUMBERS or number is None:
        expected = "a number" if column == "salience" else "a whole number" if column in _INTEGERS else "text"
        raise InvalidInput(column, f"must be {expected}, got {value!r:.80}")
    return str(number)


def from_row(stored: Row) -> MemoryEntry:
    """Return the entry that a row contains. The row must have all columns. Raises `StoreDamaged` if the row differs
    from the row that was written."""
    return _entry(stored, *_getters(tuple(stored.keys())))


def from_rows(rows: Sequence[Row]) -> list[MemoryEntry]:
    """Return the entries in the rows of one SQL statement, in the same order. Raises `StoreDamaged` like `from_row`."""
    getters = _getters(tuple(rows[0].keys())) if rows else None
    return [_entry(row, *getters) for row in rows] if getters else []


def _entry(stored: Row, fields: _Getter, checked: _Getter) -> MemoryEntry:
    """Return the entry of a row; see `from_row`. `fields` and `checked` read values of the row; see `_getters`."""
    row = tuple(stored)
    *values, checksum = checked(row)
    if checksum is not None and checksums.of_values(values) != checksum:
        raise checksums.damage_error(checksums.entry_name(stored["id"]))
    try:
        if checksum is None and any(isinstance(value, bytes) for value in values):
            raise TypeError("bytes instead of a text")  # damage of a page can also remove the checksum
        return _decode([*fields(row)], stored)
    except _UNDECODABLE as error:
        raise undecodable(checksums.entry_name(stored["id"]), error) from error


def _decode(values: list[Any], stored: Row) -> MemoryEntry:
    """Return the entry with these stored values, which are in the order of its fields. The list is changed in place."""
    for index in _TIME_INDEXES:
        if values[index] is not None:
            values[index] = _cached_moment(values[index])
    values[_METADATA] = {} if values[_METADATA] == "{}" else {**decode_json(values[_METADATA])}
    links = values[_DERIVED_FROM]
    values[_DERIVED_FROM] = () if links == "[]" else tuple(Link(*pair) for pair in json.loads(links))
    if values[_SOURCE] is not None:
        values[_SOURCE] = Source(**{name: stored[column] for column, name in _SOURCE_COLUMNS.items()})
    return MemoryEntry(*values)


def decode_json(text: str) -> Any:
    """Return the value of a JSON text. This is three times faster than `json.loads` for a short text."""
    try:
        value, end = _raw_decode(text)
    except ValueError:  # spaces before the value, or no JSON
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


def undecodable(name: str, error: Exception) -> StoreDamaged:
    """Return the error for data that cannot be decoded. `name` is the name of the data. The error does not show the
    values, which may be private."""
    return checksums.damage_error(name, f"it cannot be decoded ({type(error).__name__})")


@lru_cache(maxsize=16)
def _getters(columns: tuple[str, ...]) -> tuple[_Getter, _Getter]:
    """Return two functions that read a row with these columns. The first function returns the values of the entry's
    fields in order. The second function returns the values that the checksum covers, followed by the checksum itself.
    The functions read values by position, because `sqlite3.Row` searches all columns for a name."""
    position = {name: index for index, name in enumerate(columns)}
    fields = itemgetter(*(position["document_id" if name == "source" else name] for name in _FIELDS))
    return fields, itemgetter(*(position[name] for name in (*CHECKED, "checksum")))


def former_id(stored: Row) -> str:
    """Return the id of the entry of which a row of the table `history` contains a former version. Raises `StoreDamaged`
    if the row cannot be decoded."""
    try:
        return str(json.loads(stored["state"])["id"])
    except _UNDECODABLE as error:
        raise undecodable("a former version", error) from error


def from_state(stored: Row, entry_id: str) -> MemoryEntry:
    """Return the former version of the entry `entry_id` that a row of the table `history` contains. Raises
    `StoreDamaged` if the row is damaged or belongs to another entry."""
    name = f"a former version of {checksums.entry_name(entry_id)}"
    checksum = stored["checksum"]
    if checksum is not None and checksums.of_text(stored["state"], stored["entry"], stored["version"]) != checksum:
        raise checksums.damage_error(name)
    try:
        state = entry_from_json(json.loads(stored["state"]))
    except _UNDECODABLE as error:
        raise undecodable(name, error) from error
    if state.id != entry_id:
        raise checksums.damage_error(name, "it belongs to another entry")
    return state
