"""Tables are found in words with positions, and each value has its row and its header."""

from __future__ import annotations

import pytest

from agentformer.readers.pdf.tables import FoundTable, Word, find_tables
from agentformer.text.table_rows import row_text

SIZE = 10.0


def line(number: int, *cells: tuple[float, str], y: float | None = None) -> list[Word]:
    """Return the words of a line. A cell has the position of its left edge; "<" before the text: of its right edge."""
    words = []
    for at, text in cells:
        own = text.removeprefix("<")
        x = at - 5.0 * len(own) if text.startswith("<") else at
        for word in own.split():
            words.append(Word(word, x, x + 5.0 * len(word), 700 - 12.0 * number if y is None else y, SIZE, number))
            x += 5.0 * (len(word) + 1) - 2.5
    return words


def rows(table: FoundTable) -> list[str]:
    return [row_text(row.label, table.headers, row.values) for row in table.rows]


HEAD = line(0, (60, "The Boat Company and its Subsidiaries in the North")) + line(1, (60, "(in millions)"))
BODY = [
    *line(3, (50, "Purchases of property, plant and equipment"), (340, "$"), (400, "<1,577")),
    *line(3, (440, "$"), (500, "<1,373")),
    *line(4, (50, "Net income"), (400, "<(82)"), (500, "<—")),
    *line(5, (50, "Other")),
    *line(6, (50, "Taxes"), (500, "<12.5%")),
]


def test_a_row_has_its_label_and_its_values_with_the_headers_of_their_columns() -> None:
    [table] = find_tables([*HEAD, *line(2, (400, "<2018"), (500, "<2017")), *BODY])
    assert (table.headers, table.scale) == (("2018", "2017"), "in millions")
    assert rows(table) == [
        "Purchases of property, plant and equipment | 2018: $1,577 | 2017: $1,373",
        "Net income | 2018: (82) | 2017: —",
        "Taxes | 2017: 12.5%",
    ]
    assert [row.line for row in table.rows] == [3, 4, 6]


def test_a_negative_amount_keeps_its_parenthesis_and_its_currency() -> None:
    loss = line(7, (50, "Loss"), (365, "("), (375, "$"), (400, "<82)"), (500, "<7"))
    [table] = find_tables([*HEAD, *line(2, (400, "<2018"), (500, "<2017")), *BODY, *loss])
    assert rows(table)[-1] == "Loss | 2018: ($82) | 2017: 7"


def test_an_amount_that_is_written_with_spaces_is_one_value() -> None:
    words = [
        *line(2, (330, "<2024"), (500, "<2023")),
        *line(3, (50, "Liikevaihto"), (330, "<1 234 567"), (500, "<102 345")),
        *line(4, (50, "Kulut"), (330, "<234"), (500, "<(1 102)")),
        *line(5, (50, "Verot"), (500, "<12 345")),
    ]
    [table] = find_tables(words)
    assert rows(table) == [
        "Liikevaihto | 2024: 1 234 567 | 2023: 102 345",
        "Kulut | 2024: 234 | 2023: (1 102)",
        "Verot | 2023: 12 345",
    ]


def test_a_euro_sign_belongs_to_the_amount_before_it_in_a_line_that_ends_with_it() -> None:
    rent = line(7, (50, "Rent"), (380, "<950"), (385, "€"), (480, "<990"), (485, "€"))
    [table] = find_tables([*HEAD, *line(2, (400, "<2018"), (500, "<2017")), *BODY, *rent])
    assert rows(table)[-1] == "Rent | 2018: 950€ | 2017: 990€"


def test_a_header_above_several_columns_belongs_to_each_of_them() -> None:
    above = line(1, (395, "Year ended"), y=681) + line(2, (400, "<2018"), (500, "<2017"))
    [table] = find_tables([*above, *BODY])
    assert table.headers == ("Year ended 2018", "Year ended 2017")


def test_years_beside_a_label_are_headers() -> None:
    [table] = find_tables([*line(2, (50, "Years ended December 31,"), (400, "<2018"), (500, "<2017")), *BODY])
    assert table.headers == ("2018", "2017")


def test_a_title_above_the_columns_is_no_header() -> None:
    title = line(1, (150, "Consolidated Statements of the Cash Flows of the Company and its Boats"))
    [table] = find_tables([*title, *line(2, (400, "<2018"), (500, "<2017")), *BODY])
    assert table.headers == ("2018", "2017")


def test_a_table_that_goes_on_below_a_note_keeps_its_headers() -> None:
    note = [word for n in range(7, 12) for word in line(n, (50, "A note of the accountants"))]
    more = [
        word
        for n, label in enumerate(("Debt", "Equity", "Assets"), 12)
        for word in line(n, (50, label), (400, f"<{n}3"), (500, f"<{n}7"))
    ]
    tables = find_tables([*line(2, (400, "<2018"), (500, "<2017")), *BODY, *note, *more])
    assert [table.headers for table in tables] == [("2018", "2017")] * 2
    assert rows(tables[1])[0] == "Debt | 2018: 123 | 2017: 127"


def test_a_label_of_two_lines_is_joined() -> None:
    first = line(3, (50, "Fuel"), (400, "<1"), (500, "<2")) + line(4, (50, "Depreciation of boats"))
    more = line(5, (50, "and of property"), (400, "<7"), (500, "<8")) + line(6, (50, "Tar"), (400, "<3"), (500, "<4"))
    [table] = find_tables([*line(2, (400, "<2018"), (500, "<2017")), *first, *more])
    assert rows(table)[1] == "Depreciation of boats and of property | 2018: 7 | 2017: 8"


@pytest.mark.parametrize(
    "lines",
    [
        [line(n, (50, f"The keeper counted the ships of the year 19{n}0 and found 4{n}")) for n in range(9)],
        [line(n, (50, f"Chapter {n}"), (500, f"<{n + 3}")) for n in range(9)],  # contents: no headers
        [line(0, (400, "<x")), *(line(n, (400, f"<{n}0")) for n in range(1, 9))],  # no labels
        [line(0, (400, "<2018")), line(1, (50, "Debt"), (400, "<7")), line(2, (50, "Fuel"), (400, "<8"))],
        [],
    ],
)
def test_prose_contents_and_numbers_without_labels_are_no_tables(lines: list[list[Word]]) -> None:
    assert find_tables([word for each in lines for word in each]) == []


def test_a_page_of_many_words_has_no_tables() -> None:
    assert find_tables(line(1, (50, "7 " * 20_001))) == []


@pytest.mark.slow
def test_hostile_pages_end() -> None:
    for text in ("7", "777", "$", "%", "€", "word", "(in", "—"):
        grid = [
            Word(text, 5.0 * (n % 200), 5.0 * (n % 200) + 4, 900.0 - n // 200, 9.0, n // 200) for n in range(20_000)
        ]
        assert find_tables(grid) == []
        assert find_tables([word._replace(left=0.0, right=900.0) for word in grid]) == []
        assert find_tables([word._replace(left=5.0 * n, right=5.0 * n + 4, y=9.0) for n, word in enumerate(grid)]) == []
