"""The measures of `bench.answers`, on numbers whose result is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import agentformer
from agentformer.rag.answer.confidence import QuoteFeatures
from agentformer.types import Scope
from bench import answers
from bench.answers import Outcome, calibration_error, honesty, measure, reliability, row, times
from bench.answers_fit import Judged, confidence_fitted, confidences_by_parts
from bench.data import DataSet, Row


def outcome(confidence: float, right: bool, *, declined: bool = False, taken_out: bool = False) -> Outcome:
    return Outcome(1, True, right, right, 1, 40, confidence, declined, taken_out)


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    honest = [outcome(0.75, right) for right in (True, True, True, False)]
    assert calibration_error(honest) == 0
    assert calibration_error([outcome(0.95, False)]) == pytest.approx(0.95)
    assert calibration_error([*honest, *(outcome(0.25, True) for _ in range(4))]) == pytest.approx(0.375)
    assert reliability(honest) == [["0.7 to 0.8", "4", "0.75", "0.75"]]


def test_a_row_counts_declined_and_wrong_answers_and_questions_without_their_documents() -> None:
    outcomes = [outcome(0.9, True), outcome(0.9, False), outcome(0.05, True, declined=True)]
    outcomes += [outcome(0.05, False, declined=True, taken_out=True), outcome(0.85, False, taken_out=True)]
    cells = row(outcomes).split(" | ")
    assert (cells[0], cells[2], cells[6]) == ("3", "0.333", "0.500")  # asked, right and not declined, lost
    assert (cells[8], cells[9], cells[11]) == ("2", "0.500", "0.400")  # without, declined, sure and wrong


def test_times_are_medians_and_their_ratios() -> None:
    assert times([(0.01, 0.05, 0.1), (0.01, 0.06, 0.2), (0.5, 0.9, 0.9)]) == "10.0 ms | 60.0 ms | 200.0 ms | 6.0 | 20.0"


def test_the_fit_of_the_confidence_finds_what_made_the_answers() -> None:
    rng = np.random.default_rng(3)
    judged = []
    for n in range(8000):
        grounds = QuoteFeatures(rng.uniform(0.1, 0.9), rng.uniform())
        logit = float(np.dot((1.2, 0.5, 1.6, 0.0), grounds.values))
        judged.append(Judged(2 * n, grounds, bool(rng.uniform() < 1 / (1 + np.exp(-logit)))))
    elsewhere = [Judged(0, QuoteFeatures(0.9, 1.0, True), False)] * 4000  # left out of the fit
    assert confidence_fitted({"one": [*judged, *elsewhere]}) == pytest.approx([1.2, 0.5, 1.6, 0.0], abs=0.25)


def test_questions_about_one_passage_are_in_one_part() -> None:
    grounds = QuoteFeatures(0.5, 0.5)
    parts = {Judged(n, grounds, True, frozenset({"a.txt"})).part for n in range(20)}
    assert len(parts) == 1
    assert len({Judged(0, grounds, True, frozenset({f"{n}.txt"})).part for n in range(40)}) == 5


def test_the_code_and_fits_without_the_passage_are_compared() -> None:
    rng = np.random.default_rng(5)
    judged = []
    for n in range(2000):
        grounds = QuoteFeatures(rng.uniform(0.1, 0.9), rng.uniform())
        judged.append(Judged(n, grounds, bool(rng.uniform() < grounds.confidence), frozenset({f"{n % 50}.txt"})))
    compared = list(confidences_by_parts({"one": judged}))
    assert len(compared) == 1000, "only even numbers"
    ((name, code, parts, *wrong),) = honesty(compared)
    assert name == "one" and float(code) < 0.06 and float(parts) < 0.06 and len(wrong) == 2
    surer = [("one", 0.95, parts, right) for _, _, parts, right in compared]
    assert float(honesty(surer)[0][1]) > 0.2 and float(honesty(surer)[0][3]) == pytest.approx(
        np.mean([not right for *_, right in compared]), abs=0.001
    )


def test_a_kept_set_is_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = [Row("p1", "The crane costs 95 euros.", meta={"speaker": "Aino", "date_time": "3 May 2026"})]
    queries = [Row("q1", "What does the crane cost?", ("p1",), {"answers": ["95 euros"]})]
    monkeypatch.setattr(answers, "load", lambda name: DataSet(name, corpus, queries))
    runs = [measure("chat", embedder="hashing", stores=tmp_path).outcomes for _ in range(2)]
    assert [[outcome.first for outcome in run] for run in runs] == [[True], [True]]
    places = {"index_dir": tmp_path / "chat" / "index", "upload_dir": tmp_path / "chat" / "up"}
    with agentformer.connect(embedder="hashing", **places) as af:
        assert af.backend.count(Scope()) == 1
