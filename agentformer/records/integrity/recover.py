"""A database file that SQLite cannot read to its end: what can be read of it goes into a new file in its place.

The damaged file is kept beside it, with its log, byte for byte: what SQLite opens is another copy. Rows are read in
order of their numbers, and where a page is broken, from the next row on that can be read; an entry that is not what was
written is set aside. Indexes are of no use then, and none is asked. What follows from entries (windows, vectors) is
taken over as far as it fits, and the rest is made anew by whoever looks at the new file.
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
from pathlib import Path
from typing import BinaryIO, NamedTuple

from agentformer.errors import StoreDamaged, StoreError, StoreFull
from agentformer.records import entries as records
from agentformer.records import secure_delete as erasure
from agentformer.records.codec import from_state
from agentformer.records.database import Database
from agentformer.records.files import sync_folder
from agentformer.records.integrity import verify_checksums as checksums
from agentformer.records.integrity.file_guard import log_of
from agentformer.records.integrity.quarantine import Aside
from agentformer.records.integrity.stale_wal import beginning, check_log_is_ours, left_by_repair, note_former
from agentformer.records.integrity.verify import lenient, whole
from agentformer.records.meta import check_fact
from agentformer.records.schema import MIGRATIONS, migrate
from agentformer.records.spaces import described
from agentformer.records.vectors import window_damage

if sys.platform != "win32":
    import fcntl

LOST = "they are in no file any more, unless in a backup"
_GROUP = 2_000  # rows written in one transaction
# Where SQLite keeps its locks in a file (https://www.sqlite.org/c3ref/io_methods.html). Each process that has a
# database with a write-ahead log open holds one on the second range for as long as it has.
_LOCKS_AT, _LOCKS = 0x40000000, 512

Row = sqlite3.Row
_Fits = Callable[[Row], bool]


class Salvaged(NamedTuple):
    """What came of it."""

    entries: int
    set_aside: int  # rows
    unreadable: tuple[str, ...]  # ranges, in words
    kept_as: Path  # the damaged file
    aside: Path

    def told(self) -> str:
        rows = f", {self.set_aside} rows set aside in {self.aside.name}" if self.set_aside else ""
        lost = f"; of {', '.join(self.unreadable)} some could not be read" if self.unreadable else ""
        saved = f"{self.entries} entries are saved in a new file{rows}{lost}"
        return f"{saved}; the damaged one is kept as {self.kept_as.name}"


def salvage(path: Path, aside: Aside) -> Salvaged:
    """Put a new file in the place of the damaged one. Raises `StoreError` where another process has it open, it is of a
    newer version, or the log beside it is of another database; `StoreDamaged` where nothing of it can be read;
    `StoreFull`. Then nothing is changed."""
    path = Path(os.path.realpath(path))
    try:
        with _alone(path) as file:
            return _Replacement(path, file).run(aside)
    except OSError as error:
        raise StoreFull(f"{path.parent} cannot be written ({error.strerror or error}); nothing was changed") from error


class _Replacement:
    """A file and its log, which nobody else has open, and the new file that takes their place.

    A kill at any point leaves the damaged file with its log, or the new one: it comes first, and knows the log beside
    it for what it is, until that is removed."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._copy, self._fresh = path.with_name(f".{path.name}.copy"), path.with_name(f".{path.name}.salvaged")
        self._log = beginning(log_of(path))
        self._ours = bool(self._log)  # is the log of this file?

    def run(self, aside: Aside) -> Salvaged:
        try:
            _drop(self._fresh)
            self._make(self._fresh).close()
            self._take_copy()
            self._check_log()
            told = _Salvage(self._copy, self._fresh, aside, self._path.name, self._log).run()
            self._take_copy()
            kept = self._keep_copy()
            self._replace()
            return told._replace(kept_as=kept)
        finally:
            _drop(self._copy)
            _drop(self._fresh)

    def _check_log(self) -> None:
        if left_by_repair(self._copy):
            self._ours = False
            _drop_log(self._copy)
        else:
            check_log_is_ours(self._copy, self._path)

    def _replace(self) -> None:
        """Nobody opens the new file before the log of the former one is gone: the lock of each is held."""
        with _alone(self._fresh) as fresh:
            if sys.platform != "win32":
                os.fchmod(fresh.fileno(), stat.S_IMODE(os.fstat(self._file.fileno()).st_mode))
            os.replace(self._fresh, self._path)
            sync_folder(self._path.parent)
            _drop_log(self._path)
            sync_folder(self._path.parent)

    def _take_copy(self) -> None:
        """A copy of the file, and of its log. Opening the file once more would let go of the lock."""
        _drop(self._copy)
        self._file.seek(0)
        self._write(self._file, self._copy)
        if self._ours:
            with log_of(self._path).open("rb") as log:
                self._write(log, log_of(self._copy))

    def _keep_copy(self) -> Path:
        """Give the copy the name that it keeps."""
        name = f"{self._path.name}.damaged-{datetime.now(UTC):%Y-%m-%d}"
        number, kept = 1, self._path.with_name(name)
        while kept.exists() or log_of(kept).exists():
            number += 1
            kept = self._path.with_name(f"{name}-{number}")
        if log_of(self._copy).exists():
            os.replace(log_of(self._copy), log_of(kept))
        os.replace(self._copy, kept)
        sync_folder(self._path.parent)
        return kept

    def _write(self, source: BinaryIO, path: Path) -> None:
        with self._make(path) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())

    def _make(self, path: Path) -> BinaryIO:
        """A new file of the same owner, which nobody else can read. Raises `StoreError` where it would have another."""
        file = open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - for the caller
        like, made = os.fstat(self._file.fileno()), os.fstat(file.fileno())
        if sys.platform != "win32" and (like.st_uid, like.st_gid) != (made.st_uid, made.st_gid):
            try:
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            except PermissionError as error:
                file.close()
                raise StoreError(
                    f"{self._path} belongs to another user or group, as the new file would not; run this as its owner"
                ) from error
        return file


