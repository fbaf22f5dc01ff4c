"""The documents of a memory: their limits, and how uses and times are reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import agentformer
from agentformer.errors import ATTEMPTS, Conflict, InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.tools import questions
from agentformer.tools.questions import QuestionLimits, _check_question, _checked_tokens, _Stopwatch


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        yield af


def test_the_limits_have_defaults() -> None:
    assert QuestionLimits() == QuestionLimits(top_k=3, context_tokens=2_000, max_chars=8_000)


def test_questions_and_answers_have_limits() -> None:
    assert [_checked_tokens(value, 4096) for value in (None, 1, 4096)] == [None, 1, 4096]
    for wrong in (0, 4097, True, 1.0, "1"):
        with pytest.raises(InvalidInput, match=r"must be a whole number in 1\.\.4096"):
            _checked_tokens(wrong, 4096)
    _check_question("four", 4)
    for question, message in (("fives", "has 5 characters"), (" ", "is empty"), (None, "must be text")):
        with pytest.raises(InvalidInput, match=message):
            _check_question(question, 4)


def test_times_are_milliseconds_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([5.0, 8.0, 8.0])
    monkeypatch.setattr(questions, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    stopwatch = _Stopwatch()
    stopwatch.searched = 6.0001234
    assert stopwatch.timings() == {"search_ms": 1000.12, "answer_ms": 1999.88, "total_ms": 3000.0}
    stopwatch.first_token = 7.0
    assert stopwatch.timings()["first_token_ms"] == 2000.0


def test_the_same_bytes_are_stored_once_and_each_use_is_counted(af: AgentFormer) -> None:
    text = b"The crane is blue and stands on the northern pier."
    first = af.rag.upload(text, name="crane.txt", metadata={"site": "north"})
    again = af.rag.upload(text, name="crane.txt")
    assert (first.unchanged, again.unchanged) == (False, True)
    assert (again.id, again.name, dict(again.metadata)) == (first.id, "crane.txt", {"site": "north"})
    assert af.rag.query("Where is the crane?").timings.keys() == {"search_ms", "answer_ms", "total_ms"}
    (chunk,) = af.rag.chunks(first.id)
    (chunk,), (document,) = af.memory.list(kinds=("chunk",)), af.memory.list(kinds=("document",))
    assert (chunk.match_count, chunk.read_count) == (1, 0)
    assert document.access_count == 1
    (page,) = af.rag.pages(first.id)
    assert (page.number, page.text.encode()) == (1, text)
    assert af.rag.original(first.id) == text
    assert [*af.rag.stream("Where is the crane?")][-1].timings.keys() >= {"first_token_ms"}


def test_a_document_is_found_in_its_namespace_only(af: AgentFormer) -> None:
    document = af.rag.upload(b"The crane is blue.", name="crane.txt", namespace="work")
    fact = af.memory.store("The crane is blue.")
    assert af.rag.document(document.id) == af.rag.document(document.id, namespace="work")
    wrong: list[tuple[str, dict[str, Any]]] = [(document.id, {"namespace": "home"}), (fact.id, {}), ("none", {})]
    for id, place in wrong:
        with pytest.raises(NotFound, match=f"there is no document {id}{' in namespace home' if place else ';'}"):
            af.rag.document(id, **place)
    assert [each.id for each in af.rag.page_of_documents(namespace="work", limit=1)] == [document.id]
    assert af.rag.page_of_documents(namespace="work", after=document.id) == []


def test_an_upload_that_others_disturb_is_repeated_and_then_refused(
    af: AgentFormer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def store(backend: Any, entries: Any, **options: Any) -> Any:
        attempts.append(entries[0].content)
        raise Conflict("another caller has stored this document")

    monkeypatch.setattr(type(af.backend), "store", store)
    with pytest.raises(Conflict, match=r"other uploads of 'crane\.txt' are in progress"):
        af.rag.upload(b"The crane is blue.", name="crane.txt")
    assert attempts == ["crane.txt"] * ATTEMPTS


def test_a_question_for_a_ratio_may_name_its_sources(af: AgentFormer) -> None:
    af.rag.upload(b"Gross profit was 40 million. Revenue was 100 million.", name="report.txt")
    for sources in (None, ["documents"], ["documents", "memories"]):
        context = af.rag.context("What was the gross margin?", sources=sources)  # type: ignore[arg-type]
        assert "Revenue was 100 million" in context.text
