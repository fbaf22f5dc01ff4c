"""Learning on each backend: nothing twice, nothing half, and every run has a way back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import Conflict, NotFound
from agentformer.memory.backends.cosmos_db.backend import CosmosMemoryBackend
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.memory.learning.journal import Journal
from agentformer.records import fields
from agentformer.testing import make_entry
from agentformer.types import UNSEARCHED_KIND, MemoryBackend, Scope
from tests.backends.postgres_server import open_store
from tests.backends.test_cosmos import address
from tests.memory.learning import EMBEDDER, NOON, Lister, facts, learner_of, listed, tell

TURKU, OSLO = "I live in Turku", "I live in Oslo now"


@pytest.fixture(
    params=[
        "faiss",
        "local_json",
        pytest.param("cosmos_db", marks=pytest.mark.process),
        pytest.param("postgres", marks=pytest.mark.process),
    ]
)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryBackend]:
    opened: MemoryBackend
    if request.param == "faiss":
        opened = FaissMemoryBackend(tmp_path, EMBEDDER)
    elif request.param == "local_json":
        opened = LocalJsonMemoryBackend(tmp_path)
    elif request.param == "cosmos_db":
        emulator = request.getfixturevalue("emulator")
        opened = CosmosMemoryBackend(tmp_path / "node", EMBEDDER, address(emulator, tmp_path))
    else:
        request.getfixturevalue("postgres_url")
        opened = open_store(tmp_path, EMBEDDER)
    yield opened
    opened.close()


def test_a_message_is_read_once_and_a_fact_has_its_owner_and_its_proof(backend: MemoryBackend) -> None:
    (message, _) = tell(backend, f"Hi! {TURKU}. How are you?", "Thanks.", speaker="Aino", project="p", agent_id="a")
    learner = learner_of(backend)
    report = learner.learn(Scope())
    assert (report.sessions, report.messages, report.known, dict(report.dropped)) == (1, 2, 0, {})
    (fact,) = backend.list(Scope(kinds=("fact",)))
    assert (fact.content, fact.raw, fact.tier, fact.parent_id, fact.pair_id) == (
        *(TURKU, TURKU, "semantic"),
        *(message.id, report.run),
    )
    assert (fact.user_id, fact.project, fact.agent_id, fact.speaker, fact.session_id, fact.occurred_at) == (
        *("aino", "p", "a", "Aino", None),
        NOON,
    )
    assert learner.learn(Scope()).run == ""
    tell(backend, OSLO, minutes=5, speaker="Aino", project="p", agent_id="a")
    assert learner.learn(Scope()).messages == 1
    assert facts(backend) == [TURKU, OSLO]


def test_the_records_of_learning_are_seen_only_by_who_asks_for_archived_entries(backend: MemoryBackend) -> None:
    tell(backend, TURKU)
    run = learner_of(backend).learn(Scope()).run
    assert [entry.kind for entry in backend.list(Scope())] == ["message", "fact"]
    (record,) = backend.list(Scope(kinds=(UNSEARCHED_KIND,), include_archived=True))
    assert (record.id, record.source_type, record.session_id) == (run, fields.LEARNING, "monday")


def test_the_removal_of_a_message_removes_what_was_learnt_from_it_alone(backend: MemoryBackend) -> None:
    first, _ = tell(backend, f"{TURKU}. I have a dog called Rex.", "So what?")
    learner = learner_of(backend)
    learner.learn(Scope())
    (again,) = tell(backend, f"Good morning! {TURKU}. How nice.", minutes=5)
    report = learner.learn(Scope())
    assert (report.facts, report.known) == ((), 1)
    assert facts(backend) == [TURKU, "I have a dog called Rex"]
    backend.remove([first.id])
    assert facts(backend) == [TURKU]
    backend.remove([again.id])
    assert facts(backend) == []


def test_a_run_is_undone_except_for_what_a_person_has_changed(backend: MemoryBackend) -> None:
    tell(backend, TURKU, "I have a dog called Rex.")
    learner = learner_of(backend)
    run = learner.learn(Scope()).run
    (dog,) = (entry for entry in backend.list(Scope(kinds=("fact",))) if "dog" in entry.content)
    backend.update(dog.id, {"content": "I have a dog called Max"})
    undone = learner.journal.undo(run)
    assert (len(undone.archived), undone.kept) == (1, (dog.id,))
    assert facts(backend) == ["I have a dog called Max"]
    assert [entry.undone for entry in learner.journal.runs("default")] == [True]
    with pytest.raises(Conflict, match="undone before"):
        learner.journal.undo(run)
    with pytest.raises(NotFound, match="learn --runs"):
        learner.journal.undo(dog.id)
    assert learner.learn(Scope()).messages == 0  # no automatic run brings back what a person has undone


def test_a_fact_that_replaces_another_one_ends_its_validity_and_undo_brings_it_back(backend: MemoryBackend) -> None:
    (old,) = backend.store([make_entry("My home is in Turku", user_id="aino", occurred_at=NOON)])
    tell(backend, "I moved: my home is in Oslo now.", minutes=10)
    model = Lister([listed(1, "my home is in Oslo now", "", "replaces", 1)])
    learner = learner_of(backend, model)
    report = learner.learn(Scope())
    assert "My home is in Turku" in model.asked[0]
    assert [fact.replaces for fact in report.facts] == [old.id]
    assert facts(backend) == ["my home is in Oslo now"]
    assert backend.get([old.id])[0].superseded_by == report.facts[0].id
    learner.journal.undo(report.run)
    assert facts(backend) == ["My home is in Turku"]


def test_a_run_that_ended_before_its_supersession_is_completed_by_the_next(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.store([make_entry("My home is in Turku", user_id="aino", occurred_at=NOON)])
    tell(backend, "My home is in Oslo now.", minutes=10)
    learner = learner_of(backend, Lister([listed(1, "My home is in Oslo now", "", "replaces", 1)]))
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "finish", lambda *_: 0)
        learner.learn(Scope())
    assert facts(backend) == ["My home is in Turku", "My home is in Oslo now"]
    assert learner.learn(Scope()).messages == 0
    assert facts(backend) == ["My home is in Oslo now"]


def test_what_a_person_has_changed_is_not_learnt_again(backend: MemoryBackend) -> None:
    (message,) = tell(backend, TURKU)
    learner = learner_of(backend)
    learner.learn(Scope())
    (fact,) = backend.list(Scope(kinds=("fact",)))
    backend.update(fact.id, {"content": "I live in Salo"})
    report = learner.learn(Scope(), [message.id])
    assert (report.facts, dict(report.dropped)) == ((), {"learnt before": 1})
    assert facts(backend) == ["I live in Salo"]


def test_two_that_learn_from_one_session_store_nothing_twice(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the lease of the first has ended, because its model was slow."""
    tell(backend, TURKU)
    other: list[Any] = []

    def meanwhile() -> None:
        if not other:
            other.append(learner_of(backend).learn(Scope()))

    first = Lister([listed(1, TURKU)], meanwhile=meanwhile)
    assert learner_of(backend, first).learn(Scope()).facts
    assert other[0].busy == ("monday",)
    tell(backend, OSLO, minutes=5)
    other.clear()
    monkeypatch.setattr(backend, "lease", lambda *_: True)
    slow = Lister([listed(1, OSLO)], meanwhile=meanwhile)
    report = learner_of(backend, slow).learn(Scope())
    assert ([fact.text for fact in other[0].facts], report.facts) == ([OSLO], ())
    assert facts(backend) == [TURKU, OSLO]


