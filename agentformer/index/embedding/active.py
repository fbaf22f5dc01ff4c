"""Which embedder serves a store now: the one that it was opened with, until the store moves to another space."""

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
    """The embedder of an opened store. It is an `Embedder` itself: what it does is done by the one of the moment.

    A store that another thread or process has moved to another space is followed there: from then on its new space's
    embedder, which `resolve` makes, takes the place of the former one. A store that never agreed with the embedder
    `asked_for` is refused; "" asks for none. Thread-safe.
    """

    def __init__(
        self,
        first: GuardedEmbedder,
        resolve: Callable[[EmbeddingSpace], GuardedEmbedder],
        *,
        asked_for: str = "",
        seconds: float = 30.0,
    ) -> None:
        self._lock = threading.Lock()  # of what is below, never held for long
        self._loading = threading.Lock()
        self._fetching: tuple[EmbeddingSpace, threading.Thread] | None = None
        self._current = first
        self._others: list[GuardedEmbedder] = []
        self._resolve = resolve
        self.asked_for = asked_for
        self._follows = not asked_for
        self._breaker = Breaker(seconds)  # of the embedder of a space that the store moved to

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
        """The embedder of the moment; it stays the same object whatever the store does."""
        with self._lock:
            return self._current

    def everyone(self) -> list[GuardedEmbedder]:
        """All embedders that were used, the one of the moment first."""
        with self._lock:
            return [self._current, *(other for other in self._others if other is not self._current)]

    def at(self, stored: EmbeddingSpace | None) -> GuardedEmbedder:
        """The embedder whose vectors compare with those of a store in the space `stored`.

        Raises `SpaceMismatch` when the store was opened with another one, `EmbedderUnavailable` when it cannot be
        loaded now, or when the model behind a name that had agreed is another one now.
        """
        current = self.current
        if stored is None:  # whoever writes first decides; this one has not been asked for in vain
            self._follows = True
            return current
        given = current.known_space or current.space
        difference = stored.difference(given)
        if not difference:
            self._follows = True
            return current
        if not self._follows:
            raise SpaceMismatch(mismatch_message(stored, given, difference))
        with self._loading:
            made = self._other(stored)
            with self._lock:
                former, self._current = self._current, made
        if former is not made:
            log.warning("this store is in the space of %s now, and so is its embedder", stored.spec)
        return made

    def at_hand(self, stored: EmbeddingSpace) -> GuardedEmbedder | None:
        """Like `at`, but the embedder of a space that the store has moved to is loaded in the background, and None is
        returned until that has gone well or not."""
        current = self.current
        if not self._follows or not stored.difference(current.known_space or current.space) or self._known(stored):
            return self.at(stored)
        with self._lock:
            if self._fetching is None or self._fetching[0] != stored:
                thread = threading.Thread(target=self._fetch, args=(stored,), name="agentformer-embedder", daemon=True)
                self._fetching = stored, thread
                thread.start()
            thread = self._fetching[1]
        return None if thread.is_alive() else self.at(stored)

    def agree(self) -> None:
        """The store was found to be in this embedder's space, or to be empty: where it goes is followed from now on."""
        self._follows = True

    def use(self, embedder: GuardedEmbedder) -> None:
        """An embedder that is at hand, for when the store moves to its space."""
        with self._lock:
            self._others.append(embedder)

    def retry_now(self) -> None:
        """Do not wait for one that failed: somebody asks for it."""
        self._breaker.reset()
        for embedder in self.everyone():
            embedder.retry_now()

    def _fetch(self, stored: EmbeddingSpace) -> None:
        with suppress(AgentFormerError):  # the next call of `at` tells
            self.at(stored)

    def _known(self, stored: EmbeddingSpace) -> GuardedEmbedder | None:
        """One that was loaded before."""
        fits = (e for e in self.everyone() if e.known_space and not stored.difference(e.known_space))
        return next(fits, None)

    def _other(self, stored: EmbeddingSpace) -> GuardedEmbedder:
        if known := self._known(stored):
            return known
        if reason := self._breaker.blocked():
            raise EmbedderUnavailable(reason)
        try:
            made = self._resolve(stored)
            check_same_space(stored, made.space)
        except (EmbedderUnavailable, SpaceMismatch) as failure:
            self._breaker.failed(str(failure))
            raise EmbedderUnavailable(str(failure)) from failure
        self._breaker.succeeded()
        self.use(made)
        return made


def at_hand(embedder: Embedder, stored: EmbeddingSpace) -> Embedder | None:
    """Like `embedder_for`, but None while the embedder of a space that the store has moved to is being loaded."""
    return embedder.at_hand(stored) if isinstance(embedder, ActiveEmbedder) else embedder_for(embedder, stored)


def embedder_for(embedder: Embedder, stored: EmbeddingSpace | None) -> Embedder:
    """One embedder for a piece of work, comparable with a store in the space `stored`. Raises `SpaceMismatch`."""
    if isinstance(embedder, ActiveEmbedder):
        return embedder.at(stored)
    if stored:
        check_same_space(stored, embedder.space)
    return embedder


def current_embedder(embedder: Embedder) -> Embedder:
    """The embedder of the moment, for work that needs one and the same throughout but no store."""
    return embedder.current if isinstance(embedder, ActiveEmbedder) else embedder


def retry_now(embedder: Embedder) -> None:
    """Ask the embedder again at once, where it was left alone after a failure."""
    if isinstance(embedder, ActiveEmbedder):
        embedder.retry_now()
