"""The backend `postgres`: records, vectors and words in a PostgreSQL database with pgvector, for several machines. The
functions of this module read a store without opening the backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from agentformer.memory.backends.postgres.connection import PostgresDatabase, drop_schema, has_store, schema_of
from agentformer.records import spaces
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace

T = TypeVar("T")


def present(settings: Settings) -> bool:
    """Return whether the database of the settings holds a store."""
    return has_store(settings.postgres_url, schema_of(settings))


def wanted_embedder(settings: Settings) -> str:
    """Return the name of the embedder that was requested for a store without vectors, or "" if no embedder was
    requested; see `faiss.wanted_embedder`."""
    return _read(settings, spaces.wanted_embedder) or ""


def stored_space(settings: Settings) -> EmbeddingSpace | None:
    """Return the embedding space of the vectors in the store. Return None without a store or without vectors."""
    active = _read(settings, spaces.active_space)
    return active[1] if active else None


def remove_store(settings: Settings) -> None:
    """Delete the schema of the settings with all its tables. Used for temporary stores, such as those of
    measurements."""
    drop_schema(settings.postgres_url, schema_of(settings))


def _read(settings: Settings, read: Callable[[sqlite3.Connection], T]) -> T | None:
    if not present(settings):
        return None
    database = PostgresDatabase(settings.postgres_url, schema_of(settings))
    try:
        with database.reading() as connection:
            return read(connection)
    finally:
        database.close()
