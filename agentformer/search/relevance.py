"""Which hits bear on the query, and which only came because a search returns its best, however poor that is.

A hit passes for one of three reasons. It is *named*: the query holds the whole of its title or of one of its
aliases (`metadata["aliases"]`). It *holds* what is asked for: enough of the query's terms, weighed by how rare they
are among these hits (inverse document frequency, Spärck Jones 1972), absolutely and beside the best hit; a brief text
need hold only one of the two words of a short query, where no other hit holds it. Or it is *near*: its cosine is
high, absolutely and beside the best. One common word is no reason.

Where a query names something, other hits must hold what the named ones do not: "What is Redis for?" asks for the
entry called Redis, and not for all that mention it. Reads nothing but the hits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentformer.search.query_match import Held, holdings
from agentformer.types import Hit, Hits

# Chosen on nine development sets in six languages, where they keep 96% or more of the right passages among the first
# ten hits; the neighbourhood is flat, so the values are round ones. What shares no word with the query and lies far
# from it is not kept, though a person may see the tie (madial_en; docs/BENCHMARKS.md).
_SHARE = 0.12  # of what is asked for, by weight
_BESIDE = 0.35  # of the best hit's share, or of its BM25 score
_LONG = 10  # terms of a query: of a longer one, no short memory can hold the same share
_ALONE = 0.6  # the share at which a single term is enough: it is most of the query;
_RARE = 6.0  # or its BM25 score, which a term has that few entries of a large store hold;
_RARE_BESIDE = 0.6
_AGREED = 0.35  # or the cosine that confirms it
_NEAR = 0.5  # cosine that needs no words: unrelated sentences of SBERT models stay below .4
_NEAR_BESIDE = 0.75  # of the best cosine
_SHORT = 2  # terms of a query: of so few, one that no other hit holds is enough
_BRIEF = 12  # for a hit of at most so many terms, which says little else
_COMMON_NAME = 4  # a name that more than a quarter of the hits bear tells none of them apart,
_FEW = 2  # unless these are all


def relevant_hits(text: str, hits: Hits) -> Hits:
    """The hits that bear on `text`, in their order, with their warnings; none for a blank text.

    Pure. Judges better the more hits there are to compare: ask for some 30, and cut to what is wanted afterwards.
    """
    if not text.strip() or not hits:
        return Hits((), hits.warnings)
    rows = holdings(text, hits)
    named = _named(rows)
    field = _Field(rows, named)
    kept = [row.hit for row in rows if id(row) in named or field.near(row.hit) or field.answers(row)]
    return Hits(kept, hits.warnings)


def _named(rows: Sequence[Held]) -> set[int]:
    """The rows (by `id`) whose name is in the query."""
    bearers = Counter(row.named for row in rows if row.named)
    most = max(_FEW, len(rows) // _COMMON_NAME)
    return {id(row) for row in rows if row.named and bearers[row.named] <= most}


@dataclass(frozen=True, slots=True)
class _Strength:
    """What terms weigh: as a share of the query (0..1), and how many they are."""

    share: float
    count: int


class _Field:
    """All hits of one search, against which each is judged."""

    def __init__(self, rows: Sequence[Held], named: set[int]) -> None:
        self._size = len(rows)
        self._holders = Counter(term for row in rows for term in row.terms)
        self._told = {term for row in rows if id(row) in named for term in row.terms}
        self._best_share = max(self._strength(row, row.terms).share for row in rows)
        self._best_words = max((row.hit.lexical_score or 0.0 for row in rows), default=0.0)
        self._best_cosine = max((_cosine(row.hit) for row in rows), default=0.0)

    def near(self, hit: Hit) -> bool:
        return _cosine(hit) >= max(_NEAR, _NEAR_BESIDE * self._best_cosine)

    def answers(self, row: Held) -> bool:
        """Do the words that the hit holds, and that no named hit holds, suffice?"""
        rest = self._strength(row, [term for term in row.terms if term not in self._told])
        if rest.count == 1:
            return self._one_is_enough(row, rest.share)
        return rest.count > 1 and rest.share >= _SHARE and self._beside(row) >= _BESIDE

    def _one_is_enough(self, row: Held, share: float) -> bool:
        if share >= _ALONE or self._only_holder(row):
            return True
        if len(row.terms) == 1 and self._words(row.hit) >= _RARE_BESIDE and (row.hit.lexical_score or 0.0) >= _RARE:
            return True
        agreed = _cosine(row.hit) >= max(_AGREED, _NEAR_BESIDE * self._best_cosine)
        return agreed and share >= _SHARE

    def _only_holder(self, row: Held) -> bool:
        """Does this brief hit alone hold a term of a short query? However few the hits are, it is rare here."""
        short = len(row.asked.terms) <= _SHORT and len(row.stems) <= _BRIEF
        return short and any(self._holders[term] == 1 for term in row.terms)

    def _beside(self, row: Held) -> float:
        """The hit's words beside those of the best hit, 0..1."""
        share = self._strength(row, row.terms).share
        return max(share / self._best_share if self._best_share else 0.0, self._words(row.hit))

    def _words(self, hit: Hit) -> float:
        return (hit.lexical_score or 0.0) / self._best_words if self._best_words else 0.0

    def _strength(self, row: Held, terms: Iterable[str]) -> _Strength:
        """Of the query in the row's language, whose weightiest terms alone count where it is long."""
        asked: Mapping[str, float] = {term: self._weight(term) for term in row.asked.terms}
        chosen = [asked[term] * row.terms[term] for term in terms]
        whole = sum(sorted(asked.values())[-_LONG:])
        return _Strength(min(1.0, sum(chosen) / whole) if whole else 0.0, len(chosen))

    def _weight(self, term: str) -> float:
        """Rarity among the hits: highest for what none holds."""
        return math.log(1 + self._size / (0.5 + self._holders[term]))


def _cosine(hit: Hit) -> float:
    """0 where no vector was compared, or the embedder had no vote."""
    return hit.dense_score if hit.dense_score is not None and hit.dense_rank is not None else 0.0
