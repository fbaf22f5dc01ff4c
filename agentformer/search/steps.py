"""The steps of a pipeline: `run` applies named steps to the hits of a search, and notes the order after each step in
`Hits.steps`. `changes` explains the result by these notes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Annotated, Any, NamedTuple

from agentformer.http import tracing
from agentformer.types import Hit, Hits, Shown, StepResult

_FOUND = "found"  # the order of the store, before the first step


class StepTimes:
    """The number of times that each step of a search was run in this process, and the seconds that all of them took.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[str, tuple[int, float]] = {}

    def add(self, step: str, seconds: float) -> None:
        """Count a step."""
        with self._lock:
            count, total = self._times.get(step, (0, 0.0))
            self._times[step] = count + 1, total + seconds

    def snapshot(self) -> Mapping[str, tuple[int, float]]:
        """Return the count and the seconds of each step."""
        with self._lock:
            return dict(self._times)


TIMES = StepTimes()


class timed:
    """A context manager for a step: yields the span `span`, and counts the step in `TIMES`. A class, because a search
    has about twenty steps, and a generator costs twice as much."""

    __slots__ = ("_began", "_span", "_step")

    def __init__(self, step: str, span: str, attributes: Mapping[str, Any] | None = None) -> None:
        self._step = step
        self._began = time.perf_counter()
        self._span = tracing.span(span, attributes)

    def __enter__(self) -> tracing.Span:
        return self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._span.__exit__(kind, error, traceback)
        TIMES.add(self._step, time.perf_counter() - self._began)


class Step(NamedTuple):
    """A step of the pipeline: its name, and a function that returns the hits that stay, in their new order."""

    name: str
    apply: Callable[[Hits], Iterable[Hit]]


class Move(NamedTuple):
    """A hit that a step has moved among the hits that stay. Ranks start at 1; `before` is 0 for a hit that an earlier
    step had left out."""

    entry_id: str
    before: int
    after: int


class Change(NamedTuple):
    """What a step has changed: the number of hits that it left out, and the hits of the result that it moved."""

    step: Annotated[
        str,
        Shown(
            "The name of the step: `salience`, `relevance`, `noise floor`, `least score`, `newest facts` or `limit`. "
            "docs/RETRIEVAL.md explains them."
        ),
    ]
    left_out: Annotated[int, Shown("The number of hits that the step left out.", least=0)]
    moved: Annotated[tuple[Move, ...], Shown("The hits of the result that the step moved.")]


def run(hits: Hits, steps: Sequence[Step]) -> Hits:
    """Apply the steps in order, and return the hits that remain. `Hits.steps` says which hits remained after each."""
    results = [StepResult(_FOUND, _ids(hits))]
    for step in steps:
        with timed(step.name, f"search.step {step.name}", {"agentformer.search.hits_in": len(hits)}) as span:
            hits = hits.with_hits(step.apply(hits))
            span.set({"db.response.returned_rows": len(hits)})
        results.append(StepResult(step.name, _ids(hits)))
    hits.steps = tuple(results)
    return hits


def changes(hits: Hits) -> list[Change]:
    """Return what each step has changed, without the steps that changed nothing."""
    shown, found = {hit.entry.id for hit in hits}, []
    for before, after in zip(hits.steps, hits.steps[1:], strict=False):
        kept = set(after.ids)
        ranks = {id_: rank for rank, id_ in enumerate((id_ for id_ in before.ids if id_ in kept), 1)}
        moves = (Move(id_, ranks.get(id_, 0), rank) for rank, id_ in enumerate(after.ids, 1) if id_ in shown)
        moved = tuple(move for move in moves if move.before != move.after)
        left_out = len(before.ids) - len(ranks)
        if moved or left_out:
            found.append(Change(after.name, left_out, moved))
    return found


def _ids(hits: Iterable[Hit]) -> tuple[str, ...]:
    return tuple([hit.entry.id for hit in hits])
