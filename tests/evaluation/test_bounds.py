"""Limits of the evaluation, with a value on each side of each limit."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentformer.errors import InvalidInput
from agentformer.evaluation import dataset as reading
from agentformer.evaluation.dataset import Halves, Question, parse_moment, read_dataset
from agentformer.evaluation.memory_evaluation import evaluate_opened
from agentformer.evaluation.metrics import Interval, difference, intervals, metric
from agentformer.evaluation.optimizing import run
from agentformer.evaluation.optimizing.grid import Level, is_improvement
from agentformer.evaluation.run import EvaluationOptions
from agentformer.evaluation.synthetic import Rarity, Source, build, cloze, usable
from tests.evaluation.conftest import Opens


def question_words(sentence: str) -> int | None:
    """Return the number of words of the cloze question about a sentence, or None if there is no question."""
    question = cloze(sentence, "", Rarity([(sentence, "")]))
    return None if question is None else len(question.text.split())


def words(count: int) -> str:
    return " ".join(f"{chr(97 + n // 26)}{chr(97 + n % 26)}word" for n in range(count))


def test_a_cloze_question_has_four_to_eight_words_of_a_sentence_of_at_most_sixty() -> None:
    cases = {4: None, 5: 4, 8: 7, 9: 8, 10: 8, 60: 8, 61: None}
    assert {count: question_words(f"{words(count)}.") for count in cases} == cases
    assert [question_words(f"Alpha beta gamma delta {word}.") for word in ("o", "ox", "灯")] == [None, 4, 4]
    single = cloze("alpha beta gamma delta e epsilon.", "", Rarity([]))  # a single letter is no word of a question
    assert single is not None and "e" not in single.text.split() and len(single.text.split()) == 4


def test_a_passage_of_forty_characters_is_long_enough_for_a_question() -> None:
    text = "Amber boats carry dried eels from Fjaere"
    assert len(text) == 40
    assert [question.text for question in build([Source("a", f" {text} ")], 1).questions]
    for sources, count in (([Source("a", text[:-1])], 1), ([Source("a", text)], 0)):
        with pytest.raises(InvalidInput, match="synthetic"):
            build(sources, count)


def test_a_question_may_have_300_characters_and_share_seven_words_with_its_passage() -> None:
    passage, thai = words(9), "ชาวบ้านช่วยกันทาสีโรงเก็บเรือ"
    for text, language, accepted in [
        ("x" * 299 + "?", "en", True),
        ("x" * 300 + "?", "en", False),
        (f"{words(7)}?", "en", True),
        (f"{words(8)}?", "en", False),
        (f"Why {words(8)}?", "en", False),
        (f"{words(8)} xy?", "en", False),
        (thai[:14] + "?", "th", True),
        (thai[:16] + "?", "th", False),
        ("?", "en", False),
    ]:
        assert usable(text, thai if language == "th" else passage, language) is accepted, text


def test_numbers_are_moments_from_1973_on_in_seconds_and_in_milliseconds() -> None:
    for value, moment in [
        (10**8 - 1, None),
        (10**8, datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC)),
        (10**11 - 1, datetime(5138, 11, 16, 9, 46, 39, tzinfo=UTC)),
        (10**11, datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC)),
        (10**14 - 1000, datetime(5138, 11, 16, 9, 46, 39, tzinfo=UTC)),
        (10**14, None),
        ("20230508", datetime(2023, 5, 8, tzinfo=UTC)),
        ("123456789", datetime(1973, 11, 29, 21, 33, 9, tzinfo=UTC)),
    ]:
        assert parse_moment(value) == moment, value


def test_a_time_of_day_needs_minutes_or_a_half_of_the_day() -> None:
    for clock, expected in [
        ("12:05 pm", "12:05:00"),
        ("12 am", "00:00:00"),
        ("1 pm", "13:00:00"),
        ("11:59:58 pm", "23:59:58"),
        ("0:30 am", "00:00:00"),  # not a time, so the day begins at midnight
        ("7", "00:00:00"),
        ("7.05", "07:05:00"),
        ("24:00", "00:00:00"),
    ]:
        moment = parse_moment(f"May 8, 2023 at {clock}")
        assert moment is not None and moment.isoformat() == f"2023-05-08T{expected}+00:00", clock
    date = "8 May 2023"
    assert parse_moment(date + "." * (100 - len(date))) == datetime(2023, 5, 8, tzinfo=UTC)
    assert parse_moment(date + "." * (101 - len(date))) is None


def test_lines_and_notes_of_a_folder_of_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "corpus.jsonl"
    row = json.dumps({"id": "a", "text": "x", "meta": {"date": "05/08/2023"}}) + "\n"
    corpus.write_text(row)
    monkeypatch.setattr(reading, "MAX_LINE", len(row))
    assert read_dataset(tmp_path, questions=False).notes == (
        "1 dates of corpus.jsonl cannot be read and were ignored, such as '05/08/2023'",
    )
    corpus.write_text(" " + row)
    with pytest.raises(InvalidInput, match=rf"corpus\.jsonl:1: the line has more than {len(row)} bytes"):
        read_dataset(tmp_path, questions=False)
    for count, more in ((10, ""), (11, "; and 1 more lines")):
        corpus.write_text("{\n" * count)
        with pytest.raises(InvalidInput) as refused:
            read_dataset(tmp_path, questions=False)
        assert str(refused.value).endswith(f"write one object per line{more}")


def test_options_and_metrics_accept_the_ends_of_their_ranges() -> None:
    assert [EvaluationOptions(limit=limit).limit for limit in (1, 100)] == [1, 100]
    for limit in (0, 101):
        with pytest.raises(InvalidInput, match="limit"):
            EvaluationOptions(limit=limit)
    assert (metric("recall@1")((1,)), metric("recall@1000")((1000,))) == (1.0, 1.0)
    with pytest.raises(InvalidInput, match="metric"):
        metric("recall@1001")


def test_a_difference_is_significant_if_its_interval_does_not_contain_zero() -> None:
    for low, high, significant in [(0, 1, False), (-1, 0, False), (-1, 1, False), (0.01, 1, True), (-1, -0.01, True)]:
        assert Interval(0.5, low, high).significant is significant, (low, high)
    assert intervals([]) == []
    assert difference([1.0, 2.0], [0.0, 0.0]).value == 1.5


def test_draws_are_made_in_parts_even_of_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = intervals([[0.0, 1.0, 2.0]], resamples=5)
    monkeypatch.setattr("agentformer.evaluation.metrics._AT_ONCE", 2)
    assert intervals([[0.0, 1.0, 2.0]], resamples=5) == whole


def test_an_improvement_is_greater_than_its_standard_error() -> None:
    for gains, improves in [
        ([1.0, 1.0], True),
        ([0.0, 0.0], False),
        ([1.0], False),  # the error of one question is unknown
        ([2.0, 0.0], False),  # the gain is equal to the error
        ([2.1, 0.1], True),
        ([-1.0, -1.0], False),
        ([], False),
    ]:
        assert is_improvement(gains, [0.0] * len(gains)) is improves, gains


def test_an_optimisation_needs_twenty_questions_and_five_in_each_half(monkeypatch: pytest.MonkeyPatch) -> None:
    level: Level
    for count, cut, level, sizes in [
        (20, 5, "quick", {"development": 5, "test": 15}),
        (20, 15, "full", {"development": 15, "test": 5}),
        (20, 4, "quick", "one half has too few"),
        (20, 16, "quick", "one half has too few"),
        (19, 9, "quick", "there are only 19"),
        (1, 1, "eval", {"development": 1}),
        (1, 0, "eval", {"test": 1}),
        (0, 0, "eval", "no question has a relevant passage"),
    ]:
        divided = [Question(str(n), "?", ("p",)) for n in range(count)]
        two = Halves(tuple(divided[:cut]), tuple(divided[cut:]))
        monkeypatch.setattr(run, "halves", lambda questions, seed, two=two: two)
        if isinstance(sizes, str):
            with pytest.raises(InvalidInput, match=sizes):
                run.question_halves(divided, level)
        else:
            halves = run.question_halves(divided, level)
            assert {half: len(questions) for half, questions in halves.items()} == sizes


def test_an_optimisation_uses_known_settings_and_at_most_ten_passages() -> None:
    assert run.OptimizeOptions(metric="recall@10", only=("fusion",)).metric == "recall@10"
    with pytest.raises(InvalidInput, match="at most 10 passages"):
        run.OptimizeOptions(metric="recall@11")
    with pytest.raises(InvalidInput, match="'speed' is not a setting that can be optimised; known settings are chunk"):
        run.OptimizeOptions(only=("fusion", "speed"))


def test_unknown_names_are_listed_up_to_five(opens: Opens) -> None:
    backend = opens().backend
    for count, more in ((5, "'n4'; use"), (6, "'n4' and 1 more; use")):
        question = {"text": "?", "relevant": [f"n{n}" for n in range(count)]}
        with pytest.raises(InvalidInput, match=more):
            evaluate_opened(backend, [question])
