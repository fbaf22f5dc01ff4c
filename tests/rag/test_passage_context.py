"""The context for a model: what fits a budget, best first, each text once, with positions that are exact."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer import AgentFormer
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput
from agentformer.rag.answer.context import best_part
from agentformer.text.analysis import analyze_query
from agentformer.types import Answer, Hit, MemoryEntry, Span
from tests.rag.models import Scripted

KEYS = "The caretaker keeps the keys of the boat house in the blue cupboard."
FILLER = "Paint the hull before the summer begins, and let it dry for a week in the sun."
PAGE = " ".join([FILLER, FILLER.replace("hull", "deck"), KEYS, FILLER.replace("hull", "mast"), "Dogs wait outside."])


def opened(folder: Path, **options: Any) -> AgentFormer:
    places = {"index_dir": folder / "index", "upload_dir": folder / "up"}
    return agentformer.connect(embedder="hashing", chunk_tokens=40, chunk_overlap=10, **places, **options)


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with opened(tmp_path) as af:
        yield af


def fill(af: AgentFormer, count: int = 20) -> None:
    af.rag.upload(PAGE.encode(), name="house.txt")
    for n in range(count):
        text = f"Boat number {n} has the keys {n}. It was painted in {1900 + n}. " + FILLER * (n % 4)
        af.rag.upload(text.encode(), name=f"boat {n}.txt")


@pytest.fixture(scope="module")
def filled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    with opened(folder) as af:
        fill(af)
    return folder


@pytest.fixture
def filled(filled_folder: Path, tmp_path: Path) -> Iterator[AgentFormer]:
    """A memory of its own with 21 documents."""
    shutil.copytree(filled_folder, tmp_path, dirs_exist_ok=True)
    with opened(tmp_path) as af:
        yield af


def overlapping(passages: Any) -> bool:
    places = sorted((p.document_id, p.page, p.start, p.end) for p in passages)
    return any(a[:2] == b[:2] and b[2] < a[3] for a, b in itertools.pairwise(places))


@pytest.mark.slow
def test_a_context_is_never_over_its_budget_and_no_text_is_in_it_twice(filled: AgentFormer) -> None:
    count = lambda text: len(HashingEmbedder().token_spans(text))  # noqa: E731
    texts = {d.id: {page.number: page.text for page in filled.rag.pages(d.id)} for d in filled.rag.documents()}
    sizes = []
    for budget in (1, 10, 30, 50, 80, 120, 200, 333, 500, 1000, 5000):
        context = filled.rag.context("Who keeps the keys of the boat house?", max_tokens=budget)
        assert context.tokens == count(context.text) <= context.budget == budget
        assert not overlapping(context.passages)
        for number, passage in enumerate(context.passages, 1):
            assert passage.number == number
            assert texts[passage.document_id][passage.page or 0][passage.start : passage.end] == passage.text
            assert f'<passage number="{number}" source="{passage.document}, page 1">' in context.text
            assert passage.tokens == count(passage.text)
        sizes.append(len(context.passages))
        assert context == filled.rag.context("Who keeps the keys of the boat house?", max_tokens=budget)
    assert sizes[0] == 0
    assert 1 <= sizes[5] < sizes[-1]


def test_the_best_passage_is_first_and_grows_to_its_page(af: AgentFormer) -> None:
    fill(af, 2)
    small, large = (
        af.rag.context("Who keeps the keys of the boat house?", max_tokens=n).passages[0] for n in (80, 900)
    )
    assert small.document == large.document == "house.txt"
    assert KEYS in small.text
    assert len(small.text) < len(large.text)
    assert large.text == PAGE
    assert len(large.entry_ids) > 1
    chunks = {chunk.id for chunk in af.rag.chunks(large.document_id)}
    assert set(large.entry_ids) == chunks


def test_the_default_budget_is_a_setting(tmp_path: Path) -> None:
    with opened(tmp_path, answer_context_tokens=70) as af:
        fill(af, 3)
        context = af.rag.context("Who keeps the keys?")
        assert (context.budget, context.tokens <= 70) == (70, True)


@pytest.mark.slow
def test_a_model_may_cite_what_is_not_among_the_first_three(filled: AgentFormer) -> None:
    wanted = [p for p in filled.rag.context("Which boat has the keys?").passages if p.number > 3]
    passage = wanted[-1]
    model = Scripted(f"{passage.text} [{passage.number}]")
    answerer = filled.rag._questions._answerer.get()
    object.__setattr__(answerer, "model", model)
    answer = filled.rag.query("Which boat has the keys?")
    assert answer.mode == "llm"
    assert len(answer.hits) == 3
    citation = answer.citations[0]
    assert (citation.number, citation.document, citation.page) == (passage.number, passage.document, 1)
    assert passage.text[citation.start - passage.start : citation.end - passage.start] == citation.quote
    chunk = next(chunk for chunk in filled.rag.chunks(citation.document_id) if chunk.id == citation.entry_id)
    assert citation.quote in chunk.content
    assert f'<passage number="{passage.number}"' in model.asked[0][1].content
    *_, last = filled.rag.stream("Which boat has the keys?")
    assert isinstance(last, Answer)
    assert last.citations == answer.citations


def test_a_given_top_k_also_limits_what_a_model_receives(filled: AgentFormer) -> None:
    model = Scripted("The caretaker [1].")
    object.__setattr__(filled.rag._questions._answerer.get(), "model", model)
    filled.rag.query("Which boat has the keys?", top_k=2)
    filled.rag.query("Which boat has the keys?")
    received = [asked[1].content.count("<passage number=") for asked in model.asked]
    assert received[0] <= 2 < received[1]


def test_the_first_hits_of_a_wider_search_are_those_that_are_quoted(filled: AgentFormer) -> None:
    quoted = filled.rag.query("Which boat has the keys?").hits
    object.__setattr__(filled.rag._questions._answerer.get(), "model", Scripted("The caretaker [1]."))
    assert [hit.entry.id for hit in filled.rag.query("Which boat has the keys?").hits] == [
        hit.entry.id for hit in quoted
    ]


def test_what_a_model_received_is_counted_as_read(af: AgentFormer) -> None:
    fill(af, 1)
    read = af.rag.context("Who keeps the keys?").passages
    af._usage.flush()
    assert {e.id for p in read for e in af.backend.get(p.entry_ids) if e.read_count == 1} == {
        id_ for p in read for id_ in p.entry_ids
    }


@pytest.mark.parametrize("tokens", [0, -1, True, 1.5, 10**7])
def test_a_wrong_budget_is_refused(af: AgentFormer, tokens: Any) -> None:
    with pytest.raises(InvalidInput, match="max_tokens"):
        af.rag.context("Who?", max_tokens=tokens)


def test_no_passage_is_in_the_context_of_an_empty_memory(af: AgentFormer) -> None:
    context = af.rag.context("Who keeps the keys?")
    assert (context.text, context.passages, context.tokens) == ("", (), 0)


def test_the_best_part_of_a_long_hit_has_the_rarest_words_of_the_question() -> None:
    spans = HashingEmbedder().token_spans
    entry = MemoryEntry("e1", " ".join([FILLER] * 5 + [KEYS] + [FILLER] * 5), kind="chunk")
    part = best_part(Hit(entry, 1.0), analyze_query("Who keeps the keys?"), spans, 40)
    assert KEYS in entry.content[part.start : part.end]
    assert len(spans(entry.content[part.start : part.end])) <= 40
    found = Span(0, len(FILLER))  # what the vectors have found goes before the words
    assert best_part(Hit(entry, 1.0, span=found), analyze_query("Who keeps the keys?"), spans, 40) == found
    short = dataclasses.replace(entry, content=KEYS)
    assert best_part(Hit(short, 1.0, span=Span(4, 9)), analyze_query("Who?"), spans, 40) == Span(0, len(KEYS))
