"""Quotes from reports: rows of tables, lists below a title, tables of contents, and the next hits of a document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer import AgentFormer
from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.passages import read_passages
from agentformer.rag.answer.quotes import RankedSentence, rank_sentences
from agentformer.rag.answer.sources import Found
from agentformer.text.analysis import analyze_query
from agentformer.types import Answer, Hit, MemoryEntry, Source

QUARTER = """Three Months Ended
2023 2022
Sales $ 12 $ 11
Operating income 3 2
Total assets 90 80
Other assets 7 6
"""
YEAR = QUARTER.replace("Three Months", "Twelve Months").replace("Operating income 3 2", "Operating income 14 13")
REGIONS = """Sales by region
2023 2022
Harbour 410 600
Island 900 880
Forest 350 345
Total 1,660 1,825
"""


def chunk(text: str, page: int, document: str = "report.pdf", score: float = 1.0) -> Hit:
    source = Source(document, document, page, str(page), 0, len(text))
    return Hit(MemoryEntry(f"{document}{page}", text, kind="chunk", context=document, source=source), score)


def first(question: str, *hits: Hit) -> RankedSentence:
    return rank_sentences(analyze_query(question), read_passages(hits, "en"))[0]


def test_the_length_of_the_asked_period_chooses_the_table() -> None:
    hits = chunk(QUARTER, 1), chunk(YEAR, 2)
    for text, value in (("FY2023", "14"), ("Q4 of FY2023", "3")):
        assert f"2023: {value} |" in first(f"What was the operating income for {text}?", *hits).text


def test_a_label_without_other_words_is_quoted() -> None:
    assert "Total assets" in first("What are the total assets for 2023?", chunk(QUARTER, 1)).text


@pytest.mark.parametrize(
    ("question", "region"),
    [
        ("Which region had the highest sales in 2023?", "Island"),
        ("Which region had the lowest sales in 2023?", "Forest"),
        ("Which region had the biggest drop of sales in 2023?", "Harbour"),
    ],
)
def test_a_superlative_chooses_the_row_with_this_value(question: str, region: str) -> None:
    assert first(question, chunk(REGIONS, 1)).text.startswith(f"{region} |")


def test_a_table_of_contents_is_no_quote() -> None:
    contents = "1 Sailing rules 1\n2 Harbour fees 4\nKeys of boats 5"
    text = "The keys of the boats hang in the blue cupboard."
    assert first("Where are the keys of the boats?", chunk(contents, 1), chunk(text, 5)).text == text


def test_a_title_comes_with_the_list_below_it() -> None:
    text = "Defaults of the options\n• -s 3\n• -k avg\n\nThe program reads a file and prints its lines."
    quote = first("What are the defaults of the options?", chunk(text, 1)).text
    assert quote == "Defaults of the options\n• -s 3\n• -k avg"


KEYS = "The keys of the boat house hang in the blue cupboard."
OTHERS = [chunk(f"The boat house was painted in {1900 + n}.", n, score=0.9) for n in range(1, 4)]


def test_a_next_hit_of_the_same_document_is_quoted_and_shown() -> None:
    answerer = Answerer(None, None, abstain=0.0)
    answer = answerer.answer(
        Found("Where do the keys of the boat house hang?", OTHERS, more=[chunk(KEYS, 9, score=0.8)])
    )
    assert answer.citations[0].quote == KEYS
    assert [hit.entry.id for hit in answer.hits] == ["report.pdf1", "report.pdf2", "report.pdf3", "report.pdf9"]
    assert answerer.answer(Found("When was the boat house painted?", OTHERS, more=[chunk(KEYS, 9)])).hits == tuple(
        OTHERS
    )


def test_a_next_hit_of_another_document_is_not_quoted() -> None:
    more = [chunk(KEYS, 9, "other.pdf", 0.8)]
    answer = Answerer(None, None, abstain=0.0).answer(
        Found("Where do the keys of the boat house hang?", OTHERS, more=more)
    )
    assert {citation.document for citation in answer.citations} == {"report.pdf"}
    assert answer.hits == tuple(OTHERS)


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    places = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "up"}
    with agentformer.connect(embedder="hashing", chunk_tokens=30, chunk_overlap=0, clean_every=0, **places) as af:
        yield af


def test_a_given_top_k_limits_the_hits_that_are_quoted(af: AgentFormer) -> None:
    text = "\n\n".join(f"Boat house {n}: the boat house has boats and number {n} and much paint." for n in range(9))
    af.rag.upload(text.encode(), name="boats.txt")
    question = "Which number has the boat house?"
    assert len(af.rag.query(question, top_k=1).hits) == 1
    answer = af.rag.query(question)
    assert 3 <= len(answer.hits) <= 5
    assert {citation.entry_id for citation in answer.citations} <= {hit.entry.id for hit in answer.hits}


def test_a_question_for_a_ratio_has_its_items_in_the_context(af: AgentFormer) -> None:
    margins = "\n\n".join(
        f"The gross margin of plan {n} is important, so plan {n} has a gross margin." for n in range(40)
    )
    report = f"{margins}\n\nCost of sales were 410 and net sales were 900, which is a gross profit of 490."
    af.rag.upload(report.encode(), name="report.txt")
    af.rag.upload(b"Cost of sales were 1 and net sales were 2.", name="other.txt")
    context = af.rag.context("What is the gross margin of the plan?", max_tokens=600)
    assert "Cost of sales were 410" in context.text
    assert "net sales were 2." not in context.text


def test_without_top_k_five_hits_may_be_quoted_and_three_are_shown(
    af: AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n\n".join(f"Boat house {n}: the boat house has boats and number {n} and much paint." for n in range(9))
    af.rag.upload(text.encode(), name="boats.txt")
    given: list[tuple[int, int]] = []
    answer = Answerer.answer

    def counted(answerer: Answerer, found: Found, **options: Any) -> Answer:
        given.append((len(found.hits), len(found.more)))
        return answer(answerer, found, **options)

    monkeypatch.setattr(Answerer, "answer", counted)
    for top_k in (None, 1, 7):
        af.rag.query("Which number has the boat house?", top_k=top_k)
    assert given == [(3, 2), (1, 0), (7, 0)]
