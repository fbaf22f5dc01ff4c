"""The boosts by document and by title, each on a table of entries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime

import pytest

from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.search.boosts import document_boost, identifier_boost, title_boost
from agentformer.text.dates.expressions import Period
from agentformer.text.dates.query import QueryDates


@pytest.fixture
def connection() -> Iterator[SqliteConnection]:
    connection = sqlite3.connect(":memory:", factory=SqliteConnection)
    texts = ", ".join(f"{name} DEFAULT ''" for name in ("title", "context", "content"))
    columns = f"num INTEGER PRIMARY KEY, document_id, {texts}, span_start, page, occurred_at"
    connection.execute(f"CREATE TABLE entries ({columns})")
    yield connection
    connection.close()


def add_passages(connection: SqliteConnection, *documents: str | None) -> None:
    """Add an entry for each document id, numbered from 1."""
    connection.executemany("INSERT INTO entries (document_id) VALUES (?)", [[document] for document in documents])


def add_facts(connection: SqliteConnection, *facts: tuple[str, str]) -> None:
    """Add an entry for each title and content, numbered from 1."""
    connection.executemany("INSERT INTO entries (title, content) VALUES (?, ?)", facts)


def test_a_document_scores_the_mean_of_its_best_three_passages(connection: SqliteConnection) -> None:
    add_passages(connection, "a", "b", "a", "b", "b", "a", "b")
    hits = [(1, 1.0), (2, 0.9), (3, 0.5), (4, 0.8), (5, 0.7), (6, 0.3), (7, 0.1)]
    boost = document_boost(connection, sorted(hits, key=lambda hit: -hit[1]))
    assert boost.items == [2, 4, 5, 7, 1, 3, 6] and (boost.name, boost.weight) == ("document", 0.5)
    assert boost.scores == pytest.approx([0.8] * 4 + [0.6] * 3)


def test_every_hit_at_the_head_must_be_of_a_long_document(connection: SqliteConnection) -> None:
    add_passages(connection, *["a", "b"] * 5, "c", None)
    hits = [(num, 1 - num / 100) for num in range(1, 13)]
    assert document_boost(connection, hits).items[0] == 1  # the short document stands behind the head
    assert len(document_boost(connection, hits).items) == 11
    assert document_boost(connection, [hits[10], *hits[:10]]).items == []
    assert document_boost(connection, [hits[11], *hits[:10]]).items == []
    assert document_boost(connection, [*hits[:4], *hits[4:6]]).items == [1, 3, 5, 2, 4, 6]
    assert document_boost(connection, hits[:5]).items == []  # two passages of b are too few
    assert document_boost(connection, [hits[0], hits[2], hits[4]]).items == []  # one document alone


def test_entries_with_a_code_of_the_query_are_boosted_if_few_have_it(connection: SqliteConnection) -> None:
    add_facts(
        connection,
        ("", "Ticket 9f3ac01b7e is open."),
        ("INV-2024-0032", "Paid."),
        ("", "Ticket 9F3AC01B7E, again."),
        ("", "Ticket 29f3ac01b7e is another."),
        *[("", "Part 471102 is in use.")] * 3,
    )
    boost = identifier_boost(connection, [7, 6, 5, 4, 3, 2, 1], ["9f3ac01b7e", "inv-2024-0032", "471102"], 0.7)
    assert (boost.name, boost.items, boost.weight) == ("identifiers", [3, 2, 1], 1.7)
    assert identifier_boost(connection, [1], ["9f3ac01b7e"], 2.5).weight == 3.5
    assert identifier_boost(connection, [1], []).items == []


def test_entries_that_the_first_three_hits_mention_are_boosted_in_order(connection: SqliteConnection) -> None:
    add_facts(
        connection,
        ("Log", "Met Jane Roe."),
        ("Diary", "Nothing."),
        ("Notes", "Met Carl Poe and Jane Roe."),
        ("Letter", "Met Anna Moe."),
        ("Anna Moe", "A sailor."),
        ("Carl Poe", "A cook."),
        ("Jane Roe", "A pilot."),
    )
    boost = title_boost(connection, [1, 2, 3, 4, 5, 6, 7])
    assert (boost.name, boost.items, boost.weight) == ("mentions", [7, 6], 0.8)
    assert title_boost(connection, [4, 5, 6, 7]).items == [5]
    assert title_boost(connection, []).items == title_boost(connection, [99]).items == []


def test_entries_that_the_query_names_are_boosted_after_those_that_the_hits_mention(
    connection: SqliteConnection,
) -> None:
    add_facts(
        connection,
        ("Log", "Met Jane Roe."),
        ("Carl Poe", "A cook."),
        ("Jane Roe", "A pilot."),
        ("Anna Moe", "A sailor."),
    )
    query = "Is Anna Moe older than Carl Poe, or Jane Roes son?"
    assert title_boost(connection, [1, 2, 3, 4], query=query).items == [3, 2, 4]
    assert title_boost(connection, [2, 4], query="is anna moe older than Carl Poems?").items == []
    connection.execute("INSERT INTO entries (title) VALUES ('Anna Moe'), ('Anna Moe')")
    assert title_boost(connection, [2, 4, 5, 6], query=query).items == [2]  # a title of three entries names none


def test_a_title_is_mentioned_only_as_complete_words(connection: SqliteConnection) -> None:
    texts = ["Jane Roe", "(Jane Roe)", "Jane Roes Jane Roe", "MaryJane Roe", "Jane Roes sail", "xJane Roe", "Jane Roe2"]
    add_facts(connection, ("Jane Roe", "A pilot."), *(("", text) for text in texts))
    mentioned = [title_boost(connection, [num, 1]).items == [1] for num in range(2, 2 + len(texts))]
    assert mentioned == [True, True, True, False, False, False, False]


def test_a_short_first_line_before_other_lines_is_a_title(connection: SqliteConnection) -> None:
    eight = "One Two Three Four Five Six Seven Eight"
    for line, content, titled in [
        ("Jane Roe", "Jane Roe\nA pilot.", True),
        ("Jane Roe", "# Jane Roe\nA pilot.", True),
        ("Jane Roe", "Jane Roe (pilot)\nOf Oulu.", True),
        ("jane Roe", "jane Roe\nA pilot.", False),
        ("Jane Roe.", "Jane Roe.\nA pilot.", False),
        ("Jane Roe", "Jane Roe\n \n", False),
        ("Jane Roe", "Jane Roe", False),
        (eight, f"{eight}\nA list.", True),
        (f"{eight} Nine", f"{eight} Nine\nA list.", False),
    ]:
        connection.execute("DELETE FROM entries")
        add_facts(connection, ("Log", f"Met {line} today."), ("", content))
        assert title_boost(connection, [1, 2]).items == ([2] if titled else []), content


def test_dates_are_true_if_there_is_a_period_or_a_term() -> None:
    assert QueryDates(terms=("2024",)) and QueryDates(periods=(Period(datetime.min, datetime.max),))
    assert not QueryDates()


@pytest.mark.parametrize(("length", "boosted"), [(3, False), (4, True), (100, True), (101, False)])
def test_only_a_title_of_4_to_100_characters_counts(connection: SqliteConnection, length: int, boosted: bool) -> None:
    title = "Q" * length
    add_facts(connection, ("Log", f"Met {title} today."), (title, "A person."))
    assert title_boost(connection, [1, 2]).items == ([2] if boosted else [])


def test_a_title_of_more_than_two_entries_names_none_of_them(connection: SqliteConnection) -> None:
    add_facts(connection, ("Log", "Met Jane Roe."), ("Jane Roe", "A pilot."), ("Jane Roe (pilot)", "Of Oulu."))
    assert title_boost(connection, [1, 2, 3]).items == [2, 3]
    connection.execute("INSERT INTO entries (title) VALUES ('Jane Roe')")
    assert title_boost(connection, [1, 2, 3, 4]).items == []


def test_the_first_four_thousand_characters_are_searched_for_titles(connection: SqliteConnection) -> None:
    add_facts(
        connection, ("Log", "-" * 3_991 + " Jane Roe"), ("Far", "-" * 3_992 + " Jane Roe"), ("Jane Roe", "Pilot.")
    )
    assert title_boost(connection, [1, 3]).items == [3]
    assert title_boost(connection, [2, 3]).items == []
