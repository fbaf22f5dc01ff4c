"""The coverage of languages by an embedder."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.search.vector_weight import LanguageCoverage, asks_for_code, code_factor, weight_factors
from agentformer.text.analysis import analyze_query
from agentformer.types import EmbeddingSpace, Factor, Span

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


class Splits(Declares):
    """Splits each word into tokens of `size` characters."""

    def __init__(self, size: int) -> None:
        super().__init__("")
        self.size = size

    def token_spans(self, text: str) -> list[Span]:
        return [Span(m.start(), m.end()) for m in re.finditer(rf"[^ ]{{1,{self.size}}}", text)]

    @property
    def space(self) -> EmbeddingSpace:
        return replace(super().space, revision=str(self.size))


def test_coverage_falls_from_1_6_to_2_tokens_per_word() -> None:
    one, two = "aaaa", "bbbbbbbb"  # a word of one token, and a word of two tokens
    for words, coverage in [
        ([one] * 10, 1.0),
        ([one] * 4 + [two] * 6, 1.0),
        ([one] * 2 + [two] * 8, 0.5),
        ([two] * 10, 0.0),
        (["c" * 12], 0.0),
    ]:
        assert LanguageCoverage(Splits(4)).of([" ".join(words)]) == pytest.approx(coverage)


def test_token_counts_are_cached_for_one_space(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Splits(4)
    coverage = LanguageCoverage(embedder)
    assert coverage.of(["aaaa bbbbbbbb bbbbbbbb bbbbbbbb"]) == pytest.approx(0.625)
    read = embedder.token_spans
    monkeypatch.setattr(embedder, "token_spans", lambda text: pytest.fail("not cached") if "a" in text else read(text))
    assert coverage.of(["aaaa dddddddd dddddddd dddddddd dddddddd"]) == pytest.approx(0.5)
    monkeypatch.undo()
    embedder.size = 2
    assert coverage.of(["aaaa bbbbbbbb"]) == 0.0


def weight(covered: float, *, messages: bool = False) -> float:
    return math.prod(factor.value for factor in weight_factors(covered, messages=messages))


@given(st.floats(0, 1))
def test_the_weight_has_bounds(covered: float) -> None:
    assert 0.7 <= weight(covered) <= 4.0


def test_vectors_weigh_more_where_the_words_have_found_little() -> None:
    for covered, expected in [(1.0, 0.7), (0.55, 0.7), (0.44, 0.7 * 1.25**3), (0.1, 4.0), (0.0, 4.0)]:
        assert weight(covered) == pytest.approx(expected), covered
    assert weight(0.275, messages=True) == pytest.approx(1.4), "messages are found by their neighbours too"


def test_a_model_that_declares_none_is_judged_by_its_tokens() -> None:
    # The hashing embedder makes one token of most words, so to it every language is known.
    assert LanguageCoverage(Declares("")).of([ENGLISH]) == 1.0
    assert LanguageCoverage(Declares("")).of(["12 34"]) == 1.0


CODE = 'def read_rows(path):\n    """Return the rows."""\n    table = open(path)\n    return table.split()\n'


def test_the_weight_is_the_product_of_its_factors() -> None:
    assert weight_factors(0.44) == (Factor("usual", 0.7), Factor("missed", pytest.approx(1.25**3)))
    assert weight_factors(0.03) == (Factor("most", 4.0),)


@pytest.mark.parametrize(
    ("query", "passages", "found"),
    [
        ("how to read the rows of a table", [CODE, CODE, ENGLISH], True),
        ("delete 2 rows in python 3", [CODE], True),  # numbers are no identifiers
        ("how to read the rows of a table", [CODE, ENGLISH, ENGLISH], False),
        ("how to read the rows of a table", [ENGLISH], False),
        ("how to read the rows of a table", [], False),
        ("where is read_rows", [CODE], False),
        ("getUserName returns nothing", [CODE], False),
    ],
)
def test_a_question_in_plain_words_for_code_is_recognised(query: str, passages: list[str], found: bool) -> None:
    assert asks_for_code(analyze_query(query), passages) is found


def test_code_shows_no_language_of_a_search() -> None:
    coverage = LanguageCoverage(Declares("en"))
    query = analyze_query("how to read the rows of a table")
    estonian = "def koer(see):\n    # mis on selle nimi ja kus see on\n    return see.nimi\n"
    assert coverage.of_search(query, [estonian], lambda: pytest.fail("not needed")) == 1.0
    alone = coverage.of_search(query, [GERMAN, GERMAN], lambda: [GERMAN])
    assert coverage.of_search(query, [estonian, GERMAN, GERMAN], lambda: [GERMAN]) == alone < 1.0


def test_comments_of_code_show_the_language_of_a_few_words() -> None:
    coverage = LanguageCoverage(Declares("en"))
    query = analyze_query("python pdb see stack")
    assert query.language == "et" and coverage.of_query(query) == 0.0  # so short a query is easily misread
    commented = CODE.replace("Return the rows.", "Return the rows that were read from the file, and close it.")
    assert coverage.of_search(query, [commented], lambda: []) == 1.0
    bare = "def read(path):\n    return open(path).read()\n"
    assert coverage.of_search(query, [bare], lambda: []) == 0.0


@pytest.mark.parametrize(("weight", "factor"), [(0.75, 4.0), (2.0, 1.5), (3.0, 1.0), (4.0, 1.0)])
def test_code_raises_the_weight_to_3(weight: float, factor: float) -> None:
    halves = [Factor("usual", weight / 2), Factor("missed", 2.0)]
    assert code_factor(halves) == Factor("code", pytest.approx(factor))
