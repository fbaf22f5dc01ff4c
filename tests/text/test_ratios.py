"""Ratios that a question names, and their items."""

from __future__ import annotations

import pytest

from agentformer.text.question_types import ratio_items


@pytest.mark.parametrize(
    ("text", "language", "item"),
    [
        ("Are the gross margins of the company consistent?", "en", "cost of sales"),
        ("What is the days payable outstanding (DPO)?", "en", "accounts payable"),
        ("Wie hoch ist die Eigenkapitalquote?", "de", "bilanzsumme"),
        ("Mikä on omavaraisuusaste?", "fi", "taseen loppusumma"),
        ("Hur stor är rörelsemarginalen?", "sv", "rörelseresultat"),
    ],
)
def test_a_ratio_gives_the_items_from_which_it_is_computed(text: str, language: str, item: str) -> None:
    assert item in ratio_items(text, language)


@pytest.mark.parametrize(
    ("text", "language"),
    [("What is the margin of the page?", "en"), ("What is the gross margin?", "fi"), ("Who keeps the keys?", "")],
)
def test_a_text_without_a_ratio_of_its_language_has_no_items(text: str, language: str) -> None:
    assert ratio_items(text, language) == ()


def test_items_of_several_ratios_are_listed_once() -> None:
    items = ratio_items("Compare the quick ratio with the current ratio.", "en")
    assert len(items) == len(set(items))
    assert {"accounts receivable", "total current liabilities"} <= set(items)
