"""Combining marks and long runs in a text: no empty term leaves the analysis, and no step takes quadratic time."""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentformer.memory import near_duplicates
from agentformer.text.analysis import QueryTerms, Terms, text_terms
from agentformer.text.facts.numbers_and_dates import facts_of
from agentformer.text.facts.quantities import numbered_things
from agentformer.text.languages.detection import detect_language
from agentformer.text.normalize import MAX_MARKS, clean, clean_plain, normalize_pages, normalized
from agentformer.text.prompt_quoting import escape_text
from agentformer.text.question_types import is_question
from agentformer.text.splitting import sentence_spans

LANGUAGES = ("", "de", "en", "fi", "ja", "sv")


@cache
def characters() -> dict[str, list[str]]:
    """One character of each combining class, and the zeros of all scripts."""
    classes: dict[int, str] = {}
    digits = []
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if combining := unicodedata.combining(character):
            classes.setdefault(combining, character)
        elif character.isdecimal() and unicodedata.decimal(character) == 0:
            digits.append(character)
    return {"marks": list(classes.values()), "digits": digits}


def check(terms: Terms) -> None:
    for term in (*terms.stems, *terms.surface, *terms.parts):
        assert term.partition("~")[2] if "~" in term[:3] else term
        assert not any(character.isspace() for character in term)


def check_text(text: str) -> None:
    for language in LANGUAGES:
        check(text_terms(text, language))
        check(QueryTerms.of(text).terms((language, "en")))


def test_a_mark_of_every_class_beside_a_digit_of_every_script_leaves_no_empty_term() -> None:
    marks, digits = characters()["marks"], characters()["digits"]
    assert len(marks) > 50 and len(digits) > 50
    for mark in marks:
        check_text(f"0.3{mark} {mark}4 a{mark} _{mark}x x3{mark}y {mark} -{mark}-")
    for digit in digits:
        check_text(f"{digit}\u0305 {digit}.{digit}\u0301 x{digit}\u0327y")


@pytest.mark.slow
@given(
    st.text(
        alphabet=st.one_of(
            st.sampled_from("a3 _-.:'\u0301\u0305\u0327\u0344\u0903\u20dd\u200d\U0001f468"), st.characters()
        )
    )
)
@example("One third is 0.3\u0305")
@example("\u0345\u0301")
@example(("a" + "\u0301" * 40) * 20)
@example("ab-" + "\u0301" * 200)
@example("'\u0301's")
@example("\U0001f468\u200d\U0001f469\u200d\U0001f467 3\ufe0f\u20e3")
def test_no_text_has_an_empty_term(text: str) -> None:
    check_text(text)


@given(st.text(alphabet="ae\u0300\u0301\u0327\u0344 ", max_size=200))
def test_normalization_is_that_of_python_except_in_long_runs(text: str) -> None:
    longest = max(
        (len(run) for run in text.replace("\u0344", "\u0300\u0300").translate({97: " ", 101: " "}).split()), default=0
    )
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        if longest <= MAX_MARKS:
            assert normalized(form, text) == unicodedata.normalize(form, text)
        joined = normalized(form, text).replace("\u034f", "")
        assert unicodedata.normalize("NFD", joined) == unicodedata.normalize("NFD", text) or longest > MAX_MARKS


def test_a_run_of_marks_is_divided_after_thirty() -> None:
    text = "a" + "\u0301" * (MAX_MARKS + 1)
    assert normalized("NFD", text) == "a" + "\u0301" * MAX_MARKS + "\u034f\u0301"
    assert normalized("NFD", text[:-1]) == text[:-1]


def test_every_character_that_becomes_marks_counts_as_these_marks() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if not unicodedata.combining(unicodedata.normalize("NFKD", character)[:1] or "a"):
            continue
        longest = run = 0
        for mark in unicodedata.normalize("NFKD", normalized("NFKD", "a" + character * 70)):
            run = run + 1 if unicodedata.combining(mark) else 0
            longest = max(longest, run)
        assert longest <= MAX_MARKS, hex(code)


PATHS: dict[str, Callable[[str], object]] = {
    "analysis": lambda text: text_terms(text, "en"),
    "query": lambda text: QueryTerms.of(text).terms(("en", "fi")),
    "language": detect_language,
    "clean": clean,
    "clean_plain": clean_plain,
    "sentences": sentence_spans,
    "pages": lambda text: normalize_pages([text, "a-\nb"]),
    "numbered things": lambda text: numbered_things(text, "en"),
    "questions": is_question,
    "quoting": escape_text,
    "duplicates": near_duplicates.normalize,
    "facts": lambda text: facts_of(text, "en"),
}
FAMILIES = {
    "marks of one class": "\u0301",
    "marks of two classes": "\u0301\u0327",
    "marks with a decomposition": "\u0344",
    "marks after a digit": "3" + "\u0305" * 40,
    "marks after a letter": "a" + "\u0301" * 400,
    "enclosing marks": "\u20dd",
    "marks without a combining class": "\u0f73",
    "letters that become marks": "\u0301\uff9e",
    "emoji": "\U0001f468\u200d",
    "hyphens and marks": "-\u0301",
    "apostrophes and marks": "a'\u0301",
    "letters": "a",
    "digits": "7",
    "spaces": " ",
    "question marks": "?",
    "line separators": "\u2028",
    "footnotes": ".¹²³" + "¹" * 40 + "x",
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_time_of_every_path_is_linear(family: str) -> None:
    unit = FAMILIES[family]
    small, large = (unit * (size // len(unit)) + "x" for size in (5_000, 20_000))
    for name, path in PATHS.items():
        ratios = (_ratio(path, small, large) for _ in range(3))  # another process may disturb one measurement
        assert any(ratio < 10 for ratio in ratios), f"{name}: four times the text takes over 10 times as long"


def _ratio(path: Callable[[str], object], small: str, large: str) -> float:
    """Return the ratio of the processor times. A quadratic path has 16, a linear path 4."""
    times = []
    for text in (small, large):
        start = time.thread_time()
        path(text)
        times.append(time.thread_time() - start)
    return times[1] / max(times[0], 0.002)
