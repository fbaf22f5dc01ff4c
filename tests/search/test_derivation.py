"""The rows of the table `derived` that searches keep in memory: they are read once, and anew after a change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import agentformer
from agentformer.index import entry_properties
from agentformer.search import pipeline, row_cache
from agentformer.search.row_cache import RankedRows
from agentformer.testing import make_entry
from agentformer.types import Query, Source


class Store:
    """A store with the entries 1 to 4, whose title is their number, and the numbers that were read from its table."""

    def __init__(self, af: agentformer.AgentFormer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.af, self.read_now = af, list[int]()
        self.ids = [af.memory.store(f"Text {n}.", title=f"Title {n}").id for n in range(1, 5)]
        self.rows, read = RankedRows(), entry_properties.read

        def counted(connection: object, nums: Sequence[int]) -> dict[int, entry_properties.Derived]:
            self.read_now += nums
            return read(connection, nums)  # type: ignore[arg-type]

        monkeypatch.setattr(entry_properties, "read", counted)

    def titles(self, *nums: int) -> tuple[list[str], list[int]]:
        """Return the titles of these entries, and the numbers of those that were read from the table."""
        self.read_now.clear()
        with self.af.backend._database.reading() as connection:  # type: ignore[attr-defined]
            found = self.rows.reads(connection).derived(nums)
        return [found[num].title for num in nums if num in found], list(self.read_now)

    def retitle(self, num: int, title: str) -> None:
        self.af.memory.update(self.ids[num - 1], title=title)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        yield Store(af, monkeypatch)


def test_a_row_is_read_once_and_again_after_a_change_of_its_entry(store: Store) -> None:
    assert store.titles(1, 2, 3) == (["Title 1", "Title 2", "Title 3"], [1, 2, 3])
    assert store.titles(4, 1, 2) == (["Title 4", "Title 1", "Title 2"], [4])
    store.retitle(2, "Other")
    assert store.titles(1, 2, 3) == (["Title 1", "Other", "Title 3"], [2])
    store.af.memory.remove(store.ids[0])
    assert store.titles(1, 2) == (["Other"], [1])
    assert store.titles(1, 2) == (["Other"], [1])  # a missing row is asked for again: it may be written any time


def test_a_search_that_began_before_the_last_change_neither_uses_nor_keeps_rows(store: Store) -> None:
    with store.af.backend._database.reading() as connection:  # type: ignore[attr-defined]
        before = store.rows.reads(connection)
        store.retitle(1, "Other")
        assert store.titles(2) == (["Title 2"], [2])
        store.read_now.clear()
        assert [row.title for row in before.derived([1, 2]).values()] == ["Title 1", "Title 2"]
        assert store.read_now == [1, 2]
    assert store.titles(1) == (["Other"], [1])


def test_the_oldest_rows_are_forgotten_if_they_are_many(store: Store) -> None:
    store.rows.derived._most = 3
    assert store.titles(1, 2)[1] == [1, 2]
    assert store.titles(3)[1] == [3]
    assert store.titles(1, 2, 3)[1] == []
    assert store.titles(4)[1] == [4]
    assert store.titles(4, 3)[1] == []
    assert store.titles(1)[1] == [1]


@pytest.mark.parametrize("most", [0, 1])
def test_all_rows_are_forgotten_after_many_changes(store: Store, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    store.titles(1, 2)
    monkeypatch.setattr(row_cache, "_MAX_CHANGES", most)
    store.retitle(1, "Other")
    assert store.titles(1, 2) == (["Other", "Title 2"], [1] if most else [1, 2])


def test_all_rows_are_forgotten_if_another_store_has_taken_the_place(store: Store) -> None:
    store.titles(1, 2)
    with store.af.backend._database.writing() as connection:  # type: ignore[attr-defined]
        connection.execute("UPDATE points SET token = randomblob(8)")
    store.retitle(1, "Other")
    assert store.titles(1, 2) == (["Other", "Title 2"], [1, 2])


def test_rows_without_title_are_read_only_for_the_best_entries(store: Store) -> None:
    """The other plain rows are represented by one object, until `complete` reads them."""
    for n in range(40):
        entry = store.af.memory.store(f"The shop in Oslo sold {n} of the lamps to Anna and to her sister.")
    store.af.memory.add_message("s", "user", "She said so.")
    nums = [*range(5, 46), 1, 2]  # without titles, a message, with titles
    with store.af.backend._database.reading() as connection:  # type: ignore[attr-defined]
        reads = store.rows.reads(connection)
        known = reads.for_boosts(nums, 20)
        assert {*known} == {*nums} and store.read_now == [*nums[:20], 45, 1, 2]
        assert [num for num in nums if known[num] is entry_properties.PLAIN] == nums[20:40]
        assert (known[1].title, known[45].turn is None, known[5].analyzed.language) == ("Title 1", False, "en")
        complete = reads.complete(known, [30, 1, 99])
        assert {num: row.title for num, row in complete.items()} == {30: "", 1: "Title 1"}
        assert complete[30].analyzed.language == "en" and store.read_now[23:] == [30]
        assert reads.for_boosts(nums, 20)[44] is entry_properties.PLAIN and store.read_now[24:] == []
    store.af.memory.update(entry.id, title="A title now")
    with store.af.backend._database.reading() as connection:  # type: ignore[attr-defined]
        assert store.rows.reads(connection).for_boosts(nums, 20)[44].title == "A title now"


def test_all_rows_are_read_if_the_best_entries_are_parts_of_documents(store: Store) -> None:
    source = Source("the document", "report.pdf", 1)
    passages = [make_entry(f"Passage {n}.", kind="chunk", source=source) for n in range(30)]
    store.af.backend.store(passages)
    with store.af.backend._database.reading() as connection:  # type: ignore[attr-defined]
        known = store.rows.reads(connection).for_boosts([*range(5, 35)], 5)
    assert {row.document for row in known.values()} == {"the document"} and len(known) == 30


def test_plain_rows_are_skipped_only_in_a_store_that_memory_cannot_hold(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hits are the same, and the returned entries have their stored properties in both cases."""
    for n in range(30):
        store.af.memory.store(f"The shop in Oslo sold {n} of the lamps to Anna and to her sister.")
    query = Query("Which shop sold lamps to Anna?", limit=5)
    store.af.backend.search(Query("zebra", mode="lexical"))  # the word index reads the rows of new entries
    read = len(store.read_now), store.af.backend.search(query), len(store.read_now)
    monkeypatch.setattr(pipeline, "CACHED_DERIVED", 20)
    store.af.backend._open().pipeline._rows = RankedRows()  # type: ignore[attr-defined]
    hits = store.af.backend.search(query)
    assert (read[2] - read[0], len(store.read_now) - read[2]) == (34, 14)  # the best ten, and four with a title
    assert [*hits] == [*read[1]] and hits.analyzed == read[1].analyzed
    assert {row.language for row in hits.analyzed.values()} == {"en"} and len(hits.analyzed) >= 5


def test_a_search_has_the_rows_of_new_entries_written_whenever_they_are_missing(store: Store) -> None:
    database, renewal = store.af.backend._database, store.af.backend._open().pipeline._renewal  # type: ignore[attr-defined]
    for last in (4, 5):
        with database.writing() as connection:
            connection.execute("DELETE FROM derived WHERE entry = ?", [last])
        assert len(store.af.memory.search("text")) == last
        renewal.wait()
        assert store.titles(last)[0] == [f"Title {last}"]
        store.af.memory.store("Text 5.", title="Title 5")
