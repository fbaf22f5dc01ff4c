"""Conversion of rows of the local copy to items of the container, and back.

Each item contains one row: an entry (raw text, metadata, times, its place in the embedding queue), a former version of
an entry, or a window of an entry with its vector. These items are in the partition of their namespace. Rows that belong
to no namespace (embedding spaces, leases, ...) are in the partition `CONTROL`. A deleted item stays as a short mark for
`GONE_SECONDS`, so that other nodes see the deletion.
"""

from __future__ import annotations

import base64
import hashlib
import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentformer.errors import TooLarge
from agentformer.memory.backends.cosmos_db.container import CONTROL, MAX_ITEM_BYTES, PARTITION_KEY, Item, item_bytes

GONE_SECONDS = 30 * 24 * 3600
TABLES: Mapping[str, str] = {  # the types of items, and their tables
    "entry": "entries",
    "history": "history",
    "window": "windows",
    "space": "spaces",
    "lease": "leases",
    "absent": "absent_documents",
    "meta": "meta",
}
KEYS: Mapping[str, tuple[str, ...]] = {
    "entry": ("num",),
    "history": ("entry", "version"),
    "window": ("id",),
    "space": ("id",),
    "lease": ("name",),
    "absent": ("id",),
    "meta": ("key",),
}
QUEUES = ("pending", "moving")  # tables with one row for each waiting entry; their rows are a part of the entry's item
LOCAL_META = ("store_id", "former_log")  # keys of `meta` that describe the local file
_EXACT = 2**53  # JSON numbers of Cosmos DB are floats
_MAX_PARTITION_BYTES = 2_000
_RESERVE = 10_000  # bytes of the item that holds a change until it is written


class RowKey(NamedTuple):
    """The type of an item and the primary key of its row."""

    type: str
    values: tuple[Any, ...]

    @property
    def item_id(self) -> str:
        """The id of the item. Texts are hashed, because an id may not contain some characters."""
        return "-".join((self.type, *(value if isinstance(value, str) else str(value) for value in self._plain())))

    def _plain(self) -> tuple[Any, ...]:
        texts = self.type in ("lease", "absent", "meta")
        return tuple(hashlib.sha256(str(v).encode()).hexdigest() if texts else v for v in self.values)


def partition_of(namespace: str) -> str:
    """Return the partition key of a namespace. It differs from `CONTROL` for every namespace. Raises `TooLarge`."""
    partition = f"ns:{namespace}"
    if len(partition.encode("utf-8", "surrogatepass")) > _MAX_PARTITION_BYTES:
        raise TooLarge("namespace", f"Cosmos DB allows at most {_MAX_PARTITION_BYTES} bytes; choose a shorter name")
    return partition


def read_item(connection: sqlite3.Connection, key: RowKey, seq: int, change: int) -> Item | None:
    """Return the item of a row, or None if the row does not exist. `seq` is the number of the transaction, and `change`
    the number of the last transaction that changed the entry for the indexes."""
    condition = " AND ".join(f"{name} = ?" for name in KEYS[key.type])
    row = connection.execute(f"SELECT * FROM {TABLES[key.type]} WHERE {condition}", key.values).fetchone()
    if row is None:
        return None
    values = dict(row)
    more: Item = {}
    if key.type == "entry":
        more = {"change": change, **{queue: _queued(connection, queue, values["num"]) for queue in QUEUES}}
        namespace = values["namespace"]
    elif key.type in ("window", "history"):
        (namespace,) = connection.execute("SELECT namespace FROM entries WHERE num = ?", [values["entry"]]).fetchone()
    else:
        namespace = None
    if key.type == "window":
        vector = connection.execute("SELECT hash, data FROM vectors WHERE id = ?", [values.pop("vector")]).fetchone()
        more = {"hash": _encode(vector["hash"]), "vector": _encode(vector["data"])}
    item = {
        "id": key.item_id,
        PARTITION_KEY: CONTROL if namespace is None else partition_of(namespace),
        "type": key.type,
        "seq": seq,
        "row": {name: _encode(value) for name, value in values.items()},
        **({} if namespace is None else {"namespace": namespace}),
        **more,
    }
    if (size := item_bytes(item)) > MAX_ITEM_BYTES - _RESERVE:
        raise TooLarge(
            "cosmos_db",
            f"the text needs an item of {size} bytes, but Cosmos DB stores at most {MAX_ITEM_BYTES - _RESERVE}; store "
            "the text as several entries",
        )
    return item


def gone_item(key: RowKey, partition: str, seq: int, change: int) -> Item:
    """Return the mark that replaces a deleted item."""
    values = {"id": key.item_id, PARTITION_KEY: partition, "type": "gone", "seq": seq, "change": change}
    return {**values, "of": key.type, "key": [_encode(value) for value in key.values], "ttl": GONE_SECONDS}


def key_of(item: Mapping[str, Any]) -> RowKey:
    """Return the key of the row that an item contains, or of the deleted row that it marks."""
    if item["type"] == "gone":
        return RowKey(item["of"], tuple(decode(value) for value in item["key"]))
    return RowKey(item["type"], tuple(decode(item["row"][name]) for name in KEYS[item["type"]]))


def decode(value: Any) -> Any:
    """Return the value of a column from its JSON form."""
    if isinstance(value, dict):
        return base64.b64decode(value["bytes"]) if "bytes" in value else int(value["int"])
    return value


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, int) and abs(value) > _EXACT:
        return {"int": str(value)}
    return value


def _queued(connection: sqlite3.Connection, queue: str, num: int) -> Item | None:
    row = connection.execute(f"SELECT * FROM {queue} WHERE entry = ?", [num]).fetchone()
    return {name: _encode(row[name]) for name in row.keys() if name != "entry"} if row else None  # noqa: SIM118
