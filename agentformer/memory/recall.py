"""`Recall`: a memory search with its ranking, and the reason why a search found nothing."""

from __future__ import annotations

import dataclasses

from agentformer.records import fields
from agentformer.records.scopes import effective_salience
from agentformer.search.newest_facts import latest_first
from agentformer.search.relevance import EntryLanguages, relevant_hits
from agentformer.types import Decay, Hit, Hits, MemoryBackend, Query

_COMPARED = 30  # hits that are compared with each other to find the relevant hits
_ARCHIVED = 30  # archived entries that are searched to find a reason
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
    above = (hit for hit in hits if hit.lexical_rank is not None or (hit.dense_score or 0.0) >= floor)
    return Hits(above, hits.warnings)


class Recall:
    """Searches a backend and ranks the hits by salience, relevance and recency."""

    def __init__(self, backend: MemoryBackend, *, noise_floor: float) -> None:
        self._backend = backend
        self._noise_floor = noise_floor

    def search(self, query: Query, *, min_score: float = 0.0, relevant_only: bool = False) -> Hits:
        """Return the best `query.limit` hits, best first. If there is no hit, a warning gives the reason."""
        count = min(max(query.limit + EXTRA_HITS, _COMPARED if relevant_only else 0), fields.MAX_LIMIT)
        wider = dataclasses.replace(query, limit=count)
        hits = self._backend.search(wider)
        languages = EntryLanguages()
        ranked = weigh_by_salience(hits, query.scope.decay)
        if relevant_only:
            ranked = relevant_hits(query.text, ranked, languages)  # tolerates misspelt words
        elif query.mode == "hybrid":
            ranked = above_noise(ranked, self._noise_floor)
        best = latest_first([hit for hit in ranked if hit.score >= min_score], languages)[: query.limit]
        return Hits(best, hits.warnings) if best else Hits((), (*hits.warnings, *self._why_nothing(wider)))

    def _why_nothing(self, query: Query) -> tuple[str, ...]:
        """Return the reason for an empty result. No other namespace is named: the caller may not see it."""
        scope = query.scope
        everything = dataclasses.replace(scope, include_archived=True)
        if not query.text.strip() or self._backend.count(everything) == 0:
            exists = scope.namespace in self._backend.namespaces()
            return () if exists else (f"namespace {scope.namespace!r} has no entries in this scope",)
        if scope.include_archived:
            return ()
        hits = self._backend.search(dataclasses.replace(query, scope=everything, limit=_ARCHIVED, min_score=0.0))
        if summarized := sum(hit.entry.archived_by is not None for hit in relevant_hits(query.text, hits)):
            return (f"archived originals of summaries match ({summarized}); set include_archived to find them",)
        return ()
