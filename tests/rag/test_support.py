"""Answers of a model are compared with the passages that they cite."""

from __future__ import annotations

import pytest

from agentformer.errors import LanguageModelUnavailable
from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.passages import read_passages
from agentformer.rag.answer.sources import Found
from agentformer.rag.answer.support import unsupported_sentences, with_citations
from agentformer.types import Answer, UnsupportedSentence
from tests.rag.models import HITS, Scripted, hit

PASSAGES = read_passages(HITS)
KEYS_QUESTION = "Who keeps the keys?"


def claims(text: str, question: str = KEYS_QUESTION) -> list[str]:
    return [claim for each in unsupported_sentences(text, PASSAGES, question) for claim in each.claims]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("The crane costs 95 euros [2].", []),
        ("The crane costs 59 euros [2].", ["number 59"]),
        ("The crane costs 95 euros [1].", ["number 95"]),  # another passage says so
        ("The crane costs 95 euros. [1]", ["number 95"]),
        ("The crane costs 95 euros.", []),  # without a citation, all passages count
        ("Boats are lifted in March [2].", ["date March"]),
        ("The keys are kept by Robert Miller [1].", ["name Robert Miller"]),
        ("The office opens at 9 [1].", []),  # the passage spells the number
        ("The office opens at 10 [1].", ["number 10"]),
        ("1. The office opens at nine [1].\n2. The crane costs 95 euros [2].", []),
        ("As passage 2 says, the crane costs 95 euros [2].", []),
        ("It says “keeps the keys in the blue cupboard” [1].", []),
        ("It says “keeps the keys in the red cupboard” [1].", ["quotation “keeps the keys in the red cupboard”"]),
        ("It says “keeps the keys … blue cupboard” [1].", []),
        ("The crane costs \x1b[31m95 euros [2].", []),
        ("The command is `sleep 77` [1].", []),
    ],
)
def test_claims_that_the_cited_passages_do_not_contain_are_found(text: str, missing: list[str]) -> None:
    assert claims(text) == missing


def test_what_the_question_states_may_be_repeated() -> None:
    assert claims("Robert does not keep the keys [1].", "Does Robert keep the keys?") == []
    assert claims("Robert does not keep the keys [1].") == ["name Robert"]


def test_names_are_not_compared_between_languages() -> None:
    passages = read_passages([hit("The treaty was signed in Germany in 1951, and Sweden joined the treaty later.", 1)])
    finnish = "Sopimus allekirjoitettiin Saksassa vuonna 1951, ja Ruotsi liittyi siihen myöhemmin [1]."
    assert unsupported_sentences(finnish, passages, "Missä sopimus allekirjoitettiin?") == ()
    wrong = unsupported_sentences(finnish.replace("1951", "1952"), passages, "Missä sopimus allekirjoitettiin?")
    assert [len(each.claims) for each in wrong] == [1]
    assert "1952" in wrong[0].claims[0]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("Die Brücke wurde von Edison entworfen [1].", ["name Edison"]),
        ("Der Ingenieur studierte in Harvard [1].", ["name Harvard"]),
        ("Die Brücke wurde von Siemens entworfen [1].", []),  # the passage names it
        ("Die Brücke wurde mit Beton verstärkt [1].", []),  # "Betons" in the passage
        ("Das Gewicht des Stahls war groß [1].", ["name Stahls"]),  # the passage has another word between these words
        ("Die Masse des Stahls ist nicht klein [1].", []),
        ("Der Entwurf der Querung stammt von Siemens [1].", []),  # nouns with an article are not compared
        ("In Bezug auf Kosten ist nichts gesagt [1].", []),
    ],
)
def test_a_german_word_behind_a_bare_preposition_is_a_name(text: str, missing: list[str]) -> None:
    passages = read_passages([hit("Die Brücke wurde 1921 von Siemens gebaut, und das Gewicht des Betons war groß.", 1)])
    assert [claim for each in unsupported_sentences(text, passages, "") for claim in each.claims] == missing


def test_a_japanese_number_and_quotation_are_compared() -> None:
    passages = read_passages([hit("会議は5人で行われ、青い部屋の鍵が必要です。", 1)])
    assert unsupported_sentences("会議は5人です[1]。", passages, "何人ですか。") == ()
    assert [e.claims for e in unsupported_sentences("会議は6人です[1]。", passages, "何人ですか。")] == [("number 6",)]
    assert unsupported_sentences("「赤い部屋の鍵が必要」とあります[1]。", passages, "何が必要ですか。") != ()


