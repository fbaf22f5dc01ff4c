"""The coverage of languages by an embedder."""

from __future__ import annotations

from dataclasses import replace

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.search.weights import LanguageCoverage
from agentformer.types import EmbeddingSpace

FINNISH = "Sataman päällikkö säilyttää majakan avaimia työhuoneensa kaapissa, ja kalastajat hakevat ne aamulla."
ENGLISH = "The harbour master keeps the keys of the lighthouse in his desk, and the fishermen take them in the morning."
GERMAN = "Der Hafenmeister bewahrt die Schlüssel des Leuchtturms in seinem Schreibtisch auf."


class Declares(HashingEmbedder):
    def __init__(self, languages: str) -> None:
        super().__init__()
        self._languages = languages

    @property
    def space(self) -> EmbeddingSpace:
        return replace(super().space, languages=self._languages)


def test_a_model_that_declares_its_languages_judges_those() -> None:
    for languages, text, weight in [
        ("*", FINNISH, 1.0),
        ("en", ENGLISH, 1.0),
        ("en", FINNISH, 0.0),
        ("en de", GERMAN, 1.0),
        ("en fi", GERMAN, 0.0),
        ("en", "4711 SKU-12", 1.0),
        ("en", "日本語の文書の中に答えがあります。", 0.0),
    ]:
        assert LanguageCoverage(Declares(languages)).of([text]) == weight


def test_a_model_that_declares_none_is_judged_by_its_tokens() -> None:
    # The hashing embedder makes one token of most words, so to it every language is known.
    assert LanguageCoverage(Declares("")).of([ENGLISH]) == 1.0
    assert LanguageCoverage(Declares("")).fertility("12 34") == 1.0
