"""`Questions`: searches the memory, and returns an answer to a question, or passages from which a model answers it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from agentformer.errors import InvalidInput
from agentformer.lazy import Lazy
from agentformer.memory import validation
from agentformer.memory.usage import UsageCounter
from agentformer.memory.validation import Filters
from agentformer.rag.answer.sources import (
    SOURCES,
    Found,
    SourceName,
    checked_sources,
    main_document,
    with_items,
    with_sources,
)
from agentformer.records import fields
from agentformer.search.reading import existing_document
from agentformer.types import Answer, AnswerEvent, Decay, Hits, MemoryBackend, Query

if TYPE_CHECKING:
    from agentformer.rag.answer.answerer import Answerer
    from agentformer.rag.answer.context import PassageBuilder, PassageContext

MAX_TOKENS = 4096  # of an answer
# The number of hits whose sentences may be quoted: the best `top_k` hits, and the next hits of the same documents.
# Chosen on questions about reports and manuals; see bench/log/answers.md.
_QUOTABLE = 5
MAX_CONTEXT_TOKENS = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class QuestionLimits:
    """The limits of questions. `top_k` is the default number of chunks that are quoted, and `context_tokens` the
    default number of tokens that a language model receives."""

    top_k: int = 3
    context_tokens: int = 2_000
    max_chars: int = 8_000


class ChunkFilters(Filters, total=False):
    """Keyword arguments that select the chunks and memories from which a question is answered. The default of
    `namespace` is "default". A key that is left out allows every value, except `user_id`: without it, memories and
    documents that belong to a user are left out, unless `every_user` is true or `document_id` names the document. A
    document has the time when it was stored."""

    namespace: str
    filters: Mapping[str, Any] | None  # the former name of `metadata`
    sources: Collection[SourceName] | None  # "documents", "memories" or both (the default)
    user_id: str | None  # memories and documents of this user, and those of no user; None: only those of no user
    project: str | None  # memories of this project, and those of no project; None: of every project
    every_user: bool  # without `user_id`: the memories and documents of all users
    messages: bool  # False: memories except messages
    session_id: str | None  # a session whose messages are left out, because the caller reads them already


# The filters that select documents; the others select memories.
_OF_DOCUMENTS = ("namespace", *Filters.__annotations__)


class _Stopwatch:
    """Measures how long the search and the answer of one question take, and how soon a streamed answer begins."""

    def __init__(self) -> None:
        self.started = self.searched = time.perf_counter()
        self.first_token = 0.0  # 0: the answer is not streamed

    def timings(self) -> dict[str, float]:
        """Return the duration of each step until now, in milliseconds."""
        now = time.perf_counter()
        spans = {
            "search_ms": self.searched - self.started,
            "answer_ms": now - self.searched,
            "total_ms": now - self.started,
            **({"first_token_ms": self.first_token - self.started} if self.first_token else {}),
        }
        return {name: round(seconds * 1000, 2) for name, seconds in spans.items()}


class _Searched(NamedTuple):
    """The result of the search for a question, and the context with the passages that the language model receives
    (None without a language model)."""

    found: Found
    context: PassageContext | None
    warnings: tuple[str, ...]
    stopwatch: _Stopwatch


class Questions:
    """Answers questions. Thread-safe if the backend is thread-safe. `answerer` writes answers, and `contexts` finds the
    passages for them."""

    def __init__(
        self,
        backend: MemoryBackend,
        answerer: Lazy[Answerer],
        contexts: Lazy[PassageBuilder],
        usage: UsageCounter,
        limits: QuestionLimits,
    ) -> None:
        self._backend = backend
        self._answerer = answerer
        self._contexts = contexts
        self._usage = usage
        self._limits = limits

    def ready(self) -> None:
        """Build the objects that answer questions before the first question. Raises an error if this fails."""
        self._answerer.get()
        self._contexts.get()

    def answer(
        self, question: str, filters: ChunkFilters, *, top_k: int | None, max_tokens: int | None, extractive: bool
    ) -> Answer:
        """Return an answer. `RAGTool.query` describes the parameters and errors."""
        max_tokens = _checked_tokens(max_tokens, MAX_TOKENS)
        searched = self._find(question, filters, top_k, extractive=extractive)
        answer = self._answerer.get().answer(searched.found, max_tokens=max_tokens, extractive=extractive)
        return self._completed(answer, searched)

    def stream(
        self, question: str, filters: ChunkFilters, *, top_k: int | None, max_tokens: int | None
    ) -> Generator[AnswerEvent, None, None]:
        """Return a generator of the pieces of an answer. `RAGTool.stream` describes the parameters and errors."""
        max_tokens = _checked_tokens(max_tokens, MAX_TOKENS)
        return self._events(self._find(question, filters, top_k, extractive=False), max_tokens)

    def context(self, question: str, filters: ChunkFilters, *, max_tokens: int | None) -> PassageContext:
        """Return the passages for a question. `RAGTool.context` describes the parameters and errors."""
        budget = _checked_tokens(max_tokens, MAX_CONTEXT_TOKENS) or self._limits.context_tokens
        hits = self._search(question, filters, self._contexts.get().candidates)
        context = self._contexts.get().build(question, self._with_items(question, filters, hits), budget)
        self._usage.count(dict.fromkeys(id_ for passage in context.passages for id_ in passage.entry_ids), reads=1)
        return context

    def _find(self, question: str, filters: ChunkFilters, top_k: int | None, *, extractive: bool) -> _Searched:
        """Search for the passages that answer a question. If `top_k` is given, a language model receives only passages
        of the first `top_k` hits. If `extractive` is true, no passages are prepared for a language model."""
        stopwatch = _Stopwatch()
        limit = fields.limit("top_k", self._limits.top_k if top_k is None else top_k)
        uses_model = not extractive and self._answerer.get().model is not None
        # The answer has the first `limit` hits, may quote the first `quotable`, and a model's context is chosen from
        # the first `candidates`. A given `top_k` limits all three.
        if top_k is not None:
            quotable = candidates = limit
        else:
            quotable = max(limit, _QUOTABLE)
            candidates = self._contexts.get().candidates if uses_model else 0
        ranked = self._search(question, filters, max(quotable, candidates))
        hits = ranked.with_hits(ranked[:limit])
        self._usage.count((hit.entry.id for hit in hits), matches=1)
        context = None
        if uses_model:
            wider = ranked if top_k is not None else self._with_items(question, filters, ranked)
            context = self._contexts.get().build(question, wider, self._limits.context_tokens)
        stopwatch.searched = time.perf_counter()
        named = filters.get("document_id") is not None
        sources = ("documents",) if named else checked_sources(filters.get("sources"))
        given = context.hits if context else ()
        return _Searched(
            Found(question, hits, ranked[limit:quotable], given, sources), context, hits.warnings, stopwatch
        )

    def _search(self, question: str, filters: ChunkFilters, limit: int) -> Hits:
        """Return the best hits in the selected sources. Raises `NotFound` if only documents are searched, and the
        selected document does not exist."""
        validation.check_known(filters, ChunkFilters.__annotations__)
        _check_question(question, self._limits.max_chars)
        metadata = filters.get("metadata")
        if (old_name := filters.get("filters")) is not None:
            if metadata is not None:
                raise InvalidInput("filters", "is another name of `metadata`; give only `metadata`")
            metadata = fields.metadata(old_name, "filters")
        selected = {name: value for name, value in filters.items() if name in _OF_DOCUMENTS}
        documents = validation.scope_from({**selected, "metadata": metadata}, Decay())
        chunks = dataclasses.replace(documents, kinds=("chunk",))
        scope = with_sources(chunks, filters)
        if scope.kinds:  # documents only
            hits = self._backend.search(Query(question, scope, limit))
            if not hits and scope.document_id is not None:
                existing_document(self._backend, scope.document_id, scope.namespace, scope.user_id)
            return hits
        query, session = Query(question, scope, limit), fields.optional_name("session_id", filters.get("session_id"))
        return self._contexts.get().search(query, session)

    def _with_items(self, question: str, filters: ChunkFilters, hits: Hits) -> Hits:
        """Return the hits for a question. If the question names a ratio, such as "gross margin", also search for the
        figures from which the ratio is computed, because a report often states only these figures. The second search is
        limited to the document that has the best hits."""
        items = self._contexts.get().items(question)
        document = main_document(hits) if items else None
        if document is None:
            return hits
        narrowed: ChunkFilters = {**filters, "document_id": document, "sources": SOURCES[:1]}
        return with_items(hits, self._search(" ".join(items), narrowed, self._contexts.get().candidates))

    def _events(self, searched: _Searched, max_tokens: int | None) -> Generator[AnswerEvent, None, None]:
        stopwatch = searched.stopwatch
        with closing(self._answerer.get().stream(searched.found, max_tokens=max_tokens)) as events:
            for event in events:
                stopwatch.first_token = stopwatch.first_token or time.perf_counter()
                yield self._completed(event, searched) if isinstance(event, Answer) else event

    def _completed(self, answer: Answer, searched: _Searched) -> Answer:
        """Return the answer with warnings and timings. If a language model wrote the answer, each citation names the
        chunk that contains the quote, and each passage that the model received counts as read."""
        citations, context, hits = answer.citations, searched.context, searched.found.hits
        if answer.mode == "llm" and context:
            read = (id_ for passage in context.passages for id_ in passage.entry_ids)
            self._usage.count(dict.fromkeys(read), reads=1)
            citations = tuple(map(context.located, citations))
        self._usage.count((hit.entry.id for hit in answer.hits[len(hits) :]), matches=1)
        return dataclasses.replace(
            answer,
            citations=citations,
            warnings=(*searched.warnings, *answer.warnings),
            timings=searched.stopwatch.timings(),
        )


def _checked_tokens(value: Any, limit: int) -> int | None:
    """Return `max_tokens` unchanged. Raises `InvalidInput` unless it is None or a whole number in 1..`limit`."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= limit):
        return value
    raise InvalidInput("max_tokens", f"must be a whole number in 1..{limit}, got {value!r:.80}")


def _check_question(question: Any, max_chars: int) -> None:
    if not isinstance(question, str):
        raise InvalidInput("question", f"must be text, got {type(question).__name__}")
    if not question.strip():
        raise InvalidInput("question", "is empty; enter a question")
    if len(question) > max_chars:
        raise InvalidInput("question", f"has {len(question)} characters; shorten it to at most {max_chars}")
    fields.encodable("question", question)
