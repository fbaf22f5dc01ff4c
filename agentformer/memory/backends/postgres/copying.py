"""A backup of a PostgreSQL store: the same tables in a SQLite file, which the backend `faiss` opens."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from agentformer.errors import StoreFull
from agentformer.memory.backends.faiss import DATABASE_FILE
from agentformer.memory.backends.postgres.connection import PostgresDatabase
from agentformer.records.database import Database

# Table -> columns of its key. The order is such that each row refers only to rows that were copied before.
_TABLES = {
    "entries": ("num",),
    "history": ("entry", "version"),
    "spaces": ("id",),
    "vectors": ("id",),
    "windows": ("id",),
    "pending": ("entry",),
    "moving": ("entry",),
    "changes": ("seq",),
    "points": ("seq",),
    "meta": ("key",),
}
_ROWS = 1_000  # copied at a time


def copy_to_sqlite(source: PostgresDatabase, folder: Path) -> None:
    """Write the store at this moment into a new SQLite file in `folder`. Raises `StoreFull` if the file cannot be
    written."""
    path = folder / DATABASE_FILE
    target = Database(path)
    try:
        with source.reading() as rows, target.writing() as copy:
            copy.execute("DELETE FROM meta")
            for table, key in _TABLES.items():
                _copy(rows, copy, table, key)
    except StoreFull:
        target.close()
        path.unlink(missing_ok=True)
        raise
    target.clear_log()
    target.close()


def _copy(rows: sqlite3.Connection, copy: sqlite3.Connection, table: str, key: tuple[str, ...]) -> None:
    names = [row[1] for row in copy.execute(f"PRAGMA table_info({table})")]
    columns, marks, order = ", ".join(names), ", ".join("?" * len(names)), ", ".join(key)
    query = f"SELECT DISTINCT ON ({order}) {columns} FROM {table}"  # several namespaces may store the same vector
    last: list[object] = []
    while True:
        after = f" WHERE ({order}) > ({', '.join('?' * len(key))})" if last else ""
        batch = rows.execute(f"{query}{after} ORDER BY {order} LIMIT {_ROWS}", last).fetchall()
        copy.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", (tuple(row) for row in batch))
        if len(batch) < _ROWS:
            return
        last = [batch[-1][name] for name in key]
