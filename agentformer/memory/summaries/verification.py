"""Compares a model's summary with its originals: unsupported numbers, dates and names, and missing facts.

Other words of a summary are not checked. Small number words ("five") are not compared. A name is a capitalized word. So
in scripts without capitals, only numbers and dates are checked.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agentformer.memory.facts import Number, ascii_digits, find_numbers
from agentformer.memory.summaries.entries import flatten, line_of, speaker_of
from agentformer.memory.summaries.names import Vocabulary, find_unknown_names, inner_names
from agentformer.text.dates.calendar import months, weekdays
from agentformer.text.dates.dates import Day, Mention, day_of_moment, find_dates, is_given
from agentformer.text.languages import detect_language
from agentformer.text.sentences import sentence_spans
from agentformer.types import MemoryEntry

_LIST_ITEM = re.compile(r"^[ \t]*(\d{1,2})[.)][ \t]+", re.MULTILINE)
_MAX_CLAIMS = 20  # reported
# The bounds on missing facts are low on purpose: a good summary may leave out most facts, but not all of them.
_MIN_FIGURES, _MIN_NAMES = 2, 3  # in the originals, from which on the summary must keep one
_MIN_NICKNAME = 3  # letters of a short form of a speaker's name
_MAX_SPELLED = 12  # numbers up to this one are often written as words
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class _Stated:
    """The facts that the originals state."""

    numbers: frozenset[str]
    days: frozenset[Day]
    years: frozenset[int]
    words: Vocabulary


@dataclass(slots=True)
class _Figures:
    """Numbers and dates of texts. The first spelling of each value is kept."""

    numbers: dict[Number, str] = field(default_factory=dict)
    days: dict[tuple[Day, ...], str] = field(default_factory=dict)

    def add(self, text: str) -> None:
        """Add the numbers and dates of a text."""
        plain = ascii_digits(flatten(text))
        dates = find_dates(plain, loose=True)
        for mention in dates:
            self.days.setdefault(mention.readings, plain[mention.start : mention.end].strip())
        for number in find_numbers(plain):
            written = plain[number.start : number.end]
            is_spelled = written.isdigit() and int(written) <= _MAX_SPELLED
            if not is_spelled and not _overlaps(number.start, number.end, dates):
                self.numbers.setdefault(Number(0, 0, number.readings), written.strip())


def unsupported_claims(summary: str, originals: Sequence[MemoryEntry]) -> list[str]:
    """Return the numbers, dates and names of the summary that no original states in its content, speaker or time.

    The result is in order, such as "number 7", "date 8 June 2023" or "name Robert". It is empty for a faithful summary.
    """
    language = detect_language(summary, detect_language(" ".join(entry.content[:1000] for entry in originals)))
    text = _without_list_numbers("\n".join(map(flatten, summary.splitlines())))
    stated = _stated(originals, language)
    claims = sorted([*_unsupported_figures(text, stated), *_unsupported_names(text, stated, language)])
    return list(dict.fromkeys(claim for _, claim in claims))[:_MAX_CLAIMS]


def missing_facts(summary: str, originals: Sequence[MemoryEntry]) -> list[str]:
    """Return the kinds of facts that the originals state several times and that the summary does not state. Examples
    are included: "numbers and dates (1,250; 3 April)", "names (Anna; Tampere)"."""
    texts = [entry.content for entry in originals]
    missing = []
    figures = _Figures()
    for text in texts:
        figures.add(text)
    written = [*figures.days.values(), *figures.numbers.values()]
    if len(written) >= _MIN_FIGURES and not _keeps_figures(summary, figures):
        missing.append(f"numbers and dates ({_examples(written)})")
    language = detect_language(" ".join(text[:1000] for text in texts))
    names = _names(texts, {speaker_of(entry) for entry in originals}, language)
    if len(names) >= _MIN_NAMES and not _keeps_names(summary, names, language):
        missing.append(f"names ({_examples(names)})")
    return missing


def _stated(originals: Sequence[MemoryEntry], language: str) -> _Stated:
    numbers: set[str] = set()
    days: set[Day] = set()
    texts = [text for entry in originals for text in _texts(entry)]
    for text in texts:
        numbers.update(value for number in find_numbers(text) for reading in number.readings for value in reading)
        days.update(reading for mention in find_dates(ascii_digits(text), loose=True) for reading in mention.readings)
    for entry in originals:
        if entry.occurred_at:
            days.add(day_of_moment(entry.occurred_at))
            numbers.add(f"at {entry.occurred_at.hour}:{entry.occurred_at.minute:02}")
    years = {day.year for day in days} | {int(number) for number in numbers if re.fullmatch(r"\d{4}", number)}
    numbers.update(str(day.year) for day in days if day.year)
    return _Stated(frozenset(numbers), frozenset(days), frozenset(years), Vocabulary(texts, language))


def _texts(entry: MemoryEntry) -> Iterator[str]:
    """Yield the complete text of an entry, and the lines of the entry that a summary may quote."""
    yield flatten(entry.content)
    yield flatten(entry.speaker)
    yield entry.role
    for span in sentence_spans(entry.content):
        yield line_of(entry, entry.content[span.start : span.end])


def _unsupported_figures(text: str, stated: _Stated) -> Iterator[tuple[int, str]]:
    """Yield dates that no original states, and numbers outside dates. Each has its position."""
    supported: dict[Day, bool] = {}
    position = 0
    for row in text.splitlines(keepends=True):
        plain = ascii_digits(row)
        dates = []
        for mention in find_dates(plain):
            for day in mention.readings:
                if day not in supported:
                    supported[day] = is_given(day, stated.days, stated.years)
            is_supported = any(supported[day] for day in mention.readings)
            if is_supported or mention.sure:  # any other possible date is checked as a number
                dates.append(mention)
            if mention.sure and not is_supported:
                yield position + mention.start, f"date {row[mention.start : mention.end].strip()}"
        for number in find_numbers(plain):
            if not _overlaps(number.start, number.end, dates) and not number.within(stated.numbers):
                yield position + number.start, f"number {row[number.start : number.end].strip()}"
        position += len(row)


def _unsupported_names(text: str, stated: _Stated, language: str) -> Iterator[tuple[int, str]]:
    dates = find_dates(ascii_digits(text))
    stated_months = {day.month for day in stated.days}
    for name in find_unknown_names(text, stated.words, language):
        month = months(name.text)  # a month alone: "in June"
        if not (month & stated_months or _overlaps(name.start, name.end, dates)):
            yield name.start, f"{'date' if month else 'name'} {name.text}"


def _overlaps(start: int, end: int, mentions: Sequence[Mention]) -> bool:
    """True if a mention overlaps `[start, end)`. The mentions are in order and do not overlap each other."""
    index = bisect_right(mentions, start, key=lambda mention: mention.end)
    return index < len(mentions) and mentions[index].start < end


def _without_list_numbers(summary: str) -> str:
    """Replace the numbers of a numbered list by blanks."""
    items = list(_LIST_ITEM.finditer(summary))
    if [int(item[1]) for item in items] != list(range(1, len(items) + 1)):
        return summary
    for item in items:
        summary = summary[: item.start(1)] + " " * (item.end() - item.start(1)) + summary[item.end() :]
    return summary


def _keeps_figures(summary: str, figures: _Figures) -> bool:
    plain = ascii_digits(flatten(summary))
    values = {value for number in find_numbers(plain) for reading in number.readings for value in reading}
    if any(number.within(values) for number in figures.numbers):
        return True
    summary_days = {day for mention in find_dates(plain, loose=True) for day in mention.readings}
    original_days = {day for readings in figures.days for day in readings}
    if any(months(word.strip(".,;:!?")) & {day.month for day in original_days} for word in summary.split()):
        return True
    years = {day.year for day in summary_days | original_days}
    # A summary may give less of a date than its original, or more.
    return any(is_given(day, original_days, years) for day in summary_days) or any(
        is_given(day, summary_days, years) for day in original_days
    )


def _keeps_names(summary: str, names: Iterable[str], language: str) -> bool:
    words = [word for name in names for word in name.split() if len(word) > 1]
    # "": the summary may be in another language, so any ending matches.
    return any(any(map(Vocabulary([flatten(summary)], tried).has, words)) for tried in (language, ""))


def _names(texts: Sequence[str], speakers: Collection[str], language: str) -> list[str]:
    """Return the names in the texts. Speakers, abbreviations, months and weekdays are left out."""
    vocabulary = Vocabulary(speakers, language)
    speaker_words = " ".join(speakers).casefold().split()

    def is_speaker(word: str) -> bool:
        folded = word.casefold()
        nickname = len(word) >= _MIN_NICKNAME and any(speaker.startswith(folded) for speaker in speaker_words)
        return nickname or vocabulary.has(word)

    names = dict.fromkeys(name for text in texts for name in inner_names(text, language))
    return [
        name
        for name in names
        if not (name.isupper() or months(name) or weekdays(name) or all(map(is_speaker, name.split())))
    ]


def _examples(written: Iterable[str]) -> str:
    return "; ".join(list(dict.fromkeys(written))[:_EXAMPLES])
