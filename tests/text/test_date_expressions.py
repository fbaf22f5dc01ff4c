"""Expressions of time become stretches of days, and what only looks like one does not."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.text.dates import relative as relative_dates
from agentformer.text.dates.expressions import (
    MAX_TEXT,
    Period,
    date_terms,
    day_terms,
    find_date_ranges,
    periods,
    range_terms,
)
from agentformer.text.dates.notation import find_dates
from agentformer.text.dates.relative import Slots

MONDAY = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


def said(text: str, language: str = "", at: datetime = MONDAY) -> list[str]:
    """Each stretch as "first..last" of its days, or as its one day."""
    found = []
    for period in periods(text, at, language):
        first, last = period.start.date(), (period.end - timedelta(days=1)).date()
        found.append(f"{first}" if first == last else f"{first}..{last}")
    return found


def test_last_before_another_word_is_no_day_even_if_the_text_names_a_weekday() -> None:
    assert said("The last meeting was on a Friday.") == said("Die letzte Sitzung war an einem Freitag.") == []
    assert said("The last Friday was busy, and the next meeting was fine.") == ["2023-05-05"]


def test_a_day_is_the_same_in_every_writing() -> None:
    for written in [
        "7 May 2023",
        "May 7, 2023",
        "May 7th",
        "the 7th of May",
        "2023-05-07",
        "7.5.2023",
        "2023/05/07",
        "7. toukokuuta 2023",
        "toukokuun 7. päivänä 2023",
        "den 7 maj 2023",
        "7 maj",
        "7. mai 2023",
        "7. maj 2023",
        "7. Mai 2023",
        "2023年5月7日",
        "5月7日",
        "２０２３年５月７日",
        "yesterday",
        "last night",
        "eilen",
        "viime sunnuntaina",
        "i går",
        "igår",
        "i søndags",
        "sist søndag",
        "gestern",
        "letzten Sonntag",
        "vor einem Tag",
        "昨日",
        "きのう",
        "一日前",
        "先週の日曜日",
        "last Sunday",
        "one day ago",
        "yksi päivä sitten",
        "för en dag sedan",
        "for en dag siden",
        "two days before 9 May 2023",
    ]:
        assert said(f"it was {written} :") == ["2023-05-07"]


def test_a_week_begins_on_monday() -> None:
    for written in [
        "last week",
        "a week ago",
        "viime viikolla",
        "viikko sitten",
        "förra veckan",
        "för en vecka sedan",
        "forrige uke",
        "sidste uge",
        "for en uge siden",
        "letzte Woche",
        "vor einer Woche",
        "先週",
        "1週間前",
        "the week before 9 May 2023",
    ]:
        assert said(written) == ["2023-05-01..2023-05-07"]


def test_other_stretches() -> None:
    for written, days in [
        ("two days ago", "2023-05-06"),
        ("kolme päivää sitten", "2023-05-05"),
        ("day before yesterday", "2023-05-06"),
        ("toissapäivänä", "2023-05-06"),
        ("i förrgår", "2023-05-06"),
        ("vorgestern", "2023-05-06"),
        ("一昨日", "2023-05-06"),
        ("last Monday", "2023-05-01"),
        ("next Friday", "2023-05-12"),
        ("tomorrow", "2023-05-09"),
        ("in two weeks", "2023-05-22..2023-05-28"),
        ("last weekend", "2023-05-06..2023-05-07"),
        ("May 2023", "2023-05-01..2023-05-31"),
        ("in February 2024", "2024-02-01..2024-02-29"),
        ("toukokuussa 2023", "2023-05-01..2023-05-31"),
        ("im Mai 2023", "2023-05-01..2023-05-31"),
        ("2023年5月", "2023-05-01..2023-05-31"),
        ("last month", "2023-04-01..2023-04-30"),
        ("viime kuussa", "2023-04-01..2023-04-30"),
        ("先月", "2023-04-01..2023-04-30"),
        ("last December", "2022-12-01..2022-12-31"),
        ("in 2022", "2022-01-01..2022-12-31"),
        ("What was in 2022?", "2022-01-01..2022-12-31"),
        ("In 2022 we moved", "2022-01-01..2022-12-31"),
        ("in 2022 Anna moved", "2022-01-01..2022-12-31"),
        ("the year 2022 budget", "2022-01-01..2022-12-31"),
        ("under 2022 var vi i Oslo", "2022-01-01..2022-12-31"),
        ("on May 20 people came", "2022-05-20"),
        ("May 7 was a Sunday", "2023-05-07"),
        ("明日東京に行く", "2023-05-09"),
        ("昨日奈良に行った", "2023-05-07"),
        ("vuonna 2022", "2022-01-01..2022-12-31"),
        ("2022年に", "2022-01-01..2022-12-31"),
        ("i fjol", "2022-01-01..2022-12-31"),
        ("letztes Jahr", "2022-01-01..2022-12-31"),
        ("去年", "2022-01-01..2022-12-31"),
        ("the past two weeks", "2023-04-24..2023-05-08"),
    ]:
        assert said(written) == [days]


def test_what_only_looks_like_a_time_is_none() -> None:
    for text in [
        "May I come in?",
        "I may go",
        "I march on",
        "8 march on",
        "1984 is a number",
        "room 2022",
        "version 1.2.2023.4",
        "v1.2.2023",
        "10.0.0.1",
        "call 12.05",
        "1.5 years ago",
        "2-3 weeks ago",
        "soon",
        "recently",
        "August Strindberg",
        "viikonloppuna",
        "2023年度",
        "2000年代",
        "wir eilen nach Hause",
        "last. week",
        "99 5 2023",
        "32.1.2023",
        "2023-13-45",
        "skor under 2000 kronor",
        "skor under 1999 kronor",
        "in 2000 words",
        "in 2000 meters",
        "during 1950 pages",
        "not built in a day",
        "Rome was not built in one day",
        "May 20 people come?",
        "Well. May 20 people come?",
        "明日香に会った",
        "明日菜と話した",
        "昨年度の予算",
        "今年度",
    ]:
        assert said(text, "de" if "eilen" in text else "") == []


def test_a_letter_that_case_folding_makes_longer_moves_nothing() -> None:
    for odd in ["Straße", "ﬁle", "İstanbul", "ŉ"]:
        text = f"{odd} {odd}, yesterday"
        (found,) = find_date_ranges(text, MONDAY.date())
        assert text[found.start : found.end] == "yesterday"
        assert found.first == date(2023, 5, 7)


def test_a_language_is_believed_if_a_word_of_it_is_there() -> None:
    for text, language, days in [
        ("eilen Paris", "de", ["2023-05-07"]),
        ("I went yesterday", "fi", ["2023-05-07"]),
        ("Yesterday.", "sv", ["2023-05-07"]),
        ("wir eilen", "de", []),  # whose "wir" says what it is
        ("jeg var i Oslo sidste uge", "sv", ["2023-05-01..2023-05-07"]),  # "var i" is Swedish as well
        ("han var i Oslo förra veckan", "da", ["2023-05-01..2023-05-07"]),
    ]:
        assert said(text, language) == days


def test_where_a_stretch_only_begins_or_ends_is_no_time_asked_for() -> None:
    for text in [
        "before 7 May 2023",
        "since May 2023",
        "until the 7th of May",
        "ennen 7.5.2023",
        "sedan i går",
        "seit gestern",
    ]:
        assert said(text) == []
        assert [days.border for days in find_date_ranges(text, MONDAY.date())] == [True]


def test_a_date_without_a_year_is_the_last_of_a_question_and_the_nearest_of_a_text() -> None:
    assert said("on 20 May") == ["2022-05-20"]
    assert [days.first for days in find_date_ranges("on 20 May", MONDAY.date())] == [date(2023, 5, 20)]
    assert find_date_ranges("on 20 May, yesterday", None) == []  # of which nothing is known


def test_both_readings_of_an_ambiguous_date_are_given() -> None:
    assert said("on 3/4/2023") == ["2023-04-03", "2023-03-04"]
    assert said("on 3/24/2023") == ["2023-03-24"]


def test_a_day_begins_where_the_asker_is() -> None:
    there = timezone(timedelta(hours=3))
    just_after_midnight = datetime(2023, 5, 8, 0, 30, tzinfo=there)  # in UTC it is still the 7th
    (found,) = periods("eilen", just_after_midnight, "fi")
    assert found == Period(datetime(2023, 5, 6, 21, tzinfo=UTC), datetime(2023, 5, 7, 21, tzinfo=UTC))
    assert found.start.tzinfo is UTC


def test_terms_are_the_same_for_the_same_day_however_it_is_written() -> None:
    on = MONDAY.date()
    assert date_terms("I went there yesterday", on, "en") == ("2023-05-07", "2023-05")
    assert date_terms("7. toukokuuta 2023", None, "fi") == date_terms("2023-05-07", None) == ("2023-05-07", "2023-05")
    assert date_terms("viime viikolla", on, "fi") == ("2023-W18",)
    assert set(date_terms("last week and yesterday", on)) <= {*day_terms(date(2023, 5, 7))}
    assert date_terms("last year", on) == ("2022",)
    assert date_terms("in 2022", on) == ()  # a number is a term already
    assert len(date_terms(" ".join(f"{n % 28 + 1}.{n % 12 + 1}.{1900 + n}" for n in range(120)), None)) == 32


def test_the_end_of_the_calendar_raises_nothing() -> None:
    for text in ("yesterday", "last year", "999 years ago", "last week", "in May", "31 December 9999", "1.1.0001"):
        for at in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
            for period in periods(text, at):
                assert period.start < period.end


@given(st.text(alphabet="0123456789.-/ \nmayeilsttwodagoviikko前年月日先週の昨ß", max_size=200))
def test_any_text_gives_whole_days_in_order(text: str) -> None:
    for period in periods(text, MONDAY):
        assert period.start < period.end and period.start.time() == period.end.time() == datetime.min.time()
    found = find_date_ranges(text, MONDAY.date())
    assert all(0 <= days.start < days.end <= len(text) and days.first <= days.last for days in found)
    assert all(one.end <= other.start or (one.start, one.end) == (other.start, other.end)
               for one, other in pairwise(found))  # fmt: skip


@pytest.mark.parametrize("gap", [" ", "\n", " \t\n", "\u3000"])
@pytest.mark.parametrize("text", ["5 May{}x", "May 5{}x", "May{}x", "toukokuun 5{0}päivänä{0}x"])
def test_runs_of_white_space_are_read_once(text: str, gap: str) -> None:
    find_dates(text.format(gap * 500_000))  # hours, if each place of the run were a beginning of another


@pytest.mark.slow
def test_long_hostile_texts_are_read_up_to_a_bound() -> None:
    for piece in [
        "two ",
        "1.1.",
        "week before ",
        "before the ",
        "先週の",
        "5月",
        "may ",
        "9",
        "viime ",
        "5 May        ",
        "May\n",
    ]:
        text = piece * (MAX_TEXT // len(piece) + 1)
        assert find_date_ranges(text + " 7 May 2023", MONDAY.date()) == find_date_ranges(text[:MAX_TEXT], MONDAY.date())


def test_years_of_japanese_eras() -> None:
    for text, day in [
        ("令和5年5月7日に契約", date(2023, 5, 7)),
        ("平成30年4月1日", date(2018, 4, 1)),
        ("昭和60年3月2日", date(1985, 3, 2)),
        ("令和元年5月1日", date(2019, 5, 1)),
        ("23年5月7日", None),  # of which era, it does not say
    ]:
        found = periods(text, datetime(2024, 6, 12, tzinfo=UTC))
        assert [period.start.date() for period in found] == ([day] if day else [])


def _span(first: str, last: str = "") -> tuple[date, date]:
    return date.fromisoformat(first), date.fromisoformat(last or first)


def test_a_phrase_means_days() -> None:
    on = date(2023, 5, 8)  # a Monday
    for kind, number, slots, days in (
        ("ago", 1, Slots(unit=1, n=3), _span("2023-05-05")),
        ("ahead", 2, Slots(unit=2), _span("2023-05-22", "2023-05-28")),
        ("past", 0, Slots(unit=1, n=3), _span("2023-05-05", "2023-05-08")),
        ("past", 0, Slots(unit=2, n=2), _span("2023-04-24", "2023-05-08")),
        ("past", 0, Slots(unit=5, n=1), _span("2022-05-08", "2023-05-08")),
        ("weekday", 1, Slots(weekday=1), _span("2023-05-15")),
        ("weekday", -1, Slots(weekday=1), _span("2023-05-01")),
        ("weekday", 1, Slots(weekday=2), _span("2023-05-09")),
        ("weekday", -1, Slots(weekday=7), _span("2023-05-07")),
        ("of", -1, Slots(weekday=7), _span("2023-05-07")),
        ("of", 0, Slots(weekday=1), _span("2023-05-08")),
        ("named", -1, Slots(month=5), _span("2022-05-01", "2022-05-31")),
        ("named", 0, Slots(month=5), _span("2023-05-01", "2023-05-31")),
        ("named", 0, Slots(month=11), _span("2022-11-01", "2022-11-30")),
        ("week", 0, Slots(), _span("2023-05-08", "2023-05-14")),
        ("weekend", -1, Slots(), _span("2023-05-06", "2023-05-07")),
        ("month", -5, Slots(), _span("2022-12-01", "2022-12-31")),
        ("month", 8, Slots(), _span("2024-01-01", "2024-01-31")),
        ("year", 1, Slots(), _span("2024-01-01", "2024-12-31")),
        ("unknown", 1, Slots(), None),
    ):
        assert relative_dates.resolve(kind, number, slots, on, past=False) == days, (kind, number, slots)
    end_of_march = date(2023, 3, 31)
    month_ago = relative_dates.resolve("past", 0, Slots(unit=4, n=1), end_of_march, past=True)
    assert month_ago == _span("2023-02-28", "2023-03-31")
    assert relative_dates.resolve("in-year", 0, Slots(year=2020), None, past=False) == _span("2020-01-01", "2020-12-31")
    assert relative_dates.resolve("day", 1, Slots(), None, past=False) is None


def test_a_date_without_a_year_is_near() -> None:
    on = date(2023, 5, 8)
    for month, day, at, past, days in (
        (5, 8, on, True, _span("2023-05-08")),
        (5, 9, on, True, _span("2022-05-09")),
        (11, 7, on, False, _span("2022-11-07")),
        (11, 6, on, False, _span("2023-11-06")),
        (2, 29, date(2022, 3, 1), False, _span("2024-02-29")),
        (2, 29, date(1904, 2, 28), True, _span("1896-02-29")),  # eight years before
        (2, 29, date(1896, 3, 1), False, _span("1896-02-29")),
        (2, 0, date(2024, 3, 1), True, _span("2024-02-01", "2024-02-29")),
        (2, 30, on, False, None),
    ):
        assert relative_dates.nearest_occurrence(month, day, at, past) == days, (month, day, at)


def test_numbers_and_years_that_words_mean() -> None:
    english = relative_dates.phrase_tables()["en"]
    words = ("7", "999", "1000", "two", "xyz")
    assert [relative_dates.number_value(word, english) for word in words] == [7, 999, 0, 2, 0]
    years = ("1899", "1900", "2099", "2100", "202", "20230")
    assert [relative_dates.year_value(year) for year in years] == [0, 1900, 2099, 0, 0, 0]


def test_the_length_of_a_range_decides_its_terms() -> None:
    for first, last, relative, terms in (
        ("2023-05-08", "2023-05-08", False, ("2023-05-08", "2023-05")),
        ("2023-05-08", "2023-05-14", False, ("2023-W19",)),
        ("2023-05-09", "2023-05-15", False, tuple(f"2023-05-{day:02}" for day in range(9, 16))),
        ("2023-05-09", "2023-05-16", False, ("2023-05",)),
        ("2023-05-01", "2023-07-31", False, ("2023-05", "2023-06", "2023-07")),
        ("2023-05-01", "2023-08-01", False, ()),
        ("2022-12-30", "2023-01-20", False, ("2022-12", "2023-01")),
        ("2022-01-01", "2022-12-31", True, ("2022",)),
        ("2022-01-01", "2022-12-31", False, ()),
        ("2020-01-01", "2023-12-31", True, ("2020", "2021", "2022")),
        ("2021-01-01", "2022-12-30", True, ()),
    ):
        assert range_terms([relative_dates.DateRange(0, 1, *_span(first, last), relative)]) == terms, (first, last)
    assert day_terms(date(2023, 1, 1)) == ("2023-01-01", "2022-W52", "2023-01")
