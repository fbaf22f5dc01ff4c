"""Why a search found nothing, where there is a reason to tell: asked only then, so that it may cost a search more."""

from __future__ import annotations

import dataclasses

from agentformer.search.relevance import relevant_hits
from agentformer.types import MemoryBackend, Query

_JUDGED = 30  # archived entries that are looked at


def why_nothing(backend: MemoryBackend, query: Query) -> tuple[str, ...]:
    """Reasons in plain words. Other namespaces are not named: who asks may have no business with them."""
    scope = query.scope
    everything = dataclasses.replace(scope, include_archived=True)
    if not query.text.strip() or backend.count(everything) == 0:
        place = f"namespace {scope.namespace!r}"
        return (f"{place} holds nothing in this scope",) if scope.namespace not in backend.namespaces() else ()
    if scope.include_archived:
        return ()
    hits = backend.search(dataclasses.replace(query, scope=everything, limit=_JUDGED, min_score=0.0))
    behind = sum(hit.entry.archived_by is not None for hit in relevant_hits(query.text, hits))
    return (f"summaries stand for entries that bear on it ({behind}); include_archived finds them",) if behind else ()
