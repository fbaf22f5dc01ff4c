"""Facts in a text: numbers, times, dates and negation. A fact has the same value in every spelling. Facts show
differences that a similarity of words does not show: "Room 12 at 9:00" and "Room 14 at 9:00" have nearly all letters in
common. Units are not compared."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from agentformer.text.analysis import query_terms
from agentformer.text.dates.dates import Day, Mention, find_dates, is_given
from agentformer.text.languages import ANY_NEGATION, ANY_NUMBER_WORD, NEGATIONS, NUMBER_WORDS, detect_language
from agentformer.text.sentences import sentence_spans
from agentformer.text.unicode_forms import normalized
from agentformer.types import MemoryEntry

MAX_NUMBER_LENGTH = 40  # code points; a longer run of digits is not read as a number
_NUMBER = re.compile(
    r"(?<!\d)(?:\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,:'’]\d+)*)(?P<half>\s?[ap]\.?\s?m\b\.?)?",
    re.I,
)
_SPACED = re.compile(r"(\d{1,3}(?:[ \u00a0\u202f]\d{3})+)([.,]\d+)?")
_GROUPED = re.compile(r"\d{1,3}(?:[.,'’]\d{3})+")
_YEARS = range(1900, 2100)
_MASK = "\ufffc"  # replaces each character of a date or number that is already counted
_WORD = re.compile(rf"(?<={_MASK})(?:st|nd|rd|th)\b|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)*)", re.IGNORECASE)
_LABEL = re.compile(r"\W*[^\W\d_]+\s+(\d+)[\s:,]+[^\W\d_]")  # "Room 12 has", "Huone 12: vapaa"

_MIN_SIMILARITY = 0.6  # least Jaccard index of the terms of two sentences that have the same subject
_MIN_SIMILARITY_NEGATED = 0.5  # lower, because in Finnish a negation also changes the verb: "pitää", "ei pidä"
_MAX_SENTENCES = 2_000
_MAX_REPORTED = 100
_MAX_SHARED = 200  # sentences looked up per term; a more frequent term does not discriminate
_SAMPLED_BLOCKS = 20  # blocks from whose text the common language is detected
_MAX_LENGTH = 1_000  # at most this many code points of a sentence are compared


@dataclass(frozen=True, slots=True)
class Number:
    """A number or a time of day at the positions `[start, end)` of a text. The number has several `readings` if it can
    mean several things: "9.30" can be a decimal or a time. Each reading is a set of values, and the values are
    strings."""

    start: int
    end: int
    readings: tuple[frozenset[str], ...]

    def within(self, values: frozenset[str] | set[str]) -> bool:
        """Return whether `values` contains all values of at least one reading."""
        return any(reading <= values for reading in self.readings)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a text. `days` are calendar dates, and `weekdays` are names of weekdays. `negated` is True if the
    text contains a negation. `label` is the number that names a thing at the beginning of the text, such as "12" in
    "Room 12 is free". `rest` contains all words that are not numbers or negations. `label` and `rest` are ignored when
    two `Facts` are compared."""

    numbers: frozenset[str]
    days: frozenset[Day]
    weekdays: frozenset[Day]
    negated: bool
    label: str = field(compare=False)
    rest: str = field(compare=False)


def find_numbers(text: str) -> Iterator[Number]:
    """Yield the numbers in `text`, in order. The values of a number are decimals such as "1234.5", or times such as "at
    13:56"."""
    plain = ascii_digits(text)
    for match in _NUMBER.finditer(plain):
        if match.end() - match.start() <= MAX_NUMBER_LENGTH:
            half = match["half"] or ""
            written = match[0][: len(match[0]) - len(half)]
            readings = dict.fromkeys(map(frozenset, _readings(written, half.strip().lower()[:1])))
            yield Number(match.start(), match.end(), tuple(readings))


