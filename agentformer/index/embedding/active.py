"""The active embedder of a store. It changes when the store moves to another embedding space, which means that all
entries were embedded again with another model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from agentformer.embedders.guarded import GuardedEmbedder
from agentformer.errors import AgentFormerError, EmbedderError, EmbedderUnavailable, SpaceMismatch, StoreError
from agentformer.http.circuit_breaker import Breaker
from agentformer.records.spaces import active_space, check_same_space, mismatch_message
from agentformer.types import Embedder, EmbeddingSpace, Matrix, RecordStore, Span, TokenVectors, Vector

log = logging.getLogger("agentformer")


class ActiveEmbedder:
    """The embedder of an opened store, which forwards every call to the current embedder. When another thread or
    process moves the store to another embedding space, the function `resolve` loads the embedder of this space, which
    becomes the current embedder. `requested` is the name of the embedder that the user asked for, or "". With a name,
    the store must have the space of this embedder (or no vectors) when it is opened; otherwise, `for_space` raises
    `SpaceMismatch`. With "", every space is accepted. Thread-safe."""

    def __init__(
        self,
        first: GuardedEmbedder,
        resolve: Callable[[EmbeddingSpace], GuardedEmbedder],
        *,
        requested: str = "",
        seconds: float = 30.0,
    ) -> None:
        self._lock = threading.Lock()  # protects the fields below; never held for long
        self._loading = threading.Lock()
        self._background: tuple[EmbeddingSpace, threading.Thread] | None = None
        self._current = first
        self._others: list[GuardedEmbedder] = []
        self._resolve = resolve
        self.requested = requested
        self._follows = not requested
        self._breaker = Breaker(seconds)  # for the embedder of the space to which the store has moved

    @property
    def space(self) -> EmbeddingSpace:
        return self.current.space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        return self.current.embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        return self.current.embed_query(text)

    def embed_tokens(self, texts: Sequence[str], *, query: bool = False) -> list[TokenVectors] | None:
        return self.current.embed_tokens(texts, query=query)

    def token_spans(self, text: str) -> list[Span]:
        return self.current.token_spans(text)

    @property
    def current(self) -> GuardedEmbedder:
        """The current embedder. A caller that keeps the returned object continues to use the same model, even if the
        store moves to another space."""
        with self._lock:
            return self._current

    def used(self) -> list[GuardedEmbedder]:
        """Return all embedders that were current or registered until now, the current one first."""
        with self._lock:
            return [self._current, *(other for other in self._others if other is not self._current)]

    def for_space(self, stored: EmbeddingSpace | None) -> GuardedEmbedder:
        """Return the embedder of the space `stored`, which is the space of the store. If `stored` is None because the
        store has no vectors, return the current embedder. Raises `SpaceMismatch` if the user requested an embedder of
        another space (see the class). Raises `EmbedderUnavailable` if the embedder cannot be loaded, or if its name now
        belongs to another model."""
        current = self.current
        if stored is None:  # the first write determines the space of the store
            self._follows = True
            return current
        own = current.known_space or current.space
        difference = stored.difference(own)
        if not difference:
            self._follows = True
            return current
        if not self._follows:
            raise SpaceMismatch(mismatch_message(stored, own, difference))
        with self._loading:
            embedder = self._load(stored)
            with self._lock:
                former, self._current = self._current, embedder
        if former is not embedder:
            log.warning(
                "This store was re-embedded with another model; from now on, this process embeds texts with %s",
                stored.spec,
            )
        return embedder

    def loaded_for_space(self, stored: EmbeddingSpace) -> GuardedEmbedder | None:
        """Return the same embedder as `for_space`, but do not wait while a model is loaded. If the model is not loaded
        yet, a background thread loads it, and the result is None until the model is loaded."""
        current = self.current
        own = current.known_space or current.space
        if not self._follows or not stored.difference(own) or self._used_for(stored):
            return self.for_space(stored)

        def load() -> None:
            with suppress(AgentFormerError):  # the next call of `for_space` raises the error again
                self.for_space(stored)

        with self._lock:
            if self._background is None or self._background[0] != stored:
                thread = threading.Thread(target=load, name="agentformer-embedder", daemon=True)
                self._background = stored, thread
                thread.start()
            thread = self._background[1]
        return None if thread.is_alive() else self.for_space(stored)

    def follow_store(self) -> None:
        """Start to follow the store: replace the embedder whenever the store changes to another embedding space. At the
        time of this call, the store must be empty, or use the embedding space of the current embedder."""
        self._follows = True

    def register(self, embedder: GuardedEmbedder) -> None:
        """Register a loaded embedder. If the store later moves to its space, it becomes the current embedder."""
        with self._lock:
            self._others.append(embedder)

    def retry_now(self) -> None:
        """Allow the next call to use the model immediately, even if the model has just failed."""
        self._breaker.reset()
        for embedder in self.used():
            embedder.retry_now()

    def _used_for(self, stored: EmbeddingSpace) -> GuardedEmbedder | None:
        """Return an embedder of the space `stored` that was used or registered earlier, or None."""
        matching = (e for e in self.used() if e.known_space and not stored.difference(e.known_space))
        return next(matching, None)

    def _load(self, stored: EmbeddingSpace) -> GuardedEmbedder:
        """Return an embedder of this space: one in use, or else a new one. Raises `EmbedderUnavailable`."""
        if embedder := self._used_for(stored):
            return embedder
        if reason := self._breaker.blocked():
            raise EmbedderUnavailable(reason)
        try:
            embedder = self._resolve(stored)
            check_same_space(stored, embedder.space)
        except (EmbedderUnavailable, SpaceMismatch) as failure:
            self._breaker.failed(str(failure))
            raise EmbedderUnavailable(str(failure)) from failure
        self._breaker.succeeded()
        self.register(embedder)
        return embedder


def active_embedder(database: RecordStore, embedder: Embedder) -> tuple[Embedder | None, str]:
    """Return the embedder of the store's active embedding space, and "". If this embedder cannot be used, return None
    and the reason. If the store has no vectors, it needs no embedder, and the result is None and ""."""
    try:
        with database.reading() as connection:
            active = active_space(connection)
        return (embedder_for(embedder, active[1]), "") if active else (None, "")
    except (EmbedderError, StoreError) as error:
        return None, str(error)


def embedder_for(embedder: Embedder, stored: EmbeddingSpace | None) -> Embedder:
    """Return an embedder of the space `stored`. The model of this embedder never changes. A long task needs this,
    because an `ActiveEmbedder` changes its model when the store moves to another space. `stored` is None for a store
    without vectors. Raises `SpaceMismatch` if `embedder` has another space and cannot change."""
    if isinstance(embedder, ActiveEmbedder):
        return embedder.for_space(stored)
    if stored:
        check_same_space(stored, embedder.space)
    return embedder


def current_embedder(embedder: Embedder) -> Embedder:
    """Return an embedder with the current model of `embedder`, which may be an `ActiveEmbedder`. The model of the
    result never changes. Unlike `embedder_for`, this function does not check the space of the store."""
    return embedder.current if isinstance(embedder, ActiveEmbedder) else embedder
