"""Rows of tables in the text of a chunk."""

from __future__ import annotations

import pytest

from agentformer.text.table_rows import find_rows

CASH = """CONSOLIDATED STATEMENTS OF CASH FLOWS
(in millions)

Year Ended December 31,
2015 2016 2017

INVESTING ACTIVITIES:
Purchases of property and equipment (4,589) (6,737) (11,955)
Proceeds from incentives 798 1,067 1,897
Acquisitions, net of
cash acquired $ (795) $ (116) $ (13,972)
"""


def rows(text: str, context: str = "") -> list[str]:
    return [row.text for table in find_rows(text, context) for row in table.rows]


def test_a_row_has_the_headers_of_its_columns_and_the_scale() -> None:
    years = "December 31, 2015: {} | 2016: {} | 2017: {} | in millions"
    first, second, third = rows(CASH)
    assert first == "Purchases of property and equipment | " + years.format("(4,589)", "(6,737)", "(11,955)")
    assert second == "Proceeds from incentives | " + years.format("798", "1,067", "1,897")
    assert third == "Acquisitions, net of cash acquired | " + years.format("$(795)", "$(116)", "$(13,972)")


def test_the_position_of_a_row_is_its_lines() -> None:
    [table] = find_rows(CASH)
    found = [CASH[row.span.start : row.span.end] for row in table.rows]
    assert found[1:] == [
        "Proceeds from incentives 798 1,067 1,897",
        "Acquisitions, net of\ncash acquired $ (795) $ (116) $ (13,972)",
    ]
    assert CASH[table.span.start : table.span.end] == CASH.strip()
    assert "INVESTING ACTIVITIES:" in table.rows[0].above


def test_lengths_of_periods_that_share_the_columns_are_repeated() -> None:
    text = (
        "Three Months Ended Six Months Ended\nJuly 29, 2023 July 30, 2022 July 29, 2023 July 30, 2022\n"
        "Revenue $ 8,890 $ 9,569 $ 17,691 $ 19,463\nMargin 23.1 % 22.0 % 22.9 % 22.0 %\nStores 969 982 969 982\n"
    )
    assert rows(text)[0] == (
        "Revenue | Three Months Ended July 29, 2023: $8,890 | Three Months Ended July 30, 2022: $9,569"
        " | Six Months Ended July 29, 2023: $17,691 | Six Months Ended July 30, 2022: $19,463"
    )


def test_headers_that_fit_no_column_stand_before_the_row() -> None:
    text = "Stores\nopened and closed\nBest Buy 908 1 (2) 907\nOutlets 20 1 (1) 20\nTotal 966 5 (2) 969\n"
    assert rows(text)[2] == "Stores opened and closed: Total | 966 5 (2) 969"


def test_a_table_that_continues_takes_its_headers_from_the_context() -> None:
    text = "Taxes paid $ 283 $ 716\nInterest paid $ 31 $ 22\nCash at the end 2,253 3,205\n"
    assert rows(text, "2023 | 2022 (in millions)")[1] == "Interest paid | 2023: $31 | 2022: $22 | in millions"


