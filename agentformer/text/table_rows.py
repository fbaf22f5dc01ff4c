"""Finds the rows of tables in plain text: lines that end with amounts, or lines of cells between "|". The text of a
found row also contains the headers of its columns, the name of its group (a line without amounts above several rows),
and the scale of the amounts ("in millions").

A chunk contains only the text of a table, in which an empty cell leaves no trace. So a value gets a header only if the
row has as many values as the table has headers. Otherwise, the lines above the table are put before the values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

from agentformer.types import PageTable, Span

_LEAST = 3  # least number of rows of a table
_BETWEEN = 2  # lines without amounts between two rows: the name of a group, and a label of two lines
_LABEL = 110  # code points of a label; longer ones are prose
_ABOVE, _HEADER_LINE, _SHORT_LINE = 30, 100, 45  # lines above a table; code points of a header, a short line
_MAX_ABOVE = 160  # code points of the headers in front of a row
# A word that is an amount, such as "1,234", "(5.2%)", "—" or "N/A", and signs that may be words before or after it
_VALUE = re.compile(r"[-−–+]?\(?[-−–+]?[$€£¥]?\(?\d[\d.,'’\u00a0]*%?\)?%?\*?|[—–-]%?|N/?A|n\.?m\.?")
_PREFIXES, _SUFFIXES = frozenset({"$", "€", "£", "¥", "(", "($", "$("}), frozenset({")", "%", ")%", "%)", "€", "kr"})
_SIGNS = _PREFIXES | _SUFFIXES
_FIRST_DIGITS = re.compile(r"\D{0,4}[1-9]\d{0,2}")  # the beginning of an amount such as "1 234"
_NEXT_DIGITS = re.compile(r"\d{3}(?:[.,]\d{1,2})?\D{0,3}")
_SEPARATED = re.compile(r"\d[.,'’]\d{3}(?!\d)")
_JOINING = frozenset({"to", "and", "or", "of", "in", "till", "og", "och", "ja"})
_AMOUNT = re.compile(r"[$€£¥%(]|\d[.,]\d")
_YEAR = re.compile(r"(?:19|20)\d\d")
_PERIOD = re.compile(
    r"%\s+change(?:\s+(?:19|20)\d\d\s*[-–]\s*(?:19|20)\d\d)?|[^\W\d_]{3,9}\.?\s+\d{1,2},\s+(?:19|20)\d\d|\d{1,2}\.\d{1,2}\.(?:19|20)\d\d|(?:FY|Q\d)\s?'?\d{2,4}|(?<![\d.,])(?:19|20)\d\d(?![\d.,])",
    re.IGNORECASE,
)
_LENGTH = re.compile(r"\b(?:three|six|nine|twelve) months ended\b", re.IGNORECASE)
_DAY = re.compile(r"[^\W\d_]{3,9}\.?\s+\d{1,2},?(?!\d)")  # "December 31," of a date in two lines
_DIGIT = re.compile(r"\d")
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_MAX_HEADER, _MAX_COLUMNS = 60, 24  # code points of a header of a page's table, and headers
SCALE = re.compile(
    r"\b(?:in|i) (?:thousands|millions|billions|tusen|tusental|miljoner|millioner)\b"
    r"|\$ ?(?:in )?(?:thousands?|millions?|billions?)\b|\(?(?:thousands|millions|billions)\b"
    r"|\b(?:tuhansina|miljoonina|tuhatta|milj\.) (?:euroina|euroa|eur)\b"
    r"|\b(?:MEUR|TEUR|KEUR|MSEK|TSEK|MNOK|TNOK|MDKK|TDKK|tkr|mkr|mnkr)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table in a text. `span` is its position, and `text` is the row with its headers and scale. `above` has
    the words above the row: the title of the table, the headers, and the name of the row's group. `headers` has a
    header for each of the `values`, or none if the headers cannot be assigned. `headings` are the words of `text` that
    are not in the row itself."""

    span: Span
    text: str
    above: str
    label: str = ""
    headers: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    headings: str = ""


