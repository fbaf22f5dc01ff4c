"""Hybrid search: scope, then both sides, then fusion, then the entries.

The scope is decided by the records and given to both sides as a mask, so that nothing outside it takes a
place in a top-k.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import EmbedderError, SpaceMismatch, StoreDamaged, StoreError
from agentformer.index.embedding.active import at_hand, current_embedder, embedder_for
from agentformer.index.files import WORDS_FOLDER
from agentformer.index.scope_masks import ScopeCache, ScopeMask
from agentformer.index.vectors.follower import VectorFollower
from agentformer.index.vectors.index import VectorHits
from agentformer.index.vectors.options import IndexOptions
from agentformer.index.words.index import WordIndex
from agentformer.index.words.query import WordHits
from agentformer.records import entries as records
from agentformer.records.database import Database
from agentformer.records.integrity.checksums import damaged
from agentformer.records.spaces import active_space, space_of
from agentformer.records.vectors import any_pending, pending_count, spans
from agentformer.search.boosts.date import asked_time
from agentformer.search.fuse import VECTORS, joined
from agentformer.search.fusion import FusionOptions
from agentformer.search.helper_thread import Beside
from agentformer.search.language_coverage import Knowledge
from agentformer.search.query_cache import Questions
from agentformer.search.rescoring import Ranked, ranked, refined
from agentformer.text.analysis import MAX_QUERY, analyze_query
from agentformer.text.analyzers import PLAIN, Analyzers
from agentformer.text.languages import detect_language, language_of_query
from agentformer.types import Embedder, EmbeddingSpace, Hit, Hits, Query, Scope

MAX_LIMIT = 10_000  # hits of one search; a list is what `list` is for
_SMALL = 20_000  # changes of a store whose indexes are brought up to date when it is closed
_WITNESSES = 3  # passages looked at to tell the language at hand; a query alone may be mostly names
_WORTHWHILE = 5_000  # windows from which on a scan takes longer than to call another thread; a model always does
_WAITING = "{} entries have no vectors yet and are found by words alone; `agentformer reindex` embeds them"
_WORDS_ALONE = "searched by words alone: {}"
_MOVING = "answered from the former embedding space while the embedder {} is being loaded"
_EXCERPT = 600  # code points of each
_ONE_SIDE = FusionOptions("rrf")  # of a search by vectors or by words alone: its own order


class _State(NamedTuple):
    """What the records say when a search begins, all of one moment."""

    seq: int  # the last change
    allowed: ScopeMask
    space: tuple[int, EmbeddingSpace] | None  # the active one with its number; not read for words alone


class HybridSearch:
    """Searches a folder's records with vectors and words. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        embedder: Embedder,
        *,
        fanout: int,
        fusion: FusionOptions | None = None,
        plan: IndexOptions | None = None,
        analyzers: Analyzers = PLAIN,
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._dense = VectorFollower(folder, database.store_id, plan)
        self._words = WordIndex(folder / WORDS_FOLDER, database.store_id, analyzers)
        self._knowledge = Knowledge(embedder)
        self._questions = Questions()
        self._fanout = fanout
        self._fusion = fusion or FusionOptions()
        self._scopes = ScopeCache()
        self._beside = Beside()
        with database.reading() as connection:
            self._opened_at = records.last_change(connection)

    def search(self, query: Query) -> Hits:
        """Best first. With no embedder at hand the words alone decide, and where the word index cannot be written the
        vectors alone; a warning says so."""
        if query.limit < 1 or not query.text.strip():
            return Hits()
        state = self._state(query)
        if not state.allowed.count:
            return Hits()
        words, wordless = self._words_begun(query, state)
        warnings: tuple[str, ...] = ()
        near: VectorHits | None = None
        whole = False  # did the dense side take part as the store is now?
        if query.mode != "lexical":
            try:
                near, warnings = self._nearest(query, state)
                whole = not warnings
            except SpaceMismatch:
                raise
            except (EmbedderError, StoreDamaged) as error:
                if wordless is not None:
                    raise wordless from error
                if query.mode == "dense" and isinstance(error, StoreDamaged):
                    raise
                warnings = (_WORDS_ALONE.format(error),)
        if wordless is not None:
            warnings = (f"searched by vectors alone: {wordless}", *warnings)
        matches = words()
        try:
            return self._answer(query, near, matches, warnings, whole)
        except StoreDamaged as error:
            if near is None or query.mode == "dense" or wordless is not None:
                raise
            warnings = (*warnings, _WORDS_ALONE.format(error))
        return self._answer(query, None, matches, warnings, whole)  # raises for what the words find damaged

    def _answer(
        self, query: Query, near: VectorHits | None, matches: WordHits, warnings: tuple[str, ...], whole: bool
    ) -> Hits:
        with self._database.reading() as connection:
            if whole:
                warnings = (*warnings, *_waiting(connection, query.scope))
            return Hits(self._hits(connection, query, near, matches), warnings)

    def _words_begun(self, query: Query, state: _State) -> tuple[Callable[[], WordHits], StoreError | None]:
        """What waits for the words' side, and why there is none."""
        if query.mode == "dense":
            return _no_matches, None
        try:
            view = self._words.followed(self._database, state.seq)
        except StoreError as error:
            if query.mode == "lexical" or isinstance(error, StoreDamaged):
                raise
            return _no_matches, error

        def ask() -> WordHits:
            dates = asked_time(query.text, query.at).terms
            return view.search(analyze_query(query.text), query.scope, self._candidates(query), state.allowed, dates)

        if query.mode != "hybrid" or state.space is None:
            return ask, None
        slow = len(self._dense) >= _WORTHWHILE or not self._questions.knows(state.space[0], query.text)
        return self._beside.begin(ask) if slow else ask, None

    def _state(self, query: Query) -> _State:
        with self._database.reading() as connection:
            seq = records.last_change(connection)
            allowed = self._scopes.allowed(connection, query.scope, seq)
            return _State(seq, allowed, active_space(connection) if query.mode != "lexical" else None)

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
        self._beside.close()
        self._words.close(self._database)

    def discard(self) -> None:
        """Delete what the indexes keep on disk, for the sake of what must not be found there any more. Raises
        `OSError`, also where another process writes meanwhile; then it is to be done again."""
        try:
            self._words.discard()
        finally:
            self._dense.discard()

    def renew(self, *, words: bool = False, vectors: bool = False) -> None:
        """Forget an index, on disk and in memory: the next search makes it anew. Raises `OSError`."""
        if words:
            self._words.discard()
        if vectors:
            self._dense.forget()
            self._dense.discard()

    def settle(self) -> None:
        """Train the vector index now where that is due, and wait for it."""
        self._dense.settle(self._database)

    def status(self) -> dict[str, Any]:
        """The state of the vector index, as JSON values."""
        return self._dense.status()

    def _candidates(self, query: Query) -> int:
        return min(max(self._fanout, query.limit), MAX_LIMIT)

    def _nearest(self, query: Query, state: _State) -> tuple[VectorHits | None, tuple[str, ...]]:
        """The dense side, and warnings. Query and index are of one space, also while the store moves."""
        while state.space is not None:
            number, space = state.space
            embedder = at_hand(self._embedder, space)
            if embedder is None:
                former = self._nearest_of_former(query, state.allowed)
                if former is not None:
                    return former, (_MOVING.format(space.spec),)
                embedder = embedder_for(self._embedder, space)
            vector = self._questions.embed(embedder, number, query.text)
            self._dense.follow(self._database, state.seq, number)
            near = self._dense.search(number, vector, self._candidates(query), state.allowed)
            if near is not None:
                return near, ()
            state = self._state(query)
        return None, ()

    def _nearest_of_former(self, query: Query, allowed: ScopeMask) -> VectorHits | None:
        """By the index and the embedder from before a move; None where they are not at hand or not of one space."""
        embedder, number = current_embedder(self._embedder), self._dense.space
        with self._database.reading() as connection:
            former = space_of(connection, number)
        if former is None or former.difference(embedder.space):
            return None
        vector = self._questions.embed(embedder, number, query.text)
        return self._dense.search(number, vector, self._candidates(query), allowed)

    def _known(self, connection: sqlite3.Connection, query: Query, found: Ranked, matches: WordHits) -> float:
        """How well the embedder knows the languages at hand, 0..1: those of the query and of the passages that share
        its words; where these are of another language, since a name is shared across languages, of the query and of
        what the embedder holds to be near."""
        if not found.entries or not self._knowledge.judges:
            return float(bool(found.entries))
        spoken = language_of_query(query.text[:MAX_QUERY])
        alone = self._knowledge.dense_weight([query.text])
        if not matches.entries:  # a query of a name or of a slip tells no language; the vectors may try
            return alone if spoken else 1.0
        said = self._said(connection, matches.entries)
        told = self._knowledge.dense_weight([query.text, *said])
        if told >= alone or not spoken or detect_language("\n".join(said)) in ("", spoken):
            return told
        near = [self._knowledge.dense_weight([each]) for each in self._said(connection, found.entries)]
        return max(told, alone * sum(near) / len(near)) if near else told

    def _said(self, connection: sqlite3.Connection, ranked: Sequence[int]) -> list[str]:
        return records.beginnings(connection, ranked[:_WITNESSES], _EXCERPT)

    def _hits(
        self, connection: sqlite3.Connection, query: Query, near: VectorHits | None, matches: WordHits
    ) -> list[Hit]:
        """Both sides joined: all that tie with the last one asked for are read, since ties are settled by id."""
        found = (
            ranked(connection, near, alone=query.mode == "dense" or not matches.entries)
            if near
            else Ranked([], [], [], [], 0)
        )
        known = self._known(connection, query, found, matches) if query.mode == "hybrid" else float(bool(found.entries))
        fusion = self._fusion if query.mode == "hybrid" else _ONE_SIDE
        result = joined(connection, fusion, found, matches, known, asked_time(query.text, query.at))
        merged = result.order
        least = max(merged[min(query.limit, len(merged)) - 1][1] if merged else 0.0, query.min_score)
        best = dict(itertools.takewhile(lambda item: item[1] >= least, merged))
        entries = records.by_num(connection, list(best))
        if any(entry.namespace != query.scope.namespace for entry in entries.values()):
            raise damaged("an index of the entries", "it has one of another namespace")
        near_at = {num: place for place, num in enumerate(found.entries if result.has(VECTORS) else ()) if num in best}
        words_at = {num: place for place, num in enumerate(matches.entries) if num in best}
        cosines = refined(connection, near.query, found, near_at.values()) if near else {}
        at = spans(connection, [found.windows[place] for place in near_at.values()])
        hits = []
        for num, entry in entries.items():  # one that is not there was removed since the ranks were taken
            place, other = near_at.get(num), words_at.get(num)
            hits.append(
                Hit(
                    entry,
                    best[num],
                    dense_score=None if place is None else cosines[place],
                    lexical_score=None if other is None else matches.scores[other],
                    dense_rank=None if place is None else place + 1,
                    lexical_rank=None if other is None else other + 1,
                    span=None if place is None else at.get(found.windows[place]),
                    votes=result.votes(num),
                )
            )
        return sorted(hits, key=lambda hit: (-hit.score, hit.entry.id))[: query.limit]


def _no_matches() -> WordHits:
    return WordHits([], [])


def _waiting(connection: sqlite3.Connection, scope: Scope) -> tuple[str, ...]:
    waiting = pending_count(connection, scope) if any_pending(connection, refused=True) else 0
    return (_WAITING.format(waiting),) if waiting else ()
