"""What the memory does with a backend's ranking: salience weighs gently, and what nothing speaks for is left out."""

from __future__ import annotations

import dataclasses

from agentformer.records.salience import effective_salience
from agentformer.types import Decay, Hit, Hits

EXTRA_HITS = 10  # hits beyond the limit that salience may lift into it
_SALIENCE_WEIGHT = 0.1  # of the score of an entry worth nothing; it falls back and does not vanish


def weigh_by_salience(hits: Hits, decay: Decay) -> Hits:
    """The hits with scores lessened by what decay has taken from their salience, best first."""

    def one(hit: Hit) -> Hit:
        loss = _SALIENCE_WEIGHT * (1 - effective_salience(hit.entry, decay))
        return dataclasses.replace(hit, score=hit.score * (1 - loss)) if loss else hit

    return Hits(sorted(map(one, hits), key=lambda hit: (-hit.score, hit.entry.id)), hits.warnings)


def above_noise(hits: Hits, floor: float) -> Hits:
    """The hits for which anything speaks: a term of the query, or a cosine of at least `floor`."""
    told = (hit for hit in hits if hit.lexical_rank is not None or (hit.dense_score or 0.0) >= floor)
    return Hits(told, hits.warnings)
