"""The work for a question is bounded, whatever is stored: it grows no faster than a text, and stops to grow."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

import agentformer
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.embedders.recent import RecentVectors
from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.context import PassageBuilder
from agentformer.rag.answer.evidence import Evidence
from agentformer.rag.answer.passages import layout_of
from agentformer.rag.answer.sources import Found
from agentformer.text.facts import quantities
from agentformer.text.splitting import sentence_spans
from agentformer.text.table_rows import find_rows
from agentformer.text.word_forms import WeightedTerms, similar_forms
from agentformer.types import Hit, Query, Span
from tests.faults.long_form import LONG
from tests.rag.models import hit

QUESTION = "Where do I live, what does the list say about a., and how many were there on 3 May 2024?"
PIECES = (
    *("a. ", "- a\n", "? ", ": ", "1. ", "It was. He is. ", "I live in Helsinki. ", "Title\n\n", "a:\n\n", "[1] "),
    *("| a | 5 |\n", "| a | b |\n|---|---|\n| 1 | 2 |\n\n", "Revenue   1,234   5,678\n", "3 May 2024 ", "A. B. "),
    *("The following:\n- a\n", "aB", "私は東京に住んでいます。", "§ 1.2.3 ", "4.2 Guest berths\n", "Eva Kask "),
    "e.g. ",
)  # fmt: skip
SHORT = 2_000  # code points: less than is read of one hit


def calls(hits: list[Hit]) -> int:
    """Return how many functions are called to answer the question from the hits."""
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event.endswith("call")

    layout_of.cache_clear()
    sys.setprofile(count)
    try:
        Answerer(None, None).answer(Found(QUESTION, hits))
    finally:
        sys.setprofile(None)
    return counted


def found(text: str, rank: int = 1, best: int | None = None) -> Hit:
    made = hit(text, rank)
    return made if best is None else Hit(made.entry, made.score, span=Span(best, best + 10))


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES if LONG else PIECES[::3])
def test_the_work_is_linear_in_the_text_and_bounded(piece: str) -> None:
    calls([found(piece)])  # the caches that all questions share
    texts = [piece * (length // len(piece) + 1) for length in (SHORT, 4 * SHORT, 16 * SHORT, 50 * SHORT)]
    short, long, longer, longest = (calls([found(text)]) for text in texts)
    assert long <= 5 * short
    assert longer <= 14 * short  # at most 20,000 of the 32,000 code points are read
    assert longest <= 1.1 * longer


def test_at_most_a_thousand_sentences_of_a_hit_and_ten_thousand_of_a_question_are_ranked() -> None:
    request = Evidence(Found(QUESTION, [found("a. " * 50_000)]), None, RecentVectors())
    assert len(request.ranked) == 1_000
    many = [found("a. " * 2_000, rank) for rank in range(1, 21)]
    assert len(Evidence(Found(QUESTION, many), None, RecentVectors()).ranked) == 10_000


@pytest.mark.parametrize("place", [0, 120_000, 299_000])
def test_the_part_of_a_long_entry_around_the_best_match_is_read_and_quoted_at_its_place(place: int) -> None:
    filler = "The weather of that day was mild. " * 9_000
    place = filler.index("The weather", place)
    fact = "Anna Berg designed the bridge of Turku. "
    text = filler[:place] + fact + filler[place:]
    answer = Answerer(None, None).answer(Found("Who designed the bridge of Turku?", [found(text, best=place)]))
    citation = answer.citations[0]
    assert fact.strip() in citation.quote
    assert text[citation.start : citation.end] == citation.quote


def test_hits_after_the_limit_of_a_question_are_not_read() -> None:
    hits = [found("The weather was mild. " * 900, rank) for rank in range(1, 22)]
    hits.append(found("Anna Berg designed the bridge.", 22))
    passages = Evidence(Found("Who designed the bridge?", hits), None, RecentVectors()).passages
    assert sum(len(passage.content) for passage in passages) == 400_000
    assert passages[0].content == hits[0].entry.content
    assert passages[-1].sentences == ()


@pytest.mark.parametrize("piece", PIECES)
def test_the_sentences_and_the_rows_of_a_text_are_its_text_without_the_headers(piece: str) -> None:
    text = f"Begin.\n\n{piece * 50}\n\nEnd of it."
    layout = layout_of(text, "")
    rows = {row.span for table in find_rows(text) for row in table.rows}
    assert list(layout.sentences) == sorted(layout.sentences)
    assert rows <= set(layout.sentences)
    if not rows:
        assert list(layout.sentences) == sentence_spans(text)


@pytest.mark.slow
def test_a_question_over_a_stored_list_of_sixty_kilobytes_calls_few_functions(tmp_path: Any) -> None:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        for piece in ("a. ", "- a\n", "? "):
            af.memory.store(piece * (60_000 // len(piece)))
        af.rag.query(QUESTION, extractive=True)
        counted = 0

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal counted
            counted += event.endswith("call")

        sys.setprofile(count)
        try:
            answer = af.rag.query(QUESTION, extractive=True)
        finally:
            sys.setprofile(None)
    assert len(answer.hits) == 3
    assert counted < 1_500_000  # once more than 200,000,000


@pytest.mark.parametrize("piece", ["berth %d ", "§ 1.2.%d ", "%d, "])
def test_a_question_of_many_numbered_things_compares_few_of_them(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    includes = quantities._includes
    monkeypatch.setattr(quantities, "_includes", lambda *given: (compared.append(1), includes(*given))[1])
    question = "Which berths: " + "".join(piece % n for n in range(1_000))
    text = "The berths are " + "".join(piece % n for n in range(5_000, 6_000))
    things = quantities.numbered_things(question, "en")
    quantities.names_another(things, text, "en")
    assert len(compared) <= 20 * 1_000


def test_other_forms_of_at_most_fifty_terms_are_searched_in_linear_work() -> None:
    terms = {f"en~partner{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(600)}
    texts = [frozenset({f"{term}s"}) for term in terms] * 5
    weighted = WeightedTerms(terms, texts, similar_forms)
    assert len(similar_forms(terms, frozenset().union(*texts))) == 50
    assert weighted.similar_share(texts[0]) > 0


def test_a_context_reads_a_part_of_each_long_entry(tmp_path: Any) -> None:
    read: list[int] = []

    class Counting(HashingEmbedder):
        def token_spans(self, text: str) -> list[Span]:
            read.append(len(text))
            return super().token_spans(text)

    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        for n in range(5):
            af.memory.store(f"The boat {n} is blue. " * 10_000)
            af.memory.add_message("s", "user", f"The boat {n} is blue, is it? " * 10_000)
        builder = PassageBuilder(af.backend, Counting().token_spans)
        question = Query("Which boat is blue?", limit=30)
        context = builder.build(question.text, builder.search(question, None), 2_000)
    assert "The boat" in context.text
    assert sum(read) < 30 * 20_000  # of more than a million code points
