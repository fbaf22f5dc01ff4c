"""Fusion of several ranked lists into one list, and the weight of the vectors for one query.

`merge` is weighted reciprocal rank fusion (Cormack, Clarke, Buettcher, SIGIR 2009). `fuse` is the default of hybrid
search. In addition to ranks, it uses how close the score of an item is to the first score of its list.

The weight of the vectors depends on three measurements, and none of them needs the right answer. The first is how well
the embedder covers the languages of the query and of its passages. The second is the distance of the nearest entry from
the other near entries: if all distances are about equal, the order of the entries says little. The third is the share
of the query that the best match by words contains.
"""

from __future__ import annotations

import math
import re
import statistics
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, TypeVar

from agentformer.errors import InvalidInput
from agentformer.text.analysis import QueryTerms
from agentformer.text.languages import detect_language
from agentformer.types import Embedder, EmbeddingSpace, Vote

Key = TypeVar("Key", bound=Hashable)

# Both values were chosen on development halves (docs/BENCHMARKS.md). Nearby values give similar results.
_K = 8
_CLOSENESS = 0.7  # share of a list's score that depends on scores; the remaining share depends on ranks
_COMPARED = 100  # number of places that are compared with the first, whatever the limit

# These values were chosen on development halves (docs/BENCHMARKS.md). Nearby values give similar results.
_USUAL = 0.7  # weight of the vectors for an average query; the weight of the words is 1
_USUAL_DEVIATIONS = 4.0  # usual distance of the nearest entry from the mean of the near entries, in standard deviations
_USUAL_SHARE = 0.3  # share of the ideal BM25 score; below it, the words have found little of the query
_LEAST, _MOST = 0.15, 2.5
_NEAREST = 100  # number of nearest entries
_FEW = 10  # with so few entries, a standard deviation is not useful

_WORD = re.compile(r"[^\W\d_]{3,}")  # numbers and short function words say little about a language
# Tokens per word: an English model takes about 1.2 for English prose and 2.5 or more for Finnish.
KNOWN = 1.6
UNKNOWN = 2.0
_CACHED_WORDS = 50_000  # number of words that are cached with their number of tokens


class FusionOptions(NamedTuple):
    """The kind of fusion and its weights."""

    kind: str = "adaptive"  # or "rrf": reciprocal ranks with fixed weights, without boosts
    dense_weight: float = 1.0  # of the vectors; "adaptive" multiplies it
    rrf_k: int = 60  # of "rrf"


class RankedList(NamedTuple):
    """A named list of entry numbers, best first. `scores` have any unit and never increase from place to place. Without
    `scores`, only ranks are used."""

    name: str
    items: Sequence[int]
    weight: float
    scores: Sequence[float] = ()


class Ranking:
    """The fused order of several lists, and the votes of each list."""

    def __init__(self, lists: Sequence[RankedList], options: FusionOptions) -> None:
        self.order = (  # entry numbers with scores in 0..1, best first
            merge([ranked.items for ranked in lists], weights=[ranked.weight for ranked in lists], k=options.rrf_k)
            if options.kind == "rrf"
            else fuse(lists)
        )
        self._lists = lists
        self._ranks = [{item: rank for rank, item in enumerate(ranked.items, 1)} for ranked in lists]

    def has(self, name: str) -> bool:
        """Return whether a list with this name has votes."""
        return any(ranked.name == name for ranked in self._lists)

    def votes(self, num: int) -> tuple[Vote, ...]:
        """Return a vote for each list that contains the entry: its rank in the list, and the weight of the list."""
        return tuple(
            Vote(ranked.name, ranks[num], ranked.weight)
            for ranked, ranks in zip(self._lists, self._ranks, strict=True)
            if num in ranks
        )


