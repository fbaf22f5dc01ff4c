"""Facts in texts: numbers, times, dates and contradictions, and the limits of core blocks and of hits."""

from __future__ import annotations

from typing import cast

import pytest

from agentformer.errors import InvalidInput
from agentformer.memory.hierarchical import CoreMemory
from agentformer.text.facts.numbers_and_dates import conflict, facts_of, find_numbers, is_year, number_values
from agentformer.types import MemoryBackend


def test_a_number_has_each_reading_that_its_spelling_allows() -> None:
    for text, readings in [
        ("23:59", ["at 23:59", "23 59"]),
        ("24:00", ["0 24"]),
        ("9:60", ["60 9"]),
        ("0:30", ["at 0:30", "0 30"]),
        ("1:00", ["at 1:00", "at 13:00", "0 1"]),
        ("12:00", ["at 12:00", "at 0:00", "0 12"]),
        ("13:00", ["at 13:00", "0 13"]),
        ("12 am", ["at 0:00", "12"]),
        ("12 pm", ["at 12:00", "12"]),
        ("5 pm", ["at 17:00", "5"]),
        ("24 pm", ["24"]),
        ("9.30", ["at 9:30", "at 21:30", "9.3"]),
        ("9:05:07", ["at 9:05", "at 21:05", "5 7 9"]),
        ("9:5", ["5 9"]),
        ("1,234", ["1234", "1.234"]),
        ("12,34", ["12.34"]),
        ("1.234,50", ["1234.5", "1 234 50"]),
        ("1 234,5", ["1234.5", "1 234 5"]),
        ("1'234'567", ["1234567", "1 234 567"]),
        ("1.2.3", ["1.2.3", "1 2 3"]),
        ("1,2,3", ["1 2 3"]),
        ("007", ["7"]),
        ("1" * 40, ["1" * 40]),
        ("1" * 41, []),
    ]:
        found = [" ".join(sorted(reading)) for number in find_numbers(text) for reading in number.readings]
        assert found == readings, text


def test_a_minus_sign_belongs_to_a_number_only_at_its_beginning() -> None:
    for text, values in [("-5", {"-5"}), ("at -5", {"-5"}), ("a-5", {"5"}), ("a - 5", {"5"}), ("1-5", {"1", "5"})]:
        assert number_values(text) == values, text
    years = ("190", "1899", "1900", "2099", "2100", "19000")
    assert [is_year(year) for year in years] == [False, False, True, True, False, False]


def test_facts_that_differ_in_one_respect_contradict_each_other() -> None:
    for one, other, kind in [
        ("The fee is 5 euros", "The fee is 6 euros", "number"),
        ("The fee is 5 euros", "The fee is 5 euros for 2", ""),
        ("Room 12 has 5 chairs", "Room 14 has 6 chairs", ""),
        ("In 2023 the fee was 5", "In 2024 the fee was 6", ""),
        ("In 2023 the fee was 5", "In 2024 there was a fee", ""),
        ("It opened in 2023", "It opened in 2024", "number"),
        ("It is on 3 May 2024", "It is on 4 May 2024", "date"),
        ("It is on 3 May 2024", "It is in May 2024", ""),
        ("It is on Monday", "It is on Tuesday", "date"),
        ("It costs 5 on Monday", "It costs 6 on Tuesday", ""),
        ("It is open", "It isn't open", "negation"),
        ("It is open at 5", "It isn't open", "negation"),
        ("It is open", "It is open", ""),
    ]:
        pair = facts_of(one, "en"), facts_of(other, "en")
        assert conflict(*pair) == conflict(*reversed(pair)) == kind, (one, other)


def test_a_core_block_may_have_as_many_tokens_as_its_limit() -> None:
    core = CoreMemory(cast(MemoryBackend, None), len, block_tokens=5)
    core.check("persona", "12345")
    with pytest.raises(InvalidInput, match="would have 6 tokens, 1 over its limit of 5"):
        core.check("persona", "123456")
