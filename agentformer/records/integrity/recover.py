"""Recovery of a database file that SQLite cannot read completely. All readable rows are copied into a new file.

The damaged file and its write-ahead log are kept unchanged in the same folder, and SQLite opens only a copy of them.
Rows are read in order of their numbers, without indexes. After a damaged page, reading continues at the next readable
row. Damaged entries are moved to the quarantine file, which users can inspect. The windows (embedded passages) and
vectors of the copied entries are copied too. A later repair embeds the texts that have no vectors.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from agentformer.errors import StoreDamaged, StoreError, StoreFull
from agentformer.records import change_feed, meta
from agentformer.records.codec import from_state
from agentformer.records.database import Database
from agentformer.records.integrity.file_guard import wal_path
from agentformer.records.integrity.files import sync_folder
from agentformer.records.integrity.repair import Quarantine
from agentformer.records.integrity.verify import DamagedRow, is_intact, read_page, readable_rows
from agentformer.records.integrity.write_ahead_log import check_wal, store_former_wal, wal_header, wal_left_by_repair
from agentformer.records.schema import MIGRATIONS, migrate, real_version
from agentformer.records.spaces import decode_space
from agentformer.records.vectors import window_damage
from agentformer.settings.access import opener

if sys.platform != "win32":
    import fcntl

LOST = "restore the lost rows from a backup"
_GROUP = 2_000  # rows written in one transaction
# The position of SQLite's locks in a file (https://www.sqlite.org/c3ref/io_methods.html). Each process that has a
# database with a write-ahead log open holds a lock there.
_LOCKS_AT, _LOCKS = 0x40000000, 512

Row = sqlite3.Row
_Filter = Callable[[Row], bool]


class Recovered(NamedTuple):
    """The result of a recovery: counts, unreadable ranges, and the paths of the damaged file and of the quarantine
    file."""

    entries: int
    set_aside: int  # rows in the quarantine file
    unreadable: tuple[str, ...]  # unreadable ranges, as text for users
    kept_as: Path  # the damaged file
    aside: Path  # the quarantine file

    def summary(self) -> str:
        """Return the result of the recovery as a text for users."""
        text = f"{self.entries} entries were copied to a new file"
        text += f", {self.set_aside} rows were moved to {self.aside.name}" if self.set_aside else ""
        text += f"; some rows could not be read: {', '.join(self.unreadable)}" if self.unreadable else ""
        return f"{text}; the damaged file is kept as {self.kept_as.name}"


def recover_file(path: Path, quarantine: Quarantine) -> Recovered:
    """Replace a damaged file by a new file with all readable rows. Raises `StoreError` if another process has the file
    open, if a newer version wrote the file, or if the write-ahead log belongs to another database. Raises
    `StoreDamaged` if no entry can be read, and `StoreFull` if the folder cannot be written. After an error, the damaged
    file is unchanged."""
    path = Path(os.path.realpath(path))
    try:
        with _exclusive(path) as file:
            return _Replacement(path, file).run(quarantine)
    except OSError as error:
        raise StoreFull(f"{path.parent} cannot be written ({error.strerror or error}); nothing was changed") from error


class _Replacement:
    """Replaces a damaged file by a new file, while no other process has the damaged file open. If this process is
    killed, the folder contains either the damaged file with its write-ahead log, or the complete new file. The new file
    records the header of the old log, so that a later process recognizes and deletes an old log that is still in the
    folder."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._copy, self._new = path.with_name(f".{path.name}.copy"), path.with_name(f".{path.name}.salvaged")
        self._wal_header = wal_header(wal_path(path))
        self._has_wal = bool(self._wal_header)  # also False if the log belongs to another file

    def run(self, quarantine: Quarantine) -> Recovered:
        """Copy the readable rows into a new file, and replace the damaged file when the new file is on disk."""
        try:
            _delete(self._new)
            self._create(self._new).close()
            self._take_copy()
            self._check_wal()
            recovered = _Copier(self._copy, self._new, quarantine, self._path.name, self._wal_header).run()
            self._take_copy()
            recovered = recovered._replace(kept_as=self._keep_copy())
            self._replace()
            return recovered
        finally:
            _delete(self._copy)
            _delete(self._new)

    def _check_wal(self) -> None:
        if wal_left_by_repair(self._copy):
            self._has_wal = False
            _delete_wal(self._copy)
        else:
            check_wal(self._copy, self._path)

    def _replace(self) -> None:
        """Replace the damaged file by the new file. Both files stay locked until the old write-ahead log is deleted,
        because SQLite would apply the old log to the new file."""
        with _exclusive(self._new) as new:
            if sys.platform != "win32":
                os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(self._file.fileno()).st_mode))
            os.replace(self._new, self._path)
            sync_folder(self._path.parent)
            _delete_wal(self._path)
            sync_folder(self._path.parent)

    def _take_copy(self) -> None:
        """Copy the damaged file and its write-ahead log. The damaged file is read through the open file handle, because
        opening and closing the file again would release the lock on it."""
        _delete(self._copy)
        self._file.seek(0)
        self._write(self._file, self._copy)
        if self._has_wal:
            with wal_path(self._path).open("rb") as wal:
                self._write(wal, wal_path(self._copy))

    def _keep_copy(self) -> Path:
        name = f"{self._path.name}.damaged-{datetime.now(UTC):%Y-%m-%d}"
        number, copy = 1, self._path.with_name(name)
        while copy.exists() or wal_path(copy).exists():
            number += 1
            copy = self._path.with_name(f"{name}-{number}")
        if wal_path(self._copy).exists():
            os.replace(wal_path(self._copy), wal_path(copy))
        os.replace(self._copy, copy)
        sync_folder(self._path.parent)
        return copy

    def _write(self, source: BinaryIO, path: Path) -> None:
        with self._create(path) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())

    def _create(self, path: Path) -> BinaryIO:
        """Create a file with the owner and the group of the damaged file. Only the owner can read the new file. Raises
        `StoreError` if the owner or group cannot be set."""
        file = open(path, "xb", opener=opener)  # noqa: SIM115 - for the caller
        old, new = os.fstat(self._file.fileno()), os.fstat(file.fileno())
        if sys.platform != "win32" and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            try:
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
            except PermissionError as error:
                file.close()
                raise StoreError(
                    f"{self._path} belongs to another user or group, and this process cannot give the new file the "
                    "same owner; run this command as the owner of the file"
                ) from error
        return file


