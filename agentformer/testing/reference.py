"""The exact reference: a dictionary of entries, a scope as plain Python, and cosines by NumPy over every window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.records.scopes import effective_salience
from agentformer.text.chunking import windows
from agentformer.types import UNSEARCHED_KINDS, Embedder, Hit, MemoryEntry, Query, Scope, new_id

COSINE_TOLERANCE = 1e-5  # float32 sums in another order


def make_entry(content: str, **fields: Any) -> MemoryEntry:
    """An entry with a fresh id, unless one is given."""
    return MemoryEntry(**{"id": new_id(), "content": content, **fields})


def json_equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: numbers by value, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)


def admits(scope: Scope, entry: MemoryEntry) -> bool:
    """Whether a call within `scope` may see `entry`."""
    at = entry.occurred_at
    return (
        entry.namespace == scope.namespace
        and (not scope.tiers or entry.tier in scope.tiers)
        and (not scope.kinds or entry.kind in scope.kinds)
        and (not scope.categories or entry.category in scope.categories)
        and scope.session_id in (None, entry.session_id)
        and scope.agent_id in (None, entry.agent_id)
        and (scope.user_id in (None, entry.user_id) or (scope.or_nobody and entry.user_id is None))
        and (scope.project in (None, entry.project) or (scope.or_nobody and entry.project is None))
        and scope.parent_id in (None, entry.parent_id)
        and scope.source_type in (None, entry.source_type)
        and scope.source_id in (None, entry.source_id)
        and scope.document_id in (None, entry.source.document_id if entry.source else None)
        and (scope.occurred_from is None or (at is not None and at >= scope.occurred_from))
        and (scope.occurred_to is None or (at is not None and at < scope.occurred_to))
        and all(key in entry.metadata and json_equal(entry.metadata[key], v) for key, v in scope.metadata.items())
        and effective_salience(entry, scope.decay) >= scope.min_salience
        and (scope.include_archived or (entry.archived_at is None and entry.superseded_by is None))
    )


class Reference:
    """What a backend should hold and find."""

    def __init__(self, entries: Iterable[MemoryEntry] = (), embedder: Embedder | None = None) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self._embedder: Embedder = embedder or HashingEmbedder()

    def list(self, scope: Scope) -> list[MemoryEntry]:
        return sorted((e for e in self.entries.values() if admits(scope, e)), key=lambda entry: entry.id)

    def cosines(self, query: Query) -> dict[str, float]:
        """Of every entry that the search may return: the cosine of its best window."""
        vector = self._embedder.embed_query(query.text)
        found: dict[str, float] = {}
        for entry in self.list(query.scope):
            spans = windows(entry.content, self._embedder.token_spans, self._embedder.space.max_tokens)
            if spans and entry.kind not in UNSEARCHED_KINDS:
                rows = self._embedder.embed_documents([entry.content[start:end] for start, end in spans])
                found[entry.id] = float(np.max(rows @ vector))
        return found

    def check_dense(self, query: Query, hits: Sequence[Hit]) -> None:
        """The hits are the exact best ones in the exact order; entries with equal cosines may change places."""
        expected = self.cosines(query)
        best = sorted(expected.values(), reverse=True)[: query.limit]
        assert len(hits) == len(best), (query, len(hits), len(best))
        assert len({hit.entry.id for hit in hits}) == len(hits)
        for hit, cosine in zip(hits, best, strict=True):
            assert hit.entry.id in expected, f"{hit.entry} is outside {query.scope}"
            assert hit.dense_score is not None
            assert abs(hit.dense_score - expected[hit.entry.id]) < COSINE_TOLERANCE, (hit, expected[hit.entry.id])
            assert abs(hit.dense_score - cosine) < COSINE_TOLERANCE, (hit, cosine)
