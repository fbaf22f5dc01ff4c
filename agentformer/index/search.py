"""Hybrid search: scope, then both sides, then fusion, then the entries.

The scope is decided by the records and given to both sides as a mask, so that nothing outside it takes a
place in a top-k.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentformer.errors import EmbedderError, SpaceMismatch, StoreDamaged, StoreError
from agentformer.index.dense import DenseIndex
from agentformer.index.following import at_hand, pinned, settled
from agentformer.index.fusion import merge
from agentformer.index.knowledge import Knowledge
from agentformer.index.plan import Plan
from agentformer.index.questions import Questions
from agentformer.index.scoping import Allowed, ScopeCache
from agentformer.index.vectors import Found
from agentformer.index.word_search import Match
from agentformer.index.words import WordIndex
from agentformer.records import entries as records
from agentformer.records.database import Database
from agentformer.records.spaces import active_space, space_of
from agentformer.records.vectors import pending_count
from agentformer.types import Embedder, Hit, Hits, Query, Span

WORDS_FOLDER = "words"
MAX_LIMIT = 10_000  # hits of one search; a list is what `list` is for
_SMALL = 20_000  # changes of a store whose indexes are brought up to date when it is closed
_WITNESSES = 3  # passages looked at to tell the language at hand; a query alone may be mostly names
_WAITING = "{} entries have no vectors yet and are found by words alone; `agentformer reindex` embeds them"
_MOVING = "answered from the former embedding space while the embedder {} is being loaded"
_EXCERPT = 600  # code points of each


class HybridSearch:
    """Searches a folder's records with vectors and words. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        embedder: Embedder,
        *,
        fanout: int,
        rrf_k: int,
        plan: Plan | None = None,
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._dense = DenseIndex(folder, database.store_id, plan)
        self._words = WordIndex(folder / WORDS_FOLDER, database.store_id)
        self._knowledge = Knowledge(embedder)
        self._questions = Questions()
        self._fanout = fanout
        self._rrf_k = rrf_k
        self._scopes = ScopeCache()
        with database.reading() as connection:
            self._opened_at = records.last_change(connection)

    def search(self, query: Query) -> Hits:
        """Best first. With no embedder at hand the words alone decide, and where the word index cannot be written the
        vectors alone; a warning says so."""
        if query.limit < 1 or not query.text.strip():
            return Hits()
        allowed = self._scopes.allowed(self._database, query.scope)
        if not allowed.count:
            return Hits()
        warnings: tuple[str, ...] = ()
        matches: list[Match] = []
        found: list[Found] = []
        wordless: StoreError | None = None
        if query.mode != "dense":
            try:
                self._words.refresh(self._database)
                matches = self._words.search(query.text, query.scope, self._candidates(query), allowed)
            except StoreError as error:
                if query.mode == "lexical" or isinstance(error, StoreDamaged):
                    raise
                wordless = error
        if query.mode != "lexical":
            try:
                found, warnings = self._nearest(query, allowed)
            except SpaceMismatch:
                raise
            except EmbedderError as error:
                if wordless is not None:
                    raise wordless from error
                warnings = (f"searched by words alone: {error}",)
        if wordless is not None:
            warnings = (f"searched by vectors alone: {wordless}", *warnings)
        return Hits(self._hits(query, found, matches), warnings)

    def _waiting(self, query: Query) -> tuple[str, ...]:
        with self._database.reading() as connection:
            waiting = pending_count(connection, query.scope) if pending_count(connection) else 0
        return (_WAITING.format(waiting),) if waiting else ()

    def refresh(self) -> None:
        """Bring both indexes up to date now, also on disk, instead of at the next search."""
        self._words.flush(self._database)
        self._dense.refresh(self._database)

    def catches_up_soon(self) -> bool:
        """Is following the newest changes a matter of moments, and has anything changed since it was opened?"""
        with self._database.reading() as connection:
            changes = records.last_change(connection)
            return changes != self._opened_at and changes <= _SMALL

    def save(self) -> None:
        """Write a snapshot of the vector index where that is worth it."""
        self._dense.save()

    def close(self) -> None:
        """End what is written in the background, and write what waits for it."""
        self._dense.close()
        self._words.close(self._database)

    def discard(self) -> None:
        """Delete what the indexes keep on disk, for the sake of what must not be found there any more. Raises
        `OSError`, also where another process writes meanwhile; then it is to be done again."""
        try:
            self._words.discard()
        finally:
            self._dense.discard()

    def settle(self) -> None:
        """Train the vector index now where that is due, and wait for it."""
        self._dense.settle(self._database)

    def status(self) -> dict[str, Any]:
        """The state of the vector index, as JSON values."""
        return self._dense.status()

    def _candidates(self, query: Query) -> int:
        return min(max(self._fanout, query.limit), MAX_LIMIT)

    def _nearest(self, query: Query, allowed: Allowed) -> tuple[list[Found], tuple[str, ...]]:
        """The dense side, with exact cosines, and warnings. Query and index are of one space, also while the store
        moves."""
        while True:
            with self._database.reading() as connection:
                stored = active_space(connection)
            if stored is None:
                return [], self._waiting(query)
            embedder = at_hand(self._embedder, stored[1])
            if embedder is None:
                former = self._nearest_of_former(query, allowed)
                if former is not None:
                    return former, (_MOVING.format(stored[1].spec),)
                embedder = pinned(self._embedder, stored[1])
            vector = self._questions.embed(embedder, stored[0], query.text)
            self._dense.refresh(self._database)
            found = self._dense.search(self._database, stored[0], vector, self._candidates(query), allowed)
            if found is not None:
                return found, self._waiting(query)

    def _nearest_of_former(self, query: Query, allowed: Allowed) -> list[Found] | None:
        """By the index and the embedder from before a move; None where they are not at hand or not of one space."""
        embedder, number = settled(self._embedder), self._dense.space
        with self._database.reading() as connection:
            former = space_of(connection, number)
        if former is None or former.difference(embedder.space):
            return None
        vector = self._questions.embed(embedder, number, query.text)
        return self._dense.search(self._database, number, vector, self._candidates(query), allowed)

    def _dense_weight(self, query: Query, matches: Sequence[Match]) -> float:
        """What the embedder can know of this query and of the passages that share its words."""
        if not self._knowledge.judges:
            return 1.0
        with self._database.reading() as connection:
            said = records.beginnings(connection, [match.entry for match in matches[:_WITNESSES]], _EXCERPT)
        return self._knowledge.dense_weight([query.text, *said])

    def _hits(self, query: Query, found: Sequence[Found], matches: Sequence[Match]) -> list[Hit]:
        weight = self._dense_weight(query, matches) if found and matches else float(bool(found))
        # A side without a vote is left out wholly: its ranks would only look like evidence.
        dense = {item.entry: (rank, item) for rank, item in enumerate(found if weight else (), 1)}
        words = {item.entry: (rank, item) for rank, item in enumerate(matches, 1)}
        ranked = merge([list(dense), list(words)], weights=[weight, float(bool(matches))], k=self._rrf_k)
        # All that tie with the last one asked for: ties are settled by id before the list is cut.
        least = ranked[min(query.limit, len(ranked)) - 1][1] if ranked else 0.0
        best = [(num, score) for num, score in ranked if score >= max(least, query.min_score)]
        with self._database.reading() as connection:
            entries = records.by_num(connection, [num for num, _ in best])
            spans = _spans(connection, [dense[num][1].window for num, _ in best if num in dense])
        hits = []
        for num, score in best:
            if num not in entries:
                continue  # removed since the ranks were taken
            near, match = dense.get(num), words.get(num)
            hits.append(
                Hit(
                    entries[num],
                    score,
                    dense_score=near[1].score if near else None,
                    lexical_score=match[1].score if match else None,
                    dense_rank=near[0] if near else None,
                    lexical_rank=match[0] if match else None,
                    span=spans.get(near[1].window) if near else None,
                )
            )
        return sorted(hits, key=lambda hit: (-hit.score, hit.entry.id))[: query.limit]


def _spans(connection: sqlite3.Connection, windows: Sequence[int]) -> dict[int, Span]:
    rows = connection.execute(
        "SELECT id, span_start, span_end FROM windows WHERE id IN (SELECT value FROM json_each(?))",
        [json.dumps(list(windows))],
    )
    return {row[0]: Span(row[1], row[2]) for row in rows}
