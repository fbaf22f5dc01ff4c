"""Reranking: no hit is lost, scores still fall, and a failure keeps the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.rerankers.guarded import GuardedReranker, Reranking, passage, rerank
from agentformer.testing import OverlapReranker, make_entry
from agentformer.types import Hit, Hits, Query, Span, Vector, Vote


class Scored:
    """Gives each text the score that it was made with, by the text's last word."""

    name = "scored"

    def __init__(self, scores: Sequence[float]) -> None:
        self._scores = scores

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        return np.array([self._scores[int(text.split()[-1])] for text in texts], dtype=np.float32)


def hits_of(scores: Sequence[float]) -> Hits:
    votes = (Vote("words", 1, 0.5),)
    return Hits([Hit(make_entry(f"note {n}"), score, votes=votes) for n, score in enumerate(scores)], ("slow",))


def test_the_first_n_are_ordered_anew_and_take_over_the_scores_of_their_places() -> None:
    hits = hits_of([0.9, 0.8, 0.7, 0.6])
    ranked, warnings = rerank(Scored([-3.0, 9.5, 0.25, 99.0]), "q", hits, 3)
    assert warnings == ()
    assert [hit.entry.content for hit in ranked] == ["note 1", "note 2", "note 0", "note 3"]
    assert [hit.score for hit in ranked] == [0.9, 0.8, 0.7, 0.6]
    assert [hit.votes[1:] for hit in ranked] == [
        (Vote("reranker", 1, 1.0),),
        (Vote("reranker", 2, 1.0),),
        (Vote("reranker", 3, 1.0),),
        (),
    ]
    assert all(hit.votes[0] == Vote("words", 1, 0.5) for hit in ranked)


def test_equals_keep_their_order_and_whoever_sorts_by_score_again_keeps_it_too() -> None:
    hits = hits_of([0.5] * 6)
    ranked, _ = rerank(Scored([1.0, 2.0, 2.0, 1.0, 3.0, 0.0]), "q", hits, 5)
    told = [int(hit.entry.content.split()[-1]) for hit in ranked]
    assert told == [4, 1, 2, 0, 3, 5]
    again = sorted(ranked, key=lambda hit: (-hit.score, hit.entry.id))
    assert [hit.entry.id for hit in again] == [hit.entry.id for hit in ranked]
    assert ranked[0].score == 0.5 and ranked[-1].score == pytest.approx(0.5)


def test_of_a_long_entry_what_was_found_is_read_and_what_was_passed_over_is_told() -> None:
    content = "begin " + "filler " * 5_000 + "keys " + "filler " * 5_000 + "end"
    place = content.index("keys")
    spans = (Span(place, place + 4), None, Span(len(content) - 3, len(content)))
    hits = [Hit(make_entry(content), 0.9 - n / 10, span=span) for n, span in enumerate(spans)]
    reranker = OverlapReranker()
    ranked, warnings = rerank(reranker, "keys", [*hits, Hit(make_entry("short"), 0.1)], 4)
    (_, texts), *_ = reranker.asked
    assert [len(text) for text in texts] == [20_000] * 3 + [5]
    assert "keys" in texts[0] and texts[1].startswith("begin") and texts[2].endswith("end")
    assert ranked[0].entry.id == hits[0].entry.id
    assert warnings == ("the reranker read only 20,000 characters of each of 3 long entries",)


def test_what_a_reranker_passes_over_is_told_through_its_guard_too() -> None:
    class Bounded(Scored):
        def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
            return self.scores(query, texts), ("of 1 long passage a part was read",)

    hits = hits_of([0.9, 0.8])
    for reranker in (Bounded([1.0, 2.0]), GuardedReranker("bounded", lambda: Bounded([1.0, 2.0]))):
        ranked, warnings = rerank(reranker, "q", hits, 2)
        assert [hit.entry.content for hit in ranked] == ["note 1", "note 0"]
        assert warnings == ("of 1 long passage a part was read",)
    assert rerank(GuardedReranker("plain", lambda: Scored([1.0, 2.0])), "q", hits, 2)[1] == ()


