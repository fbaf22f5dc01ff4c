"""How far the vectors may vote beside the words, for one query.

Two things are looked at, both without knowing what is right. How far the nearest entry stands out of the hundred
nearest: where all lie about equally far, their order says little. And how much of the query the best match by words
holds: a question that shares no words with what it is about leaves the words guessing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Chosen on development halves (docs/BENCHMARKS.md); the neighbourhood of each is flat.
_USUAL = 0.7  # of the vectors beside the words, where neither side is more decided than usual
_STANDS_OUT = 4.0  # standard deviations that the nearest entry usually lies above the mean of the nearest
_HELD = 0.3  # of the ideal score of words: below it they have found little of what was asked for
_LEAST, _MOST = 0.15, 2.5
_COMPARED = 100  # nearest entries
_FEW = 10  # entries of which no spread can be told


def vectors_weight(cosines: Sequence[float], best_by_words: float, ideal_by_words: float) -> float:
    """The weight of the vectors beside the words' 1, of what both have found, best first: `cosines` of the nearest
    entries, BM25 of the best match, and what BM25 would give for all the query's words (0: not known)."""
    stand = _stands_out(cosines[:_COMPARED])
    held = best_by_words / ideal_by_words if ideal_by_words > 0 else _HELD
    lost = max(1.0, _HELD / held) if held > 0 else _MOST
    return min(_MOST, max(_LEAST, _USUAL * lost * math.sqrt(stand / _STANDS_OUT)))


def _stands_out(cosines: Sequence[float]) -> float:
    if len(cosines) < _FEW:
        return _STANDS_OUT
    spread = statistics.pstdev(cosines)
    return max(0.0, cosines[0] - statistics.fmean(cosines)) / spread if spread > 0 else 0.0
