"""The folder of files: one lock for all processes, a cache that knows when a file was replaced, and atomic commits.

A change of one namespace replaces its file. A change of several writes each new file beside the old one, then a
journal that names them, which is the moment of truth, and then renames; whoever takes the lock next finishes what
a killed writer has begun. Nothing is written twice, so a full disk shows before anything has happened.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock, Timeout

from agentformer.errors import StoreDamaged, StoreError, StoreFull
from agentformer.memory.backends.local_json import layout
from agentformer.memory.backends.local_json.record import Record
from agentformer.memory.backends.local_json.versions import UNKNOWN, Version, identity, stamp, version_of
from agentformer.records.files import file_bytes, opened_file, sync_folder, write_atomically

LOCK_FILE = "memory.lock"
JOURNAL_FILE = "memory.journal"
_NEW = ".new"  # behind the name of a file that waits for the others of its change
_BUSY_SECONDS = 60.0  # a caller waits this long for another one; nobody computes while holding the lock
_POLL_SECONDS = 0.002
_LOOKS = 500  # at a folder that others may be writing, until one finds it still


@dataclass(frozen=True)
class Shelf:
    """One namespace's file as it was read, or why it cannot be."""

    version: Version
    namespace: str = ""
    records: Mapping[str, Record] = field(default_factory=dict)  # in order of id
    damage: str = ""


@dataclass(frozen=True)
class Snapshot:
    """All namespaces at one moment. Never changed; `damaged` tells by file name what cannot be read."""

    shelves: Mapping[str, Shelf] = field(default_factory=dict)  # by namespace, sorted
    records: Mapping[str, Record] = field(default_factory=dict)  # by id
    damaged: Mapping[str, str] = field(default_factory=dict)

    def of(self, namespace: str) -> Mapping[str, Record]:
        """The records of a namespace, in order of id. Raises `StoreDamaged`."""
        if reason := self.damaged.get(layout.file_name(namespace)):
            raise StoreDamaged(reason)
        shelf = self.shelves.get(namespace)
        return shelf.records if shelf else {}

    def check_whole(self) -> None:
        """Raises `StoreDamaged` when something looked for may be in a file that cannot be read."""
        for reason in self.damaged.values():
            raise StoreDamaged(reason)


