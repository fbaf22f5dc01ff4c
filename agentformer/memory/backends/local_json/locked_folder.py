"""The records of a store as JSON files, one for each namespace, and in an SQLite database in memory, which follows the
files. Each call takes the lock of the folder and reads every file that has changed. A transaction writes the files of
the changed namespaces before it is committed in memory.

A change of one namespace replaces one file. A change of several namespaces first writes the new files under temporary
names, then writes a journal with these names, and then renames the files. If the process is killed after the journal
was written, the next call renames the files that remain."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from agentformer.errors import InvalidInput, StoreBusy, StoreDamaged, StoreError, is_passing, store_failure
from agentformer.memory.backends.local_json.file_format import SHOWN, Record, file_name, file_text, parse_file
from agentformer.records import entries as records
from agentformer.records import meta
from agentformer.records.codec import from_micros
from agentformer.records.database import RecordsSnapshot, prepare
from agentformer.records.integrity.files import open_regular_file, read_file, sync_folder, write_atomically
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.schema import migrate
from agentformer.settings.access import file_lock, make_folder
from agentformer.types import AbsentDocument, Connection, MemoryEntry, Scope

log = logging.getLogger("agentformer")

LOCK_FILE = "memory.lock"
JOURNAL_FILE = "memory.journal"
LEASES_FILE = "memory.leases"
_NEW = ".new"  # suffix of a new file that is not yet listed in a journal
_LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.002
_READ_ATTEMPTS = 500  # attempts to read a folder without the lock, until no file changes during the read
Version = tuple[int, int, int]  # inode, time of change in nanoseconds, size
_UNREADABLE: Version = (0, 0, 0)  # such a file is read again by each call
# `changed` lists the entries and namespaces that a transaction changes; `places`, the namespaces of absent documents.
_TRACKING = """
    CREATE TABLE changed (num INTEGER, namespace TEXT NOT NULL);
    CREATE TABLE places (id TEXT PRIMARY KEY, namespace TEXT NOT NULL);
    CREATE TRIGGER e1 AFTER INSERT ON entries BEGIN INSERT INTO changed VALUES (NEW.num, NEW.namespace); END;
    CREATE TRIGGER e2 AFTER UPDATE ON entries BEGIN
        INSERT INTO changed VALUES (NEW.num, NEW.namespace), (NULL, OLD.namespace); END;
    CREATE TRIGGER e3 AFTER DELETE ON entries BEGIN INSERT INTO changed VALUES (OLD.num, OLD.namespace); END;
    CREATE TRIGGER a1 AFTER INSERT ON absent_documents BEGIN
        INSERT OR REPLACE INTO places SELECT id, namespace FROM entries WHERE id = NEW.id;
        INSERT INTO changed SELECT NULL, namespace FROM places WHERE id = NEW.id; END;
    CREATE TRIGGER a2 AFTER DELETE ON absent_documents BEGIN
        INSERT INTO changed SELECT NULL, namespace FROM places WHERE id = OLD.id; END;
