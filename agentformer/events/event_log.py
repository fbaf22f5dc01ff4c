"""The events of a memory, for programs that watch it: the entries that were stored, changed, learnt, superseded or
removed. `webhooks.py` stores the addresses that get events, and `delivery.py` sends the events to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from agentformer.access.permissions import PERMISSIONS, Grant
from agentformer.errors import InvalidInput
from agentformer.records import entries as records
from agentformer.records import events
from agentformer.records.entry_json import entry_to_json
from agentformer.records.events import TYPES, Event, EventType
from agentformer.types import MemoryEntry, RecordStore

__all__ = ["TYPES", "Event", "EventLog", "EventPage", "EventType", "Filter"]


@dataclass(frozen=True, slots=True)
class Filter:
    """The events that a watcher wants and may see: those of these types and namespaces, or of all if a field is empty.
    With `content`, events have the entry itself."""

    types: Collection[EventType] = ()
    namespaces: Collection[str] = ()
    content: bool = False

    def accepts(self, event: Event) -> bool:
        """Return whether the watcher gets the event."""
        return (not self.types or event.type in self.types) and (
            not self.namespaces or event.namespace in self.namespaces
        )

    def allowed(self, grant: Grant) -> Filter | None:
        """Return the filter that has only what the grant allows, or None if the grant allows nothing of it. Without the
        permission to read an entry, events have no content."""
        namespaces = [name for name in self.namespaces or grant.namespaces if grant.reaches(name)]
        if not PERMISSIONS["events"].allows(grant) or (not namespaces and (self.namespaces or grant.namespaces)):
            return None
        return Filter(self.types, namespaces, self.content and PERMISSIONS["memory_get"].allows(grant))


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events as JSON objects, oldest first. `next` is the cursor after the last event that was read. `lost` is true if
    events after the given cursor are no longer known, and `more` if further events may follow."""

    events: list[dict[str, Any]]
    next: str
    lost: bool
    more: bool


class EventLog:
    """The events of a memory. `shown` returns an entry as the JSON object that watchers get."""

    def __init__(self, database: RecordStore, shown: Callable[[MemoryEntry], dict[str, Any]] = entry_to_json) -> None:
        self._database = database
        self._shown = shown

    def last(self) -> str:
        """Return the cursor after the newest event. A watcher that begins there gets the events from now on."""
        with self._database.reading() as connection:
            return events.last(connection)

    def page(self, after: str, wanted: Filter, limit: int = 100) -> EventPage:
        """Return at most `limit` events after the cursor `after`; if it is empty, from the oldest known event on.
        Raises `InvalidInput` for a text that is no cursor."""
        with self._database.reading() as connection:
            page = events.page(connection, after, limit, wanted.accepts)
            ids = [event.entry for event in page.events] if wanted.content else []
            entries = {entry.id: entry for entry in records.get(connection, ids)} if ids else {}
        shown = [self._json(event, entries.get(event.entry), content=wanted.content) for event in page.events]
        return EventPage(shown, page.next, page.lost, page.more)

    def _json(self, event: Event, entry: MemoryEntry | None, *, content: bool) -> dict[str, Any]:
        """Return an event as JSON. With `content`, it has the present entry, or None if that was deleted or moved."""
        data: dict[str, Any] = {"entry_id": event.entry, "namespace": event.namespace, "kind": event.kind}
        data |= {"tier": event.tier, "version": event.version}
        if content:  # an entry that was moved meanwhile belongs to watchers of its present namespace
            data["entry"] = self._shown(entry) if entry is not None and entry.namespace == event.namespace else None
        return {"id": event.id, "type": event.type, "timestamp": event.at.isoformat(), "data": data}


def types_of(names: Iterable[str], parameter: str) -> tuple[EventType, ...]:
    """Return types of events by their names. Raises `InvalidInput`, which names the parameter, for an unknown name."""
    found = tuple(dict.fromkeys(kind for name in names for kind in TYPES if kind == name))
    if unknown := [name for name in names if name not in TYPES]:
        raise InvalidInput(parameter, f"{unknown[0]!r:.80} is not a type of event; the types are {', '.join(TYPES)}")
    return found