class _Salvage:
    """One file's rows, table by table."""

    def __init__(self, source: Path, target: Path, aside: Aside, name: str, log: str) -> None:
        """`name` is of the file, and `log` how the log begins that is beside it."""
        self._source_path, self._target_path = source, target
        self._name, self._log = name, log
        self._aside = aside
        self._unreadable: list[str] = []
        self._entries: set[int] = set()
        self._vectors: set[int] = set()
        self._spaces: set[int] = set()

    def run(self) -> Salvaged:
        before = self._aside.rows
        with closing(self._opened()) as source:
            target = Database(self._target_path)
            try:
                self._fill(source, target)
                target.clear_log()
            except LookupError as error:  # a column has another name in a schema that is broken
                raise self._nothing(f"its schema is broken at {error}") from error
            finally:
                target.close()
        with self._target_path.open("rb") as file:
            os.fsync(file.fileno())
        set_aside = self._aside.rows - before
        return Salvaged(len(self._entries), set_aside, tuple(self._unreadable), self._source_path, self._aside.path)

    def _opened(self) -> sqlite3.Connection:
        source = sqlite3.connect(self._source_path, isolation_level=None)
        source.row_factory = sqlite3.Row
        try:
            # Tables are read although the definition of another is broken.
            source.execute("PRAGMA writable_schema = ON")
            source.execute("SELECT 1 FROM entries WHERE num = 0").fetchone()  # a file that is empty is not migrated
            if source.execute("PRAGMA user_version").fetchone()[0] != len(MIGRATIONS):
                migrate(source)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            source.close()
            raise self._nothing(str(error)) from error
        except BaseException:
            source.close()
            raise
        return source

    def _nothing(self, why: str) -> StoreDamaged:
        return StoreDamaged(f"nothing in {self._name} can be read ({why}); restore it from a backup")

    def _fill(self, source: sqlite3.Connection, target: Database) -> None:
        self._take(source, target, "meta", (), self._fits_fact, "key", instead=True)
        self._take(source, target, "spaces", ("id",), self._fits_space)
        self._take(source, target, "entries", ("num",), self._fits_entry)
        if self._unreadable and not self._entries:
            raise self._nothing(self._unreadable[-1])
        self._take(source, target, "history", ("entry", "version"), self._fits_history(source))
        self._take(source, target, "vectors", ("id",), self._fits_vector)
        self._take(source, target, "windows", ("id",), self._fits_window)
        for queue in ("pending", "moving"):
            self._take(source, target, queue, ("entry",), lambda row: row["entry"] in self._entries)
        sequences = _sequences(source)
        with target.writing() as connection:
            for name, last in sequences.items():
                connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", [name])
                connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", [name, last])
            # Numbers and tokens that no index has seen: each follows from the beginning.
            records.announce(connection, sorted(self._entries))
            erasure.note(connection)
            note_former(connection, self._log)

    def _take(
        self,
        source: sqlite3.Connection,
        target: Database,
        table: str,
        key: Sequence[str],
        fits: _Fits,
        order: str = "",
        *,
        instead: bool = False,
    ) -> None:
        """Bring over those rows of a table that fit."""
        with target.reading() as connection:
            columns = [row["name"] for row in connection.execute(f"PRAGMA table_info({table})")]
        verb = "INSERT OR REPLACE" if instead else "INSERT OR IGNORE"
        statement = f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        rows = checksums.rows(source, table, *key) if key else _readable(source, table, order)
        for group in _groups(self._told(rows, table), fits):
            with target.writing() as connection:
                connection.executemany(statement, ([row[name] for name in columns] for row in group))

    def _told(self, rows: Iterator[Row | checksums.Damaged], table: str) -> Iterator[Row]:
        for row in rows:
            if isinstance(row, checksums.Damaged):
                self._unreadable.append(f"{table} from number {row.num} on")
            else:
                yield row

    def _fits_fact(self, row: Row) -> bool:
        return self._sound("meta", row, check_fact)

    def _fits_space(self, row: Row) -> bool:
        fits = self._sound("spaces", row, described)
        if fits:
            self._spaces.add(row["id"])
        return fits

    def _sound(self, table: str, row: Row, check: Callable[[Row], object]) -> bool:
        try:
            check(row)
        except StoreDamaged as error:
            self._aside.keep(table, dict(row), str(error))
            return False
        return True

    def _fits_entry(self, row: Row) -> bool:
        if not whole(row):
            self._aside.keep("entries", dict(row), "its checksum differs, or it cannot be decoded")
            return False
        self._entries.add(row["num"])
        return True

    def _fits_history(self, source: sqlite3.Connection) -> _Fits:
        def fits(row: Row) -> bool:
            if row["entry"] in self._entries:
                found = source.execute("SELECT id FROM entries WHERE num = ?", [row["entry"]]).fetchone()
                try:
                    from_state(row, found["id"])
                    return True
                except StoreDamaged:
                    pass
            self._aside.keep("history", dict(row), "it, or its entry, is damaged")
            return False

        return fits

    def _fits_vector(self, row: Row) -> bool:
        fits = row["space"] in self._spaces and isinstance(row["data"], bytes) and isinstance(row["hash"], bytes)
        if fits:
            self._vectors.add(row["id"])
        return fits

    def _fits_window(self, row: Row) -> bool:
        there = row["entry"] in self._entries and row["vector"] in self._vectors and row["space"] in self._spaces
        return there and not window_damage(row)


