"""A copy of the records at one moment, while others go on writing."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from agentformer.errors import StoreFull
from agentformer.records.database import Database
from agentformer.records.files import sync_folder

_FULL = ("full", "unable to open", "readonly", "read-only", "disk i/o error")


def write_copy(database: Database, path: Path) -> None:
    """Write the records as they are now to `path`, where nothing is; they have reached the disk when this returns.

    SQLite writes every table anew out of one read transaction: it begins once and needs no repetition, however much is
    written meanwhile, no writer waits, no log is needed beside the copy, and what was deleted is not in it. Raises
    `StoreFull`, and `StoreDamaged` for records that cannot be read; then there is no file."""
    try:
        with database.outside() as connection:
            _vacuum_into(connection, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _full(path, error) from error
        raise
    sync_folder(path.parent)


def _vacuum_into(connection: sqlite3.Connection, path: Path) -> None:
    try:
        connection.execute("VACUUM INTO ?", [str(path)])
    except sqlite3.OperationalError as error:
        if any(word in str(error).lower() for word in _FULL):
            raise _full(path, error) from error
        raise


def _full(path: Path, error: Exception) -> StoreFull:
    reason = error.strerror if isinstance(error, OSError) else error
    return StoreFull(f"{path} cannot be written ({reason or error}); free space or choose another folder")
