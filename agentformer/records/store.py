"""The interface of a database of records. The modules of this folder write their statements for SQLite; another
database translates them, and its connections have those methods of `sqlite3.Connection` that the modules call."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager
from typing import Protocol

from agentformer.types import MemorySnapshot


class RecordStore(Protocol):
    """An open database of records, which several threads and processes may use at the same time."""

    read_only: bool
    store_id: str

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a connection in a read transaction. All its statements see the data as of the first statement."""

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a connection in a transaction that has the write lock. The transaction is committed at the end of the
        context, or rolled back after an error."""

    def snapshot(self) -> AbstractContextManager[MemorySnapshot]:
        """Return a view of the store as of this moment, which is valid until the context ends."""
