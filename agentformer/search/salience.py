"""Salience and the noise floor, applied to the hits of a backend."""

from __future__ import annotations

import dataclasses

from agentformer.records.scopes import effective_salience
from agentformer.types import Decay, Hit, Hits

EXTRA_HITS = 10  # hits beyond the limit that salience may lift into it
_SALIENCE_WEIGHT = 0.1  # share of the score that an entry of salience 0 loses


def weigh_by_salience(hits: Hits, decay: Decay) -> Hits:
    """Lower each hit's score by the decay of its salience, and return the hits best first."""

    def weighed(hit: Hit) -> Hit:
        loss = _SALIENCE_WEIGHT * (1 - effective_salience(hit.entry, decay))
        return dataclasses.replace(hit, score=hit.score * (1 - loss)) if loss else hit

    return Hits(sorted(map(weighed, hits), key=lambda hit: (-hit.score, hit.entry.id)), hits.warnings)


def above_noise(hits: Hits, floor: float) -> Hits:
    """Return the hits that hold a term of the query or have a cosine of at least `floor`."""
    kept = (hit for hit in hits if hit.lexical_rank is not None or (hit.dense_score or 0.0) >= floor)
    return Hits(kept, hits.warnings)
