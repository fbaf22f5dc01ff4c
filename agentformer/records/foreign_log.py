"""A write-ahead log of another database beside ours: SQLite takes its pages for ours, whose they would overwrite.

It is left there by who puts a copy of the records back, and not of the log. The random tokens of each write tell: what
the file alone says of its newest one must hold with the log too.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from agentformer.errors import StoreDamaged
from agentformer.records.placed import log_of

_LOOKS = 3  # at a file that another process may just be moving its log into
_PAUSE_SECONDS = 0.05
_MIXED = ("malformed", "no such", "not a database", "corrupt")  # what two databases in one look like


class _Told(NamedTuple):
    store: str
    seq: int
    token: bytes


def check_log_is_ours(path: Path) -> None:
    """Raises `StoreDamaged`, before anything is changed."""
    log = log_of(path)
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE_SECONDS)
        try:
            if not log.stat().st_size or not path.stat().st_size:
                return
            alone = _told(path, "&immutable=1")
            if alone is None or _fits(alone, path):
                return
        except (OSError, sqlite3.Error):  # opening it tells
            return
    raise StoreDamaged(
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
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{how}", uri=True)) as connection:
        store = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
        newest = connection.execute("SELECT seq, token FROM points ORDER BY seq DESC LIMIT 1").fetchone()
        if newest is None or store is None:
            return None
        if seq is not None:
            newest = connection.execute("SELECT seq, token FROM points WHERE seq = ?", [seq]).fetchone() or (seq, b"")
    return _Told(str(store[0]), int(newest[0]), bytes(newest[1]))
