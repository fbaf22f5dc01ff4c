"""The tables of a run as Markdown, ratios first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.speed.comparing import PEERS
from bench.speed.embedding import PEERS as FP32
from bench.speed.figures import Figure, best_of_peers, compared, grown, loaded, middle, over, turns
from bench.speed.steps import BESIDE, LIBRARIES, REST
from bench.speed.targets import targets
from bench.speed.timing import Values
from bench.speed.variants import FAST, INT8, VARIANTS

_SYSTEMS = (*VARIANTS, *PEERS)


def report(results: Values) -> str:
    """Return the machine, the targets, and a table for each measured topic."""
    topics: dict[str, Callable[[Values], list[str]]] = {
        "embedding": _embedding,
        "compare": lambda told: [*_ingest(told), "", *_queries(told)],
        "starting": _starting,
        "quality": _quality,
        "growth": _growth,
        "steps": _steps,
    }
    parts = [_machine(results), _targets(results)]
    parts += [make(results) for name, make in topics.items() if results.get(name)]
    return "\n\n".join("\n".join(part) for part in parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [_row(head), "|" + "---|" * len(head), *(_row(row) for row in rows)]


def shown(value: Figure, digits: int = 2) -> str:
    """Return a number as text; "-" for none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _machine(results: Values) -> list[str]:
    told = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    return [
        f"{told['when']}: {told['processor']}, {told['cores']} cores, {told['memory_gb']:.0f} GB; with "
        f"{', '.join(told['has']) or 'none'} and without {', '.join(told['lacks']) or 'none'} of the instructions that "
        f"matter here. {versions}. Load of the machine before: {results['load']:.1f}."
    ]


def _targets(results: Values) -> list[str]:
    rows = [
        (
            target.what,
            f"{'>=' if target.at_least else '<='} {target.bound:g}",
            shown(target.value, 4 if target.bound < 1 else 2),
            shown(target.share),
            target.verdict,
        )
        for target in targets(results)
    ]
    return table(("target", "bound", "measured", "reached (1: met)", ""), rows)


def _embedding(results: Values) -> list[str]:
    told = results["embedding"]
    base = told.get(FP32, {})
    rows = []
    for name in (FP32, *VARIANTS):
        values = told.get(name, {"error": "not measured"})
        if "error" in values:
            rows.append((name, values["error"], *[""] * 8))
            continue
        short, long = (_ratios(values[kind], base[kind]) for kind in ("short", "long"))
        query = _ratios(base["query"], values["query"])
        rows.append(
            (
                name,
                *(shown(ratio) for ratio in (short, long, query)),
                *(shown(middle(values[kind]), 1) for kind in ("short", "long", "query")),
                " / ".join(f"{value:.5f}" for value in values["cosine"]),
                shown(values["loaded_s"], 1),
                shown(values["peak_mb"], 0),
            )
        )
    ratios = ("times faster, 155 tokens", "256 tokens", "a query")
    head = ("runtime", *ratios, "passages/s, 155 tokens", "256 tokens", "query p50, ms")
    return table((*head, "mean cosine (155 / 256)", "load, s", "peak MB"), rows)


def _steps(results: Values) -> list[str]:
    """Return a table for each kind of work: its steps by their cost, those of libraries at the end."""
    lines: list[str] = []
    for what, told in results["steps"].items():
        if "error" in told:
            lines += [f"{what}: {told['error']}", ""]
            continue
        rows, whole = told["rows"], told["whole"]
        by_us = sorted(rows, key=lambda name: (name.startswith(LIBRARIES), -rows[name]["processor"]))
        whole_of_steps = sum(row["wall"] for name, row in rows.items() if not name.startswith(BESIDE))
        lines += table(
            (what, "ms", "processor, ms", "share of the whole"),
            (
                (name, *(shown(rows[name][of], 3) for of in ("wall", "processor")), shown(rows[name]["wall"] / whole))
                for name in by_us
            ),
        )
        named = whole_of_steps - rows.get(REST, {"wall": 0.0})["wall"]
        lines += [
            "",
            f"The named steps are {shown(named / whole)} of a whole of {shown(whole)} ms that was not timed.",
            "",
        ]
    return lines


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """Return the median of the rounds' ratios; both alternated within each round."""
    return middle(over(mine, other) for mine, other in zip(ours, theirs, strict=True))


def _ingest(results: Values) -> list[str]:
    fastest = best_of_peers(results, "ingest", "per_second", most=True)
    leanest = best_of_peers(results, "ingest", "peak_mb")
    rows = []
    for name in _SYSTEMS:
        told = [turn["ingest"] for turn in turns(results, name)]
        if not told:
            rows.append((name, _error(results, name), *[""] * 6))
            continue
        speed, whole, alone, peak, disk = (
            middle(turn[figure] for turn in told)
            for figure in ("per_second", "seconds", "encode_s", "peak_mb", "disk_mb")
        )
        rows.append(
            (
                name,
                *(shown(ratio) for ratio in (over(speed, fastest), over(whole, alone), over(peak, leanest))),
                _spread([turn["per_second"] for turn in told]),
                shown(peak, 0),
                shown(disk, 1),
                str(len(told)),
            )
        )
    head = ("ingest", "times the fastest peer's rate", "times the model alone", "peak memory, times the leanest peer's")
    return table((*head, "passages/s", "peak MB", "disk MB", "turns"), rows)


