"""The messages around a message help to find it, ranked behind the message that holds the words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import agentformer
from agentformer import AgentFormer
from agentformer.testing import make_entry
from agentformer.types import Query, Scope

TALK = (
    ("Aino", "Where did you two spend the summer?"),
    ("Ben", "Sailing, mostly. We rented a ketch in Hanko."),
    ("Aino", "How long?"),
    ("Ben", "Three weeks."),
    ("Aino", "Lovely. I stayed at home."),
    ("Ben", "And the garden?"),
    ("Aino", "The slugs ate the lettuce."),
)


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    options = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "up", "embedder": "hashing", "clean_every": 0}
    with agentformer.connect(**options) as opened:
        yield opened


def talk(af: AgentFormer, *, session: str = "s", user: str | None = None) -> list[str]:
    said = (
        af.memory.add_message(session, "user", text, speaker=who, occurred_at=f"2026-03-01T12:0{n}:00Z", user_id=user)
        for n, (who, text) in enumerate(TALK)
    )
    return [entry.id for entry in said]


def found(af: AgentFormer, text: str) -> list[str]:
    return [hit.entry.content for hit in af.backend.search(Query(text, limit=20, mode="lexical"))]


def test_an_answer_is_found_by_its_question(af: AgentFormer) -> None:
    talk(af)
    hits = found(af, "ketch")
    assert hits[0] == TALK[1][1], "who says the word comes first"
    assert set(hits) == {TALK[n][1] for n in (0, 1, 2, 3)}, "then those at most two away"


def test_a_superseded_message_is_found_by_its_own_words_only(af: AgentFormer) -> None:
    ids = talk(af)
    fact = af.memory.store("Three weeks in Hanko.")
    af.memory.supersede(ids[3], fact.id)

    def ids_of(text: str) -> list[str]:
        hits = af.backend.search(Query(text, Scope(include_archived=True), limit=20, mode="lexical"))
        return sorted(hit.entry.id for hit in hits)

    assert ids_of("ketch") == sorted([*ids[:3], ids[4]])
    af.memory.update(ids[2], content="How long with the sextant?")
    assert ids_of("sextant") == sorted([*ids[:3], ids[4], ids[5]])
    af.memory.update(ids[2], content="How long?")
    assert ids_of("sextant") == []
    af.memory.restore(ids[3])
    assert ids_of("ketch") == sorted(ids[:4])


def test_what_is_removed_helps_nobody_any_more(af: AgentFormer) -> None:
    ids = talk(af)
    assert found(af, "ketch")
    af.memory.remove(ids[1])
    assert found(af, "ketch") == []
    af.memory.update(ids[3], content="Three weeks with a sextant.")
    assert found(af, "sextant")[0] == "Three weeks with a sextant."
    af.memory.update(ids[3], content="Three weeks.")
    assert found(af, "sextant") == []


def test_a_message_that_comes_later_helps_those_before_it(af: AgentFormer) -> None:
    talk(af)
    assert found(af, "marmalade") == []
    af.memory.add_message("s", "user", "Bring marmalade.", speaker="Ben", occurred_at="2026-03-01T12:30:00Z")
    assert set(found(af, "marmalade")) == {"Bring marmalade.", TALK[6][1], TALK[5][1]}


def test_an_index_that_is_made_anew_finds_the_same(af: AgentFormer) -> None:
    talk(af)
    before = [found(af, text) for text in ("ketch", "slugs", "garden", "weeks")]
    assert not [check for check in af.verify() if check.found]
    af.backend._open().words.discard()
    assert [found(af, text) for text in ("ketch", "slugs", "garden", "weeks")] == before


def test_what_one_user_said_does_not_help_to_find_anothers(af: AgentFormer) -> None:
    af.memory.add_message("s", "user", "The ketch leaks.", user_id="a", occurred_at="2026-03-01T12:00:00Z")
    af.memory.add_message("s", "user", "Who knows?", user_id="b", occurred_at="2026-03-01T12:01:00Z")
    assert found(af, "ketch") == ["The ketch leaks."]


def test_a_short_message_takes_its_language_from_those_around_it(af: AgentFormer) -> None:
    for n, text in enumerate(("Missä sinä olit eilen illalla?", "Veneellä.", "Ja kuka oli siellä kanssasi?")):
        af.memory.add_message("fi", "user", text, occurred_at=f"2026-03-02T12:0{n}:00Z")
    assert found(af, "missä on vene")[0] == "Veneellä."


def test_a_message_that_a_backend_stores_as_a_fact_is_helps_and_is_helped_too(af: AgentFormer) -> None:
    """By the way of storing that looks for equal ones."""
    for minute, text in enumerate(("The ketch leaks.", "Try the bilge pump.")):
        assert found(af, "bilge") == []
        at = datetime(2026, 3, 1, 12, minute, tzinfo=UTC)
        af.backend.store([make_entry(text, kind="message", session_id="s", occurred_at=at)], unique=True)
    assert set(found(af, "bilge")) == {"Try the bilge pump.", "The ketch leaks."}
    assert set(found(af, "ketch")) == {"Try the bilge pump.", "The ketch leaks."}


def test_ones_own_words_count_twice(af: AgentFormer) -> None:
    """Beside a message of the same length that says the word once, its neighbour has it once and is behind."""
    ids = talk(af)
    hits = af.backend.search(Query("ketch", limit=20, mode="lexical"))
    scores = {hit.entry.id: hit.lexical_score or 0.0 for hit in hits}
    assert scores[ids[1]] > 1.2 * max(scores[other] for other in scores if other != ids[1])


def test_what_is_superseded_helps_nobody(af: AgentFormer) -> None:
    ids = talk(af)
    assert len(found(af, "ketch")) == 4
    new = af.memory.add_message("t", "user", "We rented a sloop in Hanko.", occurred_at="2026-03-05T12:00:00Z")
    af.memory.supersede(ids[1], new.id)
    assert found(af, "ketch") == []