@given(
    scores=st.lists(st.floats(0, 1), max_size=12),
    said=st.lists(st.floats(-1e6, 1e6, width=32), min_size=12, max_size=12),
    n=st.integers(0, 14),
)
def test_no_hit_is_lost_and_scores_fall_within_their_range(scores: list[float], said: list[float], n: int) -> None:
    hits = hits_of(sorted(scores, reverse=True))
    ranked, _ = rerank(Scored(said), "q", hits, n)
    assert sorted(hit.entry.id for hit in ranked) == sorted(hit.entry.id for hit in hits)
    assert [hit.entry.id for hit in ranked[n:]] == [hit.entry.id for hit in hits[n:]]
    told = [hit.score for hit in ranked]
    assert told == sorted(told, reverse=True)
    assert told == pytest.approx([hit.score for hit in hits], rel=1e-6)
    assert all(0 <= score <= 1 for score in told)


def test_one_that_fails_leaves_the_order_and_says_so() -> None:
    hits = hits_of([0.9, 0.8])
    ranked, warnings = rerank(OverlapReranker(down=True), "q", hits, 2)
    assert ranked == [*hits]
    assert warnings == ("not reranked: the reranker was switched off by a test",)


def test_it_is_not_asked_about_one_hit_or_none() -> None:
    reranker = OverlapReranker(down=True)
    for hits in (hits_of([]), hits_of([0.9])):
        assert rerank(reranker, "q", hits, 30) == ([*hits], ())
    assert rerank(reranker, "q", hits_of([0.9, 0.8]), 1)[1] == ()
    assert reranker.asked == []


def test_it_reads_where_a_passage_belongs_and_its_content() -> None:
    assert passage(make_entry("Tea is at four.", context="Handbook >\n Meals", title="x")) == (
        "Handbook > Meals\nTea is at four."
    )
    assert passage(make_entry("Tea is at four.", title="Meals")) == "Meals\nTea is at four."
    assert passage(make_entry("Tea is at four.")) == "Tea is at four."


def test_a_search_looks_deeper_than_its_limit_and_keeps_to_it() -> None:
    hits = hits_of([0.9, 0.8, 0.7, 0.6, 0.5])
    asked: list[Query] = []

    def search(query: Query) -> Hits:
        asked.append(query)
        return Hits(hits[: query.limit], hits.warnings)

    reranking = Reranking(Scored([0.0, 1.0, 2.0, 3.0, 4.0]), 4)
    found = reranking.search(search, Query("q", limit=2))
    assert [hit.entry.content for hit in found] == ["note 3", "note 2"] and found.warnings == ("slow",)
    whole = reranking.search(search, Query("q", limit=5))
    assert [hit.entry.content for hit in whole] == ["note 3", "note 2", "note 1", "note 0", "note 4"]
    assert [hit.entry.content for hit in reranking.search(search, Query("q", limit=1))] == ["note 3"]
    assert reranking.search(search, Query("q", limit=0)) == []
    modes: tuple[Literal["lexical", "dense"], ...] = ("lexical", "dense")
    for mode in modes:
        alone = reranking.search(search, Query("q", limit=2, mode=mode))
        assert [hit.entry.content for hit in alone] == ["note 0", "note 1"] and len(alone[0].votes) == 1
    assert [query.limit for query in asked] == [4, 5, 4, 0, 2, 2]


def test_only_an_entry_over_the_limit_is_reported_as_read_in_part() -> None:
    for length, warned in ((20_000, False), (20_001, True)):
        hits = [Hit(make_entry("x" * length), 1 - n / 10) for n in range(2)]
        _, warnings = rerank(OverlapReranker(), "x", hits, 2)
        assert bool(warnings) is warned
