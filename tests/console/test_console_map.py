"""The map of the console: similar entries are near each other, and the map follows the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer import AgentFormer, connect
from agentformer.console.map import Maps, project
from agentformer.types import Scope

WAIT = 60.0


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", clean_every=0) as opened:
        yield opened


def exact(rows: Any) -> Any:
    """The two principal components by an exact decomposition, each with its largest part positive."""
    centred = rows - rows.mean(axis=0)
    _, strengths, axes = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    axes = axes[:2] * np.where(axes[[0, 1], np.abs(axes[:2]).argmax(axis=1)] < 0, -1, 1)[:, None]
    places = centred @ axes.T
    places = (places - places.min(axis=0)) / (places.max(axis=0) - places.min(axis=0))
    return places, (strengths[:2] ** 2).sum() / (strengths**2).sum()


def test_the_places_are_the_principal_components() -> None:
    random = np.random.default_rng(3)
    rows = (random.standard_normal((400, 40)) * np.linspace(4, 0.1, 40)).astype(np.float32)
    places, explained = project(rows)
    expected, share = exact(rows)
    assert np.abs(places - expected).max() < 0.02
    assert explained == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("rows", [np.ones((1, 8)), np.ones((5, 8)), np.eye(2, 8), np.ones((3, 1))])
def test_few_or_equal_vectors_have_places_too(rows: Any) -> None:
    places, explained = project(rows.astype(np.float32))
    assert places.shape == (len(rows), 2)
    assert np.isfinite(places).all() and 0 <= explained <= 1
    assert places.min() >= 0 and places.max() <= 1


def test_similar_entries_are_near_each_other(af: AgentFormer) -> None:
    for number in range(8):
        af.memory.store(f"the pier is painted blue in spring {number}")
        af.memory.store(f"soup coffee lunch kitchen menu {number}")
    points = Maps(af.backend).get("default", wait_seconds=WAIT).points
    assert points is not None and len(points.entries) == points.total == 16
    contents = {entry.id: entry.content for entry in af.memory.list(limit=100)}
    pier = np.array(["pier" in contents[entry.id] for entry in points.entries])
    x = np.array(points.x)
    assert min(abs(x[pier].mean() - x[~pier].mean()), 10_000) > 3 * max(x[pier].std(), x[~pier].std())


def test_the_map_follows_the_store(af: AgentFormer) -> None:
    now = [0.0]
    maps = Maps(af.backend, clock=lambda: now[0])
    assert maps.get("default", wait_seconds=WAIT) == ("ready", None, "")
    first = af.memory.store("the pier is blue")
    points = maps.get("default", wait_seconds=WAIT).points
    assert points is not None and [entry.id for entry in points.entries] == [first.id]
    assert all(entry.vector.size == 0 and entry.vector.base is None for entry in points.entries)  # no vector is kept
    assert maps.get("default", wait_seconds=WAIT).points is points
    assert maps.get("default", renew=True, wait_seconds=WAIT).points is not points
    af.memory.remove(first.id)
    assert maps.get("default", wait_seconds=WAIT).points is None
    other = af.memory.store("the boat is red")
    kept = maps.get("default", wait_seconds=WAIT).points
    now[0] = 1_000.0
    renewed = maps.get("default", wait_seconds=WAIT).points
    assert renewed is not kept and renewed is not None and renewed.entries[0].id == other.id


def test_a_search_within_points_returns_no_other_entry(af: AgentFormer) -> None:
    entries = af.memory.store_many([f"the pier number {number} is blue" for number in range(600)])
    chosen = [entry.id for entry in entries[:550]]
    hits = af.memory.search("pier", limit=1000, where={"type": "in", "key": "$id", "value": chosen})
    assert {hit.entry.id for hit in hits} == {*chosen}
    assert af.backend.count(Scope(where={"type": "nin", "key": "$id", "value": chosen})) == 50
