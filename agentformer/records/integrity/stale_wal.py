"""Detects a stale write-ahead log (WAL) that SQLite would replay into another database.

A stale log is left when somebody restores a copy of the database file beside the old log. The change feed has a random
token for each write: the newest token in the file alone must still be there when SQLite reads the file with the log.

An interrupted recovery also leaves one: the new database is in place, and the log of the damaged one not yet removed.
The new database has the header of that log in its metadata.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from agentformer.errors import StoreDamaged, StoreError
from agentformer.records import meta
from agentformer.records.integrity.file_guard import wal_path

_FORMER_WAL = "former_log"
_HEADER_BYTES = 32  # include 64 random bits that change whenever the log starts anew
_ATTEMPTS = 3  # another process may be copying its log into the file right now
_PAUSE_SECONDS = 0.05
_MIXED_WORDS = ("malformed", "no such", "not a database", "corrupt")  # in errors about a file with a foreign log


class _LastWrite(NamedTuple):
    store: str
    seq: int
    token: bytes


def wal_header(wal: Path) -> str:
    """Return the header of a log, which no other log has; "" if there is none. Raises `OSError`."""
    try:
        with wal.open("rb") as file:
            return file.read(_HEADER_BYTES).hex()
    except FileNotFoundError:
        return ""


def store_former_wal(connection: sqlite3.Connection, header: str) -> None:
    """Record the header of the log of a replaced database, which may still be beside this one."""
    meta.set_value(connection, _FORMER_WAL, header)


def wal_left_by_repair(path: Path) -> str:
    """Return the header of the log beside a database if it belongs to the damaged file that an interrupted recovery
    has replaced, and "" otherwise. The content of such a log is in the database."""
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
    """Raise `StoreError` for the log of another database, and `StoreDamaged` for one that a recovery has left. Changes
    nothing. `original` is the path for messages if `path` is a copy."""
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
            last = _last_write(path, "&immutable=1")
            if last is None or _is_still_there(last, path):
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


def _is_still_there(last: _LastWrite, path: Path) -> bool:
    """Return whether the last write of the file alone is unchanged when it is read with the log."""
    try:
        with_wal = _last_write(path, "", last.seq)
    except sqlite3.DatabaseError as error:
        if any(word in str(error) for word in _MIXED_WORDS):
            return False
        raise
    return with_wal is None or (with_wal.store == last.store and with_wal.token == last.token)


def _last_write(path: Path, options: str, seq: int | None = None) -> _LastWrite | None:
    """Return the store's id and its newest token, or the token of `seq`, which is b"" if the feed lacks it. None for a
    store without writes."""
    with closing(_connect(path, options)) as connection:
        store = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
        newest = connection.execute("SELECT seq, token FROM points ORDER BY seq DESC LIMIT 1").fetchone()
        if newest is None or store is None:
            return None
        if seq is not None:
            newest = connection.execute("SELECT seq, token FROM points WHERE seq = ?", [seq]).fetchone() or (seq, b"")
    return _LastWrite(str(store[0]), int(newest[0]), bytes(newest[1]))


def _connect(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{options}", uri=True)
