"""Find out whether a sentence contains something of the type that a question asks for: a number, a date, a name or a
reason. Words and numbers that the question itself contains do not count."""

from __future__ import annotations

import re
from collections.abc import Collection

from agentformer.text.dates import find_dates, months, weekdays
from agentformer.text.facts.numbers import Quantity, quantities
from agentformer.text.languages import FUNCTION_WORDS
from agentformer.text.questions import QUANTITIES, Question, pattern_of

_NUMBERED = re.compile(r"^\s*(?:§\s?\d[\d.]*|\d{1,2}(?:\.\d{1,2}){1,3}|\(?\d{1,2}[.)])\s+")  # "§8.3 The accounts"
_EAST_NUMBER = re.compile(
    r"(?<![〇一二三四五六七八九十百千万億兆])[〇一二三四五六七八九十百千万億兆]++(?=[人年月日個回本匹台枚冊校種度社名円歳分秒時割つ倍世代位])"
)
_YEAR = re.compile(r"(?<!\d)(?:1\d{3}|20\d\d)(?!\d)")
_AGE = re.compile(
    r"世紀|年代|時代|(?<=\d)年|(?<=\d)月|"
    r"(?<=\d)-?(?:talet|tallet)\b|\b(?:centur|decade|jahrhundert|vuosisa|vuosikym|århundr|siècle|siglo|secolo|século)"
    r"|\b(?:ten|eleven|twelve) ?(?:a\.?m|p\.?m)\b|\b\d{1,2}-tiden\b|\b(?:v|f)\.? ?(?:chr|kr)\b"
    r"|\d{1,4} ?(?:bc|ad|bce|ce|eaa|jaa)\b"
)
_TIME_OF_DAY = re.compile(
    r"\b(?:kl\.?|klo|kello|klokk?[ae]n?|klockan) ?\d{1,2}(?:[.:]\d\d)?(?!\d)|(?<!\d)\d{1,2}:\d\d(?!\d)"
    r"|\b\d{1,2}(?:[.:]\d\d)? ?(?:[ap]\.?m\b|uhr\b)|\b(?:at|um|until|till|bis) \d{1,2}\.\d\d(?!\d)",
    re.IGNORECASE,
)
_NUMBER_VALUE = 0.8  # value of a number without a unit
_OTHER_VALUE = 0.5  # value of a number that may measure something else than the question asks for
_TIME_VALUE = 0.7  # value of a century, a decade or a time of the day
_PHYSICAL = frozenset({"age", "length", "mass", "heat", "speed"})  # a number without such a unit counts things
_SHARED = frozenset({"money"})  # a percentage may answer "How much did the fee rise?"
_SHARE = frozenset({"share"})
_AMOUNTS = frozenset({"money", "mass"})
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_CASELESS = frozenset({"ja", "zh", "th", "ko", "he", "ar", "fa", "hi", "ne", "ta"})
_CAPITAL_NOUNS = frozenset({"de"})


def has_candidate(question: Question, text: str, language: str, known: Collection[str]) -> float | None:
    """Return how surely a sentence contains an answer of the question's type, from 0 (nothing of this type) to 1.
    `language` is the language of the sentence, and `known` are the casefolded words of the question. Return None if
    this cannot be judged: for a question of a type that this module does not know, for names in a script without
    capital letters, and, in some languages, for reasons."""
    text, language = _NUMBERED.sub("", text), language or question.language
    if asks_number(question):
        return _quantity(question, text, language, known)
    if question.type == "when":
        return _time(text, language, known)
    if question.type in ("who", "where"):
        return None if language in _CASELESS else float(_has_name(text, language, known))
    reasons = pattern_of("reasons", language) if question.type == "why" else None
    return float(bool(reasons.search(text.casefold()))) if reasons else None


def asks_number(question: Question) -> bool:
    """Return whether a number answers the question. Also true for "What does it cost?" and "What does it weigh?"."""
    return question.type in ("many", "much") or (question.type == "what" and not _AMOUNTS.isdisjoint(question.measures))


def _quantity(question: Question, text: str, language: str, known: Collection[str]) -> float:
    """Return how well the best number in a text answers a question that asks for a number, from 0 to 1. Numbers in a
    date, times of the day, years, and numbers in `known` (the words of the question) do not count. A number whose unit
    is of another kind than the question asks for does not count either."""
    for mention in reversed(find_dates(text)):
        text = text[: mention.start] + " " + text[mention.end :]
    text = _TIME_OF_DAY.sub(" ", text)
    new = [each for each in quantities(text, language) if each.number not in known]
    asked = question.measures.intersection(each for each in QUANTITIES if pattern_of(each, language))
    best = max((_value(each, question, asked) for each in new), default=0.0)
    return best or (_NUMBER_VALUE if _EAST_NUMBER.search(text) else 0.0)


def _value(found: Quantity, question: Question, asked: Collection[str]) -> float:
    """Return how well a number answers the question, from 0 to 1. `asked` are the kinds of quantities for which the
    question asks."""
    if not found.kinds.isdisjoint(asked):
        return 1.0
    if found.is_year or (found.has_noun and not found.kinds and asked and _PHYSICAL.issuperset(asked)):
        return 0.0
    if found.kinds and (asked or question.type == "many") and not (found.kinds == _SHARE and _SHARED.issuperset(asked)):
        return 0.0
    if asked:
        return _OTHER_VALUE
    return 1.0 if found.has_unit and found.kinds != _SHARE else _NUMBER_VALUE


def _time(text: str, language: str, known: Collection[str]) -> float:
    """Return 1 for a date or a year, 0.7 for a century, a decade or a time of the day, and 0 if the text contains no
    time."""
    amounts = {each.number for each in quantities(text, language) if each.kinds} if _YEAR.search(text) else set()
    if any(match[0] not in known and match[0] not in amounts for match in _YEAR.finditer(text)):
        return 1.0
    for mention in find_dates(text):
        words = _WORD.findall(text[mention.start : mention.end].casefold()) or [text[mention.start : mention.end]]
        if any(word not in known for word in words):
            return 1.0
    return _TIME_VALUE if _AGE.search(text.casefold()) or _TIME_OF_DAY.search(text) else 0.0


def _has_name(text: str, language: str, known: Collection[str]) -> bool:
    """Return whether a text has a name that is not in the question. A word with a capital letter counts as a name. The
    first word of the sentence counts only if the next word has a capital letter, too. In German, where all nouns have
    capital letters, only two such words in a row count."""
    words = _WORD.findall(text)
    ignored = FUNCTION_WORDS.get(language, frozenset())
    capital = [word[:1].isupper() and len(word) > 1 and word.casefold() not in ignored for word in words]
    for n, word in enumerate(words):
        is_new = capital[n] and word.casefold() not in known and not months(word) and not weekdays(word)
        beside = (n > 0 and capital[n - 1]) or (n + 1 < len(words) and capital[n + 1])
        if is_new and (beside or (n > 0 and language not in _CAPITAL_NOUNS)):
            return True
    return False
