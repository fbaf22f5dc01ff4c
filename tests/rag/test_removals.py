"""A document that is going to be deleted is hidden, can be kept until its time has come, and is then deleted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentformer.errors import Conflict, NotFound
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.rag import removals
from agentformer.rag.removals import REMOVE_AT, Removals
from agentformer.testing import make_entry
from agentformer.types import Condition, MemoryBackend, MemoryEntry, Scope


class Memory:
    """A memory with the documents a.txt and b.txt, and the documents that were deleted, with their versions."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.backend, self.deleted = backend, list[tuple[str, int]]()
        self.first, self.second = backend.store([self.document("a.txt"), self.document("b.txt")])
        self.removals = Removals(backend, self.delete)

    @staticmethod
    def document(name: str) -> MemoryEntry:
        return make_entry(name, kind="document", metadata={"name": name})

    def delete(self, document_id: str, version: int) -> None:
        self.deleted.append((document_id, version))
        self.backend.remove([document_id])

    def pending(self) -> list[str]:
        return [removal.name for removal in self.removals.pending("default")]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    backend = LocalJsonMemoryBackend(tmp_path)
    yield Memory(backend)
    backend.close()


def test_a_document_is_hidden_until_its_removal_is_undone(memory: Memory) -> None:
    memory.backend.update(memory.second.id, {"archived_at": datetime.now(UTC)})  # archived, but not to be deleted
    assert memory.pending() == [] and memory.removals.hide(None, "default") is None
    removal = memory.removals.add(memory.first.id, 60)
    assert (removal.id, removal.name, removal.version) == (memory.first.id, "a.txt", memory.first.version + 1)
    assert 0 < (removal.at - datetime.now(UTC)).total_seconds() <= 60
    assert memory.pending() == ["a.txt"] and memory.backend.list(Scope()) == []
    kind = Condition("eq", "kind", "x")
    for where in (None, kind):
        assert memory.first.id in repr(memory.removals.hide(where, "default"))
    memory.removals.undo(memory.first.id)
    assert memory.pending() == []
    (kept,) = memory.backend.list(Scope())
    assert kept.metadata == memory.first.metadata


def test_only_due_documents_are_deleted(memory: Memory) -> None:
    memory.backend.update(memory.second.id, {"archived_at": datetime.now(UTC)})
    assert memory.removals.delete_due() == 60.0
    memory.removals.add(memory.first.id, 30)
    assert 0 < memory.removals.delete_due() <= 30 and memory.deleted == []
    (entry,) = memory.backend.get([memory.first.id])
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    memory.backend.update(entry.id, {"metadata": {**entry.metadata, REMOVE_AT: past}})
    assert memory.pending() == ["a.txt"]
    assert memory.removals.delete_due() == 60.0
    assert memory.deleted == [(entry.id, entry.version + 1)]
    assert memory.pending() == []
    assert memory.backend.get([memory.second.id])


def test_a_removal_of_another_process_is_seen_after_five_seconds(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(removals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert memory.pending() == []
    Removals(memory.backend, memory.delete).add(memory.first.id, 60)
    now[0] += 4.9
    assert memory.pending() == []  # searches do not read the removals each time
    now[0] += 0.2
    assert memory.pending() == ["a.txt"]
    memory.removals.undo(memory.first.id)
    assert memory.pending() == []  # its own changes are seen at once


def test_a_replaced_document_comes_back_in_place_of_the_new_one(memory: Memory) -> None:
    (new,) = memory.backend.store([memory.document("a.txt")])
    memory.removals.replace([memory.first], new.id, 60)
    (removal,) = memory.removals.pending("default")
    assert (removal.id, removal.replaced_by) == (memory.first.id, new.id)
    memory.removals.replace([memory.first], "another", 60)  # a second replacement of the same version changes nothing
    assert memory.removals.pending("default") == (removal,)
    memory.removals.undo(memory.first.id)
    assert memory.deleted == [(new.id, new.version)]
    (kept,) = memory.backend.get([memory.first.id])
    assert (kept.archived_at, kept.metadata) == (None, memory.first.metadata)


def test_of_two_replacements_only_the_last_can_be_undone_first(memory: Memory) -> None:
    (second,) = memory.backend.store([memory.document("a.txt")])
    memory.removals.replace([memory.first], second.id, 60)
    (third,) = memory.backend.store([memory.document("a.txt")])
    memory.removals.replace([second], third.id, 60)
    with pytest.raises(Conflict, match="was uploaded again"):
        memory.removals.undo(memory.first.id)
    assert memory.deleted == [] and memory.pending() == ["a.txt", "a.txt"]
    memory.removals.undo(second.id)
    assert [deleted for deleted, _ in memory.deleted] == [third.id]


def test_a_version_that_was_deleted_or_hidden_meanwhile_is_not_replaced(memory: Memory) -> None:
    memory.removals.add(memory.first.id, 60)
    memory.backend.remove([memory.second.id])
    memory.removals.replace([memory.first, memory.second], "new", 60)
    (removal,) = memory.removals.pending("default")
    assert (removal.id, removal.replaced_by) == (memory.first.id, "")


def test_what_cannot_be_undone_is_refused(memory: Memory) -> None:
    with pytest.raises(NotFound, match="nothing to undo"):
        memory.removals.undo(memory.first.id)
    (fact,) = memory.backend.store([make_entry("a fact")])
    for unknown in (fact.id, "0" * 32):
        with pytest.raises(NotFound, match="there is no document"):
            memory.removals.add(unknown, 60)
    memory.removals.add(memory.first.id, 60)
    memory.backend.store([memory.document("a.txt")])
    with pytest.raises(Conflict, match="was uploaded again"):
        memory.removals.undo(memory.first.id)


class Clocks:
    """A wall clock that can be set, the clock of the machine, and the id of its last start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.years, self.seconds, self.start = 0, 1_000.0, "first start"
        monkeypatch.setattr(removals, "datetime", SimpleNamespace(now=self.now, fromisoformat=datetime.fromisoformat))
        monkeypatch.setattr(removals, "time", SimpleNamespace(monotonic=lambda: self.seconds + 5))
        monkeypatch.setattr(removals, "_machine_clock", lambda: (self.start, self.seconds))

    def now(self, zone: tzinfo) -> datetime:
        return datetime(2026, 11, 29, tzinfo=zone) + timedelta(days=365 * self.years, seconds=self.seconds)


@pytest.mark.parametrize("years", [-10, 10])
@pytest.mark.parametrize("start", ["first start", "second start", ""])
def test_a_jump_of_the_clock_neither_deletes_a_document_at_once_nor_hides_it_for_years(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, years: int, start: str
) -> None:
    clocks = Clocks(monkeypatch)
    clocks.start = start and "first start"
    memory.removals.add(memory.first.id, 60)
    clocks.years, clocks.start = years, start
    other = Removals(memory.backend, memory.delete)  # of a server that was started later
    assert other.delete_due() == 60.0 and memory.deleted == []
    assert [round(removal.left) for removal in other.pending("default")] == [60]
    clocks.seconds += 59
    assert other.delete_due() == 1.0 and memory.deleted == []
    clocks.seconds += 2
    other.delete_due()
    assert [document for document, _ in memory.deleted] == [memory.first.id]


def test_a_restarted_server_goes_on_with_the_time_of_the_removal(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    memory.removals.add(memory.first.id, 60)
    clocks.seconds += 61  # nobody has looked at it since
    Removals(memory.backend, memory.delete).delete_due()
    assert [document for document, _ in memory.deleted] == [memory.first.id]
