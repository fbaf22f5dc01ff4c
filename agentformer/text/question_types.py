"""Classify questions by what they ask for: a person, a place, a time, a number, a reason, a manner, or yes or no.

The type follows from the interrogative ("who", "wann", "hur många"), from the noun after "which" or "what" ("which
year"), and from the word order: a question without an interrogative is answered with yes or no. The files of
the languages have the words of questions, and the names of ratios, such as "gross margin", with the items of financial
statements from which they are computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from typing import Literal

from agentformer.text.language_files import items_of, lists, sections, with_trait
from agentformer.text.languages.detection import FUNCTION_WORDS, detect_language, stem
from agentformer.text.normalize import normalized

QuestionType = Literal["who", "where", "when", "many", "much", "why", "how", "which", "what", "open", ""]

_INTERROGATIVES: tuple[QuestionType, ...] = ("who", "where", "when", "many", "much", "why", "how", "which", "what")
# Kinds of quantities, which have units. A question may ask for several: "How long" asks for a length or a span of time.
QUANTITIES = ("money", "age", "share", "span", "length", "mass", "heat", "speed", "area", "volume")
_PERIODS = ("hour", "day", "week", "month", "year")
_OF_NOUN: dict[str, QuestionType] = {"person": "who", "place": "where", "time": "when", "number": "much"}
_LANGUAGES = ("en", "de", "fi", "sv", "no", "da")  # those with most questions first
_UNSPACED = with_trait("no spaces")  # words are found inside of the text
_ANYWHERE = with_trait("late interrogatives")
_LATE = 6  # words: in other languages, a later interrogative is usually a relative pronoun
_NOUN_WITHIN = 4  # words after the interrogative
_DEGREES = frozenset().union(*lists("questions", "degrees").values())
_DEGREE_WITHIN = 2  # words after these: "hur stor andel", but not "hur räknas barnets vikt ut"
COPULAS = frozenset().union(*lists("questions", "copulas").values())
_SUBJECT = 4  # maximum number of words in the subject of "What is X?"
_EAST_SUBJECT = re.compile(r"(.{1,16}?)(?:とは|って)(?:何|なに|なん|どんな|どういう|誰|だれ)")
_FINNISH_ENDING = re.compile(r"(?:\w{2,})k[oö]$")  # "onko", "voiko": the ending of a yes-or-no question
_ASKS = re.compile(r"[?？؟;]\s*$")
_QUESTION_MARK = re.compile(r"[?？؟][^\w?？؟]*+$")  # also before markup: "**Why?**"
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass(frozen=True, slots=True)
class Question:
    """The type of a question, and the words `asking`: the interrogative and the noun after it. An answer need not
    contain these words. If the type is "", the text is not a question, or its language is unknown. `subject` are the
    casefolded words of X if the question is only "What is X?" or "Who is X?", else "".

    `measures` are the kinds of quantities that may answer the question, such as "money", "share" (5 %), "length" and
    "span" (how long something takes), or "often" (how many times). `period` is the period of an amount: "year" in "How
    much is it per year?". Both are empty if they are unknown.
    """

    type: QuestionType
    asking: frozenset[str] = frozenset()
    language: str = ""
    measures: frozenset[str] = frozenset()
    period: str = ""
    subject: str = ""


@cache
def question_words(kind: str) -> dict[str, frozenset[str]]:
    """Return the words of a kind for each language, in lower case. `questions` in `en.toml` explains the kinds."""
    return {
        language: frozenset(normalized("NFKC", item).casefold() for item in items)
        for language, items in lists("questions", kind).items()
    }


@cache
def pattern_of(kind: str, language: str) -> re.Pattern[str] | None:
    """Return a pattern that finds words of a kind in a casefolded text, the longest first. Return None if the language
    has no words of this kind."""
    items = sorted(question_words(kind).get(language, ()), key=len, reverse=True)
    if not items:
        return None
    ends = ("", "") if language in _UNSPACED else (r"(?<![^\W_])", r"(?![^\W_])")
    written = "|".join(re.escape(item[:-1]) + r"[^\W_]*" if item.endswith("*") else re.escape(item) for item in items)
    return re.compile(f"{ends[0]}(?:{written}){ends[1]}")


@cache
def same_meaning(language: str) -> dict[str, frozenset[str]]:
    """Return a mapping from each word with synonyms in this language to the words of about the same meaning, including
    the word itself. The words are stems with their language ("en~cost")."""
    groups: dict[str, set[str]] = {}
    for words in sections("synonyms").get(language, {"groups": ()})["groups"]:
        stems = {f"{language}~{stem(word, language)}" for word in items_of(words)}
        for each in stems:
            groups.setdefault(each, set()).update(stems)
    return {each: frozenset(others) for each, others in groups.items()}


def is_question(sentence: str) -> bool:
    """Return whether a sentence ends with a question mark."""
    return _QUESTION_MARK.search(sentence) is not None


@lru_cache(maxsize=512)
def classify(text: str, language: str = "") -> Question:
    """Return the type of a question. `language` is the language of the texts in which the answer is searched; it is
    used if the language of the question is unknown."""
    folded = normalized("NFKC", text).casefold().replace("’", "'")
    own = detect_language(text, language) or _language_of_interrogative(folded)
    question = _classified(folded, own, language)
    code = question.language or own or language
    measures = frozenset(_measures(folded, question, code))
    period = next(iter(periods(folded, code)), "")
    return replace(question, measures=measures, period=period, subject=_subject(folded, question))


def _language_of_interrogative(folded: str) -> str:
    """Return the language whose interrogative begins a text of unknown language, or ""."""
    patterns = ((code, pattern_of(kind, code)) for code in _LANGUAGES for kind in _INTERROGATIVES)
    return next((code for code, pattern in patterns if pattern and pattern.match(folded)), "")


def _measures(folded: str, question: Question, language: str) -> Iterator[str]:
    """Yield the kinds of quantities for which a question asks, by its words or by the unit after "how many"."""
    yield from (each for each in (*QUANTITIES, "often") if has_words(f"asks_{each}", folded, language))
    many = pattern_of("many", language) if question.type == "many" else None
    if many and (match := many.search(folded)):
        counted = folded[match.end() :].lstrip()
        yield from (each for each in QUANTITIES if (units := pattern_of(each, language)) and units.match(counted))


def _subject(folded: str, question: Question) -> str:
    """Return X if the question is only "What is X?": an interrogative, a copula, and a few words. The article before X
    is left out. Return "" if X contains a function word, as in "What is the capital of Peru?", because this question
    asks for more than X."""
    if question.language == "ja":
        found = _EAST_SUBJECT.match(folded)
        return found[1] if found else ""
    words, frequent = _WORD.findall(folded), FUNCTION_WORDS.get(question.language, frozenset())
    rest = words[1:]
    if question.type not in ("what", "who", "which") or words[:1] == [] or not question.asking.issuperset(words[:1]):
        return ""
    if rest[:1] and rest[0] in COPULAS:
        rest = rest[1:]
    elif not words[0].startswith("qu'"):  # "qu'est-ce que" has the copula
        return ""
    while rest and rest[0] in frequent:
        rest = rest[1:]
    return " ".join(rest) if len(rest) <= _SUBJECT and frequent.isdisjoint(rest) else ""


def periods(folded: str, language: str) -> list[str]:
    """Return the periods for which a casefolded text states amounts: "month" for "5 euros per month"."""
    return [each for each in _PERIODS if has_words(f"per_{each}", folded, language)]


def has_words(kind: str, folded: str, language: str) -> bool:
    """Return whether a casefolded text has words of a kind; see `pattern_of`."""
    pattern = pattern_of(kind, language)
    return pattern is not None and pattern.search(folded) is not None


def _classified(folded: str, own: str, language: str) -> Question:
    """Return the type by an interrogative, else by a topic particle, else "open" if the text looks like a question.
    `own` is the language of the question, and `language` that of the texts, which is tried second."""
    for code in dict.fromkeys(code for code in (own, language) if code):
        if found := _interrogative(folded, code):
            return _with_noun(folded, found, code)
    if topic := _topic(folded, own):
        return topic
    first = _WORD.search(folded)
    opens = first is not None and any(_opens(first[0], code) for code in (own, language) if code)
    if opens or (_ASKS.search(folded) and own in question_words("who")):
        return Question("open", language=own)
    return Question("", language=own)


def _topic(folded: str, language: str) -> Question | None:
    """Return the type of a question that ends with a topic particle, such as "設計された年は？", else None. The noun
    before the particle gives the type."""
    pattern = pattern_of("topic", language)
    bare = folded.rstrip(" ?？。.、")
    last = next((match for match in pattern.finditer(bare) if match.end() == len(bare)), None) if pattern else None
    if last is None:
        return None
    subject = bare[: last.start()]
    for table, kind in _OF_NOUN.items():
        for noun in question_words(table).get(language, ()):
            if subject.endswith(noun):
                return Question(kind, frozenset({noun}), language)
    return Question("what", language=language)


def _opens(word: str, language: str) -> bool:
    if language == "fi" and _FINNISH_ENDING.match(word):
        return True
    return word in question_words("open").get(language, ())


def _interrogative(folded: str, language: str) -> tuple[QuestionType, re.Match[str]] | None:
    """Return the first interrogative with its type, or None. If another interrogative follows a comma, return that
    interrogative, because the text before the comma is a subordinate clause ("When the war ended, who was king?")."""
    patterns = ((kind, pattern_of(kind, language)) for kind in _INTERROGATIVES)
    matches = ((kind, match) for kind, pattern in patterns if pattern for match in pattern.finditer(folded))
    found = sorted(matches, key=lambda each: (each[1].start(), -each[1].end()))
    if language not in _ANYWHERE:
        found = [each for each in found if len(_WORD.findall(folded[: each[1].start()])) < _LATE] or found[-1:]
    for each in found[1:]:
        if folded[: each[1].start()].rstrip().endswith(",") and each[1].start() > found[0][1].end():
            return each
    return found[0] if found else None


def _with_noun(folded: str, found: tuple[QuestionType, re.Match[str]], language: str) -> Question:
    """Return a `Question` whose type is that of the noun after "which" or "what". Without such a noun, the type is that
    of the interrogative. `found` is the type of the interrogative, and its match in `folded`."""
    kind, match = found
    asking = set(_WORD.findall(match[0])) or {match[0]}
    if kind in ("which", "what", "where") or match[0] in _DEGREES:
        within = _NOUN_WITHIN if kind in ("which", "what", "where") and match[0] not in _DEGREES else _DEGREE_WITHIN
        for noun in islice(_nouns(folded[match.end() :], language), within):
            for table, of_noun in _OF_NOUN.items():
                pattern = pattern_of(table, language)
                if pattern and pattern.fullmatch(noun):
                    return Question(of_noun, frozenset(asking | {noun}), language)
    modal = pattern_of("modal", language)
    if kind == "who" and modal and modal.match(folded[match.end() :].lstrip()):
        kind = "which"
    return Question(kind, frozenset(asking), language)


def _nouns(rest: str, language: str) -> Iterator[str]:
    """Yield the possible nouns of an interrogative: the words after it, or after its copula ("what is the name of")."""
    if language in _UNSPACED:
        yield from (rest[:size] for size in range(1, _NOUN_WITHIN + 1))
        return
    function_words = FUNCTION_WORDS.get(language, frozenset())
    nouns = 0
    for n, word in enumerate(_WORD.findall(rest)):
        if word in function_words and (n > 0 or word not in COPULAS) and (nouns or n > 1):
            return
        if word not in function_words:
            nouns += 1
            yield word
        elif n == 0 and word not in COPULAS:
            return
        if nouns >= _NOUN_WITHIN - 1:
            return


def ratio_items(text: str, language: str) -> tuple[str, ...]:
    """Return the items of financial statements that are needed to compute a ratio, such as "gross profit" and "total
    revenue" for the gross margin. `text` names the ratio, and `language` is the ISO 639-1 code of the text. The items
    are in the order of the section `ratios` of the language file. Return () if the text names no ratio of this
    language."""
    folded = normalized("NFKC", text).casefold()
    found = (items for name, items in _ratios().get(language, ()) if name.search(folded))
    return tuple(dict.fromkeys(item for items in found for item in items))


@cache
def _ratios() -> dict[str, list[tuple[re.Pattern[str], tuple[str, ...]]]]:
    """Return for each language the patterns of the names of ratios, with the items of each ratio."""
    return {
        language: [
            (re.compile(rf"(?<!\w)(?:{'|'.join(map(_ratio_pattern, items_of(names)))})(?!\w)"), tuple(items_of(items)))
            for names, items in ratios.items()
        ]
        for language, ratios in sections("ratios").items()
    }


def _ratio_pattern(name: str) -> str:
    ending = r"\w*" if name.endswith("*") else ""
    return r"[\s-]+".join(map(re.escape, name.rstrip("*").split())) + ending
