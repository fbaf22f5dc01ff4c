"""Commands that keep memories and find them: remember, recall, search, context, memories."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentformer.cli.core import edit_hint
from agentformer.cli.group import common, examples, in_place, main
from agentformer.cli.hints import nothing_listed, nothing_recalled, tell_elsewhere
from agentformer.cli.inputs import object_of, source_of, text_of
from agentformer.cli.output import print_entries, print_hits, print_json, print_table, print_warnings, say
from agentformer.errors import Conflict, InvalidInput
from agentformer.factory import AgentFormer, connect
from agentformer.memory.context.plan import Context, ContextReport
from agentformer.records.entry_json import entry_to_json
from agentformer.tools.shapes import context_json, hit_json, memory_hit_json, reference_json
from agentformer.types import TIERS, Decay, MemoryEntry, Reference, Scope

_MESSAGE = ("role", "speaker")
_FACT_ONLY = ("tier", "kind", "title", "category", "salience")

_tiers = click.option("--tier", "tiers", multiple=True, type=click.Choice(TIERS), help="Of this tier; repeatable.")
_kinds = click.option("--kind", "kinds", metavar="WORD", multiple=True, help="Of this kind; repeatable.")
_archived = click.option("--archived", is_flag=True, help="Archived and superseded ones too.")
_explain = click.option("--explain", is_flag=True, help="Say of each why it stands there: ranks and their weights.")


@main.command(
    epilog=examples(
        'agentformer remember "Aino prefers tea." --user aino',
        'agentformer remember "We chose SQLite." --kind decision --category decisions --project harbour',
        'agentformer remember "Hei!" --session monday --role user --speaker Aino',
        "agentformer remember - --title minutes < minutes.txt",
    )
)
@click.argument("text", metavar="TEXT|-")
@click.option("--tier", type=click.Choice(TIERS), help="How it is kept [semantic].")
@click.option("--kind", metavar="WORD", help="What it is: fact, decision, error, milestone, or your own word [fact].")
@click.option("--title", metavar="TEXT", help="A short name; of a core block, its name.")
@click.option("--category", metavar="WORD", help="Decides how it fades: decisions, summaries, context, or your own.")
@click.option("--salience", metavar="NUMBER", type=float, help="How much it matters, 0 to 1 [1].")
@click.option("--at", "occurred_at", metavar="TIME", help="When it happened: ISO 8601 with a zone.")
@click.option("--metadata", metavar="JSON", help="An object kept with it.")
@click.option("--source", metavar="TYPE:ID", help="The record of your application that it stands for.")
@click.option("--role", metavar="ROLE", help="Keep it as a message of --session: user, assistant, system or tool.")
@click.option("--speaker", metavar="NAME", help="Who said it, of a message.")
@common
@in_place
def remember(text: str, metadata: str | None, source: str | None, place: Any, as_json: bool, **given: Any) -> None:
    """Keep a fact, a decision, or a message of a session.

    TEXT is what to keep; `-` reads it from standard input. A fact that is there already is not kept twice.
    """
    settings = {name: given.pop(name) for name in ("index_dir", "upload_dir", "embedder")}
    values = {name: value for name, value in given.items() if value is not None}
    values |= {"metadata": object_of(metadata) if metadata is not None else {}, **place}
    values |= source_of(source) if source is not None else {}
    content = text_of(text)
    as_message = any(name in values for name in _MESSAGE)
    if as_message:
        _check_message(values)
    with connect(**settings) as af:
        if as_message:
            entry = af.memory.add_message(values.pop("session_id"), values.pop("role"), content, **values)
        else:
            entry = _stored(af, content, values)
        waiting = af.backend.waiting([entry.id])
    print_warnings(
        f"it is kept without a vector and found by its words; `agentformer reindex` embeds it ({item.last_error})"
        for item in waiting
    )
    if as_json:
        print_json(entry_to_json(entry))
    else:
        say(f"{'already there' if entry.repeat_count else 'kept'}  {entry.id}")


@main.command(
    epilog=examples(
        'agentformer recall "What does Aino drink?" --user aino',
        'agentformer recall "Which database?" --kind decision --limit 3',
        'agentformer recall "the move to Turku" --archived --all',
    )
)
@click.argument("query")
@click.option("--limit", metavar="N", type=click.IntRange(1, 10_000), default=10, help="At most [10].")
@_tiers
@_kinds
@_archived
@click.option("--min-salience", metavar="NUMBER", type=float, default=0.0, help="Worth at least this today, 0 to 1.")
@click.option("--all", "every", is_flag=True, help="The nearest ones too that do not bear on the query.")
@click.option("--references", is_flag=True, help="Only the records of your application that they stand for.")
@_explain
@common
@in_place
def recall(
    query: str,
    limit: int,
    tiers: tuple[str, ...],
    kinds: tuple[str, ...],
    archived: bool,
    min_salience: float,
    every: bool,
    references: bool,
    explain: bool,
    place: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the memories that bear on a query, best first."""
    scope = {"tiers": tiers, "kinds": kinds, "include_archived": archived, "min_salience": min_salience, **place}
    asked = {**scope, "limit": limit, "relevant_only": not every}
    with connect(**options) as af:
        if references:
            found = af.memory.references(query, **asked)
            if not found:
                tell_elsewhere(af, place["namespace"])
            _print_references(found, as_json)
            return
        hits = af.memory.search(query, **asked)
        nothing = ""
        if not hits:
            tell_elsewhere(af, place["namespace"])
        if not hits and not as_json:
            nothing = nothing_recalled(af, query, Scope(**scope, decay=Decay(af.settings.decay_rates)), every=every)
    if as_json:
        print_json({"hits": [memory_hit_json(hit) for hit in hits], "warnings": list(hits.warnings)})
    else:
        print_hits(hits, nothing, explain=explain)


