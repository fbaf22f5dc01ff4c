"""Newest facts first: if a newer hit replaces the fact of an older one, the newer one gets the better rank.

For example, "Anna lives in Turku" from last year is ranked after "Anna moved to Oslo" from this year. The older hit
stays in the results and names the newer one (`Hit.newer`). Only the hits of one search are compared.
`search.replacement_classifier` decides which statements replace each other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, combinations

import numpy as np

from agentformer.index.entry_properties import fact_keys
from agentformer.search.relevance import EntryLanguages
from agentformer.search.replacement_classifier import LEAST, LEAST_BY_VECTORS, NEAR_COSINE, centred, weights_of
from agentformer.text.facts.replacement_features import Difference, asks_former, difference, features
from agentformer.types import Hit, HitVectors, Matrix, MemoryEntry, Vector

COMPARED = 40  # number of best hits that are compared
_PAIRS = 120  # maximum number of pairs of hits that are compared, the best hits first
NEAR = 0.15  # a hit gets a better rank only if its score is at least this share of the rank's score
_CACHED = 65_536  # pairs of texts whose comparison a process keeps
_DECIDED: dict[tuple[object, ...], bool] = {}
_encode = json.JSONEncoder(sort_keys=True, default=str).encode  # `json.dumps` would create an encoder at each call
EARLIEST = datetime(1, 1, 1, tzinfo=UTC)


class FactComparison:
    """Compares the facts that entries state. `languages` are the languages of the entries. `vectors` are their vectors,
    as far as they are known. The vectors of an encoder without weights (see `search.replacement_classifier`) are not
    used."""

    def __init__(self, languages: EntryLanguages | None = None, vectors: HitVectors | None = None) -> None:
        self.languages = languages or EntryLanguages()
        self._encoder = vectors.encoder if vectors else None
        self._plain, self._weights = weights_of(None), weights_of(vectors.encoder if vectors else None)
        self._vectors = vectors.rows if vectors and self._weights.vectors else {}
        self._places = {entry_id: n for n, entry_id in enumerate(self._vectors)}

    @cached_property
    def _rows(self) -> Matrix:
        """The centred vectors, in the order of `_places`."""
        rows = [*self._vectors.values()]
        return centred(np.array(rows), self._weights.mean) if rows else np.zeros((0, 0), np.float32)

    def keys(self, entry: MemoryEntry) -> tuple[str, ...]:
        """Return the keys of what an entry states (see `text.facts.statement_words.keys`), which most entries have
        stored. An entry without keys states nothing."""
        known = self.languages.known.get(entry.id)
        return known.facts if known else fact_keys(entry, lambda: self.languages.of(entry))

    def vector(self, entry: MemoryEntry) -> Vector | None:
        """Return the centred vector of an entry (see `replacement_classifier.centred`), or None if it is unknown."""
        place = self._places.get(entry.id)
        return None if place is None else self._rows[place]

    def replaced(self, pairs: Sequence[tuple[MemoryEntry, MemoryEntry]]) -> list[bool]:
        """Return for each pair of an older and a newer entry whether the newer one replaces the older one."""
        encoder, places = self._encoder, self._places
        names = [  # a hash and not the texts, which may be long
            (hash((older.content, newer.content, older.title)), encoder, older.id in places, newer.id in places)
            for older, newer in pairs
        ]
        unknown = [n for n, name in enumerate(names) if name not in _DECIDED]
        if len(_DECIDED) + len(unknown) > _CACHED:
            _DECIDED.clear()
            unknown = [*range(len(pairs))]
        if unknown:
            _DECIDED.update(zip((names[n] for n in unknown), self._decide([pairs[n] for n in unknown]), strict=True))
        return [_DECIDED.get(name, False) for name in names]  # another thread may have emptied the cache

    def _decide(self, pairs: Sequence[tuple[MemoryEntry, MemoryEntry]]) -> list[bool]:
        """Compare the pairs that are near: those with a key in common or with near vectors. Entries without keys state
        nothing."""
        bits: defaultdict[str, int] = defaultdict(lambda: 1 << len(bits))
        entries = {entry.id: entry for pair in pairs for entry in pair}
        masks = {entry_id: sum({bits[key] for key in self.keys(entry)}) for entry_id, entry in entries.items()}
        places = np.array([[self._places.get(entry.id, -1) for entry in pair] for pair in pairs])
        known = (places >= 0).all(1)
        scores = np.zeros(len(pairs), np.float32)
        near = np.array([masks[older.id] & masks[newer.id] != 0 for older, newer in pairs])
        if known.any():
            rows = [self._rows[places[known, side]] for side in (0, 1)]
            scores[known] = self._weights.by_vectors(*rows)
            near[known] |= np.einsum("ij,ij->i", *rows) >= NEAR_COSINE
        near &= [bool(masks[older.id] and masks[newer.id]) for older, newer in pairs]
        near &= scores >= LEAST_BY_VECTORS
        found = [features(*self._texts(*pair)) if use else () for pair, use in zip(pairs, near, strict=True)]
        stated = np.array([*map(bool, found)])
        for use, weights in ((stated & ~known, self._plain), (stated & known, self._weights)):
            if use.any():
                scores[use] += weights.by_words(np.array([found[n] for n in np.flatnonzero(use)], np.float32))
        return [bool(score) for score in stated & (scores > LEAST)]

    def difference(self, older: MemoryEntry, newer: MemoryEntry) -> Difference:
        """Return in what a newer entry that replaces an older one differs from it."""
        return difference(*self._texts(older, newer))

    def _texts(self, older: MemoryEntry, newer: MemoryEntry) -> tuple[str, str, tuple[str, str]]:
        return older.content, newer.content, (self.languages.of(older), self.languages.of(newer))


def latest_first(
    hits: Sequence[Hit], facts: FactComparison | None = None, question: str = "", others: Sequence[Hit] = ()
) -> list[Hit]:
    """Return the hits in a new order: hits that replace each other are sorted by time, newest first.

    A hit replaces an older one if both have the same owner (see `owner`) and the newer one states another value of the
    same fact. The older one then has the id of the newest such hit in `Hit.newer`. Such hits only exchange ranks with
    each other, and other hits keep their ranks. Each rank keeps its score, so a hit that gets a new rank gets the score
    of this rank. A hit gets a better rank only if its own score is not much lower than the score of this rank (`NEAR`).
    If the `question` asks for the past, or names the older value, the ranks stay the same. `others` are hits that the
    search has left out as not relevant. Those that replace one of the `hits` are added."""
    facts = facts or FactComparison()
    known = {hit.entry.id for hit in hits} if others else set()
    compared = [*hits, *(hit for hit in others if hit.entry.id not in known)][:COMPARED]
    newer = _newer(compared, facts)
    added = sorted({place for old, place in newer.items() if old < len(hits) <= place})
    if added:
        return latest_first([*hits, *(compared[place] for place in added)], facts, question)
    newer = {old: place for old, place in newer.items() if old < len(hits)}
    if not newer:
        return [*hits]
    marked = [replace(hit, newer=hits[newer[n]].entry.id) if n in newer else hit for n, hit in enumerate(hits)]
    ordered = [*marked]
    moved = {
        old: new
        for old, new in newer.items()
        if not _is_asked(question, hits[old].entry, hits[new].entry, facts.languages)
    }
    for places in _groups(moved):
        newest = sorted(places, key=lambda place: moment(hits[place].entry), reverse=True)
        for place in places:
            # There is always a candidate: each rank above this one took one hit, so one hit with n <= place is left.
            other = next(n for n in newest if n <= place or hits[n].score >= NEAR * hits[place].score)
            newest.remove(other)
            ordered[place] = replace(marked[other], score=hits[place].score)
    return ordered


def _newer(hits: Sequence[Hit], facts: FactComparison) -> dict[int, int]:
    """Return the places of the hits that a newer hit replaces, each with the place of the newest such hit."""
    owned: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, hit in enumerate(hits):
        owned[owner(hit.entry)].append(place)
    moments = [moment(hit.entry) for hit in hits]
    combined = chain.from_iterable(combinations(places, 2) for places in owned.values() if len(places) > 1)
    pairs = [sorted(pair, key=moments.__getitem__) for pair in sorted(combined)[:_PAIRS]]
    replaced = facts.replaced([(hits[older].entry, hits[newer].entry) for older, newer in pairs])
    newer: dict[int, int] = {}
    for (former, place), found in zip(pairs, replaced, strict=True):
        if found and (former not in newer or moments[place] > moments[newer[former]]):
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
    metadata = _encode(entry.metadata) if entry.metadata else ""
    return (*owner, *speaker, entry.title, entry.source_type, entry.source_id, metadata)
