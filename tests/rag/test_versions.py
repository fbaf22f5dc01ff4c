"""The newer of two versions of a statement is first."""

from __future__ import annotations

import pytest

from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.sources import Found
from agentformer.types import Hit, MemoryEntry, Source


def hit(document: str, text: str, score: float) -> Hit:
    source = Source(document, document, 1, "1", 0, len(text))
    return Hit(MemoryEntry(document, text, kind="chunk", context=document, source=source), score)


def first(question: str, *hits: Hit) -> str:
    return Answerer(None, None, abstain=0.0).answer(Found(question, hits)).citations[0].document


FEE = "The fee for a berth is {} euros."


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("prices 2023.txt", ""), ("prices 2025.txt", "")),
        (("prices-2025-01-31.txt", ""), ("prices-2025-06-30.txt", "")),
        (("fees v1.txt", "Version of 3 May 2022.\n\n"), ("fees v2.txt", "Version of 4 June 2024.\n\n")),
    ],
)
def test_the_newer_version_is_first_by_the_dates_in_names_or_texts(old: tuple[str, str], new: tuple[str, str]) -> None:
    hits = hit(old[0], old[1] + FEE.format(10), 1.0), hit(new[0], new[1] + FEE.format(12), 0.9)

    assert first("What is the fee for a berth?", *hits) == new[0]
    assert first("What is the fee for a berth?", *hits[::-1]) == new[0]


def test_a_question_about_a_year_and_another_statement_keep_the_order() -> None:
    hits = hit("prices 2023.txt", FEE.format(10), 1.0), hit("prices 2025.txt", FEE.format(12), 0.9)
    assert first("What was the fee for a berth in 2023?", *hits) == "prices 2023.txt"

    person = hit("fees of Aino 2025.txt", FEE.format(12), 0.9)
    assert first("What is the fee for a berth?", hits[0], person) == "prices 2023.txt"
    other = hit("news 2025.txt", "The fee for a sauna evening with coffee is 12 euros, paid in cash.", 0.9)
    assert first("What is the fee for a berth?", hits[0], other) == "prices 2023.txt"
    undated = hit("prices.txt", FEE.format(12), 0.9)
    assert first("What is the fee for a berth?", hits[0], undated) == "prices 2023.txt"
