"""Find the numbers of a text with the kinds of their units: "640 metres" is a length, and "3 years" is a span of time.
`question_words.txt` has the units of each language."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple

from agentformer.text.languages import FUNCTION_WORDS, NUMBER_WORDS
from agentformer.text.questions import QUANTITIES, pattern_of, question_words

_DIGITS = r"\d+(?:[.,:\u00a0 ]\d{3})*(?:[.,:/]\d+)*"
_MONEY = frozenset("$€£¥")
_SIGNS = {sign: frozenset({"money"}) for sign in _MONEY} | dict.fromkeys("%％‰", frozenset({"share"}))
_SPACES = " \u00a0-"
_YEAR = re.compile(r"1\d{3}|20\d\d")
_BEFORE_YEAR = frozenset(
    {"in", "since", "year", "during", "im", "jahr", "jahre", "seit", "vuonna", "vuodesta", "vuoden", "vuoteen"}
    | {"år", "året", "sedan", "siden", "i", "fra", "från", "en", "anno", "desde", "depuis"}
)
_WORD = re.compile(r"[^\W\d_]+")
_BEHIND = 32  # code points behind a number in which its unit is searched
_BEFORE = 12  # code points before a number in which a word such as "in" is searched
_ONE = frozenset(
    {"a", "an", "one", "half", "whole", "ein", "eine", "einen", "einem", "einer", "halbe", "halben", "en", "ett"}
    | {"et", "én", "ei", "hel", "hela", "hele", "halv", "halvt", "koko", "puoli", "puolen", "several", "many", "few"}
    | {"mehrere", "mehreren", "viele", "vielen", "einige", "einigen", "flera", "många", "några", "flere", "mange"}
    | {"noen", "nogle"}
)
_ALONE = frozenset({"money", "age", "share"})  # their lists have words such as "free", "aged" and "half"
_WITHOUT_ARTICLES = frozenset({"fi", "ja"})


class Quantity(NamedTuple):
    """A number of a text, as written. `kinds` are the kinds of quantities that its unit measures, such as {"length"}.
    They are empty if it has no unit or an unknown one. `has_unit` is true if a unit follows, also an unknown one such
    as "people". `is_year` is true if the number is probably a year, and `has_noun` if a word that may be a noun follows
    ("8 persons")."""

    number: str
    kinds: frozenset[str]
    has_unit: bool
    is_year: bool
    has_noun: bool


def quantities(text: str, language: str) -> Iterator[Quantity]:
    """Yield the numbers of a text in digits and in words. `language` is the ISO 639-1 code of the text."""
    for match in _numbers(language).finditer(text):
        behind = text[match.end() : match.end() + _BEHIND].casefold().lstrip(_SPACES)
        scaled = _without_scales(behind, language)
        kinds = _kinds(scaled, language) | _signed(text[max(0, match.start() - 2) : match.start()], scaled)
        units = pattern_of("units", language)
        has_unit = bool(kinds) or scaled != behind or bool(units and units.match(scaled))
        is_year = not has_unit and _YEAR.fullmatch(match[0]) is not None and not _counts(text, match, behind, language)
        noun = _WORD.match(scaled)
        has_noun = noun is not None and noun[0] not in FUNCTION_WORDS.get(language, frozenset())
        yield Quantity(match[0].casefold(), kinds, has_unit, is_year, has_noun)


def _without_scales(behind: str, language: str) -> str:
    """Return the text behind a number without words such as "million"."""
    scales = pattern_of("scales", language)
    while scales and (scale := scales.match(behind)):
        behind = behind[scale.end() :].lstrip(_SPACES)
    return behind


def _signed(before: str, behind: str) -> frozenset[str]:
    money = not _MONEY.isdisjoint(before)
    return frozenset({"money"} if money else ()) | _SIGNS.get(behind[:1], frozenset())


def has_unit_alone(kinds: Collection[str], text: str, language: str) -> bool:
    """Return whether a text states a quantity of one of these kinds without a number: "an hour", "free"."""
    folded = text.casefold()
    for kind in kinds:
        pattern = pattern_of(kind, language)
        for match in pattern.finditer(folded) if pattern else ():
            before = _WORD.findall(folded[max(0, match.start() - _BEFORE) : match.start()])[-1:]
            if kind in _ALONE or language in _WITHOUT_ARTICLES or not _ONE.isdisjoint(before):
                return True
    return False


@cache
def _numbers(language: str) -> re.Pattern[str]:
    words = question_words("numbers").get(language, frozenset()) | NUMBER_WORDS.get(language, {}).keys()
    written = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(rf"{_DIGITS}|(?<![^\W_])(?:{written})(?![^\W_])" if words else _DIGITS, re.IGNORECASE)


def _kinds(behind: str, language: str) -> frozenset[str]:
    """Return the kinds of the longest unit with which a text begins: only "speed" for "km/h"."""
    if not behind or not (behind[0].isalpha() or behind[0] == "°"):
        return frozenset()
    patterns = {each: pattern for each in QUANTITIES if (pattern := pattern_of(each, language))}
    found = {each: match.end() for each, units in patterns.items() if (match := units.match(behind))}
    longest = max(found.values(), default=0)
    return frozenset(each for each, size in found.items() if size == longest)


def _counts(text: str, match: re.Match[str], behind: str, language: str) -> bool:
    """Return whether a number of four digits counts something and is no year: "1500 members", and "Members: 1850"."""
    before = text[max(0, match.start() - _BEFORE) : match.start()].rstrip()
    word = _WORD.findall(before)[-1:]
    if before.endswith(tuple(word)) and not _BEFORE_YEAR.isdisjoint(each.casefold() for each in word):
        return False
    following = _WORD.findall(text[match.end() : match.end() + _BEHIND])[:2] if behind[:1].isalpha() else []
    if language == "de":
        return any(each[0].isupper() for each in following)
    if following:
        return following[0].casefold() not in FUNCTION_WORDS.get(language, frozenset())
    return before.endswith((":", "|", "=")) and not behind.startswith(":")
