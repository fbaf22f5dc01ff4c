"""A store that has only the methods of `MemoryBackend`: what is done without the other protocols, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput, NotOffered
from agentformer.memory.backends.local_json.backend import JsonFileStore
from agentformer.memory.backends.sidecar import SidecarStore
from agentformer.records.offers import checks_of, leases_of, offered, required, status_of, vectors_of
from agentformer.servers.problems import problem_of
from agentformer.testing import OriginalsConformance, make_entry
from agentformer.types import (
    BackupStore,
    Embedder,
    MemoryBackend,
    OriginalsStore,
    Scope,
    SnapshotStore,
    VectorStore,
)
from tests.narrow_store import DOOR, narrow


class TestSidecarStore(OriginalsConformance):
    vectors = False

    def open(self, folder: Path, embedder: Embedder) -> Any:
        return SidecarStore(narrow(folder), folder / "absent.json")


def test_the_door_is_the_protocol() -> None:
    methods = {name for kind in MemoryBackend.__mro__ for name in vars(kind) if not name.startswith("_")}
    assert methods == set(DOOR) and len(DOOR) == 14


def test_what_a_store_does_not_offer_is_named(tmp_path: Path) -> None:
    store = narrow(tmp_path)
    assert offered(store, SnapshotStore) is None
    with pytest.raises(NotOffered) as raised:
        required(store, SnapshotStore)
    assert str(raised.value) == (
        "this memory's store NarrowStore offers no snapshots, which exports and copies need; "
        "use another backend, such as faiss"
    )
    assert (problem_of(raised.value).status, problem_of(raised.value).document["detail"]) == (501, str(raised.value))
    store.name = "narrow"
    with pytest.raises(NotOffered, match="store narrow offers no copies of itself, which a backup needs"):
        required(store, BackupStore)


def test_what_a_store_offers_is_used(tmp_path: Path) -> None:
    backend = JsonFileStore(tmp_path)
    for protocol in (SnapshotStore, BackupStore):
        assert required(backend, protocol) is backend
    sidecar: Any = SidecarStore(narrow(tmp_path), tmp_path / "absent.json")
    assert required(sidecar, OriginalsStore) is leases_of(sidecar) is sidecar


def test_a_store_without_vectors_has_none_and_waits_for_none(tmp_path: Path) -> None:
    store = narrow(tmp_path)
    (entry,) = store.store([make_entry("an okapi")])
    vectors = vectors_of(store)
    assert offered(store, VectorStore) is None
    assert (vectors.pending(Scope()), [*vectors.waiting([entry.id])], [*vectors.spaces()]) == (0, [], [])
    assert (vectors.embed_pending(), vectors.prune_spaces(), vectors.keep_vectors([])) == (0, 0, 0)
    assert not vectors.abandon_reembedding()
    with pytest.raises(InvalidInput, match="NarrowStore stores no vectors, so there is nothing to embed"):
        vectors.reembed(HashingEmbedder())


def test_leases_of_a_store_without_leases_are_those_of_their_user(tmp_path: Path) -> None:
    leases = leases_of(narrow(tmp_path))
    assert leases.lease("clean", "A", 60) and not leases.lease("clean", "B", 60) and leases.lease("clean", "A", 60)
    leases.release("clean", "B")
    assert not leases.lease("clean", "B", 60)
    leases.release("clean", "A")
    assert leases.lease("clean", "B", -1) and leases.lease("clean", "A", 60)  # the first has ended


def test_a_store_without_verification_or_status_is_counted(tmp_path: Path) -> None:
    store = narrow(tmp_path)
    store.store([make_entry("a", kind="note"), make_entry("b", namespace="other"), make_entry("c", namespace="other")])
    (check,) = checks_of(store)
    assert check.found == 0 and check.asked.startswith("not checked: this memory's store NarrowStore offers no verif")
    status = status_of(store)
    assert (status["entries"], status["kinds"], status["pending"]) == (3, {"fact": 2, "note": 1}, 0)


def test_a_damaged_list_of_absent_documents_is_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SidecarStore(narrow(tmp_path), tmp_path / "absent.json")
    for spoilt in ("[1", "[]", '"a"', '{"a": 7}'):
        (tmp_path / "absent.json").write_text(spoilt)
        assert store.absent_documents() == []
    assert "absent.json cannot be used" in caplog.text
