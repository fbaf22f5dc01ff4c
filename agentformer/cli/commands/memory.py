"""The commands that store and search memories: remember, recall, search, context, memories."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from agentformer.cli.explain import explain_ranks, explain_weight
from agentformer.cli.group import Command, category, common, examples, filters, in_place, main, memory_filters, where
from agentformer.cli.inputs import (
    document_id_of,
    edit_hint,
    filters_of,
    hint_namespaces,
    kinds_of,
    nothing_listed,
    nothing_recalled,
    open_existing,
    query_of,
    source_of,
    text_of,
    where_of,
)
from agentformer.cli.output import (
    excerpt,
    moment,
    place_of,
    plural,
    print_entries,
    print_json,
    print_result,
    print_table,
    print_warnings,
    say,
)
from agentformer.errors import Conflict, InvalidInput
from agentformer.factory import AgentFormer, connect
from agentformer.memory.context.messages import Context, ContextReport
from agentformer.records import fields
from agentformer.records.entry_json import entry_to_json
from agentformer.tools.result_json import context_json, factors_json, hit_json, memory_hit_json, reference_json
from agentformer.types import DOCUMENT_KINDS, TIERS, Decay, Hit, Hits, MemoryEntry, Original, Reference, Scope

_MESSAGE = ("role", "speaker")
_FACT_ONLY = ("tier", "kind", "title", "category", "salience")


def _limit(noun: str, default: int, most: int) -> Callable[[Command], Command]:
    text = f"Show at most this many {noun} [default: {default}]."
    return click.option("--limit", metavar="N", type=click.IntRange(1, most), default=default, help=text)


_tiers = click.option(
    "--tier", "tiers", multiple=True, type=click.Choice(TIERS), help="Use only this tier. The option can be repeated."
)
_kinds = click.option(
    "--kind", "kinds", metavar="WORD", multiple=True, help="Use only this kind. The option can be repeated."
)
_archived = click.option("--archived", is_flag=True, help="Include archived and superseded entries.")
_explain = click.option(
    "--explain",
    is_flag=True,
    help="Explain the order of the hits: the rank of each hit in each ranked list, and the weight of each list.",
)


@main.command(
    epilog=examples(
        'agentformer remember "Aino prefers tea." --user aino',
        'agentformer remember "We chose SQLite." --kind decision --category decisions --project harbour',
        'agentformer remember "Hei!" --session monday --role user --speaker Aino',
        "agentformer remember - --title minutes < minutes.txt",
    )
)
@click.argument("text", metavar="TEXT|-")
@click.option("--tier", type=click.Choice(TIERS), help="The tier of the entry [default: semantic].")
@click.option(
    "--kind",
    metavar="WORD",
    help="The kind: fact, decision, error, milestone, or a word that you choose [default: fact].",
)
@click.option("--title", metavar="TEXT", help="A short title. For a core block, the title is the name of the block.")
@category
@click.option("--salience", metavar="NUMBER", type=float, help="Importance, from 0 to 1 [default: 1].")
@click.option("--at", "occurred_at", metavar="TIME", help="Time of the event, in ISO 8601 with a time zone.")
@click.option("--metadata", metavar="JSON", help="A JSON object that is stored with the entry.")
@click.option("--source", metavar="TYPE:ID", help="The record of your application to which the entry belongs.")
@click.option(
    "--role", metavar="ROLE", help="Store the text as a message of --session. ROLE is user, assistant, system or tool."
)
@click.option("--speaker", metavar="NAME", help="The speaker of a message.")
@common
@in_place
def remember(text: str, metadata: str | None, source: str | None, place: Any, as_json: bool, **given: Any) -> None:
    """Store a fact, a decision, or a message of a session.

    If TEXT is `-`, the text is read from standard input. If the same fact is stored already, no second entry is
    created.
    """
    settings = {name: given.pop(name) for name in ("index_dir", "upload_dir", "embedder")}
    values = {name: value for name, value in given.items() if value is not None}
    values |= {"metadata": {} if metadata is None else fields.json_object("--metadata", metadata), **place}
    values |= {} if source is None else source_of(source)
    content = text_of(text)
    is_message = any(name in values for name in _MESSAGE)
    if is_message:
        _check_message(values)
    with connect(**settings) as af:
        if is_message:
            entry = af.memory.add_message(values.pop("session_id"), values.pop("role"), content, **values)
        else:
            entry = _store(af, content, values)
        waiting = af.backend.waiting([entry.id])
    pending = "the entry has no vector yet, so only a search by words finds it; run `agentformer reindex` later"
    print_warnings(f"{pending} ({item.last_error})" for item in waiting)
    state = "exists already" if entry.repeat_count else "stored"
    print_result(entry_to_json(entry), f"{state}  {entry.id}", as_json=as_json)


@main.command(
    epilog=examples(
        'agentformer recall "What does Aino drink?" --user aino',
        'agentformer recall "Which database?" --kind decision --limit 3',
        'agentformer recall "the move to Turku" --archived --all',
        'agentformer recall "decisions" --since 2026-10-01 --until 2026-10-31 --where site=north',
    )
)
@click.argument("query")
@_limit("hits", 10, 10_000)
@_tiers
@_kinds
@_archived
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
    """Search the memories that are relevant to a query, and show the best hits first.

    With --user or --project, the command also searches the memories that belong to no user or to no project.
    """
    query = query_of(query)
    scope = _scope(place, given) | filters_of(given) | {"min_salience": given.pop("min_salience")}
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
    )
)
@click.argument("query")
@_limit("hits", 10, 1000)
@_explain
@filters
@common
def search(query: str, limit: int, explain: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Search documents and memories, and show the best hits first."""
    query = query_of(query)
    scope, name = {"namespace": namespace, **filters_of(options)}, options.pop("document")
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
@common
@in_place
def context(task: str, max_tokens: int, place: Any, as_json: bool, **options: Any) -> None:
    """Show the context that a model gets for a task.

    The context contains the core blocks, the conversation, and the memories that are relevant to TASK. If TASK is `-`,
    the task is read from standard input. The exit code is 1 if the task itself does not fit into the context.
    """
    text = text_of(task, "TASK")
    with open_existing(**options) as af:
        built = af.memory.build_context(text, max_tokens=max_tokens, **place)
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


