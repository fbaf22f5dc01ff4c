"""Boosts: additional ranked lists of hits, which raise hits by their document, title or date.

A boost contains only entries that the search by words or vectors has found. It changes the order of these entries, and
it never adds or removes an entry. The weights were chosen with one half of the development questions
(docs/BENCHMARKS.md).
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import NamedTuple

from agentformer.index.words.fields import day_of
from agentformer.records.codec import from_micros
from agentformer.search.fusion import RankedList
from agentformer.text.analysis import QueryTerms
from agentformer.text.dates.expressions import Period, find_date_ranges, period_of, query_date_ranges, range_terms
from agentformer.text.dates.phrases import DateRange
from agentformer.text.languages import detect_language

_DOCUMENT_WEIGHT = 0.5  # weight of the list; the weight of the words is 1
_DOCUMENT_PASSAGES = 3  # number of passages of a document that count, so that long documents have no advantage
_DOCUMENT_HEAD = 10  # each of these first hits must be part of a long document
_TITLE_WEIGHT = 0.8
_TITLE_HEAD = 3  # number of hits that are searched for titles
_TITLE_LENGTHS = range(4, 101)  # code points
_TITLE_OWNERS = 2  # if more entries share a title, it names a document or a subject, not an entry
_TITLE_WORDS = 8  # maximum in a first line that is used as a title
_TITLE_TEXT = 4_000  # code points of a hit that are searched for titles
_DATE_WEIGHT = 0.3
_DATE_READ = 50  # number of hits that are searched for dates, in addition to the hits in the date range
_DATE_TEXT = 2_000  # code points of a hit that are searched for dates
_CANDIDATES = 200  # hits considered by the document boost and the title boost

_TITLE_END = re.compile(r"[^\s.,;:!?]$")
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")  # "Mercury (planet)" has the title "Mercury"
_IN_NUMS = "FROM entries WHERE num IN (SELECT value FROM json_each(?))"
_TITLE_COLUMNS = (
    "SELECT num, document_id, CASE WHEN document_id IS NULL THEN title ELSE '' END, "
    "CASE WHEN document_id IS NULL OR (span_start = 0 AND coalesce(page, 1) = 1) "
    f"THEN substr(content, 1, 102) ELSE '' END {_IN_NUMS}"
)


def document_boost(connection: sqlite3.Connection, hits: Sequence[tuple[int, float]]) -> RankedList:
    """Return a list that raises passages of documents with several hits. The score of a document is the mean score of
    its best three passages. `hits` contains entry numbers with scores in 0..1, best first.

    The list is empty if fewer than two documents have hits, or if one of the best hits does not belong to a document
    with at least three hits. The reason is that, beside documents with a single passage, the boost would only prefer
    long documents.
    """
    hits = hits[:_CANDIDATES]
    rows = connection.execute(
        f"SELECT num, document_id {_IN_NUMS} AND document_id IS NOT NULL", [json.dumps([num for num, _ in hits])]
    )
    documents: dict[int, str] = dict(rows.fetchall())
    scores: dict[str, list[float]] = {}
    for num, score in hits:
        if num in documents:
            scores.setdefault(documents[num], []).append(score)
    long = all(len(scores.get(documents.get(num, ""), ())) >= _DOCUMENT_PASSAGES for num, _ in hits[:_DOCUMENT_HEAD])
    if len(scores) < 2 or not long:
        return RankedList("document", [], _DOCUMENT_WEIGHT)
    means = {document: sum(best[:_DOCUMENT_PASSAGES]) / _DOCUMENT_PASSAGES for document, best in scores.items()}
    score_of = {num: means[documents[num]] for num, _ in hits if num in documents}
    order = sorted(score_of, key=lambda num: -score_of[num])
    return RankedList("document", order, _DOCUMENT_WEIGHT, [score_of[num] for num in order])


class _Title(NamedTuple):
    text: str  # "" if the entry has no title of its own
    document: str | None


def title_boost(connection: sqlite3.Connection, nums: Sequence[int]) -> RankedList:
    """Return a list that raises entries whose titles are mentioned in the best hits.

    For example, the question "Where was the director of X born?" finds the entry about X, which names the director. The
    entry about the director shares no word with the question, but its title is mentioned in the entry about X. `nums`
    contains entry numbers, best first. Entries that the best hit mentions are first in the list. Entries that the same
    hit mentions keep the order of `nums`.
    """
    nums = nums[:_CANDIDATES]
    titles = _titles(connection, nums)
    usable = [(num, titles[num]) for num in nums if num in titles and len(titles[num].text) in _TITLE_LENGTHS]
    mentioned: dict[int, None] = {}
    if usable:
        texts = _contents(connection, nums[:_TITLE_HEAD], _TITLE_TEXT)
        for head in nums[:_TITLE_HEAD]:
            own, text = titles.get(head, _Title("", None)), texts.get(head, "")
            for num, title in usable:
                if title.text in text and num != head and _is_other(own, title) and _has_words(text, title.text):
                    mentioned.setdefault(num)
    return RankedList("mentions", list(mentioned), _TITLE_WEIGHT)


def _is_other(own: _Title, title: _Title) -> bool:
    """Return whether `title` differs from `own`, the title of a hit, and belongs to another document."""
    return title.text != own.text and (title.document is None or title.document != own.document)


def _titles(connection: sqlite3.Connection, nums: Sequence[int]) -> dict[int, _Title]:
    """Return the title of each entry, or its first line if the entry has no title. The title is "" if there is neither,
    or if many entries share it."""
    rows = connection.execute(_TITLE_COLUMNS, [json.dumps(list(nums))]).fetchall()
    titles = {num: _own_title(title, content) for num, _, title, content in rows}
    owners = Counter(titles.values())
    return {
        num: _Title(titles[num] if owners[titles[num]] <= _TITLE_OWNERS else "", document)
        for num, document, _, _ in rows
    }


@lru_cache(maxsize=16_384)
def _own_title(title: str, content: str) -> str:
    """Return the title, or the first line of the content if there is no title, without a qualifier in parentheses."""
    title = (title or _first_line(content)).strip()
    return _QUALIFIER.sub("", title) if title.endswith(")") else title


def _first_line(content: str) -> str:
    """Return the first line of a text if the line looks like a title, otherwise ""."""
    if "\n" not in content:
        return ""
    line, line_end, rest = content.partition("\n")
    line = line.strip().lstrip("# ")
    titled = line and not line[0].islower() and len(line.split()) <= _TITLE_WORDS and _TITLE_END.search(line)
    return line if titled and line_end and rest.strip() else ""


def _has_words(text: str, phrase: str) -> bool:
    """Return whether `text` contains `phrase` as complete words. Upper and lower case must be equal."""
    at = text.find(phrase)
    while at >= 0:
        end = at + len(phrase)
        before, after = text[at - 1 : at] if at else "", text[end : end + 1]
        if not (before.isalnum() and phrase[0].isascii()) and not (after.isalnum() and phrase[-1].isascii()):
            return True
        at = text.find(phrase, at + 1)
    return False


@dataclass(frozen=True, slots=True)
class QueryDates:
    """The dates that a query names, such as "last week". The object is false if the query names no date."""

    periods: tuple[Period, ...] = ()
    terms: tuple[str, ...] = ()  # as terms of the word index
    days: tuple[DateRange, ...] = ()  # the days of the periods; time zones are ignored

    def __bool__(self) -> bool:
        return bool(self.periods or self.terms)


def query_dates(query: QueryTerms, at: datetime | None = None) -> QueryDates:
    """Return the dates that a query names. `at` is the moment to which words such as "yesterday" refer; None means now
    in the local time zone."""
    at = at or datetime.now().astimezone()
    days = _days(query.text, at.date(), query.language)
    return QueryDates(tuple(dict.fromkeys(period_of(day, at.tzinfo) for day in days)), range_terms(days), days)


@lru_cache(maxsize=512)
def _days(text: str, on: date, language: str) -> tuple[DateRange, ...]:
    return tuple(query_date_ranges(text, on, language))


def date_boost(connection: sqlite3.Connection, nums: Sequence[int], dates: QueryDates) -> RankedList:
    """Return a list that raises entries that happened in a period named by the query, and entries whose text names a
    day in the period. Other entries are not removed, because a user who writes "last week" may be wrong by a day. An
    exact time limit can be set in the scope of the search."""
    if not dates.periods or not nums:
        return RankedList("period", [], _DATE_WEIGHT)
    rows = connection.execute(f"SELECT num, occurred_at {_IN_NUMS}", [json.dumps([*nums])])
    occurred = {num: from_micros(micros) for num, micros in rows}
    inside = {num for num, at in occurred.items() if at and any(one.start <= at < one.end for one in dates.periods)}
    others = [num for num in nums if num in occurred and num not in inside][:_DATE_READ]
    for num, content in _contents(connection, others, _DATE_TEXT).items():
        named = _named_days(content, day_of(occurred[num]))
        # a whole year does not lie within one of its days
        if any(asked.first <= days.first and days.last <= asked.last for days in named for asked in dates.days):
            inside.add(num)
    return RankedList("period", [num for num in nums if num in inside], _DATE_WEIGHT)


@lru_cache(maxsize=4_096)
def _named_days(content: str, on: date | None) -> tuple[DateRange, ...]:
    return tuple(find_date_ranges(content, on, detect_language(content)))


def all_boosts(
    connection: sqlite3.Connection, hits: Sequence[tuple[int, float]], dates: QueryDates
) -> list[RankedList]:
    """Return the document boost, the title boost and the date boost, without empty lists. `hits` contains entry numbers
    with scores in 0..1, best first. `dates` contains the dates that the query names."""
    nums = [num for num, _ in hits]
    lists = document_boost(connection, hits), title_boost(connection, nums), date_boost(connection, nums, dates)
    return [ranked for ranked in lists if ranked.items]


def _contents(connection: sqlite3.Connection, nums: Sequence[int], length: int) -> Mapping[int, str]:
    query = f"SELECT num, substr(content, 1, ?) {_IN_NUMS}"
    return dict(connection.execute(query, [length, json.dumps([*nums])]).fetchall())
