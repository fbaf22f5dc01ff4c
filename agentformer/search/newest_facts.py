"""Newest facts first: if facts in the search results contradict each other, the newest fact gets the best rank.

For example, "Anna lives in Turku" from last year is ranked after "Anna lives in Oslo" from this year. Only the hits of
one search are compared. Two facts contradict each other if they have the same subject and verb, or the same label, but
a different name or number (`text.facts.single_values`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

from agentformer.index.entry_properties import stated_facts
from agentformer.search.relevance import EntryLanguages
from agentformer.types import Hit, MemoryEntry

COMPARED = 40  # number of best hits that are compared
NEAR = 0.7  # a hit gets a better rank only if its score is at least this share of the rank's score
EARLIEST = datetime(1, 1, 1, tzinfo=UTC)


def latest_first(hits: Sequence[Hit], languages: EntryLanguages | None = None) -> list[Hit]:
    """Return the hits in a new order: hits that contradict each other are sorted by time, newest first.

    Hits contradict each other if they have the same owner (see `owner`) but different values for the same fact. Such
    hits only exchange ranks with each other, and other hits keep their ranks. The time of a hit is the time when its
    fact happened. If this time is unknown, the time of storing is used. Each rank keeps its score, so a hit that gets a
    new rank gets the score of this rank. A hit gets a better rank only if its own score is not much lower than the
    score of this rank (`NEAR`).
    """
    languages = languages or EntryLanguages()
    ordered = [*hits]
    for places in _contradictions(hits[:COMPARED], languages):
        times = {place: hits[place].entry.occurred_at or hits[place].entry.created_at or EARLIEST for place in places}
        newest = sorted(places, key=lambda place: (-times[place].timestamp(), place))
        for place in places:
            # There is always a candidate, because the number of candidates equals the number of ranks that are left.
            other = next(n for n in newest if n <= place or hits[n].score >= NEAR * hits[place].score)
            newest.remove(other)
            if place != other:
                ordered[place] = replace(hits[other], score=hits[place].score)
    return ordered


def _contradictions(hits: Sequence[Hit], languages: EntryLanguages) -> list[list[int]]:
    """Return groups of indices into `hits`. The hits of a group have different values for one fact. Each hit is in at
    most one group."""
    facts: defaultdict[tuple[object, ...], dict[int, tuple[str, ...]]] = defaultdict(dict)
    for place, hit in enumerate(hits):
        known = languages.known.get(hit.entry.id)  # the stored facts, which most entries have
        stated = known.facts if known else ((about, value) for about, value, _ in statements(hit.entry, languages))
        for about, value in stated:
            facts[*owner(hit.entry), about].setdefault(place, value)
    groups: list[list[int]] = []
    grouped: set[int] = set()
    for values in facts.values():
        places = [place for place in values if place not in grouped]
        # "Oslo, Norway" does not contradict "Oslo"
        words = (pair for a, b in pairwise(places) for pair in zip(values[a], values[b], strict=False))
        if any(one != other for one, other in words):
            groups.append(places)
            grouped.update(places)
    return groups


def owner(entry: MemoryEntry) -> tuple[object, ...]:
    """Return the properties that two entries must share before their facts are compared. For example, "I live in Turku"
    is a different fact for each speaker, and "Price: 5" is a different fact for each title."""
    owner = (entry.namespace, entry.agent_id, entry.user_id, entry.project)
    speaker = (entry.kind == "message", entry.role, entry.speaker)
    metadata = json.dumps(entry.metadata, sort_keys=True, default=str)
    return (*owner, *speaker, entry.title, entry.source_type, entry.source_id, metadata)


def statements(entry: MemoryEntry, languages: EntryLanguages) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """Yield those facts of an entry that have one value at a time, such as a home address. A new value of such a fact
    replaces the old one. Each item contains the words that name the fact, the words of its value, and its sentence."""
    yield from stated_facts(entry, lambda: languages.of(entry))
