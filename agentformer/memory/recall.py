"""`Recall`: searches a memory, ranks the hits, and gives the reason if a search finds nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from agentformer.memory.instructions import instructions_in_scope, instructions_of
from agentformer.records import fields
from agentformer.search import pipeline
from agentformer.search.message_ranking import name_originals
from agentformer.search.newest_facts import COMPARED, FactComparison, latest_first
from agentformer.search.relevance import Nearness, relevant_hits
from agentformer.text.analysis import MAX_QUERY
from agentformer.types import Embedder, Hits, MemoryBackend, MemoryEntry, Query, Scope

_COMPARED = 30  # hits that are compared with each other to find the relevant hits
_ARCHIVED = 30  # maximum hits, with archived entries, among which the reason for an empty result is searched
_INSTRUCTIONS = 2  # standing instructions that a search adds
_ROOM = 5  # least limit of a search that adds instructions


class Recall:
    """Searches a backend, and ranks the hits by the steps of `search.pipeline`. In a hybrid search by words and
    vectors, `noise_floor` is the lowest cosine of a hit that contains no term of the query, on the scale of
    `embedders.calibration`."""

    def __init__(self, backend: MemoryBackend, embedder: Embedder, *, noise_floor: float) -> None:
        self._backend = backend
        self._embedder = embedder
        self._noise_floor = noise_floor

    def search(self, query: Query, *, relevant_only: bool = False, noise_floor: float | None = None) -> Hits:
        """Return at most `query.limit` hits with a score of at least `query.min_score`, best first. A given
        `noise_floor` replaces the `noise_floor` of this object. With `relevant_only`, no noise floor is used, and only
        hits that answer the query are returned (see `search.relevance.relevant_hits`). If nothing is found and the
        reason is known, the hits contain a warning with the reason."""
        count = min(max(query.limit + pipeline.EXTRA_HITS, _COMPARED if relevant_only else 0), fields.MAX_LIMIT)
        wider = dataclasses.replace(query, limit=count, min_score=0.0)  # the salience changes the scores
        hits = self._backend.search(wider)
        floor = self._noise_floor if noise_floor is None else noise_floor
        best = pipeline.for_search(hits, query, self._embedder, noise_floor=floor, relevant_only=relevant_only)
        best = self._with_instructions(best, query, floor)
        if best:
            return best.with_hits(name_originals(best, query.text, self._backend.get))
        return best.with_hits((), *self._why_nothing(wider))

    def instructions(self, messages: Iterable[MemoryEntry]) -> Iterator[MemoryEntry]:
        """Yield an entry for each standing instruction in these messages of users."""
        return instructions_of(messages)

    def is_replaced(self, entry: MemoryEntry) -> bool:
        """Return whether another fact of the same owner now holds instead of the fact of this entry."""
        owner = {name: getattr(entry, name) for name in ("namespace", "agent_id", "user_id", "project")}
        hits = self._backend.search(Query(entry.content[:MAX_QUERY], Scope(**owner), limit=COMPARED))
        found = {hit.entry.id: hit for hit in latest_first(hits, FactComparison(vectors=hits.vectors))}
        last = found.get(entry.id)
        while last and last.newer:
            last = found.get(last.newer)
        return last is not None and last.entry.content != entry.content

    def _with_instructions(self, best: Hits, query: Query, floor: float) -> Hits:
        """Return the hits. Standing instructions that bear on the query replace the last ones, because such an
        instruction often shares no word with the query, and hits of the topic stand before it. Its nearness is at least
        `floor`."""
        asked = query.scope
        may_hold = not asked.kinds and asked.document_id is None and (not asked.tiers or "semantic" in asked.tiers)
        if query.limit < _ROOM or query.mode != "hybrid" or not may_hold:
            return best
        scope = instructions_in_scope(asked)
        if not self._backend.count(scope):
            return best
        found = self._backend.search(dataclasses.replace(query, scope=scope, limit=_INSTRUCTIONS, mode="dense"))
        nearness, shown = Nearness(found, self._embedder), {hit.entry.id for hit in best}
        new = [hit for hit in found if nearness.of(hit) >= floor and not {hit.entry.id, hit.entry.parent_id} & shown]
        near = [*{hit.entry.content: hit for hit in new[::-1]}.values()][::-1]  # a repeated one is shown once
        kept = best[: query.limit - len(near)]
        least = kept[-1].score if kept else 1.0
        return best.with_hits([*kept, *(dataclasses.replace(hit, score=min(hit.score, least)) for hit in near)])

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
