"""Names the best originals of each summary among the hits: the archived entries that answer the query best.

A summary of five messages is found by any of them. A reader who wants the exact words reads the named originals only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from agentformer.search.statements import is_question, stated
from agentformer.text.analysis import QueryTerms, analyze_query, text_terms
from agentformer.text.languages import detect_language
from agentformer.types import Hit, MemoryEntry, Original

BEST = 2  # originals that are named
_READ = 4_000  # code points of an original that are read
_QUESTION_LOSS = 0.3  # share of its score that a question loses
_ANSWER_GAIN = 0.6  # share of the score of a question that the next original gains
_LENGTH_GAIN = 0.2  # is added to the score of an original that states something

Get = Callable[[Sequence[str]], Sequence[MemoryEntry]]


def name_originals(hits: Sequence[Hit], query: str, get: Get) -> list[Hit]:
    """Return the hits with the best originals of each summary, best first. The function `get` returns entries by id.
    Originals of another user or project than the summary are not named."""
    ids = {hit.entry.id: [link.id for link in hit.entry.derived_from] for hit in hits if hit.entry.kind == "summary"}
    wanted = list(dict.fromkeys(original for group in ids.values() for original in group))
    if not wanted:
        return list(hits)
    entries = {entry.id: entry for entry in get(wanted)}
    terms = analyze_query(query)

    def named(hit: Hit) -> Hit:
        originals = [entries[name] for name in ids.get(hit.entry.id, ()) if name in entries]
        best = best_originals([each for each in originals if _owner(each) == _owner(hit.entry)], terms)
        return replace(hit, originals=tuple(map(_place, best))) if best else hit

    return [named(hit) for hit in hits]


def best_originals(originals: Sequence[MemoryEntry], query: QueryTerms) -> list[MemoryEntry]:
    """Return the originals that answer the query best, best first. `originals` are in the order of their time. The
    words of the query count by their rarity among the originals, and the answer to a question gains by the question."""
    texts = [entry.content[:_READ] for entry in originals]
    stems = [_stems(entry, text, query) for entry, text in zip(originals, texts, strict=True)]
    frequency = Counter(term for terms in stems for term in terms)
    rarity = {term: math.log(1 + len(texts) / count) for term, count in frequency.items()}
    shared = [sum(rarity[term] for term in terms) / (sum(rarity.values()) or 1.0) for terms in stems]
    scores = []
    for place, text in enumerate(texts):
        score = shared[place] * (1 - _QUESTION_LOSS * is_question(text)) + _LENGTH_GAIN * stated(text)
        if place and is_question(texts[place - 1]):
            score += _ANSWER_GAIN * shared[place - 1]
        scores.append(score)
    order = sorted(range(len(originals)), key=lambda place: -scores[place])
    return [originals[place] for place in order[:BEST]]


def _stems(entry: MemoryEntry, text: str, query: QueryTerms) -> set[str]:
    """Return the terms that an original has in common with the query. The speaker belongs to the original."""
    language = detect_language(text, query.language)
    own = text_terms(f"{entry.speaker}\n{entry.title}\n{text}", language).stems
    return {*query.terms((language,)).stems} & {*own}


def _owner(entry: MemoryEntry) -> tuple[object, ...]:
    return entry.namespace, entry.user_id, entry.project


def _place(entry: MemoryEntry) -> Original:
    moment = entry.occurred_at or entry.created_at
    return Original(entry.id, entry.session_id, entry.speaker or entry.role or "", moment)
