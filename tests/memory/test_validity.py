"""What holds now, what held then, and what has expired: the memory, its contexts, its answers and its cleaner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import Conflict, InvalidInput
from agentformer.factory import AgentFormer, connect
from agentformer.memory.memory_manager import MemoryManager
from agentformer.records import codec, scopes
from agentformer.types import MemoryEntry, Scope

DAY = timedelta(days=1)
PAST, FUTURE = datetime(2020, 6, 1, tzinfo=UTC), datetime(2120, 6, 1, tzinfo=UTC)


@pytest.fixture(params=["faiss", "local_json"])
def af(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentFormer]:
    where = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "uploads"}
    with connect(**where, embedder="hashing", backend=request.param, clean_every=0) as opened:
        yield opened


@pytest.fixture
def memory(af: AgentFormer) -> MemoryManager:
    return af.memory


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], None]:
    """Set the clock of the records."""

    def set_to(moment: datetime) -> None:
        for module in (codec, scopes, "agentformer.memory.backends"):
            target = f"{module}.now" if isinstance(module, str) else f"{module.__name__}.now"
            monkeypatch.setattr(target, lambda: moment)
        monkeypatch.setattr("agentformer.memory.memory_cleaner.now", lambda: moment)

    return set_to


def contents(entries: list[MemoryEntry]) -> list[str]:
    return sorted(entry.content for entry in entries)


def found(memory: MemoryManager, text: str, **scope: Any) -> list[str]:
    return contents([hit.entry for hit in memory.search(text, **scope)])


def test_times_are_stored_in_utc_changed_and_removed(memory: MemoryManager) -> None:
    helsinki = datetime(2026, 6, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    entry = memory.store("The shop is open.", valid_from=helsinki, valid_to="2120-01-01T00:00:00Z", expires_at=FUTURE)
    assert (entry.valid_from, entry.valid_from and entry.valid_from.tzinfo) == (helsinki, UTC)
    changed = memory.update(entry.id, valid_from=None, expires_at="2121-01-01T00:00:00+00:00")
    assert (changed.valid_from, changed.valid_to) == (None, entry.valid_to)
    assert changed.expires_at == datetime(2121, 1, 1, tzinfo=UTC)
    message = memory.add_message("s", "user", "Open until noon.", valid_to=FUTURE)
    assert message.valid_to == FUTURE


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"valid_from": FUTURE, "valid_to": PAST}, "valid_to"),
        ({"valid_to": "2026-06-01T00:00:00"}, "valid_to"),
        ({"valid_from": "in summer"}, "valid_from"),
        ({"expires_at": 7}, "expires_at"),
        ({"valid_from": "0001-01-01T00:00:00+14:00"}, "valid_from"),
    ],
)
def test_a_wrong_time_is_a_typed_error_that_stores_nothing(
    memory: MemoryManager, values: dict[str, Any], field: str
) -> None:
    entry = memory.store("The shop is open.")
    for call in (
        lambda: memory.store("The shop is shut.", **values),
        lambda: memory.add_message("s", "user", "The shop is shut.", **values),
        lambda: memory.update(entry.id, **values),
    ):
        with pytest.raises(InvalidInput) as refused:
            call()
        assert refused.value.field == field
    assert memory.list(include_archived=True) == [entry]


def test_a_change_of_one_bound_is_compared_with_the_other(af: AgentFormer) -> None:
    entry = af.memory.store("The shop is open.", valid_from=PAST)
    for update in (af.memory.update, lambda entry_id, **changes: af.backend.update(entry_id, changes)):
        with pytest.raises(InvalidInput, match="valid_to"):
            update(entry.id, valid_to=PAST - DAY)
    assert af.memory.update(entry.id, valid_to=PAST).valid_to == PAST
    assert found(af.memory, "shop open") == [] == found(af.memory, "shop open", as_of=PAST)


@pytest.mark.parametrize("as_of", ["2026-06-01", "yesterday", 5, datetime(2026, 6, 1)])
def test_as_of_is_a_time_with_a_zone(memory: MemoryManager, as_of: Any) -> None:
    for call in (
        lambda: memory.search("x", as_of=as_of),
        lambda: memory.relevant("x", as_of=as_of),
        lambda: memory.list(as_of=as_of),
        lambda: memory.build_context("x", as_of=as_of),
    ):
        with pytest.raises(InvalidInput) as refused:
            call()
        assert refused.value.field == "as_of"


def test_every_read_sees_what_holds_now_or_what_held_then(af: AgentFormer) -> None:
    memory = af.memory
    old, now = "Aino lives in Helsinki.", "Aino lives in Turku."
    memory.store(old, valid_from=PAST, valid_to=PAST + 9 * DAY)
    memory.store(now, valid_from=PAST + 9 * DAY)
    memory.store("Aino lives in Oulu.", valid_from=FUTURE)
    memory.store("Aino was seen in Oslo.", tier="episodic", kind="event", valid_to=PAST)
    for scope, expected in (({}, [now]), ({"as_of": PAST}, [old]), ({"as_of": FUTURE}, [now, "Aino lives in Oulu."])):
        expected = sorted(expected)
        assert found(memory, "Where does Aino live?", **scope) == expected
        assert contents(memory.list(**scope)) == expected
        assert memory.count(**scope) == len(expected)
        assert memory.recent(**scope) == [] == memory.relevant("Aino", **scope)
        text = memory.build_context("Where does Aino live?", **scope).messages[0].content
        assert [place for place in (old, now, "Aino lives in Oulu.") if place in text] == [
            place for place in (old, now, "Aino lives in Oulu.") if place in expected
        ]
        answer = af.rag.query("Where does Aino live?", sources=["memories"], extractive=True, **scope)
        assert contents([hit.entry for hit in answer.hits]) == expected
    assert len(memory.list(include_archived=True)) == 4


def test_supersede_ends_the_validity_of_the_old_entry_and_restore_undoes_it(memory: MemoryManager) -> None:
    old = memory.store("Aino lives in Helsinki.", valid_from=PAST, valid_to=FUTURE)
    new = memory.store("Aino lives in Turku.", valid_from=PAST + DAY)
    assert memory.supersede(old.id, new.id).valid_to == PAST + DAY
    assert found(memory, "Aino lives", as_of=PAST) == [old.content]
    assert found(memory, "Aino lives", as_of=PAST + DAY) == [new.content] == found(memory, "Aino lives")
    (restored,) = memory.restore(old.id)
    assert (restored.superseded_by, restored.valid_to) == (None, FUTURE)
    assert found(memory, "Aino lives") == [old.content, new.content]


def test_a_circle_of_supersessions_is_refused_and_changes_no_time(memory: MemoryManager) -> None:
    first, second = memory.store("Aino lives in Helsinki."), memory.store("Aino lives in Turku.")
    memory.supersede(first.id, second.id)
    with pytest.raises(Conflict):
        memory.supersede(second.id, first.id)
    assert memory.get(second.id).valid_to is None


def test_equal_texts_with_other_times_are_two_entries(memory: MemoryManager) -> None:
    plain = memory.store("The shop is open.")
    summer = memory.store("The shop is open.", valid_from=PAST, valid_to=PAST + DAY)
    expired = memory.store("The shop is open.", expires_at=PAST)
    assert len({plain.id, summer.id, expired.id}) == 3
    assert memory.store("The shop is open.", valid_from=PAST, valid_to=PAST + DAY).id == summer.id
    assert memory.store("The shop is open.").id == plain.id


def test_an_upsert_replaces_the_times_and_stores_an_expired_record_anew(memory: MemoryManager) -> None:
    record = {"source_type": "note", "source_id": "7"}
    first = memory.upsert("The door code is 4711.", expires_at=FUTURE, **record)
    assert memory.upsert("The door code is 4711.", **record).expires_at is None
    assert memory.upsert("The door code is 4711.", expires_at=PAST, **record).id == first.id
    assert memory.upsert("The door code is 4712.", **record).id != first.id
    assert [entry.content for entry in memory.list(include_archived=True)] == ["The door code is 4712."]


def test_the_cleaner_archives_what_has_expired_and_restore_undoes_it(memory: MemoryManager) -> None:
    gone = [memory.store(f"Door code {n}.", expires_at=PAST, tier=("semantic", "episodic")[n % 2]) for n in range(3)]
    elsewhere = memory.store("Door code of another day.", expires_at=PAST, namespace="elsewhere")
    memory.store("Door code 7.", expires_at=FUTURE)
    report = memory.clean(namespace="default")
    assert report.expired == tuple(entry.id for entry in gone)
    assert all(memory.get(entry.id).archived_at for entry in gone)
    assert memory.get(elsewhere.id).archived_at is None
    assert memory.clean(namespace="default").expired == ()
    assert memory.clean().expired == (elsewhere.id,)
    (restored,) = memory.restore(gone[0].id)
    assert (restored.archived_at, restored.expires_at, restored.version) == (None, None, 3)
    assert found(memory, "door code") == ["Door code 0.", "Door code 7."]
    assert memory.clean().expired == ()
    assert memory.remove(Scope(where={"type": "exists", "key": "$archived_at", "value": True})) == 2


def test_an_expired_entry_is_restored_before_the_cleaner_has_come(memory: MemoryManager) -> None:
    entry = memory.store("The door code is 4711.", expires_at=PAST)
    assert found(memory, "door code") == [] == found(memory, "door code", as_of=PAST - DAY)
    memory.restore(entry.id)
    assert found(memory, "door code") == [entry.content]


def test_the_predecessor_of_an_expired_entry_is_found_again(memory: MemoryManager) -> None:
    home, away = memory.store("Aino is in Helsinki."), memory.store("Aino is in Oslo.", expires_at=FUTURE)
    memory.supersede(home.id, away.id)
    memory.update(away.id, expires_at=PAST)
    memory.clean()
    assert found(memory, "Aino") == [home.content]
    assert memory.get(home.id).valid_to is None


def test_a_message_that_will_expire_is_not_summarized(tmp_path: Path) -> None:
    with connect(index_dir=tmp_path, embedder="hashing", clean_every=10, clean_keep_recent=0) as af:
        for n in range(10):
            af.memory.add_message("s", "user", f"Boat {n} lies at pier {n}.", expires_at=FUTURE if n % 2 else None)
        summarized = [entry for entry in af.memory.list(include_archived=True) if entry.archived_by]
        assert [entry.content for entry in summarized] == [f"Boat {n} lies at pier {n}." for n in range(0, 10, 2)]


def test_an_expired_summary_hides_nothing_and_stays(memory: MemoryManager) -> None:
    for n in range(10):
        memory.add_message("s", "user", f"Boat {n} lies at pier {n}.")
    (summary,) = memory.clean().summaries
    memory.update(summary, expires_at=PAST)
    assert memory.clean().expired == ()
    assert memory.get(summary).archived_at is None
    assert len(memory.restore(memory.get(summary).id)) == 1  # the summary does not expire any more
    assert len(memory.restore(summary)) == 5


def test_entries_come_and_go_with_the_clock_also_if_it_is_set_back(
    memory: MemoryManager, set_clock: Callable[[datetime], None]
) -> None:
    start = datetime.now(UTC) + DAY
    memory.store("A heron that stays.")
    memory.store("A heron of the morning.", valid_to=start + timedelta(hours=1))
    memory.store("A heron of the evening.", valid_from=start + timedelta(hours=2))
    memory.store("A heron that expires.", expires_at=start + timedelta(hours=3))
    always, morning, evening, brief = (
        f"A heron {name}." for name in ("that stays", "of the morning", "of the evening", "that expires")
    )
    for hours, expected in (
        (0, [always, morning, brief]),
        (1, [always, brief]),
        (2, [always, evening, brief]),
        (3, [always, evening]),
        (0.5, [always, morning, brief]),
        (2.5, [always, evening, brief]),
        (1.5, [always, brief]),
    ):
        set_clock(start + timedelta(hours=hours))
        for mode in ("lexical", "hybrid"):
            assert found(memory, "heron", mode=mode) == sorted(expected), hours
        assert contents(memory.list()) == sorted(expected)


def test_a_superseded_entry_stays_hidden_if_the_clock_is_set_back(
    memory: MemoryManager, set_clock: Callable[[datetime], None]
) -> None:
    old, new = memory.store("Aino lives in Helsinki."), memory.store("Aino lives in Turku.")
    memory.supersede(old.id, new.id)
    set_clock(datetime.now(UTC) - DAY)
    assert found(memory, "Aino lives") == [new.content]


def test_a_search_in_conversations_finds_summarized_messages_and_no_expired_ones(af: AgentFormer) -> None:
    messages = [af.memory.add_message("s", "user", f"Boat {n} lies at pier {n}.") for n in range(10)]
    af.memory.add_message("s", "user", "The boat code is 4711.", expires_at=PAST)
    assert af.memory.clean().archived == 5
    told = af.toolbox.call("conversation_search", {"query": "boat", "limit": 50})["messages"]
    assert sorted(message["id"] for message in told) == [message.id for message in messages]
