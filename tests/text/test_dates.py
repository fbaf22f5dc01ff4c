"""Dates of a text in figures and names of months, and dates as each language writes them."""

from __future__ import annotations

from datetime import datetime

from agentformer.text.dates.notation import Day, find_dates, format_day, is_given, months, strip_accents, weekdays


def test_accents_are_stripped_from_letters_that_have_them() -> None:
    for letter, bare in (
        *(("é", "e"), ("ё", "е"), ("ạ", "a"), ("ἀ", "α"), ("\u1e00", "A")),
        *((letter, letter) for letter in "йЙ각क\u08ff\u0900\u1fff\u2000\u212b"),
    ):
        assert strip_accents(letter) == bare


def test_names_of_months_and_weekdays_may_have_endings_of_eight_letters() -> None:
    for word, numbers in (
        *(("January", {1}), ("dezember", {12}), ("maj", {5}), ("mars", {3}), ("Mar", {3}), ("marts", {3})),
        *(("toukokuu", {5}), ("toukokuussa", {5}), ("toukokuussakaan", {5}), ("toukokuussakaanko", set())),
        ("janua", set()),
    ):
        assert months(word) == numbers, word
    for word, numbers in (
        ("Monday", {1}),
        ("sundays", {7}),
        ("sunnuntaina", {7}),
        ("keskiviikko", {3}),
        ("mon", set()),
    ):
        assert weekdays(word) == numbers, word


def test_a_day_is_written_as_in_its_language() -> None:
    for language, written in (
        ("en", ["8 May 2023", "31 December 2023", "2 January 993"]),
        ("de", ["8. Mai 2023", "31. Dezember 2023", "2. Januar 993"]),
        ("ja", ["2023年5月8日", "2023年12月31日", "993年1月2日"]),
        ("xx", ["2023-05-08", "2023-12-31", "0993-01-02"]),
    ):
        days = [datetime(2023, 5, 8), datetime(2023, 12, 31), datetime(993, 1, 2)]
        assert [format_day(day, language) for day in days] == written


def test_each_notation_has_its_readings() -> None:
    for text, end, readings, sure in (
        ("8.5.2023", 8, [(2023, 5, 8)], True),
        ("8.5.23", 6, [(2023, 5, 8), (1923, 5, 8)], False),
        ("31.12.2023", 10, [(2023, 12, 31)], True),
        ("12/31/2023", 10, [(2023, 12, 31)], True),
        ("3/4/2023", 8, [(2023, 4, 3), (2023, 3, 4)], True),
        ("2023-05-08", 10, [(2023, 5, 8), (2023, 8, 5)], True),
        ("2023.05.08", 10, [(2023, 5, 8), (2023, 8, 5)], False),
        ("8.5.", 4, [(0, 5, 8)], False),
        ("8/5", 3, [(0, 5, 8), (0, 8, 5)], False),
        ("5月", 2, [(0, 5, 0)], True),
        ("5月8日", 4, [(0, 5, 8)], True),
        ("令和5年5月8日", 8, [(2023, 5, 8)], True),
        ("令和元年5月8日", 8, [(2019, 5, 8)], True),
        ("8 May 2023", 10, [(2023, 5, 8)], True),
        ("2023 May 8", 10, [(2023, 5, 8)], True),
        ("May 8", 5, [(0, 5, 8)], True),
        ("May 2023", 8, [(2023, 5, 0)], True),
        ("May 8-10", 8, [(0, 5, 8)], True),
        ("8-10 May", 8, [(0, 5, 8)], True),
        ("8 March", 7, [(0, 3, 8)], True),
        ("August", 6, [(0, 8, 0)], True),  # a name of six letters needs no number
        ("20 August 2023, 5", 14, [(2023, 8, 20)], True),
        ("monday", 6, [(0, 0, 0, 1)], True),
    ):
        (mention, *_) = find_dates(text, loose=True)
        assert (mention.start, mention.end, mention.sure) == (0, end, sure), text
        assert list(mention.readings) == [Day(*reading) for reading in readings], text
    for text in (
        "32.12.2023",
        "8.13.2023",
        "13/13/2023",
        "99年5月8日",
        "元年5月",
        "8 may",
        "on march 8",
        "April",
        "May",
    ):
        assert find_dates(text, loose=True) == [], text
    assert find_dates("8/5") == []
    assert find_dates("monday", days_of_week=False) == []


def test_a_claim_is_given_if_a_known_date_has_all_its_parts() -> None:
    known = [Day(2023, 5, 8), Day(0, 6, 9)]
    for claim, years, given in (
        (Day(2023, 5, 8), (), True),
        (Day(0, 5, 8), (), True),
        (Day(2023, 5), (), True),
        (Day(2023), (), True),
        (Day(2022, 5, 8), (), False),
        (Day(2023, 4, 8), (), False),
        (Day(2023, 5, 9), (), False),
        (Day(2022, 6, 9), (2022,), True),
        (Day(2022, 6, 9), (2021,), False),
        (Day(2022, 5, 8), (2022,), False),
        (Day(weekday=1), (), True),
        (Day(weekday=2), (), False),
    ):
        assert is_given(claim, known, years) is given, (claim, years)
    assert is_given(Day(weekday=3), [Day(weekday=3)], ())
    assert not any(is_given(Day(weekday=number), [Day(2023, 2, 31)], ()) for number in range(1, 8))
