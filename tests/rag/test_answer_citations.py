"""Citations as models write them, and the sentences that they point to."""

from __future__ import annotations

import pytest

from agentformer.rag.answer import citations
from agentformer.rag.answer.citations import CitedText, without_unfinished
from agentformer.rag.answer.passages import read_passages
from agentformer.rag.answer.prompts import messages
from agentformer.types import Hit
from tests.rag.models import HITS, hit

KEEPS = "The caretaker keeps the keys in the blue cupboard."
CRANE = "The crane costs 95 euros."


def cite(text: str, hits: list[Hit]) -> CitedText:
    return citations.cite(text, read_passages(hits))


def test_every_spelling_becomes_one() -> None:
    for said, text, numbers in [
        ("Keys [1]. Crane [2].", "Keys [1]. Crane [2].", [1, 2]),
        ("Both [1, 2].", "Both [1][2].", [1, 2]),
        ("Both [1][2].", "Both [1][2].", [1, 2]),
        ("Both [1; 3] and [2-3].", "Both [1][3] and [2][3].", [1, 3, 2]),
        ("Keys【1】.", "Keys[1].", [1]),
        ("Keys 【1†source】.", "Keys [1].", [1]),
        ("Keys [^1].", "Keys [1].", [1]),
        ("Keys [Passage 1].", "Keys [1].", [1]),
        ("Keys [Source 1].", "Keys [1].", [1]),
        ("Keys [doc 1] and [Document: 3].", "Keys [1] and [3].", [1, 3]),
        ("Keys [ref #1] [Sources 2, 3].", "Keys [1] [2][3].", [1, 2, 3]),
        ("鍵は戸棚にある［１］。", "鍵は戸棚にある[1]。", [1]),
        ("No citation.", "No citation.", []),
        ("In 2026 [sic] it was (1).", "In 2026 [sic] it was (1).", []),
        ("On [12-05-24], part [1-2-3], [040–123–456] [1].", "On [12-05-24], part [1-2-3], [040–123–456] [1].", [1]),
    ]:
        cited = cite(said, HITS)
        assert (cited.text, [c.number for c in cited.citations], cited.strays) == (text, numbers, ())


def test_numbers_of_no_passage_are_taken_out_and_reported() -> None:
    for said, text, strays in [
        ("In the cupboard [1][7].", "In the cupboard [1].", (7,)),
        ("As Smith wrote [5], keys [1, 9].", "As Smith wrote, keys [1].", (5, 9)),
        ("Nowhere [0].", "Nowhere.", (0,)),
        ("All [2-5].", "All [2][3].", (4, 5)),
        ("[100-900] is wide [1].", "is wide [1].", (100, 900)),
        ("Keys [1] and [7].", "Keys [1].", (7,)),
        ("Keys [7] and [1].", "Keys [1].", (7,)),
        ("Keys [1], [7], and [2].", "Keys [1], and [2].", (7,)),
        ("Blue, and [8].", "Blue.", (8,)),
        ("Blue [7], [8] och [9].", "Blue.", (7, 8, 9)),
        ("Blue (see [8]), and [9] red [1].", "Blue, and red [1].", (8, 9)),
        ("Smith [5] and Jones [6] agree.", "Smith and Jones agree.", (5, 6)),
        ("`a[0] and [0]` [1] and [9]", "`a[0] and [0]` [1]", (9,)),
    ]:
        cited = cite(said, HITS)
        assert (cited.text, cited.strays) == (text, strays)


def test_code_is_left_as_it_is() -> None:
    said = "Take `names[0]` [1]:\n```\nprint(names[7])\n```"
    cited = cite(said, HITS)
    assert (cited.text, [c.number for c in cited.citations], cited.strays) == (said, [1], ())


def test_a_citation_points_to_the_sentence_that_bears_its_claim() -> None:
    for said in [
        "The caretaker has the keys [1]. The price of the crane is 95 euros [2].",
        "The caretaker has the keys. [1] The price of the crane is 95 euros. [2]",
        "- The caretaker has the keys [1]\n- The price of the crane is 95 euros [2]",
    ]:
        assert [(c.number, c.quote) for c in cite(said, HITS).citations] == [(1, KEEPS), (2, CRANE)]


def test_a_passage_that_is_cited_twice_is_one_citation_for_both_claims() -> None:
    cited = cite("Nine [1]. The caretaker keeps the keys in a cupboard that is blue [1].", HITS)
    assert [(c.number, c.quote) for c in cited.citations] == [(1, KEEPS)]


def test_a_date_in_a_passage_is_no_reference_and_breaks_no_answer() -> None:
    for reference in ["[12-05-24]", "[1-2-3]", "[2, 1-2-3]", "[2–3-4]"]:
        hits = [hit(f"The crane costs 95 euros since {reference}.", 1), *HITS[1:]]
        cited = cite(f"The crane costs 95 euros since {reference} [1].", hits)
        assert (cited.text, [c.number for c in cited.citations]) == (
            f"The crane costs 95 euros since {reference} [1].",
            [1],
        )
        assert reference in messages("What does it cost?", hits)[1].content


def test_the_beginning_of_a_citation_is_no_end_of_an_answer() -> None:
    for end in [" [", " [1", " [1,", " 【2", " [^", " [Source 1"]:
        assert without_unfinished("The keys [1]" + end) == "The keys [1]"


@pytest.mark.slow
def test_a_model_that_repeats_itself_cites_nothing() -> None:
    for said in ["[1", "[1†", " ", "[ ", "```", "1, ", ", ", "[0] and ", " and", "[doc "]:
        assert cite(said * 30_000, HITS).citations == ()
