"""Compare two statements: `features` shows how likely it is that the newer one replaces the older one.

"I live in Oslo" replaces "I live in Turku", and "The deadline was moved to 24 March" replaces "The deadline is 3
March". Statements about other people, things, places, seasons or years replace nothing, and neither does a wish, a
question or the past. The features use words and do not understand their meaning. `search.replacement_classifier` weighs
them, together with the vectors of the statements.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from agentformer.text.facts.numbers_and_dates import is_year
from agentformer.text.facts.statement_words import CLASSES, Statement, language_group, statement
from agentformer.text.languages.detection import detect_language
from agentformer.text.question_types import classify

Difference = Literal["value", "number", "date", "negation"]

_LONGEST_VALUE = 3  # number of words of a value
_BEGINNING = 5  # letters of a word that are equal in its forms
_OF_NEWER = ("changes", "now", "past", "former", "wish", "also", "says", "if", "kin", "negations", "many", "i")
_OF_OLDER = ("past", "former", "wish", "many", "kin", "negations", "events", "i", "they")
_COMPARED = (
    *("share_older", "share_newer", "no_share", "rest_older", "rest_newer", "long", "older_asks", "newer_asks"),
    *("negation", "negation_share", "change_share", "change_shared"),
    *("first_word", "first_written", "other_person", "numbers", "times", "names", "words", "number_time"),
    *("number_word", "time_word", "values", "year_older", "year_newer", "labels", "number_of_thing"),
    *("class", "class_change", "class_other"),
    *("span", "span_first", "span_inside", "span_last", "span_number", "span_time", "span_name", "span_word"),
    *("span_many", "span_single", "span_change", "spans"),
)
FEATURES = (*(f"newer_{kind}" for kind in _OF_NEWER), *(f"older_{kind}" for kind in _OF_OLDER), *_COMPARED)


def features(older: str, newer: str, languages: tuple[str, str]) -> tuple[float, ...]:
    """Return the values of `FEATURES` (0..1) for two texts, of which the second is newer. `languages` are the languages
    of the texts (ISO 639-1), or "" if unknown. The result is empty if the newer one states nothing else, as "Oslo,
    Norway" after "Oslo"."""
    group = language_group(older, newer, languages)
    one, other = statement(older, group), statement(newer, group)
    changed = not (other.kinds - one.kinds).isdisjoint({"changes", "now", "negations"}) or "negations" in one.kinds
    if not one.words or not other.words or ({*one.words} <= {*other.words} and not changed):
        return ()
    values = [float(kind in other.kinds) for kind in _OF_NEWER] + [float(kind in one.kinds) for kind in _OF_OLDER]
    return (*values, *map(float, (*_shared(one, other), *_aligned(one, other))))


def difference(older: str, newer: str, languages: tuple[str, str]) -> Difference:
    """Return in what a newer text that replaces an older one differs from it: in a number if each has one that the
    other lacks, else in a negation if only one has it, else in a date if each has a time that the other lacks, else in
    a value."""
    group = language_group(older, newer, languages)
    one, other = statement(older, group), statement(newer, group)
    replaced = _types_of_own_words(one, other) & _types_of_own_words(other, one)
    if "#" in replaced:
        return "number"
    if ("negations" in one.kinds) != ("negations" in other.kinds):
        return "negation"
    return "date" if "t" in replaced else "value"


def _types_of_own_words(one: Statement, other: Statement) -> set[str]:
    """Return the types (see `Statement.types`) of the words that only the first statement has."""
    return {type_ for word, type_ in zip(one.words, one.types, strict=True) if word not in other.words}


@lru_cache(maxsize=512)
def asks_former(question: str, older: str, newer: str, language: str) -> bool:
    """Return whether a question asks for the past, or names a year, a name or a number that only the older text
    contains. A question for yes or no may name an older value: "Do I live in Turku?". `language` is that of the older
    text, or "" if unknown."""
    group = language_group(older, question, (language, language))
    asked = statement(question.rstrip("?？ "), group)
    if "former" in asked.kinds:
        return True
    words = question.casefold().replace("?", " ").split()
    if any(is_year(word) and word not in newer for word in words):
        return True
    one, other = statement(older, group), statement(newer, group)
    names = {_form(word) for word, kind in zip(one.words, one.types, strict=True) if kind in "n#t"}
    names -= set(map(_form, other.words))
    named = not names.isdisjoint(map(_form, asked.words)) or (group == "ja" and any(name in question for name in names))
    return named and classify(question, group or detect_language(question) or "en").type != "open"


