"""The head of a container: one item that orders all transactions of all nodes.

A transaction of several items is atomic, although Cosmos DB has no transactions over partitions:

1. A node writes a random id, its right to write, into the head, so that other writers wait.
2. It writes all changes of the transaction into the head in one conditional replacement. (Long changes are first
   written into separate items, which the head then names.) This replacement is the commit. It fails if another node
   has taken the right to write in the meantime.
3. It writes the changed items, and removes the changes from the head.

If the node dies before the commit, nothing has changed. If it dies later, the changes are in the head: readers apply
them from there, and the next writer finishes the third step. The third step replaces an item only by a newer one, so
it can be repeated. Even a slow node that other nodes considered dead may repeat it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agentformer.errors import StoreBusy, StoreDamaged, StoreError
from agentformer.memory.backends.cosmos_db.container import Changed, Container, Exists
from agentformer.memory.backends.cosmos_db.items import CONTROL, PARTITION_KEY, Item, item_bytes
from agentformer.types import new_id

log = logging.getLogger("agentformer")

FORMAT = 2  # 2: with the validity of entries; a container of format 1 is read too, and written in format 2
LEASE_SECONDS = 15.0  # a writer that has not changed the head for this time is considered dead
BUSY_SECONDS = 60.0  # time that a writer waits for other writers
_INLINE_BYTES = 1_000_000  # longer changes are written into further items
_PAUSES = (0.002, 0.05)  # seconds between two reads of the head while another node writes, chosen at random
_THREADS = 8
_TRIES = 4
_HEAD = "head"
_STORED = ("store", "last", "commit", "writer", "beat", "parts")  # fields of a head, stored as they are


@dataclass(frozen=True, slots=True)
class Change:
    """One item to write. `fresh` is True if the container has no item with this id in this partition."""

    item: Item
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """The item that orders all transactions of a container. `last` is the number of the last transaction, and `commit`
    is its random id. `changes` are its changes; they stay here until they are written to the items of the container. If
    they are too long for the head, separate items contain them, and `parts` is the number of these items. `writer` is
    the random id of the `Writer` that has the right to write, or "" if there is none. `beat` grows each time this right
    is renewed. `sequences` is explained in `Writer.commit`."""

    store: str
    last: int = 0
    commit: str = ""
    writer: str = ""
    beat: int = 0
    changes: tuple[Change, ...] = ()
    parts: int = 0
    sequences: Mapping[str, int] = field(default_factory=dict)
    etag: str = ""

    @property
    def unfinished(self) -> bool:
        return bool(self.changes or self.parts)

    def to_item(self) -> Item:
        """Return the head in the form in which the container stores it."""
        return {
            "id": _HEAD,
            PARTITION_KEY: CONTROL,
            "type": "head",
            "format": FORMAT,
            **{name: getattr(self, name) for name in _STORED},
            "changes": _packed(self.changes),
            "sequences": dict(self.sequences),
        }

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Head:
        """Return the head that an item contains. Raises `StoreError` if another version of AgentFormer, with another
        format, wrote the container."""
        if item.get("format") not in (1, FORMAT):
            raise StoreError("another version of agentformer wrote this container; use the newest version on all nodes")
        values = {name: item[name] for name in (*_STORED, "sequences")}
        return cls(**values, changes=_unpacked(item["changes"]), etag=item["_etag"])


class Heads:
    """Reads and changes the head of a container. Thread-safe."""

    def __init__(self, container: Container) -> None:
        self._container = container
        try:
            container.create(Head(new_id()).to_item())
        except Exists:
            self.read()

    def read(self) -> Head:
        """Return the current head. Raises `StoreError` if the container was deleted."""
        item = self._container.read(_HEAD, CONTROL)
        if item is None:
            raise StoreError(f"the container at {self._container.name} was deleted; open the memory again")
        return Head.from_item(item)

    def acquire(self) -> Writer:
        """Wait for other writers, and return a `Writer`. A transaction of a dead writer is finished first. Raises
        `StoreBusy` if other writers write for too long."""
        started = seen_at = time.monotonic()
        seen = ""
        while True:
            head = self.read()
            now = time.monotonic()
            if head.etag != seen:
                seen, seen_at = head.etag, now
            if not head.writer or now - seen_at > LEASE_SECONDS:
                try:
                    writer = Writer(self, swap(self._container, head, writer=new_id(), beat=head.beat + 1))
                except Changed:
                    continue
                try:
                    writer.finish()
                    if head.writer:
                        self._delete_orphans()
                except BaseException:
                    writer.release()
                    raise
                return writer
            if now - started > BUSY_SECONDS:
                raise StoreBusy(f"other nodes have written to {self._container.name} for too long; repeat the call")
            time.sleep(random.uniform(*_PAUSES))  # noqa: S311 - not a secret

    def _delete_orphans(self) -> None:
        """Delete the separate items with changes that a writer has stored before it died. The commit of these changes
        is missing, so they are not part of any transaction."""
        for part in self._container.query("SELECT c.id FROM c WHERE c.type = 'intent'"):
            self._container.delete(part["id"], CONTROL)

    def pending_changes(self, head: Head) -> Sequence[Change] | None:
        """Return the changes of the last transaction. Some or all of these changes may not be in the items of the
        container yet. A large transaction keeps its changes in further items, not in the head. Return None if one
        of these is missing, usually because another writer has finished the transaction meanwhile."""
        changes = list(head.changes)
        for number in range(head.parts):
            rows = self._container.query(
                f"SELECT * FROM c WHERE c.{PARTITION_KEY} = @partition AND c.id = @id",
                partition=CONTROL,
                id=_part_id(head.commit, number),
            )
            part = next(iter(rows), None)
            if part is None:
                return None
            changes += _unpacked(part["changes"])
        return changes


class Writer:
    """The exclusive right to write to a container, until `release`. A thread renews the right, so that other nodes do
    not consider the writer of a long transaction dead."""

    def __init__(self, heads: Heads, head: Head) -> None:
        self._heads = heads
        self._container = heads._container
        self.head = head
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._renew, name="agentformer-cosmos", daemon=True)
        self._beats.start()

    def commit(self, changes: Sequence[Change], sequences: Mapping[str, int]) -> None:
        """Commit a transaction with these changes. `sequences` contains the highest row numbers that the tables
        `entries` and `windows` have ever used. The caller must call `finish` afterwards. Raises `StoreBusy` if another
        node has taken the right to write; nothing has changed then. If the connection is lost during the commit, the
        head is read to find out whether the commit succeeded. Raises `StoreError` if the head cannot be read."""
        commit, inline, parts = new_id(), tuple(changes), 0
        if item_bytes(_packed(changes)) > _INLINE_BYTES:
            inline, parts = (), self._write_parts(commit, changes)
        values = {"last": self.head.last + 1, "commit": commit, "changes": inline, "parts": parts}
        with self._lock:
            try:
                self.head = swap(self._container, self.head, **values, sequences=dict(sequences))
            except (Changed, StoreError) as error:
                self.head = self._decided(commit, error)

    def _decided(self, commit: str, error: Exception) -> Head:
        """Find out whether the commit with the id `commit` succeeded although its request failed with `error`, and
        return the current head if it did. Raises `StoreBusy` if another node has taken the right to write, `StoreError`
        if the head cannot be read, and otherwise `error`."""
        try:
            head = self._heads.read()
        except StoreError as unreachable:
            raise StoreError(
                "the connection to Cosmos DB was lost at the moment of the commit; the change may be stored; read the "
                "entry again before you repeat the call"
            ) from unreachable
        if head.commit == commit:
            return head
        if isinstance(error, Changed):
            raise StoreBusy(
                "another node has taken the right to write, because this write took too long; repeat the call"
            ) from None
        raise error

    def finish(self) -> None:
        """Write the items of a committed transaction, and remove the changes from the head."""
        if not self.head.unfinished:
            return
        changes = self._heads.pending_changes(self.head)
        if changes is None:
            problem = "a part of the last transaction is missing; restore a backup of the container"
            raise StoreDamaged(f"the container at {self._container.name} is damaged: {problem}")
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(partial(_put_patiently, self._container), changes))
        parts, commit = self.head.parts, self.head.commit
        with self._lock:
            self.head = swap(self._container, self.head, changes=(), parts=0)
        for number in range(parts):
            self._container.delete(_part_id(commit, number), CONTROL)

    def release(self) -> None:
        """Release the right to write. An error is only logged: other nodes can write after `LEASE_SECONDS`."""
        self._ended.set()
        with self._lock:
            try:
                if self.head.unfinished:
                    return  # the next writer finishes the transaction
                self.head = swap(self._container, self.head, writer="")
            except (Changed, StoreError) as error:
                log.warning(
                    "The right to write to Cosmos DB was not released, so the next write waits %s s: %s",
                    LEASE_SECONDS,
                    error,
                )

    def _renew(self) -> None:
        """Renew the right to write until `release`, or until another node has it. After other errors, try again."""
        while not self._ended.wait(LEASE_SECONDS / 3):
            with self._lock:
                if self._ended.is_set():
                    return
                try:
                    self.head = swap(self._container, self.head, beat=self.head.beat + 1)
                except (Changed, StoreError) as error:
                    log.warning(
                        "This write to Cosmos DB could not extend its lock, so another node may take over: %s", error
                    )
                    if isinstance(error, Changed):
                        return

    def _write_parts(self, commit: str, changes: Sequence[Change]) -> int:
        """Write the changes into separate items of limited size, and return the number of these items."""
        groups: list[list[Change]] = []
        size = _INLINE_BYTES  # so that the first change begins a group
        for change in changes:
            length = item_bytes(change.item)
            if size + length > _INLINE_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(change)
            size += length
        for number, group in enumerate(groups):
            values = {"id": _part_id(commit, number), PARTITION_KEY: CONTROL, "type": "intent"}
            self._container.create({**values, "changes": _packed(group)})
        return len(groups)


def swap(container: Container, head: Head, **values: Any) -> Head:
    """Change values of the head, and return the new head. Raises `Changed` if another node has changed it."""
    new = replace(head, **values)
    return replace(new, etag=container.replace(new.to_item(), head.etag)["_etag"])


def put(container: Container, change: Change) -> None:
    """Write an item, unless the container has a newer version of this item."""
    item, fresh = change.item, change.fresh
    while True:
        if fresh:
            try:
                container.create(item)
                return
            except Exists:
                fresh = False
        stored = container.read(item["id"], item[PARTITION_KEY])
        if stored is None:
            fresh = True
            continue
        if stored["seq"] >= item["seq"]:
            return
        try:
            container.replace(item, stored["_etag"])
            return
        except Changed:
            continue


def _put_patiently(container: Container, change: Change) -> None:
    for attempt in range(_TRIES):
        try:
            put(container, change)
            return
        except StoreError:
            if attempt == _TRIES - 1:
                raise
            time.sleep(0.1 * 2**attempt)


def _part_id(commit: str, number: int) -> str:
    return f"intent-{commit}-{number}"


def _packed(changes: Sequence[Change]) -> list[Item]:
    return [{"item": change.item, "fresh": change.fresh} for change in changes]


def _unpacked(changes: Sequence[Mapping[str, Any]]) -> tuple[Change, ...]:
    return tuple(Change(change["item"], change["fresh"]) for change in changes)
