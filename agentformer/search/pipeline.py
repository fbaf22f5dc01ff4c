"""The search pipeline: the steps from a query to the final order of its hits.

`Pipeline.search` runs the first steps, in the indexes of one store:

1. analysis: the terms and dates of the query (`text.analysis`), and the entries in its scope (`ScopeSide`)
2. words (`WordSide`) and vectors (`search.vector_search`), at the same time
3. weight of the vectors (`search.vector_weight`)
4. fusion of the two lists (`search.fusion`)
5. boosts by document, title, code and date (`search.boosts`)
6. statements before questions (`search.message_ranking`)
7. hits: the entries with their scores, spans and votes

Both indexes receive a mask of the entries in the scope, so that entries outside the scope do not displace entries of
the scope from a limited list.

The last steps depend on the purpose, for which a caller calls one of these functions:

- `for_search`: salience, relevance or noise floor, newest facts, least score, limit.
- `for_answer`: salience, usable (without messages that only ask), newest facts, limit.
- `for_context`: room, salience, relevance, newest facts.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from agentformer.errors import EmbedderError, SpaceMismatch, StoreDamaged, StoreError
from agentformer.http import tracing
from agentformer.http.redaction import told
from agentformer.index.entry_properties import Derived
from agentformer.index.property_threads import DerivedRenewal
from agentformer.index.scope_masks import ScopeMask
from agentformer.index.vectors.index import VectorHits
from agentformer.index.words.query import WordHits
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records.fields import MAX_LIMIT
from agentformer.records.integrity.checksums import damage_error
from agentformer.records.scopes import effective_salience
from agentformer.records.spaces import active_space
from agentformer.records.vectors import has_pending, pending_count
from agentformer.search.boosts import all_boosts
from agentformer.search.fusion import FusionOptions, RankedList, Ranking
from agentformer.search.helper_thread import HelperThread
from agentformer.search.message_ranking import favor_statements
from agentformer.search.newest_facts import FactComparison, latest_first
from agentformer.search.relevance import Nearness, relevant_hits
from agentformer.search.row_cache import CACHED_DERIVED, RankedRows, Reads
from agentformer.search.steps import Step, run, timed
from agentformer.search.vector_search import (
    RankedEntries,
    VectorSearch,
    VectorSide,
    exact_vectors,
    rescore,
)
from agentformer.search.vector_weight import LanguageCoverage, vector_weight
from agentformer.text.analysis import QueryTerms, analyze_query
from agentformer.text.dates.query import QueryDates, query_dates
from agentformer.types import (
    NOT_INDEXED,
    NOTHING_SEARCHED,
    WORDS_ALONE,
    Connection,
    Decay,
    Embedder,
    EmbeddingSpace,
    Factor,
    Hit,
    Hits,
    HitVectors,
    Query,
    RecordStore,
    Scope,
    Vector,
)

VECTORS, WORDS = "vectors", "words"  # names of the two lists
_DERIVED = 200  # number of best entries whose derived rows are read; the boosts use only these entries
_THREAD_WINDOWS = 5_000  # from this number of windows on, searching the vectors takes longer than starting a thread
_SINGLE_LIST = FusionOptions("rrf")  # keeps the order of a search by vectors or words alone
_NO_WORDS = WordHits([], [])
_NO_VECTORS = RankedEntries([], [], [], [], 0, (np.zeros(0, np.int64), np.zeros((0, 0), np.float32)))
EXTRA_HITS = 10  # hits that a search requests beyond its limit, because the steps move hits up and leave hits out
_SALIENCE_WEIGHT = 0.1  # share of the score that a hit loses if the salience of its entry is 0
_PENDING = (
    "{} entries have no vectors yet, so only a search by words finds them; run `agentformer reindex` to embed them"
)
_NOT_INDEXED = (
    f"{NOT_INDEXED}, so this search did not find the words of {{}} changed entries; search again in a moment, or run "
    "`agentformer reindex` to wait for the update"
)
_VECTORS_ALONE = "only vectors were searched, because the word index is unavailable: {}"


@dataclass(frozen=True, slots=True)
class _Request:
    """A search request: the query with its words and dates, and the state of the database when the search began."""

    query: Query
    terms: QueryTerms
    dates: QueryDates
    limit: int  # number of results that are requested from each index
    seq: int  # number of the newest change of the records
    mask: ScopeMask
    space: tuple[int, EmbeddingSpace] | None  # the active space with its number; None if only words are searched


@dataclass(frozen=True, slots=True)
class _Candidates:
    words: WordHits
    vectors: VectorHits | None  # None without a vector search
    warnings: tuple[str, ...]
    complete: bool  # True if a search by vectors gave no warning
    one_sided: bool  # True if a hybrid search could not use the words, or could not use the vectors


class _Ranked(NamedTuple):
    """The result of the ranking. `factors` are the factors of the weight of the vectors, and `known` are derived rows
    of the best entries, by number."""

    nearest: RankedEntries
    factors: tuple[Factor, ...]
    ranking: Ranking
    known: Mapping[int, Derived]


class _Running:
    """Counts the searches that run at this moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.count -= 1


