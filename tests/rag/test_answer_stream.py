"""Streamed answers: pieces as they come, one answer at the end, and what happens when the model breaks off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentformer.errors import InvalidReply, LanguageModelUnavailable, PromptTooLong
from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.prompts import NO_ANSWER, nothing_found_in
from agentformer.rag.answer.sources import Found
from agentformer.types import Answer, AnswerFault, AnswerPiece, ChatMessage
from tests.rag.models import HITS, Scripted

WHO = "Who keeps the keys?"
DOWN = LanguageModelUnavailable("tiny at http://127.0.0.1:1 did not answer")
SAID = ("The caretaker ", "keeps them ", "[1", "].")


def events(model: Any, question: str = WHO, hits: Sequence[Any] = HITS) -> tuple[list[str], list[str], Answer]:
    """The pieces, the faults, and the answer, which must be the last event and the only one."""
    said = list(Answerer(model, None).stream(Found(question, hits)))
    *before, answer = said
    assert isinstance(answer, Answer)
    assert not any(isinstance(event, Answer) for event in before)
    pieces = [event.text for event in before if isinstance(event, AnswerPiece)]
    return pieces, [event.message for event in before if isinstance(event, AnswerFault)], answer


def test_pieces_come_as_they_are_spoken_and_then_the_checked_answer() -> None:
    pieces, faults, answer = events(Scripted(SAID))
    assert (pieces, faults) == (list(SAID), [])
    assert (answer.text, answer.mode, answer.complete, answer.warnings) == (
        "The caretaker keeps them [1].",
        "llm",
        True,
        (),
    )
    assert [(c.number, c.page, c.quote) for c in answer.citations] == [
        (1, 1, "The caretaker keeps the keys in the blue cupboard.")
    ]


def test_a_piece_is_given_on_before_the_next_one_is_asked_for() -> None:
    spoken: list[str] = []

    class Watched(Scripted):
        def _next(self, messages: Sequence[ChatMessage], max_tokens: int) -> Any:
            for part in ("One ", "two ", "[1]."):
                spoken.append(part)
                yield part

    stream = Answerer(Watched(""), None).stream(Found(WHO, HITS))
    assert next(stream) == AnswerPiece("One ")
    assert spoken == ["One "]


def test_a_model_that_says_nothing_is_replaced_by_quotation() -> None:
    for error in [DOWN, InvalidReply("tiny answered HTML"), PromptTooLong("over 8 tokens")]:
        pieces, faults, answer = events(Scripted(error))
        assert (answer.mode, answer.complete, faults) == ("extractive", True, [])
        assert pieces == [answer.text]
        assert str(error) in answer.warnings[-1]


def test_a_model_that_breaks_off_leaves_what_it_said_with_its_citations() -> None:
    model = Scripted(["The caretaker keeps them [1]. ", "The crane costs [", DOWN])
    pieces, faults, answer = events(model)
    assert "".join(pieces) == "The caretaker keeps them [1]. The crane costs ["
    assert faults == [str(DOWN)]
    assert (answer.text, answer.mode, answer.complete) == (
        "The caretaker keeps them [1]. The crane costs",
        "llm",
        False,
    )
    assert [c.page for c in answer.citations] == [1]
    assert "failed before the end" in answer.warnings[0]


def test_the_fault_comes_right_before_the_answer() -> None:
    *_, fault, answer = Answerer(Scripted(["Some", DOWN]), None).stream(Found(WHO, HITS))
    assert isinstance(fault, AnswerFault) and isinstance(answer, Answer)


def test_a_model_that_breaks_off_while_it_thinks_has_said_nothing() -> None:
    pieces, faults, answer = events(Scripted(["<think>Well", DOWN]))
    assert (answer.mode, faults, pieces) == ("extractive", [], [answer.text])


def test_nothing_found_is_said_in_the_questions_language_and_no_model_is_asked() -> None:
    for model in [None, Scripted("never asked")]:
        pieces, _, answer = events(model, "Missä avaimet ovat?", [])
        assert (answer.mode, answer.text, pieces) == ("none", nothing_found_in("fi"), [nothing_found_in("fi")])
        assert model is None or not model.asked


def test_without_a_model_the_quotation_is_one_piece() -> None:
    pieces, _, answer = events(None)
    assert (answer.mode, pieces) == ("extractive", [answer.text])


def test_a_model_that_finds_no_answer_is_not_quoted_but_we_say_so() -> None:
    for said in [[NO_ANSWER], ["NO_", "ANS", "WER", "."], ["**NO", "_ANSWER**"], ["<think>hm</think>", "\nNO_ANSWER"]]:
        pieces, _, answer = events(Scripted(said), "Vem har nycklarna?")
        assert (answer.mode, answer.text, answer.warnings) == ("none", nothing_found_in("sv"), ())
        assert pieces == [nothing_found_in("sv")]
        assert answer.hits == tuple(HITS)


def test_words_that_begin_like_the_mark_for_no_answer_are_shown() -> None:
    pieces, _, answer = events(Scripted(["NO", " ANSWER", " is needed [1]."]))
    assert "".join(pieces) == answer.text == "NO ANSWER is needed [1]."


def test_thoughts_are_never_shown() -> None:
    pieces, _, answer = events(Scripted(["<th", "ink>se", "cret</thi", "nk>\n\nThe care", "taker [1]."]))
    assert pieces == ["The care", "taker [1]."]
    assert answer.text == "The caretaker [1]."


def test_an_answer_that_was_cut_is_not_complete() -> None:
    for finish, complete in [("length", False), ("filtered", False), ("stop", True), ("", True)]:
        _, faults, answer = events(Scripted(SAID, finish=finish))
        assert (answer.mode, answer.complete, faults) == ("llm", complete, [])
        assert Answerer(Scripted(SAID, finish=finish), None).answer(Found(WHO, HITS)) == answer


def test_nothing_but_thoughts_is_no_answer() -> None:
    _, _, answer = events(Scripted(["<think>on and on"], finish="length"))
    assert answer.mode == "extractive"
    assert "512 tokens" in answer.warnings[0] and "returned no text" in answer.warnings[1]


def test_a_prompt_that_is_too_long_is_asked_again_with_fewer_passages() -> None:
    model = Scripted(PromptTooLong("over 8 tokens"), SAID)
    _, faults, answer = events(model)
    assert (answer.mode, faults) == ("llm", [])
    assert "1 of 3" in answer.warnings[0]
    assert [asked[1].content.count("</passage>") for asked in model.asked] == [3, 1]
    assert answer.hits == tuple(HITS)


def test_closing_the_stream_closes_the_models() -> None:
    model = Scripted(SAID)
    stream = Answerer(model, None).stream(Found(WHO, HITS))
    next(stream)
    assert model.closed == 0
    stream.close()
    assert model.closed == 1


def test_a_model_of_others_may_give_a_plain_iterator() -> None:
    class Plain(Scripted):
        def stream(self, messages: Sequence[ChatMessage], **options: Any) -> Iterator[str]:  # type: ignore[override]
            return iter(["The caretaker ", "[1]."])

    assert events(Plain(""))[2].text == "The caretaker [1]."


def test_a_character_that_comes_in_halves_is_whole() -> None:
    pieces, _, answer = events(Scripted(["Tea \ud83c", "\udf75 [3]\ud83c"]))
    assert pieces == ["Tea ", "🍵 [3]"]
    assert answer.text == "Tea 🍵 [3]"


def test_an_answer_and_its_stream_are_the_same() -> None:
    for script in (list(SAID), [NO_ANSWER], ["<think>x</think>Four o'clock [3][9]."], ["Uncited."]):
        assert Answerer(Scripted(script), None).answer(Found(WHO, HITS)) == events(Scripted(script))[2]
