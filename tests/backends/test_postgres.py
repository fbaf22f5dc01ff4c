"""The backend `postgres` keeps the whole contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentformer.testing import BackendConformance
from agentformer.types import Embedder, MemoryBackend
from tests.backends.postgres_server import open_store

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("postgres_url")]


class TestPostgres(BackendConformance):
    def open(self, folder: Path, embedder: Embedder) -> MemoryBackend:
        return open_store(folder, embedder)
