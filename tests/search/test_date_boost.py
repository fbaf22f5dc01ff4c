"""The date boost: entries of the dates that a query names rank higher, and no entry is lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import agentformer
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.words.fields import entry_date_terms
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.search.boosts import date_boost
from agentformer.testing import make_entry
from agentformer.text.analysis import analyze_query
from agentformer.text.dates.query import QueryDates, query_dates
from agentformer.types import MemoryEntry, Query


def dates_of(question: str, at: datetime | None = None) -> QueryDates:
    return query_dates(analyze_query(question), at)


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
    assert not dates_of("When did Caroline go to the support group?", NOON)
    assert not dates_of("Milloin kokous on?", NOON)
    assert dates_of("What did we do yesterday?", NOON).terms == ("2023-05-07", "2023-05")


def test_an_entry_has_the_terms_of_its_day_and_of_the_days_that_it_names() -> None:
    entry = message("I went to the doctor yesterday", 0)
    assert entry_date_terms(entry, "en") == ("2023-05-08", "2023-W19", "2023-05", "2023-05-07")
    assert entry_date_terms(make_entry("I went there yesterday"), "en") == ()  # of which it is not known when
    assert entry_date_terms(make_entry("All of it", title="Minutes of 7 May 2023"), "en") == ("2023-05-07", "2023-05")


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
    week = dates_of("last week", NOON)
    with backend._database.reading() as connection:
        nums = {row[1]: row[0] for row in connection.execute("SELECT num, content FROM entries")}
        asked = [nums[content] for content in reversed(contents)]
        inside = date_boost(connection, [*asked, 999_999], week).items
        assert date_boost(connection, asked, dates_of("soup")).items == date_boost(connection, [], week).items == []
    names = {num: content for content, num in nums.items()}
    assert [names[num] for num in inside] == [
        "when is not known, of 3.5.2023",
        "a month later, of 3 May 2023",
        "at the beginning",
        "at the end of it",
    ]


@pytest.mark.parametrize("hours", [-11, -5, 0, 3, 14])
def test_a_day_that_a_text_names_is_the_same_wherever_the_asker_is(backend: FaissMemoryBackend, hours: int) -> None:
    backend.store([make_entry(f"the party is on {day} May 2023") for day in (6, 7, 8)])
    asked = dates_of("Who came on 7 May 2023?", NOON.astimezone(timezone(timedelta(hours=hours))))
    with backend._database.reading() as connection:
        (found,) = date_boost(connection, [1, 2, 3], asked).items
        assert (
            connection.execute("SELECT content FROM entries WHERE num = ?", [found])
            .fetchone()[0]
            .endswith("7 May 2023")
        )


def test_moments_that_are_equal_ask_for_the_day_of_their_own_zone() -> None:
    midnight = datetime(2023, 5, 8, tzinfo=timezone(timedelta(hours=13)))
    elsewhere = midnight.astimezone(timezone(timedelta(hours=-11)))  # midnight there, too, of the day before
    assert midnight == elsewhere
    assert dates_of("yesterday", midnight).terms == ("2023-05-07", "2023-05")
    assert dates_of("yesterday", elsewhere).terms == ("2023-05-06", "2023-05")


def test_days_begin_at_midnight_also_where_clocks_have_changed_since() -> None:
    for zone in [ZoneInfo("Europe/Helsinki"), UTC]:
        (month,) = dates_of("in October 2023", datetime(2023, 12, 24, tzinfo=zone)).periods
        assert month.start == datetime(2023, 10, 1, tzinfo=zone)
        assert month.end == datetime(2023, 11, 1, tzinfo=zone)


def test_where_a_time_only_begins_or_ends_no_terms_are_asked_for() -> None:
    for question in ["What did we do before 7 May 2023?", "Who came since May 2023?", "ennen 7.5.2023"]:
        assert dates_of(question, NOON) == QueryDates()
        assert entry_date_terms(make_entry(question), "")  # but the day is found where it is written


def test_yesterday_is_reckoned_where_at_is(tmp_path: Path) -> None:
    folders = {"index_dir": tmp_path / "index", "upload_dir": tmp_path / "uploads"}
    with agentformer.connect(**folders, embedder="hashing") as af:
        af.memory.store("the soup of 6 May 2023", kind="event")
        af.memory.store("the soup of 7 May 2023", kind="event")
        for at, day in (("2023-05-08T01:00:00+03:00", "7 May 2023"), ("2023-05-07T22:00:00+00:00", "6 May 2023")):
            first, _ = af.memory.search("the soup of yesterday", at=at)
            assert first.entry.content.endswith(day)
            assert [vote.name for vote in first.votes if vote.name == "period"] == ["period"]


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
