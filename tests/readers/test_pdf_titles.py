"""Titles are found in the lines of a page by their type and their place."""

from __future__ import annotations

from typing import Any

import pytest

from agentformer.readers.pdf.layout import (
    MAX_LEVEL,
    MAX_TITLES,
    Line,
    OutlineEntry,
    Title,
    page_headings,
    page_titles,
    with_titles,
)
from agentformer.types import Heading, Page, Span

WIDTH = 600.0
BODY = "The company sells books and other goods to customers in all countries of the north."


def line(text: str, y: float, *, x: float = 50, height: float = 10, **type_: Any) -> Line:
    return Line(text, x, y, height, x + 0.55 * height * len(text), y, **type_)


def centered(text: str, y: float, height: float = 10, **type_: Any) -> Line:
    width = 0.55 * height * len(text)
    return line(text, y, x=(WIDTH - width) / 2, height=height, **type_)


def body(*ys: float) -> list[Line]:
    return [line(BODY, y) for y in ys]


def titles(*lines: Line) -> list[tuple[str, int]]:
    return [tuple(title) for title in page_titles([*lines, *body(100, 88, 76, 64)], WIDTH)]


def test_bold_larger_and_centered_capital_lines_are_titles() -> None:
    assert titles(line("Item 7. Results", 700, bold=True)) == [("Item 7. Results", 0)]
    assert titles(line("Results of the year", 700, height=12)) == [("Results of the year", 0)]
    assert titles(centered("STATEMENTS OF INCOME", 700)) == [("STATEMENTS OF INCOME", 0)]
    assert titles(line("STATEMENTS OF INCOME", 700)) == titles(centered("Statements of Income", 700)) == []


@pytest.mark.parametrize(
    "text",
    [
        "(In millions)",
        "Total revenues $66,608",
        "Year ended 2017 and 2016",
        "December 31, 2017",
        "31.12.2017 30.6.2017",
        "and continues here",
        "Operating expenses:",
        "It was a good year.",
        "A1",
        "x" * 200,
    ],
)
def test_labels_sums_dates_and_sentences_are_no_titles(text: str) -> None:
    assert titles(line(text, 700, bold=True)) == []


def test_a_head_of_a_column_is_no_title() -> None:
    assert titles(line("Net sales", 700, x=400, bold=True)) == []
    assert titles(line("Net sales", 700, bold=True), line("Change", 700, x=400, bold=True)) == []


def test_smaller_styles_are_below_the_first_title_of_the_page() -> None:
    found = titles(
        centered("Notes to the statements", 700, bold=True),
        line("Note 1 Accounting", 680, bold=True),
        line("Estimates", 660, bold=True, italic=True),
        line("Part two of the report", 640, height=14, bold=True),
        centered("Other notes of the year", 620, height=10.2, bold=True),
    )
    assert found == [
        ("Notes to the statements", 0),
        ("Note 1 Accounting", 1),
        ("Estimates", 1),
        ("Part two of the report", 0),
        ("Other notes of the year", 0),
    ]


def test_a_title_of_two_lines_is_joined_if_the_first_line_is_full() -> None:
    long = "Changes in and disagreements with accountants on the accounting and its"
    assert titles(line(long, 700, bold=True), line("Financial disclosure", 688, bold=True)) == [
        (f"{long} Financial disclosure", 0)
    ]
    assert titles(line("Note 1", 700, bold=True), line("Basis", 688, bold=True)) == [("Note 1", 0), ("Basis", 0)]


def test_a_page_in_bold_type_has_no_titles() -> None:
    page = [line(BODY, y, bold=True) for y in (700, 688, 676)]
    assert page_titles([line("Results", 720, bold=True), *page], WIDTH) == []
    assert page_titles([], WIDTH) == page_titles([Line("unplaced")], WIDTH) == []


def test_of_too_many_titles_those_of_the_outermost_style_are_kept() -> None:
    rows = [line(f"Row {chr(65 + n)}", 690 - 5 * n, bold=True) for n in range(MAX_TITLES + 1)]
    assert titles(centered("Statements of Income", 700, bold=True), *rows) == [("Statements of Income", 0)]
    assert titles(*rows) == []


def test_titles_are_below_the_outline_which_is_not_repeated() -> None:
    outline = [OutlineEntry(0, 1, "Part I"), OutlineEntry(1, MAX_LEVEL, "Deep")]
    found = with_titles(outline, [[Title("PART I", 0), Title("Overview", 1)], []])
    assert [(entry.page, entry.level, entry.title) for entry in found] == [
        (0, 1, "Part I"),
        (1, MAX_LEVEL - 2, "Deep"),
        (0, MAX_LEVEL, "Overview"),
    ]


def test_a_found_title_is_a_line_of_the_body_of_its_page() -> None:
    text = "THE COMPANY\nOverview of Sales here\nSales\nBy region\nSales\nTHE END"
    page = Page(1, text, body=Span(12, len(text) - 8))
    names = ("THE COMPANY", "Sales", "By  region", "Sales", "THE END", "Elsewhere")
    entries = [OutlineEntry(0, MAX_LEVEL, name, found=True) for name in names]
    start = text.index("\nSales") + 1
    assert page_headings([page], entries)[0].headings == (
        Heading("Sales", MAX_LEVEL - 1, start),
        Heading("By region", MAX_LEVEL, start + 6),
        Heading("Sales", MAX_LEVEL, start + 16),
    )
