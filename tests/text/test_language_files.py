"""The files of the languages follow one schema: the lists of `en.toml`."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import Stemmer

from agentformer.text import language_files as files
from agentformer.text.dates.notation import format_day
from agentformer.text.facts.statement_words import phrase_kinds

LANGUAGES = files.language_files()
ENGLISH = LANGUAGES["en"]
EXPLAINED = set(
    re.findall(r"`([^`]+)`", Path(files.__file__).with_name("languages").joinpath("en.toml").read_text("utf-8"))
)
SLOTS = {"{n}", "{unit}", "{weekday}", "{month}", "{year}"}
ADDED = {"comparison", "forms"}  # sections that add to the lists of the section `statements`
SECTIONS = {name for name, kinds in ENGLISH.items() if isinstance(kinds, dict)} - {"ratios"}
WRITTEN = {"date_months", "nothing_found", "documents", "memories", "or", "nearest"}  # with capitals, as in a text


def lists_of(code: str) -> dict[str, str]:
    """Return all lists of a language, by section and kind."""
    found = {}
    for section, kinds in LANGUAGES[code].items():
        if isinstance(kinds, dict):
            for kind, value in kinds.items():
                texts = value if isinstance(value, dict) else {"": value}
                found |= {f"{section}.{kind}.{name}": text for name, text in texts.items() if isinstance(text, str)}
    return found


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_file_has_only_what_the_english_one_explains(code: str) -> None:
    own: dict[str, Any] = dict(LANGUAGES[code])
    assert own["name"]
    assert own.keys() <= ENGLISH.keys() | {"spelling"}
    assert set(files.items_of(own.get("traits", ""))) <= EXPLAINED
    for section in own.keys() & SECTIONS:
        assert own[section].keys() <= ENGLISH[section].keys() | {"date_months", "of"}, section
    for kind, numbers in own.get("time", {}).items():
        assert isinstance(numbers, str) or all(re.fullmatch(r"-?\d+", number) for number in numbers), kind


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_list_has_each_item_once_and_in_lower_case(code: str) -> None:
    for place, text in lists_of(code).items():
        kind = place.split(".")[1]
        if kind in WRITTEN or kind == "date":
            continue
        items = files.items_of(text)
        assert [item for item in items if item != item.lower()] == [], place
        assert [item for item in items if "_" in item] == [], place
        assert len(text.split(",")) - len(items) <= 1, f"{place} has an empty item"
        if kind not in ("months", "weekdays"):
            assert sorted({item for item in items if items.count(item) > 1}) == [], place
        assert set(re.findall(r"\{.*?\}", text)) <= SLOTS, place


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_list_that_adds_to_another_repeats_none_of_its_items(code: str) -> None:
    listed = lists_of(code)
    for section in ADDED:
        for kind in LANGUAGES[code].get(section, {}):
            added, items = (files.items_of(listed.get(f"{name}.{kind}.", "")) for name in (section, "statements"))
            assert set(added) & set(items) == set(), kind


def test_words_of_statements_are_compared_as_a_text_is_folded() -> None:
    """German "heißt" stands in a folded text as "heisst"."""
    for section in ADDED:
        assert all(word == word.casefold() for phrase in phrase_kinds(section, LANGUAGES) for word in phrase)


@pytest.mark.parametrize("code", LANGUAGES)
def test_months_weekdays_dates_and_sentences_are_whole(code: str) -> None:
    own = LANGUAGES[code]
    calendar = own.get("calendar", {})
    assert len(files.items_of(calendar.get("months", ""))) in (0, 12)
    assert len(files.items_of(calendar.get("weekdays", ""))) in (0, 7)
    assert "2026" in format_day(datetime(2026, 11, 30), code)
    if answer := own.get("answer"):
        assert answer.keys() == ENGLISH["answer"].keys()
        assert "0.50" in answer["nearest"].format(0.5)
        assert "HERE" in answer["nothing_found"].format("HERE")
    if "stemmer" in own:
        assert own["stemmer"] in Stemmer.algorithms()
    assert len(own.get("letter_frequencies", range(26))) == 26
