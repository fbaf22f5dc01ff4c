"""The summary without a model: the originals' own sentences, within the limit, for any content."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.summaries import flatten
from agentformer.memory.summaries.extractive import extract
from agentformer.memory.summaries.summarizer import unsupported_claims
from agentformer.text.splitting import sentence_spans
from agentformer.types import MemoryEntry

NOON = datetime(2023, 5, 8, 12, tzinfo=UTC)
EMBEDDER = HashingEmbedder()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def tokens(text: str) -> int:
    return len(EMBEDDER.token_spans(text))


def said(*turns: tuple[str, str], kind: str = "message") -> list[MemoryEntry]:
    """(speaker, content), a minute apart."""
    return [
        MemoryEntry(f"{n:04}", content, kind=kind, speaker=speaker, occurred_at=NOON + timedelta(minutes=n))
        for n, (speaker, content) in enumerate(turns)
    ]


def sentences_of(entries: list[MemoryEntry]) -> dict[str, list[str]]:
    """Speaker -> all that may be quoted of them, flattened: runs of neighbouring sentences."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        own = [flatten(entry.content[a:b]) for a, b in sentence_spans(entry.content)]
        runs = [" ".join(own[i:j]) for i in range(len(own)) for j in range(i + 1, len(own) + 1)]
        found.setdefault(flatten(entry.speaker or entry.role), []).extend(runs)
    return found


TALK = said(
    ("Caroline", "Hey Mel! Good to see you! How have you been?"),
    ("Melanie", "Hi! I'm swamped with the kids. We moved to Tampere on 3 April, and I paid 1,250 euros for the van."),
    ("Caroline", "Wow, that's cool! I decided to study counselling. The course begins on 12 September."),
    ("Melanie", "Great! What made you choose that?"),
    ("Caroline", "The support group in May helped me a lot. They meet every Tuesday."),
)


def test_lines_are_sentences_word_for_word_led_by_their_speaker() -> None:
    allowed = sentences_of(TALK)
    for row in extract(TALK, 512, tokens).splitlines():
        speaker, _, text = row.partition(": ")
        assert text in allowed[speaker]


def test_facts_are_kept_and_greetings_are_not() -> None:
    summary = extract(TALK, 512, tokens)
    assert "We moved to Tampere on 3 April" in summary
    assert "Hey Mel" not in summary
    assert "What made you choose that?" not in summary


def test_about_half_of_a_long_talk_is_kept_in_the_original_order() -> None:
    talk = said(*((f"S{n % 2}", f"Fact {n} is about the {LETTERS[n % 26]} of town {n}.") for n in range(40)))
    summary = extract(talk, 512, tokens)
    kept = sum(tokens(row.partition(": ")[2]) for row in summary.splitlines())
    assert 0.45 < kept / sum(tokens(entry.content) for entry in talk) <= 0.5
    numbers = [int(number) for number in re.findall(r"Fact (\d+)", summary)]
    assert numbers == sorted(numbers) and len(numbers) >= 18
    assert extract(talk[::-1], 512, tokens) == summary  # whatever order the entries come in


def test_a_short_talk_keeps_all_that_says_something_and_nothing_else() -> None:
    talk = said(
        ("Anna", "Hi Bo! How are you? I decided that the budget is 4,200 euros."),
        ("Bo", "Ok. Thanks! I am allergic to penicillin. That's cool."),
        ("Anna", "The build failed, since the disk was full. The build failed, since the disk was full!"),
        ("Bo", "Wow! No, peanuts. Sounds great."),
        ("Anna", "Moi! Kiitos paljon! Mitä kuuluu? Koirani nimi on Musti."),
        ("京子", "こんにちは。アレルギーはありますか？猫が好きです。ありがとうございます。"),
    )
    assert extract(talk, 512, tokens).splitlines() == [
        "Anna: I decided that the budget is 4,200 euros.",
        "Bo: I am allergic to penicillin.",
        "Anna: The build failed, since the disk was full.",
        "Bo: No, peanuts.",
        "Anna: Koirani nimi on Musti.",
        "京子: 猫が好きです。",
    ]


def test_a_talk_of_greetings_alone_is_kept_rather_than_nothing() -> None:
    assert extract(said(("A", "Hi!"), ("B", "Thanks.")), 512, tokens) == "A: Hi!\nB: Thanks."


def test_two_who_say_the_same_of_themselves_both_say_it() -> None:
    talk = said(("A", "I live in Oslo."), ("B", "I live in Oslo."), ("A", "I live in Oslo."))
    assert extract(talk, 512, tokens) == "A: I live in Oslo.\nB: I live in Oslo."


def test_a_question_is_kept_for_the_facts_it_holds() -> None:
    talk = said(("A", "Can you pay Anna by 3 June? Will you?"), ("B", "I can."), ("B", "The bank is closed."))
    assert extract(talk, 512, tokens) == "A: Can you pay Anna by 3 June?\nB: The bank is closed."


def test_decisions_errors_and_milestones_come_first() -> None:
    for kind in ["decision", "error", "milestone", "task_complete"]:
        chatter = said(*(("A", f"On day {n} we sailed to island {n} and saw {n} whales there.") for n in range(60)))
        weighty = said(
            *(("B", f"The {word} stays blue.") for word in ("hull", "mast", "keel", "sail", "deck")), kind=kind
        )
        summary = extract([*chatter, *weighty], 70, tokens)
        assert summary.count("stays blue") == 5
        assert "whales" in summary
        assert extract([*chatter, *weighty], 20, tokens).count("stays blue") >= 2


