"""Compares a summary that a model wrote with the summarized entries (originals). Finds numbers, dates and names that no
original contains, and facts that are missing in the summary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from agentformer.memory.summaries import flatten, line_of, speaker_of
from agentformer.text import claims
from agentformer.text.claims import Vocabulary, inner_names, overlaps
from agentformer.text.dates.dates import Day, find_dates, is_given, months, weekdays
from agentformer.text.facts import Number, ascii_digits, find_numbers
from agentformer.text.languages import detect_language
from agentformer.text.sentences import sentence_spans
from agentformer.types import MemoryEntry

# The bounds on missing facts are low on purpose: a good summary may leave out most facts, but not all of them.
_MIN_FIGURES, _MIN_NAMES = 2, 3  # if the originals contain this many, the summary must keep at least one
_MIN_NICKNAME = 3  # letters of a short form of a speaker's name
_MAX_SPELLED = 12  # numbers up to this one are often written as words
_EXAMPLES = 5


class _Figures(NamedTuple):
    """The numbers and dates in texts, each with its first spelling in the texts."""

    numbers: dict[Number, str]
    days: dict[tuple[Day, ...], str]


def unsupported_claims(summary: str, originals: Sequence[MemoryEntry]) -> list[str]:
    """Return the numbers, dates and names in the summary that are not in the content, speaker or time of any original
    (summarized entry). The result is in the order of the summary, for example "number 7", "date 8 June 2023" or "name
    Robert". The result is empty for a faithful summary."""
    language = detect_language(summary, detect_language(" ".join(entry.content[:1000] for entry in originals)))
    texts = [text for entry in originals for text in _texts(entry)]
    stated = claims.Stated.of(texts, language, [entry.occurred_at for entry in originals if entry.occurred_at])
    return claims.unsupported_claims("\n".join(map(flatten, summary.splitlines())), stated, language)


def missing_facts(summary: str, originals: Sequence[MemoryEntry]) -> list[str]:
    """Return the kinds of facts that occur several times in the originals, but not at all in the summary. Each kind has
    examples: "numbers and dates (1,250; 3 April)", "names (Anna; Tampere)"."""
    texts = [entry.content for entry in originals]
    missing = []
    figures = _figures(texts)
    written = [*figures.days.values(), *figures.numbers.values()]
    if len(written) >= _MIN_FIGURES and not _keeps_figures(summary, figures):
        missing.append(f"numbers and dates ({_examples(written)})")
    language = detect_language(" ".join(text[:1000] for text in texts))
    names = _names(texts, {speaker_of(entry) for entry in originals}, language)
    if len(names) >= _MIN_NAMES and not _keeps_names(summary, names, language):
        missing.append(f"names ({_examples(names)})")
    return missing


def _figures(texts: Iterable[str]) -> _Figures:
    figures = _Figures({}, {})
    for plain in (ascii_digits(flatten(text)) for text in texts):
        dates = find_dates(plain, loose=True)
        for mention in dates:
            figures.days.setdefault(mention.readings, plain[mention.start : mention.end].strip())
        for number in find_numbers(plain):
            written = plain[number.start : number.end]
            is_spelled = written.isdigit() and int(written) <= _MAX_SPELLED
            if not is_spelled and not overlaps(number.start, number.end, dates):
                figures.numbers.setdefault(Number(0, 0, number.readings), written.strip())
    return figures


def _texts(entry: MemoryEntry) -> Iterator[str]:
    yield flatten(entry.content)
    yield flatten(entry.speaker)
    yield entry.role
    for span in sentence_spans(entry.content):
        yield line_of(entry, entry.content[span.start : span.end])


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
    # A summary may give fewer parts of a date than its original, or more.
    return any(is_given(day, original_days, years) for day in summary_days) or any(
        is_given(day, summary_days, years) for day in original_days
    )


def _keeps_names(summary: str, names: Iterable[str], language: str) -> bool:
    words = [word for name in names for word in name.split() if len(word) > 1]
    # "": the summary may be in another language, so any ending matches.
    return any(any(map(Vocabulary([flatten(summary)], tried).has, words)) for tried in (language, ""))


def _names(texts: Sequence[str], speakers: Collection[str], language: str) -> list[str]:
    """Return the names in the texts. The names of the speakers, abbreviations, months and weekdays are left out."""
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
