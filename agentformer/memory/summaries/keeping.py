"""Does a summary keep anything of what its originals are about? Their numbers, dates and names are looked for in it.

The bound is low on purpose: a good summary may leave most of them out, and one that has none of them is of no use to
whoever asks for one later. A single one may well be left out, and so may what a summary can put otherwise: small
numbers ("two"), abbreviations, and names that only begin a sentence, which may be none. The speakers' own names do not
count: every summary has them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from agentformer.memory.facts import Number, ascii_digits, find_numbers
from agentformer.memory.summaries.entries import flatten, speaker_of
from agentformer.memory.summaries.names import Vocabulary, inner_names
from agentformer.text.dates.calendar import months, weekdays
from agentformer.text.dates.dates import Day, find_dates, is_given
from agentformer.text.languages import detect_language
from agentformer.types import MemoryEntry

_ENOUGH_FIGURES, _ENOUGH_NAMES = 2, 3  # from which on one of them must be kept
_NICKNAME = 3  # letters of a short form of a speaker's name
_SPELLED = 12  # numbers up to this one are often written as words
_EXAMPLES = 5


@dataclass(slots=True)
class _Figures:
    """Numbers and dates of texts, each with how it is first written."""

    numbers: dict[Number, str] = field(default_factory=dict)
    days: dict[tuple[Day, ...], str] = field(default_factory=dict)

    def add(self, text: str) -> None:
        plain = ascii_digits(flatten(text))
        dates = find_dates(plain, loose=True)
        for mention in dates:
            self.days.setdefault(mention.readings, plain[mention.start : mention.end].strip())
        for number in find_numbers(plain):
            place = bisect_right(dates, number.start, key=lambda mention: mention.end)
            inside = place < len(dates) and dates[place].start < number.end
            if not inside and not _spelled(plain[number.start : number.end]):
                self.numbers.setdefault(Number(0, 0, number.readings), plain[number.start : number.end].strip())


def missing_facts(summary: str, originals: Sequence[MemoryEntry]) -> list[str]:
    """Kinds of which the originals' contents hold several and the summary none, each with examples: "numbers and dates
    (1,250; 3 April)", "names (Anna; Tampere)". Empty for a summary that keeps something of each."""
    texts = [entry.content for entry in originals]
    found = []
    figures = _Figures()
    for text in texts:
        figures.add(text)
    written = [*figures.days.values(), *figures.numbers.values()]
    if len(written) >= _ENOUGH_FIGURES and not _keeps_figures(summary, figures):
        found.append(f"numbers and dates ({_examples(written)})")
    language = detect_language(" ".join(text[:1000] for text in texts))
    names = _names(texts, {speaker_of(entry) for entry in originals}, language)
    if len(names) >= _ENOUGH_NAMES and not _keeps_names(summary, names, language):
        found.append(f"names ({_examples(names)})")
    return found


def _keeps_figures(summary: str, figures: _Figures) -> bool:
    plain = ascii_digits(flatten(summary))
    values = {value for number in find_numbers(plain) for reading in number.readings for value in reading}
    if any(number.within(values) for number in figures.numbers):
        return True
    said = {day for mention in find_dates(plain, loose=True) for day in mention.readings}
    known = {day for readings in figures.days for day in readings}
    if any(months(word.strip(".,;:!?")) & {day.month for day in known} for word in summary.split()):
        return True
    years = {day.year for day in said | known}
    # A summary may say less of a date than its original, or more.
    return any(is_given(day, known, years) for day in said) or any(is_given(day, said, years) for day in known)


def _keeps_names(summary: str, names: Iterable[str], language: str) -> bool:
    words = [word for name in names for word in name.split() if len(word) > 1]
    # "": the summary may be in another language, so any ending will do
    return any(any(map(Vocabulary([flatten(summary)], each).has, words)) for each in (language, ""))


def _names(texts: Sequence[str], speakers: Collection[str], language: str) -> list[str]:
    known = Vocabulary(speakers, language)
    words = " ".join(speakers).casefold().split()

    def speaks(word: str) -> bool:
        short = len(word) >= _NICKNAME and any(each.startswith(word.casefold()) for each in words)
        return short or known.has(word)

    found = dict.fromkeys(name for text in texts for name in inner_names(text, language))
    return [
        name
        for name in found
        if not (name.isupper() or months(name) or weekdays(name) or all(map(speaks, name.split())))
    ]


def _spelled(written: str) -> bool:
    return written.isdigit() and int(written) <= _SPELLED


def _examples(written: Iterable[str]) -> str:
    return "; ".join(list(dict.fromkeys(written))[:_EXAMPLES])
