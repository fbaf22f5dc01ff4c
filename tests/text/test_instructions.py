"""Which sentences tell an agent how to act, in each language."""

from __future__ import annotations

import pytest

from agentformer.text.instructions import instructions_in, is_instruction

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "sentence",
    [
        "Always answer in metric units.",
        "- never use emojis in commit messages",
        "Please always cite the page.",
        "please use British spelling",
        "From now on, call me Kim.",
        "And don’t ever delete a branch without asking.",
        "I prefer short commits.",
        "I'd rather you asked first.",
        "I prefer trains over planes, can you find a connection to Turku?",
        "Vastaa aina suomeksi.",
        "Käytä jatkossa aina metrijärjestelmää.",
        "Älä koskaan poista tiedostoja kysymättä.",
        "Pidän enemmän lyhyistä vastauksista.",
        "Svara alltid på svenska.",
        "Jag föredrar korta svar.",
        "Bruk alltid bokmål.",
        "Jeg foretrekker korte svar.",
        "Svar altid på dansk.",
        "Jeg foretrækker tabeller.",
        "Antworte immer auf Deutsch.",
        "Bitte verwende nie Abkürzungen.",
        "Ich bevorzuge kurze Antworten.",
        "今後は必ず日本語で答えてください。",
        "短い答えのほうが好きです。",
    ],
)
def test_an_instruction_or_a_preference_is_found(sentence: str) -> None:
    assert is_instruction(sentence)
    assert instructions_in(f"Thanks for that.\n\n{sentence}") == [sentence]


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "I always take the bus.",
        "Dogs never bark there.",
        "Never mind.",
        "Always happy to help!",
        "Should I always restart the server?",
        "Please translate this letter.",
        "Find films like the ones I prefer.",
        "The store is always open.",
        "Käyn aina uimassa.",
        "Jag går alltid hem.",
        "Er kommt immer zu spät.",
        "いつも忙しいです。",
        "Always " + "x" * 400,
    ],
)
def test_a_habit_a_request_or_a_question_is_none(sentence: str) -> None:
    assert instructions_in(sentence) == []


def test_a_long_message_gives_few_instructions_and_is_read_in_part() -> None:
    text = "Always check rule one.\n" * 3_000
    assert instructions_in(text) == ["Always check rule one."] * 5
    assert instructions_in("x " * 2_000 + "Always check the rule.") == []