class WordView(Protocol):
    """The interface that a search needs to look up words in one state of the index; see `index.words.query.View`."""

    def search(
        self, query: QueryTerms, scope: Scope, limit: int, allowed: ScopeMask, dates: Sequence[str] = ()
    ) -> WordHits: ...


class WordSide(Protocol):
    """The interface of a word index, which a store can implement in its own way; see `index.words.index.WordIndex`."""

    def view(self, database: RecordStore, newest: int = -1) -> WordView: ...


class ScopeSide(Protocol):
    """The interface for finding the entries of a scope; see `index.scope_masks.ScopeCache`."""

    def allowed(self, connection: Connection, scope: Scope, seq: int) -> ScopeMask: ...


class Pipeline:
    """The first steps of the search in one store, with its indexes; the module docstring lists the steps. `fanout` is
    the minimum number of results that is requested from each of the two indexes. `one_transaction` returns a context
    manager. After the query is embedded, a search does all its reads of the database in this context, so no
    transaction waits for the embedder. Thread-safe."""

    def __init__(
        self,
        database: RecordStore,
        embedder: Embedder,
        *,
        vectors: VectorSide,
        words: WordSide,
        scopes: ScopeSide,
        fanout: int,
        fusion: FusionOptions | None = None,
        one_transaction: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._database = database
        self._vector_index = vectors
        self._vector_search = VectorSearch(vectors, database, embedder)
        self._word_index = words
        self._scopes = scopes
        self._coverage = LanguageCoverage(embedder)
        self._fanout = fanout
        self._fusion = fusion or FusionOptions()
        self._one_transaction = one_transaction
        self._helper = HelperThread()
        self._running = _Running()
        self._renewal = DerivedRenewal(lambda: self._running.count > 0)
        self._rows = RankedRows()

    def search(self, query: Query) -> Hits:
        """Return the hits, best first. If the embedder is unavailable, only words are searched, and a search in the
        mode `dense` finds nothing. If the word index cannot be written, only vectors are searched. In these cases, the
        result contains a warning. Raises `StoreError` if neither words nor vectors can be searched, and `SpaceMismatch`
        if the embedder belongs to another embedding space."""
        if query.limit < 1 or not query.text.strip():
            return Hits()
        asked = {"gen_ai.operation.name": "retrieval", "gen_ai.request.top_k": query.limit}
        with timed("all", "retrieval", {**asked, "agentformer.search.mode": query.mode}) as span:
            span.set_text("gen_ai.retrieval.query.text", query.text)
            hits = self._search(query)
            span.set({"db.response.returned_rows": len(hits), "agentformer.search.warnings": len(hits.warnings)})
            return hits

    def _search(self, query: Query) -> Hits:
        """Search words and vectors, and rank the results. If a stored vector is damaged, rank by words alone."""
        with timed("analysis", "search.analysis") as span:
            terms = analyze_query(query.text)
            request = self._request(query, terms, query_dates(terms, query.at))
            span.set({"agentformer.search.scope_entries": request.mask.count})
        if not request.mask.count:
            return Hits()
        with self._running, ExitStack() as reads:
            find_words, words_error = self._start_words(request)
            with timed("vectors", "search.vectors") as span:
                vectors, warnings = self._search_vectors(request, words_error, reads)
                span.set({"agentformer.search.candidates": len(vectors.entries) if vectors else 0})
            complete = query.mode != "lexical" and not warnings
            if words_error is not None:
                warnings = (_VECTORS_ALONE.format(told(words_error)), *warnings)
            one_sided = query.mode == "hybrid" and (words_error is not None or vectors is None)
            if vectors is None:
                reads.close()
                reads.enter_context(self._one_transaction())
            words = find_words()
            if words.missing:
                warnings = (*warnings, _NOT_INDEXED.format(words.missing))
            candidates = _Candidates(words, vectors, warnings, complete, one_sided)
            try:
                return self._ranked(request, candidates)
            except StoreDamaged as error:
                if vectors is None or query.mode == "dense" or words_error is not None:
                    raise
                warnings = (*warnings, WORDS_ALONE.format(told(error)))
            reads.close()
            return self._ranked(request, replace(candidates, vectors=None, warnings=warnings, one_sided=True))

    def embeds(self, query: Query) -> bool:
        """Return whether a search for this query must first embed it: it uses vectors, and the vector of the query is
        not cached."""
        return query.mode != "lexical" and not self._vector_search.cache.has(self._vector_index.space, query.text)

    def _request(self, query: Query, terms: QueryTerms, dates: QueryDates) -> _Request:
        with self._database.reading() as connection:
            seq = change_feed.last_seq(connection)
            mask = self._scopes.allowed(connection, query.scope, seq)
            space = active_space(connection) if query.mode != "lexical" else None
            limit = min(max(self._fanout, query.limit), MAX_LIMIT)
            return _Request(query, terms, dates, limit, seq, mask, space)

    def _start_words(self, request: _Request) -> tuple[Callable[[], WordHits], StoreError | None]:
        """Prepare the search by words, and start it in the helper thread if this saves time. Return a function that
        returns the result of the search, and the error that makes the word index unavailable, or None."""
        query = request.query
        if query.mode == "dense":
            return lambda: _NO_WORDS, None
        try:
            view = self._word_index.view(self._database, request.seq)
        except StoreError as error:
            if query.mode == "lexical" or isinstance(error, StoreDamaged):
                raise
            return lambda: _NO_WORDS, error

        def search() -> WordHits:
            with timed("words", "search.words") as span:
                found = view.search(request.terms, query.scope, request.limit, request.mask, request.dates.terms)
                span.set({"agentformer.search.candidates": len(found.entries)})
                return found

        if query.mode != "hybrid" or request.space is None:
            return search, None
        cached = self._vector_search.cache.has(request.space[0], query.text)
        slow = len(self._vector_index) >= _THREAD_WINDOWS or not cached
        # If other searches run, they keep the processors busy, so the thread is not useful. The first search starts the
        # thread in any case, so that later searches need not start it.
        useful = self._running.count == 1 or not self._helper.started
        return self._helper.start(tracing.carrier()(search)) if slow and useful else search, None

    def _search_vectors(
        self, request: _Request, words_error: StoreError | None, reads: ExitStack
    ) -> tuple[VectorHits | None, tuple[str, ...]]:
        """Return the windows nearest to the query, and warnings. The windows are None if the search uses only words, or
        if vectors are unavailable. `words_error` is the error that makes the word index unavailable, or None. This
        error is raised if vectors are unavailable, too. The read transaction is entered in `reads`. It begins after the
        query is embedded, so that it is not open while a model is waited for."""
        if request.query.mode == "lexical":
            return None, ()
        query, begin_reading = request.query, lambda: reads.enter_context(self._one_transaction())
        try:
            while request.space is not None:
                result = self._vector_search.nearest(
                    query.text, request.space, request.seq, request.limit, request.mask, begin_reading
                )
                if result is not None:
                    return result
                reads.close()
                request = self._request(query, request.terms, request.dates)  # the store has moved to another space
            return None, ()
        except SpaceMismatch:
            raise
        except (EmbedderError, StoreDamaged) as error:
            if words_error is not None:
                raise words_error from error
            if request.query.mode == "dense" and isinstance(error, StoreDamaged):
                raise  # words cannot replace what is damaged, as they do in the mode hybrid
            return None, ((NOTHING_SEARCHED if request.query.mode == "dense" else WORDS_ALONE).format(told(error)),)

    def _ranked(self, request: _Request, candidates: _Candidates) -> Hits:
        """Rank the candidates of both searches, and return the hits of the best ones. A list with the weight 0 is left
        out, because its ranks have no influence and must not be shown as votes of a hit."""
        query, words, nearest = request.query, candidates.words, _NO_VECTORS
        options = self._fusion if query.mode == "hybrid" else _SINGLE_LIST
        factors: tuple[Factor, ...] = ()
        with timed("ranking", "search.ranking"), self._database.reading() as connection:
            reads = self._rows.reads(connection)
            any_pending = candidates.complete and has_pending(connection, refused=True)
            if any_pending and (pending := pending_count(connection, query.scope)):
                candidates = replace(candidates, warnings=(*candidates.warnings, _PENDING.format(pending)))
            if candidates.vectors:
                alone = query.mode == "dense" or not words.entries
                nearest = rescore(reads.vectors, candidates.vectors, alone=alone)
            if query.mode == "hybrid" and nearest.entries:
                samples = reads.samples
                factors = vector_weight(request.terms, words, nearest.entries, samples, self._coverage, options)
            weight = math.prod(factor.value for factor in factors)
            by_vectors = RankedList(VECTORS, nearest.entries, weight, nearest.scores)
            by_words = RankedList(WORDS, words.entries, 1.0, words.scores)
            lists = [ranked for ranked in (by_vectors, by_words) if ranked.items and ranked.weight]
            ranking, known = Ranking(lists, options), dict[int, Derived]()
            if options.kind == "adaptive":
                known = self._derived(reads, request, [num for num, _ in ranking.order[:_DERIVED]])
                if boosts := all_boosts(connection, ranking.order, request.dates, known, request.terms, weight):
                    ranking.add(boosts)
                ranking.reordered(*favor_statements(connection, ranking.order, known))
            return _read_hits(reads, request, candidates, _Ranked(nearest, factors, ranking, known))

    def _derived(self, reads: Reads, request: _Request, nums: Sequence[int]) -> dict[int, Derived]:
        """Return a dictionary: number of an entry -> its derived row, which the boosts need (see
        `index.entry_properties`). `nums` is sorted, best first. A row without influence on the ranking may be replaced
        by `PLAIN`. A missing row is left out, and a background thread writes it for later searches."""
        few = request.mask.count <= CACHED_DERIVED  # the derived rows of all entries fit in memory
        known = reads.derived(nums) if few or request.dates else reads.for_boosts(nums, request.query.limit)
        if len(known) < len(nums) and not self._database.read_only:
            self._renewal.start(self._database, [num for num in nums if num not in known])
        return known

    def close(self) -> None:
        """Stop the background threads."""
        self._renewal.stop()
        self._helper.close()


def _read_hits(reads: Reads, request: _Request, candidates: _Candidates, ranked: _Ranked) -> Hits:
    """Read the entries of the best candidates, and return their hits, best first."""
    words, nearest, ranking = candidates.words, ranked.nearest, ranked.ranking
    scores = _best(ranking.order, request.query)
    near_ranks, word_ranks = ranking.ranks(VECTORS), ranking.ranks(WORDS)
    near_at = sorted(near_ranks[num] - 1 for num in scores if num in near_ranks)
    cosines, vectors = dict[int, float](), dict[int, Vector]()
    if candidates.vectors:
        cosines, vectors = exact_vectors(reads.vectors, candidates.vectors.query, nearest, near_at)
    parts = reads.spans([nearest.windows[n] for n in near_at])
    entries = _entries(reads.connection, scores, request.query.scope)
    known = reads.complete(ranked.known, entries)
    hits = []
    for num, entry in entries.items():
        near, word = near_ranks.get(num), word_ranks.get(num)
        hit = Hit(
            entry,
            scores[num],
            dense_score=None if near is None else cosines[near - 1],
            lexical_score=None if word is None else words.scores[word - 1],
            dense_rank=near,
            lexical_rank=word,
            span=None if near is None else parts.get(nearest.windows[near - 1]),
            votes=ranking.votes(num),
        )
        hits.append(hit)
    best = sorted(hits, key=lambda hit: (-hit.score, hit.entry.id))[: request.query.limit]
    analyzed = {entries[num].id: row.analyzed for num, row in known.items()}
    shown = None
    # Without a warning, the search has used the active space. A single vector is compared with no other.
    if candidates.complete and len(near_at) > 1 and vectors and request.space is not None:
        space, nums = request.space[1], ((place, nearest.entries[place]) for place in vectors)
        by_id = {entries[num].id: vectors[place].copy() for place, num in nums if num in entries}  # not the matrix
        shown = HitVectors((space.provider, space.model), by_id)
    one_sided, factors = candidates.one_sided, ranked.factors
    return Hits(best, candidates.warnings, one_sided=one_sided, factors=factors, analyzed=analyzed, vectors=shown)


def _best(order: Sequence[tuple[int, float]], query: Query) -> dict[int, float]:
    """Return the best entries with scores of at least `query.min_score`, and their scores. There may be more than
    `query.limit` entries: if the last entry within the limit has the same score as the following entries, these are
    returned, too. The caller sorts entries with equal scores by id, and then applies the limit."""
    least = max(order[min(query.limit, len(order)) - 1][1] if order else 0.0, query.min_score)
    return dict(itertools.takewhile(lambda item: item[1] >= least, order))


def _entries(connection: Connection, nums: dict[int, float], scope: Scope) -> dict[int, Any]:
    """Return a dictionary of the hits: number of an entry -> entry. An entry that was deleted after the search is left
    out. Raises `StoreDamaged` if an entry belongs to another namespace."""
    entries = records.by_num(connection, list(nums))
    if any(entry.namespace != scope.namespace for entry in entries.values()):
        raise damage_error("an index of the entries", "it contains an entry of another namespace")
    return entries


def for_search(
    hits: Hits, query: Query, embedder: Embedder, *, noise_floor: float, relevant_only: bool = False
) -> Hits:
    """Apply the last steps of a search to the hits of a store. With `relevant_only`, only hits that answer the query
    stay. Otherwise, a hit of a hybrid search that contains no term of the query stays if its nearness is at least
    `noise_floor` (-1..1)."""
    nearness = Nearness(hits, embedder)
    steps = [salience(query.scope.decay)]
    if relevant_only:
        steps.append(relevance(query.text, nearness))
    elif query.mode == "hybrid":
        steps.append(above_noise(noise_floor, nearness))
    steps += [newest_facts(query.text, nearness), _least_score(query.min_score), _limit(query.limit)]
    return run(hits, steps)


def for_answer(hits: Hits, query: Query, usable: Callable[[Hit], bool]) -> Hits:
    """Apply the last steps to the hits from which the question `query` is answered. `usable` says of a hit of a memory
    whether it can answer the question."""
    steps = [
        salience(query.scope.decay),
        Step("usable", lambda hits: filter(usable, hits)),
        newest_facts(query.text, Nearness(hits)),
        _limit(query.limit),
    ]
    return run(hits, steps)


def for_context(hits: Hits, query: Query, embedder: Embedder | None, fits: Callable[[Hit], bool]) -> Hits:
    """Apply the last steps to the hits for the context of a task. `fits` says whether the context has room for a
    hit."""
    nearness = Nearness(hits, embedder)
    steps = [
        Step("room", lambda hits: filter(fits, hits)),
        salience(query.scope.decay),
        relevance(query.text, nearness),
        newest_facts(query.text, nearness),
    ]
    return run(hits, steps)


def salience(decay: Decay) -> Step:
    """Return the step that weighs scores by salience (importance). A score stays the same if the salience of the entry
    after `decay` is 1, and is lowered by 10% if it is 0."""

    def weighed(hit: Hit) -> Hit:
        loss = _SALIENCE_WEIGHT * (1 - effective_salience(hit.entry, decay))
        return replace(hit, score=hit.score * (1 - loss)) if loss else hit

    return Step("salience", lambda hits: sorted(map(weighed, hits), key=lambda hit: (-hit.score, hit.entry.id)))


def relevance(text: str, nearness: Nearness) -> Step:
    """Return the step that keeps only the hits that answer the query (see `search.relevance`)."""
    return Step("relevance", lambda hits: relevant_hits(text, hits, nearness))


def above_noise(floor: float, nearness: Nearness) -> Step:
    """Return the step that keeps the hits that contain a term of the query, or whose `nearness` is at least `floor`
    (-1..1). If the search could use only words or only vectors, all hits stay, because it is unknown which of them
    contain a term."""

    def near(hits: Hits) -> Iterable[Hit]:
        return (hit for hit in hits if hits.one_sided or hit.lexical_rank is not None or nearness.of(hit) >= floor)

    return Step("noise floor", near)


def newest_facts(text: str, nearness: Nearness) -> Step:
    """Return the step that ranks the newest of facts that replace each other first, unless the query asks for the
    past (see `search.newest_facts`). A newer fact that an earlier step left out comes back."""

    def newest(hits: Hits) -> Iterable[Hit]:
        return latest_first(hits, FactComparison(nearness.languages, nearness.hits.vectors), text, nearness.hits)

    return Step("newest facts", newest)


def _least_score(least: float) -> Step:
    return Step("least score", lambda hits: (hit for hit in hits if hit.score >= least))


def _limit(count: int) -> Step:
    return Step("limit", lambda hits: hits[:count])
