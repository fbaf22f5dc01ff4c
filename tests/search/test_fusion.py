from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentformer
from agentformer.errors import InvalidInput
from agentformer.search.fusion import merge

rankings = st.lists(st.lists(st.integers(0, 20), unique=True, max_size=10), min_size=1, max_size=4)


def test_scores_are_those_of_the_formula() -> None:
    merged = dict(merge([["a", "b", "c"], ["c", "a", "d"]], k=60))
    most = 2 / 61
    assert merged == pytest.approx(
        {
            "a": (1 / 61 + 1 / 62) / most,
            "b": (1 / 62) / most,
            "c": (1 / 63 + 1 / 61) / most,
            "d": (1 / 63) / most,
        }
    )


def test_the_leader_of_every_list_scores_one() -> None:
    assert merge([["a", "b"], ["a", "c"]])[0] == ("a", pytest.approx(1.0))
    assert merge([["a"], []], weights=[1, 1]) == [("a", pytest.approx(0.5))]


def test_a_weight_moves_the_result_and_zero_silences_a_list() -> None:
    assert [key for key, _ in merge([["a", "b"], ["b", "a"]], weights=[2, 1])] == ["a", "b"]
    assert [key for key, _ in merge([["a", "b"], ["b", "a"]], weights=[1, 2])] == ["b", "a"]
    assert merge([["a"], ["b", "c"]], weights=[0, 1]) == [("b", pytest.approx(1.0)), ("c", pytest.approx(61 / 62))]


def test_equal_scores_keep_the_order_of_first_meeting() -> None:
    assert [key for key, _ in merge([["z"], ["a"]])] == ["z", "a"]


def test_nothing_merges_to_nothing() -> None:
    assert merge([]) == [] == merge([[], []]) == merge([["a"]], weights=[0])


def test_wrong_weights_are_refused() -> None:
    for weights in [[1.0], [1.0, -1.0], [1.0, 1.0, 1.0]]:
        with pytest.raises(ValueError, match="one weight"):
            merge([["a"], ["b"]], weights=weights)


@given(ranked=rankings, k=st.integers(1, 100))
def test_scores_are_in_range_sorted_and_of_every_item_once(ranked: list[list[int]], k: int) -> None:
    merged = merge(ranked, k=k)
    assert {key for key, _ in merged} == {key for items in ranked for key in items}
    assert len(merged) == len(dict(merged))
    scores = [score for _, score in merged]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 + 1e-9 for score in scores)


@given(ranked=rankings)
def test_an_item_ahead_in_every_list_is_ahead_in_the_result(ranked: list[list[int]]) -> None:
    with_both = [["first", "second", *map(str, items)] for items in ranked]
    assert [key for key, _ in merge(with_both)][:2] == ["first", "second"]


def test_an_item_that_a_list_repeats_counts_where_it_first_stands() -> None:
    assert merge([["a", "b", "a", "a"]]) == merge([["a", "b"]])
    assert merge([["a", "a", "b"]]) == merge([["a", "b"]])


def test_what_cannot_be_merged_is_named() -> None:
    for lists, options, field in [
        (["abc", ["a"]], {}, "ranked_lists"),
        ([b"abc"], {}, "ranked_lists"),
        ([["a"]], {"weights": [float("nan")]}, "weights"),
        ([["a"]], {"weights": [float("inf")]}, "weights"),
        ([["a"]], {"weights": []}, "weights"),
        ([["a"]], {"k": -1}, "k"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            merge(lists, **options)
        assert caught.value.field == field and isinstance(caught.value, ValueError)


def test_an_application_joins_its_own_search_with_ours_by_its_own_ids(tmp_path: Path) -> None:
    """As docs/RETRIEVAL.md shows it."""
    tickets = {"T1": "Aino prefers tea with honey.", "T2": "The tea room opens at nine.", "T3": "Honey was delivered."}
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        for number, text in tickets.items():
            af.memory.store(text, source_type="ticket", source_id=number)
        hits = af.memory.search("honey in her tea", source_type="ticket", mode="lexical")
    ours = [str(hit.entry.source_id) for hit in hits]
    assert ours[0] == "T1" and sorted(ours) == ["T1", "T2", "T3"]
    joined = agentformer.merge([ours, ["T9", "T3"]], weights=[1.0, 2.0])
    assert [number for number, _ in joined][:2] == ["T3", "T9"]
    assert joined[1][1] == pytest.approx(2 / 3)
    assert agentformer.merge([ours, ["T9", "T3"]], weights=[1.0, 0.0]) == agentformer.merge([ours])
