"""`Recall`: searches a memory, ranks the hits, and gives the reason if a search finds nothing."""

from __future__ import annotations

import dataclasses

from agentformer.records import fields
from agentformer.records.scopes import effective_salience
from agentformer.search.newest_facts import latest_first
from agentformer.search.relevance import Nearness, relevant_hits
from agentformer.search.statements import name_originals
from agentformer.types import Decay, Embedder, Hit, Hits, MemoryBackend, Query

_COMPARED = 30  # hits that are compared with each other to find the relevant hits
_ARCHIVED = 30  # maximum hits, with archived entries, among which the reason for an empty result is searched
EXTRA_HITS = 10  # additional hits that the backend returns, because salience can move them up
_SALIENCE_WEIGHT = 0.1  # share of the score that a hit loses if the salience of its entry is 0


def weigh_by_salience(hits: Hits, decay: Decay) -> Hits:
    """Return the hits with new scores, best first. A score stays the same if the salience (importance) of the entry
    after `decay` is 1, and is lowered by 10% if it is 0."""

    def weighed(hit: Hit) -> Hit:
        loss = _SALIENCE_WEIGHT * (1 - effective_salience(hit.entry, decay))
        return dataclasses.replace(hit, score=hit.score * (1 - loss)) if loss else hit

    return hits.with_hits(sorted(map(weighed, hits), key=lambda hit: (-hit.score, hit.entry.id)))


def above_noise(hits: Hits, floor: float, nearness: Nearness) -> Hits:
    """Return the hits that contain a term of the query, or whose `nearness` is at least `floor` (-1..1). If the search
    could use only words or only vectors, return all hits, because it is unknown which of them contain a term."""
    if hits.one_sided:
        return hits
    return hits.with_hits(hit for hit in hits if hit.lexical_rank is not None or nearness.of(hit) >= floor)


class Recall:
    """Searches a backend, and ranks the hits by score and salience (importance). Among facts that contradict each
    other, the newest one is ranked first. In a hybrid search by words and vectors, `noise_floor` is the lowest cosine
    of a hit that contains no term of the query, on the scale of `embedders.calibration`."""

    def __init__(self, backend: MemoryBackend, embedder: Embedder, *, noise_floor: float) -> None:
        self._backend = backend
        self._embedder = embedder
        self._noise_floor = noise_floor

    def search(self, query: Query, *, relevant_only: bool = False, noise_floor: float | None = None) -> Hits:
        """Return at most `query.limit` hits with a score of at least `query.min_score`, best first. A given
        `noise_floor` replaces the `noise_floor` of this object. With `relevant_only`, no noise floor is used, and only
        hits that answer the query are returned (see `search.relevance.relevant_hits`). If nothing is found and the
        reason is known, the hits contain a warning with the reason."""
        count = min(max(query.limit + EXTRA_HITS, _COMPARED if relevant_only else 0), fields.MAX_LIMIT)
        wider = dataclasses.replace(query, limit=count, min_score=0.0)  # the salience changes the scores
        hits = self._backend.search(wider)
        nearness = Nearness(hits, self._embedder)
        ranked = weigh_by_salience(hits, query.scope.decay)
        if relevant_only:
            ranked = relevant_hits(query.text, ranked, nearness)  # tolerates misspelt words
        elif query.mode == "hybrid":
            ranked = above_noise(ranked, self._noise_floor if noise_floor is None else noise_floor, nearness)
        found = [hit for hit in ranked if hit.score >= query.min_score]
        others = [hit for hit in nearness.hits if hit.score >= query.min_score] if found else []
        best = latest_first(found, nearness.languages, query.text, others)[: query.limit]
        best = name_originals(best, query.text, self._backend.get)
        return hits.with_hits(best) if best else Hits((), (*hits.warnings, *self._why_nothing(wider)))

    def _why_nothing(self, query: Query) -> tuple[str, ...]:
        """Return a warning with the reason why a search found nothing, or an empty tuple if the reason is unknown. The
        warning names no other namespace, because the caller may not be allowed to see other namespaces."""
        scope = query.scope
        everything = dataclasses.replace(scope, include_archived=True)
        if not query.text.strip() or self._backend.count(everything) == 0:
            exists = scope.namespace in self._backend.namespaces()
            return () if exists else (f"namespace {scope.namespace!r} has no entries in this scope",)
        if scope.include_archived:
            return ()
        hits = self._backend.search(dataclasses.replace(query, scope=everything, limit=_ARCHIVED))
        relevant = relevant_hits(query.text, hits, Nearness(hits, self._embedder))
        if summarized := sum(hit.entry.archived_by is not None for hit in relevant):
            return (f"archived originals of summaries match ({summarized}); set include_archived to find them",)
        return ()
