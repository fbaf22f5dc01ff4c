"""Standing instructions: kept with their message, found without shared words, shown in contexts, only from users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import agentformer
from agentformer.memory.context.blocks import INSTRUCTIONS_CLOSE, INSTRUCTIONS_OPEN
from agentformer.memory.instructions import instructions_of
from agentformer.records import fields
from agentformer.types import MemoryEntry

METRIC = "Always answer in metric units."


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    with agentformer.connect(index_dir=tmp_path, embedder="hashing", noise_floor=-1) as opened:
        yield opened


def kept(af: agentformer.AgentFormer, user_id: str | None = None) -> list[MemoryEntry]:
    return af.memory.list(kinds=("instruction",), user_id=user_id)


def test_an_instruction_is_kept_with_its_message_and_removed_with_it(af: agentformer.AgentFormer) -> None:
    message = af.memory.add_message("monday", "user", f"Hello! {METRIC} How far is Turku?", user_id="kim")
    (instruction,) = kept(af, "kim")
    assert (instruction.content, instruction.tier, instruction.parent_id) == (METRIC, "semantic", message.id)
    assert (instruction.user_id, instruction.occurred_at) == ("kim", message.occurred_at)
    af.memory.remove(message.id)
    assert kept(af, "kim") == []


def test_only_a_user_gives_instructions(af: agentformer.AgentFormer) -> None:
    for role in ("assistant", "system", "tool"):
        af.memory.add_message("monday", role, METRIC)
    af.memory.store(METRIC)
    af.rag.upload(METRIC.encode(), name="rules.txt")
    assert kept(af) == []


def test_an_instruction_that_is_repeated_lives_as_long_as_one_of_its_messages(af: agentformer.AgentFormer) -> None:
    messages = [af.memory.add_message("monday", "user", METRIC, user_id="kim") for _ in range(3)]
    for message in messages:
        text = af.memory.build_context("How far is it?", user_id="kim").messages[0].content
        assert text[text.index(INSTRUCTIONS_OPEN) : text.index(INSTRUCTIONS_CLOSE)].count(METRIC) == 1
        af.memory.remove(message.id)
    assert kept(af, "kim") == []


def test_a_search_finds_an_instruction_that_shares_no_word_with_it(af: agentformer.AgentFormer) -> None:
    for n in range(30):
        af.memory.add_message("monday", "user", f"The distance to town {n} matters.")
    for day in ("monday", "tuesday"):
        af.memory.add_message(day, "user", METRIC)
    found = af.memory.search("distance to the town", limit=10)
    assert [hit.entry.kind for hit in found].count("instruction") == 1
    assert len(found) == 10 and [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    for narrow in ({"limit": 4}, {"kinds": ("message",)}, {"tiers": ("episodic",)}, {"mode": "lexical"}):
        hits = af.memory.search("distance to the town", **{"limit": 10, **narrow})  # type: ignore[arg-type]
        assert "instruction" not in [hit.entry.kind for hit in hits]


def test_a_context_shows_the_instructions_of_its_user_within_a_tenth_of_its_tokens(af: agentformer.AgentFormer) -> None:
    for n in range(200):
        af.memory.add_message("monday", "user", f"Always follow house rule number {n} of the long list.", user_id="kim")
    af.memory.add_message("tuesday", "user", METRIC, user_id="aino")
    built = af.memory.build_context("How far is it?", max_tokens=2_000, user_id="kim")
    (first, *_) = built.messages
    block = first.content[first.content.index(INSTRUCTIONS_OPEN) : first.content.index(INSTRUCTIONS_CLOSE)]
    assert first.role == "user" and "house rule" in block and METRIC not in block
    assert 0 < built.report.tokens["instructions"] <= 200
    assert len(built.report.included["instructions"]) == block.count("<memory id=")
    (entry,) = kept(af, "aino")
    af.memory.remove(entry.id)
    assert INSTRUCTIONS_OPEN not in "".join(
        message.content for message in af.memory.build_context("Far?", user_id="aino").messages
    )


def test_instructions_that_an_agent_repeats_from_its_prompt_are_not_stored_again(af: agentformer.AgentFormer) -> None:
    af.memory.add_message("monday", "user", METRIC, user_id="kim")
    (prompt, *_) = af.memory.build_context("How far is it?", user_id="kim").messages
    af.memory.add_message("tuesday", "user", f"{prompt.content}\nWhat is a mile?", user_id="kim")
    assert len(kept(af, "kim")) == 1


def test_a_context_without_a_user_shows_no_instruction_of_users_and_one_of_nobody_holds_for_all(
    af: agentformer.AgentFormer,
) -> None:
    af.memory.add_message("monday", "user", METRIC, user_id="kim")
    af.memory.add_message("monday", "user", "Never use abbreviations.")
    shown = {
        user: af.memory.build_context("How far is it?", user_id=user).report.included["instructions"]
        for user in (None, "kim", "aino")
    }
    assert {user: len(ids) for user, ids in shown.items()} == {None: 1, "kim": 2, "aino": 1}


def test_a_message_after_retrieved_text_gives_none_and_the_mark_of_a_key_stays() -> None:
    message = MemoryEntry("m", METRIC, kind="message", role="user", metadata={fields.STORED_BY_KEY: "key"})
    assert [entry.metadata for entry in instructions_of([message])] == [{fields.STORED_BY_KEY: "key"}]
    read = replace(message, metadata={fields.AFTER_RETRIEVED_TEXT: True})
    assert list(instructions_of([read])) == []
