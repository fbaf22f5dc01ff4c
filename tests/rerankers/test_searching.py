"""Searches and answers with a reranker: its order counts, its failure costs nothing but a warning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentformer
from agentformer.errors import InvalidInput
from agentformer.registry import PARTS
from agentformer.rerankers.guarded import passage
from agentformer.settings import Settings
from agentformer.testing import OverlapReranker
from agentformer.types import Hit, Query, Scope, Vector

NOTES = [
    "The keys hang in the blue cupboard of the office.",
    "Keys, keys, keys: a song about keys.",
    "The blue cupboard was bought in 1998.",
    "Who paints the cupboard blue must keep the office open.",
    "A cupboard without keys is an open cupboard.",
    "The office closes at four.",
]
MADE: list[OverlapReranker] = []


FOUND: list[str] = []


class Backwards(OverlapReranker):
    """Turns the order of `FOUND` around, whatever was asked."""

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        super().scores(query, texts)
        return np.array([FOUND.index(text) for text in texts], dtype=np.float32)


def overlap(model: str, settings: Settings) -> OverlapReranker:
    MADE.append(Backwards() if model == "backwards" else OverlapReranker(down=model == "down"))
    return MADE[-1]


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(PARTS["rerankers"], "overlap", f"{__name__}:overlap")
    yield
    MADE.clear()


def opened(folder: Path, **settings: Any) -> agentformer.AgentFormer:
    values = {"embedder": "hashing", "clean_every": 0, **settings}
    return agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u", **values)


def contents(hits: Sequence[Hit]) -> list[str]:
    return [hit.entry.content for hit in hits]


def test_hits_come_in_the_rerankers_order_with_its_vote(tmp_path: Path) -> None:
    question = "blue cupboard office"
    with opened(tmp_path) as af:
        af.memory.store_many({"content": note} for note in NOTES)
        plain = af.backend.search(Query(question))
    FOUND[:] = [passage(hit.entry) for hit in plain]
    with opened(tmp_path, reranker="overlap:backwards", rerank_hits=4) as af:
        hits = af.backend.search(Query(question))
        few = af.backend.search(Query(question, limit=2))
        words = af.backend.search(Query(question, mode="lexical"))
        assert len(MADE) == 1
    found = contents(plain)
    assert len(found) > 4 and contents(hits) == [*found[3::-1], *found[4:]]
    assert [hit.votes[-1] for hit in hits[:4]] == [("reranker", rank, 1.0) for rank in range(1, 5)]
    assert all(vote.name != "reranker" for hit in [*hits[4:], *words] for vote in hit.votes)
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in plain])
    assert list(few) == list(hits[:2])
    assert {hit.entry.id: dataclasses.replace(hit, score=0, votes=()) for hit in hits} == {
        hit.entry.id: dataclasses.replace(hit, score=0, votes=()) for hit in plain
    }


def test_a_failing_one_leaves_everything_as_it_is_and_is_told(tmp_path: Path) -> None:
    with opened(tmp_path) as af:
        af.memory.store_many({"content": note} for note in NOTES)
        plain = af.backend.search(Query("blue cupboard"))
    with opened(tmp_path, reranker="overlap:down") as af:
        hits = af.backend.search(Query("blue cupboard"))
        again = af.backend.search(Query("blue cupboard"))
        assert len(MADE[0].asked) == 1
    assert list(hits) == list(again) == list(plain)
    assert hits.warnings == ("not reranked: the reranker was switched off by a test",)
    assert "next attempt in" in again.warnings[0]


def test_answers_profit_and_see_deeper_than_their_three_passages(tmp_path: Path) -> None:
    question = "Which song is it?"
    with opened(tmp_path) as af:
        for number in range(8):
            af.rag.upload(f"Song {number}. It is a song about {number} boats.".encode(), name=f"{number}.txt")
        plain = af.backend.search(Query(question, Scope(kinds=("chunk",))))
        assert contents(af.rag.query(question).hits) == contents(plain[:3])
    FOUND[:] = [passage(hit.entry) for hit in plain]
    with opened(tmp_path, reranker="overlap:backwards") as af:
        answer = af.rag.query(question)
    assert len(plain) == 8 and contents(answer.hits) == contents(plain[:4:-1])
    assert [hit.votes[-1] for hit in answer.hits] == [("reranker", rank, 1.0) for rank in (1, 2, 3)]
    assert all("\n" in text for text in MADE[0].asked[0][1])  # it is told of what document each is a part


def test_an_unknown_provider_is_told_before_anything_is_searched(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no 'nothing'; the known names are overlap, sbert"):
        opened(tmp_path, reranker="nothing:at-all")


@pytest.mark.model
def test_a_cross_encoder_is_loaded_by_the_first_search_and_its_scores_decide(tmp_path: Path, model: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import CrossEncoder

    with opened(tmp_path, reranker=f"sbert:{model}") as af:
        af.memory.store_many({"content": note, "title": "Notes"} for note in NOTES)
        hits = af.backend.search(Query("the keys of the office"))
    logits = CrossEncoder(str(model), device="cpu").predict(
        [("the keys of the office", passage(hit.entry)) for hit in hits]
    )
    assert len(hits) == len(NOTES) and hits.warnings == ()
    assert [*logits] == sorted(logits, reverse=True)


@pytest.mark.process
def test_a_model_that_is_not_there_costs_a_warning_and_no_search(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    with opened(tmp_path, reranker=f"sbert:{tmp_path}/gone") as af:
        af.memory.store("The keys hang in the blue cupboard.")
        af.memory.store("The cupboard is blue.")
        hits = af.memory.search("blue cupboard")
    assert len(hits) == 2
    (warning,) = hits.warnings
    assert warning.startswith("not reranked: the reranker") and "could not be loaded" in warning
