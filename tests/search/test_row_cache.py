"""Rows that stay in memory between searches: never stale, never of another history, and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.search import row_cache
from agentformer.search.row_cache import CachedRows, CachedVectors, RankedRows
from agentformer.testing import make_entry
from agentformer.types import Query


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[FaissMemoryBackend]:
    made = FaissMemoryBackend(tmp_path, HashingEmbedder())
    yield made
    made.close()


def numbers(backend: FaissMemoryBackend, statement: str = "SELECT num FROM entries ORDER BY num") -> list[int]:
    with backend._database.reading() as connection:
        return [row[0] for row in connection.execute(statement)]


def beginnings(backend: FaissMemoryBackend, kept: RankedRows, nums: list[int]) -> list[str]:
    with backend._database.reading() as connection:
        samples = kept.reads(connection).samples(nums)
    return [samples[num].text for num in nums if num in samples]


def execute(backend: FaissMemoryBackend, statement: str) -> None:
    with backend._database.writing() as connection:
        connection.execute(statement)


def test_a_row_is_read_once_and_again_after_its_entry_changed(backend: FaissMemoryBackend) -> None:
    first, _ = backend.store([make_entry("Anna has a cat"), make_entry("Ben has a dog")])
    kept, nums = RankedRows(), numbers(backend)
    assert beginnings(backend, kept, nums) == ["Anna has a cat", "Ben has a dog"]
    execute(backend, "UPDATE entries SET content = 'nothing reads this'")  # not in the change feed
    assert beginnings(backend, kept, nums) == ["Anna has a cat", "Ben has a dog"]
    execute(backend, "UPDATE entries SET content = 'Anna has a cat'")
    backend.update(first.id, {"content": "Anna has a parrot"})
    assert beginnings(backend, kept, nums)[0] == "Anna has a parrot"
    backend.remove([first.id])
    assert beginnings(backend, kept, nums) == ["Ben has a dog"]


def test_an_older_transaction_neither_uses_nor_changes_newer_rows(backend: FaissMemoryBackend) -> None:
    (entry,) = backend.store([make_entry("the first text")])
    kept, nums = RankedRows(), numbers(backend)
    with backend._database.reading() as connection:
        older = kept.reads(connection)
        assert older.samples(nums)[nums[0]].text == "the first text"
        backend.update(entry.id, {"content": "the second text"})
        assert beginnings(backend, kept, nums) == ["the second text"]
        assert older.samples(nums)[nums[0]].text == "the first text"
        assert kept.reads(connection).samples(nums)[nums[0]].text == "the first text"
    assert beginnings(backend, kept, nums) == ["the second text"]


@pytest.mark.parametrize("later", [False, True])
def test_rows_of_another_history_are_forgotten(backend: FaissMemoryBackend, later: bool) -> None:
    """A backup that was restored in place has other rows under the same numbers."""
    (entry,) = backend.store([make_entry("before the backup")])
    for n in range(3):
        backend.update(entry.id, {"title": f"title {n}"})
    kept, nums = RankedRows(), numbers(backend)
    vectors = np.array(numbers(backend, "SELECT id FROM vectors"), np.int64)
    assert beginnings(backend, kept, nums) == ["before the backup"]
    with backend._database.reading() as connection:
        assert len(kept.reads(connection).vectors(vectors, 256)[0]) == len(kept.vectors._numbers) > 0
    execute(backend, "UPDATE entries SET content = 'of the backup'")
    if later:
        execute(backend, "UPDATE points SET token = randomblob(8)")
        backend.store([make_entry("after it")])
    else:
        execute(backend, "DELETE FROM points WHERE seq = (SELECT max(seq) FROM points)")
        execute(backend, "UPDATE changes SET seq = (SELECT max(seq) FROM points)")
        for _ in range(row_cache._MAX_OLDER):  # it looks like a transaction that is older than the rows
            assert beginnings(backend, kept, nums) == ["of the backup"]
    assert beginnings(backend, kept, nums) == ["of the backup"]
    assert len(kept.vectors._numbers) == 0
    execute(backend, "UPDATE entries SET content = 'in memory now'")
    assert beginnings(backend, kept, nums) == ["of the backup"]


def test_many_changes_forget_all_rows(backend: FaissMemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "_MAX_CHANGES", 2)
    backend.store([make_entry("kept")])
    kept, nums = RankedRows(), numbers(backend)
    beginnings(backend, kept, nums)
    backend.store([make_entry(f"new {n}") for n in range(3)])
    execute(backend, "UPDATE entries SET content = 'read again' WHERE content = 'kept'")
    assert beginnings(backend, kept, nums) == ["read again"]


def test_rows_are_bounded_and_the_oldest_ones_leave() -> None:
    kept = CachedRows[str](8)
    for num in range(9):
        kept.add({num: str(num)})
    assert [*kept.find(range(10))] == [3, 4, 5, 6, 7, 8]


def test_vectors_are_bounded_and_found_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "_VECTOR_BYTES", 1500 * 8)
    kept, matrix = CachedVectors(), np.arange(8000, dtype=np.float32).reshape(4000, 2)
    for start in range(0, 4000, 70):
        kept.add([*range(start, min(start + 70, 4000))], matrix[start : start + 70])
    assert kept.find([*range(2500)], 2) is None
    found = kept.find([3999, 7, 2500, 3000], 2)
    assert found is not None and found[0] == [0, 2, 3]
    assert (found[1] == matrix[[3999, 2500, 3000]]).all()
    assert kept.find([3999], 3) is None
    kept.add([1], np.ones((1, 3), np.float32))  # of another embedding model
    assert kept.find([1], 3) is not None and kept.find([3999], 2) is None


def test_searches_beside_changes_equal_searches_without_memory(backend: FaissMemoryBackend) -> None:
    entries = backend.store(
        [make_entry(f"note {n} about lantern {n % 5}", kind="message", session_id="s") for n in range(40)]
    )
    search = backend._open().pipeline
    for n in range(12):
        backend.update(entries[n].id, {"content": f"changed note {n} about a lantern {n % 3}?"})
        warm = backend.search(Query("which lantern was changed?", limit=20))
        kept, search._rows = search._rows, RankedRows()
        cold = backend.search(Query("which lantern was changed?", limit=20))
        search._rows = kept
        assert [(hit.entry, hit.score, hit.dense_score, hit.votes) for hit in warm] == [
            (hit.entry, hit.score, hit.dense_score, hit.votes) for hit in cold
        ]
