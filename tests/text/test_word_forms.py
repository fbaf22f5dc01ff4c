"""Other forms of the words of a question."""

from __future__ import annotations

import pytest

from agentformer.text.languages.detection import stem
from agentformer.text.question_types import same_meaning
from agentformer.text.word_forms import similar_forms


@pytest.mark.parametrize(
    ("language", "asked", "written"),
    [
        ("en", "partners", "partnership"),  # begins alike
        ("fi", "sauna", "saunavuoro"),  # begins a compound
        ("sv", "avgift", "årsavgift"),  # ends a compound
        ("de", "wasser", "trinkwasser"),
        ("en", "founded", "established"),  # means about the same
        ("fi", "maksaa", "hinta"),
        ("no", "heter", "navnet"),
    ],
)
def test_a_word_has_other_forms(language: str, asked: str, written: str) -> None:
    term, other = (f"{language}~{stem(word, language)}" for word in (asked, written))
    found = similar_forms({term}, {other, f"{language}~zebra"})
    assert set(found) == {term} and set(found[term]) == {other}
    assert 0.5 < found[term][other] < 1


@pytest.mark.parametrize(
    ("language", "asked", "written"),
    [("en", "car", "carpet"), ("en", "sun", "sunday"), ("fi", "tie", "tietokone"), ("en", "room303", "room304")],
)
def test_short_words_codes_and_words_without_compounds_have_none(language: str, asked: str, written: str) -> None:
    assert similar_forms({f"{language}~{asked}"}, {f"{language}~{written}"}) == {}


def test_a_word_is_no_other_form_of_itself() -> None:
    assert similar_forms({"en~cost"}, {"en~cost"}) == {}


def test_words_of_the_same_meaning_are_stems_of_their_language() -> None:
    groups = same_meaning("en")
    assert "en~price" in groups["en~cost"] and "en~cost" in groups["en~price"]
    assert all(term.startswith("en~") for group in groups.values() for term in group)
    assert same_meaning("xx") == {}
