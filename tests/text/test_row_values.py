"""The values of tables for which a question asks."""

from __future__ import annotations

import pytest

from agentformer.text.questions import classify
from agentformer.text.row_values import asked_value, extreme_rows, label_share, number_of, period_fit
from agentformer.text.table_rows import find_rows

SALES = """Sales by region (in thousands)
2023 2022 2021
Harbour 410 600 300
Island 900 880 700
Forest 350 345 910
Total 1,660 1,825 1,910
"""
GROWTH = """Change of sales
2023 2022 % Change
Harbour 410 600 (32)
Island 900 880 2
Forest 350 345 1
"""


def labels(question: str, text: str, language: str = "en") -> dict[str, float]:
    asked = asked_value(classify(question, language), question.casefold(), language)
    tables = find_rows(text)
    names = {row.span: row.label for table in tables for row in table.rows}
    return {names[span]: value for span, value in extreme_rows(asked, tables, language).items()}


@pytest.mark.parametrize(
    ("question", "language", "label"),
    [
        ("Which region had the highest sales in FY2023?", "en", "Island"),
        ("Which region had the lowest sales in 2022?", "en", "Forest"),
        ("Which region had the biggest drop of sales in 2023?", "en", "Harbour"),
        ("Which region had the largest growth of sales in 2022?", "en", "Harbour"),
        ("Welche Region hatte 2021 die höchsten Umsätze?", "de", "Forest"),
        ("Missä alueessa myynti oli suurin vuonna 2023?", "fi", "Island"),
        ("Vilken region hade lägst försäljning 2023?", "sv", "Forest"),
    ],
)
def test_the_highest_and_the_lowest_value_of_the_asked_year_are_found(question: str, language: str, label: str) -> None:
    assert labels(question, SALES, language) == {label: 1.0, "Total": -1.0}


def test_a_column_of_changes_is_read_as_it_is() -> None:
    assert labels("Which region had the biggest drop of sales in 2023?", GROWTH) == {"Harbour": 1.0}
    assert labels("Which region grew the most?", GROWTH) == {"Island": 1.0}


def test_a_question_without_a_superlative_compares_nothing() -> None:
    assert labels("What were the sales of the island in 2023?", SALES) == {}


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("$(1,234)", -1234.0),
        ("(74)", -74.0),
        ("1,5", 1.5),
        ("12'000.50", 12000.5),
        ("−3 %", -3.0),
        ("—", None),
        ("1.2.3", None),
    ],
)
def test_cells_are_read_as_numbers(cell: str, number: float | None) -> None:
    assert number_of(cell) == number


@pytest.mark.parametrize(
    ("question", "text", "fit"),
    [
        ("What was the profit in FY2023?", "Twelve Months Ended June 30, 2023", 1.0),
        ("What was the profit in FY2023?", "Three Months Ended June 30, 2023", -1.0),
        ("What was the profit in Q2 of FY2023?", "Three Months Ended June 30, 2023", 1.0),
        ("What was the profit in Q2 of FY2023?", "Six Months Ended June 30, 2023", -1.0),
        ("What was the profit in FY2023?", "The profit was 5 euros.", 0.0),
        ("What was the profit?", "Three Months Ended June 30, 2023", 0.0),
    ],
)
def test_a_text_about_a_period_of_another_length_does_not_fit(question: str, text: str, fit: float) -> None:
    asked = asked_value(classify(question, "en"), question.casefold(), "en")
    assert period_fit(asked, text, "en") == fit


def test_a_label_counts_by_the_words_that_the_question_contains() -> None:
    [table] = find_rows("Assets\n2023 2022\nTotal assets 17 16\nOther assets 3 2\nHarbour boats 1 2\n")
    total, other, boats = table.rows
    asked = {"en~total", "en~asset"}
    assert label_share(total, {"en~total", "en~asset", "17", "16"}, "en", "", asked) == 1.0
    assert label_share(other, {"en~other", "en~asset"}, "en", "", asked) == pytest.approx(1 / 1.3)
    assert label_share(boats, {"en~harbour", "en~boat"}, "en", "harbourboats2023", {"en~harbour", "en~boat"}) == 0.0
