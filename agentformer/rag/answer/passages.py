"""Passages: the hits of a search with their language, their sentences and their terms. Sentences are the units of
quotes, so headings and tables of contents are left out."""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import cached_property, lru_cache
from itertools import accumulate, islice, pairwise
from types import MappingProxyType
from typing import NamedTuple

from agentformer.rag.chunks import CARRIED
from agentformer.search.relevance import EntryLanguages
from agentformer.text.analysis import QueryTerms, Terms, text_terms
from agentformer.text.dates.expressions import find_date_ranges
from agentformer.text.dates.query import query_dates
from agentformer.text.dates.relative import DateRange
from agentformer.text.languages.detection import likelier_of_alike
from agentformer.text.normalize import letters_and_digits
from agentformer.text.places import SEPARATOR
from agentformer.text.question_types import is_question
from agentformer.text.splitting import sentence_spans
from agentformer.text.table_rows import TableRow, TextTable, find_rows
from agentformer.types import Analyzed, Hit, Span

CACHED_TEXTS = 256  # passages whose sentences are cached (about 4 MB)
_NAMES = 2  # parts of the context line that name the document: its file and its title
_MESSAGE = "message"
_MONTH = timedelta(days=31)
_MARKUP = " \t#*_>-=|"
_LEAD_IN = 80  # code points of a lead-in; a longer sentence says something itself
LEAD_IN_ENDS = (":", "：")  # the last character of a sentence that introduces what follows
_NUMBERED = frozenset("§0123456789")
_HEADING = re.compile(r"(?:§\s?\d|\d{1,3}(?:\.\d{1,3})*\.?\s+[^\W\d_])[^\n.!?:;。]{0,60}")  # "4.2 Guest berths"
_TITLE = re.compile(r"[^\W\d_][^\d\n.!?:;,。]{2,58}[^\W\d_]")  # "Available Information"
_CAPTION = re.compile(
    r"(?:fig(?:ur[ea]?)?|kuva|taulukko|tab(?:le|ell[e]?|la)?|abb(?:ildung)?|tableau|図|表)\.?\s?\d{1,3}(?:\.\d{1,3})?\s?[:.]",
    re.IGNORECASE,
)
_FILLERS = re.compile(r"[.·•…_=\-–—]")  # dotted lines of a table of contents, form fields, ruled lines
_LEADER = re.compile(r"(?:[.·…_][ \t]*){4}")  # dots between an entry and its page number
_PAGE_NUMBER = re.compile(r"[^\W\d_]\W*\s(\d{1,3})\s*$")  # at the end of a line of a table of contents
ITEM = re.compile(r"[ \t]*(?:[-*•–·▪◦‣]\s|\(?\d{1,3}[.)]\s|\(?[a-z][.)]\s)", re.IGNORECASE)  # a list item begins
_LEAST_ENTRIES = 3
_FILLED, _FILLED_SHARE = 8, 0.3  # a sentence with this number and share of fillers has no content
_DIGITS_ALONE = 12  # a sentence with more digits and no letter is a column of numbers; a date has eight digits
_CACHED_LENGTH = 4_000  # maximum code points of a passage in the cache
# The work for a question is bounded, whatever is stored. No chunk of a document is longer than these limits.
_READ, _READ_TOGETHER = 20_000, 400_000  # code points that are read of one hit, and of all hits of a question
_SENTENCES, _SENTENCES_TOGETHER = 1_000, 10_000  # sentences of one hit, and of all hits of a question
_PARAGRAPH = 4_000  # code points after a title that are read to find the end of the next paragraph
_NEAR = 200  # code points before and after a sentence that show whether it is alone on its line or in its paragraph
_CONTINUED = re.compile(r"\w[\u00ad\ufffe-]$")  # a word that is cut at the end of the page

NamedDates = Sequence[tuple[str, DateRange]]  # dates that a question names: words, and their days


