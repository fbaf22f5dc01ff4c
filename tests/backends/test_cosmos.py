"""The backend `cosmos_db` keeps the contract against an emulator, and each store is opened through a local copy of its
own, as on another node."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.cosmos_db.backend import CosmosMemoryBackend
from agentformer.memory.backends.cosmos_db.container import CosmosAddress
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.faiss.folder import DATABASE_FILE
from agentformer.testing import BackendConformance, by_words, make_entry
from agentformer.types import Embedder, MemoryBackend, Scope
from tests.backends.cosmos_emulator import KEY, Emulator
from tests.faults.long_form import LONG

pytestmark = pytest.mark.process
# The suites that depend most on what this backend adds; the others test searches, which are shared with `faiss`.
SHORT_FORM = ("AbsentDocuments", "Leases", "Summaries")
EVERYTHING = Scope(include_archived=True)


def address(emulator: Emulator, name: object) -> CosmosAddress:
    """The address of the store `name`: a database of its own."""
    return CosmosAddress(emulator.url, KEY, hashlib.sha256(str(name).encode()).hexdigest()[:20], discover=False)


def node(emulator: Emulator, tmp_path: Path, embedder: Embedder | None = None) -> CosmosMemoryBackend:
    """Open the store of the test on a new node, whose local copy is empty."""
    cache = Path(tempfile.mkdtemp(prefix="node-", dir=tmp_path))
    return CosmosMemoryBackend(cache, embedder or HashingEmbedder(), address(emulator, tmp_path))


class TestCosmos(BackendConformance):
    @pytest.fixture(autouse=True)
    def _emulator(
        self, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
    ) -> None:
        if not LONG and request.function.__qualname__.partition(".")[0] not in SHORT_FORM:
            pytest.skip("part of the long form: run `make faults`")
        self._server, self._caches = emulator, tmp_path_factory

    def open(self, folder: Path, embedder: Embedder) -> MemoryBackend:
        if (folder / DATABASE_FILE).exists():  # a backup, which is a store of the backend `faiss`
            return FaissMemoryBackend(folder, embedder)
        cache = self._caches.mktemp("node")
        return CosmosMemoryBackend(cache, embedder, address(self._server, folder))


def test_a_node_sees_the_acknowledged_writes_of_another_node(emulator: Emulator, tmp_path: Path) -> None:
    one, two = node(emulator, tmp_path), node(emulator, tmp_path)
    (entry,) = one.store([make_entry("the numbat eats termites")])
    assert by_words(two, "numbat") == [entry.id] and list(two.get([entry.id])) == [entry]
    two.update(entry.id, {"content": "the numbat sleeps", "namespace": "other"})
    assert by_words(one, "numbat") == [] and by_words(one, "sleeps", Scope("other")) == [entry.id]
    assert [e.content for e in one.history(entry.id)] == ["the numbat eats termites"]
    one.remove(Scope("other"))
    assert two.count(EVERYTHING) == 0 and by_words(two, "sleeps", Scope("other")) == []
    assert [check for backend in (one, two) for check in backend.verify() if check.found] == []
    one.close()
    two.close()


def test_items_are_in_the_partition_of_their_namespace(emulator: Emulator, tmp_path: Path) -> None:
    backend = node(emulator, tmp_path)
    (entry,) = backend.store([make_entry("raw text", namespace="aino", metadata={"k": [1, "ä"]})])
    rows = list(backend._container.query("SELECT * FROM c WHERE c.namespace = @n", n="aino"))
    assert {row["pk"] for row in rows} == {"ns:aino"} and {row["type"] for row in rows} == {"entry", "window"}
    (item,) = (row for row in rows if row["type"] == "entry")
    assert (item["row"]["id"], item["row"]["content"]) == (entry.id, "raw text") and "ä" in item["row"]["metadata"]
    assert "vector" in next(row for row in rows if row["type"] == "window")
    backend.update(entry.id, {"namespace": "väinö"})
    rows = list(backend._container.query("SELECT * FROM c WHERE c.pk = 'ns:aino'"))
    assert {row["type"] for row in rows} == {"gone"} and "raw text" not in str(rows)
    backend.close()
