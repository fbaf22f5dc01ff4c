"""Removals of documents, and of former versions of replaced documents, that can be undone for some seconds.

A document that is going to be deleted is archived, so that no list contains it, and the time of its removal is stored
in its metadata. So the removal takes place even if the process or the browser that requested it ends, and any process
can undo the removal. Until that time, the HTTP endpoints also leave the passages of the document out of answers,
searches and contexts. Then a server deletes the document. If no server runs at that time, a server deletes it after its
next start.

The time passes by the clock of the machine since its start, which nobody can set. After a restart of the machine, and
on another machine, the seconds are counted again from the beginning."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import Conflict, NotFound, StoreError, retried
from agentformer.records.filters import both
from agentformer.search.reading import all_entries
from agentformer.types import Condition, Filter, MemoryBackend, MemoryEntry, Scope, Where, owned_by

log = logging.getLogger("agentformer")

REMOVE_AT = "remove_at"  # key of the metadata of a document: a time in ISO 8601
# Key of the metadata: the value of `remove_at`, the start of the machine, its clock at the removal, and the seconds.
_TIMER = "remove_timer"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_REPLACED_BY = "replaced_by"  # key of the metadata: the id of the new version that has replaced the document
MAX_SECONDS = 3_600
_MAX_NAMESPACES = 1_000  # whose removals are kept in memory
_FRESH_SECONDS = 5.0  # seconds after which the removals of other processes are read again
_LOOK_SECONDS = 60.0  # seconds between two searches for removals that other processes have left
_ARCHIVED = Condition("exists", "$archived_at", True)


class Removal(NamedTuple):
    """A document that is going to be deleted."""

    id: str
    name: str
    namespace: str
    due: float  # by `time.monotonic` of this process
    version: int  # of the entry of the document
    replaced_by: str = ""  # the id of the new version that has replaced the document

    @property
    def left(self) -> float:
        """The seconds until the removal, or 0 if its time has come."""
        return max(0.0, self.due - time.monotonic())

    @property
    def at(self) -> datetime:
        """The time of the removal."""
        return datetime.now(UTC) + timedelta(seconds=self.left)


class Removals:
    """The removals of one memory. The function `delete(id, version)` is called when the time of a removal has come.
    This function must not delete a document that has another version. Thread-safe. Call `close` at the end."""

    def __init__(self, backend: MemoryBackend, delete: Callable[[str, int], None]) -> None:
        self._backend = backend
        self._delete = delete
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, tuple[Removal, ...]]] = {}  # by namespace: when they were read, monotonic
        self._seen: dict[tuple[str, int], float] = {}  # when this process saw a removal first, monotonic
        self._changed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="agentformer-removals", daemon=True)

    def start(self) -> None:
        """Start the thread that deletes the documents when their time has come."""
        self._thread.start()

    def close(self) -> None:
        """End the thread. Removals whose time has not come stay stored."""
        self._closed = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, document_id: str, seconds: float) -> Removal:
        """Hide the document, and store that it is going to be deleted in `seconds`. If the document already has a time
        of removal, the new time replaces it. Raises `NotFound` if there is no such document, and `Conflict` if the
        document changes at the same time."""
        document = self._document(document_id)
        now = datetime.now(UTC)
        self._change(document, {**document.metadata, **_timer(now, seconds)}, archived_at=now)
        due = time.monotonic() + seconds
        return Removal(document.id, document.content, document.namespace, due, document.version + 1)

    def replace(self, former: Sequence[MemoryEntry], document_id: str, seconds: float) -> None:
        """Hide the former versions of the stored document `document_id`, and store that they are going to be deleted in
        `seconds`. A former version that another caller has hidden or deleted stays as it is. The new version is stored
        before this call, so no failure between the two steps loses a version: both are then stored."""
        for entry in former:
            with suppress(Conflict):
                retried(functools.partial(self._hide, entry.id, document_id, seconds))

    def _hide(self, former_id: str, document_id: str, seconds: float) -> None:
        current = next(iter(self._backend.get([former_id])), None)
        if current is None or current.archived_at is not None:
            return
        now = datetime.now(UTC)
        until = {**_timer(now, seconds), _REPLACED_BY: document_id}
        self._change(current, {**current.metadata, **until}, archived_at=now)

    def undo(self, document_id: str) -> None:
        """Keep a document that was going to be deleted. If it was replaced, delete the version that has replaced it.
        Raises `NotFound` if the document is deleted already, or has no removal to undo. Raises `Conflict` if the
        document was uploaded again in the meantime: from the same path, or with the same name and without a path."""
        document = self._document(document_id)
        if REMOVE_AT not in document.metadata:
            raise NotFound(f"the document {document_id[:80]} is not going to be deleted; there is nothing to undo")
        successors = self._stored_again(document)
        if {entry.id for entry in successors} - {document.metadata.get(_REPLACED_BY)}:
            raise Conflict(f"{document.content[:200]!r} was uploaded again in the meantime; the new version is kept")
        kept = {
            name: value for name, value in document.metadata.items() if name not in (REMOVE_AT, _TIMER, _REPLACED_BY)
        }
        self._change(document, kept, archived_at=None)
        for successor in successors:  # deleted last, so that a failure loses neither version
            with suppress(NotFound):
                self._delete(successor.id, successor.version)

    def pending(self, namespace: str) -> tuple[Removal, ...]:
        """Return the documents of a namespace that are going to be deleted, the oldest upload first. A removal by
        another process is seen after at most five seconds."""
        with self._lock:
            read_at, known = self._known.get(namespace, (0.0, ()))
            if not read_at or time.monotonic() - read_at > _FRESH_SECONDS:
                known = tuple(self._stored(namespace))
                if len(self._known) >= _MAX_NAMESPACES:
                    self._known.clear()
                self._known[namespace] = time.monotonic(), known
            return known

    def hide(self, where: Where | None, namespace: str) -> Filter | None:
        """Return a filter for searches. An entry matches the filter if it matches `where`, and is not a document that
        is going to be deleted or a part of such a document. Return None if there is no condition."""
        ids = tuple(removal.id for removal in self.pending(namespace))
        if not ids:
            return both(where, None)
        return both(where, both(Condition("nin", "$document_id", ids), Condition("nin", "$id", ids)))

    def delete_due(self) -> float:
        """Delete the documents that are due. Return the seconds until the next removal, at most `_LOOK_SECONDS`."""
        wait = _LOOK_SECONDS
        for namespace in self._backend.namespaces():
            for removal in self._stored(namespace):
                if removal.left > 0:
                    wait = min(wait, removal.left)
                    continue
                try:
                    self._delete(removal.id, removal.version)
                except (NotFound, Conflict):  # deleted, replaced or kept in the meantime
                    continue
                self._forget(namespace)
        return wait

    def _stored(self, namespace: str) -> Iterator[Removal]:
        scope = Scope(namespace, kinds=("document",), include_archived=True, where=_ARCHIVED)
        for entry in all_entries(self._backend, scope):
            if REMOVE_AT in entry.metadata:
                due = time.monotonic() + self._seconds_left(entry)
                successor = entry.metadata.get(_REPLACED_BY, "")
                yield Removal(entry.id, entry.content, entry.namespace, due, entry.version, successor)

    def _seconds_left(self, entry: MemoryEntry) -> float:
        """Return the seconds until the removal of a document. After a restart of the machine, all its seconds count
        again, from the first time that this process sees the document."""
        at, timer = entry.metadata[REMOVE_AT], entry.metadata.get(_TIMER)
        if not isinstance(timer, list) or timer[0] != at:  # a former version has stored the time alone
            return min(MAX_SECONDS, (datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds())
        _, start, due, seconds = timer
        this_start, clock = _machine_clock()
        if start and start == this_start:
            return float(min(seconds, due - clock))
        seen = self._seen.setdefault((entry.id, entry.version), time.monotonic())
        return float(seconds - (time.monotonic() - seen))

    def _stored_again(self, document: MemoryEntry) -> list[MemoryEntry]:
        origin = document.metadata.get("origin") or ""
        known = {"origin": origin} if origin else {"name": document.content}
        owner = owned_by(document.user_id)
        others = all_entries(self._backend, Scope(document.namespace, kinds=("document",), metadata=known, **owner))
        return [other for other in others if (other.metadata.get("origin") or "") == origin]

    def _document(self, document_id: str) -> MemoryEntry:
        found = self._backend.get([document_id])
        if not found or found[0].kind != "document":
            raise NotFound(f"there is no document {document_id[:80]}; it may be deleted already")
        return found[0]

    def _change(self, document: MemoryEntry, metadata: dict[str, Any], *, archived_at: datetime | None) -> None:
        changes = {"metadata": metadata, "archived_at": archived_at}
        self._backend.update(document.id, changes, document.version)
        self._forget(document.namespace)
        self._changed.set()

    def _forget(self, namespace: str) -> None:
        with self._lock:
            self._known.pop(namespace, None)

    def _run(self) -> None:
        wait, failed = 0.0, False
        while True:
            self._changed.wait(wait)
            self._changed.clear()  # before `_closed` is read, so that `close` is never missed
            if self._closed:
                return
            try:
                wait, failed = self.delete_due(), False
            except StoreError as error:
                if not failed:  # logged once while the store cannot be used
                    log.warning("documents that are due could not be deleted; the server tries again: %s", error)
                wait, failed = _LOOK_SECONDS, True


def _machine_clock() -> tuple[str, float]:
    """Return an id of the last start of this machine, and the seconds since then. The id is "" if it is not known; the
    seconds are then comparable in this process alone."""
    try:
        return _BOOT.read_text().strip(), time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return "", time.monotonic()


def _timer(now: datetime, seconds: float) -> dict[str, Any]:
    """Return the metadata of a document that is going to be deleted in `seconds`: its time, and its timer."""
    at = (now + timedelta(seconds=seconds)).isoformat()
    start, clock = _machine_clock()
    return {REMOVE_AT: at, _TIMER: [at, start, clock + seconds, seconds]}
