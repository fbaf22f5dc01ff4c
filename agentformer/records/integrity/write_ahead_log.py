"""The write-ahead log (WAL) beside a database: detect a stale log, which SQLite would replay into another database.

There are two causes. First, somebody restores a copy of the database file, and the old log is still in the folder. The
change feed has a random token for each write. So the newest token in the file alone must still exist when SQLite reads
the file together with the log.

Second, a recovery is interrupted: the new database is in place, but the log of the damaged database is not removed yet.
The metadata of the new database contain the header of that log.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from agentformer.errors import StoreDamaged, StoreError
from agentformer.records import meta
from agentformer.records.integrity.file_guard import wal_path

_LastWrite = tuple[str, int, bytes]  # id of the store, and seq and token of a change
_FORMER_WAL = "former_log"
_HEADER_BYTES = 32  # these bytes contain 64 random bits that change whenever the log is restarted
_ATTEMPTS = 3  # another process may be copying its log into the file right now
_PAUSE_SECONDS = 0.05
# SQLite's messages for a file with the log of another database
_MIXED_WORDS = ("malformed", "no such", "not a database", "corrupt")


def wal_header(wal: Path) -> str:
    """Return the header of a log, or "" if there is none. No two logs have the same header. Raises `OSError`."""
    try:
        with wal.open("rb") as file:
            return file.read(_HEADER_BYTES).hex()
    except FileNotFoundError:
        return ""


def store_former_wal(connection: sqlite3.Connection, header: str) -> None:
    """Store the header of the log of a replaced database, which may still be in the folder."""
    meta.set_value(connection, _FORMER_WAL, header)


def wal_left_by_repair(path: Path) -> str:
    """Return the header of the log next to a database, if the log belongs to the damaged file that an interrupted
    recovery has replaced. The database already has the content of such a log. Return "" otherwise."""
    try:
        header = wal_header(wal_path(path))
        if not header or not path.stat().st_size:
            return ""
        with closing(_connect(path, "&immutable=1")) as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", [_FORMER_WAL]).fetchone()
    except (OSError, sqlite3.Error, UnicodeDecodeError):  # opening the database reports it
        return ""
    return header if row and row[0] == header else ""


def check_wal(path: Path, original: Path | None = None) -> None:
    """Raise `StoreError` for the log of another database, and `StoreDamaged` for a log that an interrupted recovery did
    not remove. Nothing is changed. If `path` is a copy, messages show the path `original` instead."""
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
        except (OSError, sqlite3.Error):  # opening the database reports it
            return
    path = original or path
    wal = wal_path(path)
    if header:
        raise StoreDamaged(
            f"a repair was interrupted: {wal} belongs to the file that {path.name} has replaced, and its content is in "
            f"{path.name} already; nothing was changed; run `agentformer doctor --repair` again"
        )
    raise StoreError(
        f"{wal} does not belong to {path.name} beside it; nothing was changed; if you restored a copy of {path.name}, "
        f"move {wal.name} and {path.name}-shm away: they belong to another database"
    )


def _is_still_there(last: _LastWrite | None, path: Path) -> bool:
    """Return whether the last write in the file alone is unchanged when the file is read together with the log."""
    try:
        return last is None or _last_write(path, "", last[1]) in (last, None)
    except sqlite3.DatabaseError as error:
        if any(word in str(error) for word in _MIXED_WORDS):
            return False
        raise


def _last_write(path: Path, options: str, seq: int | None = None) -> _LastWrite | None:
    """Return the store's id, and its newest write or the write `seq`. Return None for a store without writes."""
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