@main.command(
    epilog=examples(
        "agentformer memories --kind decision",
        "agentformer memories --session monday --archived",
        """agentformer memories --where '{"type": "exists", "key": "year", "value": true}'""",
        "agentformer memories --limit 1000 --after 01a20046-0087-7000-994b-d506d6655eb7 --json",
    )
)
@_tiers
@_kinds
@_archived
@_limit("entries", 100, 10_000)
@click.option("--after", metavar="ID", default="", help="Show only entries after this id.")
@where
@common
@in_place
def memories(limit: int, after: str, place: Any, as_json: bool, **given: Any) -> None:
    """List the memories, oldest first.

    With --user or --project, the command also lists the memories that belong to no user or to no project. If there are
    more memories than --limit allows, a note shows the command for the next memories. With --json, the output has a
    field `next`: to list the next memories, pass the value of this field to --after.
    Documents and their pages and chunks are not memories. They are listed only if --kind names them: document, page or
    chunk.
    """
    scope = _scope(place, given) | where_of(given.pop("where"))
    with open_existing(**given) as af:
        scope["kinds"] = scope["kinds"] or _remembered_kinds(af)
        entries = af.memory.list(limit=limit, after=after, **scope)
        nothing, following = "", None
        if len(entries) == limit and af.memory.list(limit=1, after=entries[-1].id, **scope):
            following = entries[-1].id
        if not entries:
            hint_namespaces(af, place["namespace"])
            nothing = nothing_listed(af, Scope(**scope), after)
    if as_json:
        print_json({"entries": [entry_to_json(entry) for entry in entries], "next": following})
        return
    print_entries(entries)
    if following:
        print_warnings([f"there are more memories; add --after {following} to list the next ones, or raise --limit"])
    if not entries:
        say(nothing)


def _remembered_kinds(af: AgentFormer) -> tuple[str, ...]:
    """Return the kinds of all stored entries, except the kinds of documents and their parts. The result is never empty,
    because an empty tuple would select all entries."""
    return tuple(sorted(kinds_of(af.memory.status()).keys() - DOCUMENT_KINDS)) or ("fact",)


def _scope(place: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a search or a list that select its entries: those in `place`, and those from the options
    --tier, --kind and --archived, which are removed from `given`."""
    archived = given.pop("archived")
    kept = {"include_archived": archived, "or_nobody": True}
    return {"tiers": given.pop("tiers"), "kinds": given.pop("kinds"), **kept, **place}


def _store(af: AgentFormer, content: str, values: Mapping[str, Any]) -> MemoryEntry:
    """Store a fact and return its entry. If `values` describes a core block that exists already, raise `Conflict` with
    the commands that edit this block."""
    try:
        return af.memory.store(content, **values)
    except Conflict:
        if values.get("tier") != "core" or not values.get("title"):
            raise
        raise Conflict(edit_hint(values["title"], values)) from None


def _check_message(values: Mapping[str, Any]) -> None:
    for name, option in (("role", "--role"), ("session_id", "--session")):
        if values.get(name) is None:
            raise InvalidInput(option, "is required for a message: --session ID --role user|assistant|system|tool")
    for name in _FACT_ONLY:
        if name in values:
            wanted = "does not apply to messages; omit this option, or omit --role and --speaker"
            raise InvalidInput(f"--{name}", wanted)


def _print_hits(
    hits: Hits, to_json: Callable[[Hit], Any], as_json: bool, nothing: str = "nothing found", *, explain: bool
) -> None:
    """Print hits, best first. With `as_json`, print the value that `to_json` returns for each hit. Otherwise, print
    text lines. With `explain`, these also contain the ranks of each hit. Print the text `nothing` if there are no hits.
    """
    if as_json:
        found = [to_json(hit) for hit in hits]
        print_json({"hits": found, "warnings": list(hits.warnings), "factors": factors_json(hits)})
        return
    print_warnings(hits.warnings)
    for hit, ranks in zip(hits, explain_ranks(hits), strict=True):
        say(f"{hit.score:.3f}  {place_of(hit.entry)}\n       {excerpt(hit.entry.content)}")
        if hit.originals:
            say(f"       best originals: {', '.join(map(_original, hit.originals))}")
        if explain:
            say(f"       {ranks}")
    if not hits:
        say(nothing)
    elif explain and hits.factors:
        say(explain_weight(hits.factors))


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
        print_json({"references": [reference_json(reference) for reference in references]})
        return
    rows = [
        (f"{record.score:.3f}", f"{record.source_type}:{record.source_id}", record.entry_id) for record in references
    ]
    print_table(("SCORE", "RECORD", "ID"), rows)
    if not references:
        say("nothing found")
