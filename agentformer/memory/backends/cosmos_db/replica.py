"""The local copy of a container: a SQLite database with all records of the container. It is a cache. A transaction is
committed in the container before it is committed in the local copy, and a read first applies the transactions of other
nodes."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import StoreError
from agentformer.memory.backends.cosmos_db.container import Container
from agentformer.memory.backends.cosmos_db.head import Change, Head, Heads, Writer
from agentformer.memory.backends.cosmos_db.items import (
    CONDITIONS,
    KEYS,
    LOCAL_META,
    QUEUES,
    TABLES,
    RowKey,
    decode,
    gone_item,
    key_of,
    read_item,
)
from agentformer.records import change_feed
from agentformer.records.integrity import checksums
from agentformer.records.integrity.file_guard import GuardedConnection
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import Database
from agentformer.records.vectors import delete_unused_vectors
from agentformer.types import Check

log = logging.getLogger("agentformer")

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS replica_state (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS replica_items (id TEXT PRIMARY KEY, partition TEXT NOT NULL, change INTEGER NOT NULL)",
)
_SEQUENCES = ("entries", "windows")
_FEED = "SELECT * FROM c WHERE c.seq > @since"
_ORDER = ("window", "history", "entry", "lease", "absent", "meta", "space")  # rows before those to which they refer


def _triggers() -> Iterator[str]:
    """Yield SQL statements for triggers, which record the keys of all rows that a connection changes. The triggers are
    temporary, so that a copy of the database file does not contain them."""
    # the table has no key, because a statement with a conflict clause would apply this clause to the table
    yield "CREATE TEMP TABLE IF NOT EXISTS dirty (type TEXT, key TEXT)"
    insert = "INSERT INTO dirty SELECT '{kind}', json_array({values}){where};"
    trigger = "CREATE TEMP TRIGGER IF NOT EXISTS dirty_{name} AFTER {event} ON main.{table} BEGIN {body} END"
    for kind, table in TABLES.items():
        for event, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
            local = ", ".join(repr(key) for key in (*LOCAL_META, *(["erasure_due"] if event == "DELETE" else [])))
            where = f" WHERE {row}.key NOT IN ({local})" if kind == "meta" else ""
            body = insert.format(kind=kind, values=", ".join(f"{row}.{name}" for name in KEYS[kind]), where=where)
            yield trigger.format(name=f"{table}_{event}", event=event, table=table, body=body)
    for table, kind in (("pending", "entry"), ("moving", "entry"), ("changes", "change")):
        for event, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
            body = insert.format(kind=kind, values=f"{row}.entry", where="")
            yield trigger.format(name=f"{table}_{event}", event=event, table=table, body=body)
    moved = "".join(
        f"INSERT INTO dirty SELECT '{kind}', json_array({', '.join(KEYS[kind])}) FROM {TABLES[kind]} "
        "WHERE entry = new.num;"
        for kind in ("history", "window")
    )
    event = "UPDATE OF namespace"
    yield trigger.format(name="moved", event=event, table="entries", body=moved)


class _Known(NamedTuple):
    """The last transaction that is in the local copy. If the head has the same values, the copy is up to date."""

    store: str = ""
    last: int = 0
    commit: str = ""


class ReplicaDatabase(Database):
    """A `Database` whose transactions are committed in a container first. Several threads, processes and nodes may
    write; one of them writes at a time."""

    def __init__(self, path: Path, container: Container, heads: Heads, *, searched: bool = False) -> None:
        """If `searched` is True, written items also get the fields for the mode `server`."""
        self._searched = searched
        self._container = container
        self._heads = heads
        self._mutex = threading.RLock()
        self._known = _Known()
        self.erasures = False  # True if another node removed a scope since the last check
        super().__init__(path, keeps_copy=False)  # the container has all that the replica has
        with super().writing() as connection:
            for statement in _SCHEMA:
                connection.execute(statement)
        self.refresh()

    def refresh(self) -> None:
        """Apply the transactions of other nodes. Raises `StoreError` if the container cannot be reached."""
        with self._mutex:
            head = self._heads.read()
            if self._known != _known(head):
                self._follow(head)

    @contextmanager
    def writing(self) -> Iterator[SqliteConnection]:
        """Yield a connection in a transaction. No other node writes at the same time. At the end of the context, the
        transaction is committed in the container, and then in the local copy.

        After an error before the commit in the container, nothing has changed. If only the local commit fails, the
        error is raised although the transaction is stored: the next access applies it to the local copy. If the
        connection is lost during the commit, the transaction may be stored (see `Writer.commit`)."""
        with self._writer() as writer:
            try:
                with super().writing() as connection:
                    yield connection
                    self._commit(connection, writer)
                self._known = _known(writer.head)
            finally:
                _finish(writer)

    @contextmanager
    def _writer(self) -> Iterator[Writer]:
        """Yield the right to write, after the transactions of other nodes were applied."""
        with self._mutex:
            writer = self._heads.acquire()
            try:
                if self._known != _known(writer.head):
                    self._follow(writer.head)
                yield writer
            finally:
                writer.release()

    def write_copy(self, path: Path) -> None:
        """Write a copy of the database to the new file `path`. The backend `faiss` can open the copy."""
        self.refresh()
        super().write_copy(path)
        with closing(sqlite3.connect(path)) as connection:
            for table in ("replica_state", "replica_items"):
                connection.execute(f"DROP TABLE {table}")
            connection.commit()

    @property
    def last(self) -> int:
        """The number of the last transaction that the local copy has."""
        return self._known.last

    def compare(self) -> Check:
        """Compare the item ids of the local copy with those of the container. Other nodes cannot write meanwhile."""
        query = "SELECT c.id, c.pk FROM c WHERE c.seq > 0 AND c.type != 'gone'"
        with self._writer():
            stored = {(item["id"], item["pk"]) for item in self._container.query(query)}
            with super().reading() as connection:
                rows = connection.execute("SELECT id, partition FROM replica_items").fetchall()
        local = {(row[0], row[1]) for row in rows}
        findings = [f"the local copy lacks item {item_id}; delete the copy's folder" for item_id, _ in stored - local]
        findings += [f"the container lacks item {item_id}; delete the copy's folder" for item_id, _ in local - stored]
        asked = "the local copy and the container have the same items"
        return Check("container", asked, len(stored | local), len(findings), findings=tuple(sorted(findings)[:10]))

    def _connect(self, *, check: bool = False) -> GuardedConnection:
        connection = super()._connect(check=check)
        _watch(connection)
        return connection

    def _connect_first(self) -> None:
        super()._connect_first()
        for connection in self._idle:  # the tables of the triggers exist now
            _watch(connection)

    def _follow(self, head: Head) -> None:
        """Apply all transactions up to `head`, or up to a later one. After an error, none of them is applied."""
        with super().writing() as connection:
            known = _read_state(connection)
            if known == _known(head):
                self._known = known  # another process with the same folder has already applied them
                return
            lost = known.store != head.store or known.last > head.last
            if lost or (known.last == head.last and known.commit != head.commit):
                _clear(connection)
                known = _Known()
            following, since = Following(connection, known.last), known.last
            while True:
                following.add(self._container.query(_FEED, since=since))
                changes = self._heads.pending_changes(head)
                following.add(change.item for change in changes or ())
                again = self._heads.read()
                if changes is not None and _known(again) == _known(head):
                    break
                since, head = (head.last if changes is not None else since), again
            following.finish(head.sequences)
            connection.execute("DELETE FROM dirty")
            _write_state(connection, _known(head))
            self.erasures |= following.erasures
        self._known = _known(head)

    def _commit(self, connection: SqliteConnection, writer: Writer) -> None:
        changes = list(_changes(connection, writer.head.last + 1, searched=self._searched))
        connection.execute("DELETE FROM dirty")
        if not changes:
            return
        query = "SELECT name, seq FROM sqlite_sequence"
        sequences = {row[0]: row[1] for row in connection.execute(query) if row[0] in _SEQUENCES}
        writer.commit(changes, sequences)
        _write_state(connection, _known(writer.head))


def _watch(connection: SqliteConnection) -> None:
    """Make the connection record the keys of all rows that it changes (see `_triggers`). Do nothing if the database has
    no tables yet."""
    query = "SELECT count(*) FROM sqlite_master WHERE name = 'absent_documents'"
    if connection.execute(query).fetchone()[0]:
        for statement in _triggers():
            connection.execute(statement)


def _known(head: Head) -> _Known:
    return _Known(head.store, head.last, head.commit)


def _finish(writer: Writer) -> None:
    """Write the items of the committed transaction. An error is only logged: the transaction is already committed in
    the head, and the next writer writes its items."""
    try:
        writer.finish()
    except StoreError as error:
        log.warning("Items of a committed write are missing; the next write to Cosmos DB writes them: %s", error)


def _changes(connection: SqliteConnection, seq: int, *, searched: bool) -> Iterator[Change]:
    """Yield the items of all rows that the transaction has changed. If `searched` is True, the items of the windows of
    a changed entry are included, because they contain fields of the entry."""
    keys: dict[RowKey, None] = {}
    changed = set()
    for kind, text in connection.execute("SELECT DISTINCT type, key FROM dirty ORDER BY type, key").fetchall():
        values = tuple(json.loads(text))
        if kind == "change":
            changed.add(values[0])
        keys[RowKey("entry" if kind == "change" else kind, values)] = None
    if searched:
        for num in changed:
            windows = connection.execute("SELECT id FROM windows WHERE entry = ?", [num]).fetchall()
            keys.update((RowKey("window", (row[0],)), None) for row in windows)
    for key in keys:
        row = connection.execute("SELECT partition, change FROM replica_items WHERE id = ?", [key.item_id]).fetchone()
        partition, change = (row[0], row[1]) if row else (None, 0)
        if key.type == "entry" and key.values[0] in changed:
            change = seq
        item = read_item(connection, key, seq, change, searched=searched)
        if partition is not None and (item is None or item["pk"] != partition):
            yield Change(gone_item(key, partition, seq, change))
        if item is None:
            connection.execute("DELETE FROM replica_items WHERE id = ?", [key.item_id])
            continue
        values = (item["id"], item["pk"], change)
        connection.execute("INSERT OR REPLACE INTO replica_items VALUES (?, ?, ?)", values)
        yield Change(item, fresh=item["pk"] != partition)


def _clear(connection: SqliteConnection) -> None:
    """Delete all rows of the local copy, because the container was replaced by another one or by an older one."""
    change_feed.append(connection, [row[0] for row in connection.execute("SELECT num FROM entries").fetchall()])
    for table in ("windows", "vectors", "entries", "spaces", "leases", "absent_documents", "replica_items"):
        connection.execute(f"DELETE FROM {table}")
    marks = ", ".join("?" * len(LOCAL_META))
    connection.execute(f"DELETE FROM meta WHERE key NOT IN ({marks})", LOCAL_META)


def _read_state(connection: SqliteConnection) -> _Known:
    rows: Mapping[str, str] = dict(connection.execute("SELECT key, value FROM replica_state").fetchall())
    return _Known(rows["store"], int(rows["last"]), rows["commit"]) if rows else _Known()


def _write_state(connection: SqliteConnection, known: _Known) -> None:
    rows = [(name, str(value)) for name, value in known._asdict().items()]
    connection.executemany("INSERT OR REPLACE INTO replica_state VALUES (?, ?)", rows)


class Following:
    """Applies items of the container to the local copy. The items may come in any order and more than once, because
    other nodes may write at the same time. The caller must call `finish` after the last item. `since` is the number of
    the last transaction in the copy."""

    def __init__(self, connection: SqliteConnection, since: int) -> None:
        self._connection = connection
        self._since = since
        self._present: dict[str, int] = {}  # item id -> the newest transaction in which the item exists
        self._gone: dict[str, tuple[int, RowKey]] = {}  # item id -> the newest transaction that deleted it, and its row
        self._spaces: dict[str, Mapping[str, Any]] = {}  # item id -> the row of an embedding space
        self._changed: dict[int, None] = {}  # numbers of entries whose indexed data changed
        self._vectors: set[int] = set()  # ids of vectors that may be unused now
        connection.execute("PRAGMA defer_foreign_keys = ON")

    @property
    def erasures(self) -> bool:
        """True if another node has removed all entries of a scope. The index files of this node must then be deleted,
        because they may contain the removed text."""
        return any(item_id == RowKey("meta", ("erasure_due",)).item_id for item_id in self._present)

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Apply items of the container, except the embedding spaces and the deletions, which `finish` applies: items
        come in any order, and a later one may contain the row again. `items.read_item` explains `seq` and `change`."""
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
        """Apply the deletions and the embedding spaces, and add all changed entries to the local change feed, so that
        the indexes apply them. `sequences` maps each table to the highest row number that it has ever used, so that no
        node uses a number again."""
        gone = [(item_id, key) for item_id, (seq, key) in self._gone.items() if self._present.get(item_id, 0) < seq]
        for item_id, key in sorted(gone, key=lambda pair: _ORDER.index(pair[1].type)):
            self._delete(key)
            self._connection.execute("DELETE FROM replica_items WHERE id = ?", [item_id])
        numbers = [(row["id"],) for row in self._spaces.values()]  # at most one may be active at a time
        self._connection.executemany("UPDATE spaces SET active = 0, building = 0 WHERE id = ?", numbers)
        for row in self._spaces.values():
            self._insert("INSERT INTO spaces", row, _update("id", row))
        delete_unused_vectors(self._connection, self._vectors)
        change_feed.append(self._connection, self._changed)
        for table, number in sequences.items():
            statement = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?"
            if not self._connection.execute(statement, [number, table]).rowcount:
                self._connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", [table, number])

    def _put(self, key: RowKey, item: Mapping[str, Any]) -> None:
        row = {name: decode(value) for name, value in item["row"].items()}
        if key.type == "space":
            self._spaces[item["id"]] = row  # `finish` stores it
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

    def _put_window(self, row: Mapping[str, Any], text_hash: bytes, data: bytes) -> None:
        self._forget_window(row["id"])
        self._connection.execute(
            "INSERT OR IGNORE INTO vectors (space, hash, data, checksum) VALUES (?, ?, ?, ?)",
            [row["space"], text_hash, data, *checksums.of_vectors(data, 1)],
        )
        query = "SELECT id FROM vectors WHERE space = ? AND hash = ?"
        (vector_id,) = self._connection.execute(query, [row["space"], text_hash]).fetchone()
        values = [row["space"], row["entry"], row["span_start"], row["span_end"], vector_id]
        self._insert("INSERT INTO windows", {**row, "vector": vector_id, "checksum": checksums.of_values(values)})

    def _forget_window(self, number: int) -> None:
        rows = self._connection.execute("SELECT vector FROM windows WHERE id = ?", [number]).fetchall()
        self._vectors.update(row[0] for row in rows)
        self._connection.execute("DELETE FROM windows WHERE id = ?", [number])

    def _delete(self, key: RowKey) -> None:
        if key.type == "window":
            self._forget_window(key.values[0])
        elif key.type == "space":
            self._connection.execute("DELETE FROM windows WHERE space = ?", key.values)
            self._connection.execute("DELETE FROM vectors WHERE space = ?", key.values)
        elif key.type == "entry":
            query = "SELECT vector FROM windows WHERE entry = ?"
            self._vectors.update(row[0] for row in self._connection.execute(query, key.values))
        self._connection.execute(f"DELETE FROM {TABLES[key.type]} WHERE {CONDITIONS[key.type]}", key.values)


def _update(key: str, row: Mapping[str, Any]) -> str:
    """Return the SQL clause that overwrites a row. `INSERT OR REPLACE` would also delete the rows that refer to it."""
    return f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in row if name != key)}"
