"""Which places of documents count as cited by an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agentformer import AgentFormer
from agentformer.agent.cited_pages import Citations, find_citations
from agentformer.types import MemoryEntry, Source
from tests.agent.conftest import Make
from tests.agent.scripted import calls, says
from tests.readers.conftest import make_pdf

KEYS = "The caretaker keeps the keys in the blue cupboard."
BOATS = "Boats are lifted out of the water in October."


def shown(*pages: int, name: str = "rules.pdf", label: str = "") -> dict[str, Any]:
    quoted = [
        {"document": name, "page": page, "label": label, "quote": f"quote {page}", "entry_id": f"e{page}"}
        for page in pages
    ]
    return {"citations": quoted}


def test_a_place_is_cited_by_its_name_and_page() -> None:
    for answer, pages in [
        ("In October [rules.pdf, 2].", [2]),
        ("In October [rules.pdf, page 2].", [2]),
        ("Lokakuussa [rules.pdf, sivu 2].", [2]),
        ("In October [RULES.PDF, p. 2; notes.md, 1].", [2]),
        ("In October (rules.pdf, page 2).", [2]),
        ("In October [rules.pdf, 1, 2].", [1, 2]),
        ("In October [rules.pdf, 1–2].", [1, 2]),
        ("In October [rules.pdf, 1] and [rules.pdf, 3].", [1, 3]),
        ("As rules.pdf says, in October.", [1, 2, 3]),
        ("In October [rules.pdf].", [1, 2, 3]),
        ("In October [rules.pdf, appendix].", [1, 2, 3]),
        ("In October.", []),
        ("See myrules.pdf.", []),
        ("See rules.pdf2.", []),
    ]:
        found = find_citations(answer, [shown(1, 2, 3)], [])
        assert [cited.page for cited in found.known] == pages
        assert found.unknown == ()


def test_a_page_that_was_not_shown_is_told(agent: Make) -> None:
    found = find_citations("In October [rules.pdf, 9].", [shown(1, 2)], [])
    assert (found.known, found.unknown) == ((), ("rules.pdf, 9",))


def test_a_printed_label_is_a_page_too() -> None:
    found = find_citations("In October [rules.pdf, iv].", [shown(4, label="iv"), shown(5, label="v")], [])
    assert [cited.page for cited in found.known] == [4]


def test_a_short_name_counts_in_brackets_only() -> None:
    assert find_citations("A boat is a boat.", [shown(1, name="a")], []).known == ()
    assert find_citations("As a.md says.", [shown(1, name="a.md")], []).known == ()
    assert len(find_citations("As a.txt says.", [shown(1, name="a.txt")], []).known) == 1
    assert len(find_citations("A boat [a, 1].", [shown(1, name="a")], []).known) == 1


def test_a_document_that_the_context_recalled_can_be_cited() -> None:
    source = Source("d", "rules.pdf", 2, "2", 0, len(BOATS))
    found = find_citations("In October [rules.pdf, 2].", [], [MemoryEntry("e", BOATS, kind="chunk", source=source)])
    assert [(cited.page, cited.quote, cited.entry_id) for cited in found.known] == [(2, BOATS, "e")]


def read(**texts: str) -> dict[str, Any]:
    """A result of a tool with one passage of each document."""
    passages = [
        {"document": f"{name}.pdf", "page": 1, "content": text, "id": f"id of {name}"} for name, text in texts.items()
    ]
    return {"passages": passages}


def test_a_name_in_a_sentence_copied_from_another_document_is_not_cited() -> None:
    letter = "The office asks everybody to read rules.pdf in October."
    for answer, own, documents, copied in [
        (letter, BOATS, [], ("rules.pdf",)),
        ("It asks everybody to read RULES.PDF!", BOATS, [], ("rules.pdf",)),
        ("rybody to read rules.pdf", BOATS, [], ("rules.pdf",)),  # 12 letters before the name
        ("ybody to read rules.pdf", BOATS, ["rules.pdf"], ()),
        ("We ask everyone to read rules.pdf", BOATS, ["rules.pdf"], ()),
        (letter, letter, ["rules.pdf"], ()),  # the document itself has the sentence, too
        (f"{letter} Boats are lifted then [rules.pdf, 1].", BOATS, ["rules.pdf"], ()),
        (f"{letter} As letter.pdf says.", BOATS, ["letter.pdf"], ("rules.pdf",)),
        ("In October.", BOATS, [], ()),
    ]:
        found = find_citations(answer, [read(rules=own, letter=letter)], [])
        assert ([cited.document for cited in found.known], found.copied) == (documents, copied), answer
        assert all(cited.entry_id == f"id of {cited.document.removesuffix('.pdf')}" for cited in found.known)


def test_unknown_pages_and_copied_names_are_warnings() -> None:
    unknown, copied = Citations((), ("a.pdf, 7",), ("b.pdf",)).warnings()
    assert unknown == "the answer cites a.pdf, 7, but the model has not read this page; check the citation"
    assert copied == "the answer contains the name b.pdf only in copied text, so b.pdf is not cited"


def test_tools_that_give_no_places_are_passed_over() -> None:
    values: list[Mapping[str, Any] | None] = [{"memories": {"core": 1}}, {"citations": None}, {}, None]
    assert find_citations("[rules.pdf, 2]", values, []).known == ()


@pytest.mark.process
def test_a_turn_cites_the_page_of_a_real_document(agent: Make, af: AgentFormer) -> None:
    af.rag.upload(make_pdf([[BOATS], [KEYS]]), name="rules.pdf")
    one, _ = agent(
        calls(("rag_query", {"question": "Who keeps the keys?"})),
        says("The caretaker [rules.pdf, 2]; the code is 4711 [rules.pdf, 7]."),
    )
    turn = one.turn("Who has them?", session_id="s")
    assert [(cited.document, cited.page, cited.quote) for cited in turn.citations] == [("rules.pdf", 2, KEYS)]
    assert turn.warnings == ("the answer cites rules.pdf, 7, but the model has not read this page; check the citation",)


def test_an_answer_has_the_brackets_of_the_memories_that_it_repeats(agent: Make, af: AgentFormer) -> None:
    af.memory.store("Names are declared as List<String> names.")
    one, _ = agent(says("As List‹String› names."))
    assert one.turn("How are names declared?", session_id="s").text == "As List<String> names."
    af.memory.store("Names are quoted as ‹names› too.")
    one, _ = agent(says("As ‹names›."))
    assert one.turn("How are names quoted?", session_id="t").text == "As ‹names›."
