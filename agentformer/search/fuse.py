"""One order out of what vectors and words have found: what each side weighs for this query, and what else votes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from agentformer.index.words.query import WordHits
from agentformer.search.boosts import date as periods
from agentformer.search.boosts import document as siblings
from agentformer.search.boosts import title as mentions
from agentformer.search.boosts.date import Asked
from agentformer.search.fusion import FusionOptions, Side, fused, merge
from agentformer.search.rescoring import Ranked
from agentformer.search.weights import vectors_weight
from agentformer.types import Vote

VECTORS, WORDS, PERIOD, MENTIONS = "vectors", "words", "period", "mentions"


class Joined:
    """Entries with scores in 0..1, best first, and what voted for each."""

    def __init__(self, sides: Sequence[Side], order: list[tuple[int, float]]) -> None:
        self.order = order
        self._sides = sides
        self._ranks = [{item: rank for rank, item in enumerate(side.items, 1)} for side in sides]

    def has(self, name: str) -> bool:
        """Did this list vote?"""
        return any(side.name == name for side in self._sides)

    def votes(self, num: int) -> tuple[Vote, ...]:
        """The lists that hold the entry, with its rank in each and the list's weight."""
        return tuple(
            Vote(side.name, ranks[num], side.weight)
            for side, ranks in zip(self._sides, self._ranks, strict=True)
            if num in ranks
        )


def joined(
    connection: sqlite3.Connection, fusion: FusionOptions, found: Ranked, matches: WordHits, known: float, time: Asked
) -> Joined:
    """`known` is how much of the texts at hand the embedder knows, 0..1; a side without a vote is left out wholly: its
    ranks would only look like evidence. `time` is what the question speaks of."""
    weight = fusion.dense_weight * known
    if fusion.kind == "adaptive" and weight and matches.entries:
        weight *= vectors_weight(found.scores, matches.scores[0], matches.ideal)
    if weight and not matches.entries:
        weight = 1.0  # it decides alone
    sides = [Side(VECTORS, found.entries, weight, found.scores), Side(WORDS, matches.entries, 1.0, matches.scores)]
    sides = [side for side in sides if side.items and side.weight]
    if fusion.kind == "rrf":
        lists, weights = [side.items for side in sides], [side.weight for side in sides]
        return Joined(sides, merge(lists, weights=weights, k=fusion.rrf_k))
    sides += _others(connection, sides, time)
    return Joined(sides, fused(sides))


def _others(connection: sqlite3.Connection, sides: Sequence[Side], time: Asked) -> list[Side]:
    """Lists of what both sides have found that something else speaks for."""
    order = fused(sides)
    ranked = [num for num, _ in order]
    named = mentions.mentioned(connection, ranked)
    inside = periods.in_periods(connection, ranked, time) if time else []
    others = [
        siblings.of_documents(connection, order),
        Side(MENTIONS, named, mentions.WEIGHT),
        Side(PERIOD, inside, periods.WEIGHT),
    ]
    return [side for side in others if side.items]
