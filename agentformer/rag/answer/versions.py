"""Rank the newer of two versions of a statement first. Two documents may state the same with different values: a policy
of 2023 and its version of 2025. A question that names no time asks for what holds now. Among memories, the search has
found which hit replaces another one (`search.newest_facts`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from itertools import takewhile

from agentformer.rag.answer.quotes import RankedSentence
from agentformer.text.dates.expressions import find_date_ranges
from agentformer.types import Hit

_COMPARED = 5  # best sentences that are compared with the first
_SAME = 0.75  # least share of equal words in two versions of a statement
_WORD = re.compile(r"[^\W\d_]+")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")


def newer_first(question: str, ranked: list[RankedSentence], hits: Sequence[Hit]) -> list[RankedSentence]:
    """Return the ranked sentences. If a better hit replaces the hit of the first sentence, the best sentence of that
    hit becomes the first. If the first has other versions in other documents, the newest of them becomes the first. The
    date of a document is the latest in its name, or else the latest that its `hits` name. If the question names a date,
    the order of documents is unchanged."""
    if len(ranked) < 2:
        return ranked
    first = ranked[0]
    if first.hit.newer:
        better = [hit.entry.id for hit in takewhile(lambda hit: hit is not first.hit, hits)]
        at = next((n for n, each in enumerate(ranked) if each.hit.entry.id == first.hit.newer), 0)
        return _with_first(ranked, at) if first.hit.newer in better else ranked
    versions = [n for n, other in enumerate(ranked[:_COMPARED]) if n == 0 or _is_version(first, other)]
    if len(versions) < 2 or _latest(question):
        return ranked
    dates = {n: _date_of(ranked[n].hit, hits) for n in versions}
    newest = max(versions, key=lambda n: (dates[n] or date.min, -n))
    return ranked if dates[0] is None else _with_first(ranked, newest)


def _with_first(ranked: list[RankedSentence], at: int) -> list[RankedSentence]:
    """Return the sentences, of which the one at position `at` and the first have exchanged their scores."""
    if at == 0:
        return ranked
    moved = replace(ranked[at], score=ranked[0].score), replace(ranked[0], score=ranked[at].score)
    rest = [sentence for n, sentence in enumerate(ranked) if n not in (0, at)]
    return sorted([*moved, *rest], key=lambda sentence: -sentence.score)


def _is_version(one: RankedSentence, other: RankedSentence) -> bool:
    """Return whether two sentences have nearly the same words, but not the same text, in different documents with the
    same name, apart from numbers."""
    sources = one.hit.entry.source, other.hit.entry.source
    if not sources[0] or not sources[1] or sources[0].document_id == sources[1].document_id:
        return False
    if _name(one.hit) != _name(other.hit):
        return False  # documents about two things, such as the contracts of two people
    words = set(_WORD.findall(one.text.casefold())), set(_WORD.findall(other.text.casefold()))
    alike = len(words[0] & words[1]) >= _SAME * max(1, len(words[0] | words[1]))
    return alike and " ".join(one.text.split()) != " ".join(other.text.split())


def _name(hit: Hit) -> str:
    """Return the letters of the name of the document of a hit, in a form that can be compared."""
    return "".join(_WORD.findall(hit.entry.source.name.casefold())) if hit.entry.source else ""


def _date_of(hit: Hit, hits: Sequence[Hit]) -> date | None:
    source = hit.entry.source
    if source is None:
        return None
    own = [
        each.entry.content for each in hits if each.entry.source and each.entry.source.document_id == source.document_id
    ]
    return _latest(source.name) or max(filter(None, map(_latest, own)), default=None)


def _latest(text: str) -> date | None:
    """Return the last day that a text names. A year is its first day."""
    days = [days.last for days in find_date_ranges(text, None)]
    return max([*days, *(date(int(year), 1, 1) for year in _YEAR.findall(text))], default=None)
