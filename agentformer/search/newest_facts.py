"""Newest facts first: if a newer hit replaces the fact of an older one, the newer one gets the better rank.

For example, "Anna lives in Turku" from last year is ranked after "Anna moved to Oslo" from this year. The older hit
stays in the results and names the newer one (`Hit.newer`). Only the hits of one search are compared.
`text.facts.replacing` decides which statements replace each other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from agentformer.index.entry_properties import fact_keys
from agentformer.search.relevance import EntryLanguages
from agentformer.text.facts.replacing import Replacement, asks_former, replacement
from agentformer.text.facts.statements import compared_keys
from agentformer.types import Hit, MemoryEntry

COMPARED = 40  # number of best hits that are compared
NEAR = 0.15  # a hit gets a better rank only if its score is at least this share of the rank's score
EARLIEST = datetime(1, 1, 1, tzinfo=UTC)


def latest_first(
    hits: Sequence[Hit],
    languages: EntryLanguages | None = None,
    question: str = "",
    others: Sequence[Hit] = (),
) -> list[Hit]:
    """Return the hits in a new order: hits that replace each other are sorted by time, newest first.

    A hit replaces an older one if both have the same owner (see `owner`) and the newer one states another value of the
    same fact. The older one then has the id of the newest such hit in `Hit.newer`. Such hits only exchange ranks with
    each other, and other hits keep their ranks. Each rank keeps its score, so a hit that gets a new rank gets the score
    of this rank. A hit gets a better rank only if its own score is not much lower than the score of this rank (`NEAR`).
    If the `question` asks for the past, or names the older value, the ranks stay the same. `others` are hits that the
    search has left out as not relevant. Those that replace one of the `hits` are added.
    """
    languages = languages or EntryLanguages()
    known = {hit.entry.id for hit in hits} if others else set()
    compared = [*hits, *(hit for hit in others if hit.entry.id not in known)][:COMPARED]
    newer = _newer(compared, languages)
    added = sorted({place for old, place in newer.items() if old < len(hits) <= place})
    if added:
        return latest_first([*hits, *(compared[place] for place in added)], languages, question)
    newer = {old: place for old, place in newer.items() if old < len(hits)}
    if not newer:
        return [*hits]
    marked = [replace(hit, newer=hits[newer[n]].entry.id) if n in newer else hit for n, hit in enumerate(hits)]
    ordered = [*marked]
    moved = {
        old: new for old, new in newer.items() if not _is_asked(question, hits[old].entry, hits[new].entry, languages)
    }
    for places in _groups(moved):
        newest = sorted(places, key=lambda place: moment(hits[place].entry), reverse=True)
        for place in places:
            # There is always a candidate, because the number of candidates equals the number of ranks that are left.
            other = next(n for n in newest if n <= place or hits[n].score >= NEAR * hits[place].score)
            newest.remove(other)
            ordered[place] = replace(marked[other], score=hits[place].score)
    return ordered


def _newer(hits: Sequence[Hit], languages: EntryLanguages) -> dict[int, int]:
    """Return the places of the hits that a newer hit replaces, each with the place of the newest such hit."""
    owned: defaultdict[tuple[object, ...], list[tuple[int, tuple[str, ...]]]] = defaultdict(list)
    for place, hit in enumerate(hits):
        if stated := stated_keys(hit.entry, languages):
            owned[owner(hit.entry)].append((place, stated))
    newer: dict[int, int] = {}
    for group in (group for group in owned.values() if len(group) > 1):
        holders: defaultdict[str, list[int]] = defaultdict(list)  # key -> the places of older hits
        pairs = []
        for place, stated in sorted(group, key=lambda item: moment(hits[item[0]].entry)):
            pairs.append((place, {older for key in compared_keys(stated) for older in holders[key]}))
            for key in stated:
                holders[key].append(place)
        for place, older in reversed(pairs):
            for former in older.difference(newer):
                if replaced(hits[former].entry, hits[place].entry, languages):
                    newer[former] = place
    return newer


def _groups(newer: dict[int, int]) -> Iterator[list[int]]:
    """Yield the places of hits that replace each other, in ascending order. Each place is in one group only."""
    newest: defaultdict[int, set[int]] = defaultdict(set)
    for older, place in newer.items():
        while place in newer:
            place = newer[place]
        newest[place].add(older)
    yield from (sorted({place, *others}) for place, others in newest.items())


def _is_asked(question: str, older: MemoryEntry, newer: MemoryEntry, languages: EntryLanguages) -> bool:
    """Return whether the question asks for the older of two entries."""
    return bool(question) and asks_former(question, older.content, newer.content, languages.of(older))


def moment(entry: MemoryEntry) -> tuple[datetime, str]:
    """Return the time from which a fact holds: `valid_from`, else when it happened, else when it was stored. The id
    orders equal times."""
    return entry.valid_from or entry.occurred_at or entry.created_at or EARLIEST, entry.id


def owner(entry: MemoryEntry) -> tuple[object, ...]:
    """Return the properties that two entries must share before their facts are compared. For example, "I live in Turku"
    is a different fact for each speaker, and "Price: 5" is a different fact for each title."""
    owner = (entry.namespace, entry.agent_id, entry.user_id, entry.project)
    speaker = (entry.kind == "message", entry.role, entry.speaker)
    metadata = json.dumps(entry.metadata, sort_keys=True, default=str) if entry.metadata else ""
    return (*owner, *speaker, entry.title, entry.source_type, entry.source_id, metadata)


def stated_keys(entry: MemoryEntry, languages: EntryLanguages) -> tuple[str, ...]:
    """Return the keys of what an entry states (see `text.facts.statements.keys`), which most entries have stored."""
    known = languages.known.get(entry.id)
    return known.facts if known else fact_keys(entry, lambda: languages.of(entry))


def replaced(older: MemoryEntry, newer: MemoryEntry, languages: EntryLanguages) -> Replacement | None:
    """Return the sentences with which a newer entry replaces an older one of the same owner, or None."""
    codes, labels = (languages.of(older), languages.of(newer)), older.kind != "message"
    return replacement(older.content, newer.content, codes, labels=labels)
