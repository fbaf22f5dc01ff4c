"""A sidecar file for a store that offers no `OriginalsStore`: its list of absent documents, and its leases."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import Timeout

from agentformer.errors import StoreBusy, StoreError, is_passing, store_failure
from agentformer.records.codec import now
from agentformer.records.integrity.files import identity_of, read_file, write_atomically
from agentformer.records.meta import absent
from agentformer.records.offers import offered
from agentformer.search.reading import all_entries
from agentformer.settings.access import file_lock, make_folder
from agentformer.types import AbsentDocument, LeaseStore, MemoryBackend, MemoryEntry, Scope

log = logging.getLogger("agentformer")

_LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.002


class SidecarStore:
    """A store with a sidecar: the list of absent documents is in the file `path` and, unless the store offers
    `LeaseStore`, the leases are in a file with the ending `.leases`. All other methods are those of the store. Several
    processes may use the files.

    A document is added to the list before it is removed, so that its original file is deleted even if the process dies
    after the removal. `former_absent` of a store is a list that a former version kept in the store."""

    def __init__(self, store: MemoryBackend, path: Path) -> None:
        self._store = store
        self._leases = offered(store, LeaseStore) or _FileLeases(path.with_suffix(".leases"))
        self._file = _JsonFile(path)
        if former := getattr(store, "former_absent", ()):
            with suppress(StoreError), self._file.changing() as values:  # an error in a read-only folder
                for row in former:
                    values.setdefault(row.id, [row.sha256, row.upload])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def store(
        self, entries: Sequence[MemoryEntry], *, replacing: Sequence[Scope | Sequence[str]] = (), **options: Any
    ) -> Sequence[MemoryEntry]:
        """Store entries; see `MemoryBackend.store`. The documents that they replace become absent."""
        self._add_rows(absent(document for what in replacing for document in self._documents(what)))
        stored = self._store.store(entries, replacing=replacing, **options)
        if documents := [entry.id for entry in stored if entry.kind == "document"]:
            with self._file.changing() as values:
                for entry_id in documents:
                    values.pop(entry_id, None)
        return stored

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Remove entries; see `MemoryBackend.remove`. The removed documents become absent."""
        self._add_rows(absent(self._documents(what)))
        return self._store.remove(what, expected_version)

    def announce(self, documents: Sequence[MemoryEntry], upload: str) -> None:
        """Add documents to the list; see `OriginalsStore.announce`."""
        self._add_rows(absent(documents, upload))

    def absent_documents(self) -> Sequence[AbsentDocument]:
        """Return the listed documents that are not stored; see `OriginalsStore.absent_documents`."""
        rows = ((entry_id, *values) for entry_id, values in self._file.read().items() if isinstance(values, list))
        listed = sorted(AbsentDocument(*map(str, row)) for row in rows if len(row) == len(AbsentDocument._fields))
        stored = {entry.id for entry in self._store.get([row.id for row in listed])} if listed else set()
        return [row for row in listed if row.id not in stored]

    def forget_absent(self, documents: Sequence[AbsentDocument]) -> None:
        """Delete documents from the list; see `OriginalsStore.forget_absent`."""
        with self._file.changing() as values:
            for document in documents:
                if values.get(document.id) == [document.sha256, document.upload]:
                    del values[document.id]

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take or extend a lease; see `LeaseStore.lease`."""
        return self._leases.lease(name, holder, seconds)

    def release(self, name: str, holder: str) -> None:
        """End a lease; see `LeaseStore.release`."""
        self._leases.release(name, holder)

    def _documents(self, what: Scope | Sequence[str]) -> Iterator[MemoryEntry]:
        """Yield the documents that the removal of `what` removes."""
        if not isinstance(what, Scope):
            yield from self._store.get(what)
        elif not what.kinds or "document" in what.kinds:
            yield from all_entries(self._store, dataclasses.replace(what, kinds=("document",), include_archived=True))

    def _add_rows(self, rows: Iterable[AbsentDocument]) -> None:
        if added := {row.id: [row.sha256, row.upload] for row in rows}:
            with self._file.changing() as values:
                values |= added


class _FileLeases:
    """The leases of all processes, in a file. A file that cannot be read has none, because every lease ends soon."""

    def __init__(self, path: Path) -> None:
        self._file = _JsonFile(path)

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take or extend a lease; see `LeaseStore`."""
        with self._file.changing() as leases:
            moment = now().timestamp()
            other, ends, length = _lease(leases.get(name))
            # if a lease has more time left than it was taken for, the clock was set back, and the lease is not valid
            if other != holder and 0 < ends - moment <= length:
                return False
            leases[name] = holder, moment + seconds, seconds
            return True

    def release(self, name: str, holder: str) -> None:
        """End a lease; see `LeaseStore`."""
        with self._file.changing() as leases:
            if _lease(leases.get(name))[0] == holder:
                del leases[name]


def _lease(values: Any) -> tuple[str, float, float]:
    """Return the holder, the end and the length of a lease, in seconds. An invalid lease has ended."""
    try:
        holder, ends, length = values
        return str(holder), float(ends), float(length)
    except (TypeError, ValueError):
        return "", 0.0, 0.0


class _JsonFile:
    """A file with a JSON object, which processes change one after another. A damaged file has no content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = identity_of(path.parent)
        self._lock = file_lock(f"{path}.lock")

    def read(self) -> dict[str, Any]:
        """Return the object, which is empty if there is no file."""
        try:
            values = json.loads(read_file(self._path))
            if isinstance(values, dict):
                return values
            reason = "it is no JSON object"
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            if is_passing(error):
                raise store_failure(f"{self._path} cannot be read", error, "") from error
            reason = str(error)
        log.warning("%s cannot be used (%s), and its content does not count", self._path, reason)
        return {}

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """Yield the object, and write it at the end of the `with` block if it has changed."""
        try:
            if self._folder is None:
                make_folder(self._path.parent)
                self._folder = identity_of(self._path.parent)
            if identity_of(self._path.parent) != self._folder:  # not written into a new folder
                raise StoreError(
                    f"{self._path.parent} was removed, replaced or moved while it was open; move it back, or open the "
                    "memory again"
                )
            with self._lock.acquire(timeout=_LOCK_SECONDS, poll_interval=_POLL_SECONDS):
                values = self.read()
                before = dict(values)
                yield values
                if values != before:
                    write_atomically(self._path, json.dumps(dict(sorted(values.items())), indent=2).encode())
        except Timeout:
            raise StoreBusy(f"another process has held {self._path}.lock for too long; try again") from None
        except OSError as error:
            advice = "free some disk space or check the permissions"
            raise store_failure(f"{self._path} cannot be written", error, advice) from error
