"""Read the body of an OpenDocument text: headings and lists with their numbers, paragraphs and tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from lxml import etree

from agentformer.readers.grid import table_lines
from agentformer.readers.numerals import numeral
from agentformer.readers.office.odf_parts import (
    MAX_DEPTH,
    SKIPPED,
    STYLE,
    TABLE,
    TEXT,
    cells_of,
    number_of,
    rows_of,
    text_of,
)
from agentformer.readers.sections import OutlineBuilder

_LEVELS = 10
_TABLE_DEPTH = 8  # tables in tables
_BULLET = "-"


class _Level(NamedTuple):
    """The rule of a level of a list. `kind` is "" for no number, or see `numeral`. `shown` is the number of levels."""

    kind: str
    before: str
    after: str
    shown: int
    start: int
    bullet: bool


@dataclass(slots=True)
class _List:
    style: str
    counts: list[int | None]


@dataclass(slots=True)
class TextReader:
    """Reads the body of a document. `styles` are the elements that contain the styles of its lists."""

    out: OutlineBuilder
    styles: dict[str, dict[int, _Level]]
    lists: list[_List] = field(default_factory=list)  # the lists around the current place
    former: dict[str, list[int | None]] = field(default_factory=dict)  # numbers by style, of lists that are continued
    headings: list[int | None] = field(default_factory=lambda: [None] * (_LEVELS + 1))
    label: str = ""  # the number of the item that the next paragraph begins
    tables: int = 0  # tables around the current place

    def blocks(self, parent: Iterable[etree._Element], depth: int = 0) -> None:
        """Read the headings, paragraphs, lists and tables that are the children of an element."""
        for child in parent:
            if child.tag == f"{TEXT}h":
                self._heading(child)
            elif child.tag == f"{TEXT}p":
                self._paragraph(child)
            elif not isinstance(child.tag, str) or child.tag in SKIPPED:
                continue
            elif depth > MAX_DEPTH:
                for paragraph in child.iter(f"{TEXT}p", f"{TEXT}h"):
                    self._paragraph(paragraph)
            elif child.tag == f"{TABLE}table" and self.tables < _TABLE_DEPTH:
                self._table(child, depth)
            elif child.tag == f"{TEXT}list":
                self._list(child, depth)
            else:
                self.blocks(child, depth + 1)

    def _heading(self, heading: etree._Element) -> None:
        level = min(max(number_of(heading, f"{TEXT}outline-level", 1), 1), _LEVELS)
        title = " ".join(text_of(heading).split())
        label, self.label = self.label, ""
        if not self.lists and heading.get(f"{TEXT}is-list-header") != "true":
            label = self._next(self.styles.get("", {}), self.headings, level, heading)
        if title:
            self.out.heading(f"{'' if label == _BULLET else label} {title}".strip(), level)

    def _paragraph(self, paragraph: etree._Element) -> None:
        label, self.label = self.label, ""
        if text := text_of(paragraph).strip("\n"):
            self.out.text(f"{label} {text}" if label else text, verbatim=True)
            self.out.line(paragraph=True)

    def _list(self, each: etree._Element, depth: int) -> None:
        """Read a list. An inner list shares the counts of the outer list, and a continued list those of the former."""
        outer = self.lists[-1] if self.lists else None
        style = each.get(f"{TEXT}style-name", "") or (outer.style if outer else "")
        continued = each.get(f"{TEXT}continue-numbering") == "true" or each.get(f"{TEXT}continue-list") is not None
        counts: list[int | None] = outer.counts if outer else [None] * (_LEVELS + 1)
        if not outer and continued and style in self.former:
            counts = self.former[style]
        self.lists.append(_List(style, counts))
        level = min(len(self.lists), _LEVELS)
        for item in each:
            if item.tag == f"{TEXT}list-item":
                first = next((child.tag for child in item), "")
                if first in (f"{TEXT}p", f"{TEXT}h"):  # else it only holds an inner list
                    self.label = self._next(self.styles.get(style, {}), counts, level, item)
            if isinstance(item.tag, str):
                self.blocks(item, depth + 2)
        self.lists.pop()
        self.former[style] = counts

    def _next(self, rules: dict[int, _Level], counts: list[int | None], level: int, item: etree._Element) -> str:
        """Count an item or a heading, and return its number, "-" for a bullet, or ""."""
        rule = rules.get(level)
        if rule is None:
            return _BULLET if self.lists else ""
        former = counts[level]
        counts[level] = number_of(item, f"{TEXT}start-value", rule.start if former is None else former + 1)
        counts[level + 1 :] = [None] * (len(counts) - level - 1)
        if rule.bullet or not rule.kind:
            return _BULLET if rule.bullet else ""
        numbers = []
        for at in range(max(1, level - rule.shown + 1), level + 1):
            above = rules.get(at)
            if above is not None and above.kind:
                numbers.append(numeral(counts[at] or above.start, above.kind))
        return f"{rule.before}{'.'.join(numbers)}{rule.after}".strip()

    def _table(self, table: etree._Element, depth: int) -> None:
        """Write a table as lines, and below it the tables inside its cells."""
        rows = [*rows_of(table)]
        self.tables += 1
        if all(len(row.findall(f"{TABLE}table-cell")) < 2 for row in rows):  # a frame around text and other tables
            for row in rows:
                self.blocks(row, depth + 1)
        else:
            heads = sum(row.getparent().tag == f"{TABLE}table-header-rows" for row in rows)
            for line in table_lines(cells_of(rows), heads):
                self.out.text(" ".join(line.split("\n")))
                self.out.line()
            self.out.line(paragraph=True)
            for row in rows:
                for inner in row.iter(f"{TABLE}table"):
                    if next(inner.iterancestors(f"{TABLE}table")) is table:
                        self.blocks([inner], depth + 3)
        self.tables -= 1


def list_styles(roots: Iterable[etree._Element]) -> dict[str, dict[int, _Level]]:
    """Return the rules of the levels of each list style, and of the headings (the style "")."""
    styles: dict[str, dict[int, _Level]] = {}
    for root in roots:
        for style in root.iter(f"{TEXT}list-style", f"{TEXT}outline-style"):
            name = style.get(f"{STYLE}name", "") if style.tag == f"{TEXT}list-style" else ""
            styles[name] = {number_of(each, f"{TEXT}level", 0): _level(each) for each in style}
    return styles


def _level(each: etree._Element) -> _Level:
    kind = each.get(f"{STYLE}num-format", "")
    return _Level(
        kind=kind if kind in ("", "a", "A", "i", "I") else "1",
        before=each.get(f"{STYLE}num-prefix", ""),
        after=each.get(f"{STYLE}num-suffix", ""),
        shown=number_of(each, f"{TEXT}display-levels", 1),
        start=number_of(each, f"{TEXT}start-value", 1),
        bullet=each.tag not in (f"{TEXT}list-level-style-number", f"{TEXT}outline-level-style"),
    )
