"""Find the numbers of a text, the kinds of their units, and the things that are named by a number.

"640 metres" is a length, and "3 years" is a span of time; the section `questions` of a language file has its units. A
time, a date, a phone number and a reference to a paragraph are one token each: "04:30" does not contain 30, and "12(3)"
does not contain 3. "Berth 30" and "article 12(4)" are things that are named by a number.

Numbers are equal if they have the same values. `numbers_and_dates.py` computes them; `whole_numbers` computes those of
phone numbers and paragraphs, and leaves out the readings in which a part of a number is a number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import islice, pairwise
from typing import NamedTuple

from agentformer.text.dates.notation import Mention, months
from agentformer.text.facts.numbers_and_dates import Number, all_values, ascii_digits, find_numbers, masked
from agentformer.text.language_files import with_trait
from agentformer.text.languages.detection import FUNCTION_WORDS, NUMBER_WORDS
from agentformer.text.question_types import QUANTITIES, pattern_of, question_words

_DIGITS = r"\d+(?:[.,:\u00a0 ]\d{3})*(?:[.,:/]\d+)*"
_MONEY = frozenset("$€£¥")
_SIGNS = {sign: frozenset({"money"}) for sign in _MONEY} | dict.fromkeys("%％‰", frozenset({"share"}))
_SPACES = " \u00a0-"
_YEAR = re.compile(r"(?:1\d{3}|20\d\d)(?!\d)")
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
_WITHOUT_ARTICLES = with_trait("no articles")


class Quantity(NamedTuple):
    """A number of a text, as written. `kinds` are the kinds of quantities that its unit measures, such as {"length"}.
    `kinds` is empty if the unit is missing or has no kind. `has_unit` is true if a unit follows, even a unit without a
    kind ("people"), or if a word such as "million" follows. `is_year` is true if the number is probably a year, and
    `has_noun` if a word that may be a noun follows ("8 persons")."""

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
        kinds = _kinds(scaled, language) | _SIGNS.get(scaled[:1], frozenset())
        if not _MONEY.isdisjoint(text[max(0, match.start() - 2) : match.start()]):
            kinds |= {"money"}
        units = pattern_of("units", language)
        has_unit = bool(kinds) or scaled != behind or bool(units and units.match(scaled))
        is_year = not has_unit and _YEAR.fullmatch(match[0]) is not None and not _counts(text, match, behind, language)
        noun = _WORD.match(scaled)
        has_noun = noun is not None and noun[0] not in FUNCTION_WORDS.get(language, frozenset())
        yield Quantity(match[0].casefold(), kinds, has_unit, is_year, has_noun)


def _without_scales(behind: str, language: str) -> str:
    """Return `behind`, the text after a number, without the words such as "million" at its start."""
    scales = pattern_of("scales", language)
    while scales and (scale := scales.match(behind)):
        behind = behind[scale.end() :].lstrip(_SPACES)
    return behind


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
    """Return the kinds of the longest unit with which a text begins: for "km/h", the kind of "km/h" and not of "km"."""
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


# A phone number of several groups, with "0" or "+" at the beginning or in the American form.
_PHONE = re.compile(
    r"(?<![\d.,:/-])(?:(?:\+\d{1,3}|\(?0\d{1,4}\)?)(?:[ \u00a0/-]\(?\d{2,}\)?){1,5}"
    r"|(?:\(?\d{3}\)?[ -]?)?\d{3}-\d{4})(?![.,:/-]?\d)"
)
_LEAST_DIGITS = 7  # of a phone number
_PARAGRAPH = re.compile(r"(?<![\w.,])(\d+[a-z]?)((?:\(\w{1,4}\))+)", re.IGNORECASE)
_BRACKETED = re.compile(r"(?<!\w)\(\w{1,4}\)")
_COUNTED = r"\d+(?:\.\d+)*[a-z]?(?![^\W\d_])(?:\(\w{1,4}\))*"
_BETWEEN = r"\s*(?:[,/&+–-]|\b(?:and|or|to|och|og|und|bis|ja|tai|till|til|et|y|e|o)\b)\s*"
_NAMED = re.compile(
    rf"(?P<noun>(?<![^\W\d_])[^\W\d_]{{2,}}+|§)[.:]?\s?(?:(?:no|nr|nro|number|nummer|numero)\b\.?\s?|#)?"
    rf"(?P<numbers>{_COUNTED}(?:{_BETWEEN}{_COUNTED})*)(?!:?\d|[.,]\d|%|\s?[%€$£°])",
    re.IGNORECASE,
)
_BEFORE_NOUN = re.compile(
    r"(?<!\d)(?P<numbers>\d++)(?P<noun>\s?§|\.?\s(?:artikla|luku|luvu|momen|kohta|kohda)|[条項章節頁番号]|号室|ページ)",
    re.IGNORECASE,
)
_NUMBER = re.compile(_COUNTED, re.IGNORECASE)
_RANGE = re.compile(r"(?<!\d)(\d{1,18})\s*(?:[–-]|to|bis|till|til)\s*(\d{1,18})(?!\d)")
_SHORTEST, _ENDING = 3, 4  # letters of a noun, and of an ending that it may have
_ASKED = 20  # things, and numbers of a thing, of a question that are compared
_UNIT = 14  # code points behind a number in which its unit is searched
# "Johan II" and "Chapter IV"
_ROMAN = re.compile(r"(?<![^\W_])([^\W\d_a-z][^\W\d_]+) (?=[IVX])(X{0,3}(?:IX|IV|V?I{0,3}))(?!\w)")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10}
_FREQUENT = frozenset().union(*FUNCTION_WORDS.values())


def whole_numbers(text: str) -> Iterator[Number]:
    """Yield the numbers in `text`, as `find_numbers` does, but without the readings in which the parts of a number are
    numbers of their own. A phone number is one number, and so is a reference such as "12(4)"."""
    plain = ascii_digits(text)
    tokens = [*_phones(plain), *_paragraphs(plain)]
    yield from tokens
    rest = masked(plain, tokens) if tokens else plain
    for number in find_numbers(rest):
        marked = len(number.readings) > 1 and not set(rest[number.start : number.end]).isdisjoint(":'’.,")
        parts = number.readings[-1:] if marked and len(number.readings[-1]) > 1 else ()
        yield Number(number.start, number.end, number.readings[: len(number.readings) - len(parts)])


def whole_values(plain: str, dates: Iterable[Mention]) -> set[str]:
    """Return the values of the whole numbers in a text, in all their readings; see `whole_numbers`. The digits of
    `plain` are ASCII digits. `dates` are its dates, whose numbers are left out. A reference such as "12(4)" gives
    "12(4)", "12" and "(4)", but not "4"."""
    rest = masked(plain, [mention for mention in dates if mention.sure])
    values = all_values(whole_numbers(rest))
    return {v for v in values if not _BRACKETED.fullmatch(v)} | {
        match[0].casefold() for match in _BRACKETED.finditer(plain)
    }


def _phones(plain: str) -> Iterator[Number]:
    for match in _PHONE.finditer(plain):
        groups = re.findall(r"\d+", match[0])
        if len("".join(groups)) >= _LEAST_DIGITS:
            endings = ("".join(groups[n:]) for n in range(len(groups) - 1))  # without the code of the country or area
            yield Number(match.start(), match.end(), tuple(frozenset({ending}) for ending in endings))


def _paragraphs(plain: str) -> Iterator[Number]:
    for match in _PARAGRAPH.finditer(plain):
        parts = {match[1].casefold(), *(part[0].casefold() for part in _BRACKETED.finditer(match[2]))}
        yield Number(match.start(), match.end(), (frozenset({match[0].casefold()}), frozenset(parts)))


class NumberedThing(NamedTuple):
    """A thing that a number names: its casefolded noun, and the number as written. `numbers` contains several numbers
    if the text lists them: "28-30" in "berths 28-30"."""

    noun: str
    numbers: str

    def is_among(self, others: Iterable[NumberedThing]) -> bool:
        """Return whether one of `others` has the same number. The number of a part also counts: "7.2" for "7", or "12"
        for "12(4)"."""
        own = _NUMBER.findall(self.numbers)[:_ASKED]
        return any(_includes(other.numbers, number) for other in others for number in own)


def numbered_things(text: str, language: str) -> list[NumberedThing]:
    """Return the things that a number names in a text, such as "berth 30" and "Johan II". `language` is the language of
    the text. A year, a time, a number after a function word, and a number before a unit are not such names."""
    plain = _ROMAN.sub(_in_digits, ascii_digits(text))
    frequent, units = FUNCTION_WORDS.get(language, _FREQUENT), pattern_of("units", language)
    found = []
    for match in (*_NAMED.finditer(plain), *_BEFORE_NOUN.finditer(plain)):
        noun = match["noun"].casefold().strip(" .")
        if units and units.match(plain[match.end() : match.end() + 2 * _UNIT].lstrip()[:_UNIT].casefold()):
            continue
        if noun not in frequent and not months(noun) and not _YEAR.match(match["numbers"]):
            found.append(NumberedThing(noun, match["numbers"].casefold()))
    return found


def _in_digits(match: re.Match[str]) -> str:
    values = [_ROMAN_VALUES[letter] for letter in match[2]]
    total = sum(-one if one < other else one for one, other in pairwise([*values, 0]))
    return f"{match[1]} {total}"


def names_another(asked: Iterable[NumberedThing], text: str, language: str) -> bool:
    """Return whether a text names a thing of the same kind as one of `asked`, but not this thing: "berth 12" for "berth
    30"."""
    return any(alike and not thing.is_among(alike) for thing, alike in _compared(asked, text, language))