def ascii_digits(text: str) -> str:
    """Return the text with the decimal digits of all scripts replaced by the digits 0 to 9. The length of the text does
    not change."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(c)) if c > "\x7f" and c.isdecimal() else c for c in text)


def number_values(text: str) -> frozenset[str]:
    """Return the values of all numbers in the text, including the numbers in dates. Each value has one spelling:
    "1,234.50" and "1 234,5" give "1234.5", and "5 pm" gives "17"."""
    text = normalized("NFKC", text)
    return frozenset(value for number in find_numbers(text) for value in _values(text, number))


def facts_of(text: str, language: str) -> Facts:
    """Return the facts of `text`. `language` is the code of the language of the text, such as "en", or "" if the
    language is unknown."""
    text = normalized("NFKC", text)
    dates = find_dates(text)
    text = _masked(text, dates)
    label = _LABEL.match(text)
    found = list(find_numbers(text))
    numbers = {value for number in found for value in _values(text, number)}
    number_words, negations = NUMBER_WORDS.get(language, ANY_NUMBER_WORD), NEGATIONS.get(language, ANY_NEGATION)
    negated, rest = False, []
    for word in (match["word"] for match in _WORD.finditer(_masked(text, found)) if match["word"]):
        folded = word.casefold().replace("’", "'")
        if folded in number_words:
            numbers.add(number_words[folded])
        elif folded in negations or folded.endswith("n't"):
            negated = True
        else:
            rest.append(word)
    days = frozenset(mention.readings[0] for mention in dates)
    weekdays = frozenset(day for day in days if day.weekday)
    return Facts(frozenset(numbers), days - weekdays, weekdays, negated, label[1] if label else "", " ".join(rest))


def conflict(one: Facts, other: Facts) -> str:
    """Return the kind of contradiction between the facts of two sentences about one subject: "number", "date" or
    "negation". Return "" if the sentences do not contradict each other. A sentence that only adds facts is no
    contradiction. Sentences about different things do not contradict each other: sentences with different labels (such
    as "12" in "Room 12 is free"), and sentences in which both the numbers or dates and the weekdays or years differ."""
    if one.label != other.label:
        return ""
    numbers = bool(one.numbers - other.numbers and other.numbers - one.numbers)
    days = _has_other_day(one, other) and _has_other_day(other, one)
    weekdays = bool(one.weekdays - other.weekdays and other.weekdays - one.weekdays)
    if (numbers or days) and (weekdays or _differ_in_year(one, other)):
        return ""
    if days or weekdays:
        return "date"
    if numbers:
        return "number"
    return "negation" if one.negated != other.negated else ""


def _readings(written: str, half: str) -> Iterator[set[str]]:
    """Yield each possible meaning of the number `written`, as a set of values. `half` is "a" if a.m. follows the
    number, "p" if p.m. follows the number, and "" otherwise."""
    parts = re.split(r"\D", written)
    marks = [mark for mark in written if not mark.isdigit()]
    yield from ({time} for time in _times(parts, marks, half))
    if not marks:
        yield {_decimal(written)}
        return
    if spaced := _SPACED.fullmatch(written):
        yield {_decimal(re.sub(r"\D", "", spaced[1]), (spaced[2] or ".")[1:])}
    elif _GROUPED.fullmatch(written) and len(set(marks)) == 1:
        yield {_decimal("".join(parts))}
    if len(marks) == 1 and marks[0] in ".,":
        yield {_decimal(*parts)}
        return
    if len(set(marks)) == 2 and marks.count(marks[-1]) == 1 and marks[-1] in ".,":
        yield {_decimal("".join(parts[:-1]), parts[-1])}
    if set(marks) == {"."}:
        yield {".".join(parts)}  # a version number
    yield {_decimal(part) for part in parts}


def _times(parts: list[str], marks: list[str], half: str) -> Iterator[str]:
    clock = len(parts) in (2, 3) and set(marks) <= {":", "."} and all(len(part) == 2 for part in parts[1:])
    if not (clock or (half and len(parts) == 1)):
        return
    hour, minute = int(parts[0]), int(parts[1]) if clock else 0
    if hour > 23 or minute > 59:
        return
    if half:
        yield f"at {hour % 12 + (12 if half == 'p' else 0)}:{minute:02}"
    else:
        yield f"at {hour}:{minute:02}"
        if 1 <= hour <= 12:
            yield f"at {(hour + 12) % 24}:{minute:02}"


def _decimal(whole: str, fraction: str = "") -> str:
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


def _values(text: str, number: Number) -> list[str]:
    """Return the values of the first reading (possible meaning) of `number`. A minus sign before the number is
    included. A time at a full hour is returned as a plain number: "9:00" gives "9"."""
    before = text[max(0, number.start - 2) : number.start]
    sign = "-" if before and before[-1] in "-−" and not before[:-1].strip() else ""
    return [sign + value.removeprefix("at ").removesuffix(":00") for value in number.readings[0]]


def _masked(text: str, counted: Sequence[Mention | Number]) -> str:
    characters = list(text)
    for item in counted:
        characters[item.start : item.end] = _MASK * (item.end - item.start)
    return "".join(characters)


def _has_other_day(one: Facts, other: Facts) -> bool:
    """Return whether `one` contains a date that differs from all dates in `other`. A part of a date does not differ
    from the date: "May 2024" does not differ from "3 May 2024"."""
    return any(not is_given(day, other.days, (day.year,)) for day in one.days)


def _differ_in_year(one: Facts, other: Facts) -> bool:
    only_one, only_other = one.numbers - other.numbers, other.numbers - one.numbers
    years = all(any(map(_is_year, numbers)) for numbers in (only_one, only_other))
    return years and (len(only_one) > 1 or len(only_other) > 1)


def _is_year(number: str) -> bool:
    return len(number) == 4 and number.isdecimal() and int(number) in _YEARS


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two sentences of core blocks that contradict each other. `about` is `number`, `date` or `negation`. `ids`,
    `titles` and `sentences` are pairs in which the older block comes first."""

    about: str
    ids: tuple[str, str]
    titles: tuple[str, str]
    sentences: tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Sentence:
    block: MemoryEntry
    text: str
    facts: Facts
    terms: frozenset[str]


