"""A write-ahead log of another database beside ours: SQLite takes its pages for ours, whose they would overwrite.

It is left there by who puts a copy of the records back, and not of the log. The random tokens of each write tell: what
the file alone says of its newest one must hold with the log too.

Or a repair was interrupted, which had put a new file in the place of the damaged one, and not yet removed the log of
that. The new file knows by its random beginning which log this is.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from agentformer.errors import StoreDamaged, StoreError
from agentformer.records import meta
from agentformer.records.integrity.file_guard import log_of

_FORMER_LOG = "former_log"
_HEADER = 32  # bytes: numbers of a log, with 64 random bits that each new beginning of it changes
_LOOKS = 3  # at a file that another process may just be moving its log into
_PAUSE_SECONDS = 0.05
_MIXED = ("malformed", "no such", "not a database", "corrupt")  # what two databases in one look like


class _Told(NamedTuple):
    store: str
    seq: int
    token: bytes


def beginning(log: Path) -> str:
    """What tells a log from any other; "" where there is none. Raises `OSError`."""
    try:
        with log.open("rb") as file:
            return file.read(_HEADER).hex()
    except FileNotFoundError:
        return ""


def note_former(connection: sqlite3.Connection, log: str) -> None:
    """The log that begins so is not of this file, though it may be found beside it."""
    meta.tell(connection, _FORMER_LOG, log)


def left_by_repair(path: Path) -> str:
    """How the log beside a file begins, where it is of the damaged file that an interrupted repair has replaced; what
    was in it is in the new file. Else ""."""
    try:
        log = beginning(log_of(path))
        if not log or not path.stat().st_size:
            return ""
        with closing(_connected(path, "&immutable=1")) as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", [_FORMER_LOG]).fetchone()
    except (OSError, sqlite3.Error, UnicodeDecodeError):  # opening it tells
        return ""
    return log if row and row[0] == log else ""


def check_log_is_ours(path: Path, called: Path | None = None) -> None:
    """Raises `StoreError` for a log of another database, and `StoreDamaged` for one that a repair has left, before
    anything is changed. `called` is what the file is called where `path` is a copy of it."""
    left = ""
    log = log_of(path)
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE_SECONDS)
        if left := left_by_repair(path):
            continue
        try:
            if not log.stat().st_size or not path.stat().st_size:
                return
            alone = _told(path, "&immutable=1")
            if alone is None or _fits(alone, path):
                return
        except (OSError, sqlite3.Error):  # opening it tells
            return
    path = called or path
    log = log_of(path)
    if left:
        raise StoreDamaged(
            f"a repair was interrupted: {log} is of the file that {path.name} has replaced, and what it held is in "
            "there; nothing was changed; run `agentformer doctor --repair` once more"
        )
    raise StoreError(
        f"{log} is not the log of {path.name} beside it; nothing was changed; if you put a copy of {path.name} back, "
        f"move away {log.name} and {path.name}-shm, which are not of it"
    )


def _fits(alone: _Told, path: Path) -> bool:
    """Is what the file alone tells still so with the log?"""
    try:
        whole = _told(path, "", alone.seq)
    except sqlite3.DatabaseError as error:
        if any(word in str(error) for word in _MIXED):
            return False
        raise
    return whole is None or (whole.store == alone.store and whole.token == alone.token)


def _told(path: Path, how: str, seq: int | None = None) -> _Told | None:
    """The store's id and its newest token, or that of `seq`, which is b"" where there are others alone; None where
    there is none at all."""
    with closing(_connected(path, how)) as connection:
        store = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
        newest = connection.execute("SELECT seq, token FROM points ORDER BY seq DESC LIMIT 1").fetchone()
        if newest is None or store is None:
            return None
        if seq is not None:
            newest = connection.execute("SELECT seq, token FROM points WHERE seq = ?", [seq]).fetchone() or (seq, b"")
    return _Told(str(store[0]), int(newest[0]), bytes(newest[1]))


def _connected(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{how}", uri=True)