class TextTable(NamedTuple):
    """A table in a text. `span` covers the rows and the headers above them."""

    span: Span
    rows: tuple[TableRow, ...]


class _Line(NamedTuple):
    span: Span
    text: str
    label: str
    values: tuple[str, ...]

    @property
    def is_row(self) -> bool:
        return any(not _YEAR.fullmatch(value) for value in self.values) and len(self.label) <= _LABEL


def find_rows(text: str, context: str = "") -> list[TextTable]:
    """Return the tables of a text, in order. `context` has the headers of a table that begins before the text."""
    cells = _cell_tables(text, context) if "|" in text else ()
    lines = list(_lines(text)) if text.count("\n") >= _LEAST - 1 else []
    tables = [*cells, *(_table(lines, first, last, context) for first, last in _blocks(lines))]
    return sorted(table for table in tables if table.rows)


def tables_of(text: str) -> tuple[PageTable, ...]:
    """Return the tables in the text of a page: lines with the same number of cells, which "|" separates. The first line
    has the headers, and the table has at least two more lines. A line of dashes below the headers is not a row."""
    found: list[PageTable] = []
    for table in _cell_runs(text):
        rows = [row for row in table[1:] if not row.is_rule]
        if len(rows) > 1:
            headers = tuple(cell[:_MAX_HEADER] for cell in table[0].cells[:_MAX_COLUMNS])
            found.append(PageTable(rows[0].span.start, rows[-1].span.end, headers))
    return tuple(found)


class _CellRow(NamedTuple):
    """A line of cells, without the white space around it."""

    span: Span
    cells: Sequence[str]

    @property
    def is_rule(self) -> bool:
        """True for a line of dashes, as below the headers of a Markdown table."""
        return not set("".join(self.cells)) - set("-: ")


def _cell_runs(text: str) -> Iterator[list[_CellRow]]:
    """Yield the tables of a text with "|" between their cells: lines below each other with the same number of cells. A
    blank line, or the headers of another table, ends a table."""
    run: list[_CellRow] = []
    start = 0
    for line in [*text.split("\n"), ""]:
        bare = line.strip()
        cells = _split(bare)
        if run and len(cells) != len(run[0].cells):
            yield from _divided_at_headers(run)
            run = []
        if len(cells) > 1:
            at = start + line.index(bare)
            run.append(_CellRow(Span(at, at + len(bare)), cells))
        start += len(line) + 1


def _divided_at_headers(run: list[_CellRow]) -> Iterator[list[_CellRow]]:
    """Yield the tables in a run of lines: a table ends where the headers of the next one stand. Headers are above a
    line of dashes, or they are different words in at least two columns that have numbers in the rows above and below.
    """
    first = 0
    numbers = [frozenset(n for n, cell in enumerate(row.cells) if _VALUE.fullmatch(cell)) for row in run]
    for n in range(2, len(run) - 1):
        words = [cell for cell in run[n].cells if any(map(str.isalpha, cell))]
        are_headers = (
            len(numbers[n - 1]) > 1 < len(numbers[n + 1])
            and not (numbers[n - 1] | numbers[n + 1]) & {k for k, cell in enumerate(run[n].cells) if not cell}
            and len(words) == len(set(words)) == sum(map(bool, run[n].cells))
            and not any(_DIGIT.search(_YEAR.sub("", cell)) for cell in words)
        )
        if are_headers or (run[n + 1].is_rule and not run[n].is_rule):
            yield run[first:n]
            first = n
    yield run[first:]


def _split(line: str) -> list[str]:
    """Return the cells of a line, which "|" separates, or no cell if the line has no "|". "\\|" is part of a cell."""
    return [cell.strip() for cell in _CELL_BORDER.split(line.strip("|"))] if "|" in line else []


def _lines(text: str) -> Iterator[_Line]:
    start = 0
    for line in text.split("\n"):
        if bare := line.strip():
            at = start + line.index(bare)
            yield _Line(Span(at, at + len(bare)), bare, *_divided(bare))
        start += len(line) + 1


