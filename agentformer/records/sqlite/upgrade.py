"""Upgrades of a store to the schema of this version. Before an embedded store is migrated, a verified copy of it is
kept beside the database, `memory.sqlite3.schema-12` for the former schema 12: with the version that wrote the store,
the copy is the way back. A copy of an earlier upgrade is then deleted."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

from agentformer.errors import StoreDamaged, store_failure
from agentformer.records.integrity.file_guard import FULL_WORDS, is_passing_failure
from agentformer.records.integrity.files import sync_folder
from agentformer.records.sqlite.schema import MIGRATIONS, migrate, stored_version
from agentformer.settings.access import create_empty, file_lock, sync_file

log = logging.getLogger("agentformer")

_WITHOUT = "free some disk space, or migrate without a copy: agentformer upgrade --without-copy"


def upgrade(connection: sqlite3.Connection, path: Path, *, copy: bool = True) -> Path | None:
    """Migrate the database `path`, which is open as `connection`, to the schema of this version. Return the path of the
    copy that was made of a database with an older schema, or None. If several processes open the database at the same
    time, one makes the copy, and the others wait for it. Raises `StoreFull` if the copy cannot be written, and
    `StoreDamaged` if the copy is damaged. Then the database is unchanged."""
    former = stored_version(connection)
    if not copy or not 0 < former < len(MIGRATIONS):
        migrate(connection)
        return None
    with file_lock(f"{path}.upgrade.lock"):
        if stored_version(connection) != former:  # another process has upgraded it meanwhile
            migrate(connection)
            return None
        kept = path.with_name(f"{path.name}.schema-{former}")
        _keep(connection, kept)
        migrate(connection)
    for earlier in path.parent.glob(f"{path.name}.schema-*"):
        if earlier != kept:
            earlier.unlink(missing_ok=True)
    log.warning(
        "the store %s had schema %d of an older version, and has schema %d now; its former state is kept in %s until "
        "you delete it or upgrade again",
        *(path, former, len(MIGRATIONS), kept),
    )
    return kept


def _keep(connection: sqlite3.Connection, kept: Path) -> None:
    """Write a copy of the database to the file `kept`, and verify the copy."""
    part = kept.with_name(f"{kept.name}.part")
    part.unlink(missing_ok=True)  # of a killed process
    try:
        write_copy(connection, part, _WITHOUT)
        with closing(sqlite3.connect(f"{part.as_uri()}?mode=ro", uri=True)) as copy:
            if (found := copy.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise StoreDamaged(f"the store is damaged ({found}); run `agentformer doctor` before you upgrade it")
        part.replace(kept)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(kept.parent)


def write_copy(connection: sqlite3.Connection, path: Path, advice: str) -> None:
    """Write a copy of a database, as of this moment, to the new file `path`, and sync the copy. Writers do not wait,
    because `VACUUM INTO` reads in one transaction. The copy has no write-ahead log and contains no deleted content.
    Raises `StoreFull` with `advice` if the copy cannot be written. After an error, `path` does not exist."""
    try:
        create_empty(path)
        try:
            connection.execute("VACUUM INTO ?", [str(path)])
        except sqlite3.OperationalError as error:
            if not is_passing_failure(error) and any(word in str(error).lower() for word in FULL_WORDS):
                raise OSError(str(error)) from error
            raise
        with path.open("rb") as file:
            sync_file(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise store_failure(f"{path} cannot be written", error, advice) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
