"""Rows and Markdown tables from the JSON of evaluations, of this run or an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentformer.evaluation.metrics import difference, intervals, metric

SIDES = {"lexical": "words", "dense": "dense", "hybrid": "hybrid"}
MULTI_HOP = "multi-hop"
_CUTS = (5, 10)

Question = Mapping[str, Any]  # of an evaluation's "results"


class Row(NamedTuple):
    """A set, or a part of one."""

    name: str
    passages: int
    questions: Sequence[Question]


def rows(told: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Return every set; a set with multi-hop questions also by parts."""
    for name, found in told.items():
        results = found["results"]
        yield Row(name, found["passages"], results)
        hops = [each for each in results if each["category"] == MULTI_HOP]
        if hops and len(hops) < len(results):
            yield Row(f"{name}, {MULTI_HOP}", found["passages"], hops)
            rest = [each for each in results if each["category"] != MULTI_HOP]
            yield Row(f"{name}, others", found["passages"], rest)


def values(questions: Sequence[Question], mode: str, name: str) -> list[float]:
    measure = metric(name)
    return [measure(each["ranks"][mode]) for each in questions]


def recall_table(told: Mapping[str, Mapping[str, Any]], modes: Sequence[str]) -> Iterator[str]:
    """Return recall as the share of relevant passages, with half the width of its interval, and recall by any of
    them."""
    shown = [mode for mode in SIDES if mode in modes]
    heads = [f"R@{k} {SIDES[mode]}" for k in _CUTS for mode in shown]
    anyway = [f"any@{k} {SIDES[mode]}" for k in _CUTS for mode in shown]
    yield from _head(["set", "passages", "n", *heads, *anyway, *(["to the better side"] if len(shown) == 3 else [])])
    for row in rows(told):
        columns = [
            values(row.questions, mode, f"{name}@{k}")
            for name in ("recall", "recall_any")
            for k in _CUTS
            for mode in shown
        ]
        found = intervals(columns)
        cells = [f"{each.value:.3f} ±{(each.high - each.low) / 2:.3f}" for each in found[: len(heads)]]
        cells += [f"{each.value:.3f}" for each in found[len(heads) :]]
        if len(shown) == 3:
            words, dense, hybrid = (each.value for each in found[:3])
            cells.append(f"{hybrid - max(words, dense):+.3f}")
        yield _line([row.name, str(row.passages), str(len(row.questions)), *cells])


def halves_table(told: Mapping[str, Mapping[str, Any]], modes: Sequence[str]) -> Iterator[str]:
    """Return the same recall for questions with even and with odd places in their set."""
    shown = [mode for mode in SIDES if mode in modes]
    yield from _head(["set", *(f"R@{k} {SIDES[mode]}: even, odd" for k in _CUTS for mode in shown)])
    for row in rows(told):
        cells = [
            ", ".join(_mean(values(half, mode, f"recall@{k}")) for half in (row.questions[::2], row.questions[1::2]))
            for k in _CUTS
            for mode in shown
        ]
        yield _line([row.name, *cells])


def comparison(told: Mapping[str, Mapping[str, Any]], former: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Return the changes since the former run, on the questions of both: the mean of the paired differences, with a
    star if its 95% interval excludes 0."""
    shown = [mode for mode in SIDES if all(mode in each["modes"] for run in (told, former) for each in run.values())]
    before = {row.name: row for row in rows(former)}
    yield from _head(["set", "n", *(f"R@{k} {SIDES[mode]}" for k in _CUTS for mode in shown), "hybrid R@5: even, odd"])
    for row in rows(told):
        if row.name not in before:
            continue
        known = {each["id"]: each for each in before[row.name].questions}
        pairs = [(each, known[each["id"]]) for each in row.questions if each["id"] in known]
        if pairs:
            cells = [_change(pairs, mode, f"recall@{k}") for k in _CUTS for mode in shown]
            halves = ", ".join(_change(half, "hybrid", "recall@5") for half in (pairs[::2], pairs[1::2]) if half)
            yield _line([row.name, str(len(pairs)), *cells, halves if "hybrid" in shown else ""])


def others_compared(told: Mapping[str, Mapping[str, Any]], former: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Return the change of each figure of the other sets that both runs have."""
    for name, found in told.items():
        before = former.get(name, {})
        changes = [
            f"{key} {value - before[key]:+.4g}"
            for key, value in found.items()
            if isinstance(value, int | float) and isinstance(before.get(key), int | float)
        ]
        if changes:
            yield f"{name}: {', '.join(changes)}"


def _change(pairs: Sequence[tuple[Question, Question]], mode: str, name: str) -> str:
    now = values([each for each, _ in pairs], mode, name)
    found = difference(now, values([each for _, each in pairs], mode, name))
    return f"{found.value:+.3f}{'*' if found.significant else ''}"


def _mean(figures: Sequence[float]) -> str:
    return f"{sum(figures) / len(figures):.3f}" if figures else "-"


def _head(names: Sequence[str]) -> list[str]:
    return [_line(names), "|---" * len(names) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


Table = Callable[[Mapping[str, Mapping[str, Any]], Sequence[str]], Iterator[str]]
TABLES: tuple[Table, ...] = (recall_table, halves_table)
