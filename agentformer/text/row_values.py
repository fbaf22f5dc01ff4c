"""Find the values of a table that a question asks for: the highest or the lowest value, the values of a year or of a
quarter, and the rows whose labels the question names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agentformer.text.languages import function_stems, stem
from agentformer.text.questions import Question, has_words
from agentformer.text.table_rows import TableRow, TextTable
from agentformer.types import Span

_LENGTHS = ("quarter", "months", "full_year")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)|(?<=[a-z]|\d)20\d\d(?!\d)")  # "2022", "fy2022", "q22023"
_CHANGE = re.compile(r"%|chang|growth", re.IGNORECASE)  # in the header of a column
_NUMBER = re.compile(r"\d[\d.,'’\u00a0]*")
_THOUSANDS = re.compile(r"[.,'’\u00a0](?=\d{3}(?!\d))")
_NEGATIVE = re.compile(r"\s*(?:[-−–]|[$€£¥]?\(|\([$€£¥]?)")
_FUNCTION = 0.3  # weight of a function word in a label ("Other assets")
_WORD = re.compile(r"[^\W\d_]{3,}")
_LEAST_ROWS = 3  # least number of rows that are compared


@dataclass(frozen=True, slots=True)
class AskedValue:
    """The values of a table that a question asks for. `direction` is 1 for the highest value, -1 for the lowest (also
    for the largest fall), and 0 if the question asks for neither. `changes` is true if it asks for the change from one
    year to the next, and `relative` if it asks for percentages. `lengths` has the length of the shortest period that
    the question names: "quarter", "months" (several months) or "full_year". It is empty if the question names none.
    `years` are the years that the question names."""

    direction: int
    changes: bool
    relative: bool
    lengths: frozenset[str]
    years: tuple[str, ...]


def asked_value(question: Question, folded: str, language: str) -> AskedValue:
    """Return which values of a table a question asks for. `question` is the classified question, and `folded` is its
    casefolded text. `language` is used if the language of the question is unknown."""
    code = question.language or language
    falls, grows = has_words("falls", folded, code), has_words("grows", folded, code)
    direction = 1 if has_words("most", folded, code) else -1 if has_words("least", folded, code) else 0
    lengths = lengths_of(folded, code)
    return AskedValue(
        -direction if falls else direction,
        falls or grows,
        has_words("asks_share", folded, code) or "%" in folded,
        frozenset(sorted(lengths, key=_LENGTHS.index)[:1]),
        tuple(_YEAR.findall(folded)),
    )


def lengths_of(folded: str, language: str) -> frozenset[str]:
    """Return the lengths of the periods that a casefolded text names: "quarter", "months" or "full_year"."""
    return frozenset(length for length in _LENGTHS if has_words(length, folded, language))


def period_fit(asked: AskedValue, text: str, language: str) -> float:
    """Return 1 if a text is about a period of the length that the question names, -1 if it is only about periods of
    another length, and 0 if the question or the text names none."""
    stated = lengths_of(text.casefold(), language) if asked.lengths else frozenset()
    if not stated:
        return 0.0
    return 1.0 if stated & asked.lengths else -1.0


def has_other_length(asked: AskedValue, text: str, language: str) -> bool:
    """Return whether a text is only about periods of another length than the question: "Q2 2023" for "in 2023"."""
    stated = lengths_of(text.casefold(), language)
    if asked.lengths:
        return bool(stated) and stated.isdisjoint(asked.lengths)
    return bool(stated and asked.years) and "full_year" not in stated


def extreme_rows(asked: AskedValue, tables: Iterable[TextTable], language: str) -> dict[Span, float]:
    """Return a dictionary: span of a row -> 1 or -1. In each table, the row with the highest value (or the lowest, if
    the question asks for it) gets 1. The values of the column that the question asks for are compared. Rows with a
    total are not compared and get -1. Other rows are left out. The dictionary is empty if the question asks for neither
    the highest nor the lowest value."""
    found: dict[Span, float] = {}
    for table in tables if asked.direction else ():
        groups: dict[tuple[str, int], list[TableRow]] = {}
        for row in table.rows:
            groups.setdefault((row.above, len(row.values)), []).append(row)
        for rows in groups.values():
            totals = {row.span for row in rows if has_words("total", row.label.casefold(), language)}
            parts = [row for row in rows if row.span not in totals and any(map(str.isalpha, row.label))]
            values = _compared(asked, parts, language) if parts else {}
            if len(values) >= _LEAST_ROWS:
                found[max(values, key=lambda span: asked.direction * values[span])] = 1.0
                found |= dict.fromkeys(totals, -1.0)
    return found


def label_share(row: TableRow, stems: Collection[str], language: str, name: str, asked: Collection[str]) -> float:
    """Return how much of a row of a table occurs in a question, 0..1: the share of the row's `stems` that are in
    `asked`, the stems of the question. Function words count less. Numbers do not count. Words of the label that occur
    in the document's name do not count either; `name` has the letters of this name."""
    named = {f"{language}~{stem(word, language)}" for word in _WORD.findall(row.label.casefold()) if word in name}
    words = [each for each in stems if "~" in each and each not in named]
    weights = {each: _FUNCTION if each in function_stems(language) else 1.0 for each in words}
    if 1.0 not in weights.values():
        return 0.0
    return sum(weight for each, weight in weights.items() if each in asked) / sum(weights.values())