def merge(
    ranked_lists: Sequence[Sequence[Key]], *, weights: Sequence[float] | None = None, k: int = 60
) -> list[tuple[Key, float]]:
    """Return the items of all lists with a score in 0..1, best first. The score 1 means that the item is first in every
    list with a weight above 0.

    Each list is best first, and ranks start at 1. If a list repeats an item, only its first place counts. Each list
    that contains an item adds `weight / (k + rank)` to its score. So with a larger `k`, first places count less. Items
    with equal scores keep the order in which they first occur. The scores of the lists are not added, because cosine
    and BM25 have different units.

    Raises `InvalidInput` if `weights` does not have one finite number of at least 0 per list, if `k` is below 0, or if
    a text is passed as a list.
    """
    weights = [1.0] * len(ranked_lists) if weights is None else weights
    _check(ranked_lists, weights, k)
    most = sum(weights) / (k + 1)
    if most == 0:
        return []
    scores: dict[Key, float] = {}
    for items, weight in zip(ranked_lists, weights, strict=True):
        if weight:
            for place, item in enumerate(dict.fromkeys(items), k + 1):
                scores[item] = scores.get(item, 0.0) + weight / place
    return _best_first(scores, most)


def fuse(lists: Sequence[RankedList]) -> list[tuple[int, float]]:
    """Return the entries of all lists with a score in 0..1, best first. The score 1 means that the entry is first in
    every list.

    Each list gives an entry a score with two parts. One part is the reciprocal rank. The other part is the closeness: 1
    for the first score of the list, 0 for the hundredth score, and proportional between them. If the first score of a
    list is far above the others, the list raises its first entry more and its other entries less. Min-max normalised
    scores: Bruch, Gai, Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval" (TOIS 2023).
    """
    most = sum(ranked.weight for ranked in lists if ranked.items)
    if not most:
        return []
    scores: dict[int, float] = {}
    for ranked in lists:
        for item, score in zip(ranked.items, _list_scores(ranked), strict=True) if ranked.weight else ():
            scores[item] = scores.get(item, 0.0) + ranked.weight * score
    return _best_first(scores, most)


def _best_first(scores: dict[Key, float], most: float) -> list[tuple[Key, float]]:
    # `reverse` keeps the order of equal scores.
    return sorted([(item, score / most) for item, score in scores.items()], key=itemgetter(1), reverse=True)


def _list_scores(ranked: RankedList) -> list[float]:
    """Return the score that a list gives to each of its entries, 0..1."""
    by_rank = [(_K + 1) / (_K + rank) for rank in range(1, len(ranked.items) + 1)]
    if not ranked.scores:
        return by_rank
    first, last = ranked.scores[0], ranked.scores[:_COMPARED][-1]
    span = first - last
    closeness = [max(0.0, (score - last) / span) if span > 0 else 1.0 for score in ranked.scores]
    return [(1 - _CLOSENESS) * rank + _CLOSENESS * close for rank, close in zip(by_rank, closeness, strict=True)]


def _check(ranked_lists: Sequence[Sequence[Key]], weights: Sequence[float], k: int) -> None:
    for items in ranked_lists:
        if isinstance(items, (str, bytes)):  # the letters of a text would be treated as items
            raise InvalidInput("ranked_lists", "must be lists of items, and one of them is a text")
    if len(weights) != len(ranked_lists) or not all(0 <= weight < math.inf for weight in weights):
        wanted = "must be one weight of at least 0 for each list"
        raise InvalidInput("weights", f"{wanted}, got {len(weights)} for {len(ranked_lists)}")
    if k < 0:
        raise InvalidInput("k", f"must be at least 0, got {k}")


def vectors_weight(cosines: Sequence[float], best_bm25: float, ideal_bm25: float) -> float:
    """Return the weight of the vectors. The weight of the words is 1.

    `cosines` are the cosines of the nearest entries, best first. `best_bm25` is the score of the best match by words.
    `ideal_bm25` is the score of an entry that contains all words of the query (0: unknown).
    """
    share = best_bm25 / ideal_bm25 if ideal_bm25 > 0 else _USUAL_SHARE
    lost = max(1.0, _USUAL_SHARE / share) if share > 0 else _MOST
    decisiveness = math.sqrt(_deviations(cosines[:_NEAREST]) / _USUAL_DEVIATIONS)
    return min(_MOST, max(_LEAST, _USUAL * lost * decisiveness))


