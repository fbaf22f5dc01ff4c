"""Commands that look after a memory: clean, restore, audit, status, serve."""

from __future__ import annotations

import json
from typing import Any

import click

from agentformer.cli.group import common, entry_in, main
from agentformer.cli.output import excerpt, print_entries, print_json, say
from agentformer.errors import InvalidInput, MissingExtra
from agentformer.factory import connect
from agentformer.memory.audit import AuditReport, Duplicates, merge_duplicates
from agentformer.registry import lookup
from agentformer.settings import load_settings
from agentformer.tools.shapes import entry_json, report_json


@main.command()
@click.option("--session", "session_id", help="This session only.")
@click.option("--all-namespaces", is_flag=True, help="Every namespace.")
@common
def clean(session_id: str | None, all_namespaces: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Summarise the older messages of sessions and archive them; `restore` brings them back."""
    if session_id is not None and all_namespaces:
        raise InvalidInput("--session", "is a session of one namespace; leave --all-namespaces out")
    with connect(**options) as af:
        report = af.memory.clean(namespace=None if all_namespaces else namespace, session_id=session_id)
    if as_json:
        print_json(report_json(report))
        return
    say(f"entries archived: {report.archived}; new summaries: {len(report.summaries)}")
    for summary_id in report.summaries:
        say(f"  {summary_id}")
    if report.busy:
        say("another process was cleaning some sessions; they were left to it", err=True)


@main.command()
@click.argument("summary_id", metavar="ID")
@common
def restore(summary_id: str, namespace: str, as_json: bool, **options: Any) -> None:
    """Bring back the originals of a summary, which is archived, or a superseded entry."""
    with connect(**options) as af:
        entry_in(af, summary_id, namespace)
        entries = af.memory.restore(summary_id)
    if as_json:
        print_json({"entries": [entry_json(entry) for entry in entries]})
        return
    say(f"entries restored: {len(entries)}")
    print_entries(entries)


@main.command()
@click.option("--merge", is_flag=True, help="Let the oldest of equal entries stand for the others; none is deleted.")
@common
def audit(merge: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Show duplicates, entries never read, contradictory core blocks and oversized ones. Changes nothing by itself."""
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


@main.command()
@common
def status(namespace: str, as_json: bool, **options: Any) -> None:
    """Show what is kept and in which state."""
    with connect(**options) as af:
        state = af.status()
        documents = af.rag.documents(namespace=namespace)
    state["documents"] = {name: sum(d.status == name for d in documents) for name in {d.status for d in documents}}
    if as_json:
        print_json(state)
        return
    for name, value in state.items():
        say(f"{name:10} {json.dumps(value, ensure_ascii=False)}")


@main.command()
@click.option("--host", help="Address to listen on [127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one [8808].")
@common
def serve(host: str | None, port: int | None, namespace: str, as_json: bool, **options: Any) -> None:
    """Serve the HTTP API until SIGTERM."""
    try:
        run = lookup("servers", "waitress")
    except ModuleNotFoundError as error:
        raise MissingExtra("server", f"the server ({error.name})") from None
    run(load_settings({**options, "host": host, "port": port}), started=lambda url: say(f"serving on {url}"))


def _print_audit(report: AuditReport) -> None:
    """Each finding with the ids that a person needs to act on it."""
    say(f"entries looked at: {report.entries}")
    for group in report.duplicates:
        _print_group("duplicates", group)
    for group in report.near_duplicates:
        _print_group(f"alike ({group.similarity:.2f})", group)
    for found in report.contradictions:
        say(f"contradiction ({found.about}):")
        for block_id, title, sentence in zip(found.ids, found.titles, found.sentences, strict=True):
            say(f"  {block_id}  [{title}] {excerpt(sentence)}")
    for block in report.oversized:
        say(f"large block: {block.id}  [{block.title}] {block.tokens} of {block.limit} tokens")
    if report.unread.count:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.unread.kinds.items())
        say(f"never read in {report.unread.days} days: {report.unread.count} ({kinds}), the oldest:")
        for entry_id in report.unread.ids:
            say(f"  {entry_id}")
    for note in report.notes:
        say(f"note: {note}", err=True)


def _print_group(what: str, group: Duplicates) -> None:
    say(f"{what}: {excerpt(group.excerpt)}")
    for entry_id in group.ids:
        say(f"  {entry_id}")
