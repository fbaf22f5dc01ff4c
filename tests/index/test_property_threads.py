"""The background thread writes missing rows of the table `derived`, and tries rows that cannot be written rarely."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentformer import AgentFormer, connect
from agentformer.index import entry_properties, property_threads
from agentformer.index.property_threads import DerivedRenewal


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    """A memory with the entries 1 to 4, whose title is their number."""
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        for n in range(1, 5):
            af.memory.store(f"Text {n}.", title=f"Title {n}")
        yield af


class Renewal:
    """A renewal of the rows of a store, with a clock that a test sets."""

    def __init__(self, af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.begun = 100.0, list[int]()  # after which entry each batch was read
        self.go = threading.Event()
        self.go.set()
        self.renewal, self._database = DerivedRenewal(lambda: False), af.backend._database  # type: ignore[attr-defined]
        outdated = entry_properties.outdated

        def counted(connection: object, after: int, limit: int) -> list[object]:
            assert self.go.wait(60)
            self.begun.append(after)
            return list(outdated(connection, after, limit))  # type: ignore[arg-type]

        monkeypatch.setattr(entry_properties, "outdated", counted)
        monkeypatch.setattr(property_threads, "time", self)

    def monotonic(self) -> float:
        return self.now

    thread_time = monotonic

    def execute(self, statement: str) -> None:
        with self._database.writing() as connection:
            connection.execute(statement)

    def batches(self, *missing: int) -> list[int]:
        """Start a pass, and return after which entries its batches began."""
        self.begun.clear()
        self.start(*missing)
        self.renewal.wait()
        return list(self.begun)

    def titles(self) -> list[str]:
        """Return the titles of the entries that have a row."""
        with self._database.reading() as connection:
            return [row.title for _, row in sorted(entry_properties.read(connection, range(1, 9)).items())]

    def start(self, *missing: int) -> None:
        self.renewal.start(self._database, missing)


@pytest.fixture
def renewal(af: AgentFormer, monkeypatch: pytest.MonkeyPatch) -> Renewal:
    return Renewal(af, monkeypatch)


def test_missing_rows_are_written_in_batches(
    af: AgentFormer, renewal: Renewal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(property_threads, "_RENEWED", 3)
    renewal.execute("DELETE FROM derived")
    assert renewal.batches() == []
    assert renewal.batches(2) == [0, 3, 4]
    assert renewal.titles() == ["Title 1", "Title 2", "Title 3", "Title 4"]


def test_an_entry_whose_row_cannot_be_written_starts_a_pass_once_a_minute(af: AgentFormer, renewal: Renewal) -> None:
    renewal.execute("DELETE FROM derived WHERE entry > 2")
    renewal.execute("UPDATE entries SET checksum = checksum + 1 WHERE num = 3")
    assert renewal.batches(3, 4) == [0, 4]
    assert renewal.titles() == ["Title 1", "Title 2", "Title 4"]
    assert renewal.batches(3) == []
    af.memory.store("Text 5.")
    renewal.execute("DELETE FROM derived WHERE entry = 5")
    assert renewal.batches(5) == [4, 5]  # a new entry is not kept waiting
    renewal.now += 59.0
    assert renewal.batches(3) == [] == renewal.batches(5)
    renewal.now += 1.0
    assert renewal.batches(3) == [0, 3]
    assert renewal.batches(4) == [3]


def test_one_pass_runs_at_a_time_and_none_after_a_stop(af: AgentFormer, renewal: Renewal) -> None:
    renewal.execute("DELETE FROM derived")
    renewal.go.clear()
    renewal.start(1)
    renewal.start(1)
    renewal.go.set()
    renewal.renewal.wait()
    assert renewal.begun == [0, 4]
    renewal.execute("DELETE FROM derived")
    renewal.now += 60.0
    renewal.renewal.stop()
    assert renewal.batches(1) == []