def test_the_model_is_asked_once_more_and_the_better_answer_is_kept() -> None:
    model = Scripted("The crane costs 59 euros [2].", "The crane costs 95 euros [2].")
    answer = Answerer(model, None).answer(Found("What does the crane cost?", HITS))
    assert (answer.text, answer.unsupported, answer.warnings) == ("The crane costs 95 euros [2].", (), ())
    assert len(model.asked) == 2
    assert "number 59: The crane costs 59 euros" in model.asked[1][-1].content
    assert model.asked[1][-2].content == "The crane costs 59 euros [2]."


def test_an_answer_is_checked_against_the_passages_that_the_model_received() -> None:
    """Their numbers are not those of the hits."""
    model = Scripted("The crane costs 95 euros [1].")
    answer = Answerer(model, None).answer(Found("What does the crane cost?", HITS, given=[HITS[1], HITS[0]]))
    assert (answer.text, answer.unsupported, len(model.asked)) == ("The crane costs 95 euros [1].", (), 1)


def test_an_answer_that_stays_unsupported_is_reported() -> None:
    model = Scripted("The crane costs 59 euros [2].", "The crane costs 59 euros, says Robert [2].")
    answer = Answerer(model, None).answer(Found("What does the crane cost?", HITS))
    assert answer.text == "The crane costs 59 euros [2]."
    assert answer.unsupported == (UnsupportedSentence("The crane costs 59 euros.", ("number 59",), (2,)),)
    assert answer.warnings == ("not in the cited passages: number 59 (in the sentence “The crane costs 59 euros.”)",)
    assert len(model.asked) == 2


@pytest.mark.parametrize(("first_end", "kept"), [("stop", 0), ("length", 1)])
def test_a_second_answer_that_was_cut_off_replaces_only_one_that_was_cut_off_too(first_end: str, kept: int) -> None:
    texts = ["The crane costs 59 euros [2].", "The crane costs 95 euros [2]. It"]
    model = Scripted(*texts, finish=[first_end, "length"])
    assert Answerer(model, None).answer(Found("What does the crane cost?", HITS)).text == texts[kept]
    assert len(model.asked) == 2


@pytest.mark.parametrize("second", [LanguageModelUnavailable("gone"), "NO_ANSWER", ""])
def test_the_first_answer_stays_if_there_is_no_second(second: str | Exception) -> None:
    model = Scripted("The crane costs 59 euros [2].", second)
    answer = Answerer(model, None).answer(Found("What does the crane cost?", HITS))
    assert (answer.mode, answer.text) == ("llm", "The crane costs 59 euros [2].")
    assert len(answer.unsupported) == 1


@pytest.mark.parametrize(("check", "reported"), [("report", 1), ("off", 0)])
def test_the_setting_turns_the_second_request_and_the_check_off(check: str, reported: int) -> None:
    model = Scripted("The crane costs 59 euros [2].", "The crane costs 95 euros [2].")
    answer = Answerer(model, None, check=check).answer(Found("What does the crane cost?", HITS))
    assert (answer.text, len(answer.unsupported)) == ("The crane costs 59 euros [2].", reported)
    assert len(model.asked) == 1


def test_a_streamed_answer_is_checked_and_not_asked_again() -> None:
    model = Scripted(["The crane costs ", "59 euros [2]."])
    last = list(Answerer(model, None).stream(Found("What does the crane cost?", HITS)))[-1]
    assert isinstance(last, Answer)
    assert [each.claims for each in last.unsupported] == [("number 59",)]
    assert len(model.asked) == 1


def test_citations_are_placed_where_the_words_agree() -> None:
    text = "The caretaker keeps the keys in the blue cupboard. The crane costs 59 euros. Nobody knows why."
    marked = "The caretaker keeps the keys in the blue cupboard [1]. The crane costs 59 euros. Nobody knows why."
    assert with_citations(text, PASSAGES) == marked
    assert with_citations("`the crane costs 95 euros`", PASSAGES) == "`the crane costs 95 euros`"
    answer = Answerer(Scripted("The crane costs 95 euros."), None).answer(Found("What does the crane cost?", HITS))
    assert answer.text == "The crane costs 95 euros [2]."
    assert [(c.number, c.quote) for c in answer.citations] == [(2, "The crane costs 95 euros.")]
    assert "citations were added" in answer.warnings[0]


@pytest.mark.slow
def test_the_time_of_a_long_answer_is_linear() -> None:
    text = "The crane costs 59 euros, says Robert [2]. " * 3000
    assert len(unsupported_sentences(text, PASSAGES, "What does the crane cost?")) == 3000