class _Copier:
    """Copies the readable rows of a damaged file into a new file, one table after another."""

    def __init__(self, source: Path, target: Path, quarantine: Quarantine, name: str, wal_header: str) -> None:
        """Prepare a copy from `source` to `target`. `name` is the name of the damaged file, for messages. `wal_header`
        is the header of the write-ahead log of the damaged file."""
        self._source_path, self._target_path = source, target
        self._name, self._wal_header = name, wal_header
        self._quarantine = quarantine
        self._unreadable: list[str] = []
        self._entries: set[int] = set()
        self._vectors: set[int] = set()
        self._spaces: set[int] = set()

    def run(self) -> Recovered:
        """Copy all tables, and return the result. Raises `StoreDamaged` if no entry can be read."""
        before = self._quarantine.rows
        with closing(self._open_source()) as source:
            target = Database(self._target_path)
            try:
                self._copy_tables(source, target)
                target.clear_log()
            except LookupError as error:  # a column has another name in a damaged schema
                raise self._unreadable_error(f"its schema is damaged at {error}") from error
            finally:
                target.close()
        with self._target_path.open("rb") as file:
            os.fsync(file.fileno())
        rows, unreadable = self._quarantine.rows - before, tuple(self._unreadable)
        return Recovered(len(self._entries), rows, unreadable, self._source_path, self._quarantine.path)

    def _open_source(self) -> sqlite3.Connection:
        source = sqlite3.connect(self._source_path, isolation_level=None)
        source.row_factory = sqlite3.Row
        try:
            # reads tables even if the definition of another table is damaged
            source.execute("PRAGMA writable_schema = ON")
            source.execute("SELECT 1 FROM entries WHERE num = 0").fetchone()  # an empty file is not migrated
            if version := real_version(source):  # the number in the header may be damaged
                source.execute(f"PRAGMA user_version = {version}")
            if version != len(MIGRATIONS):
                migrate(source)
        except BaseException as error:
            source.close()
            if isinstance(error, (sqlite3.DatabaseError, UnicodeDecodeError)):
                raise self._unreadable_error(str(error)) from error
            raise
        return source

    def _unreadable_error(self, reason: str) -> StoreDamaged:
        return StoreDamaged(f"nothing in {self._name} can be read ({reason}); restore it from a backup")

    def _copy_tables(self, source: sqlite3.Connection, target: Database) -> None:
        values, _ = read_page(source, "SELECT * FROM meta ORDER BY key", [])
        sound = (row for row in values if self._is_sound("meta", row, meta.check_value))
        self._insert(target, "meta", sound, verb="INSERT OR REPLACE")
        self._spaces = self._copy(source, target, "spaces", ("id",), self._accept_space)
        self._entries = self._copy(source, target, "entries", ("num",), self._accept_entry)
        if self._unreadable and not self._entries:
            raise self._unreadable_error(self._unreadable[-1])
        self._copy(source, target, "history", ("entry", "version"), lambda row: self._accept_version(source, row))
        self._vectors = self._copy(source, target, "vectors", ("id",), self._accept_vector)
        self._copy(source, target, "windows", ("id",), self._accept_window)
        # `absent_documents` is not copied, because an original file may now be the only copy of a lost document.
        for queue in ("pending", "moving"):
            self._copy(source, target, queue, ("entry",), lambda row: row["entry"] in self._entries)
        sequences: dict[str, int] = {}  # the highest row number that each table has ever used; none is used twice
        with suppress(sqlite3.DatabaseError):
            sequences = {row["name"]: row["seq"] for row in source.execute("SELECT name, seq FROM sqlite_sequence")}
        with target.writing() as connection:
            for name, last in sequences.items():
                connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", [name])
                connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", [name, last])
            # The feed gets new numbers and tokens, so that each index is rebuilt from the beginning.
            change_feed.append(connection, sorted(self._entries))
            meta.request_secure_delete(connection)
            store_former_wal(connection, self._wal_header)

    def _copy(
        self, source: sqlite3.Connection, target: Database, table: str, key: Sequence[str], accept: _Filter
    ) -> set[int]:
        """Copy the rows of a table for which `accept` returns True, in order of the key of the table. Return the
        numbers of these rows (the first part of the key)."""
        copied: set[int] = set()

        def accepted() -> Iterator[Row]:
            for row in readable_rows(source, table, *key):
                if isinstance(row, DamagedRow):
                    self._unreadable.append(f"{row.table} from number {row.num} on")
                elif accept(row):
                    copied.add(row[key[0]])
                    yield row

        self._insert(target, table, accepted())
        return copied

    def _insert(self, target: Database, table: str, rows: Iterator[Row], verb: str = "INSERT OR IGNORE") -> None:
        with target.reading() as connection:
            columns = [row["name"] for row in connection.execute(f"PRAGMA table_info({table})")]
        statement = f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        while group := list(islice(rows, _GROUP)):
            with target.writing() as connection:
                connection.executemany(statement, ([row[name] for name in columns] for row in group))

    def _accept_space(self, row: Row) -> bool:
        return self._is_sound("spaces", row, decode_space)

    def _is_sound(self, table: str, row: Row, check: Callable[[Row], object]) -> bool:
        try:
            check(row)
        except StoreDamaged as error:
            self._quarantine.add(table, dict(row), str(error))
            return False
        return True

    def _accept_entry(self, row: Row) -> bool:
        intact = is_intact(row)
        if not intact:
            self._quarantine.add("entries", dict(row), "its checksum differs, or it cannot be decoded")
        return intact

    def _accept_version(self, source: sqlite3.Connection, row: Row) -> bool:
        if row["entry"] in self._entries:
            entry = source.execute("SELECT id FROM entries WHERE num = ?", [row["entry"]]).fetchone()
            with suppress(StoreDamaged):
                from_state(row, entry["id"])
                return True
        self._quarantine.add("history", dict(row), "this former version or its entry is damaged")
        return False

    def _accept_vector(self, row: Row) -> bool:
        return row["space"] in self._spaces and isinstance(row["data"], bytes) and isinstance(row["hash"], bytes)

    def _accept_window(self, row: Row) -> bool:
        complete = row["entry"] in self._entries and row["vector"] in self._vectors and row["space"] in self._spaces
        return complete and not window_damage(row)


@contextmanager
def _exclusive(path: Path) -> Iterator[BinaryIO]:
    """Open and lock a database file, and yield the file. Raises `StoreError` if another process has the file open. The
    function checks the locks of SQLite directly, because SQLite may not be able to read the damaged file."""
    with path.open("r+b") as file:
        if sys.platform != "win32":
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKS, _LOCKS_AT)
            except OSError as error:
                raise StoreError(
                    f"{path} is open in another process: stop the servers and other programs that use this memory, and "
                    "run `agentformer doctor --repair` again"
                ) from error
        yield file


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    _delete_wal(path)


def _delete_wal(path: Path) -> None:
    for file in (wal_path(path), path.with_name(path.name + "-shm")):
        file.unlink(missing_ok=True)
