"""Why a search put its results where they stand, in words."""

from __future__ import annotations

from collections.abc import Sequence

from agentformer.types import Hit, Vote

# What a ranked list of a search goes by.
_GOES_BY = {
    "words": "its words",
    "vectors": "its meaning",
    "document": "its document",
    "mentions": "what the best hits name",
    "period": "its time",
    "reranker": "the reranker",
}
_SIDES = ("words", "vectors")  # which look at everything: who is missing there was not found, or stands far behind
_RERANKER = "reranker"  # decides alone on the hits that it has read, so its weight tells nothing


def reasons(hits: Sequence[Hit]) -> list[str]:
    """For each hit a line such as `1st by its words (weight 1), 4th by its meaning (weight 0.45)`. That a side which
    found other hits has not found this one is told too."""
    lists = {vote.name for hit in hits for vote in hit.votes}
    return [_reason(hit, lists) for hit in hits]


def _reason(hit: Hit, lists: set[str]) -> str:
    given = {vote.name for vote in hit.votes}
    if not given:
        return "no ranks are told"
    told = [_told(vote) for vote in hit.votes]
    told += [f"not found by {_GOES_BY[side]}" for side in _SIDES if side in lists - given]
    if _RERANKER in lists - given:
        told.append("not read by the reranker")
    return ", ".join(told)


def _told(vote: Vote) -> str:
    place = f"{_ordinal(vote.rank)} by {_GOES_BY.get(vote.name, vote.name)}"
    return f"{place}, which decides" if vote.name == _RERANKER else f"{place} (weight {vote.weight:.2g})"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
