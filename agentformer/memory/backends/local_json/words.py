"""Word search over records in memory, in one pass over all of them.

BM25 (Robertson and Zaragoza 2009) with the formula, terms and weights of the embedded backend's word index, so
that both come to the same scores.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from agentformer.index.words.index import BOOSTS
from agentformer.memory.backends.local_json.record import Analysed, Record
from agentformer.text.analysis import query_terms
from agentformer.types import UNSEARCHED_KINDS, MemoryEntry

_K1 = 1.2  # how soon more of the same word stops to matter
_B = 0.75  # how much a long text is held to say less by each word


def ranked(records: Iterable[Record], text: str, admits: Callable[[MemoryEntry], bool]) -> list[tuple[Record, float]]:
    """The admitted records that hold a word of `text`, with their scores, best first, equal ones by id.

    How rare a word is, is judged by all `records`, so that a score does not depend on the scope.
    """
    searched = [record for record in records if record.entry.kind not in UNSEARCHED_KINDS]
    analysed = [record.analysed for record in searched]
    terms = query_terms(text, sorted({each.language for each in analysed}))
    scores: dict[int, float] = defaultdict(float)
    for field, boost in BOOSTS.items():
        _add(scores, analysed, field, Counter(getattr(terms, field)), boost)
    found = [(searched[n], score) for n, score in scores.items() if admits(searched[n].entry)]
    return sorted(found, key=lambda item: (-item[1], item[0].entry.id))


def _add(scores: dict[int, float], analysed: list[Analysed], field: str, wanted: Counter[str], boost: float) -> None:
    """Add what one field tells about each text, term by term, so that equal texts come to equal sums."""
    average = sum(each.lengths[field] for each in analysed) / max(1, len(analysed))
    holders: dict[str, list[tuple[int, int]]] = {term: [] for term in wanted}
    for n, each in enumerate(analysed):
        counts = each.counts[field]
        for term in wanted.keys() & counts.keys():
            holders[term].append((n, counts[term]))
    for term, held in holders.items():
        rarity = math.log(1 + (len(analysed) - len(held) + 0.5) / (len(held) + 0.5))
        for n, count in held:
            length = _K1 * (1 - _B + _B * analysed[n].lengths[field] / average)
            scores[n] += boost * wanted[term] * rarity * count * (_K1 + 1) / (count + length)
