"""The sets of quality that are not told by recall are measured as they are asked for, and what is timed is fair."""

from __future__ import annotations

import gc
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import agentformer
from agentformer.settings import Settings
from agentformer.text import analysis
from agentformer.text.dates import relative as relative_dates
from agentformer.types import Query
from bench import abstaining, data, pages, precision
from bench.quality import __main__, others, table, timing

CLUB = ["The caretaker keeps the keys in the cupboard.", "The crane costs 95 euros.", "Tea is served at four."]
ASKED = ["Who keeps the keys?", "What does the crane cost?", "When is tea served?", "Who keeps the cupboard?"]
BELIEF = {
    "type": "preference", "user_id": precision.USER, "scope": ["home"], "canonical_name": "tea", "aliases": [],
    "why_it_matters": "", "pinned": False, "resolved_at": None, "superseded_by": None,
}  # fmt: skip


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set of each kind, and another `abstaining` one that is the club's."""
    for module in (data, abstaining, pages, __main__):
        monkeypatch.setattr(module, "DATA", tmp_path)
    monkeypatch.setattr(others, "_ABSTAINING", ("club",))
    club = [{"id": f"p{n}", "text": text, "meta": {"doc": n}} for n, text in enumerate(CLUB)]
    asked = [{"id": f"q{n}", "text": text, "relevant": [f"p{n % 3}"]} for n, text in enumerate(ASKED)]
    _write(tmp_path / "club", club, asked)
    case = {"category": "x", "scope": ["home"], "expect": {"relevantBeliefs": {"shouldOnlyInclude": ["b0"]}}}
    beliefs = [{"id": "b0", "text": "Green tea at four.", "meta": BELIEF}]
    _write(tmp_path / precision.SET, beliefs, [{"id": f"c{n}", "text": "tea", "meta": case} for n in range(4)])
    (tmp_path / "pdfs" / "files").mkdir(parents=True)
    (tmp_path / "pdfs" / "files" / "rules.txt").write_text("\n".join(CLUB), encoding="utf-8")
    _write(tmp_path / "nordic_pdf_qa", [], asked)
    return tmp_path


def _write(folder: Path, corpus: list[dict[str, Any]], queries: list[dict[str, Any]]) -> None:
    folder.mkdir()
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("name", others.OTHERS)
def test_settings_and_sample_reach_every_set(name: str, sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Settings] = []

    class Watched(agentformer.AgentFormer):
        def __init__(self, settings: Settings) -> None:
            opened.append(settings)
            super().__init__(settings)

    monkeypatch.setattr(agentformer, "AgentFormer", Watched)
    monkeypatch.setattr(agentformer.factory, "AgentFormer", Watched)
    settings = Settings(embedder="hashing", fusion="rrf", abstain=1.0, clean_every=0)
    told = [others.OTHERS[name](settings, sample) for sample in (0, 2)]
    assert [(each.embedder, each.fusion, each.abstain) for each in opened] == [("hashing", "rrf", 1.0)] * 2
    counted = {"precisionmembench": "cases", "nordic_pdf_qa": "questions"}
    if name in counted:
        assert [each[counted[name]] for each in told] == [4, 2]
    else:
        assert told[0]["club answerable"] == 1.0


def test_only_odd_questions_are_told_of_who_is_declined(sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = abstaining.measure

    def odd_ones_are_sure(*arguments: Any) -> list[abstaining.Asked]:
        return [abstaining.Asked(one.kind, one.half, float(one.half == "odd"), False) for one in measure(*arguments)]

    monkeypatch.setattr(abstaining, "measure", odd_ones_are_sure)
    told = others.declined(Settings(embedder="hashing", clean_every=0), 0)
    assert set(told.values()) == {0.0} and "club answerable" in told


def test_a_run_hands_on_what_it_was_given_and_compares_all_sets(
    sets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[str, float, int]] = []

    def told(settings: Settings, sample: int) -> dict[str, Any]:
        given.append((settings.embedder, settings.abstain, sample))
        return {"declined": settings.abstain, "ranks": [1]}

    monkeypatch.setattr(__main__, "OTHERS", {"abstaining": told})
    for bound, more in (("0.2", []), ("0.5", ["--compare", str(sets / "0.2.json")])):
        options = ["--sets=abstaining", "--embedder=hashing", "--sample=7", f"--json={sets / bound}.json"]
        monkeypatch.setattr("sys.argv", ["quality", *options, f"--set=abstain={bound}", *more])
        assert __main__.main() == 0
    assert given == [("hashing", 0.2, 7), ("hashing", 0.5, 7)]
    assert "abstaining: declined +0.3\n" in capsys.readouterr().out


def test_figures_that_only_one_run_has_are_not_compared() -> None:
    told = {"one": {"a": 0.5, "new": 1, "ranks": [1]}, "two": {"a": 1}}
    assert list(table.others_compared(told, {"one": {"a": 0.75, "gone": 2, "ranks": [2]}})) == ["one: a -0.25"]


def test_a_cache_in_a_cache_and_one_of_a_class_are_emptied_too() -> None:
    def length(text: str) -> int:
        return len(text)

    length.__module__ = "agentformer.text.example"
    caches: list[Any] = [
        lru_cache(lru_cache(length)),
        lru_cache(type("Word", (str,), {"__module__": length.__module__})),
    ]
    for cached in caches:
        cached("teapot")
    timing.forget()
    assert [cached.cache_info().currsize for cached in caches] == [0, 0]


@pytest.mark.slow
def test_ways_take_turns_at_who_begins_and_none_profits_from_the_other() -> None:
    gc.unfreeze()  # `forget` looks for caches among all objects
    begun: list[str] = []
    found: list[int] = []
    tables = relative_dates.phrase_tables()

    def way(name: str) -> Any:
        def search(query: Query) -> None:
            begun.append(name)
            before = analysis.analyze_query.cache_info().hits + analysis._fold.cache_info().hits
            analysis.analyze_query(query.text)
            after = analysis.analyze_query.cache_info().hits + analysis._fold.cache_info().hits
            found.append(after - before)

        return search

    queries = [Query(text) for text in ("lighthouse?", "volcano?", "teapot?")]
    times = timing.taken([way("plain"), way("default")], queries, 1)
    assert begun == ["plain", "default", "default", "plain", "plain", "default"]
    assert [len(each) for each in times] == [2, 2] and min(map(min, times)) > 0
    assert found[2:] == [0] * 4
    assert relative_dates.phrase_tables() is tables
