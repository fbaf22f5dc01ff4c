"""The cache of query vectors: a repeated query is not embedded again, and spaces stay apart."""

from __future__ import annotations

import numpy as np

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.search import vector_search
from agentformer.search.vector_search import QueryVectorCache
from agentformer.types import Vector


class Counting(HashingEmbedder):
    def __init__(self) -> None:
        super().__init__(16)
        self.asked: list[str] = []

    def embed_query(self, text: str) -> Vector:
        self.asked.append(text)
        return super().embed_query(text) * (1 if len(self.asked) % 2 else -1)


def test_a_repeated_question_costs_nothing_within_its_space() -> None:
    embedder, kept = Counting(), QueryVectorCache()
    first = kept.embed(embedder, 1, "where is the numbat")
    assert kept.embed(embedder, 1, "where is the numbat") is first
    assert embedder.asked == ["where is the numbat"]
    assert np.array_equal(kept.embed(embedder, 2, "where is the numbat"), -first)
    assert len(embedder.asked) == 2


def test_the_last_questions_are_kept_and_no_pasted_pages() -> None:
    embedder, kept = Counting(), QueryVectorCache()
    for n in range(vector_search._CACHED_QUERIES + 1):
        kept.embed(embedder, 1, f"question {n}")
    asked = len(embedder.asked)
    kept.embed(embedder, 1, f"question {vector_search._CACHED_QUERIES}")
    assert len(embedder.asked) == asked
    kept.embed(embedder, 1, "question 0")
    assert len(embedder.asked) == asked + 1
    for length, times in ((vector_search._CACHED_LENGTH, 1), (vector_search._CACHED_LENGTH + 1, 2)):
        asked = len(embedder.asked)
        for _ in range(2):
            kept.embed(embedder, 1, "x" * length)
        assert len(embedder.asked) == asked + times
