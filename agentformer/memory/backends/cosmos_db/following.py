"""Applies items of the container to the local copy, inside one SQLite transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from agentformer.memory.backends.cosmos_db.items import QUEUES, TABLES, RowKey, decode, key_of
from agentformer.records import change_feed
from agentformer.records.integrity import checksums
from agentformer.records.vectors import delete_unused_vectors

_ORDER = ("window", "history", "entry", "lease", "absent", "meta", "space")  # parts are deleted before their wholes
_CONDITIONS = {
    "window": "id = ?",
    "history": "entry = ? AND version = ?",
    "entry": "num = ?",
    "lease": "name = ?",
    "absent": "id = ?",
    "meta": "key = ?",
    "space": "id = ?",
}


class Following:
    """Applies items in any order, and some of them more than once, if they are read while writers work. `finish` must
    be called last. `since` is the number of the last transaction that the local copy has."""

    def __init__(self, connection: sqlite3.Connection, since: int) -> None:
        self._connection = connection
        self._since = since
        self._present: dict[str, int] = {}  # item id -> the newest transaction in which the item exists
        self._gone: dict[str, tuple[int, RowKey]] = {}
        self._spaces: dict[str, Mapping[str, Any]] = {}
        self._changed: dict[int, None] = {}
        self._vectors: set[int] = set()
        connection.execute("PRAGMA defer_foreign_keys = ON")

    @property
    def erasures(self) -> bool:
        """True if another node has removed a scope, so that the index files must be deleted here, too."""
        return any(item_id == RowKey("meta", ("erasure_due",)).item_id for item_id in self._present)

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Apply items."""
        for item in items:
            key, seq = key_of(item), item["seq"]
            if item.get("change", 0) > self._since and key.type == "entry":
                self._changed[key.values[0]] = None
            if item["type"] == "gone":
                if seq > self._gone.get(item["id"], (0, key))[0]:
                    self._gone[item["id"]] = (seq, key)
                continue
            if seq < self._present.get(item["id"], 0):
                continue
            self._present[item["id"]] = seq
            self._put(key, item)
            self._connection.execute(
                "INSERT OR REPLACE INTO replica_items VALUES (?, ?, ?)",
                [item["id"], item["pk"], item.get("change", 0)],
            )

    def finish(self, sequences: Mapping[str, int]) -> None:
        """Apply the deletions and the embedding spaces, and add all changed entries to the change feed."""
        gone = [(item_id, key) for item_id, (seq, key) in self._gone.items() if self._present.get(item_id, 0) < seq]
        for item_id, key in sorted(gone, key=lambda pair: _ORDER.index(pair[1].type)):
            self._delete(key)
            self._connection.execute("DELETE FROM replica_items WHERE id = ?", [item_id])
        self._put_spaces()
        delete_unused_vectors(self._connection, self._vectors)
        change_feed.append(self._connection, self._changed)
        for table, number in sequences.items():
            statement = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?"
            if not self._connection.execute(statement, [number, table]).rowcount:
                self._connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", [table, number])

    def _put(self, key: RowKey, item: Mapping[str, Any]) -> None:
        row = {name: decode(value) for name, value in item["row"].items()}
        if key.type == "space":
            self._spaces[item["id"]] = row
        elif key.type == "entry":
            self._put_entry(row, item)
        elif key.type == "window":
            self._put_window(row, decode(item["hash"]), decode(item["vector"]))
        else:
            self._insert(f"INSERT OR REPLACE INTO {TABLES[key.type]}", row)

    def _insert(self, start: str, row: Mapping[str, Any], end: str = "") -> None:
        marks = ", ".join("?" * len(row))
        self._connection.execute(f"{start} ({', '.join(row)}) VALUES ({marks}) {end}", list(row.values()))

    def _put_entry(self, row: Mapping[str, Any], item: Mapping[str, Any]) -> None:
        num = row["num"]
        self._connection.execute("DELETE FROM entries WHERE id = ? AND num != ?", [row["id"], num])
        self._insert("INSERT INTO entries", row, _update("num", row))
        for queue in QUEUES:
            self._connection.execute(f"DELETE FROM {queue} WHERE entry = ?", [num])
            if item[queue] is not None:
                values = {name: decode(value) for name, value in item[queue].items()}
                self._insert(f"INSERT INTO {queue}", {"entry": num, **values})

    def _put_window(self, row: Mapping[str, Any], text: bytes, data: bytes) -> None:
        self._forget_window(row["id"])
        self._connection.execute(
            "INSERT OR IGNORE INTO vectors (space, hash, data, checksum) VALUES (?, ?, ?, ?)",
            [row["space"], text, data, *checksums.of_vectors(data, 1)],
        )
        query = "SELECT id FROM vectors WHERE space = ? AND hash = ?"
        (vector,) = self._connection.execute(query, [row["space"], text]).fetchone()
        values = [row["space"], row["entry"], row["span_start"], row["span_end"], vector]
        self._insert("INSERT INTO windows", {**row, "vector": vector, "checksum": checksums.of_values(values)})

    def _forget_window(self, number: int) -> None:
        rows = self._connection.execute("SELECT vector FROM windows WHERE id = ?", [number]).fetchall()
        self._vectors.update(row[0] for row in rows)
        self._connection.execute("DELETE FROM windows WHERE id = ?", [number])

    def _put_spaces(self) -> None:
        numbers = [(row["id"],) for row in self._spaces.values()]
        self._connection.executemany("UPDATE spaces SET active = 0, building = 0 WHERE id = ?", numbers)
        for row in self._spaces.values():
            self._insert("INSERT INTO spaces", row, _update("id", row))

    def _delete(self, key: RowKey) -> None:
        if key.type == "window":
            self._forget_window(key.values[0])
        elif key.type == "space":
            self._connection.execute("DELETE FROM windows WHERE space = ?", key.values)
            self._connection.execute("DELETE FROM vectors WHERE space = ?", key.values)
        elif key.type == "entry":
            query = "SELECT vector FROM windows WHERE entry = ?"
            self._vectors.update(row[0] for row in self._connection.execute(query, key.values))
        self._connection.execute(f"DELETE FROM {TABLES[key.type]} WHERE {_CONDITIONS[key.type]}", key.values)


def _update(key: str, row: Mapping[str, Any]) -> str:
    """Return the clause that overwrites a row. `INSERT OR REPLACE` would also delete the rows that refer to the row."""
    return f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in row if name != key)}"
