"""Contradictions among facts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.memory.contradictions import Contradiction, FactContradictions
from agentformer.testing import make_entry

OLDER, NEWER = "I work as a nurse at the hospital.", "First week at the clinic is done, so glad I quit the ward!"
NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def find(*contents: str, **values: Any) -> Sequence[Contradiction]:
    facts = FactContradictions()
    for n, content in enumerate(contents):
        facts.add(make_entry(content, created_at=NOW + timedelta(days=n), **values))
    return facts.find()[0]


def test_a_contradiction_says_in_what_the_facts_differ() -> None:
    for older, newer, about in [
        ("Anna lives in Turku.", "Anna lives in Oslo.", "value"),
        ("The rent is 800 euros.", "The rent is 950 euros.", "number"),
        ("The meeting is on Monday.", "The meeting was moved to Friday.", "date"),
        ("Aino drinks coffee.", "Aino doesn't drink coffee.", "negation"),
        ("Anna asuu Turussa.", "Anna asuu Oslossa.", "value"),
        ("Hyran är 800 euro.", "Hyran är 950 euro.", "number"),
        ("Hans trinkt Bier.", "Hans trinkt kein Bier.", "negation"),
    ]:
        assert [each.about for each in find(older, newer)] == [about], newer
    for older, newer in [
        ("Anna likes tea.", "Anna likes coffee."),
        ("Anna lives in Turku.", "Ben lives in Oslo."),
        ("Chapter 3 describes search.", "Chapter 4 describes search."),
        ("Mikko bought 3 apples.", "Mikko bought 5 apples."),
        ("The fee for adults is 10 euros.", "The fee for children is 5 euros."),
    ]:
        assert find(older, newer) == (), newer


@pytest.mark.model
def test_the_audit_reports_what_a_search_ranks(tmp_path: Path) -> None:
    """Without a common word, the vectors of the facts decide."""
    with agentformer.connect(index_dir=tmp_path, embedder="multilingual", noise_floor=-1) as af:
        for month, text in enumerate((OLDER, NEWER, "I like tea."), 1):
            af.memory.store(text, user_id="kim", occurred_at=f"2026-0{month}-01T00:00:00Z")
        hits = af.memory.search("Where do I work?", user_id="kim")
        (found,) = af.memory.audit().contradictions
        assert [(hit.entry.id, hit.newer) for hit in hits if hit.newer] == [found.ids]
        assert found.sentences == (OLDER, NEWER)


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
