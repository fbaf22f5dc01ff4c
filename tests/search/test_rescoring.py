"""Exact cosines of all hits, and of all candidates if vectors decide alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.vectors import IndexOptions
from agentformer.index.vectors.index import VectorHits
from agentformer.index.words.query import View, WordHits
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend, FaissOptions
from agentformer.search import vector_search
from agentformer.search.row_cache import RankedRows
from agentformer.search.vector_search import exact_vectors, rescore
from agentformer.testing import make_entry
from agentformer.types import Query, Scope, Vector

TEXTS = [f"numbat {n % 7} under lantern {n % 11} in room {n}" for n in range(90)]
ASKED = "numbat 3 under lantern 5"


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[FaissMemoryBackend]:
    plan = IndexOptions(train_at=4, exact_rows=2, target_recall=1.0, train_after=0)
    made = FaissMemoryBackend(tmp_path, HashingEmbedder(), FaissOptions(index=plan))
    made.store([make_entry(text) for text in TEXTS])
    made.embed_pending()
    yield made
    made.close()


def cosine(text: str) -> float:
    embedder = HashingEmbedder()
    return float(embedder.embed_documents([text])[0] @ embedder.embed_query(ASKED))


def nearby(backend: FaissMemoryBackend, query: Vector, scores: list[float], sure: int = 0) -> VectorHits:
    """Every window, in the order of these made-up scores."""
    with backend._database.reading() as connection:
        rows = connection.execute("SELECT id, entry, vector FROM windows ORDER BY id").fetchall()
    order = np.argsort(-np.array(scores), kind="stable")
    windows, entries, vectors = (np.array([row[n] for row in rows], np.int64)[order] for n in range(3))
    return VectorHits(query, len(rows), windows, entries, vectors, np.array(scores, np.float32)[order], sure)


def test_each_hit_tells_its_exact_cosine_wherever_it_was_ranked(
    backend: FaissMemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_search, "_RESCORED", 1)
    hits = [hit for hit in backend.search(Query(ASKED, limit=60)) if hit.dense_score is not None]
    assert len(hits) > 40
    for hit in hits:
        assert hit.dense_score == pytest.approx(cosine(hit.entry.content), abs=1e-6)


def test_ranks_that_decide_alone_are_all_exact(backend: FaissMemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "_RESCORED", 1)
    hits = backend.search(Query(ASKED, limit=60, mode="dense"))
    scores = [hit.dense_score or 0.0 for hit in hits]
    assert scores == sorted(scores, reverse=True)
    best = sorted((cosine(text) for text in TEXTS), reverse=True)[:60]
    assert scores == pytest.approx(best, abs=1e-6)


def test_ranks_are_all_exact_where_words_find_nothing(
    backend: FaissMemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_search, "_RESCORED", 1)
    nothing = WordHits([], [])
    monkeypatch.setattr(View, "search", lambda *_: nothing)
    alone = backend.search(Query(ASKED, limit=60, mode="dense"))
    assert [hit.entry.id for hit in backend.search(Query(ASKED, limit=60))] == [hit.entry.id for hit in alone]


def test_only_the_first_are_read_and_the_others_stay_behind_them(
    backend: FaissMemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = HashingEmbedder().embed_query(ASKED)
    wrong = [5.0 - n / 100 for n in range(len(TEXTS))]  # far too high, and in the order of storing
    monkeypatch.setattr(vector_search, "_RESCORED", 10)
    with backend._database.reading() as connection:
        read = RankedRows().reads(connection).vectors
        found = rescore(read, nearby(backend, query, wrong), alone=False)
        assert found.exact == 10
        assert found.scores[:10] == pytest.approx(sorted(map(cosine, TEXTS[:10]), reverse=True), abs=1e-6)
        assert found.scores[10:] == pytest.approx(wrong[10:], abs=1e-6)
        assert rescore(read, nearby(backend, query, wrong, sure=25), alone=False).exact == 25
        told, _ = exact_vectors(read, query, found, [0, 30])
    assert told[0] == found.scores[0]
    assert told[30] == pytest.approx(cosine(TEXTS[30]), abs=1e-6)


def test_what_was_removed_meanwhile_keeps_the_score_of_the_index(backend: FaissMemoryBackend) -> None:
    query = HashingEmbedder().embed_query(ASKED)
    seen = nearby(backend, query, [0.25] * len(TEXTS))
    removed = next(iter(backend.list(Scope())))
    backend.remove([removed.id])
    with backend._database.reading() as connection:
        found = rescore(RankedRows().reads(connection).vectors, seen, alone=True)
    assert found.scores.count(0.25) == 1
    assert len(found.entries) == len(TEXTS)


def test_nothing_near_is_nothing_ranked(backend: FaissMemoryBackend) -> None:
    nothing = np.zeros(0, np.int64)
    query = HashingEmbedder().embed_query(ASKED)
    near = VectorHits(query, 5, nothing, nothing, nothing, np.zeros(0, np.float32), 0)
    with backend._database.reading() as connection:
        found = rescore(RankedRows().reads(connection).vectors, near, alone=True)
    assert found[:5] == ([], [], [], [], 0)
