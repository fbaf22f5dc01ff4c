"""The steps of a pipeline: `run` applies named steps to the hits of a search, and notes the order after each step in
`Hits.steps`. `changes` explains the result by these notes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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


@contextmanager
def timed(step: str, span: str, attributes: Mapping[str, Any] | None = None) -> Iterator[tracing.Span]:
    """Yield the span `span` of a step, and count the step in `TIMES`."""
    began = time.perf_counter()
    try:
        with tracing.span(span, attributes) as recorded:
            yield recorded
    finally:
        TIMES.add(step, time.perf_counter() - began)


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
