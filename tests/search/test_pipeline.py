from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.cli.commands.search import explain_step
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.search.pipeline import above_noise, for_answer, for_context, for_search
from agentformer.search.relevance import Nearness
from agentformer.search.steps import Change, Move, Step, changes, run
from agentformer.tools.result_json import steps_json
from agentformer.types import Hit, Hits, MemoryEntry, Query, Scope

pytestmark = pytest.mark.unit


TURKU = {"created_at": datetime(2026, 2, 1, tzinfo=UTC), "kind": "fact"}
OSLO = {"created_at": datetime(2026, 1, 1, tzinfo=UTC), "kind": "fact"}


def hit(name: str, score: float = 1.0, content: str = "tea", **given: Any) -> Hit:
    return Hit(MemoryEntry(name, content, **given), score)


def ids(hits: Sequence[Hit]) -> list[str]:
    return [each.entry.id for each in hits]


def test_each_step_is_noted_with_what_it_left_out_and_moved() -> None:
    steps = [
        Step("reversed", lambda hits: hits[::-1]),
        Step("nothing", lambda hits: hits),
        Step("without b", lambda hits: (each for each in hits if each.entry.id != "b")),
        Step("limit", lambda hits: hits[:2]),
    ]
    found = run(Hits([hit(name) for name in "abcd"], ("a warning",)), steps)
    assert ids(found) == ["d", "c"]
    assert found.warnings == ("a warning",)
    assert changes(found) == [
        Change("reversed", 0, (Move("d", 4, 1), Move("c", 3, 2))),
        Change("without b", 1, ()),
        Change("limit", 1, ()),
    ]
    assert steps_json(found)[0] == {
        "step": "reversed",
        "left_out": 0,
        "moved": [{"entry_id": "d", "before": 4, "after": 1}, {"entry_id": "c", "before": 3, "after": 2}],
    }


def test_a_step_is_explained_by_the_places_in_the_result() -> None:
    hits = [hit("d"), hit("c")]
    moved = Change("newest facts", 0, (Move("c", 3, 2), Move("d", 2, 1)))
    assert explain_step(moved, hits) == "Step newest facts: hit 1 from 2nd to 1st, hit 2 from 3rd to 2nd"
    assert explain_step(Change("newest facts", 0, (Move("d", 0, 1),)), hits) == (
        "Step newest facts: hit 1 brought back to 1st"
    )
    assert explain_step(Change("limit", 1, ()), hits) == "Step limit: 1 hit left out"


def test_a_newer_fact_that_a_step_left_out_comes_back() -> None:
    hits = Hits([hit("old", 1.0, "Anna lives in Oslo.", **OSLO), hit("new", 0.9, "Anna moved to Turku.", **TURKU)])
    found = for_answer(hits, Query("Where is Anna's home?"), lambda each: each.entry.id != "new")
    assert ids(found) == ["new", "old"]
    assert changes(found) == [
        Change("usable", 1, ()),
        Change("newest facts", 0, (Move("new", 0, 1), Move("old", 1, 2))),
    ]


def test_hits_that_no_pipeline_has_ordered_have_no_changes() -> None:
    assert changes(Hits([hit("a")])) == []
    assert changes(run(Hits(), [Step("limit", lambda hits: hits[:1])])) == []


def test_a_hit_without_a_term_of_the_query_needs_the_lowest_cosine() -> None:
    near = replace(hit("a"), dense_score=0.3, dense_rank=1)
    far, unranked = replace(near, dense_score=0.29), replace(near, dense_score=None)
    word = replace(near, dense_score=0.1, lexical_rank=1)
    step = above_noise(0.3, Nearness(Hits()))
    assert list(step.apply(Hits([near, far, unranked, word]))) == [near, word]
    assert list(step.apply(Hits([far], one_sided=True))) == [far]


def test_a_search_weighs_by_salience_and_then_applies_its_least_score_and_limit() -> None:
    hits = Hits([hit("a", 0.8, salience=0.0), hit("b", 0.75), hit("c", 0.74), hit("d", 0.1)], one_sided=True)
    query = Query("tea", limit=2, min_score=0.73)
    found = for_search(hits, query, HashingEmbedder(), noise_floor=0.0)
    assert [(each.entry.id, round(each.score, 3)) for each in found] == [("b", 0.75), ("c", 0.74)]
    assert [change.step for change in changes(found)] == ["salience", "least score"]


@pytest.mark.parametrize("purpose", ["search", "answer", "context"])
def test_every_purpose_ranks_the_newest_fact_first(purpose: str) -> None:
    hits = Hits([hit("old", 1.0, "Anna lives in Oslo.", **OSLO), hit("new", 0.9, "Anna lives in Turku.", **TURKU)])
    query, embedder = Query("Where does Anna live?", Scope(), 10), HashingEmbedder()
    if purpose == "search":
        found = for_search(hits, query, embedder, noise_floor=0.0, relevant_only=True)
    elif purpose == "answer":
        found = for_answer(hits, query, lambda _: True)
    else:
        found = for_context(hits, query, embedder, lambda _: True)
    assert ids(found) == ["new", "old"]
    assert changes(found) == [Change("newest facts", 0, (Move("new", 2, 1), Move("old", 1, 2)))]


def test_a_context_leaves_out_what_has_no_room_and_what_is_not_relevant() -> None:
    hits = Hits([hit("b", content="tea " * 9), hit("c", content="a tram"), hit("d")])
    query = Query("tea", Scope(), 10)
    found = for_context(hits, query, None, lambda each: len(each.entry.content) < 20)
    assert ids(found) == ["d"]
    assert [(change.step, change.left_out) for change in changes(found)] == [
        ("room", 1),
        ("relevance", 1),
    ]


def test_a_search_of_a_memory_says_which_steps_ordered_it(tmp_path: Path) -> None:
    with agentformer.connect(index_dir=tmp_path, embedder="hashing") as af:
        af.memory.store("Anna lives in Oslo.", kind="fact", occurred_at="2026-01-01T00:00:00+00:00")
        af.memory.store("Anna lives in Turku.", kind="fact", occurred_at="2026-02-01T00:00:00+00:00")
        found = af.memory.search("Where does Anna live?", limit=1)
    assert [step.name for step in found.steps] == [
        "found",
        "salience",
        "noise floor",
        "newest facts",
        "least score",
        "limit",
    ]
    assert ids(found) == [found.steps[-3].ids[0]]
