"""Every stored row held against its checksum, without an error for one that is damaged: that is what is told.

Rows of a former version have no checksum; they are only decoded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from agentformer.errors import StoreDamaged
from agentformer.records.codec import from_row, from_state
from agentformer.records.integrity import checksums as crc
from agentformer.records.meta import check_fact
from agentformer.records.spaces import described
from agentformer.records.vectors import vector_damage, window_damage

_PAGE = 500  # rows read at a time
_MOST = 2**62  # no number is above


class Damaged(NamedTuple):
    """A row that is not what was written, or all rows of a range of numbers, which cannot be read."""

    table: str
    num: int  # of an entry, a vector, a space; in `history` that of the entry
    last: int  # the last number of a range; `num` for one row
    name: str  # the entry's id, the key of a meta value; "" where it is not known
    why: str  # in words


def damaged_entries(connection: sqlite3.Connection) -> Iterator[Damaged]:
    """Entries that are not what was written, in order of number."""
    for row in rows(connection, "entries", "num"):
        if isinstance(row, Damaged):
            yield row
            continue
        try:
            from_row(row)
            _check_texts(row)
        except StoreDamaged as error:
            name = row["id"] if crc.entry_name(row["id"]).endswith(f" {row['id']}") else ""
            yield Damaged("entries", row["num"], row["num"], name, str(error))


def damaged_history(connection: sqlite3.Connection) -> Iterator[Damaged]:
    """Former versions that are not what was written, in order of the entry's number."""
    ids = "SELECT id FROM entries WHERE num = ?"
    for row in rows(connection, "history", "entry", "version"):
        if isinstance(row, Damaged):
            yield row
            continue
        num = row["entry"]
        try:
            found = connection.execute(ids, [num]).fetchone()
            name = str(found[0]) if found else ""
            from_state(row, name)
        except StoreDamaged as error:
            yield Damaged("history", num, num, name, f"version {row['version']}: {error}")
        except sqlite3.DatabaseError:
            continue  # the entry cannot be read: it is among the damaged ones itself


def damaged_vectors(connection: sqlite3.Connection) -> Iterator[Damaged]:
    """Vectors that are not what was written, in order of number."""
    dimensions: dict[int, int] = {}
    for row in rows(connection, "spaces", "id"):
        if isinstance(row, Damaged):
            continue
        try:
            dimensions[row["id"]] = described(row).dimension
        except StoreDamaged:
            continue  # told by `damaged_facts`
    for row in rows(connection, "vectors", "id"):
        if isinstance(row, Damaged):
            yield row
        elif why := vector_damage(row["data"], row["checksum"], dimensions.get(row["space"])):
            yield Damaged("vectors", row["id"], row["id"], "", why)


def damaged_windows(connection: sqlite3.Connection) -> Iterator[Damaged]:
    """Windows that are not what was written, in order of number."""
    for row in rows(connection, "windows", "id"):
        if isinstance(row, Damaged):
            yield row
        elif why := window_damage(row):
            yield Damaged("windows", row["id"], row["id"], "", why)


def damaged_facts(connection: sqlite3.Connection) -> Iterator[Damaged]:
    """Descriptions of spaces and values of `meta` that are not what was written."""
    for row in rows(connection, "spaces", "id"):
        if isinstance(row, Damaged):
            yield row
            continue
        try:
            described(row)
        except StoreDamaged as error:
            yield Damaged("spaces", row["id"], row["id"], "", str(error))
    for row in _page(connection, "SELECT * FROM meta", [])[0]:
        try:
            check_fact(row)
        except StoreDamaged as error:
            yield Damaged("meta", 0, 0, str(row["key"]), str(error))


def rows(connection: sqlite3.Connection, table: str, *key: str) -> Iterator[sqlite3.Row | Damaged]:
    """All rows in order of their key, and in place of those that cannot be read the range of their numbers."""
    order = ", ".join(key)
    query = f"SELECT * FROM {table} WHERE ({order}) >= ({', '.join('?' * len(key))}) ORDER BY {order} LIMIT {_PAGE}"
    start: list[Any] = [-_MOST] * len(key)
    while True:
        found, problem = _page(connection, query, start)
        for row in found:
            place = [row[name] for name in key]
            if not all(isinstance(part, int) for part in place) or place < start:
                problem = problem or "rows out of order"
                break
            start = [*place[:-1], place[-1] + 1]
            yield row
        if not problem:
            if len(found) < _PAGE:
                return
            continue
        beyond = _readable_from(connection, table, key[0], start[0])
        yield Damaged(table, max(start[0], 1), beyond - 1, "", f"rows cannot be read: {problem}")
        if beyond >= _MOST:
            return
        start = [beyond, *[-_MOST] * (len(key) - 1)]


def _readable_from(connection: sqlite3.Connection, table: str, key: str, start: int) -> int:
    """A number above `start` from which on rows can be read again; `_MOST` for none."""
    query = f"SELECT * FROM {table} WHERE {key} >= ? ORDER BY {key} LIMIT 1"

    def readable(num: int) -> bool:
        found, problem = _page(connection, query, [num])
        return not problem and all(isinstance(row[key], int) and row[key] >= num for row in found)

    step = 1
    while not readable(start + step):
        step *= 2
        if start + step >= _MOST:
            return _MOST
    low, high = start + step // 2, start + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if readable(middle) else (middle, high)
    return high


def _page(connection: sqlite3.Connection, query: str, values: list[Any]) -> tuple[list[sqlite3.Row], str]:
    """Rows up to the first one that cannot be read, and why it cannot. A text that is not UTF-8 is read as bytes, which
    no checksum fits."""
    found: list[sqlite3.Row] = []
    strict = connection.text_factory
    connection.text_factory = _lenient
    try:
        cursor = connection.execute(query, values)
        while (row := cursor.fetchone()) is not None:
            found.append(row)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter where SQLite tells of a damaged name
        return found, str(error)
    finally:
        connection.text_factory = strict
    return found, ""


def _lenient(text: bytes) -> str | bytes:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text


def _check_texts(entry: sqlite3.Row) -> None:
    """An entry has no bytes, so those are a text that `_lenient` could not read."""
    if any(isinstance(value, bytes) for value in entry):
        raise crc.damaged(crc.entry_name(entry["id"]), "a text of it is not UTF-8")
