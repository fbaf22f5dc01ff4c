"""What the parts of the suite share: opening, closing, and the scope of everything."""

from __future__ import annotations

import unittest
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.types import Embedder, Hits, MemoryBackend, Query, Scope

Mode = Literal["hybrid", "dense", "lexical"]
EVERYTHING = Scope(include_archived=True)


class BackendCase:
    """One test's backends. Each test opens its own in its own folder, and all are closed at its end.

    A backend that keeps no vectors says so with `vectors = False`: what only vectors can do is then skipped, and
    the rest is checked by words alone.
    """

    vectors = True
    _opened: list[MemoryBackend]

    def open(self, folder: Path, embedder: Embedder) -> MemoryBackend:
        """The backend under test over `folder`; called again with the same folder, it opens the same store."""
        raise NotImplementedError

    def setup_method(self) -> None:
        self._opened = []

    def teardown_method(self) -> None:
        for backend in self._opened:
            backend.close()

    def start(self, folder: Path, embedder: Embedder | None = None) -> MemoryBackend:
        backend = self.open(folder, embedder or HashingEmbedder())
        self._opened.append(backend)
        return backend

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The ways to search in which this backend finds anything."""
        return ("hybrid", "dense", "lexical") if self.vectors else ("hybrid", "lexical")

    def needs_vectors(self) -> None:
        """Skips the test on a backend without vectors."""
        if not self.vectors:
            raise unittest.SkipTest("this backend keeps no vectors")

    def by_vectors(self, backend: MemoryBackend, text: str, scope: Scope | None = None) -> list[str]:
        """Ids that the vectors find, sorted: all in the scope. Without vectors, those that the words find."""
        if not self.vectors:
            return by_words(backend, text, scope)
        hits = backend.search(Query(text, scope or Scope(), limit=1000, mode="dense"))
        return sorted(hit.entry.id for hit in hits)


def found(hits: Hits) -> list[str]:
    """Contents, best first."""
    return [hit.entry.content for hit in hits]


def by_words(backend: MemoryBackend, text: str, scope: Scope | None = None) -> list[str]:
    """Ids that the words find, sorted."""
    hits = backend.search(Query(text, scope or Scope(), limit=1000, mode="lexical"))
    return sorted(hit.entry.id for hit in hits)


def state(backend: MemoryBackend, ids: Sequence[str]) -> list[object]:
    """All that a failed call must have left alone."""
    return [list(backend.list(EVERYTHING, limit=1000)), list(backend.get(ids)), *(backend.history(i) for i in ids)]


@contextmanager
def raises(*kinds: type[Exception]) -> Iterator[None]:
    """Fails unless the block raises one of `kinds`."""
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"nothing was raised, expected {' or '.join(kind.__name__ for kind in kinds)}")
