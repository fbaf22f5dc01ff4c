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


def test_an_unusable_dimension_is_refused() -> None:
    for model in ["x", "-1", "4"]:
        with pytest.raises(InvalidInput, match="embedder"):
            HashingEmbedder.from_settings(model, Settings())
