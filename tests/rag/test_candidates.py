"""Candidates: what a sentence contains that a question of a type may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from agentformer.rag.answer.answer_types import defines, has_candidate, other_period
from agentformer.text.question_types import Question, classify


def value(question: str, text: str, language: str) -> Any:
    return has_candidate(classify(question, language), text, language, question.casefold().split())


@pytest.mark.parametrize(
    ("kind", "text", "language", "low", "high"),
    [
        ("much", "The crane costs 95 euros.", "en", 1.0, 1.0),
        ("much", "The crane costs $95.", "en", 1.0, 1.0),
        ("many", "It has 12 doors.", "en", 0.8, 0.8),
        ("many", "It has twelve doors.", "en", 0.7, 0.7),
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
        ("many", "Siinä on kolme ovea.", "fi", 0.7, 0.7),
        ("many", "乗客は三人である。", "ja", 0.8, 0.8),
        ("when", "It was built in 1921.", "en", 1.0, 1.0),
        ("when", "Se rakennettiin 3. toukokuuta.", "fi", 1.0, 1.0),
        ("when", "Den byggdes på 1800-talet.", "sv", 0.7, 1.0),
        ("when", "平安時代に建てられた。", "ja", 0.7, 0.7),
        ("when", "It was built quickly.", "en", 0.0, 0.0),
        ("when", "It closes on Friday.", "en", 0.5, 1.0),
        ("when", "Søket stoppet klokken 17.", "no", 0.7, 1.0),
        ("when", "Han kom ved 22-tiden.", "no", 0.7, 0.7),
        ("many", "Half of them left.", "en", 0.7, 0.7),
        ("many", "Zwei Drittel der Gäste gingen.", "de", 0.7, 0.7),
        ("who", "It was built by Anna Berg.", "en", 1.0, 1.0),
        ("who", "It was built by workers.", "en", 0.0, 0.0),
        ("who", "It is tested on the first Monday of October.", "en", 0.0, 0.0),
        ("who", "Im Haus ist ein Dach.", "de", 0.0, 0.0),
        ("who", "Das Haus baute Anna Berg.", "de", 1.0, 1.0),
        ("where", "It stands in Turku.", "en", 1.0, 1.0),
        ("where", "Se sijaitsee Turussa.", "fi", 1.0, 1.0),
        ("where", "It stands since Anna bought it.", "en", 0.6, 0.6),
        ("where", "静岡県にある。", "ja", 1.0, 1.0),
        ("why", "It fell because the ice was heavy.", "en", 1.0, 1.0),
        ("why", "It fell at night.", "en", 0.0, 0.0),
        ("how", "It is moved by means of a chain.", "en", 1.0, 1.0),
        ("how", "Den flyttas med hjälp av en kedja.", "sv", 1.0, 1.0),
        ("how", "It is moved at night.", "en", 0.0, 0.0),
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
    assert has_candidate(Question("how"), "It works by steam.", "xx", []) is None
    assert has_candidate(Question("who"), "山田が建てた。", "ja", []) is None
    assert has_candidate(Question("why"), "It fell.", "xx", []) is None


@pytest.mark.parametrize(
    ("asked", "language", "right", "wrong"),
    [
        ("Paljonko paikka maksaa vuodessa?", "fi", "Se on 300 euroa vuodessa.", "Se on 25 euroa kuukaudessa."),
        ("How much is it per year?", "en", "It is $300 per year.", "It is $25 a month."),
        ("How often does the bus leave?", "en", "The bus leaves daily.", "The bus has 20 seats."),
        ("Hur ofta töms kärlet?", "sv", "Kärlet töms varannan vecka.", "Kärlet rymmer 140 liter."),
        ("Hvor tit kører bussen?", "da", "Bussen kører hver time.", "Bussen har 20 pladser."),
        ("Kuinka usein bussi lähtee?", "fi", "Bussi lähtee päivittäin.", "Bussissa on 20 paikkaa."),
    ],
)
def test_a_number_of_another_measure_or_period_counts_less(asked: str, language: str, right: str, wrong: str) -> None:
    question = classify(asked, language)
    values = [has_candidate(question, text, language, []) or 0.0 for text in (right, wrong)]
    assert values[0] > values[1] > 0


@pytest.mark.parametrize(
    ("question", "language", "right", "wrong"),
    [
        ("How much does the crane cost?", "en", "The crane costs 95 euros.", "The crane lifts 95 tons."),
        ("What percentage of the boats leak?", "en", "12% of them leak.", "12 tons of them leak."),
        ("How long is the bridge?", "en", "It has 640 metres.", "The bridge was opened in 1998."),
        ("How long does the crossing take?", "en", "It takes an hour.", "The crossing is 40 metres long."),
        ("How long was the pier closed?", "en", "It was closed for several weeks.", "The pier was closed in 2019."),
        ("How heavy is the ferry?", "en", "It weighs two hundred tonnes.", "The ferry was built in 2003."),
        ("How old is the tower?", "en", "It was built in 1921.", "The tower was painted in 2011."),
        ("How old is the captain?", "en", "She is 52.", "The captain is 180 cm tall."),
        ("How deep is the lake?", "en", "It is 31 m deep.", "The lake is 3 km long."),
        ("How fast is the train?", "en", "It runs at 160 km/h.", "The train is 160 m long."),
        ("How fast is the lift?", "en", "Its speed is 2 m/s.", "The lift carries at most 8 persons."),
        ("How old is the club?", "en", "It was founded in 1921.", "The club has 140 members."),
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
        ("Kuinka kauan ylitys kestää?", "fi", "Se kestää tunnin.", "Ylitys on 3 kilometriä."),
        ("Hur tung är färjan?", "sv", "Den väger 420 ton.", "Färjan är 40 meter lång."),
        ("Hur gammal är kaptenen?", "sv", "Hon är 52 år gammal.", "Kaptenen väger 70 kg."),
        ("Hvor dyp er sjøen?", "no", "Den er 31 meter dyp.", "Sjøen er 3 km lang."),
        ("Hvor hurtigt sejler færgen?", "da", "Den sejler 30 km/t.", "Færgen er 40 meter lang."),
    ],
)
def test_a_number_with_a_unit_of_another_kind_is_no_answer(
    question: str, language: str, right: str, wrong: str
) -> None:
    assert value(question, wrong, language) == 0 < value(question, right, language)


@pytest.mark.parametrize(
    ("question", "language", "when", "how_often"),
    [
        ("How often is the alarm tested?", "en", "It was tested on 3 May 2024 at 9:00.", "It is tested on Mondays."),
        ("How often is berth 12 cleaned?", "en", "Berth 12 was cleaned in 2023.", "Berth 12 is cleaned twice a year."),
        ("Kuinka usein hissi puhdistetaan?", "fi", "Se puhdistettiin 3.5.2024.", "Se puhdistetaan joka viikko."),
        ("Kuinka usein bussi lähtee?", "fi", "Bussi lähti kello 9.00.", "Bussi lähtee tunnin välein."),
        ("Hur ofta går bussen?", "sv", "Bussen gick klockan 9.", "Bussen går var tjugonde minut."),
        ("Hvor ofte går bussen?", "no", "Bussen gikk i 2023.", "Bussen går hver dag."),
        ("Hvor tit kører bussen?", "da", "Bussen kørte i tirsdags.", "Bussen kører to gange om dagen."),
        ("Wie oft fährt der Bus?", "de", "Der Bus fuhr um 9 Uhr.", "Der Bus fährt stündlich."),
        ("バスはどのくらいの頻度で出ますか？", "ja", "バスは2023年に出ました。", "バスは毎日出ます。"),
        ("À quelle fréquence part le bus ?", "fr", "Le bus est parti à 9 heures.", "Le bus part chaque jour."),
        ("¿Con qué frecuencia sale el autobús?", "es", "El autobús salió en 2023.", "Sale cada 20 minutos."),
        ("Hoe vaak vertrekt de bus?", "nl", "De bus vertrok om 9 uur.", "De bus vertrekt dagelijks."),
        ("Quanto spesso parte l'autobus?", "it", "L'autobus è partito alle 9.", "Parte ogni 20 minuti."),
        ("Como often?", "", "In 2023.", "In 2023."),  # no question of a known language
    ],
)
def test_a_time_does_not_say_how_often(question: str, language: str, when: str, how_often: str) -> None:
    assert value(question, when, language) == (0 if language else None)
    assert not language or value(question, how_often, language) > 0


def test_years_count_the_times_that_something_happened() -> None:
    assert value("How many times did France win?", "France won in 1998 and 2018.", "en") > 0


def test_a_date_is_no_number_and_a_date_in_brackets_counts_less() -> None:
    assert has_candidate(Question("much"), "He was born on 30 August 1880.", "en", []) == 0.0
    assert has_candidate(Question("when"), "Anna Berg (born 1880, died 1950) built it.", "en", []) == 0.6
    assert has_candidate(Question("when"), "Anna Berg (born 1880) built it in 1921.", "en", []) == 1.0


def test_an_amount_for_another_period_is_told() -> None:
    yearly = classify("Was kostet ein Stellplatz pro Jahr?", "de")
    assert yearly.period == "year"
    assert other_period(yearly, "Der Stellplatz kostet 40 Euro im Monat.", "de")
    assert not other_period(yearly, "Der Stellplatz kostet 480 Euro pro Jahr, also 40 Euro im Monat.", "de")
    assert not other_period(yearly, "Der Stellplatz kostet 480 Euro.", "de")
    assert not other_period(classify("Was kostet ein Stellplatz?", "de"), "Er kostet 40 Euro im Monat.", "de")


@pytest.mark.parametrize(
    ("question", "text", "sure"),
    [
        ("What is a comet?", "A comet is a small body of ice.", 1.0),
        ("What is a comet?", "Comets (from Greek) are small bodies.", 0.7),
        ("What is a comet?", "A comet, seen from here, is a small body.", 0.7),
        ("What is a comet?", "The tail of a comet is long.", 0.0),
        ("Who was John Lennon?", "John Winston Lennon, known as John, was a singer.", 0.7),
        ("Hva er en komet?", "En komet (fra gresk) er et lite legeme.", 1.0),
        ("Mikä on komeetta?", "Komeetta on pieni kappale.", 1.0),
        ("彗星とは何ですか？", "彗星（すいせい）は、氷の小天体である。", 1.0),
        ("彗星とは何ですか？", "尾は彗星の一部である。", 0.0),
        ("When was the comet seen?", "A comet is a small body of ice.", 0.0),
        ("What is the size of the comet?", "The comet is a small body of ice.", 0.0),
    ],
)
def test_a_definition_begins_with_its_subject(question: str, text: str, sure: float) -> None:
    assert defines(classify(question), text) == sure