class Passage:
    """A hit with its language, its sentences and their terms. Each of these values is computed at its first use and
    then kept. `likely` is the language to assume if the passage is too short to detect its language. If `likely` is
    None, a short passage in Danish, Norwegian or Swedish gets the likeliest of these languages. `dates` are the dates
    that the question names.

    `content` is the text of the passage: the content of the entry. Of a content with more than `room` code points, it
    is the part around the best match, and `offset` is the position of this part in the content of the entry."""

    def __init__(
        self, hit: Hit, languages: EntryLanguages, likely: str | None = "", dates: NamedDates = (), room: int = _READ
    ) -> None:
        self.hit = hit
        content = hit.entry.content
        self._best = hit.span.start if hit.span else 0  # the position of the best match in the content
        self.offset = max(0, min(self._best - room // 2, len(content) - room))
        self.content = content[self.offset : self.offset + room]
        self._languages = languages
        self._likely = likely
        self._dates = dates

    def quoting(self, quote: str) -> Passage:
        """Return this passage with a quote as its content, in the same language."""
        entry = dataclasses.replace(self.hit.entry, content=quote)
        hit = dataclasses.replace(self.hit, entry=entry, span=None)
        quoted = Passage(hit, self._languages, self._likely, self._dates)
        quoted.language = self.language
        return quoted

    def in_entry(self, span: Span) -> Span:
        """Return the position in the content of the entry of a part of this passage."""
        return Span(self.offset + span.start, self.offset + span.end)

    @cached_property
    def language(self) -> str:
        """The ISO 639-1 code of the language of the passage, or "" if the language is unknown."""
        detected = self._languages.of(self.hit.entry)
        return detected or (likelier_of_alike(self.content) if self._likely is None else self._likely)

    @cached_property
    def rows(self) -> dict[Span, TableRow]:
        """The rows of the tables in the content of the passage, by their spans."""
        return {row.span: row for table in self.tables for row in table.rows}

    @cached_property
    def sentences(self) -> tuple[Span, ...]:
        """The spans of the sentences and rows of tables in the content of the passage, without headers of tables. If
        there are more than `_SENTENCES`, these are the ones around the best match."""
        spans = self._layout.sentences
        if len(spans) <= _SENTENCES:
            return spans
        best = bisect_left(spans, (self._best - self.offset,))
        first = max(0, min(best - _SENTENCES // 2, len(spans) - _SENTENCES))
        return spans[first : first + _SENTENCES]

    @cached_property
    def sentence_terms(self) -> tuple[Terms, ...]:
        """The terms of each sentence, in the order of `sentences`. If the first sentence begins on the previous page,
        its terms include the terms of its part on the previous page. The terms of a row do not include the terms of its
        headers."""
        texts = [self.content[slice(*span)] for span in self.sentences]
        texts[:1] = [self.carried + text for text in texts[:1]]
        terms_of = _terms_of if self._is_cached else _terms_of.__wrapped__
        return terms_of(tuple(texts), self.language)

    @cached_property
    def header_stems(self) -> dict[Span, frozenset[str]]:
        """A dictionary: span of each row of a table -> the stems of the words that apply to the row: the title of the
        table, the headers of its columns, and the heading of the group of rows to which the row belongs. A stem that
        also occurs inside any row is left out for all rows, because it distinguishes rows from each other."""
        own = {span: frozenset(terms.stems) for span, terms in zip(self.sentences, self.sentence_terms, strict=True)}
        found: dict[Span, frozenset[str]] = {}
        for table in self.tables:
            inside = frozenset[str]().union(*(own.get(row.span, frozenset()) for row in table.rows))
            above = {text: frozenset(text_terms(text, self.language).stems) for text in {r.above for r in table.rows}}
            found |= {row.span: above[row.above] - inside for row in table.rows}
        return found

    @cached_property
    def carried(self) -> str:
        """The beginning of the first sentence if this sentence begins on the previous page, else "". The context line
        of the chunk contains this beginning. The context line may contain a heading of the previous page instead.
        Therefore the result is "" unless the content begins with a small letter, a digit or a letter of a script
        without case."""
        carried = self.hit.entry.context.partition(CARRIED)[2]
        first = self.content.lstrip()[:1]
        goes_on = first.islower() or first.isdigit() or (first.isalpha() and first.lower() == first.upper())
        if not carried or not goes_on:
            return ""
        if _CONTINUED.search(carried) and first.islower():
            return carried[:-1]
        return carried + ("" if "\u3040" <= carried[-1] <= "\u9fff" else " ")

    @property
    def tables(self) -> tuple[TextTable, ...]:
        """The tables in the content of the passage."""
        return self._layout.tables

    @cached_property
    def _layout(self) -> Layout:
        context = self.hit.entry.context.partition(CARRIED)[0].split(SEPARATOR)[-1]
        read = layout_of if self._is_cached else layout_of.__wrapped__
        return read(self.content, context)

    @property
    def _is_cached(self) -> bool:
        return len(self.content) <= _CACHED_LENGTH

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of all words in the content of the passage, with the headers of its tables."""
        own = (terms.stems for terms in self.sentence_terms)
        return frozenset().union(*own, *self.header_stems.values())

    @cached_property
    def name_stems(self) -> frozenset[str]:
        """The stems of the name and the title of the document, which begin the context line."""
        names = self.hit.entry.context.partition(CARRIED)[0].split(SEPARATOR)[:_NAMES]
        return frozenset(text_terms(" ".join(names), self.language).stems)

    @cached_property
    def name_letters(self) -> str:
        """The letters and digits of the document's name, casefolded, to recognise its words in labels of table rows."""
        return letters_and_digits(self.hit.entry.context.partition(SEPARATOR)[0])

    @cached_property
    def context_terms(self) -> Terms:
        """The terms of the context line of the passage, of its speaker, and of `named_dates`. The context line consists
        of the file name, the title and the headings above the passage."""
        entry = self.hit.entry
        speaker = "" if entry.speaker in entry.context else entry.speaker
        return text_terms(" ".join(filter(None, (entry.context, speaker, *self.named_dates))), self.language)

    @cached_property
    def named_dates(self) -> list[str]:
        """The words with which the question names a date of the entry, such as "last Monday". Dates of the entry are
        the day on which the entry happened, in UTC or in the local time zone, and the days that its text names in any
        notation."""
        if not self._dates:
            return []
        at = self.hit.entry.occurred_at
        days = [(day, day) for day in {at.astimezone(UTC).date(), at.astimezone().date()}] if at else []
        if any(named.last - named.first < _MONTH for _, named in self._dates):  # a year alone is found as a word
            written = find_date_ranges(self.content, at.date() if at else None, self.language, years=False)
            days += [(each.first, each.last) for each in written]
        return [words for words, named in self._dates if any(named.first <= a and b <= named.last for a, b in days)]


def dates_of(query: QueryTerms) -> NamedDates:
    """Return the dates that a question names: for each date, the words of the question and the range of days."""
    return [(query.text[days.start : days.end], days) for days in query_dates(query).days]


def read_passages(
    hits: Iterable[Hit],
    likely: str = "",
    dates: NamedDates = (),
    analyzed: Mapping[str, Analyzed] = MappingProxyType({}),
) -> list[Passage]:
    """Return a `Passage` for each hit. `dates` are the dates that the question names; see `dates_of`. If the passages
    are too short to detect a language, `likely`, the language of the question, is assumed. If this language is unknown,
    too, as for a question of one word, a passage that is Danish, Norwegian or Swedish has the likeliest of these
    languages. `analyzed` contains the known languages of hits (see `Hits.analyzed`). If the language of a hit is not
    known, it is detected."""
    languages = EntryLanguages(analyzed)
    hits = list(hits)
    passages = list(_passages(hits, languages, "" if likely else None, dates))
    if likely and not any(passage.language for passage in passages):
        return list(_passages(hits, languages, likely, dates))
    return passages


def _passages(
    hits: Iterable[Hit], languages: EntryLanguages, likely: str | None, dates: NamedDates
) -> Iterator[Passage]:
    """Yield a `Passage` for each hit. When `_READ_TOGETHER` code points are read, the remaining passages are empty."""
    room = _READ_TOGETHER
    for hit in hits:
        passage = Passage(hit, languages, likely, dates, min(_READ, room))
        room -= len(passage.content)
        yield passage


# Questions often find the same passages again.
@lru_cache(maxsize=CACHED_TEXTS)
def _terms_of(texts: tuple[str, ...], language: str) -> tuple[Terms, ...]:
    return tuple(text_terms(text, language) for text in texts)


class Layout(NamedTuple):
    """The tables of a text, and its sentences and rows of tables in order, without headers of tables."""

    tables: tuple[TextTable, ...]
    sentences: tuple[Span, ...]


# Questions often find the same passages again.
@lru_cache(maxsize=CACHED_TEXTS)
def layout_of(content: str, context: str) -> Layout:
    """Return the layout of a text. `context` has the headers of a table that begins before the text."""
    tables = tuple(find_rows(content, context))
    outside = _outside(sentence_spans(content), tables, content)
    rows = {row.span for table in tables for row in table.rows}
    return Layout(tables, tuple(sorted((*outside, *rows))))


def _outside(spans: Iterable[Span], tables: Sequence[TextTable], content: str) -> Iterator[Span]:
    """Yield the parts of the spans that are in no table, without white space around them. The spans and the tables are
    sorted."""
    ends = list(accumulate((table.span.end for table in tables), max))
    for span in spans:
        start = span.start
        for n in range(bisect_right(ends, start), len(tables) + 1):
            table = tables[n] if n < len(tables) and tables[n].span.start < span.end else None
            end = table.span.start if table else span.end
            if bare := content[start:end].strip():
                at = content.index(bare, start)
                yield Span(at, at + len(bare))
            if table is None or table.span.end >= span.end:
                break
            start = max(start, table.span.end)


@dataclass(eq=False, slots=True)
class Sentence:
    """A sentence of a passage. `before` is the previous sentence of the passage, and `above` is the nearest sentence
    before this one that is not a list item.

    `headings` are the stems of the headings above. A row of a table counts as a sentence; `row` is this row with its
    headers. If the sentence is a question, `answer` is the next sentence, unless this is a question, too. In a message,
    a question has no `answer` and is not the `before` of a sentence, because the author of a message does not answer
    their own question."""

    passage: Passage
    span: Span
    text: str
    terms: Terms
    stems: frozenset[str]
    before: Sentence | None = None
    above: Sentence | None = None
    headings: frozenset[str] = frozenset()
    row: TableRow | None = None
    answer: Sentence | None = None

    @property
    def asks(self) -> bool:
        """True if the sentence is a question."""
        return is_question(self.text)


def read_sentences(passages: Iterable[Passage]) -> list[Sentence]:
    """Return the sentences of the passages without headings and without lines of dots, dashes or numbers. If the
    passages contain nothing else, return all their sentences."""
    room = _SENTENCES_TOGETHER
    everything: list[list[Sentence]] = []
    for passage in passages:
        everything.append(list(islice(_sentences_of(passage), room)))
        room -= len(everything[-1])
    bodies = [_below_headings(sentences) for sentences in everything]
    chosen = bodies if any(bodies) else everything
    for sentences in chosen:
        for former, sentence in pairwise(sentences):
            in_message = sentence.passage.hit.entry.kind == _MESSAGE
            if sentence.row or former.row or (former.asks and in_message):
                continue
            sentence.before = former
            sentence.above = former.above if ITEM.match(former.text) else former
            if former.asks and not sentence.asks:
                former.answer = sentence
    return [sentence for sentences in chosen for sentence in sentences]


def _sentences_of(passage: Passage) -> Iterator[Sentence]:
    for span, terms in zip(passage.sentences, passage.sentence_terms, strict=True):
        text = passage.content[span.start : span.end]
        yield Sentence(passage, span, text, terms, frozenset(terms.stems), row=passage.rows.get(span))


def _below_headings(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Return the sentences without headings and without sentences that have no content (see `_is_filled`). The
    `headings` of each are the stems of the nearest heading before it in the passage or, before the first heading, those
    of the context line."""
    body: list[Sentence] = []
    headings: frozenset[str] | None = None
    for sentence in sentences:
        if not sentence.row and _is_heading(sentence):
            headings = sentence.stems
            continue
        if not sentence.row and (_is_filled(sentence) or _announces_nothing(sentence)):
            continue
        above = frozenset(sentence.passage.context_terms.stems) if headings is None else headings
        if sentence.row:
            above |= sentence.passage.header_stems[sentence.span]
        body.append(dataclasses.replace(sentence, headings=above))
    return body


def _announces_nothing(sentence: Sentence) -> bool:
    """Return whether a short sentence ends with a colon, and nothing follows in its passage, so that a quote would only
    announce what it does not show. Also true for the headers of a table whose rows are in the next passage."""
    passage, text = sentence.passage, sentence.text
    if passage.content[sentence.span.end :].strip() or passage.hit.entry.kind == _MESSAGE:
        return False
    return (text.endswith(LEAD_IN_ENDS) and len(text) <= _LEAD_IN) or (
        " | " in text and not any(map(str.isdigit, text))
    )


def _is_filled(sentence: Sentence) -> bool:
    """Return whether a sentence has no content to quote: it is an entry of a table of contents, a form field, a ruled
    line or a column of numbers."""
    characters, content, span = "".join(sentence.text.split()), sentence.passage.content, sentence.span
    if _is_contents(sentence.text):
        return True
    fillers = len(_FILLERS.findall(characters))
    if fillers >= _FILLED and fillers >= _FILLED_SHARE * len(characters):
        return True
    if _LEADER.match(content, span.end - 1) or not any(map(str.isalnum, characters)):
        return True
    if any(map(str.isalpha, characters)):
        return False
    after_dots = _LEADER.match(content[max(0, span.start - _FILLED) : span.start].lstrip())  # a page number
    return bool(after_dots) or sum(map(str.isdigit, characters)) > _DIGITS_ALONE


def _is_contents(text: str) -> bool:
    """Return whether a text is from a table of contents: most lines end with growing numbers, and none has a comma."""
    lines = text.split("\n")
    numbered = (line for line in lines if line.rstrip()[-1:].isdecimal())  # a quick test
    pages = [int(match[1]) for line in numbered if (match := _PAGE_NUMBER.search(line))]
    return len(pages) >= _LEAST_ENTRIES and 2 * len(pages) > len(lines) and pages == sorted(pages) and "," not in text


def _is_heading(sentence: Sentence) -> bool:
    text = sentence.text.strip(_MARKUP)
    if not text or text in sentence.passage.hit.entry.context.split(CARRIED)[0].split(SEPARATOR):
        return True  # only markup, or a heading that the context line of the entry contains
    if _CAPTION.match(text):
        return True
    if _is_title(sentence, text):
        return True
    if text[0] not in _NUMBERED or not text[-1].isalpha() or not _is_line(sentence):
        return False
    return all(_HEADING.fullmatch(line.strip(_MARKUP)) for line in text.splitlines())


def _is_title(sentence: Sentence, text: str) -> bool:
    """Return whether a sentence is a title: a short paragraph without digits and without punctuation at its end,
    followed by a paragraph that ends with punctuation."""
    content, span = sentence.passage.content, sentence.span
    if not _TITLE.fullmatch(text) or (span.start and _before(content, span).rstrip(" \t\r")[-2:] != "\n\n"):
        return False
    if not _after(content, span).lstrip(" \t\r").startswith("\n\n"):
        return False
    paragraph = next(filter(None, map(str.strip, content[span.end : span.end + _PARAGRAPH].split("\n\n"))), "")
    return len(paragraph) > 2 * len(text) and paragraph[-1] in ".!?"


def _is_line(sentence: Sentence) -> bool:
    """Return whether no other text is on the line of the sentence."""
    content, span = sentence.passage.content, sentence.span
    before, after = _before(content, span).rstrip(" \t")[-1:], _after(content, span).lstrip(" \t\r")[:1]
    return before in ("", "\n") and after in ("", "\n")


def _before(content: str, span: Span) -> str:
    return content[max(0, span.start - _NEAR) : span.start]


def _after(content: str, span: Span) -> str:
    return content[span.end : span.end + _NEAR]
