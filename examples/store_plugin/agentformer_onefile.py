"""A store in one SQLite file, with one row for each entry: its id, and the entry with its former versions as JSON.

An example of a store in a package of its own. `InMemoryStore` does the work: it keeps all entries in memory, searches
their words, and has the rules of versions, summaries and superseded facts. This class loads and saves rows, and lets
one process write at a time. It is made for up to a few thousand entries. A database that searches by itself implements
`agentformer.types.MemoryBackend` instead.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from agentformer.errors import InvalidInput, StoreBusy, StoreDamaged, StoreError, StoreFull
from agentformer.memory.backends.in_memory import InMemoryStore, Record
from agentformer.settings import Settings
from agentformer.settings.access import create_empty, make_folder
from agentformer.types import Embedder

FILE = "onefile.sqlite"
_TABLE = "CREATE TABLE IF NOT EXISTS entries (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID"
_SECONDS = 60.0  # that a writer waits for another one


class OneFileStore(InMemoryStore):
    """The backend `onefile`. Any number of threads and processes may open the same file."""

    name = "onefile"  # in messages

    def __init__(self, path: Path, *, rrf_k: int = 60) -> None:
        super().__init__(rrf_k=rrf_k)
        self._path = path
        self._loaded: int | None = None  # SQLite's number of the state that was loaded
        with self._errors():
            make_folder(path.parent)  # with the permissions that the settings ask for
            create_empty(path)
            self._file = sqlite3.connect(path, timeout=_SECONDS, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA synchronous = FULL")  # a change is on the disk when the call returns
            self._file.execute("PRAGMA secure_delete = ON")  # removed text is overwritten
            self._file.execute(_TABLE)

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> OneFileStore:
        """Open the store; the entry point names this function. The embedder is not used: there are no vectors."""
        return cls(settings.index_dir / FILE, rrf_k=settings.rrf_k)

    @contextmanager
    def exclusive(self, *, writing: bool) -> Iterator[None]:
        """Run a transaction of SQLite. `save` commits it, so that an error of the disk is an error of the call."""
        with self._errors():
            self._file.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
            try:
                yield
            finally:
                if self._file.in_transaction:
                    self._file.execute("ROLLBACK")

    def load(self) -> Iterator[Record] | None:
        """Return all entries, or None if no other process has written since the last call."""
        with self._errors():
            number = self._file.execute("PRAGMA data_version").fetchone()[0]
            if number == self._loaded:
                return None
            rows = self._file.execute("SELECT id, record FROM entries").fetchall()
        self._loaded = number
        return (self._record(*row) for row in rows)

    def save(self, changed: Mapping[str, Record | None]) -> None:
        """Write the changed entries, and delete those that are None."""
        with self._errors():
            for entry_id, record in changed.items():
                if record is None:
                    self._file.execute("DELETE FROM entries WHERE id = ?", [entry_id])
                else:
                    text = json.dumps(record.to_json(), ensure_ascii=False)
                    self._file.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", [entry_id, text])
            self._file.execute("COMMIT")

    def close(self) -> None:
        """Close the file. A second call has no effect."""
        super().close()
        self._file.close()

    def _record(self, entry_id: str, text: str) -> Record:
        try:
            return Record.of_json(json.loads(text))
        except (ValueError, InvalidInput) as error:
            raise StoreDamaged(f"{self._path} is damaged: entry {entry_id}: {error}") from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of SQLite and of the system as errors that AgentFormer reports."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more about the cause
            kinds = {
                sqlite3.SQLITE_BUSY: StoreBusy,
                sqlite3.SQLITE_FULL: StoreFull,
                sqlite3.SQLITE_CORRUPT: StoreDamaged,
                sqlite3.SQLITE_NOTADB: StoreDamaged,
            }
            raise kinds.get(code, StoreError)(f"{self._path} cannot be used: {error}") from error
        except OSError as error:
            raise StoreFull(f"{self._path} cannot be created: {error.strerror or error}") from error


def present(index_dir: Path) -> bool:
    """Return whether the folder has a store of this backend."""
    return (index_dir / FILE).is_file()
