"""Sentences are cut where they end and nowhere else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.text.splitting import sentence_spans


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


def test_sentences_end_at_stops_but_not_at_abbreviations_numbers_or_initials() -> None:
    for expected in [
        ["Tule esim. Helsinkiin.", "Lähdemme 3. maaliskuuta.", "Hinta on 3,5 euroa!"],
        ["Han bor bl.a. i Stockholm, t.ex. i Kista.", "Den 3. mars kommer hon."],
        ["Mødet er d. 3. marts kl. 10.", "Vi ses."],
        ["Er kam am 3. März an.", "Das war im 19. Jahrhundert, z.B. in Berlin.", "Gut."],
        ["Zahlbar bis zum 3. Werktag des Monats.", "Sie wohnt im 4. Stock.", "Es war ein 2. Versuch."],
        ["Das ist Version 3.", "Danach kam 4."],
        ["Møtet er den 3.", "Velkommen."],
        ["Use a tool, e.g. a hammer.", "Dr. Smith paid $3.50 to J. R. R. Tolkien.", "Why?", "Because!"],
        ['He said "Stop."', "Then he left (at once.)", "Nobody saw it."],
        ["”Mitä?” hän kysyi.", "Ei mitään."],
        ["Wait... what is this?", "I see…", "Good."],
        ["Bring pens, paper, etc. to the room.", "We have chairs, tables, etc.", "Come early."],
        ["The U.S. Army came at 5 p.m. yesterday.", "It left."],
        ["¿Dónde está?", "¡Aquí!", "Bien."],
        ["Привет.", "Как дела?", "Хорошо."],
        ["यह एक वाक्य है।", "यह दूसरा है।"],
    ]:
        assert sentences(" ".join(expected)) == expected


def test_cjk_stops_need_no_space_and_a_quote_goes_on() -> None:
    assert sentences("雨です。本当？はい！「行く。」と言った。終わり") == [
        "雨です。",
        "本当？",
        "はい！",
        "「行く。」と言った。",
        "終わり",
    ]


def test_text_without_capitals_is_still_cut() -> None:
    assert sentences("ok. then we go. see you") == ["ok.", "then we go.", "see you"]


def test_a_wrapped_line_goes_on_and_a_blank_line_ends() -> None:
    assert sentences("The city of\nHelsinki is large\n\nand cold") == ["The city of\nHelsinki is large", "and cold"]


def test_list_items_and_headings_stand_alone() -> None:
    text = "Opening hours\nThe library is open from nine to five on weekdays\n- on Monday\n1. First\n2. Second"
    assert sentences(text) == [
        "Opening hours",
        "The library is open from nine to five on weekdays",
        "- on Monday",
        "1. First",
        "2. Second",
    ]
    assert sentences("# title\ntext of it") == ["# title", "text of it"]


def test_empty_and_blank_texts_have_no_sentence() -> None:
    assert sentence_spans("") == []
    assert sentence_spans(" \r\n\t\u3000\n\n") == []


PIECES = st.sampled_from(
    [*" \n\t\r.!?…。！\"'()”」:;-aAäX1東म।", "\r\n", "\n\n", "esim.", "Dr. ", "3. ", "U.S. ", "1. "]
)


@given(st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=80).map("".join)))
def test_spans_are_ordered_trimmed_and_cover_all_that_is_not_space(text: str) -> None:
    spans = sentence_spans(text)
    assert all(left.end <= right.start for left, right in pairwise(spans))
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    covered = "".join(text[start:end] for start, end in spans)
    assert "".join(covered.split()) == "".join(text.split())


@pytest.mark.slow
def test_a_hostile_run_is_one_sentence() -> None:
    for text, count in [
        ("x" * 1_000_000, 1),
        ("." * 500_000 + "x", 1),
        ('."' * 300_000 + "x", 1),
        ("\n " * 300_000 + "x", 1),
        ("。" * 500_000, 1),
    ]:
        assert len(sentence_spans(text)) == count


def test_a_question_inside_a_sentence_does_not_end_it() -> None:
    for expected in (["“Is it?” he asked.", "Yes."], ["Is it?", "he asked."], ["Stop!) she said."], ["Stop!", "Go."]):
        assert sentences(" ".join(expected)) == expected


def test_only_a_short_first_line_is_a_heading() -> None:
    text = "The library is open from nine to five on weekdays, " * 8
    for length, headings in ((60, 1), (61, 0)):
        assert len(sentences(f"A{'b' * (length - 1)}\n{text}")) == 1 + headings
    opening = f"Opening hours\n{text[:50]}"
    assert sentences(f"{'x' * 100}\n\n{opening}") == ["x" * 100, *opening.split("\n")]
    assert sentences(f"intro words\n{opening}") == ["intro words\nOpening hours", text[:50]]
    assert len(sentences(f"X{'x' * 60}\n{'y' * 70}\n{opening}")) == 1  # too far from the start of the paragraph


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("We met the Amazon.com, Inc. Board in May.", 1),
        ("We acquired Current Health Ltd. In 2022, we sold it.", 2),
        ("It was Jacques Lefevre (c. 1455) who wrote.", 1),
        ("The key is new.[1] The lock is old.² The door is open.[update] Enter.", 4),
        ("The answer is no. The door is open.", 1),
    ],
)
def test_companies_numbered_abbreviations_and_footnotes(text: str, count: int) -> None:
    spans = sentence_spans(text)
    assert len(spans) == count
    assert not any(text[span.start] in "[²" for span in spans)
