"""Boosts: additional ranked lists of hits, which raise hits by their document, title, codes or date.

A boost contains only entries that the search by words or vectors has found. It changes the order of these entries, and
it never adds or removes an entry. The weights were chosen with one half of the development questions
(bench/log/search.md). Boosts read derived rows: the properties of entries, such as title and days, that were computed
in advance (`index.entry_properties`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from agentformer.index.entry_properties import DATE_TEXT, NONE, TITLE_TEXT, Derived, named_days, own_title
from agentformer.index.words.fields import day_of
from agentformer.records.codec import from_micros
from agentformer.search.fusion import RankedList
from agentformer.text.analysis import QueryTerms
from agentformer.text.dates.query import QueryDates
from agentformer.types import Connection, Statement

_DOCUMENT_WEIGHT = 0.5  # weight of the list; the weight of the words is 1
_DOCUMENT_PASSAGES = 3  # number of passages of a document that count, so that long documents have no advantage
DOCUMENT_HEAD = 10  # each of these first hits must be part of a long document
_TITLE_WEIGHT = 0.8
_TITLE_HEAD = 3  # number of hits that are searched for titles
_TITLE_LENGTHS = range(4, 101)  # code points
_TITLE_OWNERS = 2  # if more entries share a title, it names a document or a subject, not an entry
_TITLE_TEXT = 4_000  # code points of a hit that are searched for titles
_IDENTIFIER_WEIGHT = 1.0  # plus the weight of the vectors, so that no entry without the code is ranked higher
_IDENTIFIER_OWNERS = 2  # if more entries contain a code, it distinguishes them no better than a word
_IDENTIFIER_TEXT = 20_000  # code points of a hit that are searched for codes
_DATE_WEIGHT = 0.3
_DATE_READ = 50  # number of hits that are searched for dates, in addition to the hits in the date range
_CANDIDATES = 200  # hits considered by the document boost and the title boost


def _of_entries(columns: str) -> Statement:
    """Return a query for columns of the entries with given numbers."""
    query = f"SELECT {columns} FROM entries WHERE num"
    return Statement(f"{query} IN (SELECT value FROM json_each(?))", f"{query} = ANY(%s)")


_DOCUMENTS = _of_entries("num, document_id")
_TITLES = _of_entries(
    "num, document_id, CASE WHEN document_id IS NULL THEN title ELSE '' END, "
    "CASE WHEN document_id IS NULL OR (span_start = 0 AND coalesce(page, 1) = 1) "
    f"THEN coalesce(substr(content, 1, {TITLE_TEXT}), '') ELSE '' END"  # NULL in a damaged row
)
_TEXTS = _of_entries(f"num, title || ' ' || context || ' ' || substr(content, 1, {_IDENTIFIER_TEXT})")
_TIMES = _of_entries("num, occurred_at")
_HEADS = _of_entries(f"num, substr(content, 1, {_TITLE_TEXT})")
_DATED = _of_entries(f"num, substr(content, 1, {DATE_TEXT})")


def document_boost(
    connection: Connection, hits: Sequence[tuple[int, float]], known: Mapping[int, Derived] = NONE
) -> RankedList:
    """Return a ranked list that raises passages of documents with several hits. Each passage gets the score of its
    document: the mean score of the best three passages of the document. `hits` contains entry numbers with scores in
    0..1, best first. `known` contains the derived rows of some of the entries.

    The list has entries only if the hits belong to at least two documents, and if each of the first ten hits belongs to
    a document with at least three hits. With other hits, this list would prefer long documents to documents with a
    single passage.
    """
    hits = hits[:_CANDIDATES]
    if any(num in known and known[num].document is None for num, _ in hits[:DOCUMENT_HEAD]):
        return RankedList("document", [], _DOCUMENT_WEIGHT)
    documents = {num: part for num, _ in hits if num in known and (part := known[num].document) is not None}
    if others := [num for num, _ in hits if num not in known]:
        rows = connection.run(_DOCUMENTS, [others]).fetchall()
        documents |= {num: document for num, document in rows if document is not None}
    if not documents:
        return RankedList("document", [], _DOCUMENT_WEIGHT)
    scores: dict[str, list[float]] = {}
    for num, score in hits:
        if num in documents:
            scores.setdefault(documents[num], []).append(score)
    long = all(len(scores.get(documents.get(num, ""), ())) >= _DOCUMENT_PASSAGES for num, _ in hits[:DOCUMENT_HEAD])
    if len(scores) < 2 or not long:
        return RankedList("document", [], _DOCUMENT_WEIGHT)
    means = {document: sum(best[:_DOCUMENT_PASSAGES]) / _DOCUMENT_PASSAGES for document, best in scores.items()}
    score_of = {num: means[documents[num]] for num, _ in hits if num in documents}
    order = sorted(score_of, key=lambda num: -score_of[num])
    return RankedList("document", order, _DOCUMENT_WEIGHT, [score_of[num] for num in order])


def title_boost(
    connection: Connection, nums: Sequence[int], known: Mapping[int, Derived] = NONE, query: str = ""
) -> RankedList:
    """Return a ranked list that raises entries whose titles are mentioned in the best hits or in the query.

    For example, the question "Where was the director of X born?" finds the entry about X, which names the director. The
    entry about the director shares no word with the question, but its title is mentioned in the entry about X. For the
    question "Is X or Y larger?", the search by words prefers entries that name X and Y often to the entries about X and
    Y. `nums` contains entry numbers, best first. `known` contains the derived rows of some of these entries. Entries
    that the best hit mentions are first in the list, and entries that only the query mentions are last. Entries that
    the same text mentions keep the order of `nums`.
    """
    nums = nums[:_CANDIDATES]
    titles, documents = _titles(connection, nums, known)
    owners = Counter(titles.values())  # if many entries share a title, it is not a title of their own
    usable = {
        num: title for num, title in titles.items() if len(title) in _TITLE_LENGTHS and owners[title] <= _TITLE_OWNERS
    }
    mentioned: dict[int, None] = {}
    if usable:
        texts = dict(connection.run(_HEADS, [[*nums[:_TITLE_HEAD]]]).fetchall())
        for head in nums[:_TITLE_HEAD]:
            text = texts.get(head, "")
            own = titles.get(head, "") if owners[titles.get(head, "")] <= _TITLE_OWNERS else ""
            for num, title in usable.items():
                if title not in text or num == head or title == own:
                    continue
                document = documents.get(num)
                if (document is None or document != documents.get(head)) and _has_words(text, title):
                    mentioned.setdefault(num)
        for num, title in usable.items():
            if title in query and _has_words(query, title):
                mentioned.setdefault(num)
    return RankedList("mentions", list(mentioned), _TITLE_WEIGHT)


def _titles(
    connection: Connection, nums: Sequence[int], known: Mapping[int, Derived]
) -> tuple[dict[int, str], dict[int, str | None]]:
    """Return the title of each entry, or its first line if the entry has no title. Entries with neither are left out;
    the other entries keep the order of `nums`. Also return the document of each entry, or None."""
    rows = list(map(known.get, nums))
    titles = {num: own for num, row in zip(nums, rows, strict=True) if row is not None and (own := row.title)}
    documents = {num: known[num].document for num in (*titles, *nums[:_TITLE_HEAD]) if num in known}
    others = [num for num, row in zip(nums, rows, strict=True) if row is None] if None in rows else []
    if others:
        for num, document, title, content in connection.run(_TITLES, [others]).fetchall():
            titles[num], documents[num] = _own_title(title, content), document
        titles = {num: title for num in nums if (title := titles.get(num))}
    return titles, documents


_own_title = lru_cache(maxsize=16_384)(own_title)


def _has_words(text: str, phrase: str) -> bool:
    """Return whether `text` contains `phrase` as complete words. The comparison is case-sensitive."""
    at = text.find(phrase)
    while at >= 0:
        end = at + len(phrase)
        before, after = text[at - 1 : at] if at else "", text[end : end + 1]
        if not (before.isalnum() and phrase[0].isascii()) and not (after.isalnum() and phrase[-1].isascii()):
            return True
        at = text.find(phrase, at + 1)
    return False


def identifier_boost(
    connection: Connection, nums: Sequence[int], identifiers: Sequence[str], weight: float = 0.0
) -> RankedList:
    """Return a ranked list that raises the entries with a code of the query, such as "9f3ac01b7e", if at most two of
    the hits `nums` contain this code. `identifiers` are the codes of the query (`QueryTerms.identifiers`). `weight` is
    the weight of the vectors. The list weighs as much as words and vectors together, because vectors cannot
    distinguish codes, and words prefer a short entry with a similar code."""
    found: set[int] = set()
    if identifiers:
        rows = connection.run(_TEXTS, [[*nums[:_CANDIDATES]]]).fetchall()
        texts = {num: text.casefold() for num, text in rows}
        for identifier in identifiers:
            owners = [num for num, text in texts.items() if _has_words(text, identifier)]
            found.update(owners if len(owners) <= _IDENTIFIER_OWNERS else ())
    return RankedList("identifiers", [num for num in nums if num in found], _IDENTIFIER_WEIGHT + weight)


def date_boost(
    connection: Connection, nums: Sequence[int], dates: QueryDates, known: Mapping[int, Derived] = NONE
) -> RankedList:
    """Return a ranked list that raises two kinds of entries: entries whose `occurred_at` is in a period that the query
    names, and entries whose text names a day of such a period. Other entries are not removed, because a user who writes
    "last week" may be wrong by a day. An exact time limit can be set in the scope of the search. `known` contains the
    derived rows of some of the entries; the other entries are analyzed now."""
    if not dates.periods or not nums:
        return RankedList("period", [], _DATE_WEIGHT)
    micros = {num: known[num].occurred_at for num in nums if num in known}
    if others := [num for num in nums if num not in known]:
        micros |= dict(connection.run(_TIMES, [others]).fetchall())
    occurred = {num: from_micros(moment) for num, moment in micros.items()}
    inside = {num for num, at in occurred.items() if at and any(one.start <= at < one.end for one in dates.periods)}
    read = [num for num in nums if num in occurred and num not in inside][:_DATE_READ]
    named = {num: known[num].days for num in read if num in known}
    if unknown := [num for num in read if num not in known]:
        contents = dict(connection.run(_DATED, [unknown]).fetchall())
        named |= {num: _named_days(content, day_of(occurred[num])) for num, content in contents.items()}
    for num, spans in named.items():
        # a text that names a whole year does not match a query for one day
        if any(asked.first <= first and last <= asked.last for first, last in spans for asked in dates.days):
            inside.add(num)
    return RankedList("period", [num for num in nums if num in inside], _DATE_WEIGHT)


_named_days = lru_cache(maxsize=4_096)(named_days)


def all_boosts(
    connection: Connection,
    hits: Sequence[tuple[int, float]],
    dates: QueryDates,
    known: Mapping[int, Derived],
    query: QueryTerms,
    weight: float,
) -> list[RankedList]:
    """Return all boosts, without empty lists. `hits` contains entry numbers with scores in 0..1, best first. `dates`
    contains the dates that the query names. To save work, `known` contains the derived rows of some of the entries.
    `weight` is the weight of the vectors."""
    nums = [num for num, _ in hits]
    lists = (
        document_boost(connection, hits, known),
        title_boost(connection, nums, known, query.text),
        identifier_boost(connection, nums, query.identifiers, weight),
        date_boost(connection, nums, dates, known),
    )
    return [ranked for ranked in lists if ranked.items]
