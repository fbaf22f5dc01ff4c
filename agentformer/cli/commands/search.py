"""The commands that search: recall, search, context; and explanations of a search in plain words."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click

from agentformer.cli.group import as_of, common, examples, filters, in_place, limit, main, memory_filters, selection
from agentformer.cli.inputs import (
    document_id_of,
    filters_of,
    hint_namespaces,
    nothing_recalled,
    open_existing,
    query_of,
    selection_of,
    text_of,
)
from agentformer.cli.output import excerpt, moment, place_of, plural, print_json, print_table, print_warnings, say
from agentformer.memory.context.blocks import Context, ContextReport
from agentformer.search.steps import Change, changes
from agentformer.tools.result_json import (
    context_json,
    factors_json,
    hit_json,
    memory_hit_json,
    report_json,
    steps_json,
)
from agentformer.types import Decay, Factor, Hit, Hits, Original, Reference, Scope, Vote

# Name of a ranked list -> the property by which the list ranks.
_RANKED_BY = {
    "words": "words",
    "vectors": "meaning",
    "document": "its document",
    "mentions": "names in the query or the best hits",
    "identifiers": "codes in the query",
    "period": "time",
    "statements": "what it states",
    "reranker": "reranker",
}
_SIDES = ("words", "vectors")  # such a list has all entries that its search found; a missing hit was not found
_FACTORS = {
    "setting": "the setting dense_weight",
    "language": "the embedder's knowledge of the language",
    "usual": "the usual weight",
    "missed": "words of the query that the best hits lack",
    "most": "the greatest weight: words find little",
    "code": "a question for source code",
    "alone": "no hit has the words",
}
_RERANKER = "reranker"  # the order of its hits depends on this list alone, so the weight is not shown
_explain = click.option(
    "--explain",
    is_flag=True,
    help="Explain the order of the hits: the rank of each hit in each ranked list, the weight of each list, and what "
    "each step of the search changed after that.",
)


@main.command(
    epilog=examples(
        'agentformer recall "What does Aino drink?" --user aino',
        'agentformer recall "Which database?" --kind decision --limit 3',
        'agentformer recall "the move to Turku" --archived --all',
        'agentformer recall "Where does Aino live?" --as-of 2026-03-01T00:00:00Z',
        'agentformer recall "decisions" --since 2026-10-01 --until 2026-10-31 --where site=north',
    )
)
@click.argument("query")
@limit("hits", 10, 10_000)
@selection
@click.option(
    "--min-salience",
    metavar="NUMBER",
    type=float,
    default=0.0,
    help="Show only entries whose importance after decay is at least this number, from 0 to 1.",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Also show entries that the search found but that are not relevant to the query.",
)
@click.option("--references", is_flag=True, help="Show only the records of your application to which the hits belong.")
@_explain
@memory_filters
@common
@in_place
def recall(
    query: str, limit: int, every: bool, references: bool, explain: bool, place: Any, as_json: bool, **given: Any
) -> None:
    """Search for the memories that are relevant to a query, and show the best hits first.

    With --user or --project, the command also searches the memories that belong to no user or to no project.
    """
    query = query_of(query)
    scope = selection_of(place, given) | filters_of(given) | {"min_salience": given.pop("min_salience")}
    search = {**scope, "limit": limit, "relevant_only": not every}
    hits = Hits()
    records: list[Reference] = []
    nothing = "nothing found"
    with open_existing(**given) as af:
        if references:
            records = af.memory.references(query, **search)
        else:
            hits = af.memory.search(query, **search)
        if not (records or hits):
            hint_namespaces(af, place["namespace"])
        if not (records or hits or references or as_json):
            nothing = nothing_recalled(af, query, Scope(**scope, decay=Decay(af.settings.decay_rates)), every=every)
    if references:
        _print_references(records, as_json)
    else:
        _print_hits(hits, memory_hit_json, as_json, nothing, explain=explain)


@main.command(
    epilog=examples(
        'agentformer search "keys"',
        'agentformer search "keys" --explain',
        'agentformer search "kevätkokous" --limit 3 --json',
        'agentformer search "fee" --document rules/2026.pdf --where year=2026',
        'agentformer search "decisions of the board" --since 2026-10-01 --until 2026-10-31',
        'agentformer search "tea" --user aino',
    )
)
@click.argument("query")
@limit("hits", 10, 1000)
@click.option("--user", "user_id", metavar="ID", help="Search entries of this user, and those of no user.")
@_explain
@filters
@common
def search(
    query: str, limit: int, user_id: str | None, explain: bool, namespace: str, as_json: bool, **options: Any
) -> None:
    """Search documents and memories, and show the best hits first."""
    query = query_of(query)
    scope = {"namespace": namespace, "user_id": user_id, "or_nobody": True, **filters_of(options)}
    name = options.pop("document")
    with open_existing(**options) as af:
        hits = af.memory.search(query, limit=limit, document_id=document_id_of(af, name, namespace), **scope)
        if not hits:
            hint_namespaces(af, namespace)
    _print_hits(hits, hit_json, as_json, explain=explain)


@main.command(
    epilog=examples(
        'agentformer context "Write the release note" --session monday --max-tokens 1000',
        "agentformer context - --json < task.txt",
    )
)
@click.argument("task", metavar="TASK|-")
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(1),
    default=4000,
    help="Use at most this many tokens [default: 4000].",
)
@as_of
@common
@in_place
def context(task: str, max_tokens: int, as_of: str | None, place: Any, as_json: bool, **options: Any) -> None:
    """Show the context that a model gets for a task.

    The context contains the core blocks, the conversation, and the memories that are relevant to TASK. If TASK is `-`,
    the task is read from standard input. The exit code is 1 if the task itself does not fit into the context.
    """
    text = text_of(task, "TASK")
    with open_existing(**options) as af:
        built = af.memory.build_context(text, max_tokens=max_tokens, as_of=as_of, **place)
    fits = _contains_task(built, text)
    if not fits:
        print_warnings([f"the task does not fit into {max_tokens} tokens; raise --max-tokens, or shorten the task"])
    if as_json:
        print_json(context_json(built))
    else:
        print_warnings(built.report.warnings)
        for message in built.messages:
            say(f"--- {message.role}\n{message.content}")
        _print_left_out(built.report)
    if not fits:
        sys.exit(1)


def _print_hits(
    hits: Hits, to_json: Callable[[Hit], Any], as_json: bool, nothing: str = "nothing found", *, explain: bool
) -> None:
    """Print hits, best first. With `as_json`, print the value that `to_json` returns for each hit. Otherwise, print
    text lines. With `explain`, the lines also contain the ranks of each hit. Print the text `nothing` if there are no
    hits.
    """
    if as_json:
        found = [to_json(hit) for hit in hits]
        explained = {"factors": factors_json(hits), "steps": steps_json(hits)}
        print_json({"hits": found, "warnings": list(hits.warnings), **explained})
        return
    print_warnings(hits.warnings)
    for hit, ranks in zip(hits, explain_ranks(hits), strict=True):
        say(f"{hit.score:.3f}  {place_of(hit.entry)}\n       {excerpt(hit.entry.content)}")
        if hit.newer:
            say(f"       former ({moment(hit.entry.occurred_at or hit.entry.created_at)}); newer: {hit.newer}")
        if hit.originals:
            say(f"       best originals: {', '.join(map(_original, hit.originals))}")
        if explain:
            say(f"       {ranks}")
    if not hits:
        say(nothing)
    elif explain:
        if hits.factors:
            say(explain_weight(hits.factors))
        for change in changes(hits):
            say(explain_step(change, hits))


def _original(original: Original) -> str:
    place = ", ".join(filter(None, (original.speaker, original.session_id, moment(original.at))))
    return f"{original.id} ({place})"


def _contains_task(built: Context, task: str) -> bool:
    """Return whether the context contains the task: as the message of the task, or because the last message of the
    conversation has the same text. A blank task counts as contained."""
    if not task.strip() or built.report.tokens["task"]:
        return True
    last = built.messages[-1] if built.messages else None
    return last is not None and last.role == "user" and last.content.split() == task.split()


def _print_left_out(report: ContextReport) -> None:
    shares = ", ".join(f"{share} {tokens}" for share, tokens in report.tokens.items())
    reasons = Counter(left.reason.partition(":")[0] for left in report.left_out).most_common()
    print_warnings(
        [
            f"{report.total} of {report.budget} tokens ({shares}); {len(report.left_out)} left out",
            *(f"left out {plural(count, 'time')}: the entry {reason}" for reason, count in reasons),
        ]
    )


def _print_references(references: Sequence[Reference], as_json: bool) -> None:
    if as_json:
        print_json({"references": [report_json(reference) for reference in references]})
        return
    rows = [
        (f"{record.score:.3f}", f"{record.source_type}:{record.source_id}", record.entry_id) for record in references
    ]
    print_table(("SCORE", "RECORD", "ID"), rows)
    if not references:
        say("nothing found")


def explain_weight(factors: Sequence[Factor]) -> str:
    """Return a text with the weight of the vectors and its factors, such as `Weight of meaning: 2.1 = 0.7 (the usual
    weight) x 3 (a question for source code)`. Factors of 1 are left out."""
    weight = math.prod(factor.value for factor in factors)
    shown = [factor for factor in factors if factor.value != 1] or factors[:1]
    reasons = (f"{factor.value:.2g} ({_FACTORS.get(factor.name, factor.name)})" for factor in shown)
    return f"Weight of meaning: {weight:.2g} = {' x '.join(reasons)}"


def explain_step(change: Change, hits: Sequence[Hit]) -> str:
    """Return a text with what a step of the search has changed, such as `Step newest facts: hit 1 from 2nd to 1st`. The
    number of a hit is its place in the result."""
    places = {hit.entry.id: place for place, hit in enumerate(hits, 1)}
    moved = sorted((places[entry_id], before, after) for entry_id, before, after in change.moved)
    parts = [
        f"hit {place} {f'from {_ordinal(before)}' if before else 'brought back'} to {_ordinal(after)}"
        for place, before, after in moved
    ]
    parts += [f"{plural(change.left_out, 'hit')} left out"] if change.left_out else []
    return f"Step {change.step}: {', '.join(parts)}"


def explain_ranks(hits: Sequence[Hit]) -> list[str]:
    """Return a text for each hit with the rank of the hit in each ranked list, such as `1st by words (weight 1), 4th by
    meaning (weight 0.45)`.

    The results by words, the results by vectors and the results of the reranker are such lists. If one of these three
    lists contains other hits but not this hit, the text says so.
    """
    lists = {vote.name for hit in hits for vote in hit.votes}
    ranks = []
    for hit in hits:
        missing = lists - {vote.name for vote in hit.votes}
        parts = [_vote_text(vote, hit) for vote in hit.votes]
        parts += [f"not found by {_RANKED_BY[side]}" for side in _SIDES if side in missing]
        parts += ["not scored by reranker"] if _RERANKER in missing else []
        ranks.append(", ".join(parts) if hit.votes else "no ranks")
    return ranks


def _vote_text(vote: Vote, hit: Hit) -> str:
    rank = f"{_ordinal(vote.rank)} by {_RANKED_BY.get(vote.name, vote.name)}"
    if vote.name == _RERANKER:
        return f"{rank}, which decides"
    score = ""
    if vote.name == "words" and hit.lexical_score is not None:
        score = f", BM25 {hit.lexical_score:.1f}"
    if vote.name == "vectors" and hit.dense_score is not None:
        score = f", cosine {hit.dense_score:.2f}"
    return f"{rank} (weight {vote.weight:.2g}{score})"


def _ordinal(rank: int) -> str:
    ending = "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    return f"{rank}{ending}"
