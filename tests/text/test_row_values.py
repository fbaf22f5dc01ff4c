"""The values of tables for which a question asks."""

from __future__ import annotations

import pytest

from agentformer.text.analysis import text_terms
from agentformer.text.question_types import classify
from agentformer.text.row_values import asked_value, extreme_rows, label_share, number_of, period_fit, selected_rows
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


FLEET = """boat | launched | length | price
Aino | 2021-05-01 | 7 | 900
Bris | 2019-06-30 | 12 | 700
Cecil | 2024-01-15 | 9 | 1 800
"""


@pytest.mark.parametrize(
    ("question", "label"),
    [
        ("Which boat was launched earliest?", "Bris"),
        ("Which boat was launched latest?", "Cecil"),
        ("Which boat has the greatest length?", "Bris"),
        ("Which boat has the lowest price?", "Bris"),
        ("Which boat has the highest price?", "Cecil"),
    ],
)
def test_the_column_that_the_question_names_is_compared(question: str, label: str) -> None:
    assert labels(question, FLEET) == {label: 1.0}


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


BOATS = """boat | launched | length | for hire | harbour
Aino | 2019-05-01 | 7 | yes | Turku
Bris | 2021-06-30 | 12 | no | Vaasa
Cecil | 2024-01-15 | 9 | yes | Vaasa
Disa | 2026-03-01 | 15 | no | Oulu
"""


def chosen(question: str, text: str = BOATS, language: str = "en") -> str:
    """The first letters of the rows that the question asks for, "" if no row is judged."""
    asked = asked_value(classify(question, language), question.casefold(), language)
    tables, said = find_rows(text), frozenset(text_terms(question, language).stems)
    judged = selected_rows(asked, tables, language, said)
    return "".join(row.label[0] for table in tables for row in table.rows if judged.get(row.span, 0) > 0)


@pytest.mark.parametrize(
    ("question", "rows"),
    [
        ("Which boats were launched before 2022?", "AB"),
        ("Which boats were launched after 2021?", "CD"),
        ("Which boats were launched since 2021?", "BCD"),
        ("Which boats were launched after 30 June 2021?", "CD"),
        ("Which boats were launched before 1 May 2019?", ""),
        ("Which boats have a length of more than 9 metres?", "BD"),
        ("Which boats have a length of at least 9 metres?", "BCD"),
        ("Which boats have a length under 9 metres?", "A"),
        ("Which boats are not for hire?", "BD"),
        ("Which boats are for hire?", "AC"),
        ("Which boats are not in Vaasa?", "AD"),
        ("Which boats are in Vaasa?", ""),  # the words of the rows decide
        ("Is Bris for hire?", ""),
        ("What is the length of Cecil?", ""),
    ],
)
def test_a_limit_or_a_negation_selects_rows(question: str, rows: str) -> None:
    assert chosen(question) == rows


def test_a_limit_that_is_part_of_a_name_selects_no_row() -> None:
    cranes = "size | weight | fee\nup to 5 t | 4 | 40\nabove 5 t | 9 | 70\n"
    assert chosen("Which cranes have a weight below 5 t?", cranes) == ""
    assert chosen("Which cranes have a weight below 6 t?", cranes) == "u"


@pytest.mark.parametrize(
    ("question", "language", "header", "rows"),
    [
        ("Mitkä sopimukset päättyvät ennen vuotta 2026?", "fi", "sopimus | päättyy", "A"),
        ("Mitkä sopimukset päättyvät vuoden 2025 jälkeen?", "fi", "sopimus | päättyy", "BC"),
        ("Vilka avtal löper ut före 1 mars 2026?", "sv", "avtal | löper ut", "AB"),
        ("Hvilke avtaler utløper etter 2026?", "no", "avtale | utløper", "C"),
        ("Hvilke aftaler udløber før 2026?", "da", "aftale | udløber", "A"),
        ("Welche Verträge enden vor dem 1.3.2026?", "de", "Vertrag | Ende", "AB"),
        ("2026年以降に終わる契約はどれですか？", "ja", "契約 | 終了", "BC"),
    ],
)
def test_limits_are_read_in_each_language(question: str, language: str, header: str, rows: str) -> None:
    table = f"{header}\nAlfa | 2025-12-31\nBeta | 2026-02-28\nCarl | 2027-01-31\n"

    assert chosen(question, table, language) == rows


def test_no_row_is_judged_if_the_question_names_neither_of_two_columns_of_dates() -> None:
    table = "item | made | sold\nAlfa | 2020-01-01 | 2024-01-01\nBeta | 2022-01-01 | 2026-01-01\n"

    assert chosen("Which items are before 2021?", table) == ""
    assert chosen("Which items were made before 2021?", table) == "A"
    assert chosen("Which items were sold before 2025?", table) == "A"
