"""The time that a question speaks of lifts what is of it, and leaves everything else where it is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.periods import asked_time, entry_terms, in_periods
from agentformer.memory.backends.faiss import FaissMemoryBackend
from agentformer.testing import make_entry
from agentformer.types import MemoryEntry, Query

NOON = datetime(2023, 5, 8, 12, tzinfo=UTC)  # a Monday


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[FaissMemoryBackend]:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    yield backend
    backend.close()


def message(content: str, days_ago: int | None = None, **values: object) -> MemoryEntry:
    at = None if days_ago is None else NOON - timedelta(days=days_ago)
    return make_entry(content, kind="message", tier="episodic", occurred_at=at, **values)


def test_a_question_that_asks_for_a_time_names_none() -> None:
    assert not asked_time("When did Caroline go to the support group?", NOON)
    assert not asked_time("Milloin kokous on?", NOON)
    assert asked_time("What did we do yesterday?", NOON).terms == ("2023-05-07", "2023-05")


def test_an_entry_has_the_terms_of_its_day_and_of_the_days_that_it_names() -> None:
    entry = message("I went to the doctor yesterday", 0)
    assert entry_terms(entry, "en") == ("2023-05-08", "2023-W19", "2023-05", "2023-05-07")
    assert entry_terms(make_entry("I went there yesterday"), "en") == ()  # of which it is not known when
    assert entry_terms(make_entry("All of it", title="Minutes of 7 May 2023"), "en") == ("2023-05-07", "2023-05")


def test_only_what_happened_in_the_period_or_names_a_day_of_it_is_inside(backend: FaissMemoryBackend) -> None:
    contents = {
        "at the end of it": 1,
        "at the beginning": 7,
        "a day too early": 8,
        "a day too late": 0,
        "a month later, of 3 May 2023": -30,
        "when is not known, of 3.5.2023": None,
        "when is not known, nothing named": None,
        "of all of 2023": -30,
    }
    backend.store([message(content, days) for content, days in contents.items()])
    (week,) = asked_time("last week", NOON).periods
    with backend._database.reading() as connection:
        nums = {row[1]: row[0] for row in connection.execute("SELECT num, content FROM entries")}
        asked = [nums[content] for content in reversed(contents)]
        inside = in_periods(connection, [*asked, 999_999], [week])
        assert in_periods(connection, asked, []) == in_periods(connection, [], [week]) == []
    names = {num: content for content, num in nums.items()}
    assert [names[num] for num in inside] == [
        "when is not known, of 3.5.2023",
        "a month later, of 3 May 2023",
        "at the beginning",
        "at the end of it",
    ]


@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
@pytest.mark.parametrize(
    "question",
    ["What did we cook last week?", "What did we cook on 3 May 2023?", "What did we cook on 3.5.2023?"],
)
def test_what_is_of_the_time_asked_for_comes_first(backend: FaissMemoryBackend, question: str, mode: str) -> None:
    backend.store([message(f"what we cook today is soup number {n}", 10 * n + 15) for n in range(5)])
    wanted = message("what we cook today is a stew", 5)
    backend.store([wanted])
    backend.store([message(f"what we cook today is porridge number {n}", 10 * n + 70) for n in range(5)])
    hits = backend.search(Query(question, limit=5, mode=mode, at=NOON))  # type: ignore[arg-type]
    assert hits[0].entry.id == wanted.id
    assert len(hits) == 5  # the others are still there


def test_the_vote_alone_lifts_what_is_of_a_whole_year(backend: FaissMemoryBackend) -> None:
    stored = [
        backend.store([message("what we cook is soup", 300 * n)])[0] for n in range(4)
    ]  # of 2023, 2022, 2021, 2020
    hits = backend.search(Query("What did we cook in 2021?", at=NOON))
    assert [hit.entry.id for hit in hits] == [stored[n].id for n in (2, 0, 1, 3)]


def test_a_message_is_found_by_the_day_that_it_means(backend: FaissMemoryBackend) -> None:
    told = message("kävin eilen hammaslääkärissä", 0)
    others = ["kävin kaupassa taas", "kävin kaupassa vain", "kävin kaupassa silloin", "kävin kaupassa pian"]
    backend.store([told, *(message(content, n + 2) for n, content in enumerate(others))])
    for question in ("Missä kävin 7. toukokuuta 2023?", "Missä kävin 7.5.2023?", "Where was I on May 7, 2023?"):
        assert backend.search(Query(question, limit=1, mode="lexical", at=NOON))[0].entry.id == told.id


def test_the_vote_is_told_and_none_is_cast_where_nothing_is_of_that_time(backend: FaissMemoryBackend) -> None:
    backend.store([message("we cook soup", 1), message("we cook stew", 40)])
    first, second = backend.search(Query("who will cook yesterday", limit=2, at=NOON))
    assert (first.entry.content, second.entry.content) == ("we cook soup", "we cook stew")
    assert [vote.rank for vote in first.votes if vote.name == "period"] == [1]
    assert not [vote for vote in second.votes if vote.name == "period"]
    for hit in backend.search(Query("who will cook in 1999", limit=2, at=NOON)):
        assert not [vote for vote in hit.votes if vote.name == "period"]
