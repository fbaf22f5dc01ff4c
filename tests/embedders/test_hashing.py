from __future__ import annotations

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput
from agentformer.settings import Settings
from agentformer.testing import EmbedderConformance


class TestHashing(EmbedderConformance):
    def make(self) -> HashingEmbedder:
        return HashingEmbedder()


def test_the_dimension_is_part_of_the_name() -> None:
    embedder = HashingEmbedder.from_settings("64", Settings())
    assert (embedder.space.model, embedder.space.dimension) == ("64", 64)
    assert embedder.embed_query("a").shape == (64,)


def test_vectors_are_the_same_in_every_version() -> None:
    # Memories store these vectors, so another version of the package must compute equal vectors.
    embedder = HashingEmbedder(8)
    assert embedder.embed_query("Red boat!") == pytest.approx([0, 0, 0.729, 0, 0, 0, 0.5608, 0.3925], abs=1e-4)
    assert embedder.embed_query("").tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    for dimension in (8, 65_536):
        assert HashingEmbedder(dimension).space.dimension == dimension
    for dimension in (7, 65_537):
        with pytest.raises(InvalidInput, match="between 8 and 65536"):
            HashingEmbedder(dimension)


def test_an_unusable_dimension_is_refused() -> None:
    for model in ["x", "-1", "4"]:
        with pytest.raises(InvalidInput, match="embedder"):
            HashingEmbedder.from_settings(model, Settings())
