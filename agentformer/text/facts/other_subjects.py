"""Find out whether a text is about another person, thing or event than a question: "Anna Holm" for "Anna Berg", the
code AY1331 for BA1331, the first for the second, or "left" for "joined"."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from itertools import takewhile

from agentformer.text.facts.unsupported_claims import CAPITAL_NOUNS
from agentformer.text.languages.detection import FUNCTION_WORDS, stem
from agentformer.text.normalize import letters_and_digits
from agentformer.text.question_types import pattern_of

_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_CODE = re.compile(r"\b(?!(?:FY|CY|HY|Q|H)\d)[A-ZÅÄÖÆØÜ]{1,5}[-/]?\d{2,}[A-Za-z\d/_-]*")
_CAPITALISED = re.compile(r"(?P<one>[^\W\d_a-z][^\W\d_]+(?:[-'’][^\W\d_]+)*) (?P<two>[^\W\d_a-z][^\W\d_]+)")
_WORD = re.compile(r"[^\W_]+")
_COMMON, _SHARE = 4, 0.66  # letters, and share of the letters, that two forms of a name have in common
_ENDING = 4  # letters of an ending that a name may have
_SIMILAR = 0.8  # share of letters that two spellings of a name have in common


def is_about_another(names: Iterable[str], question: str, text: str, language: str) -> bool:
    """Return whether a text in `language` is certainly about something else than the question. `names` are names in the
    question."""
    surnames = () if language in CAPITAL_NOUNS else names
    return (
        any(_names_another(name, text, language) for name in surnames)
        or _has_another_code(question, text)
        or _has_another_ordinal(question.casefold(), text.casefold(), language)
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
