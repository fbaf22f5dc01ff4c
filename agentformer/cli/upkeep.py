"""Commands that look after a memory: clean, restore, audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentformer.cli.group import common, entry_in, examples, main
from agentformer.cli.output import excerpt, print_entries, print_json, print_table, say
from agentformer.cli.progress import watching
from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer, connect
from agentformer.records.entry_json import entry_to_json
from agentformer.tools.shapes import report_json
from agentformer.types import Scope

if TYPE_CHECKING:
    from agentformer.memory.audit.audit import AuditReport, Duplicates


@main.command(
    epilog=examples(
        "agentformer clean --session monday", "agentformer clean --all-namespaces", "agentformer restore ID"
    )
)
@click.option("--session", "session_id", metavar="ID", help="This session only.")
@click.option("--all-namespaces", is_flag=True, help="Every namespace.")
@common
def clean(session_id: str | None, all_namespaces: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Summarise the older messages of sessions, and archive them.

    Nothing is deleted: `restore` brings back what a summary stands for.
    """
    if session_id is not None and all_namespaces:
        raise InvalidInput("--session", "is a session of one namespace; leave --all-namespaces out")
    with connect(**options) as af:
        before = _summaries(af)
        with watching(lambda: f"{_summaries(af) - before} summaries so far"):
            report = af.memory.clean(namespace=None if all_namespaces else namespace, session_id=session_id)
    if as_json:
        print_json(report_json(report))
        return
    say(f"entries archived: {report.archived}; new summaries: {len(report.summaries)}")
    for summary_id in report.summaries:
        say(f"  {summary_id}")
    if report.busy:
        say("another process was cleaning some sessions; they were left to it", err=True)


@main.command(epilog=examples("agentformer memories --kind summary", "agentformer restore ID"))
@click.argument("summary_id", metavar="ID")
@common
def restore(summary_id: str, namespace: str, as_json: bool, **options: Any) -> None:
    """Bring back a summary's originals, or a superseded entry.

    The originals are as they were, byte for byte; the summary is archived.
    """
    with connect(**options) as af:
        entry_in(af, summary_id, namespace)
        entries = af.memory.restore(summary_id)
    if as_json:
        print_json({"entries": [entry_to_json(entry) for entry in entries]})
        return
    say(f"entries restored: {len(entries)}")
    print_entries(entries)


@main.command(epilog=examples("agentformer audit", "agentformer audit --merge", "agentformer audit --json"))
@click.option("--merge", is_flag=True, help="Let the oldest of equal entries stand for the others; none is deleted.")
@common
def audit(merge: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Show duplicates, contradictions and entries never read.

    Also core blocks near their limit. Nothing is changed without --merge, and no language model is needed.
    """
    from agentformer.memory.audit.audit import merge_duplicates

    with connect(**options) as af:
        report = af.memory.audit(namespace=namespace)
        merged = merge_duplicates(af.backend, report) if merge else []
    if as_json:
        print_json({**report_json(report), "merged": [entry.id for entry in merged]})
        return
    _print_audit(report)
    if merge:
        say(f"entries merged into older ones: {len(merged)}")
    elif report.duplicates:
        say("agentformer audit --merge lets the first of each stand for the others")


def _summaries(af: AgentFormer) -> int:
    kinds = ("summary",)
    return sum(af.backend.count(Scope(name, kinds=kinds, include_archived=True)) for name in af.backend.namespaces())


def _print_audit(report: AuditReport) -> None:
    """Each finding with the ids that a person needs to act on it, under what it is."""
    say(f"entries looked at: {report.entries}")
    for group in report.duplicates:
        _print_group("duplicates", group)
    for group in report.near_duplicates:
        _print_group(f"alike ({group.similarity:.2f})", group)
    for found in report.contradictions:
        say(f"\ncontradiction ({found.about})")
        rows = zip(found.ids, found.titles, found.sentences, strict=True)
        told = [(block_id, title, excerpt(sentence)) for block_id, title, sentence in rows]
        print_table(("ID", "BLOCK", "TEXT"), told, indent="  ")
    if report.oversized:
        say("\nlarge blocks")
        sizes = [(block.id, f"{block.tokens} of {block.limit}", block.title) for block in report.oversized]
        print_table(("ID", "TOKENS", "BLOCK"), sizes, indent="  ")
    if report.unread.count:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.unread.kinds.items())
        say(f"\nnever read in {report.unread.days} days: {report.unread.count} ({kinds}), the oldest:")
        for entry_id in report.unread.ids:
            say(f"  {entry_id}")
    if not (report.duplicates or report.near_duplicates or report.contradictions or report.oversized):
        say("no duplicates, contradictions or large blocks")
    for note in report.notes:
        say(f"note: {note}", err=True)


def _print_group(what: str, group: Duplicates) -> None:
    say(f"\n{what}: {excerpt(group.excerpt)}")
    for entry_id in group.ids:
        say(f"  {entry_id}")
