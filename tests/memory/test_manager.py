"""What the memory does with what callers say: hygiene, references, versions, salience, counts, sessions, places."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from agentformer.errors import Conflict, InvalidInput, NotFound, StoreFull
from agentformer.factory import AgentFormer, connect
from agentformer.memory.memory_manager import MemoryManager
from agentformer.types import Decay, MemoryEntry, Scope, Use

_DAY = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)


@pytest.fixture(params=["faiss", "local_json"])
def af(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentFormer]:
    with connect(
        index_dir=tmp_path / "index",
        upload_dir=tmp_path / "uploads",
        embedder="hashing",
        backend=request.param,
        clean_every=0,
    ) as opened:
        yield opened


@pytest.fixture
def memory(af: AgentFormer) -> MemoryManager:
    return af.memory


def contents(entries: list[MemoryEntry]) -> list[str]:
    return [entry.content for entry in entries]


# ---------------------------------------------------------------------- hygiene


def test_the_same_fact_is_kept_once_and_counted(memory: MemoryManager) -> None:
    first = memory.store("Aino prefers tea.", metadata={"about": "Aino"})
    again = memory.store("Aino prefers tea.")
    assert (again.id, again.repeat_count, again.access_count) == (first.id, 1, 1)
    assert memory.store("Aino prefers tea.", metadata={"about": "Aino"}).repeat_count == 2
    assert contents(memory.list()) == ["Aino prefers tea."]
    for other in (
        {"metadata": {"about": "Eino"}},
        {"session_id": "s"},
        {"user_id": "aino"},
        {"namespace": "n"},
        {"kind": "preference"},
        {"speaker": "Eino"},
        {"salience": 0.5},
    ):
        assert memory.store("Aino prefers tea.", **other).id != first.id


def test_messages_and_events_are_kept_each_time(memory: MemoryManager) -> None:
    said = [memory.add_message("s", "user", "Yes.") for _ in range(3)]
    happened = [memory.store("Deployed.", tier="episodic", kind="milestone") for _ in range(2)]
    assert len({entry.id for entry in (*said, *happened)}) == 5


def test_a_batch_with_duplicates_gives_an_entry_for_each_item(memory: MemoryManager) -> None:
    one, two, three = memory.store_many(["a", "b", "a"])
    assert one.id == three.id != two.id
    assert contents(memory.list()) == ["a", "b"]


def test_recalled_text_is_not_stored_as_new(memory: MemoryManager) -> None:
    memory.store("The vault is in Turku.", session_id="s")
    recalled = memory.build_context("Where is the vault?", max_tokens=400).messages[0].content
    assert "The vault is in Turku." in recalled
    answer = memory.add_message("s", "assistant", f"{recalled}\nIt is in Turku, as you said.")
    assert answer.content == "It is in Turku, as you said."
    assert answer.metadata["recalled"] == [memory.list(kinds=["fact"])[0].id]
    assert contents(memory.transcript("s")) == [f"{recalled}\nIt is in Turku, as you said."]
    with pytest.raises(InvalidInput, match="recalled memory"):
        memory.store(recalled)
    alone = memory.add_message("s", "assistant", recalled)
    assert alone.content == "(recalled memory)" and alone.raw == recalled


# ---------------------------------------------------------------------- changing


def test_an_update_keeps_the_former_version_and_refuses_a_stale_one(memory: MemoryManager) -> None:
    first = memory.store("The meeting is on Monday.", title="meeting")
    second = memory.update(first.id, content="The meeting is on Tuesday.", expected_version=1)
    with pytest.raises(Conflict, match="version 2, not 1"):
        memory.update(first.id, content="The meeting is on Friday.", expected_version=1)
    assert contents(memory.history(first.id)) == ["The meeting is on Monday."]
    assert memory.get(first.id).content == second.content == "The meeting is on Tuesday."
    assert memory.search("Monday", mode="lexical") == []


def test_what_is_superseded_leaves_the_results_and_stays_reachable(memory: MemoryManager) -> None:
    old = memory.store("Uses TSLint for linting.")
    new = memory.store("Uses Biome for linting.")
    assert memory.supersede(old.id, new.id).superseded_by == new.id
    assert [hit.entry.id for hit in memory.search("linting", mode="lexical")] == [new.id]
    assert memory.search("TSLint", include_archived=True, mode="lexical")[0].entry.id == old.id
    assert memory.get(old.id).content == "Uses TSLint for linting."
    assert [e.superseded_by for e in memory.history(old.id)] == [None]
    with pytest.raises(Conflict):
        memory.supersede(old.id, new.id)
    with pytest.raises(Conflict):
        memory.supersede(new.id, old.id)
    with pytest.raises(InvalidInput):
        memory.supersede(new.id, new.id)
    assert memory.store("Uses TSLint for linting.").id != old.id  # said anew, it is new


def test_a_superseded_entry_can_be_brought_back(memory: MemoryManager) -> None:
    old, new = memory.store("Alarm code is 1111."), memory.store("Alarm code is 2222.")
    memory.supersede(old.id, new.id)
    assert [hit.entry.id for hit in memory.search("alarm code")] == [new.id]
    assert [entry.id for entry in memory.restore(old.id)] == [old.id]
    assert {hit.entry.id for hit in memory.search("alarm code")} == {old.id, new.id}


def test_an_entry_without_originals_is_told_so_when_it_is_restored(memory: MemoryManager) -> None:
    fact = memory.store("Alarm code is 1111.")
    with pytest.raises(InvalidInput, match=f"entry {fact.id} is a fact and not a summary, so it has no originals"):
        memory.restore(fact.id)


def test_a_superseded_entry_is_found_again_when_its_successor_is_gone(memory: MemoryManager) -> None:
    old = memory.store("Alarm code is 1111.")
    new = memory.store("Alarm code is 2222.", source_type="note", source_id="7")
    memory.supersede(old.id, new.id)
    memory.store("The house was sold.", source_type="note", source_id="7")
    assert [hit.entry.id for hit in memory.search("alarm code")] == [old.id]
    with pytest.raises(InvalidInput):
        memory.restore(old.id)


def test_a_parent_of_another_user_is_accepted_like_a_missing_one_and_takes_no_part_with_it(
    memory: MemoryManager,
) -> None:
    theirs = memory.store("theirs", user_id="b")
    for parent in (theirs.id, "not there"):
        memory.store("mine", user_id="a", parent_id=parent)
        memory.add_message("s", "user", "mine", user_id="a", parent_id=parent)
    shared = memory.store("for everybody")
    part = memory.store("mine", user_id="a", parent_id=shared.id)
    memory.remove(shared.id)
    memory.remove(theirs.id)
    assert memory.get(part.id) and len(memory.list(parent_id=theirs.id)) == 2


def test_nobody_supersedes_what_is_another_users(memory: MemoryManager) -> None:
    mine, theirs = memory.store("code 1", user_id="a"), memory.store("code 2", user_id="b")
    with pytest.raises(InvalidInput, match="same user"):
        memory.supersede(mine.id, theirs.id)
    with pytest.raises(InvalidInput, match="core replace"):
        memory.supersede(memory.core.append("a", "x").id, memory.core.append("b", "y").id)


def test_what_belongs_to_a_document_is_changed_with_the_document_alone(af: AgentFormer, memory: MemoryManager) -> None:
    af.rag.upload(b"The keys are held by Matti.\n", name="rules.txt")
    (chunk,) = memory.list(kinds=["chunk"])
    other = memory.store("The keys are held by Eve.")
    for call in (
        lambda: memory.update(chunk.id, content="The keys are held by Eve."),
        lambda: memory.remove(chunk.id),
        lambda: memory.supersede(chunk.id, other.id),
        lambda: memory.supersede(other.id, chunk.id),
    ):
        with pytest.raises(InvalidInput, match=r"rag\."):
            call()
    assert "Matti" in af.rag.query("Who holds the keys?").text


def test_a_message_that_is_corrected_was_still_said(memory: MemoryManager) -> None:
    said = memory.add_message("s", "user", "I live in Tukru.")
    memory.update(said.id, content="I live in Turku.")
    assert contents(memory.list(session_id="s")) == ["I live in Turku."]
    assert contents(memory.transcript("s")) == ["I live in Tukru."]


# ---------------------------------------------------------------------- references and sessions


def test_a_reference_stored_again_replaces_its_entries(memory: MemoryManager) -> None:
    ticket = {"source_type": "ticket", "source_id": "42"}
    memory.store_many(["The lift is stuck.", "It is the left one."], **ticket)
    memory.store("Another ticket on the lift.", source_type="ticket", source_id="43")
    new = memory.store("The lift works again.", **ticket)
    assert contents(memory.list()) == ["Another ticket on the lift.", "The lift works again."]
    found = memory.references("the lift works again", source_type="ticket")
    assert [(r.source_type, r.source_id) for r in found] == [("ticket", "42"), ("ticket", "43")]
    assert found[0].entry_id == new.id and not hasattr(found[0], "content")
    assert contents(memory.list(source_id="43")) == ["Another ticket on the lift."]
    with pytest.raises(InvalidInput):
        memory.store("half a reference", source_id="44")


@pytest.mark.parametrize("owner", ["user_id", "project"])
def test_a_reference_of_another_user_or_project_is_not_replaced(memory: MemoryManager, owner: str) -> None:
    ticket = {"source_type": "ticket", "source_id": "1"}
    calls: list[Callable[..., object]] = [
        lambda text, **values: memory.store(text, **values),
        lambda text, **values: memory.store_many([text], **values),
        lambda text, **values: memory.add_message("s", "user", text, **values),
    ]
    memory.store("nobody's", **ticket)
    memory.store("theirs", **ticket, **{owner: "bo"})
    for number, call in enumerate(calls):
        call(f"mine {number}", **ticket, **{owner: "aino"})
        assert contents(memory.list()) == ["theirs", f"mine {number}"]
    memory.store_many([{"content": text, owner: text} for text in ("aino", "cem")], **ticket)
    assert contents(memory.list()) == ["theirs", "aino", "cem"]
    memory.store("everybody's", **ticket)
    assert contents(memory.list()) == ["everybody's"]


def test_a_transcript_is_what_was_said_in_its_order(memory: MemoryManager) -> None:
    said = ["  Hello\u00a0there \r\n\r\n\r\n\r\nfriend ", "Moi! 👩‍👩‍👧", "\ttabbed\n", "日本語"]
    for n, text in enumerate(said[::-1]):  # imported in another order than they were said in
        memory.add_message("s", "user", text, occurred_at=_DAY - timedelta(minutes=n))
    memory.add_message("t", "user", "elsewhere")
    assert contents(memory.transcript("s")) == said
    first = memory.transcript("s")[0]
    assert memory.get(first.id).content == "Hello there\n\n\n\nfriend" or first.raw is not None


def test_the_last_messages_of_a_session_are_at_hand(memory: MemoryManager) -> None:
    for n in range(15):
        memory.add_message("s", "user" if n % 2 else "assistant", f"message {n}")
    memory.store("a note on the side", tier="working", session_id="s")
    at_hand = memory.list(tiers=["working"], session_id="s")
    assert contents(at_hand) == [*(f"message {n}" for n in range(6, 15)), "a note on the side"]
    with pytest.raises(InvalidInput, match="session"):
        memory.store("whose?", tier="working")


def test_what_is_at_hand_keeps_to_the_place_asked_for(memory: MemoryManager) -> None:
    memory.add_message("s", "user", "Alice's diagnosis", user_id="alice")
    memory.add_message("s", "user", "Bob says hi", user_id="bob")
    assert contents(memory.list(tiers=["working"], session_id="s", user_id="bob")) == ["Bob says hi"]
    assert contents(memory.list(tiers=["working"], session_id="s", user_id="nobody")) == []
    assert len(memory.list(tiers=["working"], session_id="s")) == 2


def test_recent_and_relevant_look_at_everything_that_happened(memory: MemoryManager) -> None:
    for n in range(112):
        memory.add_message("s", "user", f"note {n}", occurred_at=_DAY + timedelta(minutes=n))
    oldest = memory.transcript("s")[0]
    memory.update(oldest.id, content="The safe opens with a heliotrope key.")
    memory.clean(session_id="s")
    assert contents(memory.recent(2)) == ["note 111", "note 110"]
    assert len(memory.recent(105)) == 105  # more than one page of a list
    assert memory.relevant("heliotrope key of the safe", 1)[0].entry.id == oldest.id
    assert oldest.id not in [hit.entry.id for hit in memory.search("heliotrope key of the safe")]


# ---------------------------------------------------------------------- salience and counts


def test_decay_asked_never_once_or_a_hundred_times_is_the_same(af: AgentFormer, memory: MemoryManager) -> None:
    entry = memory.store("It rains.", category="context", salience=0.8)
    stored = af.backend.get([entry.id])[0]
    assert stored.created_at is not None
    at = stored.created_at + timedelta(days=10)
    scope = Scope(decay=Decay({"context": 0.9}, at=at))
    left = 0.8 * 0.9**10
    for _ in range(100):
        memory.effective_salience(memory.get(entry.id))
        memory.list(min_salience=0.5)
        assert af.backend.count(dataclasses.replace(scope, min_salience=left - 1e-9)) == 1
        assert af.backend.count(dataclasses.replace(scope, min_salience=left + 1e-9)) == 0
    now = memory.get(entry.id)
    assert (now.salience, now.version, now.updated_at) == (0.8, 1, stored.updated_at)


def test_a_use_resets_the_clock_and_a_category_without_a_rate_stays(af: AgentFormer, memory: MemoryManager) -> None:
    plain, fading = memory.store("plain"), memory.store("fading", category="context")
    created = af.backend.get([fading.id])[0].created_at
    assert created is not None
    later = Decay({"context": 0.9, "decisions": 1.0}, at=created + timedelta(days=30))
    assert af.backend.count(Scope(min_salience=0.5, decay=later)) == 1
    af.backend.touch([Use(fading.id, created + timedelta(days=29), matches=1)])
    assert af.backend.count(Scope(min_salience=0.89, decay=later)) == 2
    assert af.backend.count(Scope(min_salience=0.91, decay=later)) == 1
    assert memory.effective_salience(plain) == 1.0


def test_salience_weighs_gently(memory: MemoryManager) -> None:
    faint = memory.store("the numbat eats", salience=0.0)
    bright = memory.store("the numbat eats", salience=1.0, metadata={"n": 1})
    other = memory.store("something else of no account", salience=1.0)
    found = [hit.entry.id for hit in memory.search("the numbat eats")]
    assert found[:2] == [bright.id, faint.id]
    assert other.id not in found[:2]


def test_decisions_have_their_category_of_themselves(memory: MemoryManager) -> None:
    decision = memory.store("We take the ferry.", tier="episodic", kind="decision")
    assert decision.category == "decisions"
    assert memory.store("Own", category="whims").category == "whims"
    assert contents(memory.list(categories=["decisions"])) == ["We take the ferry."]


def test_uses_are_counted_without_a_new_version(memory: MemoryManager) -> None:
    entry = memory.store("The numbat eats termites.")
    for _ in range(3):
        memory.search("numbat")
    memory.mark_read([entry.id])
    memory.build_context("What does the numbat eat?", max_tokens=300)
    seen = memory.get(entry.id)
    assert (seen.match_count, seen.read_count, seen.version) == (3, 2, 1)
    assert seen.access_count >= 5 and seen.last_accessed is not None
    assert memory.history(entry.id) == []


def test_counts_of_gathered_uses_survive_closing(tmp_path: Path) -> None:
    for _ in range(2):
        with connect(index_dir=tmp_path, embedder="hashing") as af:
            af.memory.store("The numbat eats termites.")
            af.memory.search("numbat")
    with connect(index_dir=tmp_path, embedder="hashing") as af:
        (entry,) = af.memory.list()
        assert (entry.match_count, entry.repeat_count) == (2, 1)


def test_passages_of_answers_are_counted_too(af: AgentFormer, memory: MemoryManager) -> None:
    af.rag.upload(b"The harbour opens at nine.\n", name="a.txt")
    af.rag.upload(b"The harbour opens at nine.\n", name="a.txt")
    af.rag.query("When does the harbour open?")
    (chunk,) = memory.list(kinds=["chunk"])
    (document,) = memory.list(kinds=["document"])
    assert (chunk.match_count, chunk.read_count, document.access_count) == (1, 0, 1)


def test_an_update_at_the_same_time_loses_no_count(memory: MemoryManager) -> None:
    entry = memory.store("counted")
    for _ in range(5):
        memory.mark_read([entry.id])
        memory.update(entry.id, title="t")
    assert memory.get(entry.id).read_count == 5


# ---------------------------------------------------------------------- places


def test_nothing_crosses_a_place(memory: MemoryManager) -> None:
    places = [
        {"namespace": "a"},
        {"namespace": "b"},
        {"namespace": "a", "user_id": "u"},
        {"namespace": "a", "agent_id": "g"},
        {"namespace": "a", "project": "p"},
        {"namespace": "a", "session_id": "s"},
    ]
    kept = [memory.store("the same secret", **place) for place in places]
    assert len({entry.id for entry in kept}) == len(places)
    for place, entry in zip(places[1:], kept[1:], strict=True):
        assert [e.id for e in memory.list(**place)] == [entry.id]
        assert [hit.entry.id for hit in memory.search("secret", **place)] == [entry.id]
    assert memory.search("secret") == [] and memory.list() == []


def test_a_removed_scope_leaves_nothing(af: AgentFormer, memory: MemoryManager) -> None:
    for n in range(12):
        memory.add_message("s", "user", f"Aino said {n}", user_id="aino")
        memory.add_message("t", "user", f"Eino said {n}", user_id="eino")
    memory.store("Aino prefers tea.", user_id="aino")
    assert len(memory.clean().summaries) == 2
    kept = memory.list(user_id="eino", include_archived=True)
    assert memory.remove(Scope(user_id="aino")) == 14
    assert memory.list(user_id="aino", include_archived=True) == []
    assert memory.transcript("s") == []
    assert memory.search("Aino", include_archived=True, mode="lexical") == []
    assert memory.list(user_id="eino", include_archived=True) == kept


def test_forgetting_a_namespace_takes_the_uploaded_files_along(af: AgentFormer, memory: MemoryManager) -> None:
    for namespace in ("mine", "theirs"):
        af.rag.upload(b"The harbour opens at nine.\n", name="a.txt", namespace=namespace)
    af.rag.upload(b"The harbour closes at six.\n", name="b.txt", namespace="mine")
    folder = af.settings.upload_dir
    assert len(list(folder.rglob("*.bin"))) == 2
    memory.remove(Scope("mine"))
    assert [path.read_bytes() for path in folder.rglob("*.bin")] == [b"The harbour opens at nine.\n"]
    assert af.rag.documents(namespace="mine") == [] and len(af.rag.documents(namespace="theirs")) == 1


def test_a_document_goes_whole_with_a_scope_that_holds_a_part_of_it(af: AgentFormer, memory: MemoryManager) -> None:
    af.rag.upload(b"The harbour opens at nine.\n", name="a.txt", metadata={"team": "x"})
    af.rag.upload(b"The harbour closes at six.\n", name="b.txt", metadata={"team": "y"})
    memory.remove(Scope(metadata={"team": "x"}))
    assert [document.name for document in af.rag.documents()] == ["b.txt"]
    assert {entry.kind for entry in memory.list()} == {"document", "page", "chunk"}
    assert len(list(af.settings.upload_dir.rglob("*.bin"))) == 1


def test_a_search_that_finds_nothing_says_why(memory: MemoryManager) -> None:
    memory.store("something", namespace="full")
    (warning,) = memory.search("something", namespace="empty").warnings
    assert "'empty' has no entries" in warning and "full" not in warning
    assert memory.search("unheard of", namespace="full").warnings == ()


def test_a_search_tells_of_what_only_originals_of_summaries_hold(memory: MemoryManager) -> None:
    for n in range(10):
        memory.add_message("s", "user", f"ok {n}" if n else "What about the zirconium ledger?")
    memory.clean()
    memory.update(memory.list(kinds=["summary"])[0].id, content="Nothing of note.")
    hits = memory.search("zirconium ledger", relevant_only=True)
    assert hits == [] and "originals of summaries match (1)" in hits.warnings[0]
    assert len(memory.search("zirconium ledger", relevant_only=True, include_archived=True)) == 1


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("content", {"content": ""}),
        ("content", {"content": " \n"}),
        ("content", {"content": "x" * 10_000_000}),
        ("content", {"content": "\ud800"}),
        ("content", {"content": 7}),
        ("tier", {"tier": "nonsense"}),
        ("tier", {"tier": None}),
        ("kind", {"kind": ""}),
        ("kind", {"kind": "document"}),
        ("namespace", {"namespace": ""}),
        ("namespace", {"namespace": None}),
        ("user_id", {"user_id": 3}),
        ("metadata", {"metadata": {"a": {1, 2}}}),
        ("metadata", {"metadata": [1]}),
        ("metadata", {"metadata": {"a": float("nan")}}),
        ("salience", {"salience": 1.1}),
        ("salience", {"salience": -0.1}),
        ("salience", {"salience": float("nan")}),
        ("salience", {"salience": True}),
        ("occurred_at", {"occurred_at": datetime(2026, 1, 1)}),
        ("occurred_at", {"occurred_at": "2026-01-01T10:00:00"}),
        ("occurred_at", {"occurred_at": "yesterday"}),
        ("title", {"title": 5}),
        ("category", {"category": ["a"]}),
        ("nonsense", {"nonsense": 1}),
    ],
)
def test_each_wrong_field_is_named_and_changes_nothing(memory: MemoryManager, field: str, values: dict) -> None:
    with pytest.raises(InvalidInput) as refused:
        memory.store(**{"content": "fine", **values})
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")
    assert memory.status()["entries"] == 0


def test_wrong_arguments_of_other_calls(memory: MemoryManager) -> None:
    entry = memory.store("fine")
    wrong = [
        ("role", lambda: memory.add_message("s", "narrator", "x")),
        ("session_id", lambda: memory.add_message("", "user", "x")),
        ("nonsense", lambda: memory.add_message("s", "user", "x", nonsense=1)),
        ("occurred_at", lambda: memory.add_message("s", "user", "x", occurred_at="2026-01-01")),
        ("tier", lambda: memory.list(tiers=["nonsense"])),
        ("tiers", lambda: memory.list(tiers="core")),
        ("limit", lambda: memory.list(limit=0)),
        ("limit", lambda: memory.search("x", limit=True)),
        ("nonsense", lambda: memory.search("x", nonsense=1)),
        ("min_salience", lambda: memory.search("x", min_salience=2)),
        ("text", lambda: memory.search(None)),  # type: ignore[arg-type]
        ("changes", lambda: memory.update(entry.id)),
        ("version", lambda: memory.update(entry.id, version=3)),
        ("salience", lambda: memory.update(entry.id, salience=7)),
        ("ids", lambda: memory.mark_read("abc")),
        ("max_tokens", lambda: memory.build_context("x", max_tokens=0)),
        ("min_score", lambda: memory.search("x", min_score=float("nan"))),
        ("include_archived", lambda: memory.search("x", include_archived="no")),
        ("kind", lambda: memory.store("x", kind=[])),
        ("items", lambda: memory.store_many("abc")),
        ("items", lambda: memory.store_many(None)),
        ("entry_id", lambda: memory.get([])),
        ("entry_id", lambda: memory.restore("\ud800")),
        ("kinds", lambda: memory.remove(Scope(kinds="artifacts"))),
        ("tier", lambda: memory.remove(Scope(tiers=("bogus",)))),
        ("user_id", lambda: memory.remove(Scope(user_id=5))),
        ("namespace", lambda: memory.remove(Scope(namespace=None))),
    ]
    for field, call in wrong:
        with pytest.raises(InvalidInput) as refused:
            call()
        assert refused.value.field == field, call
    for call in (
        lambda: memory.get("missing"),
        lambda: memory.update("missing", content="x"),
        lambda: memory.remove("missing"),
        lambda: memory.history("missing"),
        lambda: memory.restore("missing"),
        lambda: memory.supersede("missing", entry.id),
        lambda: memory.mark_read(["missing"]),
    ):
        with pytest.raises(NotFound):
            call()
    with pytest.raises(InvalidInput):
        memory.restore(entry.id)
    assert contents(memory.list()) == ["fine"]


def test_a_core_entry_obeys_the_limit_by_every_way(af: AgentFormer, memory: MemoryManager) -> None:
    limit = af.settings.core_block_tokens
    block = memory.store("Speaks Finnish.", tier="core", title="persona")
    assert memory.core.get("persona").id == block.id
    assert memory.store("Speaks Finnish.", tier="core", title="persona").id == block.id
    with pytest.raises(Conflict, match="append"):
        memory.store("Speaks Swedish.", tier="core", title="persona")
    for call in (
        lambda: memory.store("word " * (limit + 1), tier="core"),
        lambda: memory.update(block.id, content="word " * (limit + 1)),
        lambda: memory.core.append("persona", "word " * limit),
    ):
        with pytest.raises(InvalidInput, match="over its limit"):
            call()
    assert memory.core.get("persona").content == "Speaks Finnish."


def test_a_context_smaller_than_core_is_refused(memory: MemoryManager) -> None:
    memory.core.append("persona", "word " * 100)
    with pytest.raises(InvalidInput) as refused:
        memory.build_context("task", max_tokens=50)
    assert refused.value.field == "max_tokens"


# ---------------------------------------------------------------------- cleaning


def test_the_trigger_cleans_and_leaves_alone_what_was_restored(tmp_path: Path) -> None:
    with connect(index_dir=tmp_path, embedder="hashing") as af:
        for n in range(10):
            af.memory.add_message("s", "user", f"The ferry number {n} leaves at nine.")
        (summary,) = af.memory.list(kinds=["summary"], session_id="s")
        assert [link.id for link in summary.derived_from] == [e.id for e in af.memory.transcript("s")[:5]]
        originals = af.memory.restore(summary.id)
        for n in range(10, 20):
            af.memory.add_message("s", "user", f"The ferry number {n} leaves at nine.")
        live = {entry.id for entry in af.memory.list(session_id="s", limit=1000)}
        assert {entry.id for entry in originals} <= live
        assert len(af.memory.list(kinds=["summary"], session_id="s")) == 2
        af.cleaner.run()
        assert {entry.id for entry in originals}.isdisjoint(e.id for e in af.memory.list(session_id="s", limit=1000))
        assert af.memory.status()["cleaner"]["outcomes"]["extractive"] == 4


def test_a_list_is_not_filled_with_what_nothing_speaks_for(tmp_path: Path) -> None:
    with connect(index_dir=tmp_path, embedder="hashing", clean_every=0) as af:
        af.memory.store_many(["The numbat eats termites.", "Quarterly figures rose.", "Ohra kasvaa pellolla."])
        assert contents([hit.entry for hit in af.memory.search("numbat")]) == ["The numbat eats termites."]
        assert len(af.memory.search("numbat", mode="dense")) == 3
    with connect(index_dir=tmp_path, embedder="hashing", noise_floor=-1) as af:
        assert len(af.memory.search("numbat")) == 3


@pytest.mark.parametrize("routes", ["", "kind:note=local_json"])
def test_no_noise_floor_without_the_word_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, routes: str) -> None:
    """Without the word index, it is unknown which hits share a term with the query, so a low cosine drops no hit."""

    def unavailable(*arguments: object) -> NoReturn:
        raise StoreFull("the disk is full")

    options = {"backend": "faiss", **({"routes": routes} if routes else {})}  # the others have no index of words
    with connect(index_dir=tmp_path, embedder="hashing", noise_floor=0.9, clean_every=0, **options) as af:
        af.memory.store_many(["The numbat eats termites.", "Quarterly figures rose."])
        assert len(af.memory.search("where does the numbat sleep")) == 1
        monkeypatch.setattr("agentformer.index.words.index.WordIndex.view", unavailable)
        hits = af.memory.search("where does the numbat sleep")
        assert (len(hits), hits.one_sided, "word index" in hits.warnings[0]) == (2, True, True)
        assert hits[0].entry.content == "The numbat eats termites."


@pytest.mark.parametrize("kind", ["document", "page", "chunk"])
def test_what_only_uploads_make_is_no_kind_of_a_memory(af: AgentFormer, kind: str) -> None:
    """Or a memory could pose as a passage of a document, and be cited."""
    with pytest.raises(InvalidInput, match="kind"):
        af.memory.store("The safe is open.", kind=kind)
    kept = af.memory.store("The safe is open.")
    with pytest.raises(InvalidInput, match="kind"):
        af.memory.update(kept.id, kind=kind)


def test_parts_go_with_their_whole_in_their_own_namespace_only(af: AgentFormer) -> None:
    whole = af.memory.store("A tour of the harbour.", namespace="ours")
    part = af.memory.store("It begins at the crane.", namespace="ours", parent_id=whole.id)
    foreign = af.memory.store("Theirs.", namespace="theirs", parent_id=whole.id)
    assert af.memory.remove(whole.id) == 2
    assert [entry.id for entry in af.backend.get([part.id, foreign.id])] == [foreign.id]
