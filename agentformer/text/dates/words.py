"""The tables of `time_words.txt`, put so that each word of a text is looked up once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from agentformer.text.dates.calendar import strip_accents

UNITS = ("day", "week", "weekend", "month", "year")  # by number from 1
SLOTS = ("{n}", "{unit}", "{weekday}", "{month}", "{year}")
UNSPACED = "ja"  # the language that is read by characters
_ELEMENT = re.compile(r"\{\w+\}|[^\s{}]+")
_LINE = re.compile(r"(\w+) ([\w-]+) (-?\d+): (.+)")


class Phrase(NamedTuple):
    """What stands in a text, word by word, some words being slots such as "{unit}"; see `time_words.txt`."""

    language: str
    kind: str
    number: int
    words: tuple[str, ...]
    literals: frozenset[str]  # those of `words` that are no slots
    slots: frozenset[str]


@dataclass(frozen=True, slots=True)
class Words:
    """One language's words."""

    units: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    months: dict[str, int] = field(default_factory=dict)
    borders: set[str] = field(default_factory=set)
    articles: set[str] = field(default_factory=set)
    phrases: list[Phrase] = field(default_factory=list)


@lru_cache(maxsize=1)
def phrase_tables() -> Mapping[str, Words]:
    """Language -> its words, fold as `folded` folds them."""
    found: dict[str, Words] = {}
    for language, kind, number, items in _lines():
        words = found.setdefault(language, Words())
        for place, item in enumerate(items, number):
            if kind in ("unit", "number"):
                (words.units if kind == "unit" else words.numbers)[item] = number
            elif kind == "months":
                words.months.update(dict.fromkeys(item.split("/"), place))
            elif kind in ("border", "article"):
                (words.borders if kind == "border" else words.articles).add(item)
            else:
                words.phrases.append(_phrase(language, kind, number, tuple(_ELEMENT.findall(item))))
    return found


def _phrase(language: str, kind: str, number: int, words: tuple[str, ...]) -> Phrase:
    slots = frozenset(words) & frozenset(SLOTS)
    return Phrase(language, kind, number, words, frozenset(words) - slots, slots)


def fold(text: str) -> str:
    """Without case and accents, as the tables are, letter for letter: "ß" and the like stay as they are."""
    plain = strip_accents(text)
    whole = plain.casefold()
    if len(whole) == len(plain):
        return whole
    return "".join(short if len(short := letter.casefold()) == 1 else letter for letter in plain)


def _lines() -> Iterator[tuple[str, str, int, list[str]]]:
    """Language, kind, number and items of each line."""
    for line in Path(__file__).with_name("time_words.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise ValueError(f"time_words.txt: {line!r} is no line of a language, a kind, a number and phrases")
            yield match[1], match[2], int(match[3]), [fold(item.strip()) for item in match[4].split(",")]
