"""Count the numbered paragraphs of a Word document. Word stores only the rules, and computes "2.3" when it shows the
paragraph."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from lxml import etree

from agentformer.readers.numerals import numeral

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_LEVELS = 9
_PLACE = re.compile(r"%([1-9])")
_KINDS = {
    **{"lowerLetter": "a", "upperLetter": "A", "lowerRoman": "i", "upperRoman": "I", "decimalZero": "01"},
    **{"bullet": "bullet", "none": "none"},
}
_BULLET = "-"
_CHAIN = 20  # styles that follow from each other


class Level(NamedTuple):
    """The rule of a level: the first number, its kind (of `numeral`, or "bullet" or "none"), and the text around it,
    such as "%1.%2". `restarts_after` is the lowest level after which it begins again."""

    start: int
    kind: str
    text: str
    style: str
    legal: bool
    restarts_after: int


@dataclass(slots=True)
class Numbering:
    """The lists of a document, and the numbers that were counted so far."""

    lists: dict[str, tuple[str, dict[int, Level], dict[int, int]]] = field(default_factory=dict)
    styles: dict[str, tuple[str, int, str]] = field(default_factory=dict)  # list, level (-1: none), parent
    counts: dict[str, list[int | None]] = field(default_factory=dict)
    begun: set[tuple[str, int]] = field(default_factory=set)

    def label(self, paragraph: etree._Element) -> str:
        """Return the number of the next paragraph, such as "2.3", "-" for a bullet, or ""."""
        number, level = self._place(paragraph)
        if number not in self.lists:
            listed = number or paragraph.find(f"{W}pPr/{W}numPr") is not None
            return _BULLET if listed and number != "0" else ""
        counted, levels, overrides = self.lists[number]
        rule = levels.get(level)
        if rule is None:
            return _BULLET
        counts = self.counts.setdefault(counted, [None] * _LEVELS)
        if level in overrides and (number, level) not in self.begun:
            counts[level] = overrides[level] - 1
        self.begun.add((number, level))
        for above in range(level):
            if counts[above] is None:
                counts[above] = overrides.get(above, levels[above].start if above in levels else 1)
        former = counts[level]
        counts[level] = rule.start if former is None else former + 1
        for below in range(level + 1, _LEVELS):
            if below not in levels or level < levels[below].restarts_after:
                counts[below] = None
        return self._text(rule, levels, counts)

    def _text(self, rule: Level, levels: dict[int, Level], counts: list[int | None]) -> str:
        """Return the text of a rule with the numbers of the levels in place of "%1", "%2" and so on."""
        if rule.kind == "bullet":
            return _BULLET

        def number(match: re.Match[str]) -> str:
            level = int(match[1]) - 1
            kind = levels[level].kind if level in levels else "1"
            return "" if kind in ("bullet", "none") else numeral(counts[level] or 0, "1" if rule.legal else kind)

        return " ".join(_PLACE.sub(number, rule.text).split())

    def _place(self, paragraph: etree._Element) -> tuple[str, int]:
        """Return the list and the level of a paragraph, of its own or from its style."""
        properties = paragraph.find(f"{W}pPr")
        if properties is None:
            return "", 0
        own = properties.find(f"{W}numPr")
        number, level = _value(own, "numId"), _value(own, "ilvl")
        style = own_style = _value(properties, "pStyle")
        for _ in range(_CHAIN):
            if number or style not in self.styles:
                break
            number, styled, style = self.styles[style]
            level = level or (str(styled) if number and styled >= 0 else "")
        levels = self.lists[number][1] if number in self.lists else {}
        if not level:
            level = next((str(at) for at, rule in levels.items() if rule.style and rule.style == own_style), "0")
        return number, min(int(level), _LEVELS - 1) if level.isdecimal() else 0


def numbering_of(numbering: etree._Element | None, styles: etree._Element | None) -> Numbering:
    """Return the lists that the parts of a document define."""
    found = Numbering()
    for style in styles.iter(f"{W}style") if styles is not None else ():
        place = style.find(f"{W}pPr/{W}numPr")
        level = _value(place, "ilvl")
        found.styles[style.get(f"{W}styleId", "")] = (
            _value(place, "numId"), int(level) if level.isdecimal() else -1, _value(style, "basedOn"),
        )  # fmt: skip
    if numbering is None:
        return found
    abstract = {each.get(f"{W}abstractNumId", ""): each for each in numbering.iter(f"{W}abstractNum")}
    by_style = {_value(each, "styleLink"): key for key, each in abstract.items() if _value(each, "styleLink")}
    for each in numbering.iter(f"{W}num"):
        key = _value(each, "abstractNumId")
        if key in abstract:
            key = by_style.get(_value(abstract[key], "numStyleLink"), key)
        levels = _levels(abstract[key]) if key in abstract else {}
        overrides: dict[int, int] = {}
        for override in each.iter(f"{W}lvlOverride"):
            at, start = override.get(f"{W}ilvl", ""), _value(override, "startOverride")
            levels |= _levels(override)
            if at.isdecimal() and start.isdecimal():
                overrides[int(at)] = int(start)
        found.lists[each.get(f"{W}numId", "")] = (key, levels, overrides)
    return found


def _levels(parent: etree._Element) -> dict[int, Level]:
    """Return the rules that an element has for the levels, which are counted from 0."""
    levels: dict[int, Level] = {}
    for each in parent.iter(f"{W}lvl"):
        at = each.get(f"{W}ilvl", "")
        if not at.isdecimal() or int(at) >= _LEVELS:
            continue
        start, restart = _value(each, "start"), _value(each, "lvlRestart")
        kind = _KINDS.get(_value(each, "numFmt"), "1")
        legal = each.find(f"{W}isLgl")
        levels[int(at)] = Level(
            start=int(start) if start.isdecimal() else 1,
            kind=kind,
            text=_value(each, "lvlText"),
            style=_value(each, "pStyle"),
            legal=legal is not None and legal.get(f"{W}val", "1") not in ("0", "false"),
            restarts_after=int(restart) if restart.isdecimal() else int(at),
        )
    return levels


def _value(parent: etree._Element | None, name: str) -> str:
    found = parent.find(f"{W}{name}") if parent is not None else None
    return str(found.get(f"{W}val", "")) if found is not None else ""
