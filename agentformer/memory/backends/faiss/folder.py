"""The options of the backend `faiss`, its open indexes, and functions that read the store in a folder without opening
the backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from agentformer.index.files import ScratchFolder
from agentformer.index.vectors import IndexOptions
from agentformer.memory.backends.indexed import SearchOptions
from agentformer.records import spaces
from agentformer.records.entries import trim_history
from agentformer.records.integrity.file_guard import file_size, wal_path
from agentformer.records.sqlite.database import Database
from agentformer.settings import Settings
from agentformer.types import Connection, EmbeddingSpace, Vacuumed

if TYPE_CHECKING:
    from agentformer.index.embedding.queue import EmbeddingQueue, VectorImport
    from agentformer.index.vectors.follower import VectorFollower
    from agentformer.index.words.index import WordIndex
    from agentformer.search.pipeline import Pipeline

T = TypeVar("T")

DATABASE_FILE = "memory.sqlite3"


@dataclass(frozen=True, slots=True)
class FaissOptions(SearchOptions):
    """Options of the search and of the indexes in a folder."""

    index: IndexOptions | None = None


DEFAULT_OPTIONS = FaissOptions()


class OpenIndexes(NamedTuple):
    """The open indexes of a store, and the parts that use them."""

    vectors: VectorFollower
    words: WordIndex
    pipeline: Pipeline
    embedding: EmbeddingQueue
    imported: VectorImport
    seq: int  # the newest change of the records when the indexes were opened
    scratch: ScratchFolder | None  # the folder of the indexes if the store cannot be written


def present(folder: Path) -> bool:
    """Return whether the folder holds a store of the backend `faiss`."""
    try:
        return (folder / DATABASE_FILE).stat().st_size > 0
    except OSError:
        return False


def wanted_embedder(folder: Path) -> str:
    """Return the name of the embedder that was requested for a store without vectors, or "" if no embedder was
    requested. The entries of the store are embedded when the requested embedder becomes available."""
    return _read(folder, spaces.wanted_embedder) or ""


def stored_space(folder: Path) -> EmbeddingSpace | None:
    """Return the embedding space (model and dimension) of the vectors in the store. Return None if the folder holds no
    store, or if the store has no vectors."""
    active = _read(folder, spaces.active_space)
    return active[1] if active else None


def upgrade(settings: Settings, *, copy: bool) -> None:
    """Migrate the store to the schema of this version, after a copy of it was made if `copy` is True."""
    Database(settings.index_dir / DATABASE_FILE, keeps_copy=copy).close()


def vacuum(settings: Settings, history_before: datetime | None, *, full: bool = False) -> Vacuumed:
    """Delete the former versions that were replaced before a time (None: none), and give free pages of the database
    back to the disk. The database is always written anew, as with `full`."""
    path = settings.index_dir / DATABASE_FILE
    with closing(Database(path)) as database:
        before = _size(path)
        versions = trim_history(database, history_before) if history_before else 0
        database.vacuum()
        log = file_size(wal_path(path))  # a process that reads may need it; closing the last connection deletes it
    return Vacuumed(before, _size(path), versions, log)


def _size(path: Path) -> int:
    return sum(file_size(each) for each in (path, wal_path(path)))


def _read(folder: Path, read: Callable[[Connection], T]) -> T | None:
    if not present(folder):
        return None
    database = Database(folder / DATABASE_FILE)
    with closing(database), database.reading() as connection:
        return read(connection)
