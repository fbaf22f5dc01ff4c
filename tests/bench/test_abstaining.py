"""The measures of `bench.abstaining`, on numbers whose result is known, and on a small set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentformer.settings import Settings
from bench import abstaining, data
from bench.abstaining import Asked, auroc, curve, measure, rows


def asked(kind: str, confidence: float) -> Asked:
    return Asked(kind, "odd", confidence, False)


def test_auroc_counts_pairs_in_order_and_equals_by_half() -> None:
    assert auroc([0.9, 0.8], [0.1, 0.2]) == 1
    assert auroc([0.1], [0.9]) == 0
    assert auroc([0.5, 0.9], [0.5]) == 0.75


def test_the_curve_tells_the_worst_set_of_those_lost() -> None:
    found = {
        "one": [asked("answerable", 0.05), asked("answerable", 0.9), asked("strays", 0.01)],
        "two": [asked("answerable", 0.9), asked("strays", 0.9)],
    }
    told = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in curve(found)}
    assert told["0.00"] == ["0.000", "0.000", "-", "-", "-", "0.000"]
    assert told["0.10"] == ["0.250", "0.500", "-", "-", "-", "0.500"]


def test_each_kind_of_question_is_asked_of_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["The caretaker keeps the keys in the cupboard.", "The crane costs 95 euros.", "Tea is served at four."]
    corpus = [{"id": f"p{n}", "text": text, "meta": {"doc": n // 2}} for n, text in enumerate(texts)]
    queries = [
        {"id": "q0", "text": "Who keeps the keys?", "relevant": ["p0"]},
        {"id": "q1", "text": "What does the crane cost?", "relevant": ["p1"]},
    ]
    impossible = [{"id": "u0", "text": "Who keeps the cupboard's cats?", "relevant": [], "meta": {}}]
    (tmp_path / "small").mkdir()
    for name, lines in (("corpus", corpus), ("queries", queries), ("queries_unanswerable", impossible)):
        (tmp_path / "small" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    for module in (data, abstaining):
        monkeypatch.setattr(module, "DATA", tmp_path)
    found = measure("small", Settings(embedder="hashing"), 0)
    kinds = {kind: [one for one in found if one.kind == kind] for kind in ("answerable", *abstaining.KINDS)}
    assert {kind: len(each) for kind, each in kinds.items()} == {
        "answerable": 2, "adversarial": 1, "taken out": 2, "elsewhere": 2, "strays": 0
    }  # fmt: skip
    assert [one.half for one in kinds["answerable"]] == ["even", "odd"]
    for sure, taken in zip(kinds["answerable"], kinds["taken out"], strict=True):
        assert sure.confidence > 0.5 > taken.confidence
    assert next(rows("small", found, 0.5)).split("|")[5].strip() == "0.000"
