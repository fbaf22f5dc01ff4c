"""Rows of cells in text formats are tables with headers."""

from __future__ import annotations

import pytest

from agentformer.readers import read
from agentformer.text.table_rows import find_rows, tables_of

MARKDOWN = """# Costs

| cost | 2018 | 2017 |
|:---|---:|---:|
| Boats | 5 | 6 |
| Sails | 7 | 8 |

The end.
"""
HTML = (
    "<table><tr><th>cost</th><th>2018</th></tr><tr><td>Boats</td><td>5</td></tr>"
    "<tr><td>Sails</td><td>7</td></tr></table>"
)


@pytest.mark.parametrize(
    ("name", "data", "headers", "rows"),
    [
        ("a.md", MARKDOWN, ("cost", "2018", "2017"), "| Boats | 5 | 6 |\n| Sails | 7 | 8 |"),
        ("a.html", f"<html><body><p>Costs</p>{HTML}<p>End</p></body></html>", ("cost", "2018"), "Boats | 5\nSails | 7"),
    ],
)
def test_a_table_has_its_headers_and_its_place(name: str, data: str, headers: tuple[str, ...], rows: str) -> None:
    [page] = read(data.encode(), name, isolate=False).pages
    [table] = page.tables
    assert table.headers == headers
    assert page.text[table.start : table.end] == rows


def test_lines_with_other_numbers_of_cells_and_short_lists_are_no_tables() -> None:
    assert tables_of("a | b\nc | d") == tables_of("a | b\nc | d | e\nf") == tables_of("") == ()
    assert tables_of("a | b\n--|--\nc | d\nplain") == ()
    assert [table.headers for table in tables_of("a | b\n1 | 2\n3 | 4\nx | y | z\n1 | 2 | 3\n4 | 5 | 6")] == [
        ("a", "b"),
        ("x", "y", "z"),
    ]


def test_an_escaped_bar_does_not_end_a_cell() -> None:
    text = "| Command | Meaning |\n|---|---|\n| `a \\| b` | a pipe |\n| `a` | alone |"

    assert [table.headers for table in tables_of(text)] == [("Command", "Meaning")]
    assert [row.values for row in find_rows(text)[0].rows] == [("a pipe",), ("alone",)]
