"""Detection of a damaged or stale write-ahead log (WAL).

SQLite reads a log of a killed process up to the first damaged frame, drops all later changes without an error, and
overwrites them with the next change. Therefore the log is checked before SQLite opens it.

SQLite would apply a stale log to a database to which the log does not belong. There are two causes. First, a user
restores a copy of the database file, while the old log is still in the folder. To detect this, the module uses the
random token that the change feed has for each write: if the log belongs to the file, the newest token in the file still
exists when SQLite reads the file together with the log.

Second, a recovery is interrupted after the new database was put in place, but before the log of the damaged database
was deleted. To detect this, the metadata of the new database contain the header of this log.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from agentformer.errors import StoreDamaged, StoreError
from agentformer.records import meta
from agentformer.records.integrity.file_guard import exclusive, file_size, wal_path
from agentformer.records.integrity.files import write_atomically
from agentformer.records.integrity.frames import Log, read_log
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.settings.access import sync_file

log = logging.getLogger("agentformer")

_LastWrite = tuple[str, int, bytes]  # id of the store, and seq and token of a change
_FORMER_WAL = "former_log"
_HEADER_BYTES = 32  # these bytes contain 64 random bits that change whenever the log is restarted
_ATTEMPTS = 3  # repeated, because another process may be copying its log into the file right now
_PAUSE_SECONDS = 0.05
_ADVICE = "run `agentformer doctor --repair`, which recovers each readable entry"
# SQLite's messages for a file with the log of another database
_MIXED_WORDS = ("malformed", "no such", "not a database", "corrupt")


def kept_name(path: Path) -> Path:
    """Return a new path in the same folder for a copy of a damaged file. A log beside it has a free name, too."""
    name = f"{path.name}.damaged-{datetime.now(UTC):%Y-%m-%d}"
    number, copy = 1, path.with_name(name)
    while copy.exists() or wal_path(copy).exists():
        number += 1
        copy = path.with_name(f"{name}-{number}")
    return copy


def correct_log(path: Path, advice: str = _ADVICE) -> None:
    """Correct a damaged byte in the log of a process that was killed. A copy of the damaged log is kept. Raises
    `StoreDamaged`, and changes nothing, if committed changes are behind damage that cannot be corrected. The message
    ends with `advice`.

    While another process has the database open, nothing is checked, because the log is in use then. This process must
    not have the database open (see `exclusive`)."""
    wal = wal_path(path)
    if file_size(wal) <= _HEADER_BYTES:
        return
    try:
        with exclusive(path):
            content = read_log(wal)
            if content.fixes and not content.behind:
                _write_fixes(path, content)
    except (OSError, StoreError):  # it is in use, or cannot be written; opening the database reports other errors
        return
    if content.behind and not wal_left_by_repair(path):
        raise StoreDamaged(
            f"{wal} is damaged: {content.behind} committed changes are behind the damage, and SQLite would drop them; "
            f"nothing was changed; {advice}"
        )


def _write_fixes(path: Path, content: Log) -> None:
    kept = wal_path(kept_name(path))
    write_atomically(kept, content.path.read_bytes(), mode=0o600)
    with content.path.open("r+b") as file:
        for fix in content.fixes:
            file.seek(fix.at)
            file.write(fix.data)
        file.flush()
        sync_file(file.fileno())
    log.warning(
        "%s had %s wrong bytes, and was corrected: its checksums show the right bytes, so nothing is lost; the damaged "
        "log is kept as %s",
        content.path,
        len(content.fixes),
        kept.name,
    )


def wal_header(wal: Path) -> str:
    """Return the header of a write-ahead log in hexadecimal, or "" if there is no log. Different logs have different
    headers. Raises `OSError` if the log cannot be read."""
    try:
        with wal.open("rb") as file:
            return file.read(_HEADER_BYTES).hex()
    except FileNotFoundError:
        return ""


def store_former_wal(connection: SqliteConnection, header: str) -> None:
    """Record the header of the damaged database's log in the new database, because this log may still be in the
    folder."""
    meta.set_value(connection, _FORMER_WAL, header)


def wal_left_by_repair(path: Path) -> str:
    """Return the header of the write-ahead log next to the database `path`, if an interrupted recovery has left this
    log. Such a log belongs to the damaged file that the database has replaced. Return "" for any other log, and if
    there is no log."""
    try:
        header = wal_header(wal_path(path))
        if not header or not path.stat().st_size:
            return ""
        with closing(_connect(path, "&immutable=1")) as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", [_FORMER_WAL]).fetchone()
    except (OSError, sqlite3.Error, UnicodeDecodeError):  # opening the database reports this error
        return ""
    return header if row and row[0] == header else ""


def check_wal(path: Path, original: Path | None = None) -> None:
    """Raise `StoreError` if the write-ahead log next to a database belongs to another database, and `StoreDamaged` if
    an interrupted recovery did not delete the log. Nothing is changed. If `original` is given, `path` is a copy of
    `original`, and messages name `original`."""
    header = ""
    wal = wal_path(path)
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        if header := wal_left_by_repair(path):
            continue
        try:
            if not wal.stat().st_size or not path.stat().st_size:
                return
            if _is_still_there(_last_write(path, "&immutable=1"), path):
                return
        except (OSError, sqlite3.Error):  # opening the database reports this error
            return
    path = original or path
    wal = wal_path(path)
    if header:
        raise StoreDamaged(
            f"a repair was interrupted after it had replaced the damaged file: {wal} belongs to the old file, and "
            f"{path.name} already has the content of this log; run `agentformer doctor --repair` again"
        )
    raise StoreError(
        f"{wal} does not belong to {path.name} in the same folder; if you restored a copy of {path.name}, move "
        f"{wal.name} and {path.name}-shm to another folder, because these two files belong to another database"
    )


def _is_still_there(last: _LastWrite | None, path: Path) -> bool:
    """Return whether the write-ahead log of the database `path` belongs to this database. `last` is the last write that
    is found without the log. If the log belongs to the database, the same write is also found with the log."""
    try:
        return last is None or _last_write(path, "", last[1]) in (last, None)
    except sqlite3.DatabaseError as error:
        if any(word in str(error) for word in _MIXED_WORDS):
            return False
        raise


def _last_write(path: Path, options: str, seq: int | None = None) -> _LastWrite | None:
    """Return the last write of a database, or the write with the change number `seq`, as a tuple: the id of the store,
    and the number and token of the change. Return None if the database has no writes."""
    with closing(_connect(path, options)) as connection:
        store = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
        newest = connection.execute("SELECT seq, token FROM points ORDER BY seq DESC LIMIT 1").fetchone()
        if newest is None or store is None:
            return None
        if seq is not None:
            newest = connection.execute("SELECT seq, token FROM points WHERE seq = ?", [seq]).fetchone() or (seq, b"")
    return str(store[0]), int(newest[0]), bytes(newest[1])


def _connect(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{options}", uri=True)
