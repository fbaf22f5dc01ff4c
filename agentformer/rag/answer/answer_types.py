"""Find out whether a sentence contains something of the type that a question asks for: a number, a date, a name, a
place or a reason. Words and numbers that the question itself contains do not count."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial

from agentformer.text.dates.notation import find_dates, months, weekdays
from agentformer.text.facts.quantities import Quantity, has_unit_alone, quantities
from agentformer.text.language_files import with_trait
from agentformer.text.languages.detection import FUNCTION_WORDS
from agentformer.text.question_types import COPULAS, QUANTITIES, Question, has_words, pattern_of, periods

_NUMBERED = re.compile(r"^\s*(?:§\s?\d[\d.]*|\d{1,2}(?:\.\d{1,2}){1,3}|\(?\d{1,2}[.)])\s+")  # "§8.3 The accounts"
_EAST_NUMBER = re.compile(
    r"(?<![〇一二三四五六七八九十百千万億兆])[〇一二三四五六七八九十百千万億兆]++(?=[人年月日個回本匹台枚冊校種度社名円歳分秒時割つ倍世代位])"
)
_YEAR = re.compile(r"(?<!\d)(?:1\d{3}|20\d\d)(?!\d)")
_AGE = re.compile(
    r"世紀|年代|時代|(?<=\d)年|(?<=\d)月|"
    r"(?<=\d)-?(?:talet|tallet)\b|\b(?:centur|decade|jahrhundert|vuosisa|vuosikym|århundr|siècle|siglo|secolo|século)"
    r"|\b(?:\d{1,2}|ten|eleven|twelve)(?::\d\d)? ?(?:a\.?m|p\.?m)\b|\b(?:kl\.?|klo|klokk?[ae]n?|klockan) ?\d{1,2}"
    r"|\b\d{1,2}(?:[:.]\d\d)?(?:-tiden\b| uhr\b)|\b(?:v|f)\.? ?(?:chr|kr)\b"
    r"|\d{1,4} ?(?:bc|ad|bce|ce|eaa|jaa)\b"
)
_TIME_OF_DAY = re.compile(
    r"\b(?:kl\.?|klo|kello|klokk?[ae]n?|klockan) ?\d{1,2}(?:[.:]\d\d)?(?!\d)|(?<!\d)\d{1,2}:\d\d(?!\d)"
    r"|\b\d{1,2}(?:[.:]\d\d)? ?(?:[ap]\.?m\b|uhr\b)|\b(?:at|um|until|till|bis) \d{1,2}\.\d\d(?!\d)",
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"(?:\b(?:at|kl\.?|klo|kello|klokk?[ae]n?|klockan|a las|alle) ?)?"
    r"(?:\d{1,2}[:.]\d\d(?!\d)|\d{1,2} ?(?:[ap]\.?m\b|uhr\b|heures?\b|uur\b|時))"
    r"|\b(?:at|kl\.?|klo|kello|klokk?[ae]n?|klockan|a las|alle) ?\d{1,2}(?!\d| ?\w)",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"\([^()]*\)")
_BRACKETED = 0.6  # value of a time in brackets
_MOMENT = 0.5  # value of a day of the week or a part of the day
_AMOUNT_VALUE, _NUMBER_VALUE, _WORD_VALUE = 1.0, 0.8, 0.7  # values of a number with a unit, in digits and in words
_OTHER_MEASURE = 0.6  # factor of a number that may measure something else than the question asks for
_WITHOUT_NUMBER = 0.5  # value of "half an hour" or "free"
_YEARS_OLD = 0.5  # value of "40 years" and "built in 1921" for "How old"
_PHYSICAL = frozenset({"age", "length", "mass", "heat", "speed"})  # a number without such a unit counts things
_SHARED = frozenset({"money"})  # a percentage may answer "How much did the fee rise?"
_SHARE, _LENGTH = frozenset({"share"}), frozenset({"length"})
_DIMENSIONS = ("far", "deep", "tall", "wide", "lengthy")
_AMOUNTS = frozenset({"money", "mass"})
_SPOKEN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_SUBJECT_WITHIN, _COPULA_WITHIN = 3, 8  # words: an article may precede the subject, and an apposition the copula
_LOOSE, _ENDING = 0.7, 4  # value of an inexact match; maximum letters of an ending
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_PLACE_BEFORE = re.compile(
    r"\b(?:in|at|near|from|to|on|of|across|within|i|på|til|till|från|fra|ved|vid|im|am|auf|aus|nach|bei|von|zu|der|"
    r"à|au|aux|en|dans|de|du|des|a|nel|nella|di|da|no|na|em|te|naar|uit|op|w|v|z|în|din)\s+(?:the\s+|den\s+|det\s+|la\s+|le\s+)?$",
    re.I,
)
_PLACE_ENDING = re.compile(r"(?:ss[aä]|st[aä]|ll[aä]|lt[aä]|lle|[aeiouyäö]{2}n|[ao]on)$")
_EAST_PLACE = re.compile(r"[一-鿿ァ-ヶー]{1,8}(?:[都道府県市区町村国州島駅山川海港城寺]|地方|大学|大陸)")
_CASELESS = frozenset({"ja", "zh", "th", "ko", "he", "ar", "fa", "hi", "ne", "ta"})
_CAPITAL_NOUNS = with_trait("capital nouns")


def has_candidate(question: Question, text: str, language: str, known: Collection[str]) -> float | None:
    """Return how surely a sentence contains an answer of the question's type, from 0 (nothing of this type) to 1.
    `language` is the language of the sentence, and `known` are the casefolded words of the question. Return None if
    this cannot be judged: for a question of a type that this module does not know, for names in a script without
    capital letters, and, in some languages, for reasons and means."""
    if "often" in question.measures and question.type in ("many", "much", "what"):
        return _frequency(text, language or question.language, known)
    text, language = _NUMBERED.sub("", text), language or question.language
    if asks_number(question):
        found = _quantity(question, text, language, known)
        return _OTHER_MEASURE * found if other_period(question, text, language) else found
    find = _FINDERS.get(question.type)
    return find(text, language, known) if find else None


def asks_number(question: Question) -> bool:
    """Return whether a number answers the question. Also true for "What does it cost?" and "What does it weigh?"."""
    return question.type in ("many", "much") or (question.type == "what" and not _AMOUNTS.isdisjoint(question.measures))


def defines(question: Question, text: str) -> float:
    """Return how surely a sentence says what the subject of the question is. Return 0 if the question does not ask this
    ("What is a comet?"). The value is 1 if the sentence begins with the subject and the copula ("A comet is ..."). It
    is 0.7 if there are other words between the two or within the subject, or if the subject has an ending. For any
    other sentence, it is 0. Text in brackets is not read."""
    if not question.subject:
        return 0.0
    if question.language == "ja":
        pattern = rf"\W*{re.escape(question.subject)}(?:[（(][^（）()]*[）)])?と?は"
        return float(bool(re.match(pattern, text.casefold())))
    bare = _BRACKETS.sub(" ", text.casefold())
    subject, words = question.subject.split(), _SPOKEN.findall(bare)
    for start in range(min(_SUBJECT_WITHIN, len(words))):
        end = start + len(subject)
        if words[start:end] == subject and words[end : end + 1] and words[end] in COPULAS:
            return 1.0
        if _is_subject(words[start : end + 1], subject):
            return _LOOSE * (not COPULAS.isdisjoint(words[start + 1 : end + _COPULA_WITHIN]))
    return 0.0


def _is_subject(words: Sequence[str], subject: Sequence[str]) -> bool:
    """Return whether `words` begin with the subject. A subject of one word may have an ending in `words`, and a subject
    of several words may have other words before its last word ("John Winston Lennon" for "John Lennon")."""
    if len(subject) == 1:
        return words[0].startswith(subject[0]) and len(words[0]) <= len(subject[0]) + _ENDING
    return words[0] == subject[0] and subject[-1] in words[len(subject) - 1 :]


def other_period(question: Question, text: str, language: str) -> bool:
    """Return whether a sentence states amounts only for other periods than the question asks for, such as "per month"
    instead of "per year"."""
    stated = periods(text.casefold(), language) if question.period else []
    return bool(stated) and question.period not in stated


def _quantity(question: Question, text: str, language: str, known: Collection[str]) -> float:
    """Return how well the best number in a text answers a question that asks for a number, from 0 to 1. Numbers in a
    date, times of the day, years, and numbers in `known` (the words of the question) do not count. A number whose unit
    is of another kind than the question asks for does not count either."""
    text = _TIME_OF_DAY.sub(" ", _without_dates(text))
    new = [each for each in quantities(text, language) if each.number not in known]
    asked = question.measures.intersection(each for each in QUANTITIES if pattern_of(each, language))
    if any(not each.kinds.isdisjoint(asked) for each in new):
        return 0.0 if _has_another_dimension(question, text.casefold(), known, language) else _AMOUNT_VALUE
    best = max((_value(each, question, asked) for each in new), default=0.0)
    if best == 0.0 and _EAST_NUMBER.search(text):
        best = _NUMBER_VALUE
    if not asked:
        return best
    folded = text.casefold()
    if "age" in asked and has_words("made", folded, language) and any(each.is_year for each in new):
        return _YEARS_OLD
    return (best or _WITHOUT_NUMBER) if has_unit_alone(asked, text, language) else _OTHER_MEASURE * best


def _has_another_dimension(question: Question, folded: str, known: Collection[str], language: str) -> bool:
    """Return whether a question asks for one dimension and a text states only another dimension, such as "deep" for
    "How far"."""
    asked = " ".join(known) if question.measures == _LENGTH or question.measures == _LENGTH | {"span"} else ""
    wanted = [each for each in _DIMENSIONS if asked and has_words(each, asked, language)]
    stated = [each for each in _DIMENSIONS if wanted and has_words(each, folded, language)]
    return bool(stated) and not set(stated) & set(wanted)


def _value(found: Quantity, question: Question, asked: Collection[str]) -> float:
    """Return how well a number answers the question, from 0 to 1. `asked` are the kinds of quantities for which the
    question asks. Call this function only for a number without a unit of one of these kinds."""
    if "age" in asked and "span" in found.kinds:
        return _YEARS_OLD
    if found.is_year or (found.has_noun and not found.kinds and asked and _PHYSICAL.issuperset(asked)):
        return 0.0
    if found.kinds and (asked or question.type == "many") and not (found.kinds == _SHARE and _SHARED.issuperset(asked)):
        return 0.0
    if found.has_unit and found.kinds != _SHARE:
        return _AMOUNT_VALUE
    return _NUMBER_VALUE if found.number[0].isdigit() else _WORD_VALUE


def _frequency(text: str, language: str, known: Collection[str]) -> float:
    """Return 1 for a text with a word of frequency, such as "monthly", less than 1 for a text with another number, and
    0 for any other text. A time of the day and a single year do not count, because they say when something happened."""
    often = pattern_of("often", language)
    if often and often.search(text.casefold()):
        return 1.0
    text = _CLOCK.sub(" ", _without_dates(text))
    if len(set(_YEAR.findall(text))) >= 2:
        return _OTHER_MEASURE
    new = [each for each in quantities(_YEAR.sub(" ", text), language) if each.number not in known]
    return _OTHER_MEASURE if new else 0.0


def _without_dates(text: str) -> str:
    for mention in reversed(find_dates(text)):
        text = text[: mention.start] + " " + text[mention.end :]
    return text


def _time(text: str, language: str, known: Collection[str]) -> float:
    """Return 1 for a date or a year, 0.7 for a century, a decade or a time of the day, 0.5 for a day of the week or a
    part of the day, and 0 if the text contains no time. If the only time is in brackets, such as the dates of birth and
    death of a person, the value is at most 0.6."""
    outside = _time_in(_BRACKETS.sub(" ", text), language, known)
    if outside or "(" not in text:
        return outside
    return min(_BRACKETED, _time_in(text, language, known))


def _time_in(text: str, language: str, known: Collection[str]) -> float:
    """Return the value of `_time`, without its rule about brackets. Words in `known` are no time."""
    measured = [each for each in quantities(text, language) if each.kinds] if _YEAR.search(text) else []
    amounts = {each.number for each in measured}
    if any(match[0] not in known and match[0] not in amounts for match in _YEAR.finditer(text)):
        return 1.0
    for mention in find_dates(text):
        words = _WORD.findall(text[mention.start : mention.end].casefold()) or [text[mention.start : mention.end]]
        if any(word not in known for word in words):
            return 1.0
    folded, moments = text.casefold(), pattern_of("moments", language)
    if _AGE.search(folded) or _TIME_OF_DAY.search(text):
        return 0.7
    return _MOMENT if moments and any(match[0] not in known for match in moments.finditer(folded)) else 0.0


def _names(text: str, language: str, known: Collection[str]) -> list[tuple[int, str]]:
    """Return the names that are not in the question, with their offsets. A word with a capital letter counts as a name.
    The first word of the sentence counts only if the next word has a capital letter, too. In German, where all nouns
    have capital letters, only two such words in a row count."""
    words = [(match.start(), match[0]) for match in _WORD.finditer(text)]
    ignored = FUNCTION_WORDS.get(language, frozenset())
    capital = [word[:1].isupper() and len(word) > 1 and word.casefold() not in ignored for _, word in words]
    found = []
    for n, (start, word) in enumerate(words):
        has_neighbor = (n > 0 and capital[n - 1]) or (n + 1 < len(words) and capital[n + 1])
        if months(word) or weekdays(word):
            continue
        if capital[n] and word.casefold() not in known and (has_neighbor or (n > 0 and language not in _CAPITAL_NOUNS)):
            found.append((start, word))
    return found


def _person(text: str, language: str, known: Collection[str]) -> float | None:
    if language in _CASELESS:
        return None
    return 1.0 if _names(text, language, known) else 0.0


def _place(text: str, language: str, known: Collection[str]) -> float | None:
    """Return 1 for a name after a preposition of place, such as "in", or with a case ending of place, 0.6 for another
    name, and 0 if there is no name. In Japanese and Chinese, a name of a place has a typical last character. Return
    None for other scripts without capital letters, because names cannot be recognized there."""
    if language in ("ja", "zh"):
        return 1.0 if any(match[0] not in known for match in _EAST_PLACE.finditer(text)) else 0.0
    if language in _CASELESS:
        return None
    names = _names(text, language, known)
    for start, word in names:
        if _PLACE_BEFORE.search(text[max(0, start - 16) : start]) or (language == "fi" and _PLACE_ENDING.search(word)):
            return 1.0
    return 0.6 if names else 0.0


def _word_of(kind: str, text: str, language: str, known: Collection[str]) -> float | None:
    pattern = pattern_of(kind, language)
    return None if pattern is None else float(bool(pattern.search(text.casefold())))


_FINDERS: dict[str, Callable[[str, str, Collection[str]], float | None]] = {
    "when": _time,
    "who": _person,
    "where": _place,
    "why": partial(_word_of, "reasons"),
    "how": partial(_word_of, "means"),
}
