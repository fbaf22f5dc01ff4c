"""All that the files held at one moment, to read and to copy: what was read is never changed, so no lock is held."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentformer.errors import StoreFull
from agentformer.memory.backends.local_json import layout
from agentformer.memory.backends.local_json.folder import Snapshot
from agentformer.memory.backends.local_json.record import handed_out
from agentformer.memory.backends.local_json.scope import filter_of
from agentformer.records.files import write_atomically
from agentformer.types import MemoryEntry, Scope, StoredVector


class FolderSnapshot:
    """A `MemorySnapshot` over what was read. Raises `StoreDamaged` where a file that is asked for cannot be read."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def namespaces(self) -> Sequence[str]:
        self._snapshot.check_whole()
        return [name for name, shelf in self._snapshot.shelves.items() if shelf.records]

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        admits = filter_of(scope)
        records = self._snapshot.of(scope.namespace).values()
        found = (record.entry for record in records if record.entry.id > after and admits(record.entry))
        return [handed_out(entry) for entry in itertools.islice(found, max(0, limit))]

    def history(self, entry_id: str) -> Sequence[MemoryEntry]:
        record = self._snapshot.records.get(entry_id)
        return [handed_out(state) for state in record.former] if record else []

    def vectors(self, namespaces: Sequence[str]) -> Iterator[StoredVector]:
        return iter(())


def write_copy(snapshot: Snapshot, folder: Path) -> None:
    """Write what was read into an empty folder; it has reached the disk when this returns. Raises `StoreFull`, and
    `StoreDamaged` where a file could not be read."""
    snapshot.check_whole()
    try:
        for namespace, shelf in snapshot.shelves.items():
            text = layout.file_text(namespace, (record.text for record in shelf.records.values()))
            write_atomically(folder / layout.file_name(namespace), text.encode("utf-8"))
    except OSError as error:
        raise StoreFull(
            f"{folder} cannot be written ({error.strerror or error}); free space or choose another"
        ) from error
