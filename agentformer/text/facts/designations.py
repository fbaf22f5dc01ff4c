"""Find out whether a text is about another person, thing or event than a question: "Anna Holm" for "Anna Berg", the
code AY1331 for BA1331, the first for the second, or "left" for "joined"."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from itertools import takewhile

from agentformer.text.facts.claims import CAPITAL_NOUNS
from agentformer.text.languages import FUNCTION_WORDS, stem
from agentformer.text.normalize import letters_and_digits
from agentformer.text.questions import has_words, pattern_of

_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_OPPOSITES = (
    ("joins", "leaves"),
    ("opens", "closes"),
    ("starts", "ends"),
    ("buys", "sells"),
    ("arrives", "departs"),
    ("born", "dies"),
    ("grows", "falls"),
)
_CODE = re.compile(r"\b(?!(?:FY|CY|HY|Q|H)\d)[A-ZÅÄÖÆØÜ]{1,5}[-/]?\d{2,}[A-Za-z\d/_-]*")
_CAPITALISED = re.compile(r"(?P<one>[^\W\d_a-z][^\W\d_]+(?:[-'’][^\W\d_]+)*) (?P<two>[^\W\d_a-z][^\W\d_]+)")
_WORD = re.compile(r"[^\W_]+")
_PERIOD = re.compile(r"\d\s*(?:[-–—]|to|until|till?|bis|og|och|and|und|ja)\s*\d", re.IGNORECASE)
_COMMON, _SHARE = 4, 0.66  # letters, and share of the letters, that two forms of a name have in common
_ENDING = 4  # letters of an ending that a name may have
_SHORT = 10  # most words of a short question
_SIMILAR = 0.8  # share of letters that two spellings of a name have in common
_PLACE = re.compile(r"\b(in|nach|aus|von) ([A-ZÄÖÜ][^\W\d_]+)")


def is_about_another(names: Iterable[str], question: str, text: str, language: str) -> bool:
    """Return whether a text in `language` is certainly about something else than the question. `names` are names in the
    question."""
    surnames = () if language in CAPITAL_NOUNS else names
    return (
        any(_names_another(name, text, language) for name in surnames)
        or _has_another_code(question, text)
        or _has_another_ordinal(question.casefold(), text.casefold(), language)
    )


def may_be_about_another(question: str, text: str, language: str) -> bool:
    """Return whether a text has the opposite of a verb of the question, or another place: "in Kiel" for "in Bremen"."""
    if language in CAPITAL_NOUNS and _has_another_place(question, text):  # in other languages, a capital shows names
        return True
    return _says_the_opposite(question, text, language)


def _says_the_opposite(question: str, text: str, language: str) -> bool:
    """Return whether a question has a verb such as "joined" and a text has only the opposite, such as "left". Return
    False if the text states a period, because a period has both a start and an end."""
    asked, stated = question.casefold(), text.casefold()
    return not _PERIOD.search(stated) and any(
        has_words(one, asked, language)
        and not has_words(other, asked, language)
        and has_words(other, stated, language)
        and not has_words(one, stated, language)
        for pair in _OPPOSITES
        for one, other in (pair, pair[::-1])
    )


def _names_another(name: str, text: str, language: str) -> bool:
    """Return whether a text has the first word of a name, but another word in place of the last word of the name."""
    first, *_, last = words if len(words := _WORD.findall(name)) > 1 else ("", "")
    stated = _WORD.findall(text) if first else []
    if not _has(first, stated) or _has(last, stated) or get_close_matches(last, stated, 1, _SIMILAR):
        return False
    if any(_shared(last, each) >= max(_COMMON, _SHARE * len(each)) for each in stated):
        return False  # an inflected name: "Siriuksessa" for "Sirius"
    ignored = FUNCTION_WORDS.get(language, frozenset())
    return any(_is_form(first, one) and two.casefold() not in ignored for one, two in _neighbors(text))


def _has_another_place(question: str, text: str) -> bool:
    if len(_WORD.findall(question)) > _SHORT:  # a long question has nouns behind a preposition that are no places
        return False
    asked, stated = ([match.groups() for match in _PLACE.finditer(each)] for each in (question, text))
    words = _WORD.findall(text) if asked and stated else []
    others = {before for before, name in stated if not _has(name, _WORD.findall(question))}
    return any(before in others and not _has(name, words) for before, name in asked)


def _neighbors(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of neighboring words with capital letters."""
    for start in (match.start() for match in _WORD.finditer(text)):
        match = _CAPITALISED.match(text, start)
        if match and match["one"][0].isupper() and match["two"][0].isupper():
            yield match["one"], match["two"]


def _has(word: str, words: Collection[str]) -> bool:
    return any(_is_form(word, other) for other in words)


def _shared(word: str, other: str) -> int:
    """Return the number of letters with which both words begin."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(word.casefold(), other.casefold(), strict=False))
    )


def _is_form(word: str, other: str) -> bool:
    short, long = sorted((word.casefold(), other.casefold()), key=len)
    return long.startswith(short) and len(long) - len(short) <= _ENDING


def _has_another_code(question: str, text: str) -> bool:
    asked = [letters_and_digits(code) for code in _CODE.findall(question)]
    stated = letters_and_digits(text) if asked else ""
    return any(code not in stated for code in asked) and _CODE.search(text) is not None


def _has_another_ordinal(asked: str, stated: str, language: str) -> bool:
    wanted = set(_ordinals(asked, language))
    found = set(_ordinals(stated, language)) if wanted else set()
    nouns = {noun for _, noun in found}
    return any(noun in nouns and (ordinal, noun) not in found for ordinal, noun in wanted)


def _ordinals(folded: str, language: str) -> Iterator[tuple[str, str]]:
    """Yield the ordinal numbers of a casefolded text, each with the stem of the next word."""
    for ordinal in _ORDINALS:
        pattern = pattern_of(ordinal, language)
        for match in pattern.finditer(folded) if pattern else ():
            if noun := _WORD.match(folded[match.end() :].lstrip()):
                yield ordinal, stem(noun[0], language)
