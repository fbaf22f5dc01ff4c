"""The table of the weights of the search: off, on, and chosen without the family."""

from __future__ import annotations

from agentformer.search import boosts
from bench.quality.ablation import WEIGHTS, changed, left_out


def test_a_weight_has_another_value_for_a_while() -> None:
    before = boosts._TITLE_WEIGHT
    with changed("mentions", 0.0):
        assert boosts._TITLE_WEIGHT == 0.0
    with changed("", 0.0):
        assert before == boosts._TITLE_WEIGHT
    assert before == boosts._TITLE_WEIGHT


def test_every_weight_exists_and_has_a_value_that_differs() -> None:
    for weight in WEIGHTS.values():
        assert getattr(weight.module, weight.name) not in weight.values


def test_a_family_is_left_out_of_the_choice_of_its_weight() -> None:
    same = {(title, value): [0.5, 0.5] for title, weight in WEIGHTS.items() for value in weight.values}
    found = {
        "facts": {("", 0.0): [0.5, 0.5], **same, ("mentions", 0.4): [1.0, 1.0]},
        "code": {("", 0.0): [0.5, 0.5], **same, ("mentions", 0.4): [0.0, 0.5]},
    }
    rows = left_out(found)
    assert "| figure of the code | 0.500 | 0.500 |" in rows
    assert next(row for row in rows if row.startswith("| mentions")) == "| mentions (0.8) | = | -0.250 at 0.4 |"
    assert next(row for row in rows if row.startswith("| document")) == "| document (0.5) | = | = |"