def _groups(rows: Iterator[Row], fits: _Fits) -> Iterator[list[Row]]:
    group: list[Row] = []
    for row in rows:
        if fits(row):
            group.append(row)
        if len(group) >= _GROUP:
            yield group
            group = []
    if group:
        yield group


def _readable(source: sqlite3.Connection, table: str, order: str) -> Iterator[Row]:
    """The rows of a small table, up to the first one that cannot be read."""
    with lenient(source), suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        rows = source.execute(f"SELECT * FROM {table} ORDER BY {order}")
        while (row := rows.fetchone()) is not None:
            yield row


def _sequences(source: sqlite3.Connection) -> dict[str, int]:
    """The last numbers that were given, which are never given again."""
    try:
        return {row["name"]: row["seq"] for row in source.execute("SELECT name, seq FROM sqlite_sequence")}
    except sqlite3.DatabaseError:
        return {}


@contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """The file, and no other process has it open. SQLite's own locks tell, also where it cannot read the file."""
    with path.open("r+b") as file:
        if sys.platform != "win32":
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKS, _LOCKS_AT)
            except OSError as error:
                raise StoreError(
                    f"{path} is open in another process: end servers and other programs that use this memory, and "
                    "run `agentformer doctor --repair` again"
                ) from error
        yield file


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)
    _drop_log(path)


def _drop_log(path: Path) -> None:
    for each in (log_of(path), path.with_name(path.name + "-shm")):
        each.unlink(missing_ok=True)
