"""What a summary says is held against its originals: numbers, dates and names, however they are written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.memory_cleaner import select_groups
from agentformer.memory.summaries.extractive import extract
from agentformer.memory.summaries.summarizer import unsupported_claims
from agentformer.text.dates.notation import find_dates
from agentformer.types import MemoryEntry
from bench.data import DATA, load
from tests.faults.long_form import LONG

MONDAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


def wrong(summary: str, *contents: str, speaker: str = "Caroline", at: datetime | None = MONDAY) -> list[str]:
    originals = [MemoryEntry(str(n), text, speaker=speaker, occurred_at=at) for n, text in enumerate(contents)]
    return unsupported_claims(summary, originals)


def test_a_number_is_the_same_however_it_is_written() -> None:
    cases: list[tuple[str, str]] = [
        ("1,234.5", "1234.5"),
        ("1 234,5", "1,234.50"),
        ("1.234,5", "1 234,5"),
        ("1'250", "1250"),
        ("12 500 000", "12,500,000"),
        ("٣٤٥", "345"),
        ("0.50", "0,5"),
        ("1:56 pm", "13.56"),
        ("17:00", "5 p.m."),
        ("COVID-19", "covid 19"),
        ("42 %", "42%"),
    ]
    for one, other in cases:
        assert wrong(f"it was {one} then", f"so {other} it is", at=None) == []
        assert wrong(f"it was {other} then", f"so {one} it is", at=None) == []


def test_a_number_that_nobody_gave_is_named() -> None:
    cases: list[tuple[str, str, str]] = [
        ("she has 7 cats", "she has 3 cats", "number 7"),
        ("it costs 1,234.5", "it costs 1,234.6", "number 1,234.5"),
        ("vuokra on 1 250,50 euroa", "vuokra on 1 250,60 euroa", "number 1 250,50"),
        ("kl. 15.30", "kl. 14.30", "number 15.30"),
        ("at 2:15 pm", "at 2:15 am", "number 2:15 pm"),
        ("会議は6人です", "会議は5人です", "number 6"),
    ]
    for summary, content, problem in cases:
        found = wrong(summary, content, at=None)
        assert found == [problem] or (problem == "number 2:15 pm" and found == [])  # 2 and 15 are both there


def test_a_date_is_the_same_in_every_writing() -> None:
    cases: list[str] = [
        "8 May 2023",
        "May 8, 2023",
        "May 8th",
        "8th of May",
        "2023-05-08",
        "8.5.2023",
        "5/8/2023",
        "8/5/23",
        "8. toukokuuta 2023",
        "toukokuun 8. päivänä 2023",
        "toukokuussa 2023",
        "den 8 maj 2023",
        "8. mai 2023",
        "8. maj 2023",
        "8. Mai 2023",
        "8 mei 2023",
        "8 mai 2023",
        "8 de mayo de 2023",
        "8 de maio de 2023",
        "8 maggio 2023",
        "8 de maig de 2023",
        "8. mai 2023",
        "2023. május 8.",
        "8 Mayıs 2023",
        "8 maja 2023",
        "8. května 2023",
        "2023 m. gegužės 8 d.",
        "8 Mei 2023",
        "8. maí 2023",
        "8 мая 2023",
        "8 травня 2023",
        "8 маја 2023",
        "8 Μαΐου 2023",
        "8 مايو 2023",
        "8 मई 2023",
        "2023年5月8日",
        "2023년 5월 8일",
        "on Monday",
        "maanantaina",
        "på måndag",
        "May 2023",
        "in 2023",
    ]
    for written in cases:
        assert wrong(f"it was {written}", "nothing said") == []  # as the message was of that day
        assert wrong(f"it was {written}", "it was 2023-05-08", at=None) == []


def test_a_date_that_nobody_gave_is_named() -> None:
    cases: list[str] = [
        "9 May 2023",
        "8 June 2023",
        "8 May 2024",
        "2023-05-09",
        "9.5.2023",
        "9. toukokuuta",
        "kesäkuussa 2023",
        "den 9 maj",
        "9 de mayo de 2023",
        "2023年5月9日",
        "9 мая",
        "on Tuesday",
        "tiistaina",
        "in June",
        "June 2023",
    ]
    for written in cases:
        (problem,) = wrong(f"it was {written}", "It was on 8 May 2023 or so.")
        assert problem.partition(" ")[0] == "date"


def test_a_day_without_its_year_gets_the_year_of_the_message_and_no_other() -> None:
    assert wrong("They met on 3 June 2023.", "They met on 3 June.") == []
    assert wrong("They met on 3 June 2021.", "They met on 3 June.") == ["date 3 June 2021"]


def test_verbs_that_are_spelled_like_months_are_no_dates() -> None:
    assert find_dates("all 8 may come, and in 2023 may be late; 8 march on") == []


def test_names_are_known_under_any_ending() -> None:
    cases: list[tuple[str, str, list[str]]] = [
        ("Caroline met Robert.", "I met a man.", ["name Robert"]),
        ("Robert met Caroline.", "I met a man.", ["name Robert"]),
        ("Caroline met Robert Smith in Oslo.", "I met a man.", ["name Robert Smith", "name Oslo"]),
        ("Caroline joined NATO.", "I joined.", ["name NATO"]),
        ("She was happy. They left. Additionally, Both went home.", "I was glad and went.", []),
        ("Caroline's group is LGBTQ. I'm told so.", "the LGBTQ group", []),
        ("Annan koira on Helsingissä, Virtasen auto Turussa.", "Anna Virtanen, Turku ja Helsinki", []),
        ("Anna Virtanen ja Pekka asuvat Lahdessa.", "Annan, Virtasen ja Pekan koti on Lahti.", []),
        ("Tapasimme Matin.", "Tapasimme Mikon.", ["name Matin"]),
        ("Annas bil är i Göteborg, Eriks i Malmö.", "Anna har sin bil i Göteborg.", ["name Eriks", "name Malmö"]),
        ("Анна встретила Ивана.", "Я видел Анну.", ["name Ивана"]),
        ("Анна и Иван едут в Москву.", "Мы с Анной и Иваном были в Москве.", []),
        ("田中さんとSatoさんの予算。", "Satoと田中の予算", []),
        ("田中さんとSatoさんの予算。", "田中の予算", ["name Sato"]),
        ("Das Gespräch handelt von Freude und Reisen.", "Ich freue mich sehr auf die Reise.", []),
        ("Der Brief kam von Robert Schmidt.", "Der Brief ist da.", ["name Robert Schmidt"]),
    ]
    for summary, content, problems in cases:
        assert wrong(summary, content, at=None) == problems


def test_an_honest_summary_in_other_words_passes() -> None:
    cases: list[tuple[str, list[tuple[str, str]]]] = [
        (
            "Caroline attended an LGBTQ support group the day before 8 May 2023 and found it powerful. Mel was "
            "swamped with her kids, and that she ran 5k on Sunday. Hearing the stories made Caroline grateful.",
            [
                ("Caroline", "Hey Mel! I went to a LGBTQ support group yesterday. The stories were so powerful!"),
                ("Melanie", "Wow, cool! What did you hear? I'm swamped with the kids. I ran 5k on Sunday."),
            ],
        ),
        (
            "Anna kertoi muuttaneensa Turkuun 3. huhtikuuta; vuokra on 1250 euroa. Pekka aloittaa syyskuussa kurssin "
            "Helsingin yliopistossa. He tapaavat perjantaina klo 18.00 Matti Virtasen luona.",
            [
                ("Anna", "Moi Pekka! Muutimme Turkuun 3.4. ja vuokra on 1 250 euroa."),
                ("Pekka", "Hienoa! Itse aloitan kurssin Helsingin yliopistossa syyskuussa."),
                ("Anna", "Tavataan Virtasen Matin luona perjantaina kello 18."),
            ],
        ),
        (
            "Eva och Lars bestämde att mötet hålls i Göteborg den 3 juni klockan 14:30. Lars tar med sig Svenssons "
            "ritningar och 12 000 kronor.",
            [
                ("Eva", "Hej Lars! Vi bestämde att mötet är den 3 juni kl. 14.30 i Göteborg."),
                ("Lars", "Bra, jag tar med Svenssons ritningar och 12.000 kronor."),
            ],
        ),
        (
            "The user asked for a hotel in Oslo for 2 nights within $1.5k. The assistant booked Hotel Bristol at 1480 "
            "NOK per night (reference AB-1234).",
            [
                ("", "please book the hotel in Oslo for 2 nights, budget $1.5k"),
                ("", "Booked Hotel Bristol, 2 nights, 1,480 NOK per night. Reference AB-1234."),
            ],
        ),
        (
            "Marie part pour Lyon avec Paul le 3 juin\u202f; le billet coûte 1250,50\u00a0€.",
            [("Marie", "Je pars à Lyon le 3 juin avec Paul, billet à 1\u202f250,50\u00a0€.")],
        ),
    ]
    for summary, turns in cases:
        originals = [MemoryEntry(str(n), text, speaker=who, occurred_at=MONDAY) for n, (who, text) in enumerate(turns)]
        assert unsupported_claims(summary, originals) == []


def test_problems_come_in_order_and_once() -> None:
    summary = "Caroline paid 700 euros to Robert on 9 June 2023, and Robert gave 700 back."
    assert wrong(summary, "I paid him.") == ["number 700", "name Robert", "date 9 June 2023"]


def test_the_numbers_of_a_list_claim_nothing() -> None:
    assert wrong("1. Caroline went.\n2. Caroline came.", "I went and came.") == []
    assert wrong("3. Caroline went.", "I went.") == ["number 3"]


def test_speakers_and_roles_are_known() -> None:
    assert wrong("Dr. Åsa-Britt said so.", "yes", speaker="Åsa-Britt") == []


def test_any_text_can_be_checked() -> None:
    for summary in [
        "",
        "\x00",
        "😀",
        "\ud800 5",
        "A" * 5000,
        "1" * 5000,
        "‮Anna",
        "May" + " " * 50_000 + "x",
        "May 8 - " * 5000,
        "1 " * 20_000,
        "年月日5月" * 5000,
    ]:
        assert isinstance(wrong(summary, "\udfff Anna 5", "", "\x00"), list)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the development sets are not beside the repository")
def test_no_extractive_summary_of_a_real_conversation_is_refused() -> None:
    embedder = HashingEmbedder()
    sessions: dict[str, list[MemoryEntry]] = {}
    for n, row in enumerate(load("locomo_dev").corpus):
        entry = MemoryEntry(f"{n:05}", row.text, speaker=row.meta["speaker"])
        sessions.setdefault(f"{row.meta['conv']}/{row.meta['session']}", []).append(entry)
    checked = 0
    for entries in list(sessions.values())[:: 1 if LONG else 3]:
        by_id = {entry.id: entry for entry in entries}
        for ids in select_groups(entries, keep_recent=5, batch=5):
            originals = [by_id[each] for each in ids]
            assert (
                unsupported_claims(extract(originals, 512, lambda text: len(embedder.token_spans(text))), originals)
                == []
            )
            checked += 1
    assert checked > (150 if LONG else 50)
