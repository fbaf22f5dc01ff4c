"""Candidates: what a sentence contains that a question of a type may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from agentformer.rag.answer.candidates import has_candidate
from agentformer.text.questions import Question, classify


def value(question: str, text: str, language: str) -> Any:
    return has_candidate(classify(question, language), text, language, question.casefold().split())


@pytest.mark.parametrize(
    ("kind", "text", "language", "low", "high"),
    [
        ("much", "The crane costs 95 euros.", "en", 1.0, 1.0),
        ("much", "The crane costs $95.", "en", 1.0, 1.0),
        ("many", "It has 12 doors.", "en", 0.8, 0.8),
        ("many", "It has twelve doors.", "en", 0.8, 0.8),
        ("many", "It was built in 1921.", "en", 0.0, 0.0),
        ("many", "It has 1500 doors.", "en", 0.8, 0.8),
        ("many", "Doors: 1850", "en", 0.8, 0.8),
        ("many", "Der Verein hat 1200 Mitglieder.", "de", 0.8, 0.8),
        ("many", "Die Brücke wurde 1920 gebaut.", "de", 0.0, 0.0),
        ("many", "It was built 120 years ago.", "en", 0.0, 0.0),
        ("many", "The doors close at 18:30.", "en", 0.0, 0.0),
        ("when", "It weighs 1200 kg.", "en", 0.0, 0.0),
        ("when", "The shop opens at 9:30.", "en", 0.7, 0.7),
        ("many", "It has many doors.", "en", 0.0, 0.0),
        ("many", "Siinä on kolme ovea.", "fi", 0.8, 0.8),
        ("many", "乗客は三人である。", "ja", 0.8, 0.8),
        ("when", "It was built in 1921.", "en", 1.0, 1.0),
        ("when", "Se rakennettiin 3. toukokuuta.", "fi", 1.0, 1.0),
        ("when", "Den byggdes på 1800-talet.", "sv", 0.7, 1.0),
        ("when", "平安時代に建てられた。", "ja", 0.7, 0.7),
        ("when", "It was built quickly.", "en", 0.0, 0.0),
        ("when", "Søket stoppet klokken 17.", "no", 0.7, 1.0),
        ("when", "Han kom ved 22-tiden.", "no", 0.7, 0.7),
        ("many", "Half of them left.", "en", 0.8, 0.8),
        ("many", "Zwei Drittel der Gäste gingen.", "de", 0.8, 0.8),
        ("who", "It was built by Anna Berg.", "en", 1.0, 1.0),
        ("who", "It was built by workers.", "en", 0.0, 0.0),
        ("who", "It is tested on the first Monday of October.", "en", 0.0, 0.0),
        ("who", "Im Haus ist ein Dach.", "de", 0.0, 0.0),
        ("who", "Das Haus baute Anna Berg.", "de", 1.0, 1.0),
        ("where", "It stands in Turku.", "en", 1.0, 1.0),
        ("where", "Se sijaitsee Turussa.", "fi", 1.0, 1.0),
        ("why", "It fell because the ice was heavy.", "en", 1.0, 1.0),
        ("why", "It fell at night.", "en", 0.0, 0.0),
    ],
)
def test_a_sentence_contains_what_is_asked_for(kind: str, text: str, language: str, low: float, high: float) -> None:
    found = has_candidate(Question(kind), text, language, [])  # type: ignore[arg-type]
    assert found is not None and low <= found <= high


def test_what_the_question_contains_is_no_answer() -> None:
    assert has_candidate(Question("when"), "It was built in 1921.", "en", ["1921"]) == 0.0
    assert has_candidate(Question("who"), "It belongs to Anna.", "en", ["anna"]) == 0.0
    assert has_candidate(Question("much"), "It costs 95 euros.", "en", ["95"]) == 0.0


def test_other_types_and_scripts_without_capitals_give_no_evidence() -> None:
    assert has_candidate(Question("what"), "It works by steam.", "en", []) is None
    assert has_candidate(Question("how"), "It works by steam.", "en", []) is None
    assert has_candidate(Question("who"), "山田が建てた。", "ja", []) is None
    assert has_candidate(Question("why"), "It fell.", "xx", []) is None


@pytest.mark.parametrize(
    ("question", "language", "right", "wrong"),
    [
        ("How much does the crane cost?", "en", "The crane costs 95 euros.", "The crane lifts 95 tons."),
        ("What percentage of the boats leak?", "en", "12% of them leak.", "12 tons of them leak."),
        ("How long is the bridge?", "en", "It has 640 metres.", "The bridge was opened in 1998."),
        ("How heavy is the ferry?", "en", "It weighs two hundred tonnes.", "The ferry was built in 2003."),
        ("How old is the captain?", "en", "She is 52.", "The captain is 180 cm tall."),
        ("How fast is the train?", "en", "It runs at 160 km/h.", "The train is 160 m long."),
        ("How fast is the lift?", "en", "Its speed is 2 m/s.", "The lift carries at most 8 persons."),
        ("Hur mycket höjdes avgiften?", "sv", "Den höjdes med 4 procent.", "Avgiften höjdes den 3 maj."),
        ("Why was the van sold?", "en", "It was sold because it was old.", "The van was sold in 2019."),
        ("Miksi Markus osti veneen?", "fi", "Hän osti sen, koska piti merestä.", "Markus osti veneen vuonna 2015."),
        ("How old was he when he became king?", "en", "He became king at the age of 20.", "He led 20 soldiers."),
        ("Hvor gammel var han da han ble konge?", "no", "Han var tjue år gammel.", "Han hadde tjue soldater."),
        ("How hot is the sauna?", "en", "It has 80 °C.", "The sauna costs 8 euros."),
        ("How expensive is the mast?", "en", "It costs 900 euros.", "The mast arrived in 2015."),
        ("How many metres is the mast high?", "en", "It has 12 metres.", "The mast arrived 12 days later."),
        ("When does the warranty end?", "en", "It ends in June 2027.", "The warranty lasts 24 months."),
        ("Wie lang ist die Brücke?", "de", "Sie ist 640 Meter lang.", "Die Brücke wurde 1998 eröffnet."),
        ("Wie schwer ist die Fähre?", "de", "Sie wiegt 420 Tonnen.", "Die Fähre kostet 420 Euro."),
        ("Kuinka nopea lautta on?", "fi", "Se kulkee 30 km/h.", "Lautta painaa 420 tonnia."),
        ("Hur tung är färjan?", "sv", "Den väger 420 ton.", "Färjan är 40 meter lång."),
        ("Hur gammal är kaptenen?", "sv", "Hon är 52 år gammal.", "Kaptenen väger 70 kg."),
        ("Hvor hurtigt sejler færgen?", "da", "Den sejler 30 km/t.", "Færgen er 40 meter lang."),
    ],
)
def test_a_number_with_a_unit_of_another_kind_is_no_answer(
    question: str, language: str, right: str, wrong: str
) -> None:
    assert value(question, wrong, language) == 0 < value(question, right, language)


def test_a_date_is_no_number() -> None:
    assert has_candidate(Question("much"), "He was born on 30 August 1880.", "en", []) == 0.0