def test_threads_that_learn_at_once_store_each_fact_once(backend: MemoryBackend) -> None:
    for n in range(6):
        tell(backend, f"I have a boat called Aalto{n}.", session_id=f"day {n}")
    together = threading.Barrier(3)

    def run() -> None:
        together.wait(30)
        learner_of(backend).learn(Scope())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    learner_of(backend).learn(Scope())  # sessions that were busy
    assert sorted(facts(backend)) == [f"I have a boat called Aalto{n}" for n in range(6)]


def test_nothing_is_learnt_from_a_message_that_was_removed_in_the_meantime(backend: MemoryBackend) -> None:
    message, _ = tell(backend, TURKU, "I have a dog called Rex.")
    gone = Lister(
        [listed(1, TURKU), listed(2, "I have a dog called Rex")],
        [listed(1, "I have a dog called Rex")],
        meanwhile=lambda: backend.remove([message.id]),
    )
    report = learner_of(backend, gone).learn(Scope())
    assert ([fact.text for fact in report.facts], report.messages) == (["I have a dog called Rex"], 1)


def test_a_message_from_a_clock_that_runs_behind_is_learnt_too(backend: MemoryBackend) -> None:
    tell(backend, TURKU)
    learner = learner_of(backend)
    learner.learn(Scope())
    early = make_entry(
        "I have a dog called Rex.",
        id="00000000-0000-7000-8000-000000000001",  # before all other ids
        **{"kind": "message", "tier": "episodic", "role": "user", "session_id": "monday", "user_id": "aino"},
        occurred_at=NOON.replace(year=2001),
        created_at=NOON.replace(year=2001),
    )
    backend.store([early])
    assert [fact.text for fact in learner.learn(Scope()).facts] == ["I have a dog called Rex"]
