"""A profile: what holds now of a person, each with its source, in a budget, and always the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import agentformer
from agentformer.errors import InvalidInput
from agentformer.memory.learning.profile import Profile


@pytest.fixture
def af(tmp_path: Path) -> Iterator[agentformer.AgentFormer]:
    with agentformer.connect(index_dir=tmp_path, embedder="hashing", clean_every=0) as opened:
        yield opened


def grouped(profile: Profile) -> dict[str, list[str]]:
    return {group.name: [item.text for item in group.items] for group in profile.groups}


def fill(af: agentformer.AgentFormer) -> None:
    store = af.memory.store
    store("Likes tea.", tier="core", title="human", user_id="aino")
    store("Be kind.", tier="core", title="persona")
    store("My number is 7.", user_id="bo")
    for month, text in enumerate(
        ("I live in Turku.", "I work at Kone.", "My sister Anna is a nurse.", "I live in Oslo.", "I have two boats."), 1
    ):
        store(text, user_id="aino", occurred_at=f"2026-0{month}-01T09:00:00Z")
    store("The meeting was long.", user_id="aino", kind="summary_of_mine", occurred_at="2020-01-01T09:00:00Z")


def test_what_holds_now_is_grouped_and_former_values_are_left_out(af: agentformer.AgentFormer) -> None:
    fill(af)
    af.memory.add_message("monday", "user", "Always answer in metric units.", user_id="aino")
    assert grouped(af.memory.profile("aino")) == {
        "core": ["Likes tea."],
        "instructions": ["Always answer in metric units."],
        "home": ["I live in Oslo."],
        "work": ["I work at Kone."],
        "people": ["My sister Anna is a nurse."],
        "other": ["I have two boats.", "The meeting was long."],
    }
    assert af.memory.profile("aino").left_out == 0
    assert grouped(af.memory.profile("bo")) == {"other": ["My number is 7."]}
    assert af.memory.profile("nobody").groups == ()


def test_each_statement_has_its_source_and_its_time(af: agentformer.AgentFormer) -> None:
    moment = datetime(2026, 5, 1, 9, tzinfo=UTC)
    message = af.memory.add_message("monday", "user", "Hi! I live in Turku.", user_id="aino", occurred_at=moment)
    (fact,) = af.memory.learn().facts
    (group,) = af.memory.profile("aino").groups
    (item,) = group.items
    assert (item.id, item.text, item.source, item.at) == (fact.id, "I live in Turku", message.id, moment)
    assert af.memory.profile("aino").text == "home:\n- I live in Turku"
    af.memory.add_message("monday", "user", "I live in Lund.", user_id="aino", speaker="Bo", occurred_at=moment)
    af.memory.learn()
    assert af.memory.profile("aino").text == "home:\n- Bo: I live in Lund\n- I live in Turku"


def test_a_former_value_with_the_text_of_an_older_one_is_left_out_with_it(af: agentformer.AgentFormer) -> None:
    for day, text in enumerate(("I live in Turku.", "I live in Oslo.", "I live in Turku."), 1):
        af.memory.add_message("monday", "user", text, user_id="aino", occurred_at=f"2026-05-0{day}T09:00:00Z")
        af.memory.learn()
    assert grouped(af.memory.profile("aino")) == {"home": ["I live in Turku"]}
    af.memory.add_message("monday", "user", "I live in Oslo.", user_id="aino", occurred_at="2026-05-09T09:00:00Z")
    af.memory.learn()
    assert grouped(af.memory.profile("aino")) == {"home": ["I live in Oslo"]}


def test_a_superseded_a_future_and_an_expired_statement_do_not_hold(af: agentformer.AgentFormer) -> None:
    old = af.memory.store("Drinks tea.", user_id="aino")
    new = af.memory.store("Coffee, please.", user_id="aino")
    af.memory.supersede(old.id, new.id)
    af.memory.store("Lives on the moon.", user_id="aino", valid_from="2999-01-01T00:00:00Z")
    af.memory.store("Is on leave.", user_id="aino", valid_to="2020-01-01T00:00:00Z")
    assert grouped(af.memory.profile("aino")) == {"other": ["Coffee, please."]}


def test_a_profile_keeps_its_budget_and_takes_the_newest_first(af: agentformer.AgentFormer) -> None:
    fill(af)
    whole = af.memory.profile("aino")
    for budget in range(1, whole.tokens + 1):
        found = af.memory.profile("aino", max_tokens=budget)
        count = sum(len(group.items) for group in found.groups)
        assert found.tokens <= budget and count + found.left_out == 6
        assert found == af.memory.profile("aino", max_tokens=budget)
    assert grouped(af.memory.profile("aino", max_tokens=8)) == {"core": ["Likes tea."], "other": ["I have two boats."]}


def test_other_owners_and_namespaces_are_not_shown(af: agentformer.AgentFormer) -> None:
    af.memory.store("One.", user_id="aino", project="a", agent_id="x")
    af.memory.store("Two.", user_id="aino", project="b", agent_id="x")
    af.memory.store("Three.", user_id="aino", namespace="other")
    assert grouped(af.memory.profile("aino", project="a")) == {"other": ["One."]}
    assert grouped(af.memory.profile("aino", agent_id="y")) == {}
    assert grouped(af.memory.profile("aino", namespace="other")) == {"other": ["Three."]}


@pytest.mark.parametrize(
    ("field", "values"),
    [("max_tokens", {"max_tokens": 0}), ("max_tokens", {"max_tokens": True}), ("namespace", {"namespace": " "})],
)
def test_a_wrong_argument_is_named(af: agentformer.AgentFormer, field: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        af.memory.profile("aino", **values)  # type: ignore[arg-type]
    assert caught.value.field == field
    with pytest.raises(InvalidInput, match="user_id"):
        af.memory.profile("")