def _queries(results: Values) -> list[str]:
    fastest, leanest = (best_of_peers(results, "query", name) for name in ("p50", "peak_mb"))
    rows = []
    for name in _SYSTEMS:
        told = [turn["query"] for turn in turns(results, name)]
        if not told:
            rows.append((name, _error(results, name), *[""] * 9))
            continue
        p50, p95, p99, embed, first, rss, peak = (
            compared(results, name, "query", figure)
            for figure in ("p50", "p95", "p99", "embed_p50", "first_s", "rss_mb", "peak_mb")
        )
        added = None if embed is None or p50 is None else p50 - embed
        rows.append(
            (
                name,
                *(shown(ratio) for ratio in (over(p50, fastest), over(peak, leanest))),
                *(shown(value, 1) for value in (p50, p95, p99, embed, added)),
                _crowd([turn["crowd"] for turn in told]),
                shown(first, 1),
                f"{shown(rss, 0)} / {shown(peak, 0)}",
            )
        )
    head = ("query", "p50, times the fastest peer's", "peak memory, times the leanest peer's", "p50, ms", "p95", "p99")
    rest = (
        "model alone, p50",
        "the rest",
        "8 threads: p50, p95, p99, queries/s",
        "first answer, s",
        "resident / peak MB",
    )
    return table((*head, *rest), rows)


def _crowd(told: Sequence[Values]) -> str:
    if errors := [values["error"] for values in told if "error" in values]:
        return f"fails: {errors[0]}"
    return ", ".join(shown(middle(values[name] for values in told), 1) for name in ("p50", "p95", "p99", "per_second"))


def _error(results: Values, name: str) -> str:
    told: Any = results.get("compare", {}).get(name) or [{"error": "not measured"}]
    return f"not measured: {told[0]['error']}"


def _spread(values: Sequence[float]) -> str:
    return f"{shown(middle(values), 1)} ({min(values):.1f} to {max(values):.1f})"


def _starting(results: Values) -> list[str]:
    rows = [
        (name, values["error"], "", "")
        if "error" in values
        else (name, shown(values["p50"]), shown(values["seconds"][0]), shown(values["seconds"][-1]))
        for name, values in results["starting"].items()
    ]
    rows += [(f"{peer}, first answer", shown(compared(results, peer, "query", "first_s")), "", "") for peer in PEERS]
    return table(("from the start of the process", "median, s", "least", "greatest"), rows)


def _quality(results: Values) -> list[str]:
    if any("error" in values for values in results["quality"].values()):
        reason = next(values["error"] for values in results["quality"].values() if "error" in values)
        return [f"Retrieval quality of int8: not measured ({reason})."]
    rows = []
    for name, values in results["quality"].items():
        pairs = [(values[FAST.name].get(mode), values[INT8.name].get(mode)) for mode in ("dense", "hybrid")]
        cells = [(shown(a, 3), shown(b, 3), shown(None if a is None or b is None else b - a, 4)) for a, b in pairs]
        rows.append((name, str(values[FAST.name].get("questions", "-")), *cells[0], *cells[1]))
    head = ("R@5", "questions", "vectors, fp32", "int8", "difference", "both sides, fp32", "int8", "difference")
    return table(head, rows)


def _growth(results: Values) -> list[str]:
    figures: dict[str, tuple[tuple[str, ...], int]] = {
        "search without embedding, p50, ms": (("hybrid", "p50"), 1),
        "p95": (("hybrid", "p95"), 1),
        "p99": (("hybrid", "p99"), 1),
        "a question that names a time, p50, ms": (("timed", "p50"), 1),
        "its p95": (("timed", "p95"), 1),
        "the first 200 questions, p50, ms": (("early", "p50"), 1),
        "1 thread, queries/s": (("alone", "per_second"), 0),
        "8 threads, p50, ms": (("crowd", "p50"), 1),
        "8 threads, queries/s": (("crowd", "per_second"), 0),
        "recall@10, dense side": (("recall",), 4),
        "a scope of 1%, p50, ms": (("scope", "p50"), 1),
        "a scope of 1%, its first question, ms": (("scope", "first"), 1),
        "a scope of 1%, recall@10": (("scope_recall",), 4),
        "an entry stored, ms": (("store_ms",), 1),
        "stored and found, p50, ms": (("add", "p50"), 1),
        "removed and gone, p50, ms": (("delete", "p50"), 1),
        "start from the snapshot, s": (("start_s",), 2),
        "resident, MB": (("resident", "rss_mb"), 0),
        "peak with changes and 8 threads, MB": (("peak_mb",), 0),
        "disk, MB": (("disk_mb",), 0),
    }
    sizes = [int(size) for size in results["growth"]]
    rows = [
        (name, *(shown(grown(results, size, *path), digits) for size in sizes))
        for name, (path, digits) in figures.items()
    ]
    rows.append(("stage of the vector index", *(_stage(results["growth"][str(size)]["turns"]) for size in sizes)))
    shared = [results["growth"][str(size)].get("shared", {}).get("times") for size in sizes]
    rows.append(("memory of two processes, times that of one (PSS)", *(shown(times, 2) for times in shared)))
    made = [results["growth"][str(size)]["made"] for size in sizes]
    rows.append(("entries/s until all are found", *(shown(loaded(results, size), 0) for size in sizes)))
    rows.append(("made by an earlier run", *("yes" if told.get("known") else told.get("error", "no") for told in made)))
    return table(("entries", *(f"{size:,}" for size in sizes)), rows)


def _stage(told: Sequence[Values]) -> str:
    """Return the stage of the index in the last turn that did not fail."""
    known = [turn["index"] for turn in told if turn.get("index")]
    return str(known[-1].get("stage", "-")) if known else "-"
