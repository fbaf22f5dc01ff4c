"""A summary that is found names the two originals that answer the query best."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import agentformer
from agentformer import AgentFormer
from agentformer.search.message_ranking import best_originals
from agentformer.testing import make_entry
from agentformer.text.analysis import analyze_query
from agentformer.tools.result_json import brief_hit_json, memory_hit_json
from agentformer.types import Link

TALK = (
    ("Aino", "The tram to the harbour was late again, and I met nobody there."),
    ("Ben", "Where did you spend the summer with your sister?"),
    ("Aino", "In Hanko, on a ketch that we rented for three weeks from an old friend."),
    ("Ben", "Lovely! I repaired the barn roof and painted the kitchen of my parents."),
    ("Aino", "The neighbours bought a goat, which eats the lettuce of everybody."),
)


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    options = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "up", "embedder": "hashing", "clean_every": 0}
    with agentformer.connect(**options) as memory:
        yield memory


def summarized(af: AgentFormer) -> tuple[list[str], str]:
    """Store the talk and a summary of it. Return the ids of the messages, and the id of the summary."""
    said = [
        af.memory.add_message("s", "user", text, speaker=who, occurred_at=f"2026-03-01T12:0{n}:00Z").id
        for n, (who, text) in enumerate(TALK)
    ]
    text = "They talked about the summer in Hanko on a ketch, the barn roof, the kitchen and a goat."
    summary = make_entry(text, kind="summary", session_id="s", derived_from=tuple(map(Link, said)))
    return said, af.backend.consolidate(summary, said).id


def test_a_found_summary_names_the_answer_and_not_everything(af: AgentFormer) -> None:
    said, summary = summarized(af)
    hit = next(hit for hit in af.memory.search("Where did Aino spend the summer?") if hit.entry.id == summary)
    assert len(hit.originals) == 2 and hit.originals[0].id == said[2]
    first = hit.originals[0]
    assert (first.session_id, first.speaker, f"{first.at:%H:%M}") == ("s", "Aino", "12:02")
    hit = next(hit for hit in af.memory.search("Who has a goat?") if hit.entry.id == summary)
    assert hit.originals[0].id == said[4]


def test_results_show_ids_and_places(af: AgentFormer) -> None:
    said, summary = summarized(af)
    hit = next(hit for hit in af.memory.search("Who has a goat?") if hit.entry.id == summary)
    place = {"id": said[4], "session_id": "s", "speaker": "Aino", "at": "2026-03-01T12:04:00+00:00"}
    assert memory_hit_json(hit)["originals"][0] == brief_hit_json(hit, 100)["originals"][0] == place


def test_other_hits_name_no_originals(af: AgentFormer) -> None:
    af.memory.store("The goat lives in Turku.")
    hit = af.memory.search("goat")[0]
    assert hit.originals == () and memory_hit_json(hit)["originals"] == []
    assert "originals" not in brief_hit_json(hit, 100)


def test_originals_of_another_user_are_not_named(af: AgentFormer) -> None:
    message = af.memory.add_message("s", "user", "The goat eats lettuce.", user_id="aino")
    summary = make_entry("A goat.", kind="summary", session_id="s", derived_from=(Link(message.id),))
    af.backend.store([summary])
    hit = next(hit for hit in af.memory.search("goat") if hit.entry.id == summary.id)
    assert hit.originals == ()


def test_the_answer_precedes_its_question() -> None:
    talk = [make_entry(text, kind="message", session_id="s", speaker=who) for who, text in TALK]
    best = best_originals(talk, analyze_query("Where did they spend the summer?"))
    assert [entry.content for entry in best[:1]] == [TALK[2][1]]
    assert best_originals([], analyze_query("goat")) == []
