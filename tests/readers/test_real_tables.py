"""Tables of real filings: each value has its row and its column. The set is optional."""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path

import pypdfium2 as pdfium
import pytest

from agentformer.readers.pdf.tables import FoundTable, _words, find_tables
from agentformer.text.table_rows import row_text

DATA = Path(os.environ.get("AGENTFORMER_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
FILES = DATA / "filings" / "pdfs"
pytestmark = pytest.mark.skipif(not FILES.exists(), reason="the set of filings is not here")
_NUMBER = re.compile(r"\d[\d,.]*\d|\d|—")

AMAZON = tuple(f"Year Ended December 31, {year}" for year in (2015, 2016, 2017))
MONTHS = tuple(f"{span} months ended December 31, {year}" for span in ("Three", "Twelve") for year in (2022, 2021))
PFIZER = ("Three Months Ended July 2, 2023", "Three Months Ended July 3, 2022",
          "Six Months Ended July 2, 2023", "Six Months Ended July 3, 2022")  # fmt: skip
BEST_BUY = ("January 28, 2023", "January 29, 2022", "January 30, 2021")
ADOBE = ("Years Ended December 2, 2022", "Years Ended December 3, 2021", "Years Ended November 27, 2020")
TABLES = [
    ("AMAZON_2017_10K.pdf", 37, "in millions", AMAZON, ("Net income", "596", "2,371", "3,033")),
    ("AMAZON_2017_10K.pdf", 38, "in millions", AMAZON, ("Total net sales", "107,006", "135,987", "177,866")),
    ("AMAZON_2017_10K.pdf", 40, "in millions", ("December 31, 2016", "December 31, 2017"),
     ("Inventories", "11,461", "16,047")),
    ("BOEING_2022_10K.pdf", 55, "in millions", ("2022", "2021", "2020"),
     ("Total revenues", "66,608", "62,286", "58,158")),
    ("BOEING_2022_10K.pdf", 62, "in millions", ("2022", "2021", "2020"),
     ("Global Services", "17,611", "16,328", "15,543")),
    ("BESTBUY_2023_10K.pdf", 40, "in millions", BEST_BUY, ("Restructuring charges", "147", "(34)", "254")),
    ("BESTBUY_2023_10K.pdf", 42, "$ in millions", BEST_BUY, ("Net earnings", "$1,419", "$2,454", "$1,798")),
    ("ADOBE_2022_10K.pdf", 54, "In millions", ADOBE, ("Total revenue", "17,606", "15,785", "12,868")),
    ("MGMRESORTS_2022Q4_EARNINGS.pdf", 13, "In thousands", MONTHS,
     ("Regional Operations", "991,452", "899,607", "3,815,885", "3,392,363")),
    ("Pfizer_2023Q2_10Q.pdf", 8, "MILLIONS", PFIZER, ("Revenues", "$12,734", "$27,742", "$31,015", "$53,402")),
]  # fmt: skip


def page_of(name: str, number: int) -> tuple[list[str], list[FoundTable]]:
    """Return the lines and the tables of a page."""
    with (
        closing(pdfium.PdfDocument(FILES / name)) as document,
        closing(document[number - 1]) as page,
        closing(page.get_textpage()) as text_page,
    ):
        lines = text_page.get_text_range().split("\r\n")
        return lines, find_tables(list(_words(text_page, lines)))


@pytest.mark.parametrize(("name", "number", "scale", "headers", "row"), TABLES)
def test_each_value_of_a_table_has_its_row_and_its_header(
    name: str, number: int, scale: str, headers: tuple[str, ...], row: tuple[str, ...]
) -> None:
    lines, tables = page_of(name, number)
    own = [table for table in tables if table.headers == headers]
    assert own and own[0].scale == scale
    label, *values = row
    assert row_text(label, headers, values) in [
        row_text(each.label, table.headers, each.values) for table in own for each in table.rows
    ]
    numbers = [_NUMBER.findall(lines[each.last_line])[-len(headers) :] for table in own for each in table.rows]
    found = [[*map(_bare, each.values)] for table in own for each in table.rows]
    complete = [(a, b) for a, b in zip(numbers, found, strict=True) if all(b)]
    assert len(complete) >= 5 and [a for a, _ in complete] == [b for _, b in complete]


def _bare(value: str) -> str:
    return "".join(_NUMBER.findall(value))
