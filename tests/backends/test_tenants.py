"""No call with a scope returns, counts or removes an entry of another namespace, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.cosmos_db.backend import CosmosMemoryBackend
from agentformer.memory.backends.cosmos_db.container import CosmosAddress
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.testing import make_entry
from agentformer.types import MemoryBackend, MemoryEntry, Query, Scope
from tests.backends.cosmos_emulator import KEY
from tests.backends.postgres_server import open_store

pytestmark = pytest.mark.process

Filled = tuple[MemoryBackend, dict[str, MemoryEntry]]
NAMESPACES = ("default", "Default", "a", "a ", "a%", "a' OR '1'='1", "ns:a", "control", "日本", "a/b", 'x"} ')
WORDS = ("numbat", "kakapo", "axolotl", "dugong")
MOMENT = datetime(2026, 11, 20, tzinfo=UTC)
MODES = ("lexical", "dense", "hybrid")


def _faiss(folder: Path, _: pytest.FixtureRequest) -> MemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder())


def _local_json(folder: Path, _: pytest.FixtureRequest) -> MemoryBackend:
    return LocalJsonMemoryBackend(folder)


def _postgres(folder: Path, request: pytest.FixtureRequest) -> MemoryBackend:
    request.getfixturevalue("postgres_url")
    return open_store(folder, HashingEmbedder())


def _cosmos(folder: Path, request: pytest.FixtureRequest) -> MemoryBackend:
    url = request.getfixturevalue("emulator").url  # it ignores the partition of a query
    address = CosmosAddress(url, KEY, "tenants", discover=False)
    return CosmosMemoryBackend(folder, HashingEmbedder(), address)


@pytest.fixture(scope="module", params=["faiss", "local_json", "postgres", "cosmos_db"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """Open a store in which all namespaces have equal texts, and references to entries of other namespaces."""
    backends: dict[str, Callable[[Path, pytest.FixtureRequest], MemoryBackend]] = {
        "faiss": _faiss, "local_json": _local_json, "postgres": _postgres, "cosmos_db": _cosmos,
    }  # fmt: skip
    backend = backends[request.param](tmp_path_factory.mktemp("tenants"), request)
    entries: list[MemoryEntry] = []
    for n, namespace in enumerate(NAMESPACES * 2):
        for word in WORDS:
            fields = {"session_id": f"s{n % 2}", "user_id": "aino" if n % 3 else None, "metadata": {"k": n % 2}}
            entries.append(make_entry(f"the {word} sleeps", namespace=namespace, title=word, **fields))
    parents = {entry.namespace: entry.id for entry in entries}
    foreign = dict(zip(parents, [*list(parents.values())[1:], parents[NAMESPACES[0]]], strict=True))
    entries += [make_entry("a part of the dugong", namespace=name, parent_id=foreign[name]) for name in parents]
    backend.store(entries)
    yield backend, {entry.id: entry for entry in entries}
    backend.close()


scopes = st.fixed_dictionaries(
    {"namespace": st.sampled_from((*NAMESPACES, "b", "A"))},
    optional={
        "tiers": st.sampled_from(((), ("semantic",), ("semantic", "episodic"))),
        "kinds": st.sampled_from(((), ("fact",), ("fact", "message"))),
        "except_kinds": st.sampled_from(((), ("message",))),
        "session_id": st.sampled_from(("s0", "s1", "no")),
        "user_id": st.sampled_from(("aino", "eino")),
        "or_nobody": st.booleans(),
        "metadata": st.sampled_from(({}, {"k": 1}, {"k": 0})),
        "since": st.sampled_from((None, MOMENT.replace(year=2000))),
        "until": st.sampled_from((None, MOMENT.replace(year=2100))),
        "include_archived": st.booleans(),
        "min_salience": st.sampled_from((0.0, 0.01)),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    fields=scopes, parent=st.none() | st.integers(0, 10**6), word=st.sampled_from(WORDS), mode=st.sampled_from(MODES)
)
def test_no_call_returns_an_entry_of_another_namespace(
    filled: Filled, fields: dict[str, object], parent: int | None, word: str, mode: str
) -> None:
    backend, entries = filled
    if parent is not None:  # of any namespace
        fields = {**fields, "parent_id": sorted(entries)[parent % len(entries)]}
    scope = Scope(**fields)  # type: ignore[arg-type]
    listed = backend.list(scope, limit=1_000)
    found = [hit.entry for hit in backend.search(Query(f"the {word}", scope, mode=mode, limit=100))]  # type: ignore[arg-type]
    shown = [*listed, *backend.latest(scope, limit=1_000), *found]
    assert {entry.namespace for entry in shown} <= {scope.namespace}
    assert all(entries[entry.id].namespace == scope.namespace for entry in shown)
    own = [entry for entry in entries.values() if entry.namespace == scope.namespace]
    assert backend.count(scope) == len(listed) <= len(own)
    assert {entry.id for entry in found} <= {entry.id for entry in listed}
    assert backend.pending(scope) == 0
    if fields.keys() == {"namespace"}:
        assert {entry.id for entry in listed} == {entry.id for entry in own}


def test_the_removal_of_a_scope_keeps_other_namespaces(filled: Filled) -> None:
    backend, entries = filled
    kept = {entry.id for entry in entries.values() if entry.namespace != "a"}
    own = backend.list(Scope("a"), limit=1_000)
    assert backend.remove(Scope("a")) == len(own) > 0
    left = {entry.id for name in NAMESPACES for entry in backend.list(Scope(name), limit=1_000)}
    assert left == kept  # also those whose parent was removed
    backend.store(own)
