"""A query is analyzed once per search, and each hit at most once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.index import entry_properties
from agentformer.search import newest_facts, relevance
from agentformer.text import analysis
from agentformer.text.analysis import QueryTerms, Terms, analyze_query

QUERY = "Where does Anna's ferry land on 7 May 2023?"
FACTS = [
    {"content": "Anna's ferry lands in Turku.", "title": "Anna", "metadata": {"aliases": ["Annie"]}},
    {"content": "Anna lives in Oslo.", "occurred_at": "2023-05-07T10:00:00+00:00"},
    {"content": "Anna lives in Turku.", "occurred_at": "2022-05-07T10:00:00+00:00"},
    {"content": "Anna asuu lautalla ja matkustaa aina Turkuun."},
]


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, calls: Counter[str]) -> None:
    function = getattr(module, name)

    def counting(text: str, *rest: Any) -> Any:
        calls[text] += 1
        return function(text, *rest)

    monkeypatch.setattr(module, name, counting)


@pytest.mark.parametrize("relevant_only", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_search_analyzes_its_query_once_and_each_hit_at_most_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relevant_only: bool, kept: bool
) -> None:
    if not kept:
        monkeypatch.setattr(entry_properties, "read", lambda connection, nums: {})
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        af.memory.store_many(FACTS)
        af.memory.search("warm up the indexes")
        tokenized, detected = Counter[str](), Counter[str]()
        count_calls(monkeypatch, analysis, "lexemes", tokenized)
        count_calls(monkeypatch, analysis, "parts_without_spaces", tokenized)
        own = relevance.entry_language
        monkeypatch.setattr(relevance, "entry_language", lambda hit: detected.update([hit.content]) or own(hit))
        analyze_query.cache_clear()
        hits = af.memory.search(QUERY, relevant_only=relevant_only)
    assert hits
    assert tokenized[QUERY] == 1
    assert [text for text, count in tokenized.items() if count > 1 and " " in text] == []
    # the language of an entry is kept beside it
    assert detected == {} if kept else {*detected.values()} == {1}
    read = [text for text in tokenized if any(fact["content"] in text for fact in FACTS)]
    assert len(read) == (len(FACTS) if relevant_only else 0)


def test_the_language_and_each_set_of_terms_are_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    query = QueryTerms.of("Where are the keys?")
    calls = Counter[str]()
    count_calls(monkeypatch, analysis, "detect_language", calls)
    assert [query.language for _ in range(3)] == ["en"] * 3 and calls.total() == 1
    assert query.terms(["fi", "en"]) is query.terms(["en", "fi"]) and calls.total() == 1
    assert query.terms(["en"]) is query.terms(["en"]) is not query.as_text("en")
    assert query.as_text("en") is query.as_text("en") != query.as_text("fi")
    assert query.terms(["en"]).stems == ("en~key",) and calls.total() == 2


def test_equal_queries_share_one_analysis_and_a_long_one_is_cut() -> None:
    assert analyze_query("lighthouse keeper") is analyze_query("lighthouse keeper")
    assert len(QueryTerms.of("a" * 9_000).text) == analysis.MAX_QUERY == 4_000
    assert QueryTerms.of("").terms(["en"]) == Terms((), ())


def test_the_language_of_an_entry_is_detected_once_and_metadata_decides_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Counter[str]()
    count_calls(monkeypatch, entry_properties, "detect_language", calls)
    languages = newest_facts.EntryLanguages()
    entry = agentformer.MemoryEntry(id="1", content="4711", metadata={"language": "sv-SE"})
    finnish = agentformer.MemoryEntry(
        id="2", content="Hän on siellä, kun se ei ole täällä, ja minä olen kotona.", metadata={"language": "sv"}
    )
    assert [languages.of(entry), languages.of(entry), languages.of(finnish)] == ["sv", "sv", "fi"]
    assert calls.total() == 2