def find_contradictions(blocks: Sequence[MemoryEntry]) -> tuple[tuple[Contradiction, ...], tuple[str, ...]]:
    """Return contradictions between sentences of core blocks, and notes. Only sentences whose blocks can be in the same
    context are compared. A note reports that a limit was reached, so that contradictions may be missing."""
    notes: list[str] = []
    sentences = list(islice(_sentences(blocks), _MAX_SENTENCES + 1))
    if len(sentences) > _MAX_SENTENCES:
        notes.append(f"only the first {_MAX_SENTENCES} sentences of the core blocks were searched for contradictions")
    contradictions = list(islice(_contradictions(sentences[:_MAX_SENTENCES]), _MAX_REPORTED + 1))
    if len(contradictions) > _MAX_REPORTED:
        notes.append(f"there are more than {_MAX_REPORTED} contradictions; only the first {_MAX_REPORTED} are listed")
    return tuple(contradictions[:_MAX_REPORTED]), tuple(notes)


def _contradictions(sentences: Sequence[_Sentence]) -> Iterator[Contradiction]:
    for one, other in _candidates(sentences):
        about = conflict(one.facts, other.facts)
        if about and _same_subject(one, other, about):
            ids, titles = (one.block.id, other.block.id), (one.block.title, other.block.title)
            yield Contradiction(about, ids, titles, (one.text, other.text))


def _sentences(blocks: Sequence[MemoryEntry]) -> Iterator[_Sentence]:
    common = detect_language(" ".join(block.content[:_MAX_LENGTH] for block in blocks[:_SAMPLED_BLOCKS]))
    for block in blocks:
        fallbacks = (detect_language(block.content), common)
        for start, end in sentence_spans(block.content):
            text = block.content[start : min(end, start + _MAX_LENGTH)]
            language = _language(text, fallbacks)
            facts = facts_of(text, language)
            stems = query_terms(facts.rest, [language]).stems if facts.rest else ()
            if terms := frozenset(stem.rpartition("~")[2] for stem in stems):
                yield _Sentence(block, text, facts, terms)


def _language(text: str, fallbacks: Sequence[str]) -> str:
    """Return the language of the sentence `text`. If no words of negation are known for this language, return the first
    language in `fallbacks` for which such words are known, if there is one."""
    own = detect_language(text)
    return next((language for language in (own, *fallbacks) if language in NEGATIONS), own)


def _candidates(sentences: Sequence[_Sentence]) -> Iterator[tuple[_Sentence, _Sentence]]:
    """Yield the pairs of sentences that have a term in common and whose blocks can be in the same context. The number
    of pairs for a term is limited, because a frequent term does not show that two sentences have the same subject."""
    by_term: defaultdict[str, list[int]] = defaultdict(list)
    for n, sentence in enumerate(sentences):
        shared = {other for term in sentence.terms for other in by_term[term][:_MAX_SHARED]}
        for other in sorted(shared):
            if _share_context(sentences[other].block, sentence.block):
                yield sentences[other], sentence
        for term in sentence.terms:
            by_term[term].append(n)


def _share_context(one: MemoryEntry, other: MemoryEntry) -> bool:
    """Return whether both blocks can be in the same context. They can if their agent, user and project are equal. An
    agent, user or project that is not set fits every other."""
    owners = ((one.agent_id, other.agent_id), (one.user_id, other.user_id), (one.project, other.project))
    return all(first is None or second is None or first == second for first, second in owners)


def _same_subject(one: _Sentence, other: _Sentence, about: str) -> bool:
    shared = len(one.terms & other.terms)
    least = _MIN_SIMILARITY_NEGATED if about == "negation" else _MIN_SIMILARITY
    return shared / len(one.terms | other.terms) >= (1.0 if shared == 1 else least)