def test_all_decisions_are_kept_where_they_are_more_than_half() -> None:
    talk = said(*(("A", f"We chose part {n} of the plan, which costs {n} euros.") for n in range(30)), kind="decision")
    assert len(re.findall("We chose", extract(talk, 512, tokens))) == 30


def test_one_endless_sentence_does_not_push_out_the_others() -> None:
    for kind in ["message", "error"]:
        trace = said(("C", "line 7 of module seven called line 8 of module eight " * 300), kind=kind)
        facts = said(
            ("A", "I am allergic to nuts."), ("B", "The boat costs 900 euros."), ("A", "Pekka sails to Turku.")
        )
        summary = extract([*facts, *trace], 512, tokens)
        for fact in facts:
            assert fact.content in summary
        assert "C: line 7 of module seven called line 8" in summary and " …\n" in summary
        assert tokens(summary) <= 512
        assert unsupported_claims(summary, [*facts, *trace]) == []


def test_what_is_said_twice_is_kept_once() -> None:
    fact = "The harbour of Turku closes on 15 December for repairs."
    talk = said(("A", fact), ("B", fact), ("A", "Bring the blue crane papers to Anna."), ("B", fact))
    assert extract(talk, 512, tokens).count("harbour of Turku") == 1


def test_the_role_leads_where_no_speaker_is_known_and_nothing_where_neither_is() -> None:
    entry = MemoryEntry("1", "The meeting is on Friday.", role="assistant", occurred_at=NOON)
    assert extract([entry], 512, tokens) == "assistant: The meeting is on Friday."
    assert extract([MemoryEntry("1", "The meeting is on Friday.")], 512, tokens) == "The meeting is on Friday."


def test_no_date_is_added_to_what_was_said() -> None:
    assert "2023" not in extract(TALK, 512, tokens)


def test_it_works_in_any_language() -> None:
    for speaker, contents, expected in [
        ("Anna", ["Moi! Mitä kuuluu?", "Muutimme Turkuun 8.5.2023 ja vuokra on 1 250,50 euroa."], "1 250,50"),
        ("Eva", ["Hej!", "Vi bestämde att mötet är den 3 juni klockan 14.30."], "3 juni"),
        ("田中", ["こんにちは。", "会議は2023年5月8日に決まりました。参加者は5人です。"], "2023年5月8日"),
        ("دانا", ["مرحبا!", "الاجتماع يوم 8 مايو 2023 في المكتب."], "2023"),
    ]:
        talk = said(*((speaker, content) for content in contents))
        summary = extract(talk, 512, tokens)
        assert expected in summary
        assert unsupported_claims(summary, talk) == []


@pytest.mark.parametrize(
    "content",
    [
        "😀",
        "😀👍🏽" * 5000,
        "?",
        "\x00\x00",
        "...",
        "a" * 100_000,
        "12 345 " * 5000,
        "word " * 40_000,
        "日本語" * 30_000,
        "\u202eabc",
    ],
    ids=lambda content: repr(content[:8]),
)
@pytest.mark.parametrize("limit", [1, 7, 512])
def test_any_content_gives_something_that_fits(content: str, limit: int) -> None:
    summary = extract(said(("Anna", content)), limit, tokens)
    assert summary.strip() or (limit == 1 and len(content) > 1)
    assert tokens(summary) <= limit


@pytest.mark.slow
def test_a_sentence_that_is_too_long_is_cut_between_words_and_never_in_a_number() -> None:
    talk = said(("Anna", "the price rose to 1 234 567,50 euros " * 40))
    for limit in range(10, 60):
        summary = extract(talk, limit, tokens)
        assert tokens(summary) <= limit
        assert set(re.findall(r"\d[\d ,]*\d", summary)) <= {"1 234 567,50"}
        assert unsupported_claims(summary, talk) == []


@pytest.mark.slow
def test_a_megabyte_is_read_whole() -> None:
    filler = "".join(f"Nothing happened on the {n}th day of the voyage. " for n in range(20_000))
    talk = said(("A", filler), ("B", "We reached Reykjavik."))
    summary = extract(talk, 100, tokens)
    assert 0 < tokens(summary) <= 100
    assert "\n" in summary or summary.startswith("A: ")


def test_half_a_surrogate_harms_nothing() -> None:
    assert extract(said(("A", "one \ud800 two. Three \udfff four.")), 512, tokens)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from(["", "Anna", "Bo 7"]), st.text(max_size=200)), max_size=6),
    st.integers(1, 60),
    st.sampled_from([tokens, len, lambda text: len(text.split())]),
    st.integers(0, 6),
)
def test_it_never_exceeds_the_limit_and_never_invents(
    turns: list[tuple[str, str]], limit: int, count: object, decided: int
) -> None:
    assert callable(count)
    talk = said(*turns[decided:]) + said(*turns[:decided], kind="decision")
    summary = extract(talk, limit, count)
    assert count(summary) <= limit
    assert extract(talk, limit, count) == summary
    assert unsupported_claims(summary, talk) == []