def _compared(asked: AskedValue, rows: Sequence[TableRow], language: str) -> dict[Span, float]:
    """Return a dictionary: span of each row with a value -> the value (or its change) that the question asks for."""
    headers = next((row.headers for row in rows if row.headers), ())
    column = _column(asked, headers, language)
    above = rows[0].above  # without the headers: the title of the table, and the group
    for header in headers:
        above = above.replace(header, " ")
    are_changes = bool((headers and _CHANGE.search(headers[column])) or _CHANGE.search(above))
    before = _year_before(headers, column) if asked.changes and not are_changes else None
    found: dict[Span, float] = {}
    for row in rows:
        cell = row.values[column] if column < len(row.values) else ""
        value = number_of(cell) if "%" in cell or asked.changes or not asked.relative else None
        former = number_of(row.values[before]) if before is not None else 0.0
        if value is None or former is None:
            continue
        change = value - former
        found[row.span] = change / abs(former) if asked.relative and before is not None and former else change
    return found


def _column(asked: AskedValue, headers: Sequence[str], language: str) -> int:
    """Return the number of the column whose header fits best to the year, the length and the kind of value that the
    question names. Return 0 if there are no headers."""

    def fit(header: str) -> float:
        year = 2.0 * any(year in header for year in asked.years)
        change = 3.0 if bool(_CHANGE.search(header)) == asked.changes else 0.0
        return year + change + period_fit(asked, header, language)

    scores = [fit(header) for header in headers]
    return scores.index(max(scores)) if scores else 0


def _year_before(headers: Sequence[str], column: int) -> int | None:
    """Return the number of the column whose header names the year before that of `column`, or None."""
    if not headers or not (years := _YEAR.findall(headers[column])):
        return None
    wanted = headers[column].replace(years[-1], str(int(years[-1]) - 1))
    return headers.index(wanted) if wanted in headers else None


def number_of(value: str) -> float | None:
    """Return the number of a cell, negative if it is in brackets or has a minus, or None if the cell has no number."""
    if not (found := _NUMBER.search(value)):
        return None
    digits = _THOUSANDS.sub("", found[0].rstrip(".,'’\u00a0")).replace(",", ".").replace("’", "").replace("'", "")
    try:
        number = float(digits)
    except ValueError:  # a number with several points, such as a date
        return None
    return -number if _NEGATIVE.match(value) else number
