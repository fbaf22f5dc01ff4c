from __future__ import annotations

import pytest
from agentformer_chargrams import ChargramEmbedder

from agentformer.errors import InvalidInput
from agentformer.settings import Settings
from agentformer.testing import EmbedderConformance


class TestChargrams(EmbedderConformance):
    """The conformance suite of embedders."""

    def make(self) -> ChargramEmbedder:
        return ChargramEmbedder()


def test_an_inflected_word_is_nearer_than_another() -> None:
    rows = ChargramEmbedder().embed_documents(["majakan avaimia", "punainen kaappi"])
    scores = rows @ ChargramEmbedder().embed_query("majakka")
    assert scores[0] > scores[1] + 0.1


@pytest.mark.parametrize("model", ["large", "-1", "4", "100000"])
def test_what_is_no_dimension_is_refused(model: str) -> None:
    with pytest.raises(InvalidInput, match="chargrams takes a dimension"):
        ChargramEmbedder.from_settings(model, Settings())