def _divided(line: str) -> tuple[str, tuple[str, ...]]:
    """Return the label of a line, and the amounts at its end with their signs: "Net sales $ 1,234 (56 ) 7 %" gives "Net
    sales" and ("$1,234", "(56)", "7%"). A sign after the label, as in "Growth in % 5 6", belongs to the label if it can
    follow an amount. "€" follows the amounts of a line that ends with it ("Rent 5 € 6 €"), and is before the amounts of
    a line that has another one ("Rent € 5 € 6")."""
    if _DIGIT.search(line) and not _DIGIT.search(_DAY.sub("", _PERIOD.sub("", line))):
        return line, ()  # a line of dates is a header
    words = line.split()
    first = len(words)
    while first and (_VALUE.fullmatch(words[first - 1]) or words[first - 1] in _SIGNS):
        first -= 1
    repeated = {sign for sign in _PREFIXES & _SUFFIXES if words.count(sign) > 1}
    while first < len(words) and words[first] in _SUFFIXES - repeated:
        first += 1
    if first and words[first - 1].casefold() in _JOINING:
        return line, ()  # "4% to 5%"
    values: list[str] = []
    prefix = ""
    for word in words[first:]:
        if values and word in _SUFFIXES and (word not in _PREFIXES or word == words[-1]):
            values[-1] += word
        elif word in _PREFIXES:
            prefix += word
        elif word not in _SUFFIXES:
            values.append(prefix + word)
            prefix = ""
    return " ".join(words[:first]), tuple(values)


def _blocks(lines: Sequence[_Line]) -> Iterator[tuple[int, int]]:
    """Yield for each table two indices into `lines`: those of its first and of its last line with amounts."""
    rows = [n for n, line in enumerate(lines) if line.is_row and "|" not in line.text]
    block: list[int] = []
    for n in [*rows, len(lines) + _BETWEEN + 1]:
        if block and (n - block[-1] > _BETWEEN + 1 or any(_is_prose(line) for line in lines[block[-1] + 1 : n])):
            if len(block) >= _LEAST and _has_columns([lines[row] for row in block]):
                yield block[0], block[-1]
            block = []
        block.append(n)


def _is_prose(line: _Line) -> bool:
    return len(line.text) > _HEADER_LINE


def _has_columns(rows: Sequence[_Line]) -> bool:
    """Return whether rows belong to a table and not to prose with numbers. In a table, at least half of the rows have a
    label. Also, most rows have several values, or three quarters have a label and an amount."""
    wide = sum(len(row.values) > 1 for row in rows)
    amounts = sum(any(map(str.isalpha, row.label)) and bool(_AMOUNT.search(" ".join(row.values))) for row in rows)
    labelled = sum(any(map(str.isalpha, row.label)) for row in rows)
    return 2 * labelled >= len(rows) and (2 * wide > len(rows) or 4 * amounts >= 3 * len(rows))


