"""Confidence: its features, the questions that it declines, and its places in results."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer import connect
from agentformer.cli.output import print_answer
from agentformer.embedders.calibration import CALIBRATIONS, Calibration, Scale
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable, InvalidInput
from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.confidence import QuoteFeatures, about_question
from agentformer.rag.answer.passages import dates_of, read_passages
from agentformer.rag.answer.prompts import nothing_found, nothing_found_in
from agentformer.rag.answer.sources import Found
from agentformer.rag.answer.support import unknown_in_question
from agentformer.settings import Settings
from agentformer.text.analysis import analyze_query
from agentformer.text.facts.quantities import names_another, numbered_things
from agentformer.tools.result_json import answer_json
from agentformer.types import EmbeddingSpace, Hit, Matrix, MemoryEntry, Vector, Vote
from tests.rag.models import HITS, KEYS, Scripted, hit


def about(question: str, hits: list[Hit], **options: Scale | None) -> float:
    return about_question(analyze_query(question), read_passages(hits), **options)


def near(cosine: float, *hits: Hit) -> list[Hit]:
    """The hits as an embedder would have found them."""
    return [dataclasses.replace(each, dense_score=cosine, dense_rank=n) for n, each in enumerate(hits, 1)]


class Reader(HashingEmbedder):
    """Passes for an embedder that knows meaning; `broken` ones fail. Each `name` is a space of its own."""

    def __init__(self, name: str = "reader", languages: str = "") -> None:
        super().__init__()
        self._given = {"model": name, "languages": languages}
        self.broken = False
        self.read: list[str] = []

    @property
    def space(self) -> EmbeddingSpace:
        return dataclasses.replace(super().space, provider="sbert", **self._given)

    def embed_documents(self, texts: Any) -> Matrix:
        if self.broken:
            raise EmbedderUnavailable("away")
        self.read += texts
        return super().embed_documents(texts)


class Bilingual(Reader):
    """Knows what one German question means."""

    def embed_query(self, text: str) -> Vector:
        return super().embed_query("Who keeps the keys in the blue cupboard?" if "Schlüssel" in text else text)


class Squeezed(Reader):
    """All cosines are between .7 and 1."""

    def embed_query(self, text: str) -> Vector:
        row = np.sqrt(np.float32(0.3)) * super().embed_query(text)
        return np.append(row, np.sqrt(np.float32(0.7)))


def test_the_share_is_that_of_the_best_passage() -> None:
    for question, low, high in [
        ("Who keeps the keys in the blue cupboard?", 1.0, 1.0),
        ("Who keeps the keys of the library?", 0.3, 0.9),
        ("What did Napoleon eat in Moscow?", 0.0, 0.0),
        ("What is it?", 0.0, 1.0),  # function words alone are looked for as they are
        ("?", 0.0, 0.0),
        (" ", 1.0, 1.0),
    ]:
        assert low <= about(question, HITS) <= high
        assert about(question, HITS[::-1]) == about(question, HITS)


def test_terms_of_two_passages_are_not_added_up() -> None:
    question = "Does the caretaker keep the crane?"
    assert about(question, HITS) < 1 == about(question, [hit(" ".join(h.entry.content for h in HITS), 1)])


def test_long_words_count_for_more_than_short_ones() -> None:
    one, other = (about("photosynthesis of ferns", [hit(text, 1)]) for text in ("Photosynthesis.", "Ferns."))
    assert one > 0.6 > 0.4 > other > 0


def test_a_compound_is_held_in_part() -> None:
    text = "Avaimet ovat kaapissa. Koneet huolletaan keväisin."
    assert 0 < about("Avainkaappi?", [hit(text, 1)]) < about("Kaappi?", [hit(text, 1)]) == 1


def test_the_title_and_headings_of_a_passage_are_part_of_it() -> None:
    question = "Who keeps the keys of the library?"
    titled = dataclasses.replace(HITS[0].entry, context="Rules of the library")
    assert about(question, [Hit(titled, 1.0)]) == 1 > about(question, HITS[:1])


def test_a_long_question_is_not_held_to_each_of_its_words() -> None:
    told = (
        "Good morning! My colleague Margaret told me yesterday during lunch that somebody at the reception desk would "
        "probably remember, since I lost mine while travelling, where the caretaker keeps the keys of the cupboard?"
    )
    assert Answerer(None, None).answer(Found(told, HITS)).mode == "extractive"


def test_the_larger_of_the_share_and_of_the_cosine_counts() -> None:
    question = "Who keeps the keys of the library?"
    share = about(question, HITS)
    assert [about(question, near(cosine, *HITS)) for cosine in (-1.0, 0.0, 0.2)] == [share] * 3
    nearer = [about(question, near(cosine, *HITS)) for cosine in (0.8, 0.85, 0.9, 1.0)]
    assert share < nearer[0] < nearer[1] < nearer[2] == nearer[3] == 1.0


def test_confidence_grows_with_what_is_known_of_the_hits_and_the_quote() -> None:
    middle = QuoteFeatures(0.5, 0.5)
    more = [middle._replace(score=0.9), middle._replace(about=0.9)]
    assert all(0 < middle.confidence < each.confidence < 1 for each in more)
    assert QuoteFeatures(1.0, 1.0).confidence > 0.9
    assert QuoteFeatures(1.0, 1.0, elsewhere=True).confidence < 0.1


def test_words_count_for_nothing_between_two_languages() -> None:
    question = "Wer hat die Schlüssel für den blauen Schrank?"
    assert about(question, HITS) < 0.2
    assert Answerer(None, Bilingual("bilingual")).answer(Found(question, near(0.6, *HITS))).mode == "extractive"
    assert Answerer(None, Bilingual("bilingual")).answer(Found(question, near(0.1, *HITS))).mode == "none"


def test_an_embedder_without_a_vote_does_not_judge() -> None:
    unvoted = [dataclasses.replace(each, dense_score=0.0) for each in HITS]
    assert about("Who keeps the keys?", unvoted) == about("Who keeps the keys?", HITS)
    assert about("Who keeps the crane?", near(0.9, *HITS)) != about("Who keeps the crane?", HITS)


def test_cosines_of_an_embedder_that_knows_no_meaning_do_not_count() -> None:
    question, hits = "Who looks after the locks?", near(0.9, *HITS)
    words = Answerer(None, None).answer(Found(question, HITS)).confidence
    assert Answerer(None, HashingEmbedder()).answer(Found(question, hits)).confidence == words
    assert Answerer(None, None).answer(Found(question, hits)).confidence == words
    judged = Answerer(None, Reader()).answer(Found(question, hits)).confidence
    assert judged is not None and words is not None and judged > words


@pytest.mark.parametrize("question", ["Who keeps the keys?", "What did Napoleon eat in Moscow?", "Wer hat Schlüssel?"])
@pytest.mark.parametrize("cosine", [0.0, 0.15, 0.4, 0.9])
def test_a_space_whose_cosines_are_all_high_is_judged_as_one_whose_are_not(question: str, cosine: float) -> None:
    plain = Answerer(None, Reader("plain")).answer(Found(question, near(cosine, *HITS)))
    squeezed = Answerer(None, Squeezed("squeezed")).answer(Found(question, near(0.7 + 0.3 * cosine, *HITS)))
    assert squeezed.confidence == pytest.approx(plain.confidence, abs=1e-4)
    assert squeezed.mode == plain.mode


def test_cosines_without_a_scale_do_not_count() -> None:
    assert about("Who keeps the keys?", near(0.9, *HITS), scale=None) == about("Who keeps the keys?", HITS)


def test_an_embedder_that_fails_leaves_the_words_and_is_asked_again() -> None:
    question, reader = "Who looks after the locks?", Reader("failing")
    reader.broken = True
    answerer, hits = Answerer(None, reader), near(0.9, *HITS)
    words = Answerer(None, None).answer(Found(question, HITS))
    failed = answerer.answer(Found(question, hits))
    assert (failed.confidence, failed.text) == (words.confidence, words.text)
    reader.broken = False
    again = answerer.answer(Found(question, hits)).confidence
    assert again is not None and again != words.confidence


@pytest.mark.parametrize("abstain", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(
    "question", ["Who keeps the keys in the cupboard?", "Which office keeps cats?", "What did Napoleon eat in Moscow?"]
)
def test_what_is_below_the_bound_is_declined_and_keeps_its_passages(question: str, abstain: float) -> None:
    answer = Answerer(None, None, abstain=abstain).answer(Found(question, HITS))
    assert answer.confidence is not None and 0 < answer.confidence < 1
    assert answer.mode == ("extractive" if answer.confidence >= abstain else "none")
    assert answer.hits == tuple(HITS)
    assert (answer.text == nothing_found_in("en")) == (answer.citations == ()) == (answer.mode == "none")


def test_at_nought_only_nothing_is_declined() -> None:
    answerer = Answerer(None, None, abstain=0.0)
    assert answerer.answer(Found("What did Napoleon eat in Moscow?", HITS)).mode == "extractive"
    nothing = answerer.answer(Found("Who keeps the keys?", []))
    assert (nothing.mode, nothing.confidence) == ("none", None)


def test_the_bound_is_not_for_a_model() -> None:
    model = Scripted("Yes [1].")
    answer = Answerer(model, None, abstain=1.0).answer(Found("Which office keeps cats?", HITS))
    assert (answer.mode, len(model.asked)) == ("llm", 1)
    assert answer.confidence == Answerer(None, None).answer(Found("Which office keeps cats?", HITS)).confidence


@pytest.mark.parametrize(("abstain", "asked"), [(0.1, 0), (0.0, 1)])
def test_at_nought_a_model_is_asked_whatever_was_found(abstain: float, asked: int) -> None:
    model = Scripted("Nothing of it [1].")

    class Far(Reader):
        def embed_query(self, text: str) -> Vector:
            first: Vector = np.eye(256, dtype=np.float32)[0]
            return first

        def embed_documents(self, texts: Any) -> Matrix:
            return np.tile(np.eye(256, dtype=np.float32)[1], (len(texts), 1))

    CALIBRATIONS.add(Far("far").space, Calibration())
    answer = Answerer(model, Far("far"), abstain=abstain).answer(Found("Mongolia's capital?", near(0.0, *HITS)))
    assert (len(model.asked), answer.mode) == (asked, "llm" if asked else "none")
    assert answer.confidence is not None and answer.confidence < 0.1


def test_a_streamed_answer_tells_the_same_confidence() -> None:
    for model in (None, Scripted("In the cupboard [1].")):
        *_, last = Answerer(model, None).stream(Found("Who keeps the keys?", HITS))
        assert (
            getattr(last, "confidence", 0)
            == Answerer(model, None).answer(Found("Who keeps the keys?", HITS)).confidence
        )


def test_the_setting_reaches_the_answers_and_each_tells_its_confidence(tmp_path: Path) -> None:
    question = "Which office keeps cats?"
    modes = {}
    for abstain in (0.0, 1.0):
        folder = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "up"}
        with connect(embedder="hashing", abstain=abstain, **folder) as af:
            af.rag.upload(KEYS.encode(), name="keys.txt")
            answer = af.rag.query(question)
            told = answer_json(answer)
            modes[abstain] = answer.mode
            assert answer.confidence is not None and told["confidence"] == pytest.approx(answer.confidence, abs=1e-6)
            assert [each["document"] for each in told["hits"]] == ["keys.txt"]
    assert modes == {0.0: "extractive", 1.0: "none"}


def test_the_command_line_tells_the_confidence_of_quotations(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answerer(None, None).answer(Found("Who keeps the keys?", HITS))
    print_answer(answer)
    shown = capsys.readouterr().out
    assert f"(extractive, confidence {answer.confidence:.2f})" in shown
    assert answer.citations
    for citation in answer.citations:
        assert shown.count(" ".join(citation.quote.split())) == 1, "each quote is printed once"
        assert f"[{citation.number}] {citation.document}" in shown


@pytest.mark.parametrize(
    ("question", "sure"),
    [
        ("When was the school founded?", True),
        ("When was the pier sold?", False),
        ("When was the pier made longer?", True),
    ],
)
def test_a_sentence_about_something_else_is_not_surely_the_answer(question: str, sure: bool) -> None:
    hits = [
        hit("The harbour was rebuilt and its pier made longer in 2019. It has sixty berths.", "harbour.md", 1),
        hit("The school was founded in 1874. The church is older.", "town.md", 2),
    ]
    confidence = Answerer(None, None).answer(Found(question, hits)).confidence
    assert confidence is not None and (confidence > 0.8) == sure


def test_a_question_of_one_word_has_the_language_of_its_norwegian_passage() -> None:
    text = "Trådløst nett i møterommet heter Gjest og passordet er fisk2024. Kaffe serveres i gangen."
    passages = read_passages([hit(text, "mote.md", 1)])
    assert [passage.language for passage in passages] == ["no"]
    answer = Answerer(None, None).answer(Found("passord?", [hit(text, "mote.md", 1)]))
    assert "passordet er fisk2024" in answer.text


@pytest.mark.parametrize(
    ("question", "text", "unknown"),
    [
        ("What is the door code of room 909?", "The door code of room 303 is 4471.", ["number 909"]),
        ("What is the door code of room 303?", "The door code of room 303 is 4471.", []),
        (
            "How many staff has Tesla?",
            "Adobe has 29,945 employees. Its staff is spread over 26 countries.",
            ["name Tesla"],
        ),
        ("How many staff has Adobe?", "Adobe has 29,945 employees. Its staff is spread over 26 countries.", []),
        ("What did Pfizer earn in 2024?", "Pfizer earned 58 billion dollars in 2023.", ["number 2024"]),
        ("Which schools are private in Germany?", "German private schools are called Ersatzschulen.", []),
        ("When was the Maastrich Treaty signed?", "The Maastricht Treaty was signed in 1992.", []),  # misspelt
        ("Missä Virtanen on töissä?", "Pekka Virtasen työpaikka on Turun satamassa, ja hän asuu Helsingissä.", []),
        ("Missä Korhonen on töissä?", "Pekka Virtasen työpaikka on Turun satamassa.", ["name Korhonen"]),
        ("Kuka on isännöitsijä Koivurinteessä?", "Koivurinne on taloyhtiö, jonka isännöitsijä on Matti.", []),
        ("Missä Borealiksen konttori on?", "Borealis on yhtiö, ja sen konttori on Kuopiossa.", []),
        ("Mitä Kemijoella rakennettiin?", "Kemijoki on pitkä, ja siihen rakennettiin voimala.", []),
        ("Missä Koivurinteen sauna on?", "Koivulahti on taloyhtiö, jonka sauna on pihalla.", ["name Koivurinteen"]),
        ("Wann zog Petra nach Graz?", "Felix zog 2019 nach Graz, und er wohnt dort.", ["name Petra"]),
        ("Prior to noon, who keeps the keys?", "The caretaker keeps the keys before noon.", []),  # begins a sentence
        ("Wo liegt der Schlüssel für den Keller?", "Der Hausmeister verwahrt alles im Büro an der Straße.", []),
        ("Which products gave more than 20% of the revenue in FY2023?", "Revenue of 2023 by product", []),
        ("What was shown in the 80's?", "The drama was shown in 1980 and later.", []),
        ("What was shown in the 80s?", "The drama was shown in 1975.", ["number 80"]),
        ("How hot is it, in degrees Celsius?", "The steam has 600 °C.", []),
        ("Who founded the UMC in Ohio?", "The United Methodist Church of Ohio was founded by Otterbein.", []),
        ("Who founded the UMC in Ohio?", "The Methodist Church of Ohio was founded by Otterbein.", ["name UMC"]),
        ("Who wrote the Mark of Anarchy?", "The Mask of Anarchy was written by Shelley.", []),  # misspelt
        ("Who leads the Port of Turku?", "The Port of Vaasa is led by Anna Berg.", ["name Turku"]),
        ("How many boats had the club in Q22023?", "July 2, 2023: the club has 40 boats.", []),
        ("How many boats had the club in Q22023?", "The club has 2 piers and 40 boats.", ["number 2023"]),
        ("Where is Tim in the harbour?", "The captain is at the pier, and so is his son im Boot.", ["name Tim"]),
        ("Who paid 1500 euros?", "Anna Berg paid 1,500 euros.", []),  # no line has these digits
        ("Who keeps the keys of room 12?", "The caretaker keeps the keys of room 312.", ["number 12"]),
        ("What was closed in May 2021?", "The bridge was closed on 3.5.2021.", []),
        ("WHO KEEPS THE KEYS?", "The caretaker has them in the office.", []),
        ("Who built the Tin Lighthouse?", "Anna Berg was born in Turku.", ["name Tin Lighthouse"]),
        ("Who has berth 30?", "The ferry leaves from the berth at 04:30.", ["number 30"]),
        ("Who has berth 30?", "The berths were built on 30.6.1998.", ["number 30"]),
        ("Who has berth 30?", "Aino has the berth, 30 is its number.", []),
        ("Who has berth 30?", "The berths 28-34 belong to guests.", []),
        ("What lifts 30 tons?", "The crane lifts 30.5 tons.", ["number 30"]),
        ("Who has berth 40?", "The berths 28-34 belong to guests.", ["number 40"]),
        ("What does section 7 say?", "Section 7.2 says who audits the accounts.", []),
        ("Who leaves at 4:30?", "The ferry leaves at 04:30.", []),
        ("What happened in 2020?", "The office can be called at 040 123 2020.", ["number 2020"]),
        ("Who can be called at 040 123 2020?", "The office: +358 40 123 2020.", []),
        ("Who can be called at 040 123 2021?", "The office: +358 40 123 2020.", ["number 040 123 2021"]),
        ("What does article 12(4) say?", "The article 12(3) is on page 4.", ["number 12(4)"]),
        ("What does article 12(4) say?", "Article 12. (3) The board meets. (4) The chair is elected.", []),
        ("What does article 12 say?", "Article 12(3): the board meets.", []),
        ("What does article 3 say?", "Article 12(3): the board meets.", ["number 3"]),
        ("What was built on 30 June 1998?", "The pier was built on 30.6.1998.", []),
        ("Wo ist das Büro in Berlin?", "Das Büro in Hamburg befindet sich am Hafen.", ["name Berlin"]),
        ("Wo ist das Büro aus Holz?", "Das hölzerne Büro in Hamburg befindet sich am Hafen.", []),
        ("Who is Matti Virtanen in this club?", "Матти Виртанен был избран председателем клуба.", []),  # another script
    ],
)
def test_what_the_question_names_and_no_passage_does_is_unknown(question: str, text: str, unknown: list[str]) -> None:
    assert unknown_in_question(question, read_passages([hit(text, 1)])) == unknown
    assert (Answerer(None, None).answer(Found(question, [hit(text, 1)])).confidence or 1) < 0.1 or not unknown


def test_a_name_is_compared_with_passages_of_unknown_language() -> None:
    hits = [hit("Lena bor i Malmö.", 1), hit("Das Büro ist am Hafen, und es ist offen.", 2)]
    passages = read_passages(hits, "sv")
    assert [passage.language for passage in passages] == ["", "de"]
    assert unknown_in_question("Var bor Gustav?", passages) == ["name Gustav"]
    assert unknown_in_question("Where does Lena live?", passages) == []


@pytest.mark.parametrize(
    ("question", "quote"),
    [
        ("How long is berth 30?", "Berth 12 is 30 metres long."),
        ("What does page 12 of the guide explain?", "Page 3 of the guide explains the 12 alarms."),
        ("What does version 2.1 read?", "Version 2.10 reads Word files, and 2.1 MB of them."),
        ("Missä huone 12 on?", "Huoneessa 13 on 12 tuolia."),
        ("What does § 12 say?", "§ 14: there are 12 members."),
        ("When did Johan II rule the country?", "Johan III ruled the country from 1568 to 1592."),
        ("When does flight BA1331 leave?", "Flight AY1331 leaves at 08:15, gate 1331."),
        ("What does Anna Berg lead?", "Anna Holm leads the choir."),
        ("Who was the second chairman?", "The first chairman was Aino Laine."),
        ("Kuka oli toinen puheenjohtaja?", "Ensimmäinen puheenjohtaja oli Aino Laine."),
        ("Wer war der zweite Vorsitzende?", "Der erste Vorsitzende war Hans Krüger."),
        ("Vem var den andra ordföranden?", "Den första ordföranden var Maja Lind."),
    ],
)
def test_another_numbered_thing_or_another_question_is_not_answered(question: str, quote: str) -> None:
    answer = Answerer(None, None).answer(Found(question, [hit(quote, 1)]))
    assert answer.mode == "none" and (answer.confidence or 0) < 0.1


def remembered(*texts: str) -> list[Hit]:
    return [Hit(MemoryEntry(f"m{n}", text, kind="fact"), 1 - n / 10) for n, text in enumerate(texts)]


NAMED = "The new office of the company in Bergen is at Torget 8.", "Pia moved from Oslo.", "The fee is low."


def test_a_quote_is_about_something_else_if_only_another_hit_has_the_name() -> None:
    hits = remembered(*NAMED)
    answerer = Answerer(None, None)
    assert (
        "Torget" in answerer.answer(Found("Where is the new office of the company in Bergen?", hits)).citations[0].quote
    )
    asked = answerer.answer(Found("Where is the new office of the company in Oslo?", hits))
    assert asked.mode == "none" and (asked.confidence or 0) < 0.15
    together = [dataclasses.replace(each, entry=dataclasses.replace(each.entry, session_id="s1")) for each in hits]
    assert (answerer.answer(Found("Where is the new office of the company in Oslo?", together)).confidence or 0) > (
        asked.confidence or 0
    )


@pytest.mark.parametrize(
    ("question", "quote", "other"),
    [
        ("When did Petra move to Graz?", "Petra moved to Linz in 2021.", "Felix moved to Graz in 2019."),
        ("Milloin Petra muutti Raumalle?", "Petra muutti Poriin vuonna 2021.", "Felix muutti Raumalle vuonna 2019."),
        ("När flyttade Petra till Kalmar?", "Petra flyttade till Lund 2021.", "Felix flyttade till Kalmar 2019."),
    ],
)
def test_an_answer_about_another_person_or_place_is_not_given(question: str, quote: str, other: str) -> None:
    answerer = Answerer(None, None)
    for texts in ((quote, other), (other, quote)):
        assert (answerer.answer(Found(question, remembered(*texts))).confidence or 0) < 0.15
        in_one = answerer.answer(Found(question, [hit("\n\n".join(texts), "notes.md", 1)]))
        assert (in_one.confidence or 0) <= 0.78
    assert (answerer.answer(Found(question, remembered(question.replace("?", " 2020."), other))).confidence or 0) > 0.78


def test_a_sentence_with_the_asked_name_is_preferred() -> None:
    hits = remembered("The office in Bergen is at Torget 8.", "Das Büro Hamburg ist am Hafen 2, und es ist offen.")
    assert (
        "Hafen"
        in Answerer(None, None, abstain=0.0).answer(Found("Where is the office in Hamburg?", hits)).citations[0].quote
    )


def test_a_hit_whose_title_is_mentioned_may_lack_the_asked_name() -> None:
    hits = remembered("The director Anna Berg was born in Turku.", "A film: The Tin Lighthouse.")
    mentioned = [dataclasses.replace(hits[0], votes=(Vote("mentions", 1, 0.8),)), hits[1]]
    question = "Where was the director of The Tin Lighthouse born?"
    first = [Answerer(None, None).judged(Found(question, each))[0][0].text for each in (hits, mentioned)]
    assert first == [hits[1].entry.content, hits[0].entry.content]


def test_a_year_an_amount_and_a_time_name_no_thing() -> None:
    text = "Welches Bild aus dem Jahr 1821 kostet 30 % mehr, oder 50 Mark, wiegt 30 kg, und wann am 3. Mai um 4:30?"
    assert numbered_things(text, "de") == []


@pytest.mark.parametrize(
    ("question", "quote"),
    [
        ("Who has berth 30?", "Berths 28-34 belong to guests."),
        ("Who has berth 30?", "Berths 12 and 30 belong to Aino."),
        ("What does section 1.2 say?", "Section 1 says who audits the accounts."),
        ("Who leads room 12?", "Aino leads rooms 11, 12 and 13."),
    ],
)
def test_a_list_and_a_range_contain_a_numbered_thing(question: str, quote: str) -> None:
    things = numbered_things(question, "en")
    assert things and not names_another(things, quote, "en")
    assert names_another(things, quote.translate(str.maketrans("123", "789")), "en")


def test_a_number_of_thousands_of_digits_is_no_end_of_a_range() -> None:
    things = numbered_things("Who has berth 30?", "en")
    assert names_another(things, f"Berths {'1' * 5_000}-12 are free.", "en")


def test_a_file_name_a_heading_and_a_speaker_name_what_the_passage_is_about() -> None:
    question = "How many staff has Tesla?"
    entry = hit("The staff has 29,945 people.", 1).entry
    assert unknown_in_question(question, read_passages([Hit(entry, 1.0)])) == ["name Tesla"]
    assert entry.source
    named = dataclasses.replace(entry.source, name="TESLA_2022_10K.pdf")
    for known in (
        {"source": named}, {"context": "Tesla, annual report"}, {"title": "Tesla"}, {"speaker": "Tesla"}
    ):  # fmt: skip
        assert unknown_in_question(question, read_passages([Hit(dataclasses.replace(entry, **known), 1.0)])) == []


@pytest.mark.parametrize(
    ("question", "unknown"),
    [
        ("Who gave the keys to Matti on 5 November 2026?", []),
        ("Who gave the keys to Matti in November 2026?", []),
        ("Who gave the keys to Matti on 6 November 2026?", ["date 6 November 2026"]),
    ],
)
def test_the_words_for_the_day_of_a_memory_are_known(question: str, unknown: list[str]) -> None:
    moment = datetime(2026, 11, 5, 12, tzinfo=UTC)
    entry = dataclasses.replace(hit("The keys were given to Matti by Aino.", 1).entry, occurred_at=moment, context="")
    passages = read_passages([Hit(entry, 1.0)], "en", dates_of(analyze_query(question)))
    assert unknown_in_question(question, passages) == unknown
    assert ("en~novemb" in passages[0].context_terms.stems) == (not unknown)


@pytest.mark.parametrize(
    ("question", "quote"),
    [
        ("What happened on 5 October 2026?", "The mast fell on 2026-10-05."),
        ("Was geschah am 5. Oktober 2026?", "Der Mast stürzte am 5.10.2026 um."),
        ("Mitä tapahtui 5. lokakuuta 2026?", "Masto kaatui 5.10.2026."),
        ("Vad hände den 5 oktober 2026?", "Masten föll 5.10.2026."),
        ("Hva skjedde 5. oktober 2026?", "Masten falt 5.10.2026."),
        ("Hvad skete der den 5. oktober 2026?", "Masten faldt 5.10.2026."),
    ],
)
def test_a_day_is_found_in_every_notation(question: str, quote: str) -> None:
    assert Answerer(None, None).answer(Found(question, [hit(quote, 1)])).mode == "extractive"
    assert Answerer(None, None).answer(Found(question, [hit(quote.replace("10", "11"), 1)])).mode == "none"


def test_vectors_of_sentences_are_kept_for_the_next_question() -> None:
    reader = Reader("counting")
    answerer = Answerer(None, reader)
    first = answerer.answer(Found("Who keeps the keys?", near(0.6, *HITS)))
    read = list(reader.read)
    assert first.citations[0].quote in read and len(read) == len(set(read)), "each text is embedded once"
    answerer.answer(Found("Which caretaker keeps the keys?", near(0.6, *HITS)))
    assert reader.read == read


@pytest.mark.parametrize(
    ("question", "quote"),
    [
        ("Paljonko sauna maksaa?", "Saunavuoron hinta on 5 euroa."),
        ("Saako koiraa pitää irti?", "Koirat on pidettävä kytkettyinä."),
        ("Milloin pesutupa on auki?", "Pesutupa on avoinna kello 7–22."),
    ],
)
def test_a_short_finnish_question_is_answered_though_its_words_are_parts_of_compounds(
    question: str, quote: str
) -> None:
    rules = "Taloyhtiön säännöt. Saunavuoron hinta on 5 euroa. Pesutupa on avoinna kello 7–22. "
    rules += "Koirat on pidettävä kytkettyinä."
    for text in (quote, rules):
        answer = Answerer(None, None).answer(Found(question, [hit(text, 1)]))
        assert answer.mode == "extractive" and answer.citations[0].quote == quote
    assert Answerer(None, None).answer(Found("Montako venettä satamassa on?", [hit(rules, 1)])).mode == "none"


@pytest.mark.parametrize(
    ("question", "passages", "language"),
    [
        ("Door code?", "en", "en"),  # "door" is Dutch, too
        ("Sauna hinta?", "fi", "fi"),
        ("Do I have a car?", "en", "en"),  # "car" is French, too
        ("Was esse ich?", "de", "de"),
        ("Onko minulla auto?", "en", "fi"),
        ("Was kostet die Sauna?", "de", "de"),
        ("Hvem er leder?", "no", "no"),
        ("Hvem er leder?", "da", "da"),
        ("Wer kommt?", "en", "de"),
        ("Kuka?", "en", "fi"),
        ("Paljonko sauna maksaa?", "en", "fi"),
        ("Xyzzy?", "", "en"),
    ],
)
def test_nothing_found_is_said_in_the_language_of_a_short_question(question: str, passages: str, language: str) -> None:
    assert nothing_found(analyze_query(question), passages) == nothing_found_in(language)


def test_a_bound_out_of_range_is_refused() -> None:
    for value in [-0.1, 1.1, float("nan")]:
        with pytest.raises(InvalidInput, match=r"abstain.*0\.\.1"):
            Settings(abstain=value)


def test_nothing_found_is_said_in_the_language_of_short_memories_that_are_none_alone() -> None:
    texts = "I work at Nokia as a designer.", "I live in Turku.", "My dog is called Rex."
    hits = [hit(text, rank) for rank, text in enumerate(texts, 1)]
    assert Answerer(None, None).answer(Found("Do I have a car?", hits)).text == nothing_found_in("en")
