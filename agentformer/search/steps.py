"""The steps of a pipeline: `run` applies named steps to the hits of a search, and notes the order after each step in
`Hits.steps`. `changes` explains the result by these notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

from agentformer.http import tracing
from agentformer.types import Hit, Hits, Shown, StepResult

_FOUND = "found"  # the order of the store, before the first step


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
        with tracing.span(f"search.step {step.name}", {"agentformer.search.hits_in": len(hits)}) as span:
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