def _deviations(cosines: Sequence[float]) -> float:
    """Return the distance of the first cosine from the mean, in standard deviations."""
    if len(cosines) < _FEW:
        return _USUAL_DEVIATIONS
    spread = statistics.pstdev(cosines)
    return max(0.0, cosines[0] - statistics.fmean(cosines)) / spread if spread > 0 else 0.0


class LanguageCoverage:
    """An embedder's coverage of languages: 1 if it knows the language of a text, 0 if it does not. Thread-safe.

    If a model declares its languages, the declaration is used. For other models the tokenizer decides. A word in a
    language of its training is one or two tokens, and a word in another language is many tokens (Rust et al. 2021, "How
    Good is Your Tokenizer?").
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._tokens: tuple[EmbeddingSpace | None, dict[str, int]] = None, {}  # number of tokens by word

    @property
    def varies(self) -> bool:
        """True if the coverage is different for different texts."""
        return self._embedder.space.languages != "*"

    def of(self, texts: Sequence[str]) -> float:
        """Return the coverage of all texts together, 0..1."""
        declared = self._embedder.space.languages
        if declared == "*":
            return 1.0
        if declared:
            return self._declared(declared, detect_language(" \n".join(texts)))
        fertility = self.fertility(" \n".join(texts))
        return min(1.0, max(0.0, (UNKNOWN - fertility) / (UNKNOWN - KNOWN)))

    def of_query(self, query: QueryTerms) -> float:
        """Return the coverage of a query, 0..1."""
        declared = self._embedder.space.languages
        return self._declared(declared, query.language) if declared not in ("", "*") else self.of([query.text])

    def of_search(self, query: QueryTerms, by_words: Sequence[str], by_vectors: Callable[[], Sequence[str]]) -> float:
        """Return the coverage of a query and its best passages, 0..1.

        A name is the same in many languages. So if the passages found by words have another language than the query,
        the passages found by vectors are used as well. A query without such passages is a name or a typing error, and
        the vectors are used for it.
        """
        alone = self.of_query(query)
        if not by_words:
            return alone if query.language else 1.0
        together = self.of([query.text, *by_words])
        same_language = detect_language("\n".join(by_words)) in ("", query.language) if query.language else True
        if together >= alone or same_language:
            return together
        nearest = [self.of([text]) for text in by_vectors()]
        return max(together, alone * sum(nearest) / len(nearest)) if nearest else together

    def fertility(self, text: str) -> float:
        """Return the number of tokens per word. Return 1.0 for a text without words."""
        words = _WORD.findall(text)
        if not words:
            return 1.0
        space = self._embedder.space
        cached_space, counts = self._tokens
        if cached_space != space or len(counts) > _CACHED_WORDS:
            counts = {}
            self._tokens = space, counts
        new = [word for word in dict.fromkeys(words) if word not in counts]
        if new:
            counts.update(zip(new, _token_counts(self._embedder, new), strict=True))
        return sum(counts[word] for word in words) / len(words)

    def _declared(self, declared: str, language: str) -> float:
        return float(not language or language in declared.split())


def _token_counts(embedder: Embedder, words: Sequence[str]) -> list[int]:
    """Return the number of tokens of each word. The tokenizer is called once for all words."""
    ends = list(accumulate(len(word) + 1 for word in words))  # token count of each word and the space after it
    counts = [0] * len(words)
    for span in embedder.token_spans(" ".join(words)):
        counts[min(bisect_left(ends, span.end), len(words) - 1)] += 1
    return counts
