"""Contradictions among facts. Pairs of facts are labelled: "value", "number" and "negation" are contradictions, and ""
are two facts that can both hold. `DEVELOPMENT` was used to write the rules, `TEST` was written before the rules were
run on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentformer.memory.contradictions import Contradiction, FactContradictions
from agentformer.testing import make_entry

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
Pair = tuple[str, str, str]

DEVELOPMENT: list[Pair] = [
    ("Anna lives in Turku.", "Anna lives in Oslo.", "value"),
    ("Anna works at Kone.", "Anna now works at Nokia.", "value"),
    ("Anna's phone number: 040 123", "Anna's phone number: 050 321", "number"),
    ("The rent is 800 euros.", "The rent is 950 euros.", "number"),
    ("Anna is 30 years old", "Anna is 31 years old", "number"),
    ("The office is in Turku.", "The office is in Oslo.", "value"),
    ("Anna asuu Turussa.", "Anna asuu Oslossa.", "value"),
    ("Vuokra on 800 euroa.", "Vuokra on 950 euroa.", "number"),
    ("Anna bor i Åbo.", "Anna bor i Oslo.", "value"),
    ("Hyran är 800 euro.", "Hyran är 950 euro.", "number"),
    ("The office closes at 17.", "The office closes at 18.", "number"),
    ("The office closes at 5 pm.", "The office closes at 18:00.", "number"),
    ("She has two dogs.", "She has three dogs.", ""),  # another person perhaps
    ("Anna has two dogs.", "Anna has three dogs.", "number"),
    ("The boat sleeps 4 people.", "The boat sleeps 6 people.", "number"),
    ("The key code is 4711.", "The key code is 4712.", "number"),
    ("Anna takes 20 mg of the medicine daily.", "Anna takes 40 mg of the medicine daily.", "number"),
    ("The meeting starts at 9:00 on Mondays.", "The meeting starts at 10:00 on Mondays.", "number"),
    ("Aino drinks coffee.", "Aino doesn't drink coffee.", "negation"),
    ("Aino drinks coffee.", "Aino does not drink coffee.", "negation"),
    ("Aino drinks coffee.", "Aino never drinks coffee.", "negation"),
    ("Anna smokes.", "Anna no longer smokes.", "negation"),
    ("Anna has a car.", "Anna has no car.", "negation"),
    ("Anna can swim.", "Anna can't swim.", "negation"),
    ("The sauna is open in winter.", "The sauna is not open in winter.", "negation"),
    ("Aino pitää teestä.", "Aino ei pidä teestä.", "negation"),
    ("Aino juo kahvia.", "Aino ei juo kahvia.", "negation"),
    ("Ulla dricker kaffe.", "Ulla dricker inte kaffe.", "negation"),
    ("Hans trinkt Bier.", "Hans trinkt kein Bier.", "negation"),
    ("Anna lives in Turku.", "Ben lives in Oslo.", ""),
    ("Anna likes tea.", "Anna likes coffee.", ""),
    ("Anna lives in Oslo.", "Anna lives in Oslo, Norway.", ""),
    ("Anna lived in Turku.", "Anna lives in Oslo.", ""),
    ("Does Anna live in Turku?", "Anna lives in Oslo.", ""),
    ("Room 12 has a projector.", "Room 14 has a projector.", ""),
    ("The projector of room 12 is broken.", "The projector of room 14 is broken.", ""),
    ("Bus 5 stops at the harbour.", "Bus 6 stops at the harbour.", ""),
    ("Anna bought 3 apples.", "Anna bought 5 apples.", ""),
    ("Anna ran 5 km.", "Anna ran 10 km.", ""),
    ("Order #4711: 500 euros", "Order #4712: 300 euros", ""),
    ("In 2023 the fee was 23 euros.", "In 2024 the fee was 24 euros.", ""),
    ("The budget for 2023 is approved.", "The budget for 2024 is approved.", ""),
    ("The meeting on 5 May is in room B.", "The meeting on 6 May is in room B.", ""),
    ("On Monday the office is open until 17.", "On Tuesday the office is open until 18.", ""),
    ("Anna does not work on Mondays.", "Anna works on Tuesdays.", ""),
    ("The harbour fee for boats is 5 euros.", "The harbour fee for cars is 9 euros.", ""),
    ("The office closes at 17.", "The office closes at 17:00.", ""),
    ("The price is 1,200 euros.", "The price is 1200 euros.", ""),
    ("Anna flies to Oslo.", "Anna doesn't fly from Oslo.", ""),
    ("Anna should not eat nuts.", "Anna eats nuts.", ""),
    ("If it rains, the match is cancelled.", "If it does not rain, the match is cancelled.", ""),
    ("He drinks coffee.", "He doesn't drink coffee.", ""),
    ("Anna didn't drink coffee.", "Anna drinks coffee.", ""),
    ("Version 1.2 has 3 known bugs.", "Version 1.3 has 5 known bugs.", ""),
    ("See page 12 for details.", "See page 14 for details.", ""),
    ("Anna drinks tea without sugar.", "Anna drinks tea with sugar.", ""),
    ("Aino drinks coffee.", "Matti does not smoke.", ""),
    ("Aino likes tea.", "Aino does not like coffee.", ""),
    ("The train to Turku takes 2 hours.", "The train to Oulu takes 6 hours.", ""),
    ("Aino juo kahvia.", "Matti ei juo kahvia.", ""),
    ("Aino pitää teestä.", "Aino ei pidä kahvista.", ""),
    ("Anna är sjuk.", "Anna är inte hemma.", ""),
    ("Huone 12 on vapaa.", "Huone 14 on vapaa.", ""),
]
TEST: list[Pair] = [
    ("Mikko works for Wärtsilä.", "Mikko works for Metso.", "value"),
    ("The club house is in Helsinki.", "The club house is in Espoo.", "value"),
    ("The annual fee is 120 euros.", "The annual fee is 140 euros.", "number"),
    ("My sister is called Liisa.", "My sister is called Maija.", "value"),
    ("Email: mikko@old.example", "Email: mikko@new.example", "value"),
    ("Mikko moved to Tampere.", "Mikko moved to Vaasa.", "value"),
    ("The parcel weighs 3 kg.", "The parcel weighs 5 kg.", "number"),
    ("Mikko työskentelee Koneella.", "Mikko työskentelee Nokialla.", "value"),
    ("Lippu maksaa 12 euroa.", "Lippu maksaa 15 euroa.", "number"),
    ("Lisa bor i Malmö.", "Lisa bor numera i Lund.", "value"),
    ("Biljetten kostar 120 kronor.", "Biljetten kostar 150 kronor.", "number"),
    ("The crane lifts 10 tons.", "The crane lifts 12 tons.", "number"),
    ("The library opens at 8.", "The library opens at 9.", "number"),
    ("The team has 7 members.", "The team has nine members.", "number"),
    ("The lease ends in 6 months.", "The lease ends in 12 months.", "number"),
    ("The server has 16 GB of memory.", "The server has 32 GB of memory.", "number"),
    ("Mikko needs 8 hours of sleep.", "Mikko needs 7 hours of sleep.", "number"),
    ("The course costs 90 euros for members.", "The course costs 80 euros for members.", "number"),
    ("Guests may stay for 14 days.", "Guests may stay for 21 days.", "number"),
    ("Mikko eats meat.", "Mikko does not eat meat.", "negation"),
    ("Dogs are allowed on the pier.", "Dogs are not allowed on the pier.", "negation"),
    ("Mikko speaks Swedish.", "Mikko doesn't speak Swedish.", "negation"),
    ("The bridge is passable.", "The bridge isn't passable.", "negation"),
    ("Mikko has children.", "Mikko has no children.", "negation"),
    ("The lift works.", "The lift never works.", "negation"),
    ("Mikko will attend the meeting.", "Mikko won't attend the meeting.", "negation"),
    ("Mikko polttaa.", "Mikko ei polta.", "negation"),
    ("Sauna on auki talvella.", "Sauna ei ole auki talvella.", "negation"),
    ("Mikko syö lihaa.", "Mikko ei syö lihaa.", "negation"),
    ("Lisa äter kött.", "Lisa äter inte kött.", "negation"),
    ("Hissen fungerar.", "Hissen fungerar inte.", "negation"),
    ("Mikko works for Wärtsilä.", "Liisa works for Metso.", ""),
    ("Mikko speaks Swedish.", "Mikko speaks German.", ""),
    ("Mikko has a dog.", "Mikko has a cat.", ""),
    ("Mikko has 2 sons.", "Mikko has 3 daughters.", ""),
    ("Gate 4 is closed.", "Gate 7 is closed.", ""),
    ("Chapter 3 describes search.", "Chapter 4 describes search.", ""),
    ("Invoice 1001 is paid.", "Invoice 1002 is paid.", ""),
    ("Mikko paid 50 euros.", "Mikko paid 70 euros.", ""),
    ("Mikko scored 2 goals yesterday.", "Mikko scored 1 goal yesterday.", ""),
    ("The storm broke 3 windows.", "The storm broke 4 windows.", ""),
    ("The temperature was 5 degrees.", "The temperature was 7 degrees.", ""),
    ("The audit of 2021 is done.", "The audit of 2022 is done.", ""),
    ("The fee for adults is 10 euros.", "The fee for children is 5 euros.", ""),
    ("In May the water is 8 degrees.", "In July the water is 18 degrees.", ""),
    ("Mikko does not eat meat.", "Mikko eats fish.", ""),
    ("Mikko doesn't speak Swedish.", "Liisa speaks Swedish.", ""),
    ("Do not feed the birds.", "The birds feed on fish.", ""),
    ("Mikko is not at home on Fridays.", "Mikko is at home on Sundays.", ""),
    ("The pool is not open on 24 December.", "The pool is open on 2 January.", ""),
    ("Mikko can't come on Monday.", "Mikko can come on Tuesday.", ""),
    ("Mikko might not come.", "Mikko comes.", ""),
    ("Mikko was not ill.", "Mikko is ill.", ""),
    ("They don't answer.", "They answer.", ""),
    ("When the flag is up, swimming is not allowed.", "When the flag is up, swimming is allowed.", "negation"),
    ("Mikko ei syö lihaa.", "Mikko syö kalaa.", ""),
    ("Liisa ei polta.", "Mikko polttaa.", ""),
    ("Portti 4 on kiinni.", "Portti 7 on kiinni.", ""),
    ("Mikko osti 3 omenaa.", "Mikko osti 5 omenaa.", ""),
    ("Lisa äter inte kött.", "Lisa äter fisk.", ""),
    ("Lisa köpte 3 äpplen.", "Lisa köpte 5 äpplen.", ""),
    ("Buss 4 går till hamnen.", "Buss 7 går till hamnen.", ""),
    ("The train leaves at 9:10 from track 4.", "The train leaves at 9:40 from track 6.", ""),
    ("A train to Turku leaves at 9.", "A train to Turku leaves at 10.", ""),
    ("Mikko's brother is 40 years old.", "Mikko's sister is 42 years old.", ""),
    ("The boat is 9 metres long.", "The boat is 3 metres wide.", ""),
    ("Step 2 takes 5 minutes.", "Step 3 takes 10 minutes.", ""),
    ("Route A is 5 km long.", "Route B is 7 km long.", ""),
    ("Mikko visited 12 countries.", "Mikko visited 14 countries.", ""),
    ("The wifi password is harbour12.", "The wifi password is harbour13.", "value"),
]


def find(*contents: str, **values: Any) -> Sequence[Contradiction]:
    facts = FactContradictions()
    for n, content in enumerate(contents):
        facts.add(make_entry(content, created_at=NOW + timedelta(days=n), **values))
    return facts.find()[0]


def judged(pairs: Sequence[Pair]) -> tuple[float, float, list[Any]]:
    """Return the precision and the recall over these pairs, and the pairs that were judged wrongly."""
    found = [(pair, [each.about for each in find(*pair[:2])]) for pair in pairs]
    right = sum(bool(abouts) and bool(pair[2]) for pair, abouts in found)
    wrong = [(pair, abouts) for pair, abouts in found if abouts != [pair[2]] * bool(pair[2])]
    reported, labelled = sum(bool(abouts) for _, abouts in found), sum(bool(pair[2]) for pair in pairs)
    return right / reported, right / labelled, wrong


def test_contradictions_of_the_development_pairs_are_found() -> None:
    assert judged(DEVELOPMENT) == (1.0, 1.0, [])


def test_precision_and_recall_on_the_test_pairs() -> None:
    """30 of the 31 reported pairs are contradictions, and 30 of the 33 contradictions are reported."""
    precision, recall, wrong = judged(TEST)
    assert precision >= 0.96 and recall >= 0.9, wrong


def test_only_facts_of_the_same_owner_and_thing_are_compared() -> None:
    def of(**values: Any) -> int:
        facts = FactContradictions()
        for n, content in enumerate(("Anna lives in Turku.", "Anna lives in Oslo.")):
            facts.add(make_entry(content, **{name: value[n] for name, value in values.items()}))
        return len(facts.find()[0])

    assert of(kind=("fact", "preference")) == 1
    for name, values in {
        "namespace": ("a", "b"),
        "user_id": ("a", None),
        "agent_id": ("a", "b"),
        "project": ("a", "b"),
        "title": ("a", "b"),
        "metadata": ({}, {"host": "b"}),
        "kind": ("fact", "event"),
        "tier": ("semantic", "core"),
    }.items():
        assert of(**{name: values}) == 0, name
    assert of(kind=("message", "message")) == of(kind=("summary", "summary")) == of(tier=("working", "working")) == 0


def test_one_fact_does_not_contradict_itself_and_each_change_is_reported() -> None:
    assert find("Anna lives in Turku. Anna lives in Oslo.") == ()
    found = find("Anna lives in Rome.", "Anna lives in Turku.", "Anna lives in Turku.", "Anna lives in Oslo.")
    assert [each.sentences for each in found] == [
        ("Anna lives in Turku.", "Anna lives in Oslo."),
        ("Anna lives in Rome.", "Anna lives in Turku."),
    ]


def test_long_facts_and_many_contradictions_are_noted() -> None:
    facts = FactContradictions()
    for n in range(103):
        facts.add(make_entry(f"The fee of the boat is {n} euros.", created_at=NOW + timedelta(days=n)))
    facts.add(make_entry("Anna lives in Turku. " * 20))
    found, notes = facts.find()
    assert (len(found), facts.examined, facts.long) == (100, 103, 1)
    assert found[0].sentences == ("The fee of the boat is 101 euros.", "The fee of the boat is 102 euros.")
    assert len(notes) == 2 and notes[0].startswith("102 contradictions") and notes[1].endswith(": 1")


@pytest.mark.slow
def test_the_time_is_proportional_to_the_number_of_facts() -> None:
    def seconds(count: int) -> float:
        entries = [make_entry(f"The fee of the boat is {n} euros.", created_at=NOW) for n in range(count)]
        facts, started = FactContradictions(), time.process_time()
        for entry in entries:
            facts.add(entry)
        facts.find()
        return time.process_time() - started

    assert min(seconds(1000) for _ in range(3)) < 8 * min(seconds(250) for _ in range(3))
