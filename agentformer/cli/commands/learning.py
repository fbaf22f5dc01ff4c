"""The commands that learn facts from messages, and show what is known about a user: learn, profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentformer.cli.group import common, examples, main
from agentformer.cli.inputs import open_existing
from agentformer.cli.output import excerpt, moment, plural, print_json, print_result, print_table, print_warnings, say
from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer
from agentformer.tools.result_json import report_json

if TYPE_CHECKING:
    from agentformer.memory.learning import LearningReport


@main.command(
    epilog=examples(
        "agentformer learn --session monday",
        "agentformer learn --user aino --dry-run",
        "agentformer learn --runs",
        "agentformer learn --undo RUN",
    )
)
@click.option("--session", "session_id", metavar="ID", help="Read only this session.")
@click.option("--user", "user_id", metavar="ID", help="Read only messages of this user.")
@click.option("--project", metavar="NAME", help="Read only messages of this project.")
@click.option(
    "--message",
    "messages",
    multiple=True,
    metavar="ID",
    help="Read this message, also if it was read before. The option can be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show the facts, and store nothing.")
@click.option("--undo", metavar="RUN", help="Undo this run: archive its facts, except those that were changed.")
@click.option("--runs", is_flag=True, help="List the runs, newest first.")
@common
def learn(namespace: str, undo: str | None, runs: bool, as_json: bool, **given: Any) -> None:
    """Store the facts that users have stated in messages, each with the words that prove it.

    Each message is read once. If a language model is configured, it proposes the facts, and those that the message does
    not prove are dropped. Without a model, facts are learnt by the form of the sentences.
    """
    selection = {name: given.pop(name) for name in ("session_id", "user_id", "project", "messages", "dry_run")}
    if [undo is not None, runs, any(selection.values())].count(True) > 1:
        raise InvalidInput("--undo" if undo else "--runs", "cannot be combined with options that select messages")
    with open_existing(**given) as af:
        if undo is not None:
            undone = af.memory.undo_learning(undo)
            text = f"facts archived: {len(undone.archived)}; changed facts that stay: {len(undone.kept)}"
            print_result(report_json(undone), text, as_json=as_json)
        elif runs:
            _list_runs(af, namespace, as_json=as_json)
        else:
            report = af.memory.learn(namespace=namespace, **selection)
            print_result(report_json(report), _described(report), as_json=as_json)
            if report.busy and not as_json:
                print_warnings(["some sessions were skipped, because another process is reading them"])


@main.command(epilog=examples("agentformer profile aino", "agentformer profile aino --max-tokens 300 --json"))
@click.argument("user_id", metavar="USER")
@click.option("--agent", "agent_id", metavar="ID", help="Use only entries and core blocks of this agent.")
@click.option("--project", metavar="NAME", help="Use only entries of this project.")
@click.option("--max-tokens", type=click.IntRange(1), default=1_000, help="The largest size [default: 1000].")
@common
def profile(user_id: str, namespace: str, as_json: bool, max_tokens: int, **given: Any) -> None:
    """Show what holds now about a user, with the source and the time of each statement.

    The statements are core blocks, instructions and facts of the user. Facts that a newer one replaces are left out.
    """
    owner = {name: given.pop(name) for name in ("agent_id", "project")}
    with open_existing(**given) as af:
        found = af.memory.profile(user_id, namespace=namespace, max_tokens=max_tokens, **owner)
    if as_json:
        print_json(report_json(found))
        return
    rows = [
        (group.name, moment(item.at), (item.source or item.id), excerpt(item.line))
        for group in found.groups
        for item in group.items
    ]
    print_table(("ABOUT", "SINCE (UTC)", "SOURCE", "TEXT"), rows)
    if found.left_out:
        say(f"left out, because --max-tokens has no room: {found.left_out}")


def _list_runs(af: AgentFormer, namespace: str, *, as_json: bool) -> None:
    listed = af.memory.learning_runs(namespace=namespace)
    if as_json:
        print_json({"runs": [report_json(run) for run in listed]})
        return
    rows = [
        (run.id, moment(run.at), str(run.messages), str(run.facts), "undone" if run.undone else "") for run in listed
    ]
    print_table(("RUN", "AT (UTC)", "MESSAGES", "FACTS", "STATE"), rows, right=(2, 3))


def _described(report: LearningReport) -> str:
    lines = [f"{plural(report.messages, 'message')} read; facts: {len(report.facts)}; known already: {report.known}"]
    lines += [f"  {fact.id}  {fact.text}".rstrip() for fact in report.facts]
    if report.dropped:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(report.dropped.items()))
        lines.append(f"proposals dropped: {reasons}")
    if report.calls:
        tokens = f"{report.tokens_in} tokens read and {report.tokens_out} written"
        lines.append(f"{plural(report.calls, 'call')} of the language model: {tokens}")
    if report.run:
        lines.append(f"to undo: agentformer learn --undo {report.run}")
    return "\n".join(lines)
