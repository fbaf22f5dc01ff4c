"""The measures: by hand, against ir-measures on random rankings, and their intervals against what is known of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ir_measures", reason="ir-measures is not installed")

import ir_measures
from ir_measures import RR, P, R, Success, nDCG

from agentformer.errors import InvalidInput
from agentformer.evaluation.metrics import METRICS, Interval, difference, intervals, metric


def test_measures_are_as_by_hand() -> None:
    for name, ranks, worth in [
        ("recall@3", (1, 4, None, 3), 0.5),
        ("recall@10", (None,), 0.0),
        ("recall_any@3", (4, 3), 1.0),
        ("recall_any@3", (4, 5), 0.0),
        ("recall_all@5", (4, 5), 1.0),
        ("recall_all@5", (4, 6), 0.0),
        ("recall_all@5", (4, None), 0.0),
        ("precision@5", (1, 5, 6), 0.4),
        ("mrr@10", (7, 4), 0.25),
        ("mrr@10", (11,), 0.0),
        ("ndcg@10", (1, 2), 1.0),
        ("ndcg@10", (2,), 1 / math.log2(3)),
        ("ndcg@2", (1, 3), 1 / (1 + 1 / math.log2(3))),
    ]:
        assert metric(name)(ranks) == pytest.approx(worth)


THEIRS = {"recall": R, "recall_any": Success, "precision": P, "mrr": RR, "ndcg": nDCG}


@given(st.lists(st.one_of(st.none(), st.integers(1, 15)), min_size=1, max_size=8), st.sampled_from((1, 3, 5, 10)))
def test_measures_are_those_of_ir_measures(ranks: list[int | None], k: int) -> None:
    places = [rank for rank in dict.fromkeys(ranks) if rank is not None]
    ranks = [*places, *[None] * ranks.count(None)] or [None]
    relevant = {f"d{rank}" if rank is not None else f"lost{n}": 1 for n, rank in enumerate(ranks)}
    run = {f"d{place}": -float(place) for place in range(1, 16)}
    for name, measure in THEIRS.items():
        theirs = ir_measures.calc_aggregate([measure @ k], {"q": relevant}, {"q": run})[measure @ k]
        assert metric(f"{name}@{k}")(ranks) == pytest.approx(theirs, abs=1e-9), name


def test_an_unknown_measure_is_refused_with_the_known_ones() -> None:
    for name in ["recall", "recall@", "recall@0", "recall@-1", "recall@x", "map@5", "recall@5000", ""]:
        with pytest.raises(InvalidInput, match="must be one of recall, recall_any"):
            metric(name)
        assert all(metric(known)((1,)) for known in METRICS)


# ---------------------------------------------------------------------- intervals


def test_an_interval_is_as_wide_as_the_spread_says() -> None:
    [found] = intervals([[0.0, 1.0] * 100])
    assert found.value == 0.5
    wanted = 1.96 * 0.5 / math.sqrt(200)
    assert found.high - 0.5 == pytest.approx(wanted, abs=0.01) and 0.5 - found.low == pytest.approx(wanted, abs=0.01)
    assert intervals([[1.0] * 9]) == [Interval(1.0, 1.0, 1.0)]


def test_intervals_hold_the_true_mean_as_often_as_they_say() -> None:
    random = np.random.default_rng(5)
    samples = [(random.random(60) < 0.7).astype(float).tolist() for _ in range(200)]
    held = sum(low <= 0.7 <= high for sample in samples for _, low, high in intervals([sample], resamples=400))
    assert 180 <= held <= 198  # the percentile interval of a share is known to be a little too narrow


def test_intervals_follow_from_values_and_seed_alone() -> None:
    values = [[0.0, 0.3, 1.0, 0.2, 0.9], [1.0, 0.0, 0.0, 1.0, 1.0]]
    assert intervals(values) == intervals(values)
    assert intervals(values) != intervals(values, seed=1)
    assert intervals(values[:1]) == intervals(values)[:1]  # columns share their draws


def test_many_values_are_drawn_in_parts_to_the_same_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [[float(n % 3) for n in range(50)]]
    whole = intervals(values)
    monkeypatch.setattr("agentformer.evaluation.metrics._AT_ONCE", 170)
    assert intervals(values) == whole


def test_a_paired_difference_is_judged_by_the_questions_that_differ() -> None:
    hard = [float(n % 2) for n in range(100)]
    better = [1.0 if n < 12 else value for n, value in enumerate(hard)]
    found = difference(better, hard)
    assert found.value == pytest.approx(0.06) and found.significant
    apart = intervals([better, hard])
    assert apart[0].low < apart[1].high  # which their own intervals do not tell
    assert not difference(hard, hard).significant and not difference(better[-60:], hard[-60:]).significant
