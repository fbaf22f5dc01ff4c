"""The table of quality: what stands in its rows, and what a comparison of two runs calls a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentformer.settings import Settings
from bench.quality import sets, table


def result(name: str, *ranks: int | None, category: str = "") -> dict[str, Any]:
    return {"id": name, "category": category, "ranks": {mode: list(ranks) for mode in table.SIDES}}


def run(*results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"club": {"passages": 9, "modes": [*table.SIDES], "results": list(results)}}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_questions_of_several_hops_have_a_row_of_their_own() -> None:
    told = run(result("1", 1, category="multi-hop"), result("2", None, category="single"), result("3", 7))
    assert [(row.name, len(row.questions)) for row in table.rows(told)] == [
        ("club", 3), ("club, multi-hop", 1), ("club, others", 2)
    ]  # fmt: skip
    assert [row.name for row in table.rows(run(result("1", 1)))] == ["club"]


def test_recall_stands_by_share_and_by_any_and_by_halves() -> None:
    told = run(result("1", 1, None), result("2", 7, None))
    head, _, row = table.recall_table(told, ["lexical", "dense", "hybrid"])
    shown = dict(zip(cells(head), cells(row), strict=True))
    assert shown["R@5 words"].startswith("0.250 ±") and shown["R@10 hybrid"] == "0.500 ±0.000"
    assert (shown["any@5 dense"], shown["any@10 dense"], shown["to the better side"]) == ("0.500", "1.000", "+0.000")
    head, _, row = table.halves_table(told, ["hybrid"])
    assert cells(row) == ["club", "0.500, 0.000", "0.500, 0.500"]


def test_a_comparison_is_of_the_questions_of_both_and_stars_what_is_no_chance() -> None:
    former = run(*(result(str(n), None) for n in range(40)), result("gone", 1))
    now = run(*(result(str(n), 1 if n < 20 else None) for n in range(40)), result("new", 1))
    head, _, row = table.comparison(now, former)
    shown = dict(zip(cells(head), cells(row), strict=True))
    assert (shown["n"], shown["R@5 hybrid"]) == ("40", "+0.500*")
    once = run(*(result(str(n), 1 if n == 3 else None) for n in range(40)))
    assert "+0.025 " in [*table.comparison(once, former)][2]


def test_a_set_is_measured_and_its_texts_are_embedded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "DATA", tmp_path)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    things = ("harbour", "pier", "crane")
    corpus = [{"id": thing, "text": f"The {thing} was painted."} for thing in things]
    queries = [
        {"id": str(n), "text": f"Who painted the {thing}?", "relevant": [thing]} for n, thing in enumerate(things)
    ]
    (tmp_path / "club").mkdir()
    for name, rows in (("corpus", corpus), ("queries", [*queries, {"id": "x", "text": "?"}])):
        (tmp_path / "club" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told: list[str] = []
    monkeypatch.setattr("builtins.print", lambda line, **options: told.append(line))
    found = [sets.measure("club", Settings(embedder="hashing"), ("lexical", "dense")) for _ in range(2)]
    assert [each.figure("recall@1", "lexical").value for each in found] == [1.0, 1.0]
    assert [line.rpartition("; ")[2] for line in told] == ["6 texts embedded", "0 texts embedded"]
