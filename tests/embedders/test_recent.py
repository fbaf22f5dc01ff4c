"""The cache of the vectors of recent texts."""

from __future__ import annotations

from collections.abc import Sequence

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.embedders.recent import RecentVectors
from agentformer.types import Matrix, Vector


class Counting(HashingEmbedder):
    """Records the texts and queries that it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.queries: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        self.texts += texts
        return HashingEmbedder().embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        self.queries.append(text)
        return HashingEmbedder().embed_query(text)


def test_a_full_cache_drops_the_vector_that_was_unused_for_the_longest_time() -> None:
    embedder = Counting()
    vectors = RecentVectors(values=2 * embedder.space.dimension)
    for text in ("a", "b", "a", "c", "a", "b"):
        assert vectors.of([text], embedder).shape == (1, embedder.space.dimension)
    assert embedder.texts == ["a", "b", "c", "b"]


def test_a_text_that_occurs_twice_is_embedded_once_and_a_query_apart_from_it() -> None:
    embedder, vectors = Counting(), RecentVectors()
    rows = vectors.of(["the boat", "the shed", "the boat"], embedder)
    assert (rows[0] == rows[2]).all() and (rows[0] != rows[1]).any()
    expected = HashingEmbedder().embed_query("the boat")
    for _ in range(2):
        assert (vectors.of_query("the boat", embedder) == expected).all()
    assert (embedder.texts, embedder.queries) == (["the boat", "the shed"], ["the boat"])
