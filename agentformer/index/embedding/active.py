"""The active embedder of a store: the embedder with which the store was opened, until the store moves to another
space."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from agentformer.embedders import GuardedEmbedder
from agentformer.errors import AgentFormerError, EmbedderUnavailable, SpaceMismatch
from agentformer.http.guarded import Breaker
from agentformer.records.spaces import check_same_space, mismatch_message
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Span, Vector

log = logging.getLogger("agentformer")


class ActiveEmbedder:
    """The embedder of an opened store. It implements `Embedder` and forwards every call to the current embedder.

    When another thread or process moves the store to another space, `resolve` makes the embedder of that space, which
    becomes the current embedder. If `requested` names an embedder and the store never used its space, the store is
    refused. With `requested` "", any space is accepted. Thread-safe.
    """

    def __init__(
        self,
        first: GuardedEmbedder,
        resolve: Callable[[EmbeddingSpace], GuardedEmbedder],
        *,
        requested: str = "",
        seconds: float = 30.0,
    ) -> None:
        self._lock = threading.Lock()  # of the fields below; never held for long
        self._loading = threading.Lock()
        self._background: tuple[EmbeddingSpace, threading.Thread] | None = None
        self._current = first
        self._others: list[GuardedEmbedder] = []
        self._resolve = resolve
        self.requested = requested
        self._follows = not requested
        self._breaker = Breaker(seconds)  # of the embedder of a space that the store has moved to

    @property
    def space(self) -> EmbeddingSpace:
        return self.current.space

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        return self.current.embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        return self.current.embed_query(text)

    def token_spans(self, text: str) -> list[Span]:
        return self.current.token_spans(text)

    @property
    def current(self) -> GuardedEmbedder:
        """The current embedder. The returned object does not change when the store moves to another space."""
        with self._lock:
            return self._current

    def used(self) -> list[GuardedEmbedder]:
        """Return all embedders used so far. The current embedder is first."""
        with self._lock:
            return [self._current, *(other for other in self._others if other is not self._current)]

    def for_space(self, stored: EmbeddingSpace | None) -> GuardedEmbedder:
        """Return the embedder for a store in the space `stored`, or None for a store without vectors. Raises
        `SpaceMismatch` if the store was opened with another embedder. Raises `EmbedderUnavailable` if the embedder
        cannot be loaded now, or if another model is now installed under its name."""
        current = self.current
        if stored is None:  # the first writer decides
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
                "This store has moved to another embedding space; texts are embedded with %s from now on", stored.spec
            )
        return embedder

    def loaded_for_space(self, stored: EmbeddingSpace) -> GuardedEmbedder | None:
        """Return the same as `for_space`, but return None while the embedder is being loaded in the background."""
        current = self.current
        own = current.known_space or current.space
        if not self._follows or not stored.difference(own) or self._used_for(stored):
            return self.for_space(stored)

        def load() -> None:
            with suppress(AgentFormerError):  # the next call of `for_space` raises it
                self.for_space(stored)

        with self._lock:
            if self._background is None or self._background[0] != stored:
                thread = threading.Thread(target=load, name="agentformer-embedder", daemon=True)
                self._background = stored, thread
                thread.start()
            thread = self._background[1]
        return None if thread.is_alive() else self.for_space(stored)

    def follow_store(self) -> None:
        """Follow the store to other spaces from now on. The store must be empty or in the space of this embedder."""
        self._follows = True

    def register(self, embedder: GuardedEmbedder) -> None:
        """Register a loaded embedder. It is used when the store moves to its space."""
        with self._lock:
            self._others.append(embedder)

    def retry_now(self) -> None:
        """Allow the next call immediately after a failure."""
        self._breaker.reset()
        for embedder in self.used():
            embedder.retry_now()

    def _used_for(self, stored: EmbeddingSpace) -> GuardedEmbedder | None:
        """Return an embedder of this space that was used or registered earlier."""
        matching = (e for e in self.used() if e.known_space and not stored.difference(e.known_space))
        return next(matching, None)

    def _load(self, stored: EmbeddingSpace) -> GuardedEmbedder:
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


def embedder_for(embedder: Embedder, stored: EmbeddingSpace | None) -> Embedder:
    """Return one embedder to be used for all steps of a task on a store in the space `stored`. Raises
    `SpaceMismatch`."""
    if isinstance(embedder, ActiveEmbedder):
        return embedder.for_space(stored)
    if stored:
        check_same_space(stored, embedder.space)
    return embedder


def current_embedder(embedder: Embedder) -> Embedder:
    """Return one embedder to be used for all steps of a task that needs no store."""
    return embedder.current if isinstance(embedder, ActiveEmbedder) else embedder