def _table(lines: Sequence[_Line], first: int, last: int, context: str) -> TextTable:
    """Return the table with the rows from `first` to `last`. A line without amounts is the beginning of the label below
    it if this label is empty or begins with a small letter. Otherwise, it names the group of the rows below it."""
    top = _top(lines, first)
    above = [line.text for line in lines[top:first]]
    values_of_rows = [line.values for line in lines[first : last + 1]]
    plain, spaced = (
        _headers(above, columns) if above else _continued(context, columns)
        for columns in (
            _columns(map(len, values_of_rows)),
            _columns(len(values) - len(continuations(values)) for values in values_of_rows),
        )
    )
    has_spaces = _uses_spaces(values_of_rows, len(plain or spaced))
    headers = plain or (spaced if has_spaces else ())
    in_doubt = _may_use_spaces(values_of_rows, len(headers))
    above = above or [context]
    shown = "" if headers or first == top else _shortened(" ".join(above))
    near = [line.text for line in lines[max(0, top - 3) : first]] or [context]
    scale = next((match.group().strip("( ") for text in reversed(near) if (match := SCALE.search(text))), "")
    rows: list[TableRow] = []
    group, pending, start = "", "", 0
    for line in lines[first : last + 1]:
        if not line.is_row:
            group = line.text if line.text.endswith(":") or not line.values else group
            pending, start = line.text, line.span.start
            continue
        wrapped = bool(pending) and (not line.label or line.label[0].islower())
        label = f"{pending} {line.label}".strip() if wrapped else line.label
        span = Span(start if wrapped else line.span.start, line.span.end)
        own_group = "" if wrapped else group
        values = _joined(line.values, len(headers)) if has_spaces else line.values
        fits = len(headers) == len(values) and not (in_doubt and values is line.values and _may_be_fewer(values))
        text, assigned = _row(label, values, headers, fits, shown, scale), headers if fits else ()
        headings = " | ".join(filter(None, (shown, *headers, scale)))
        rows.append(TableRow(span, text, " ".join([*above, own_group]), label, tuple(assigned), values, headings))
        pending = ""
    return TextTable(Span(lines[top].span.start, lines[last].span.end), tuple(rows))


def _columns(counts: Iterable[int]) -> int:
    """Return the most frequent number of values of a row that has several, or 1."""
    sizes = Counter(count for count in counts if count > 1)
    return max(sizes, key=lambda size: (sizes[size], size), default=1)


def _uses_spaces(rows: Sequence[tuple[str, ...]], wanted: int) -> bool:
    """Return whether amounts of a table with `wanted` columns are written with spaces, such as "1 234". They are if
    they may be, and if at least two rows, and most of the rows with too many values, have `wanted` amounts then."""
    longer = [values for values in rows if len(values) > wanted]
    fitting = sum(len(_joined(values, wanted)) == wanted for values in longer)
    return fitting > 1 and 2 * fitting > len(longer) and _may_use_spaces(rows, wanted)


def _may_use_spaces(rows: Sequence[tuple[str, ...]], wanted: int) -> bool:
    """Return whether a row has too many values and would not have them with amounts such as "1 234", and no amount is
    written like "1,234"."""
    if any(map(_SEPARATED.search, chain(*rows))):
        return False
    return any(len(values) > wanted >= len(values) - len(continuations(values)) for values in rows)


def continuations(values: Sequence[str]) -> list[int]:
    """Return the indices of the values that may be three further digits of the value before, as in "1 234 567"."""
    found = []
    is_open = False
    for n, value in enumerate(values):
        if is_open and _NEXT_DIGITS.fullmatch(value):
            found.append(n)
            is_open = value.isdecimal()
        else:
            is_open = _FIRST_DIGITS.fullmatch(value) is not None
    return found


def _joined(values: tuple[str, ...], wanted: int) -> tuple[str, ...]:
    """Return the values of a row with `wanted` columns. Amounts that are written with spaces are joined if all of them
    together are a value for each column. "104 773 131 801" is not divided: it may be one amount, two, or three."""
    starts = sorted({*range(len(values))} - {*continuations(values)})
    if not len(starts) == wanted < len(values):
        return values
    return tuple(" ".join(values[start:end]) for start, end in pairwise([*starts, len(values)]))


def _may_be_fewer(values: Sequence[str]) -> bool:
    """Return whether two values may be one amount that is written with a space, such as "1 581" or "(2 503)". Two
    amounts of three digits are two values."""
    return any(len(_DIGIT.findall(values[n - 1])) < 3 or values[n][0] == "0" for n in continuations(values))


def _row(label: str, values: Sequence[str], headers: Sequence[str], fits: bool, shown: str, scale: str) -> str:
    values = values if fits else (" ".join(values),)
    text = row_text(label, headers if fits else ("",), values)
    parts = [text if fits or not headers else f"{' | '.join(headers)}: {text}"]
    if scale and scale.casefold() not in shown.casefold():
        parts.append(scale)
    return (f"{shown}: " if shown else "") + " | ".join(parts)