"""


class _File(NamedTuple):
    """A file that was read: its namespace, or the reason why it cannot be used."""

    version: Version
    namespace: str | None = None
    damage: str = ""


class FolderRecords:
    """The `RecordStore` of a folder. Several threads and processes can use the same folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_folder(path)
        except OSError as error:
            raise store_failure(f"the folder {path} cannot be created", error, "choose another folder") from error
        self._identity = _identity(path)
        self._thread_lock = threading.RLock()
        self._file_lock = file_lock(path / LOCK_FILE)
        self._closed = False
        self.read_only = False  # as of the last call
        self._memory = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=SqliteConnection
        )
        self._memory.row_factory = sqlite3.Row
        prepare(self._memory)
        migrate(self._memory)
        self._memory.executescript(_TRACKING)
        self.store_id = meta.get_value(self._memory, "store_id")
        self._files: dict[str, _File] = {}  # by file name
        self._records: dict[int, Record] = {}  # by number of the entry; their texts are cached
        with self.reading():
            pass

    def close(self) -> None:
        """Close the folder. Every later call raises `StoreError`."""
        with self._thread_lock:
            self._closed = True
            self._memory.close()

    @property
    def damaged(self) -> dict[str, str]:
        """File name -> reason, for each file that cannot be used."""
        return {name: file.damage for name, file in self._files.items() if file.damage}

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqliteConnection]:
        """Yield the records in memory, as they are in the files now. A read-only folder is read without the lock,
        because locking writes to the folder."""
        with self._thread_lock:
            self._check_open()
            if self.read_only:
                self._read_without_lock()
            else:
                with self._locked():
                    self._refresh()
            yield self._memory

    @contextlib.contextmanager
    def writing(self) -> Iterator[SqliteConnection]:
        """Run a transaction, which is written to the files at the end. After an error, nothing is changed."""
        with self._locked():
            self._refresh()
            with _transaction(self._memory):
                leases = _leases(self._memory)
                yield self._memory
                nums, written = self._write_changed()
                if _leases(self._memory) != leases:
                    self._write_leases()
            self._keep(nums, written)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[RecordsSnapshot]:
        """Yield a copy of the records. Methods raise `StoreDamaged` if they need a file that cannot be used."""
        with contextlib.closing(sqlite3.connect(":memory:", check_same_thread=False, factory=SqliteConnection)) as copy:
            with self.reading() as connection:
                connection.backup(copy)
                damaged = self.damaged
            copy.row_factory = sqlite3.Row
            prepare(copy)
            yield _Snapshot(copy, damaged)

    def check(self, needed: object) -> None:
        """Raise `StoreDamaged` if a file cannot be used that may contain what a call needs: a scope, the id of an
        entry, or several ids. With None, the call needs all files. The caller is inside `reading` or `writing`."""
        _check(self._memory, self.damaged, needed)

    def announce(self, connection: SqliteConnection, documents: Iterable[MemoryEntry], upload: str) -> None:
        """Record that these documents are absent, in the file that will contain them. The transaction that stores the
        document replaces this file, and so it also deletes the record."""
        documents = list(documents)
        places = ((document.id, document.namespace) for document in documents)
        connection.executemany("INSERT OR REPLACE INTO places VALUES (?, ?)", places)
        meta.add_absent(connection, documents, upload)

    def text_of(self, namespace: str, new: Mapping[int, Record], *, absent: bool = True) -> str:
        """Return the text of the file of a namespace, or "" if it is empty. `new` has the changed records."""
        query = "SELECT num FROM entries WHERE namespace = ? ORDER BY id"
        nums = [row[0] for row in self._memory.execute(query, [namespace])]
        query = "SELECT id, sha256, upload FROM absent_documents JOIN places USING (id) WHERE namespace = ? ORDER BY id"
        documents = [AbsentDocument(*row) for row in self._memory.execute(query, [namespace])] if absent else []
        texts = ((new.get(num) or self._records[num]).text for num in nums)
        return file_text(namespace, texts, documents) if nums or documents else ""

    def drop_copies(self, namespace: str) -> None:
        """Delete the copies that were made of the file of this namespace when the file was damaged."""
        with self._locked():
            for copy in self.path.glob(f"{glob.escape(file_name(namespace))}.damaged-*"):
                copy.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder during the `with` block. Raises `StoreBusy` if this takes too long."""
        with self._thread_lock:
            self._check_open()
            try:
                self._file_lock.acquire(timeout=_LOCK_SECONDS, poll_interval=_POLL_SECONDS)
            except Timeout:
                lock = self.path / LOCK_FILE
                raise StoreBusy(
                    f"another process has held {lock} for too long; try again, or end that process"
                ) from None
            except OSError as error:
                raise self._not_written(error) from error
            try:
                yield
            finally:
                self._file_lock.release()

    def _refresh(self) -> None:
        try:
            self._finish_journal()
        except OSError as error:
            raise self._unusable(error) from error
        self._load_changed(self._versions())

    def _read_without_lock(self) -> None:
        """Read the files again until none of them changes during the read. Raises `StoreError` after many attempts."""
        for _ in range(_READ_ATTEMPTS):
            versions = self._versions()
            if (self.path / JOURNAL_FILE).exists():  # another process is writing
                time.sleep(_POLL_SECONDS)
                continue
            self._load_changed(versions)
            if self._versions() == versions:
                return
        raise StoreError(
            f"{self.path} has an unfinished change, and this process cannot write to the "
            "folder; copy the folder to another place where you can write"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this memory is closed; open it again with agentformer.connect()")
        if _identity(self.path) != self._identity:
            raise StoreError(
                f"{self.path} was removed, replaced or moved while it was open; move it back, or open the memory again"
            )
        self.read_only = not os.access(self.path, os.W_OK)

    def _unusable(self, error: OSError) -> StoreError:
        return store_failure(f"{self.path} cannot be used", error, "check the permissions")

    def _not_written(self, error: OSError) -> StoreError:
        return store_failure(f"{self.path} cannot be written", error, "free some disk space or check the permissions")

    def _versions(self) -> dict[str, Version]:
        try:
            with os.scandir(self.path) as listing:
                return {entry.name: _version(entry) for entry in listing if _is_read(entry.name)}
        except OSError as error:
            raise self._unusable(error) from error

    def _load_changed(self, versions: Mapping[str, Version]) -> None:
        """Read the files that have changed, and remove the records of deleted files."""
        known, new = self._files, dict[int, Record]()
        if versions == {name: file.version for name, file in known.items()}:
            return
        self._files = {name: file for name, file in known.items() if file.version == versions.get(name)}
        try:
            with _transaction(self._memory):
                for name in sorted(known.keys() - versions.keys()):
                    self._remove(known[name])
                for name in sorted(versions.keys() - self._files.keys()):
                    self._files[name] = file = self._load(name, versions[name], new)
                    if file.damage and name in known:
                        self._remove(known[name])
                if LEASES_FILE not in versions:
                    self._memory.execute("DELETE FROM leases")
                nums, _ = self._changed()
        except BaseException:
            self._files = known
            raise
        self._keep(nums, new)

    def _load(self, name: str, version: Version, new: dict[int, Record]) -> _File:
        path = self.path / name
        if name == LEASES_FILE:
            _put_leases(self._memory, path)
            return _File(version)
        try:
            with open_regular_file(path) as file:
                version = _version_of(os.fstat(file.fileno()))
                data = file.read()
        except OSError as error:
            if is_passing(error):
                raise self._unusable(error) from error
            # A change of permissions does not change the version, so each call tries to read this file again.
            return _File(_UNREADABLE, damage=f"{path} cannot be read: {error.strerror or error}")
        try:
            namespace, parsed, absent = parse_file(data)
            if file_name(namespace) != name:
                place = file_name(namespace) if len(namespace) <= SHOWN else "of another name"
                raise StoreDamaged(
                    f"the file contains the namespace {namespace!r:.{SHOWN}}, which belongs in the file {place}"
                )
            if twice := self._repeated(name, namespace, parsed):
                return _File(_UNREADABLE, damage=twice)
            with _transaction(self._memory):
                moment = from_micros(version[1] // 1_000)
                self._put(namespace, [_with_times(record, moment) for record in parsed.values()], absent, new)
            return _File(version, namespace)
        except (StoreDamaged, InvalidInput) as error:
            return _File(version, damage=f"{path} is damaged: {error}; {_keep_copy(path, data)}")

    def _repeated(self, name: str, namespace: str, parsed: Mapping[str, Record]) -> str:
        """Return the damage of a file if one of its entries is also in another file that is earlier in the order of the
        names. If the other file is later, that file is damaged, and its records are removed."""
        query = "SELECT id, namespace FROM entries WHERE namespace != ? ORDER BY id"
        for entry_id, other in self._memory.execute(query, [namespace]).fetchall():
            if entry_id in parsed and file_name(other) not in self._files:
                self._put(other, (), (), {})  # this file has changed too, and is read next
            elif entry_id in parsed:
                first, second = sorted((name, file_name(other)))
                damage = (
                    f"{self.path / second} is damaged: the entry {entry_id} is also in {first}; "
                    "remove one of the two entries in an editor, or give one of them another id"
                )
                if second == name:
                    return damage
                self._remove(self._files[second])
                self._files[second] = _File(_UNREADABLE, damage=damage)
        return ""

    def _remove(self, file: _File) -> None:
        if file.namespace is not None:
            self._put(file.namespace, (), (), {})

    def _put(
        self, namespace: str, content: Sequence[Record], absent: Iterable[AbsentDocument], new: dict[int, Record]
    ) -> None:
        """Make these the records of a namespace, and add those that were not stored before to `new`."""
        memory = self._memory
        rows = memory.execute("SELECT id, num FROM entries WHERE namespace = ?", [namespace]).fetchall()
        stored = {row["id"]: row["num"] for row in rows}
        added = [record for record in content if self._records.get(stored.get(record.entry.id, 0)) != record]
        same = {record.entry.id for record in content} - {record.entry.id for record in added}
        records.remove(memory, [num for entry_id, num in stored.items() if entry_id not in same])
        entries = [record.entry for record in added]
        nums = records.insert(memory, entries)
        records.insert_histories(memory, nums, entries, {record.entry.id: record.former for record in added})
        new.update(zip(nums, added, strict=True))
        memory.execute(
            "DELETE FROM absent_documents WHERE id IN (SELECT id FROM places WHERE namespace = ?)", [namespace]
        )
        for document in absent:
            memory.execute("INSERT OR REPLACE INTO places VALUES (?, ?)", [document.id, namespace])
            memory.execute("INSERT OR REPLACE INTO absent_documents VALUES (?, ?, ?)", document)

    def _changed(self) -> tuple[list[int], list[str]]:
        """Return the numbers of the entries and the namespaces that the transaction has changed."""
        rows = self._memory.execute("SELECT DISTINCT num, namespace FROM changed").fetchall()
        self._memory.execute("DELETE FROM changed")
        return [row[0] for row in rows if row[0]], sorted({row[1] for row in rows})

    def _keep(self, nums: Iterable[int], new: Mapping[int, Record]) -> None:
        """Keep the new records of the changed entries `nums` after a transaction."""
        for num in nums:
            self._records.pop(num, None)
        self._records |= new

    def _write_changed(self) -> tuple[list[int], dict[int, Record]]:
        """Write the files of the changed namespaces: all of them or none. Return the numbers of the changed entries,
        and the records of those that still exist."""
        nums, names = self._changed()
        if not names:
            return [], {}
        for name in names:
            self.check(Scope(name))  # a damaged file is not replaced
        entries = records.by_num(self._memory, nums)
        new = {num: Record(e, records.versions_of(self._memory, e.id)) for num, e in entries.items()}
        texts = {name: self.text_of(name, new) for name in names}
        try:
            self._write({file_name(name): text for name, text in texts.items()})
            for name, text in texts.items():
                self._files.pop(file_name(name), None)
                if text:
                    version = _version_of((self.path / file_name(name)).stat())
                    self._files[file_name(name)] = _File(version, name)
        except OSError as error:
            raise self._not_written(error) from error
        return nums, new

    def _write_leases(self) -> None:
        leases = {name: [holder, ends / 1e6, micros / 1e6] for name, holder, ends, micros in _leases(self._memory)}
        try:
            write_atomically(self.path / LEASES_FILE, json.dumps(leases, indent=2).encode())
            _set_unique_time(self.path / LEASES_FILE)
            self._files[LEASES_FILE] = _File(_version_of((self.path / LEASES_FILE).stat()))
        except OSError as error:
            raise self._not_written(error) from error

    def _write(self, texts: Mapping[str, str]) -> None:
        """Write files. `texts` contains the text of each file by file name. A file with an empty text is deleted."""
        self._remove_unfinished()
        if len(texts) == 1:
            ((name, text),) = texts.items()
            if not text:
                (self.path / name).unlink(missing_ok=True)
                sync_folder(self.path)
            else:
                write_atomically(self.path / name, text.encode("utf-8"))
                _set_unique_time(self.path / name)
            return
        journal = self.path / JOURNAL_FILE
        try:
            for name, text in texts.items():
                if text:
                    write_atomically(self.path / (name + _NEW), text.encode("utf-8"))
            write_atomically(journal, json.dumps({name: bool(text) for name, text in texts.items()}).encode())
        except BaseException:
            if not journal.exists():
                self._remove_unfinished()
            raise
        self._finish_journal()

    def _finish_journal(self) -> None:
        journal = self.path / JOURNAL_FILE
        try:
            data = read_file(journal)
        except FileNotFoundError:
            return
        try:
            names = json.loads(data)
            if not isinstance(names, dict) or not all(_is_namespace_file(name) for name in names):
                raise ValueError("a journal must contain names of memory files")
        except ValueError as error:
            raise StoreDamaged(
                f"{journal} is damaged ({error}); the files *{_NEW} in the same folder contain the new data: "
                f"remove the ending {_NEW} from their names, or delete them, and then delete the journal"
            ) from None
        for name, has_text in names.items():
            path, new = self.path / name, self.path / (name + _NEW)
            if not has_text:
                path.unlink(missing_ok=True)
            elif new.exists():
                os.replace(new, path)
                _set_unique_time(path)
        sync_folder(self.path)
        journal.unlink()
        sync_folder(self.path)

    def _remove_unfinished(self) -> None:
        """Delete the temporary files of killed processes. The caller holds the lock, so no process writes them."""
        for pattern in (".memory[-.]*", f"memory-*{_NEW}"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)


class _Snapshot(RecordsSnapshot):
    """A copy of the records. Methods raise `StoreDamaged` if they need a file that could not be used."""

    def __init__(self, connection: SqliteConnection, damaged: Mapping[str, str]) -> None:
        super().__init__(connection)
        self._damaged = damaged

    def namespaces(self) -> Sequence[str]:
        _check(self._connection, self._damaged, None)
        return super().namespaces()

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        _check(self._connection, self._damaged, scope)
        return super().list(scope, after=after, limit=limit)


def _check(connection: Connection, damaged: Mapping[str, str], needed: object) -> None:
    reasons = list(damaged.values())
    if isinstance(needed, Scope):
        reasons = [reason for name, reason in damaged.items() if name == file_name(needed.namespace)]
    elif reasons and needed is not None:
        ids = {needed} if isinstance(needed, str) else set(needed)  # type: ignore[call-overload]
        reasons = reasons if len(records.numbers(connection, list(ids))) < len(ids) else []
    if reasons:
        raise StoreDamaged(reasons[0])


@contextlib.contextmanager
def _transaction(connection: SqliteConnection) -> Iterator[None]:
    """Undo all changes of the `with` block after an error. Blocks can be nested."""
    connection.execute("SAVEPOINT block")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK TO block")
        raise
    finally:
        connection.execute("RELEASE block")


def _with_times(record: Record, moment: datetime | None) -> Record:
    """Return the record with the time `moment`, if a person has written the entry without a time."""
    entry = record.entry
    if entry.created_at and entry.updated_at:
        return record
    created = entry.created_at or moment
    return Record(replace(entry, created_at=created, updated_at=entry.updated_at or created), record.former)


def _leases(connection: SqliteConnection) -> list[sqlite3.Row]:
    return connection.execute("SELECT * FROM leases ORDER BY name").fetchall()


def _put_leases(connection: SqliteConnection, path: Path) -> None:
    """Read the leases of all processes. A file that cannot be read has none, because every lease ends soon anyway."""
    connection.execute("DELETE FROM leases")
    try:
        for name, (holder, ends_at, seconds) in json.loads(read_file(path)).items():
            row = [name, str(holder), int(float(ends_at) * 1e6), int(float(seconds) * 1e6)]
            connection.execute("INSERT INTO leases VALUES (?, ?, ?, ?)", row)
    except (OSError, ValueError, TypeError, AttributeError, OverflowError) as error:
        connection.execute("DELETE FROM leases")
        log.warning("%s cannot be read, and no lease in it counts: %s", path, error)


def _version_of(status: os.stat_result) -> Version:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _version(entry: os.DirEntry[str]) -> Version:
    try:
        return _version_of(entry.stat())
    except OSError:  # the entry is a broken or circular link
        return _UNREADABLE


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _set_unique_time(path: Path) -> None:
    """Set the modification time of a new file to the time of the clock, so that other processes notice the new version.
    The times that some file systems set are less exact, and two versions could have the same time."""
    moment = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(path, ns=(moment, moment))


def _is_read(name: str) -> bool:
    return name == LEASES_FILE or _is_namespace_file(name)


def _is_namespace_file(name: str) -> bool:
    return name.startswith("memory-") and name.endswith(".json") and Path(name).name == name


def _keep_copy(path: Path, data: bytes) -> str:
    """Copy a damaged file into the same folder, unless such a copy exists. Return advice for the user."""
    copy = path.with_name(f"{path.name}.damaged-{hashlib.sha256(data).hexdigest()[:12]}")
    try:
        if not copy.exists():
            write_atomically(copy, data)
    except OSError:
        return "correct the file in an editor, or move it to another folder to start with an empty namespace"
    advice = "correct the file in an editor, or remove it to start with an empty namespace"
    return f"{advice}; a copy of the damaged file is {copy.name}"
