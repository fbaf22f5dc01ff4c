from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.text import normalize
from agentformer.text.normalize import (
    accent_style,
    clean,
    clean_plain,
    join_hyphens,
    looks_english,
    normalize_pages,
    repair_accents,
)


def normal(text: str) -> str:
    return normalize_pages([text])[0]


def test_detached_accents_find_their_letters() -> None:
    for raw, right in [
        ("ty\u00a8okalu ja k\u00a8aytt\u00a8o", "työkalu ja käyttö"),
        ("p\u02daa m\u02daaste \u02daar", "på måste år"),
        ("Inst\u00a8allningar f\u00a8or \u02daaret", "Inställningar för året"),
        ("tyo\u00a8kalu ela\u00a8ma\u00a8 ta\u00a8ssa\u00a8", "työkalu elämä tässä"),
        ("caf\u00b4e r\u00b4esum\u00b4e gar\u00b8con", "café résumé garçon"),
        ("Dvo\u02c7r\u00b4ak \u02c7cesk\u00b4y", "Dvořák český"),
        ("na\u00a8\u0131ve \u00b4\u0131sland", "naïve ísland"),
        ("Gr\u00a8o\u00dfe \u00a8uber \u00a8Ol", "Größe über Öl"),
        ("f\u00a8or n\u00a8ar\n1.1 Oversikt \u00a8\nTexten b\u00a8orjar", "för när\n1.1 Översikt\nTexten börjar"),
        ("f\u00a8or n\u00a8ar\n1.1 Oversikt . . . \u00a8 4", "för när\n1.1 Översikt . . . 4"),
        ("\u00a8 Akta dig f\u00a8or n\u00a8asan", "Äkta dig för näsan"),
    ]:
        assert normal(raw) == right


def test_lone_accents_stay() -> None:
    for text in [
        "20 \u02daC ute f\u00f6r n\u00e4r",
        "90\u02da angle",
        "the sign \u00a8 alone",
        "`code` and ``quotes''",
        "a \u00b4 b",
    ]:
        assert normal(text) == text


def test_words_torn_at_a_line_end() -> None:
    for raw, right in [
        ("raken-\nnus", "rakennus"),
        ("linja-\nauto", "linja-auto"),
        ("raja-\narvo", "raja-arvo"),
        ("HLR-\nflödet", "HLR-flödet"),
        ("EU-\nmaat", "EU-maat"),
        ("COVID-\n19", "COVID-19"),
        ("Anna-\nLiisa", "Anna-Liisa"),
        ("e-\npost", "e-post"),
        ("3-\nvuotias", "3-vuotias"),
        ("korkea-\nja matalapaine", "korkea-\nja matalapaine"),
        ("korkea- ja matalapaine, in- och utgång", "korkea- ja matalapaine, in- och utgång"),
        ("disci\ufffeplined", "disciplined"),
        ("auto\ufffeja", "auto-\nja"),
        ("opti-\nmi-\nsation", "optimisation"),
        ("soft\u00adware and hard\u00ad\nware", "software and hardware"),
        ("well-known and well-\nknown", "well-known and well-known"),
        ("tutkija sanoo: tutki-\nja", "tutkija sanoo: tutkija"),
        ("a – b\n- item\n- item", "a – b\n- item\n- item"),
    ]:
        assert normal(raw) == right


def test_other_pages_tell_how_a_torn_word_is_written() -> None:
    assert normalize_pages(["the run-\ntime cost", "at run-time and run-time"])[0] == "the run-time cost"


def test_an_english_compound_of_two_known_words_keeps_its_hyphen() -> None:
    text = "the trace of the loop is based in the trace, and that is for the trace-\nbased compiler based on the loop"

    assert "trace-based" in normal(text)