def _top(lines: Sequence[_Line], first: int) -> int:
    """Return the number of the first line of the headers of a table, whose first row is the line `first`. The search
    goes up from this row and stops at prose, at a long row, or at a line that ends a sentence."""
    top = first
    for n in range(first - 1, max(-1, first - 1 - _ABOVE), -1):
        text = lines[n].text
        long = len(text) > _SHORT_LINE
        if (lines[n].is_row and long) or _is_prose(lines[n]) or text.endswith(".") or (long and first - n > 8):
            break
        top = n
        if text.endswith((":", "：")) and long:
            break
    return top


def _headers(above: Sequence[str], wanted: int) -> tuple[str, ...]:
    """Return one header for each of the `wanted` columns: the periods that the lines above the table name, such as
    "2023". Return () if they do not name `wanted` periods, or if there is only one column."""
    for lines in (above, above[-6:], above[-3:]):
        found = tuple(" ".join(match.group().split()) for match in _PERIOD.finditer(" ".join(lines)))
        years = tuple(each for each in found if _YEAR.fullmatch(each))
        for periods in (found, years):
            if len(periods) == wanted and wanted > 1:
                return _with_lengths(periods, " ".join(lines))
    return ()


def _with_lengths(periods: tuple[str, ...], above: str) -> tuple[str, ...]:
    """Return `periods` as headers. If `above`, the text above the table, names several lengths ("Three Months Ended"),
    each header begins with the length of its period."""
    lengths = [" ".join(match.group().split()) for match in _LENGTH.finditer(above)]
    if len(lengths) < 2 or len(periods) % len(lengths):
        return periods
    each = len(periods) // len(lengths)
    return tuple(f"{lengths[n // each]} {period}" for n, period in enumerate(periods))


def _continued(context: str, wanted: int) -> tuple[str, ...]:
    """Return the headers of a table that began before the chunk. They are read from `context`, the context line of the
    chunk. Return () if this line does not contain exactly `wanted` headers."""
    headers = tuple(part.strip() for part in SCALE.sub("", context).replace("()", "").split("|"))
    return headers if len(headers) == wanted and wanted > 1 else ()


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_ABOVE else "… " + text[-_MAX_ABOVE:].partition(" ")[2]


def _cell_tables(text: str, context: str) -> Iterator[TextTable]:
    """Yield the tables whose lines have the same number of cells, which "|" separates. The first line has the headers,
    unless the text begins inside a table: then `context` has the headers."""
    inside = "|" in context and "|" in text.lstrip().partition("\n")[0]
    for number, run in enumerate(_cell_runs(text)):
        continues = inside and number == 0
        head = list(_continued(context, len(run[0].cells))) if continues else run[0].cells
        rows = [row for row in (run if continues else run[1:]) if not row.is_rule]
        if len(run[0].cells) > 2:  # a row with one cell says nothing: a group, or an empty total
            rows = [row for row in rows if sum(map(bool, row.cells)) > 1]
        if not rows:
            continue
        above, headers = " ".join(head) or context, tuple(head[1:])
        shown = " | ".join(head) or _shortened(context)
        found = [
            TableRow(span, _cell_row(own, head, context), above, own[0], headers, tuple(own[1:]), shown)
            for span, own in rows
        ]
        yield TextTable(Span(run[0].span.start, rows[-1].span.end), tuple(found))


def _cell_row(cells: Sequence[str], head: Sequence[str], context: str) -> str:
    cells = [cell.replace("\\|", "|") for cell in cells]
    if head:
        return row_text("", head, cells)
    return f"{_shortened(context)}: {row_text('', [''] * len(cells), cells)}"  # the header of each cell is unknown


def row_text(label: str, headers: Sequence[str], values: Sequence[str]) -> str:
    """Return a row with its headers: "Net income | 2018: 1,577 | 2017: 1,373". Empty cells are left out."""
    cells = (f"{header}: {value}" if header else value for header, value in zip(headers, values, strict=True) if value)
    return " | ".join([label, *cells] if label else cells)
