"""The events of a store: one row for each entry that was stored, changed, learnt, superseded or removed.

A change of an entry writes its event in the same transaction, so an event is visible exactly if its change is. The
change feed cannot serve this purpose: it has one row per entry, and lists entries that only an index must read again.

An event has no text. Pages and chunks have no events, because they change with their document. The newest `KEPT`
events are kept. A cursor is the id of an event, `SEQ-TOKEN`, and stands for the place after this event. The token is
random: it shows that the database was replaced by another copy, such as a restored backup.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, get_args

from agentformer.errors import InvalidInput
from agentformer.records import trail
from agentformer.records.codec import from_micros, now_micros
from agentformer.records.fields import LEARNING
from agentformer.types import Connection, MemoryEntry, Row, common

EventType = Literal["stored", "changed", "learnt", "superseded", "removed"]
TYPES: tuple[EventType, ...] = get_args(EventType)
KEPT = 100_000
START = "0-"  # the cursor before the first event of a store
_PARTS = ("page", "chunk")
_SCANNED = 1_000  # events that are read at a time
CURSOR = r"(0|[1-9][0-9]{0,17})-([0-9a-f]{8})?"
COLUMNS = "token, type, entry, namespace, kind, tier, version, at"
OLD = f"DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - {KEPT}"
WITH_EVENTS = f"kind NOT IN ('page', 'chunk') AND (source_type IS NULL OR source_type <> '{LEARNING}')"  # of entries
_FIRST_AND_LAST = common("SELECT min(seq), max(seq) FROM events")
_TOKEN = common("SELECT token FROM events WHERE seq = ?")
_SINCE = common(f"SELECT seq, {COLUMNS} FROM events WHERE seq > ? ORDER BY seq LIMIT ?")


class Event(NamedTuple):
    """A change of an entry. `version` is the version of the entry after the change. `id` is also the cursor of the
    place after the event."""

    id: str
    type: EventType
    entry: str  # id of the entry
    namespace: str
    kind: str
    tier: str
    version: int
    at: datetime


class Page(NamedTuple):
    """Events in order of time. `next` is the cursor of the place after them. `lost` is true if events between the given
    cursor and the first event of the page are no longer known. `more` is true if further events may follow."""

    events: Sequence[Event]
    next: str
    lost: bool
    more: bool


def add(connection: Connection, entries: Iterable[MemoryEntry], type: EventType | None = None) -> None:
    """Add an event of a type for each entry. Without a type, the entries are new: then their fields decide whether they
    were stored, learnt, or stored as superseded entries."""
    token, at = secrets.token_hex(4), now_micros()
    new = [(type or _type_of(each), each) for each in entries]
    new = [(kind, each) for kind, each in new if each.kind not in _PARTS and each.source_type != LEARNING]
    if new:
        rows = [(token, kind, each.id, each.namespace, each.kind, each.tier, each.version, at) for kind, each in new]
        changes = (trail.Changed(kind, each.id, each.namespace, each.kind, each.version) for kind, each in new)
        connection.insert_events(rows, [*map(trail.row_of, changes)])


def add_numbers(connection: Connection, nums: Sequence[int], type: EventType) -> None:
    """Add an event of a type for each of the stored entries with these row numbers."""
    if nums:
        event = secrets.token_hex(4), type, now_micros()
        connection.insert_events_of(nums, event, trail.rest_of_row(type))


def add_change(connection: Connection, former: MemoryEntry, changed: MemoryEntry) -> None:
    """Add the event of a changed entry. In the view of its former namespace, an entry that moves is removed."""
    if former.namespace != changed.namespace:
        add(connection, [former], "removed")
        add(connection, [changed])
    else:
        is_superseded = changed.superseded_by is not None and former.superseded_by is None
        add(connection, [changed], "superseded" if is_superseded else "changed")


def last(connection: Connection) -> str:
    """Return the cursor of the place after the newest event."""
    seq = connection.run(_FIRST_AND_LAST).fetchone()[1]
    return f"{seq}-{connection.run(_TOKEN, [seq]).fetchone()[0]}" if seq else START


def page(connection: Connection, after: str, limit: int, wanted: Callable[[Event], bool]) -> Page:
    """Return at most `limit` events that are `wanted`, after the cursor `after`, or from the oldest event on if `after`
    is empty. Raises `InvalidInput` for a cursor that no store returns."""
    seq, lost = _place(connection, after)
    cursor = after if seq and not lost else START
    found: list[Event] = []
    while len(found) < limit:
        rows = connection.run(_SINCE, [seq, _SCANNED]).fetchall()
        for row in rows:
            seq, event = row["seq"], _event(row)
            cursor = event.id
            if wanted(event):
                found.append(event)
                if len(found) == limit:
                    break
        else:
            if len(rows) < _SCANNED:
                return Page(found, cursor, lost, more=False)
    return Page(found, cursor, lost, more=True)


def check_cursor(cursor: str, name: str = "after") -> str:
    """Return a cursor. Raises `InvalidInput`, which names the parameter `name`, if it does not have the form of one."""
    if cursor and not re.fullmatch(CURSOR, cursor):
        raise InvalidInput(name, "must be the id of an event, such as 17-0a1b2c3d")
    return cursor


def _place(connection: Connection, cursor: str) -> tuple[int, bool]:
    """Return the number of the event after which a reader continues, and whether events before it are lost."""
    match = re.fullmatch(CURSOR, check_cursor(cursor))
    if match is None:  # no cursor: the reader begins with the oldest event that is known
        return 0, False
    seq, token = int(match[1]), match[2] or ""
    if not seq:  # the reader was at the start, before the first event of all
        first = connection.run(_FIRST_AND_LAST).fetchone()[0]
        return 0, bool(first and first > 1)
    row = connection.run(_TOKEN, [seq]).fetchone()
    return (seq, False) if row and row[0] == token else (0, True)  # deleted, or of another copy of the store


def _type_of(entry: MemoryEntry) -> EventType:
    if entry.superseded_by is not None:
        return "superseded"
    is_learnt = entry.kind == "fact" and entry.pair_id and entry.parent_id and entry.raw is not None
    return "learnt" if is_learnt else "stored"


def _event(row: Row) -> Event:
    at = from_micros(row["at"])
    assert at is not None
    names = ("type", "entry", "namespace", "kind", "tier", "version")
    return Event(id=f"{row['seq']}-{row['token']}", **{name: row[name] for name in names}, at=at)