@main.command(
    epilog=examples(
        'agentformer search "keys"',
        'agentformer search "keys" --explain',
        'agentformer search "kevätkokous" --limit 3 --json',
    ),
)
@click.argument("query")
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), default=10, help="At most [10].")
@_explain
@common
def search(query: str, limit: int, explain: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Find passages of documents and memories, best first."""
    with connect(**options) as af:
        hits = af.memory.search(query, namespace=namespace, limit=limit)
        if not hits:
            tell_elsewhere(af, namespace)
    if as_json:
        print_json({"hits": [hit_json(hit) for hit in hits], "warnings": list(hits.warnings)})
    else:
        print_hits(hits, explain=explain)


@main.command(
    epilog=examples(
        'agentformer context "Write the release note" --session monday --max-tokens 1000',
        "agentformer context - --json < task.txt",
    )
)
@click.argument("task", metavar="TASK|-")
@click.option("--max-tokens", metavar="N", type=click.IntRange(1), default=4000, help="Never more than this [4000].")
@common
@in_place
def context(task: str, max_tokens: int, place: Any, as_json: bool, **options: Any) -> None:
    """Show what a model should be given for a task.

    That is the core blocks, the conversation, and memories that bear on TASK; `-` reads it from standard input. The
    exit code is 1 when the task itself does not fit.
    """
    text = text_of(task, "TASK")
    with connect(**options) as af:
        built = af.memory.build_context(text, max_tokens=max_tokens, **place)
    fits = _holds(built, text)
    if as_json:
        print_json(context_json(built))
    else:
        _print_context(built)
    if not fits:
        say(f"note: the task does not fit into {max_tokens} tokens; raise --max-tokens, or shorten it", err=True)
    if not as_json:
        _print_left_out(built.report)
    if not fits:
        sys.exit(1)


@main.command(
    epilog=examples(
        "agentformer memories --kind decision",
        "agentformer memories --session monday --archived",
        "agentformer memories --limit 1000 --after 01a20046-0087-7000-994b-d506d6655eb7 --json",
    )
)
@_tiers
@_kinds
@_archived
@click.option("--limit", metavar="N", type=click.IntRange(1, 10_000), default=100, help="At most [100].")
@click.option("--after", metavar="ID", default="", help="Only those behind this id.")
@common
@in_place
def memories(
    tiers: tuple[str, ...],
    kinds: tuple[str, ...],
    archived: bool,
    limit: int,
    after: str,
    place: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """List entries, oldest first.

    With --json, `next` is what --after takes to go on. Pages and chunks of documents are entries too.
    """
    scope = {"tiers": tiers, "kinds": kinds, "include_archived": archived, **place}
    with connect(**options) as af:
        found = af.memory.list(limit=limit, after=after, **scope)
        nothing = ""
        if not found:
            tell_elsewhere(af, place["namespace"])
            nothing = nothing_listed(af, Scope(**scope), after)
    if as_json:
        following = found[-1].id if len(found) == limit else None
        print_json({"entries": [entry_to_json(entry) for entry in found], "next": following})
        return
    print_entries(found)
    if not found:
        say(nothing)


def _stored(af: AgentFormer, content: str, values: Mapping[str, Any]) -> MemoryEntry:
    """The fact, kept; for a core block that is there already, an error that leads to its own commands."""
    try:
        return af.memory.store(content, **values)
    except Conflict:
        if values.get("tier") != "core" or not values.get("title"):
            raise
        raise Conflict(edit_hint(values["title"], values)) from None


def _check_message(values: Mapping[str, Any]) -> None:
    for name, option in (("role", "--role"), ("session_id", "--session")):
        if values.get(name) is None:
            raise InvalidInput(option, "is needed for a message: --session ID --role user|assistant|system|tool")
    for name in _FACT_ONLY:
        if name in values:
            raise InvalidInput(f"--{name}", "is not for messages; leave it out, or --role and --speaker")


def _holds(built: Context, task: str) -> bool:
    """Is the task there, as the last message? Where the user said it last, it is the message that was stored."""
    if not task.strip() or built.report.tokens["task"]:
        return True
    last = built.messages[-1] if built.messages else None
    return last is not None and last.role == "user" and last.content.split() == task.split()


def _print_context(built: Context) -> None:
    print_warnings(built.report.warnings)
    for message in built.messages:
        say(f"--- {message.role}\n{message.content}")


def _print_left_out(report: ContextReport) -> None:
    """What the context takes, and what is not in it, counted by reason."""
    shares = ", ".join(f"{share} {tokens}" for share, tokens in report.tokens.items())
    say(f"note: {report.total} of {report.budget} tokens ({shares}); {len(report.left_out)} left out", err=True)
    for reason, count in Counter(left.reason.partition(":")[0] for left in report.left_out).most_common():
        say(f"note: {count} left out ({reason})", err=True)


def _print_references(references: Sequence[Reference], as_json: bool) -> None:
    if as_json:
        print_json({"references": [reference_json(reference) for reference in references]})
        return
    print_table(
        ("SCORE", "RECORD", "ID"),
        [(f"{each.score:.3f}", f"{each.source_type}:{each.source_id}", each.entry_id) for each in references],
    )
    if not references:
        say("nothing found")
