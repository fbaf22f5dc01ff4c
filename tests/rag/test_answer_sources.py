"""One question, all memory: documents and what was remembered, each cited as what it is, and only what may be seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer import AgentFormer
from agentformer.access.permissions import Grant
from agentformer.errors import Forbidden, InvalidInput, NotFound
from agentformer.tools.caller import Caller
from agentformer.tools.document_tools import allowed_sources
from tests.rag.models import Scripted

NUTS = "Maija is allergic to hazelnuts."
ASKED = "Is Maija allergic to anything?"
RULES = "The kitchen serves lunch at noon. Guests tell the cook what they are allergic to."


@pytest.fixture(params=["faiss", "local_json"])
def af(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AgentFormer]:
    places = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "up"}
    with agentformer.connect(embedder="hashing", backend=request.param, clean_every=0, **places) as af:
        af.rag.upload(RULES.encode(), name="kitchen.txt")
        yield af


def cited(af: AgentFormer, question: str = ASKED, **options: Any) -> set[str]:
    """Return the texts of the hits of an answer."""
    return {hit.entry.content for hit in af.rag.query(question, top_k=20, **options).hits}


def test_a_fact_that_was_just_stored_answers_and_is_cited_as_a_fact(af: AgentFormer) -> None:
    fact = af.memory.store(NUTS)
    answer = af.rag.query(ASKED)
    first = answer.citations[0]
    assert (answer.mode, first.quote, first.kind, first.entry_id) == ("extractive", NUTS, "fact", fact.id)
    assert (first.document, first.document_id, first.page, first.start, first.end) == ("", "", None, 0, len(NUTS))
    assert first.at == fact.created_at
    document = af.rag.query("When does the kitchen serve lunch?").citations[0]
    assert (document.document, document.page, document.kind, document.at) == ("kitchen.txt", 1, "document", None)


def test_a_message_is_cited_with_its_speaker_and_date(af: AgentFormer) -> None:
    moment = "2026-03-01T12:00:00+00:00"
    af.memory.add_message("s", "user", "Hazelnuts make me ill.", speaker="Maija", occurred_at=moment)
    first = af.rag.query("Do hazelnuts make Maija ill?").citations[0]
    assert (first.kind, first.speaker, first.at.isoformat() if first.at else "") == ("message", "Maija", moment)


@pytest.mark.parametrize("date", ["20 November 2026", "20.11.2026", "November 20, 2026"])
def test_the_day_of_a_message_and_its_speaker_count_as_said_in_it(af: AgentFormer, date: str) -> None:
    said = {18: "The boat needs a new engine.", 20: "I booked the ferry to Tallinn.", 22: "My sister visits us."}
    for day, text in said.items():
        af.memory.add_message("s", "user", text, speaker="Aino", occurred_at=f"2026-11-{day}T12:00:00+00:00")
    answer = af.rag.query(f"What did Aino say on {date}?")
    assert (answer.mode, [citation.quote for citation in answer.citations][:1]) == ("extractive", [said[20]])
    assert af.rag.query("What did Aino say on 3 November 2026?").mode == "none"


def test_a_summary_is_cited_with_its_originals(af: AgentFormer) -> None:
    said = ["The boat goes on land in October.", "The crane lifts the boat at ten.", "The mast is stored in the shed."]
    ids = [af.memory.add_message("s", "user", text, speaker="Aino").id for text in said]
    for n in range(9):
        af.memory.add_message("s", "user", f"Nothing happened on day {n}.")
    af.memory.clean(session_id="s")
    (summary, *_) = af.memory.list(kinds=("summary",))
    citations = af.rag.query("Where is the mast stored?", sources=["memories"]).citations
    assert [c.kind for c in citations if c.entry_id == summary.id] == ["summary"]
    assert set(ids) <= set(next(c.originals for c in citations if c.entry_id == summary.id))
    assert not set(ids) & {c.entry_id for c in citations}  # archived


def test_sources_narrow_the_answer(af: AgentFormer) -> None:
    af.memory.store(NUTS)
    assert cited(af) == {NUTS, RULES}
    assert cited(af, sources=["documents"]) == {RULES}
    assert cited(af, sources=["memories"]) == {NUTS}
    document = af.rag.documents()[0]
    assert cited(af, document_id=document.id) == {RULES}
    for wrong in ([], ["files"], "memories", 3):
        with pytest.raises(InvalidInput, match="sources"):
            af.rag.query(ASKED, sources=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="document_id"):
        af.rag.query(ASKED, document_id=document.id, sources=["memories"])


def test_an_answer_that_finds_nothing_names_what_was_searched(af: AgentFormer) -> None:
    unknown, document = "What does the sail cost?", af.rag.documents()[0]
    for scope, places in (
        ({}, "in the documents or in the memories"),
        ({"sources": ["documents"]}, "in the documents"),
        ({"sources": ["memories"]}, "in the memories"),
        ({"document_id": document.id}, "in the documents"),
    ):
        assert af.rag.query(unknown, **scope).text == f"I found nothing {places} that answers this."  # type: ignore[arg-type]


def test_a_question_or_search_in_an_unknown_document_says_that_there_is_none(af: AgentFormer) -> None:
    other = af.rag.upload(b"The mast is stored in the shed.", name="mast.txt", namespace="work")
    for document_id in ("nothing", other.id):
        for ask in (af.rag.query, af.rag.context, af.rag.stream, af.memory.search):
            with pytest.raises(NotFound, match=f"there is no document {document_id} in namespace default"):
                ask(ASKED, document_id=document_id)
    assert af.memory.search("sauna", document_id=other.id, namespace="work", relevant_only=True) == []


def test_nobody_sees_the_memories_of_another_user(af: AgentFormer) -> None:
    af.memory.store(NUTS, user_id="maija")
    af.memory.store("Antti is allergic to milk.", user_id="antti")
    af.memory.store("Everybody is allergic to lead.")
    af.memory.store("Elsewhere people are allergic to bees.", namespace="other")
    common = {"Everybody is allergic to lead.", RULES}
    assert cited(af) == common
    assert cited(af, user_id="maija") == {NUTS, *common}
    assert cited(af, every_user=True) == {NUTS, "Antti is allergic to milk.", *common}
    assert cited(af, every_user=True, user_id="antti") == {"Antti is allergic to milk.", *common}
    context = af.rag.context(ASKED, user_id="maija")
    assert {passage.text for passage in context.passages} == {NUTS, *common}


def test_projects_are_apart(af: AgentFormer) -> None:
    af.memory.store(NUTS, project="kitchen")
    af.memory.store("Boats are allergic to rust.", project="boats")
    assert cited(af, "allergic", project="boats") == {"Boats are allergic to rust.", RULES}


def test_superseded_and_archived_memories_do_not_answer(af: AgentFormer) -> None:
    old, new = af.memory.store("Maija is allergic to milk."), af.memory.store(NUTS)
    af.memory.supersede(old.id, new.id)
    assert cited(af, sources=["memories"]) == {NUTS}


def test_a_message_that_only_asks_is_no_answer(af: AgentFormer) -> None:
    af.memory.store(NUTS)
    af.memory.add_message("s", "user", ASKED)
    af.memory.add_message("s", "user", "is maija allergic to anything")
    af.memory.add_message("s", "user", "Is Maija here? Is she allergic?")
    said = "Is Maija here? She is allergic to wasps."
    af.memory.add_message("s", "user", said)
    assert cited(af, sources=["memories"]) == {NUTS, said}
    assert cited(af, sources=["memories"], session_id="s") == {NUTS}
    assert cited(af, sources=["memories"], messages=False) == {NUTS}


def test_a_model_reads_what_a_memory_is(af: AgentFormer) -> None:
    af.memory.add_message("s", "user", NUTS, speaker='Ai"no', occurred_at="2026-03-01T12:00:00+00:00")
    model = Scripted("Maija is allergic to hazelnuts [1].")
    object.__setattr__(af.rag._questions._answerer.get(), "model", model)
    citation = af.rag.query(ASKED).citations[0]
    assert (citation.kind, citation.quote, citation.speaker) == ("message", NUTS, 'Ai"no')
    frame = next(line for line in model.asked[0][1].content.splitlines() if 'number="1"' in line)
    assert "message of Ai" in frame
    assert "2026-03-01" in frame
    assert frame.count('"') == 4


def test_a_caller_of_the_tool_gets_only_what_it_may_see(af: AgentFormer) -> None:
    af.memory.store(NUTS, user_id="maija")
    af.memory.store("Antti is allergic to milk.", user_id="antti")
    result = af.toolbox.call("rag_query", {"question": ASKED}, Caller(user_id="maija", extractive=True))
    contents = {passage["content"] for passage in result["passages"]}
    assert contents == {NUTS, RULES}
    assert {passage.get("kind") for passage in result["passages"]} == {"fact", None}
    assert result["citations"][0]["kind"] == "fact"


def test_a_key_that_may_not_search_memories_gets_documents() -> None:
    everything, both = Grant(frozenset({"read"})), ("documents", "memories")
    assert allowed_sources(everything, None) == {"sources": both, "messages": True}
    without = Grant(frozenset({"read"}), without=frozenset({"memory_search"}))
    assert allowed_sources(without, None) == {"sources": ("documents",), "messages": False}
    assert allowed_sources(without, ["documents"])["sources"] == ["documents"]
    with pytest.raises(Forbidden, match="memory_search"):
        allowed_sources(without, ["memories"])
    silent = Grant(frozenset({"read"}), without=frozenset({"conversation_search"}))
    assert allowed_sources(silent, None) == {"sources": both, "messages": False}
