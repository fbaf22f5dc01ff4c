"""The items of a container: their partitions, their size, and the conversion of rows of the local copy to items and
back.

Each item contains one row: an entry (original text, metadata, times, and its row in the embedding queue), a former
version of an entry, or a window (an embedded passage) of an entry with its vector. These items are in the partition of
their namespace. Rows that belong to no namespace (embedding spaces, leases, ...) are in the partition `CONTROL`. A
deleted item is replaced by a short mark for `GONE_SECONDS`, so that other nodes see the deletion.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentformer.errors import TooLarge
from agentformer.records.sqlite.connection import SqliteConnection

Item = dict[str, Any]

PARTITION_KEY = "pk"
CONTROL = "control"  # the partition of all items that belong to no namespace
_MAX_PARTITION_BYTES = 2_000  # Cosmos DB allows 2,048
_MAX_ITEM_BYTES = 1_900_000  # the service allows 2 MB; the rest is for the fields that the service adds
GONE_SECONDS = 30 * 24 * 3600
TABLES: Mapping[str, str] = {  # type of an item -> table of its row
    "entry": "entries",
    "history": "history",
    "window": "windows",
    "space": "spaces",
    "lease": "leases",
    "absent": "absent_documents",
    "meta": "meta",
}
KEYS: Mapping[str, tuple[str, ...]] = {  # type of an item -> columns of the primary key of its row
    "entry": ("num",),
    "history": ("entry", "version"),
    "window": ("id",),
    "space": ("id",),
    "lease": ("name",),
    "absent": ("id",),
    "meta": ("key",),
}
# type of an item -> SQL condition that selects one row
CONDITIONS = {kind: " AND ".join(f"{name} = ?" for name in names) for kind, names in KEYS.items()}
QUEUES = ("pending", "moving")  # tables with a row for each waiting entry; this row is stored in the item of the entry
LOCAL_META = ("store_id", "former_log")  # keys of `meta` that describe only the local file
_EXACT = 2**53  # larger integers lose digits, because JSON numbers of Cosmos DB are floats
_RESERVE = 10_000  # bytes that the item of a change needs in addition until the change is written


class RowKey(NamedTuple):
    """The type of an item and the primary key of its row."""

    type: str
    values: tuple[Any, ...]

    @property
    def item_id(self) -> str:
        """The id of the item. Texts are hashed, because an id may not contain some characters."""
        hashed = self.type in ("lease", "absent", "meta")
        values = (hashlib.sha256(str(value).encode()).hexdigest() if hashed else str(value) for value in self.values)
        return "-".join((self.type, *values))


def read_item(
    connection: SqliteConnection, key: RowKey, seq: int, change: int, *, searched: bool = False
) -> Item | None:
    """Return the item that stores a row in the container, or None if the row does not exist. `seq` is the number of the
    transaction that writes the item. `change` is the number of the last transaction that changed indexed data of the
    row. A node that has not applied this transaction must update its indexes. If `searched` is True, the item also gets
    the fields with which Cosmos DB searches (mode `server`)."""
    query = f"SELECT * FROM {TABLES[key.type]} WHERE {CONDITIONS[key.type]}"
    row = connection.execute(query, key.values).fetchone()
    if row is None:
        return None
    values = dict(row)
    extra: Item = {}
    if key.type == "entry":
        extra = {"change": change, **{queue: _queued(connection, queue, values["num"]) for queue in QUEUES}}
        namespace = values["namespace"]
    elif key.type in ("window", "history"):
        (namespace,) = connection.execute("SELECT namespace FROM entries WHERE num = ?", [values["entry"]]).fetchone()
    else:
        namespace = None
    if key.type == "window":
        vector = connection.execute("SELECT hash, data FROM vectors WHERE id = ?", [values.pop("vector")]).fetchone()
        extra = {"hash": _encode(vector["hash"]), "vector": _encode(vector["data"])}
    if searched and namespace is not None:
        extra |= _searched(connection, key, values)
    item = {
        "id": key.item_id,
        PARTITION_KEY: CONTROL if namespace is None else partition_of(namespace),
        "type": key.type,
        "seq": seq,
        "row": {name: _encode(value) for name, value in values.items()},
        **({} if namespace is None else {"namespace": namespace}),
        **extra,
    }
    check_size(item, _RESERVE)
    return item


def _searched(connection: SqliteConnection, key: RowKey, row: Mapping[str, Any]) -> Item:
    """Return the fields that searches in the mode `server` need, for a window or for an entry without windows. Return
    {} for other rows."""
    if key.type == "history":
        return {}
    if key.type == "entry":
        query = "SELECT EXISTS (SELECT 1 FROM windows WHERE entry = ?)"
        has_window = connection.execute(query, [row["num"]]).fetchone()[0]
        return {} if has_window else _searched_fields(row, row["content"], None)
    entry = connection.execute("SELECT * FROM entries WHERE num = ?", [row["entry"]]).fetchone()
    query = "SELECT data FROM vectors WHERE id = (SELECT vector FROM windows WHERE id = ?)"
    (data,) = connection.execute(query, [row["id"]]).fetchone()
    vector = struct.unpack(f"<{len(data) // 4}f", data)
    return _searched_fields(entry, entry["content"][row["span_start"] : row["span_end"]], vector)


def _searched_fields(entry: Mapping[str, Any], passage: str, vector: Sequence[float] | None) -> Item:
    """Return the fields that Cosmos DB searches: the text and the vector of a passage, and the number and the kind of
    its entry. `entry` is the row of the entry in the table `entries`. If the entry has no passages, `passage` is its
    whole content, and `vector` is None."""
    text = "\n".join(part for part in (entry["title"], entry["context"], passage) if part)
    scope = {"num": entry["num"], "kind": entry["kind"]}
    return {"scope": scope, "text": text, **({} if vector is None else {"embedding": list(vector)})}


def gone_item(key: RowKey, partition: str, seq: int, change: int) -> Item:
    """Return the mark that replaces the item of a deleted row, so that other nodes delete their copies of the row.
    `seq` and `change` are explained in `read_item`."""
    values = {"id": key.item_id, PARTITION_KEY: partition, "type": "gone", "seq": seq, "change": change}
    return {**values, "of": key.type, "key": [_encode(value) for value in key.values], "ttl": GONE_SECONDS}


def key_of(item: Mapping[str, Any]) -> RowKey:
    """Return the key of the row that an item contains, or of the deleted row that it marks."""
    if item["type"] == "gone":
        return RowKey(item["of"], tuple(decode(value) for value in item["key"]))
    return RowKey(item["type"], tuple(decode(item["row"][name]) for name in KEYS[item["type"]]))


def decode(value: Any) -> Any:
    """Return the value of a column from its JSON form, in which bytes are Base64 and large integers are texts."""
    if isinstance(value, dict):
        return base64.b64decode(value["bytes"]) if "bytes" in value else int(value["int"])
    return value


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, int) and abs(value) > _EXACT:
        return {"int": str(value)}
    return value


def _queued(connection: SqliteConnection, queue: str, num: int) -> Item | None:
    row = connection.execute(f"SELECT * FROM {queue} WHERE entry = ?", [num]).fetchone()
    return {name: _encode(row[name]) for name in row.keys() if name != "entry"} if row else None  # noqa: SIM118


def check_size(item: Item, reserve: int = 0) -> None:
    """Raise `TooLarge` if the item is too large for Cosmos DB. The limit is reduced by `reserve` bytes."""
    if (size := item_bytes(item)) > _MAX_ITEM_BYTES - reserve:
        raise TooLarge(
            "cosmos_db",
            f"the item {item['id']} has {size} bytes; Cosmos DB stores at most {_MAX_ITEM_BYTES - reserve} bytes in "
            "one item; store the text as several entries",
        )


def item_bytes(value: Mapping[str, Any] | Sequence[Any]) -> int:
    """Return the number of bytes of a JSON value in a request."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))


def partition_of(namespace: str) -> str:
    """Return the partition key of a namespace. It differs from `CONTROL` for every namespace. Raises `TooLarge` if the
    name of the namespace is too long."""
    partition = f"ns:{namespace}"
    if len(partition.encode("utf-8", "surrogatepass")) > _MAX_PARTITION_BYTES:
        raise TooLarge("namespace", f"Cosmos DB allows at most {_MAX_PARTITION_BYTES} bytes; choose a shorter name")
    return partition
