"""Recovery of a database file that SQLite cannot read completely. All readable rows are copied into a new file.

The damaged file and its write-ahead log are kept unchanged in the same folder, and only a copy of them is read, page by
page (see `rescue`). Damaged rows are written to the quarantine file, which users can inspect. The windows (embedded
passages) and vectors of the copied entries are copied too. A later repair embeds the texts that have no vectors.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple

from agentformer.errors import StoreDamaged, StoreError, store_failure
from agentformer.records.integrity.cells import Pages
from agentformer.records.integrity.file_guard import exclusive, wal_path
from agentformer.records.integrity.files import sync_folder
from agentformer.records.integrity.findings import MAX_REPORTED, Findings
from agentformer.records.integrity.repair import Quarantine
from agentformer.records.integrity.rescue import Rescue
from agentformer.records.integrity.write_ahead_log import check_wal, kept_name, wal_header, wal_left_by_repair
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import Database
from agentformer.settings.access import opener, replace_file, sync_file


class Recovered(NamedTuple):
    """The result of a recovery: counts, the lost rows, and the paths of the damaged file and of the quarantine file."""

    entries: int
    set_aside: int  # rows in the quarantine file
    lost: tuple[str, ...]  # names of lost entries and former versions, without parts of documents
    kept_as: Path  # the damaged file
    aside: Path  # the quarantine file

    def summary(self) -> str:
        """Return the result of the recovery as a text for users."""
        text = f"{self.entries} entries were copied to a new file"
        text += f", {self.set_aside} rows were moved to {self.aside.name}" if self.set_aside else ""
        return f"{text}; the damaged file is kept as {self.kept_as.name}"

    def add_to(self, findings: Findings) -> None:
        """Add each lost row to the findings of a check, and record that all its findings are repaired."""
        findings.mark_repaired(findings.found - findings.mended, "a new file with the readable rows replaced the file")
        findings.note(self.summary())
        for name in self.lost[:MAX_REPORTED]:
            findings.note(f"{name} is lost; restore it from a backup; what can be read of it is in {self.aside.name}")
        if (more := len(self.lost) - MAX_REPORTED) > 0:
            findings.note(f"{more} more rows are lost; {self.aside.name} names them")
        findings.found += len(self.lost)
        findings.mended += len(self.lost)
        findings.lost += len(self.lost)


def recover_file(path: Path, quarantine: Quarantine) -> Recovered:
    """Replace a damaged file by a new file with all readable rows. Raises `StoreError` if another process has the file
    open, if a newer version wrote the file, or if the write-ahead log belongs to another database. Raises
    `StoreDamaged` if no entry can be read, and `StoreFull` if the folder cannot be written. After an error, the damaged
    file is unchanged."""
    path = Path(os.path.realpath(path))
    try:
        with exclusive(path) as file:
            return _Replacement(path, file).run(quarantine)
    except OSError as error:
        raise store_failure(f"{path} cannot be repaired", error, "nothing was changed; free some disk space") from error


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
            before = quarantine.rows
            rescue = self._rescue(quarantine)
            kept_as = self._keep_copy()
            self._replace()
            return Recovered(rescue.entries, quarantine.rows - before, tuple(rescue.lost), kept_as, quarantine.path)
        finally:
            _delete(self._copy)
            _delete(self._new)

    def _rescue(self, quarantine: Quarantine) -> Rescue:
        """Write the readable rows of the copy to the new file, and sync it. Raises `StoreDamaged` if there are none."""
        Database(self._new).close()  # creates the tables
        with (
            closing(Pages(self._copy, wal_path(self._copy))) as pages,
            closing(sqlite3.connect(self._new, isolation_level=None, factory=SqliteConnection)) as target,
        ):
            target.row_factory = sqlite3.Row
            rescue = Rescue(pages, target, quarantine)
            try:
                if not self._copy.stat().st_size:  # its log alone does not make a store
                    raise StoreDamaged("it is empty")
                rescue.run(self._wal_header)
            except StoreDamaged as error:
                reason = f"nothing in {self._path.name} can be read ({error}); restore it from a backup"
                raise StoreDamaged(reason) from error
            target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with self._new.open("rb") as file:
            sync_file(file.fileno())
        return rescue

    def _check_wal(self) -> None:
        if wal_left_by_repair(self._copy):
            self._has_wal = False
            _delete_wal(self._copy)
        else:
            check_wal(self._copy, self._path)

    def _replace(self) -> None:
        """Replace the damaged file by the new file. Both files stay locked until the old write-ahead log is deleted,
        because SQLite would apply the old log to the new file."""
        with exclusive(self._new) as new:
            if sys.platform != "win32":
                os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(self._file.fileno()).st_mode))
            replace_file(self._new, self._path)
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
        copy = kept_name(self._path)
        if wal_path(self._copy).exists():
            replace_file(wal_path(self._copy), wal_path(copy))
        replace_file(self._copy, copy)
        sync_folder(self._path.parent)
        return copy

    def _write(self, source: BinaryIO, path: Path) -> None:
        with self._create(path) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            sync_file(copy.fileno())

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


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    _delete_wal(path)


def _delete_wal(path: Path) -> None:
    for file in (wal_path(path), path.with_name(path.name + "-shm")):
        file.unlink(missing_ok=True)
