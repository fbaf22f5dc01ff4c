"""Thoughts of models are taken out, however they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.llms.reasoning import ReasoningFilter, strip_reasoning

TEXTS = [
    ("<think>The user asks.</think>\n\nIn the cupboard [1].", "In the cupboard [1]."),
    ("  \n<think>one\n\ntwo</think>Yes.", "Yes."),
    ("<thinking>hm</thinking>Yes.", "Yes."),
    ("[THINK]hm[/THINK]Yes.", "Yes."),
    ("<think>never closed, cut by the limit", ""),
    ("Yes.\n<think>never closed", "Yes."),
    ("One.<think>hm</think> Two.", "One. Two."),
    ("Use the tag <think> in it.", "Use the tag <think> in it."),
    ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>", "Yes."),
    ("<|channel|>analysis<|message|>cut by the lim", ""),
    ("5 < 7 and <b>bold</b> <thinly", "5 < 7 and <b>bold</b> <thinly"),
    ("", ""),
]


def streamed(pieces: list[str]) -> str:
    listener = ReasoningFilter()
    return "".join(listener.feed(piece) for piece in pieces) + listener.rest()


def test_only_what_is_said_stays() -> None:
    for text, said in TEXTS:
        assert strip_reasoning(text) == said


@pytest.mark.parametrize(("text", "said"), TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_stream_shows_the_same_wherever_it_is_cut(text: str, said: str, size: int) -> None:
    assert streamed([text[i : i + size] for i in range(0, len(text), size)]).strip() == said


def test_what_is_no_thought_is_shown_at_once() -> None:
    listener = ReasoningFilter()
    assert [listener.feed(piece) for piece in ("In ", "the cup", "board <", "b>")] == [
        "In ",
        "the cup",
        "board ",
        "<b>",
    ]


def test_a_closing_without_an_opening_ends_a_thought_that_the_template_opened() -> None:
    assert strip_reasoning("The user asks.\n</think>\n\nYes.") == "Yes."
    assert "</think>" not in streamed(["The user", " asks.</th", "ink>Yes."])


PARTS = ["<think>a\n</think>", "[THINK]b[/THINK]", "<think>", "<", "thi", "nk>", "[TH", "a", " ", "\n", "<|end|>"]


@pytest.mark.slow
@given(st.lists(st.sampled_from(PARTS)).map("".join), st.integers(1, 12))
def test_where_a_text_is_cut_changes_nothing(text: str, size: int) -> None:
    assert streamed([text[i : i + size] for i in range(0, len(text), size)]) == streamed([text])