def names_same(asked: Iterable[NumberedThing], text: str, language: str) -> list[NumberedThing]:
    """Return the things in `asked` that a text names. The text may also name a range that contains the thing ("berths
    28-34" for "berth 30"), or a part of the thing ("section 7.2" for "section 7")."""
    return [thing for thing, alike in _compared(asked, text, language) if thing.is_among(alike)]


def _compared(
    asked: Iterable[NumberedThing], text: str, language: str
) -> Iterator[tuple[NumberedThing, list[NumberedThing]]]:
    """Yield each thing in `asked`, with the things of the same kind that a text names."""
    named: list[NumberedThing] | None = None
    for thing in islice(dict.fromkeys(asked), _ASKED):
        named = list(dict.fromkeys(numbered_things(text, language))) if named is None else named
        yield thing, [each for each in named if _is_same_noun(thing.noun, each.noun)]


def _is_same_noun(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return short == long or (len(short) >= _SHORTEST and long.startswith(short) and len(long) - len(short) <= _ENDING)


def _includes(numbers: str, asked: str) -> bool:
    ranges = (sorted(map(int, match.groups())) for match in _RANGE.finditer(numbers))
    if re.fullmatch(r"\d{1,18}", asked) and any(low <= int(asked) <= high for low, high in ranges):
        return True
    return any(one == asked or _is_part(one, asked) or _is_part(asked, one) for one in _NUMBER.findall(numbers))


def _is_part(part: str, whole: str) -> bool:
    return part.startswith(whole) and part != whole and part[len(whole)] in ".("
