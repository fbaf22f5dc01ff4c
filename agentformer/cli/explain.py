"""Explanations of a search in plain words: the ranks of a hit, and the weight of the vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentformer.types import Factor, Hit, Vote

# Name of a ranked list -> the property by which the list ranks.
_RANKED_BY = {
    "words": "words",
    "vectors": "meaning",
    "document": "its document",
    "mentions": "names in the query or the best hits",
    "identifiers": "codes in the query",
    "period": "time",
    "statements": "what it states",
    "reranker": "reranker",
}
_SIDES = ("words", "vectors")  # these lists rank all entries; a hit that is not in a list was not found by it
_FACTORS = {
    "setting": "the setting dense_weight",
    "language": "the embedder's knowledge of the language",
    "usual": "the usual weight",
    "missed": "words of the query that the best hits lack",
    "distance": "how far the nearest hit stands out",
    "least": "the least weight: no hit stands out",
    "most": "the greatest weight: words find little",
    "code": "a question for source code",
    "long": "long passages",
    "alone": "no hit has the words",
}
_RERANKER = "reranker"  # decides the order of its hits alone, so its weight is not shown


def explain_weight(factors: Sequence[Factor]) -> str:
    """Return a text with the weight of the vectors and its factors, such as `Weight of meaning: 2.1 = 0.7 (the usual
    weight) x 3 (a question for source code)`. Factors of 1 are left out."""
    weight = math.prod(factor.value for factor in factors)
    told = [factor for factor in factors if factor.value != 1] or factors[:1]
    reasons = (f"{factor.value:.2g} ({_FACTORS.get(factor.name, factor.name)})" for factor in told)
    return f"Weight of meaning: {weight:.2g} = {' x '.join(reasons)}"


def explain_ranks(hits: Sequence[Hit]) -> list[str]:
    """Return a text for each hit with the rank of the hit in each ranked list, such as `1st by words (weight 1), 4th by
    meaning (weight 0.45)`.

    If the list of the words, of the vectors or of the reranker has other hits but not this hit, the text says so.
    """
    lists = {vote.name for hit in hits for vote in hit.votes}
    ranks = []
    for hit in hits:
        missing = lists - {vote.name for vote in hit.votes}
        parts = [_rank(vote, hit) for vote in hit.votes]
        parts += [f"not found by {_RANKED_BY[side]}" for side in _SIDES if side in missing]
        parts += ["not scored by reranker"] if _RERANKER in missing else []
        ranks.append(", ".join(parts) if hit.votes else "no ranks")
    return ranks


def _rank(vote: Vote, hit: Hit) -> str:
    ending = "th" if vote.rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(vote.rank % 10, "th")
    rank = f"{vote.rank}{ending} by {_RANKED_BY.get(vote.name, vote.name)}"
    if vote.name == _RERANKER:
        return f"{rank}, which decides"
    score = ""
    if vote.name == "words" and hit.lexical_score is not None:
        score = f", BM25 {hit.lexical_score:.1f}"
    if vote.name == "vectors" and hit.dense_score is not None:
        score = f", cosine {hit.dense_score:.2f}"
    return f"{rank} (weight {vote.weight:.2g}{score})"