def _known(words: tuple[str, ...], others: tuple[str, ...]) -> frozenset[str]:
    """Return those of the words that the others contain, in any form."""
    forms = set(map(_form, others))
    return frozenset(word for word in words if _form(word) in forms)


@lru_cache(maxsize=16_384)
def _form(word: str) -> str:
    """Return the part of a word that all its forms have in common. A number or a code has one form."""
    return word if any(map(str.isdecimal, word)) else word[:_BEGINNING]


def _shared(one: Statement, other: Statement) -> tuple[float, ...]:
    """Return the features of the words that two statements share, and of the words that only one of them has."""
    shared = _known(one.words, other.words), _known(other.words, one.words)
    shares = tuple(len(known) / max(1, len({*each.words})) for known, each in zip(shared, (one, other), strict=True))
    rests = [
        [kind for word, kind in zip(each.words, each.types, strict=True) if word not in known]
        for known, each in zip(shared, (one, other), strict=True)
    ]
    both = {*rests[0]} & {*rests[1]}
    number, time, name, word = (kind in both for kind in "#tnw")
    values = bool(rests[0] and rests[1]) and {*rests[0], *rests[1]} <= {*"n#t"}
    negation = ("negations" in one.kinds) != ("negations" in other.kinds)
    change = not other.kinds.isdisjoint({"changes", "now"})
    first = bool(one.words and other.words) and one.words[0] in shared[0] and other.words[0] in shared[1]
    classes = one.kinds & CLASSES, other.kinds & CLASSES
    common = bool(classes[0] & classes[1])
    years = [any(map(is_year, {*a.words}.difference(b.words))) for a, b in ((one, other), (other, one))]
    person = "kin" in other.kinds and "kin" not in one.kinds
    return (
        *(*shares, not shared[0], min(len(rests[0]), 4) / 4, min(len(rests[1]), 4) / 4),
        *(min(len(other.words), 12) / 12, one.asks, other.asks, negation, negation * min(shares)),
        *(change * max(shares), change and bool(shared[0])),
        *(first, one.first == other.first, person, number, time, name, word, number and time),
        *(number and (word or name), time and (word or name), values, *years, one.labelled and other.labelled),
        bool(one.number and other.number) and one.number != other.number,
        *(common, common and change, bool(classes[0] and classes[1]) and not common),
    )


def _aligned(one: Statement, other: Statement) -> tuple[float, ...]:
    """Return the features of two statements that are equal apart from one span of words."""
    shorter = min(len(one.words), len(other.words))
    first = next((n for n in range(shorter) if one.words[n] != other.words[n]), shorter)
    last = next((n for n in range(shorter - first) if one.words[-1 - n] != other.words[-1 - n]), shorter - first)
    sizes = len(one.words) - last - first, len(other.words) - last - first
    apart = len(one.words) == len(other.words) and sum(a != b for a, b in zip(one.words, other.words, strict=True)) > 1
    if not (first + last and 0 < sizes[0] <= _LONGEST_VALUE and 0 < sizes[1] <= _LONGEST_VALUE):
        return (*[0.0] * 11, apart)
    types = one.types[first : first + sizes[0]], other.types[first : first + sizes[1]]
    both = {*types[0]} & {*types[1]} if first else set[str]()
    change = not other.kinds.isdisjoint({"changes", "now"})
    return (
        *(1.0, not first, first and last, first and not last),
        *("#" in both, "t" in both, "n" in both, types == ("w", "w") and first),
        *(first and not one.kinds.isdisjoint({"many", "events"}), first and sizes == (1, 1), first and change, apart),
    )  # fmt: skip
