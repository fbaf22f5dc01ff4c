"""Find the rows of a table that a question asks for: those with the highest or the lowest value, those within a limit
("before 2026"), those with yes or no in a column ("not toxic to cats"), those of a year or of a quarter, and those
whose labels the question names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from agentformer.text.analysis import text_terms
from agentformer.text.dates.expressions import find_date_ranges
from agentformer.text.dates.notation import find_dates
from agentformer.text.dates.relative import DaySpan
from agentformer.text.facts.numbers_and_dates import facts_of
from agentformer.text.languages.detection import function_stems, stem
from agentformer.text.question_types import Question, has_words, pattern_of, question_words
from agentformer.text.table_rows import TableRow, TextTable
from agentformer.types import Span

_LENGTHS = ("quarter", "months", "full_year")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)|(?<=[a-z]|\d)20\d\d(?!\d)")  # "2022", "fy2022", "q22023"
_PLAIN_YEAR = re.compile(r"(?:19|20)\d\d")
_CHANGE = re.compile(r"%|chang|growth", re.IGNORECASE)  # in the header of a column of changes, not of amounts
_NUMBER = re.compile(r"\d{1,3}(?:[ \u202f]\d{3})+(?:[.,]\d+)?(?!\d)|\d[\d.,'’\u00a0]*")
_THOUSANDS = re.compile(r"[.,'’\u00a0](?=\d{3}(?!\d))")
_NEGATIVE = re.compile(r"\s*(?:[-−–]|[$€£¥]?\(|\([$€£¥]?)")
_FUNCTION = 0.3  # weight of a function word in a label ("Other assets")
_WORD = re.compile(r"[^\W\d_]{3,}")
_LEAST_ROWS = 3  # least number of rows that are compared
_LIMITS = (("above", 1, False), ("below", -1, False), ("at_least", 1, True), ("at_most", -1, True))
_LIMIT_WITHIN = 24  # code points between a word such as "before" and its limit
_SELECTING = frozenset({"which", "what", "who", "where", "many"})  # types of questions that ask for some of the rows
_JUDGED = 0.8  # least share of the cells of a column that can be compared
_NAMED = 0.5  # least share of the words of a header that the question has
_ANSWERS = {kind: frozenset().union(*question_words(kind).values()) for kind in ("affirms", "denies")}


class Limit(NamedTuple):
    """A limit of the values that a question asks for. `sign` is 1 for values above it and -1 for values below it.
    `included` is true if the limit itself is asked for, too. The limit is a date with these `days`, or a `number`."""

    sign: int
    included: bool
    days: DaySpan | None
    number: float | None

    def holds(self, cell: str, language: str) -> bool | None:
        """Return whether the value of a cell is within the limit, or None if the two cannot be compared."""
        if self.days:
            days = _days(cell, language)
            if days is None:
                return None
            if self.included:
                return days[0] >= self.days[0] if self.sign > 0 else days[1] <= self.days[1]
            return days[0] > self.days[1] if self.sign > 0 else days[1] < self.days[0]
        value = None if find_dates(cell) else number_of(cell)
        if value is None or self.number is None:
            return None
        return self.sign * (value - self.number) > 0 or (self.included and value == self.number)


@dataclass(frozen=True, slots=True)
class AskedValue:
    """The values of a table that a question asks for. `direction` is 1 for the highest value, -1 for the lowest (also
    for the largest fall), and 0 if the question asks for neither. `changes` is true if it asks for the change from one
    year to the next, and `relative` if it asks for percentages. `lengths` has the length of the shortest period that
    the question names: "quarter", "months" (several months) or "full_year". It is empty if the question names none.
    `years` are the years that the question names. `limit` is the limit that it names, or None. `selects` is true if it
    asks for some of several things, and `negated` if it asks for those for which something does not hold. `words` are
    the casefolded words of the question."""

    direction: int
    changes: bool
    relative: bool
    lengths: frozenset[str]
    years: tuple[str, ...]
    limit: Limit | None = None
    selects: bool = False
    negated: bool = False
    words: frozenset[str] = frozenset()


def asked_value(question: Question, folded: str, language: str) -> AskedValue:
    """Return which values of a table a question asks for. `question` is the classified question, and `folded` is its
    casefolded text. `language` is used if the language of the question is unknown."""
    code = question.language or language
    falls, grows = has_words("falls", folded, code), has_words("grows", folded, code)
    bare = folded  # "at least 9 metres" does not ask for the least
    for pattern in filter(None, (pattern_of(kind, code) for kind in ("at_least", "at_most"))):
        bare = pattern.sub(" ", bare)
    direction = 1 if has_words("most", bare, code) else -1 if has_words("least", bare, code) else 0
    lengths = lengths_of(folded, code)
    return AskedValue(
        -direction if falls else direction,
        falls or grows,
        has_words("asks_share", folded, code) or "%" in folded,
        frozenset(sorted(lengths, key=_LENGTHS.index)[:1]),
        tuple(_YEAR.findall(folded)),
        _limit(folded, code),
        question.type in _SELECTING,
        facts_of(folded, code).negated,
        frozenset(_WORD.findall(folded)),
    )


def _limit(folded: str, language: str) -> Limit | None:
    """Return the limit that a casefolded question names: the date or the number next to a word such as "before"."""
    values: list[tuple[int, int, DaySpan | None, float | None]] = [
        (days.start, days.end, (days.first, days.last), None) for days in find_date_ranges(folded, None, language)
    ]
    dated = {at for start, end, _, _ in values for at in range(start, end)}
    for match in _NUMBER.finditer(folded):
        if match.start() not in dated:
            days = _days(match[0], language)
            values.append((*match.span(), days, None if days else number_of(match[0])))
    for kind, sign, included in _LIMITS:
        pattern = pattern_of(kind, language)
        for word in pattern.finditer(folded) if pattern else ():
            behind = sorted((value[0] - word.end(), value) for value in values if value[0] >= word.end())
            before = sorted((word.start() - value[1], value) for value in values if value[1] <= word.start())
            for distance, (_, _, days, number) in (behind or before)[:1]:
                if distance <= _LIMIT_WITHIN:
                    return Limit(sign, included, days, number)
    return None


def _days(text: str, language: str) -> DaySpan | None:
    """Return the days of the date in a text, or those of the year if the text is a year, or None."""
    if _PLAIN_YEAR.fullmatch(text.strip()):
        return date(int(text), 1, 1), date(int(text), 12, 31)
    found = find_date_ranges(text, None, language)
    return (found[0].first, found[0].last) if found else None


def selected_rows(
    asked: AskedValue, tables: Iterable[TextTable], language: str, said: Collection[str]
) -> dict[Span, float]:
    """Return a dictionary: span of a row -> 1 if the row is one of those that the question asks for, and -1 if it is
    not. Rows that cannot be judged are left out. `said` are the stems of the question. See `extreme_rows` for the
    highest and the lowest value."""
    if asked.direction:
        return extreme_rows(asked, tables, language)
    found: dict[Span, float] = {}
    for table in tables if asked.limit or asked.selects else ():
        rows = [row for row in table.rows if len(row.values) == len(table.rows[0].values)]
        judged = _within(asked.limit, rows, language, said) if asked.limit else _chosen(asked, rows, language, said)
        found |= {
            row.span: 1.0 if holds else -1.0 for row, holds in zip(rows, judged, strict=False) if holds is not None
        }
    return found


def _within(limit: Limit, rows: Sequence[TableRow], language: str, said: Collection[str]) -> list[bool | None]:
    """Return for each row whether its value is within the limit, or None for a cell that cannot be compared. No row is
    judged if a cell with words has the number of the limit, which is part of a name then, or if no column can be
    compared (`_JUDGED` of its cells). If several can, the header of one must share most words with the question."""
    texts = (cell for row in rows for cell in (row.label, *row.values) if _WORD.search(cell))
    if limit.number is not None and any(limit.number == number_of(text) for text in texts):
        return []  # a part of a name, such as "crane up to 5 t"
    columns: list[tuple[float, list[bool | None]]] = []
    for header, cells in _columns(rows):
        judged = [limit.holds(cell, language) for cell in cells]
        if sum(each is not None for each in judged) >= _JUDGED * sum(map(bool, cells)):
            columns.append((_named(header, language, said), judged))
    columns.sort(key=lambda each: -each[0])
    if not columns or (len(columns) > 1 and columns[0][0] == columns[1][0]):
        return []
    return columns[0][1]


def _chosen(asked: AskedValue, rows: Sequence[TableRow], language: str, said: Collection[str]) -> list[bool | None]:
    """Return for each row whether it has the answer that the question asks for in a column of yes and no whose header
    the question names. Without such a column, a negated question excludes the rows with a value that it names."""
    for header, cells in _columns(rows):
        answers = [_answer(cell) for cell in cells]
        known = sum(each is not None for each in answers)
        if known and known >= _JUDGED * sum(map(bool, cells)) and _named(header, language, said) >= _NAMED:
            return [None if each is None else each is not asked.negated for each in answers]
    if asked.negated:
        for _, cells in _columns(rows):
            stems = [frozenset(text_terms(cell, language).stems) for cell in cells]
            named = [bool(each) and each.issubset(said) for each in stems]
            if any(named) and not all(named):
                return [not each for each in named]
    return []


def _columns(rows: Sequence[TableRow]) -> Iterable[tuple[str, list[str]]]:
    """Yield the header and the cells of each column. The header of the first column, the labels, is not known."""
    headers = ["", *(rows[0].headers or ("",) * len(rows[0].values))] if rows else []
    for number, header in enumerate(headers):
        yield header, [(row.label, *row.values)[number].strip() for row in rows]


def _named(header: str, language: str, said: Collection[str]) -> float:
    """Return the share of the words of a header that the question has."""
    stems = set(text_terms(header, language).stems) - function_stems(language)
    return len(stems & set(said)) / len(stems) if stems else 0.0


def _answer(cell: str) -> bool | None:
    folded = cell.casefold()
    return True if folded in _ANSWERS["affirms"] else False if folded in _ANSWERS["denies"] else None


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
    column = _column(asked, headers, rows, language)
    above = rows[0].above  # without the headers: the title of the table, and the group
    for header in headers:
        above = above.replace(header, " ")
    are_changes = bool((headers and _CHANGE.search(headers[column])) or _CHANGE.search(above))
    before = _year_before(headers, column) if asked.changes and not are_changes else None
    found: dict[Span, float] = {}
    for row in rows:
        cell = row.values[column] if column < len(row.values) else ""
        days = _days(cell, language) if find_dates(cell) else None
        value = number_of(cell) if "%" in cell or asked.changes or not asked.relative else None  # an amount is no share
        value = float(days[0].toordinal()) if days else value
        former = number_of(row.values[before]) if before is not None else 0.0
        if value is None or former is None:
            continue
        change = value - former
        found[row.span] = change / abs(former) if asked.relative and before is not None and former else change
    return found


def _column(asked: AskedValue, headers: Sequence[str], rows: Sequence[TableRow], language: str) -> int:
    """Return the number of the column with the most points, or 0 without headers. A header gets 3 points for words of
    the question, 3 if both or neither of them are about changes, 2 for a year of the question, and 1 or -1 for the
    length of its period (see `period_fit`). A column with few numbers loses 10 points, more than a column can get."""

    def fit(number: int, header: str) -> float:
        year = 2.0 * any(year in header for year in asked.years)
        change = 3.0 if bool(_CHANGE.search(header)) == asked.changes else 0.0
        named = 3.0 * (not asked.words.isdisjoint(_WORD.findall(header.casefold())))
        cells = [row.values[number] for row in rows if number < len(row.values)]
        few = sum(number_of(cell) is not None for cell in cells) < _JUDGED * len(cells)
        return year + change + named + period_fit(asked, header, language) - 10.0 * few

    scores = [fit(number, header) for number, header in enumerate(headers)]
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
    bare = found[0].rstrip(".,'’\u00a0").replace(" ", "").replace("\u202f", "")
    digits = _THOUSANDS.sub("", bare).replace(",", ".").replace("’", "").replace("'", "")
    try:
        number = float(digits)
    except ValueError:  # a number with several points, such as a date
        return None
    return -number if _NEGATIVE.match(value) else number
