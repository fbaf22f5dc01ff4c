"""The vectors of small scopes that a process keeps in memory are those that the server has."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.postgres import vectors
from agentformer.testing import make_entry
from agentformer.types import Hits, Query, Scope
from tests.backends.postgres_server import open_store

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("postgres_url")]

PLACES = ("lake", "river", "harbour", "marsh", "island")


def _found(hits: Hits) -> list[tuple[str, float]]:
    return [(hit.entry.id, round(hit.dense_score or 0, 6)) for hit in hits]


def _cached(memory: Any) -> list[Any]:
    return [known for known in memory._vectors._scopes._known.values() if known]


def test_a_scope_in_memory_sees_each_write_of_other_nodes(tmp_path: Path) -> None:
    """Each change of one node is seen by the next search of another one, with the scores of a new process."""
    chance, first = random.Random(7), open_store(tmp_path, HashingEmbedder())
    second = open_store(tmp_path, HashingEmbedder())
    ids = [entry.id for entry in first.store([make_entry(f"a heron at the {PLACES[n % 5]} {n}") for n in range(30)])]
    query = Query("heron at the harbour", mode="dense", limit=10)
    for _ in range(2):
        second.search(query)
    (known,) = _cached(second)
    assert len(known[1].rows) == 30
    for step in range(25):
        match step % 4:
            case 0:
                ids += [entry.id for entry in first.store([make_entry(f"the heron of the harbour {step}")])]
            case 1:
                first.update(chance.choice(ids), {"content": f"a heron in the {chance.choice(PLACES)} {step}"})
            case 2:
                first.remove([ids.pop(chance.randrange(len(ids)))])
            case 3:
                first.update(chance.choice(ids), {"namespace": chance.choice(("default", "north"))})
        fresh = open_store(tmp_path, HashingEmbedder())
        assert _found(second.search(query)) == _found(fresh.search(query)), step
        fresh.close()
    (known,) = _cached(second)
    assert len(known[1].rows) == first.count(Scope("default"))
    first.close()
    second.close()


def test_a_scope_is_read_again_after_a_move_to_another_space(tmp_path: Path) -> None:
    memory = open_store(tmp_path, HashingEmbedder())
    memory.store([make_entry(f"a heron at the {place}") for place in PLACES])
    query = Query("heron at the marsh", mode="dense")
    before = [_found(memory.search(query)) for _ in range(3)]
    assert before[0] == before[1] == before[2]
    memory.reembed(HashingEmbedder(64))
    memory.close()
    memory = open_store(tmp_path, HashingEmbedder(64))
    for _ in range(3):
        memory.search(query)
    (known,) = _cached(memory)
    assert known[1].rows.shape == (5, 64)
    memory.close()


def test_the_vectors_of_rarely_searched_scopes_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = open_store(tmp_path, HashingEmbedder())
    users = [f"user-{n}" for n in range(6)]
    memory.store([make_entry(f"a heron at the {place} of {user}", user_id=user) for user in users for place in PLACES])
    monkeypatch.setattr(vectors, "_MAX_BYTES", 3 * 5 * (HashingEmbedder().space.dimension * 4 + vectors._ROW_BYTES))
    for user in users:
        for _ in range(2):
            hits = memory.search(Query("heron", Scope("default", user_id=user), mode="dense"))
            assert {hit.entry.user_id for hit in hits} == {user} and len(hits) == 5
    assert len(_cached(memory)) == 3
    memory.close()


def test_a_scope_in_memory_returns_windows_of_enough_entries() -> None:
    """An entry with many near windows takes no place of another entry."""
    entries = np.repeat(np.arange(1, 4), [60, 1, 1])
    rows = np.zeros((62, 2), np.float32)
    rows[:60, 0], rows[60, 0], rows[61, 0] = 1, 0.5, 0.25
    windows = vectors.Windows(np.arange(62), entries, np.arange(62), rows, np.empty(62, object))
    hits, best = vectors.nearest(windows, np.array([1, 0], np.float32), 3, 2)
    assert best.windows.tolist() == hits.windows.tolist()
    assert {*hits.entries.tolist()} == {1, 2, 3}
    assert hits.scores[-1] == 0.25