def test_a_euro_sign_is_before_or_after_each_amount_of_a_line() -> None:
    text = "2024 2023\nVuokra 950 € 990 €\nSähkö € 80 € 70\nVesi 20 € 18 €\n"
    assert rows(text) == [
        "Vuokra | 2024: 950€ | 2023: 990€",
        "Sähkö | 2024: €80 | 2023: €70",
        "Vesi | 2024: 20€ | 2023: 18€",
    ]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("Kulut 1 234 1 102", "Kulut | 2024: 1 234 | 2023: 1 102"),
        ("Kulut 1 234 567 €80", "Kulut | 2024: 1 234 567 | 2023: €80"),
        ("Kulut 1 058 551 12", "Kulut | 2024: 1 058 551 | 2023: 12"),
        ("Kulut 104 773 131 801", "2024 | 2023: Kulut | 104 773 131 801"),  # it may be one amount
        ("Kulut 1 234 567", "2024 | 2023: Kulut | 1 234 567"),
        ("Kulut 2 500 000", "2024 | 2023: Kulut | 2 500 000"),
        ("Kulut 11 345 678 234 567", "2024 | 2023: Kulut | 11 345 678 234 567"),
        ("Puh. 040 123 4567", "2024 | 2023: Puh. | 040 123 4567"),
        ("Kulut 930 1 278,50", "Kulut | 2024: 930 | 2023: 1 278,50"),
        ("Kulut (1 234) (102)", "Kulut | 2024: (1 234) | 2023: (102)"),
        ("Kulut 102 234", "Kulut | 2024: 102 | 2023: 234"),
        ("Kulut 1 234", "2024 | 2023: Kulut | 1 234"),  # one amount, of an unknown column
        ("Kulut (2 503)", "2024 | 2023: Kulut | (2 503)"),
        ("Kulut 5 6 7 8", "2024 | 2023: Kulut | 5 6 7 8"),
    ],
)
def test_amounts_that_are_written_with_spaces_are_one_value_each(row: str, found: str) -> None:
    text = f"2024 2023\nLiikevaihto 12 345 11 010\n{row}\nTulos 234 102\nVerot 5 1 007\n"
    first, second, third, fourth = rows(text)
    assert (first, third) == ("Liikevaihto | 2024: 12 345 | 2023: 11 010", "Tulos | 2024: 234 | 2023: 102")
    assert (second, fourth) == (found, "Verot | 2024: 5 | 2023: 1 007")


def test_a_row_of_a_table_that_may_have_spaces_in_its_amounts_gets_no_header_by_chance() -> None:
    text = "2024 2023\nTulot 104 773 131 801\nKulut 2 500\nTulos 234 102\n"
    assert rows(text)[1:] == ["2024 | 2023: Kulut | 2 500", "Tulos | 2024: 234 | 2023: 102"]


def test_cells_between_bars_have_the_headers_of_the_first_line() -> None:
    text = "Costs:\n\n| cost | 2018 | 2017 |\n|:---|---:|---:|\n| Boats | 5 | 6 |\n| Sails | 7 | 8 |\n"
    assert rows(text) == ["cost: Boats | 2018: 5 | 2017: 6", "cost: Sails | 2018: 7 | 2017: 8"]


def test_a_row_with_one_cell_is_no_row() -> None:
    text = "| cost | 2018 | 2017 |\n|---|---|---|\n| Boats | 5 | 6 |\n| Oars | 7 |  |\n| Total |  |  |\n"
    assert rows(text) == ["cost: Boats | 2018: 5 | 2017: 6", "cost: Oars | 2018: 7"]


def test_a_bar_in_a_cell_is_shown_without_its_escape() -> None:
    text = "| cost | 2018 |\n|---|---|\n| Boats \\| sails | 5 |\n| Oars | 7 |\n"
    assert rows(text) == ["cost: Boats | sails | 2018: 5", "cost: Oars | 2018: 7"]


def test_cells_of_a_table_that_continues_take_its_headers_from_the_context() -> None:
    text = "Boats | 5 | 6\nSails | 7 | 8\n"
    assert rows(f"{text}Oars | 1 |  |", "cost | 2018 | 2017") == [
        "cost: Boats | 2018: 5 | 2017: 6",
        "cost: Sails | 2018: 7 | 2017: 8",
        "cost: Oars | 2018: 1",
    ]
    assert rows(f"{text}Oars | 1 | 2", "cost | 2018")[0] == "cost | 2018: Boats | 5 | 6"  # a header was left out
    assert rows(f"{text}Oars | 1 | 2", "Costs of boats")[0] == "Boats: Sails | 5: 7 | 6: 8"  # a heading, no headers


@pytest.mark.parametrize(
    "text",
    [
        "The bridge was opened in 1921\nand closed for repairs in 1957\nbut opened again in 1960\nwhen it was new.",
        "Item 1. Business 3\nItem 2. Properties 17\nItem 3. Proceedings 18\n",
        "125 # sort the elements\n126 i = j = 0\n127 result = []\n128 k = 2\n",
        "Sales 4% to 5%\nMargin 14.7% to 15.0%\nShare $24.70 to $25.40\n",
        "one line",
        "",
    ],
)
def test_prose_contents_code_and_ranges_are_no_tables(text: str) -> None:
    assert rows(text) == []