def test_characters() -> None:
    for raw, right in [
        ("\ufb01n\ufb02\ufb00", "finflff"),
        ("m\u00b2 CO\u2082 10\u00b2 2\u00b9\u2070", "m2 CO2 10\u00b2 2\u00b9\u2070"),
        ("\u00bd and 1\u00bd", "1\u20442 and 1\u00bd"),
        ("Name\u2122", "Name\u2122"),
        ("a\u00a0b\u2009c\u3000d", "a b c d"),
        ("a\r\nb\rc\u2028d\u2029e", "a\nb\nc\nd\n\ne"),
        ("a\x00b\x07c\u200bd\ufeffe", "abcde"),
        ("\u202eabc\u202c\u2066d\u2069", "abcd"),
        ("e\u0301", "é"),
        ("\uff21\uff11", "A1"),
        ("a  \n\n\n\nb", "a\n\nb"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
        ("👩\u200d🚀", "👩\u200d🚀"),
    ]:
        assert clean(raw) == right


@given(st.text())
def test_cleaning_is_idempotent_and_leaves_no_controls(text: str) -> None:
    once = clean(text)

    assert clean(once) == once
    assert not any(c < " " and c != "\n" for c in once)
    assert "\u202e" not in once


@given(st.lists(st.text(alphabet="abäö-\n \u00a8\u02da\ufffeA.", max_size=60), max_size=4))
def test_every_page_stays_a_page(texts: list[str]) -> None:
    assert len(normalize_pages(texts)) == len(texts)


@given(st.text())
def test_plain_text_is_stable(text: str) -> None:
    once = clean_plain(text)

    assert clean_plain(once) == once


@pytest.mark.slow
def test_a_long_line_takes_linear_time() -> None:
    text = "sana-" * 200_000 + "\u00a8" * 1000

    assert len(normal(text)) > 1_000_000


def test_joining_needs_no_vocabulary() -> None:
    assert join_hyphens("raken-\nnus") == "rakennus"


def test_an_accent_joins_the_letter_that_it_fits() -> None:
    for text, style, joined in (
        ("e\u00a8t", "", "ët"),
        ("u\u00a8i", "", "üi"),
        ("a\u00a8o", "before", "aö"),
        ("a\u00a8o", "after", "äo"),
        ("a\u00a8\u0131", "", "aï"),
        ("Oversikt \u00a8", "before", "Översikt"),
        ("Oversikt Angel \u00a8", "before", "Oversikt Angel \u00a8"),  # two capitals fit
        ("Oversikt\n\u00a8\nhere", "before", "Översikt\n\nhere"),
        ("here\n\u00a8\nOversikt", "before", "here\n\nÖversikt"),
        ("\u00a8 Oversikt x", "before", "Översikt x"),
        ("\u00a8 Oversikt x", "", "\u00a8 Oversikt x"),
        ("\u00b4 Elan", "before", "Élan"),
    ):
        assert repair_accents(text, style) == joined
    styles = [accent_style([text]) for text in ("\u00a8a", "\u00a8a \u00a8o", "a\u00a8 o\u00a8", "\u00a8a o\u00a8")]
    assert styles == ["", "before", "after", "before"]


def test_the_hyphen_of_a_word_stays_for_a_reason() -> None:
    parts = {"well": 1, "known": 1, "two": 1, "year": 1}
    for before, after, counts, english, stays in (
        ("linja", "auto", {}, False, True),
        ("tyo", "kalu", {}, False, False),
        ("e", "post", {}, False, True),
        ("es", "post", {}, False, False),
        ("3", "vuotias", {}, False, True),
        ("HLR", "test", {}, False, True),
        ("Anna", "Liisa", {}, False, True),
        ("well", "known", parts, True, True),
        ("well", "known", parts, False, False),
        ("well", "known", {"well": 1}, True, False),
        ("two", "year", parts, True, False),  # parts of three letters are not certain
        ("well", "known", {"well-known": 2, "wellknown": 1}, False, True),
        ("well", "known", {"well-known": 1, "wellknown": 2}, True, False),
    ):
        assert normalize._keeps_hyphen(before, after, counts, english) is stays, (before, after, counts)


def test_english_needs_a_share_of_english_words() -> None:
    for words, english in ((12, False), (13, True)):
        assert looks_english(["the " * words + "x " * (100 - words)]) is english
    assert not looks_english([])