class Draft:
    """What a writing call is about to commit: a snapshot that may be changed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._records = dict(snapshot.records)
        self._before = snapshot.records

    @property
    def records(self) -> Mapping[str, Record]:
        return MappingProxyType(self._records)

    def of(self, namespace: str) -> Mapping[str, Record]:
        """The records of a namespace as they were before this change."""
        return self._snapshot.of(namespace)

    def check_whole(self) -> None:
        self._snapshot.check_whole()

    def put(self, record: Record) -> None:
        self._snapshot.of(record.entry.namespace)  # what cannot be read must not be replaced
        self._records[record.entry.id] = record

    def drop(self, entry_id: str) -> None:
        del self._records[entry_id]

    def changed(self) -> dict[str, dict[str, Record]]:
        """The records of each namespace that is not as it was, in order of id."""
        touched: set[str] = set()
        for entry_id in self._before.keys() | self._records.keys():
            old, new = self._before.get(entry_id), self._records.get(entry_id)
            if old is not new:
                touched.update(record.entry.namespace for record in (old, new) if record)
        found: dict[str, dict[str, Record]] = {namespace: {} for namespace in touched}
        for entry_id in sorted(self._records):
            record = self._records[entry_id]
            if record.entry.namespace in touched:
                found[record.entry.namespace][entry_id] = record
        return found


class Folder:
    """Thread-safe, and safe with other processes on the same folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFull(f"the folder {path} cannot be made: {error.strerror or error}") from error
        self._place = identity(path)
        self._thread_lock = threading.Lock()
        self._file_lock = FileLock(str(path / LOCK_FILE))
        self._closed = False
        self._shelves: dict[str, Shelf] = {}  # by file name
        self._snapshot = Snapshot()
        self.reading()

    def close(self) -> None:
        with self._thread_lock:
            self._closed = True

    def reading(self) -> Snapshot:
        """All that has been acknowledged. A folder that cannot be written is read without its lock."""
        if self.read_only:
            with self._thread_lock:
                self._check_open()
                return self._looked_at()
        with self.locked():
            return self._refreshed()

    @property
    def read_only(self) -> bool:
        """Is there a folder that this process cannot write?"""
        return self.path.is_dir() and not os.access(self.path, os.W_OK)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Draft]:
        """One transaction: what the draft holds at the end is on disk when this is left, unless by an error."""
        with self.locked():
            draft = Draft(self._refreshed())
            yield draft
            if changed := draft.changed():
                self._commit(changed)

    def drop_copies(self, namespace: str) -> None:
        """Delete what was kept of a namespace's file when it was damaged."""
        with self.locked():
            for copy in self.path.glob(f"{glob.escape(layout.file_name(namespace))}.damaged-*"):
                copy.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone in this folder, among all threads and processes."""
        with self._thread_lock:
            self._check_open()
            try:
                self._file_lock.acquire(timeout=_BUSY_SECONDS, poll_interval=_POLL_SECONDS)
            except Timeout:
                raise StoreError(f"{self.path / LOCK_FILE} is held by another process for too long") from None
            except OSError as error:
                raise _full(self.path, error) from error
            try:
                yield
            finally:
                self._file_lock.release()

    def _refreshed(self) -> Snapshot:
        """The newest snapshot; only files that were replaced are read again."""
        try:
            self._finish_begun()
        except OSError as error:
            raise self._unusable(error) from error
        return self._adopted(self._versions())

    def _looked_at(self) -> Snapshot:
        """The newest snapshot, without the lock: what is read is of one moment when nothing was replaced meanwhile."""
        for _ in range(_LOOKS):
            versions = self._versions()
            if (self.path / JOURNAL_FILE).exists():
                time.sleep(_POLL_SECONDS)  # of somebody who can write here, and is at it
                continue
            snapshot = self._adopted(versions)
            if self._versions() == versions:
                return snapshot
        raise StoreError(
            f"{self.path} has a change that is not finished, and cannot be written here; copy it to where it can be"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this memory is closed; open it again with agentformer.connect()")
        if identity(self.path) != self._place:
            raise StoreError(
                f"{self.path} was removed, replaced or moved while it was open; put it back, or open the memory again"
            )

    def _unusable(self, error: OSError) -> StoreError:
        return StoreError(f"{self.path} cannot be used: {error.strerror or error}; check permissions")

    def _versions(self) -> dict[str, Version]:
        try:
            with os.scandir(self.path) as listing:
                return {entry.name: version_of(entry) for entry in listing if _is_ours(entry.name)}
        except OSError as error:
            raise self._unusable(error) from error

    def _adopted(self, versions: Mapping[str, Version]) -> Snapshot:
        if versions != {name: shelf.version for name, shelf in self._shelves.items()}:
            self._adopt({name: self._shelf(name, version) for name, version in versions.items()})
        return self._snapshot

    def _shelf(self, name: str, version: Version) -> Shelf:
        known = self._shelves.get(name)
        if known and known.version == version:
            return known
        path = self.path / name
        try:
            with opened_file(path) as file:
                version = Version.of(os.fstat(file.fileno()))
                data = file.read()
        except OSError as error:
            # Permissions can be given without a trace in the file's state, so this is tried each time.
            return Shelf(UNKNOWN, damage=f"{path} cannot be read: {error.strerror or error}")
        try:
            namespace, found = layout.parse(data)
            if layout.file_name(namespace) != name:
                raise StoreDamaged(f"it is of the namespace {namespace!r:.80}, whose file is {_short(namespace)}")
        except StoreDamaged as error:
            return Shelf(version, damage=f"{path} is damaged: {error}; {_keep_copy(path, data)}")
        records = {entry.id: Record(entry, former) for entry, former in found}
        for entry_id in records.keys() & (known.records.keys() if known else ()):
            records[entry_id].take_terms(known.records[entry_id])  # type: ignore[union-attr]
        return Shelf(version, namespace, records)

    def _adopt(self, shelves: dict[str, Shelf]) -> None:
        """Make these the newest snapshot. Of two files with one id the second is taken for damaged."""
        damaged = {name: shelf.damage for name, shelf in shelves.items() if shelf.damage}
        sound: dict[str, Shelf] = {}
        records: dict[str, Record] = {}
        for name, shelf in sorted(shelves.items()):
            if shelf.damage:
                continue
            if twice := sorted(records.keys() & shelf.records.keys()):
                other = layout.file_name(records[twice[0]].entry.namespace)
                damaged[name] = (
                    f"{self.path / name} is damaged: its entry {twice[0]} is in {other} too; "
                    "remove one of them in an editor, or give it an id of its own"
                )
                continue
            sound[shelf.namespace] = shelf
            records.update(shelf.records)
        self._shelves = shelves
        self._snapshot = Snapshot(dict(sorted(sound.items())), records, damaged)

    def _commit(self, changed: Mapping[str, Mapping[str, Record]]) -> None:
        """Bring these namespaces to disk, all or none. Raises `StoreFull`."""
        texts = {
            layout.file_name(namespace): layout.file_text(namespace, (record.text for record in records.values()))
            if records
            else None
            for namespace, records in changed.items()
        }
        try:
            self._sweep()
            if len(texts) == 1:
                ((name, text),) = texts.items()
                self._put(self.path / name, text)
            else:
                self._put_together(texts)
        except OSError as error:
            raise _full(self.path, error) from error
        shelves = dict(self._shelves)
        for namespace, records in changed.items():
            name = layout.file_name(namespace)
            shelves.pop(name, None)
            if records:
                shelves[name] = Shelf(Version.of((self.path / name).stat()), namespace, records)
        self._adopt(shelves)

    def _put(self, path: Path, text: str | None) -> None:
        """Replace a file, or remove it when there is no text."""
        if text is None:
            path.unlink(missing_ok=True)
            sync_folder(self.path)
            return
        write_atomically(path, text.encode("utf-8"))
        stamp(path)

    def _put_together(self, texts: Mapping[str, str | None]) -> None:
        journal = self.path / JOURNAL_FILE
        try:
            for name, text in texts.items():
                if text is not None:
                    write_atomically(self.path / (name + _NEW), text.encode("utf-8"))
            names = {name: text is not None for name, text in texts.items()}
            write_atomically(journal, json.dumps(names).encode("utf-8"))
        except BaseException:
            if not journal.exists():
                self._sweep()
            raise
        self._finish_begun()

    def _finish_begun(self) -> None:
        """Do what the journal says, if there is one: its change has been decided."""
        journal = self.path / JOURNAL_FILE
        try:
            data = file_bytes(journal)
        except FileNotFoundError:
            return
        try:
            names = json.loads(data)
            if not isinstance(names, dict) or not all(_is_ours(name) for name in names):
                raise ValueError("it must name memory files")
        except ValueError as error:
            raise StoreDamaged(
                f"{journal} is damaged ({error}); what it was to finish is in the files *{_NEW} beside it: "
                "rename or remove them, and then the journal"
            ) from None
        for name, stays in names.items():
            path = self.path / name
            fresh = self.path / (name + _NEW)
            if not stays:
                path.unlink(missing_ok=True)
            elif fresh.exists():
                os.replace(fresh, path)
                stamp(path)
        sync_folder(self.path)
        journal.unlink()
        sync_folder(self.path)

    def _sweep(self) -> None:
        """Remove what killed writers have left. The lock is ours, so nobody is writing now."""
        for pattern in (".memory[-.]*", f"memory-*{_NEW}"):
            for left in self.path.glob(pattern):
                left.unlink(missing_ok=True)


def _is_ours(name: str) -> bool:
    return name.startswith("memory-") and name.endswith(".json") and Path(name).name == name


def _short(namespace: str) -> str:
    return layout.file_name(namespace) if len(namespace) <= 80 else "another one"


def _keep_copy(path: Path, data: bytes) -> str:
    """Keep what was found beside it, once for each content, and tell what to do."""
    copy = path.with_name(f"{path.name}.damaged-{hashlib.sha256(data).hexdigest()[:12]}")
    try:
        if not copy.exists():
            write_atomically(copy, data)
    except OSError:
        return "mend it in an editor, or move it away to begin anew"
    return f"mend it in an editor, or remove it to begin anew; a copy is kept as {copy.name}"


def _full(path: Path, error: OSError) -> StoreFull:
    return StoreFull(f"{path} cannot be written ({error.strerror or error}); free space or check permissions")
