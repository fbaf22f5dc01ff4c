"""The search pipeline: the named steps from the hits of a store to the final order.

A store searches words and vectors, and fuses and boosts what they find; the votes of each hit show these ranked lists
(`search.hybrid`). The steps of this module finish the order. There is one list of steps for each purpose:

- `for_search`: salience, relevance or noise floor, newest facts, least score, limit.
- `for_answer`: salience, usable (without messages that only ask), newest facts, limit.
- `for_context`: room, salience, relevance, newest facts.

`search.steps.run` applies the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from agentformer.records.scopes import effective_salience
from agentformer.search.newest_facts import FactComparison, latest_first
from agentformer.search.relevance import Nearness, relevant_hits
from agentformer.search.steps import Step
from agentformer.types import Decay, Hit, Hits, Query

EXTRA_HITS = 10  # hits that a search requests beyond its limit, because the steps move hits up and leave hits out
_SALIENCE_WEIGHT = 0.1  # share of the score that a hit loses if the salience of its entry is 0


def for_search(query: Query, nearness: Nearness, *, noise_floor: float, relevant_only: bool = False) -> list[Step]:
    """Return the steps of a search for `query`, whose hits have this `nearness`. With `relevant_only`, only hits that
    answer the query stay. Otherwise, a hit of a hybrid search that contains no term of the query stays if its nearness
    is at least `noise_floor` (-1..1)."""
    steps = [salience(query.scope.decay)]
    if relevant_only:
        steps.append(relevance(query.text, nearness))
    elif query.mode == "hybrid":
        steps.append(above_noise(noise_floor, nearness))
    return [*steps, newest_facts(query.text, nearness), _least_score(query.min_score), _limit(query.limit)]


def for_answer(query: Query, nearness: Nearness, usable: Callable[[Hit], bool]) -> list[Step]:
    """Return the steps for the hits from which the question `query` is answered. `usable` says of a hit of a memory
    whether it can answer the question."""
    return [
        salience(query.scope.decay),
        Step("usable", lambda hits: filter(usable, hits)),
        newest_facts(query.text, nearness),
        _limit(query.limit),
    ]


def for_context(query: Query, nearness: Nearness, fits: Callable[[Hit], bool]) -> list[Step]:
    """Return the steps for the hits of the context of a task. `fits` says whether the context has room for a hit."""
    return [
        Step("room", lambda hits: filter(fits, hits)),
        salience(query.scope.decay),
        relevance(query.text, nearness),
        newest_facts(query.text, nearness),
    ]


def salience(decay: Decay) -> Step:
    """Return the step that weighs scores by salience (importance). A score stays the same if the salience of the entry
    after `decay` is 1, and is lowered by 10% if it is 0."""

    def weighed(hit: Hit) -> Hit:
        loss = _SALIENCE_WEIGHT * (1 - effective_salience(hit.entry, decay))
        return replace(hit, score=hit.score * (1 - loss)) if loss else hit

    return Step("salience", lambda hits: sorted(map(weighed, hits), key=lambda hit: (-hit.score, hit.entry.id)))


def relevance(text: str, nearness: Nearness) -> Step:
    """Return the step that keeps only the hits that answer the query (see `search.relevance`)."""
    return Step("relevance", lambda hits: relevant_hits(text, hits, nearness))


def above_noise(floor: float, nearness: Nearness) -> Step:
    """Return the step that keeps the hits that contain a term of the query, or whose `nearness` is at least `floor`
    (-1..1). If the search could use only words or only vectors, all hits stay, because it is unknown which of them
    contain a term."""

    def near(hits: Hits) -> Iterable[Hit]:
        return (hit for hit in hits if hits.one_sided or hit.lexical_rank is not None or nearness.of(hit) >= floor)

    return Step("noise floor", near)


def newest_facts(text: str, nearness: Nearness) -> Step:
    """Return the step that ranks the newest of facts that replace each other first, unless the query asks for the
    past (see `search.newest_facts`). A newer fact that an earlier step left out comes back."""

    def newest(hits: Hits) -> Iterable[Hit]:
        return latest_first(hits, FactComparison(nearness.languages, nearness.hits.vectors), text, nearness.hits)

    return Step("newest facts", newest)


def _least_score(least: float) -> Step:
    return Step("least score", lambda hits: (hit for hit in hits if hit.score >= least))


def _limit(count: int) -> Step:
    return Step("limit", lambda hits: hits[:count])
