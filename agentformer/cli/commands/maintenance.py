"""The commands for maintenance: clean, restore, audit, reindex, reembed, spaces, trail, vacuum, upgrade."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentformer.cli.group import Number, common, examples, main, without_namespace
from agentformer.cli.inputs import entry_of, lines_of, open_existing, require_memory
from agentformer.cli.output import (
    INTERRUPTED,
    bar,
    excerpt,
    moment,
    plural,
    print_entries,
    print_json,
    print_result,
    print_table,
    print_warnings,
    say,
    watching,
)
from agentformer.errors import EmbedderUnavailable, InvalidInput
from agentformer.factory import AgentFormer
from agentformer.records import fields
from agentformer.records.entry_json import entry_to_json
from agentformer.records.offers import vectors_of
from agentformer.registry import known, lookup
from agentformer.settings import Settings, load_settings
from agentformer.tools.result_json import move_json, report_json, space_json
from agentformer.types import Reembedding, Scope, SpaceState

if TYPE_CHECKING:
    from agentformer.memory.audit import AuditReport
    from agentformer.records.trail import Act

_DAY = len("2026-11-01")
_PAGE = 1_000  # rows of the trail that are read at a time
_TRAIL_COLUMNS = ("TIME (UTC)", "ACTION", "SUBJECT", "NAMESPACE", "BY", "VIA", "FROM")
_NAME_CHARS = 40  # of a name in the trail, so that one long name does not widen every row; an id has 36
_MOST_DAYS = 36_500  # of the history
_SHOWN = 100  # at most this many waiting entries are shown; the first ones show the problem
_RESUME = "finished work is kept; to continue, run: agentformer reembed --to {to}"


@main.command(
    epilog=examples(
        "agentformer clean --session monday", "agentformer clean --all-namespaces", "agentformer restore ID"
    )
)
@click.option("--session", "session_id", metavar="ID", help="Clean only this session.")
@click.option("--all-namespaces", is_flag=True, help="Clean every namespace.")
@common
def clean(session_id: str | None, all_namespaces: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Summarize the older messages of sessions, and archive these messages and expired entries.

    Nothing is deleted. The command `restore` restores an expired entry, or the original messages of a summary.
    """
    if session_id is not None and all_namespaces:
        raise InvalidInput("--session", "selects a session of one namespace; omit --session or --all-namespaces")
    with open_existing(**options) as af:
        before = _summaries(af)
        with watching(lambda: f"{_summaries(af) - before} summaries so far"):
            report = af.memory.clean(namespace=None if all_namespaces else namespace, session_id=session_id)
    lines = [f"entries archived: {report.archived}; new summaries: {len(report.summaries)}", *report.summaries]
    lines += [f"expired entries archived: {len(report.expired)}", *report.expired] if report.expired else []
    print_result(report_json(report), "\n  ".join(lines), as_json=as_json)
    if report.busy and not as_json:
        print_warnings(["some sessions were skipped, because another process is cleaning them"])


@main.command(epilog=examples("agentformer memories --kind summary", "agentformer restore ID"))
@click.argument("summary_id", metavar="ID")
@common
def restore(summary_id: str, namespace: str, as_json: bool, **options: Any) -> None:
    """Restore the original entries of a summary, or restore a superseded, archived or expired entry.

    ID is an id, the beginning of an id (at least 4 characters), or a title. If ID is a summary, its original entries
    are restored byte for byte, and the summary is archived. A memory is archived, for example, when its file in a
    memory home (a folder of Markdown files) is deleted.
    """
    with open_existing(**options) as af:
        entries = af.memory.restore(entry_of(af, summary_id, namespace).id)
    if as_json:
        print_json({"entries": [entry_to_json(entry) for entry in entries]})
        return
    say(f"entries restored: {len(entries)}")
    print_entries(entries)


@main.command(epilog=examples("agentformer audit", "agentformer audit --merge", "agentformer audit --json"))
@click.option("--merge", is_flag=True, help="Keep the oldest duplicate and mark the others as superseded.")
@common
def audit(merge: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Show duplicates, contradictions and entries that were never read.

    Two facts of the same owner contradict each other if a search ranks the newer one first: it states another value of
    the same property, says that something has changed, or negates the older one. Core blocks contradict each other if a
    number, a date or a negation differs. Some contradictions are not found, and a result can be a false alarm. The
    command also shows core blocks whose size is near the limit. Without --merge, nothing is changed. No language model
    is needed."""
    from agentformer.memory.audit import merge_duplicates

    with open_existing(**options) as af:
        report = af.memory.audit(namespace=namespace)
        merged = merge_duplicates(af.backend, report) if merge else []
    if as_json:
        print_json({**report_json(report), "merged": [entry.id for entry in merged]})
        return
    _print_audit(report)
    if merge:
        say(f"duplicates superseded: {len(merged)}")
    elif report.duplicates:
        say("agentformer audit --merge keeps the oldest duplicate and marks the others as superseded")


@main.command(epilog=examples("agentformer reindex", "agentformer reindex --show --namespace board"))
@click.option(
    "--show", is_flag=True, help="Only show the waiting entries, with the number of attempts and the last error."
)
@common
def reindex(show: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Embed the entries that wait for an embedder, in every namespace.

    An entry waits if no embedder could be used when the entry was stored. The command also waits until the search
    index is up to date. The exit code is 1 if entries are still waiting at the end.
    """
    with open_existing(**{**options, "embed_retry_seconds": 0}) as af:
        if not show:
            with watching(lambda: f"{_pending(af, af.backend.namespaces())} entries to go"):
                af.memory.reindex()
        namespaces = [namespace] if show else af.backend.namespaces()
        waiting = [item for name in namespaces for item in vectors_of(af.backend).waiting(Scope(name), limit=_SHOWN)]
        count = _pending(af, namespaces)
    if as_json:
        print_json({"pending": count, "waiting": [report_json(item) for item in waiting[:_SHOWN]]})
    else:
        say(f"entries that wait for an embedder: {count}" if count else "all entries are embedded")
        for item in waiting[: _SHOWN if show else 1]:
            say(f"  {item.entry_id}  {plural(item.attempts, 'attempt')}: {item.last_error}")
    if count and not show:
        sys.exit(1)


@main.command(
    epilog=examples(
        "agentformer reembed --to multilingual",
        "agentformer reembed --to ollama:nomic-embed-text --queries questions.txt",
        "agentformer reembed --abandon",
    )
)
@click.option(
    "--to", metavar="SPEC", help="The new embedder: multilingual, minilm, sbert:MODEL, ollama:MODEL, openai:MODEL, ..."
)
@click.option(
    "--queries",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare the current and the new embedder with the queries in this file, one per line. Without this option, "
    "stored entries are used as queries.",
)
@click.option("--abandon", is_flag=True, help="Abandon an unfinished move to another embedder.")
@common
def reembed(to: str | None, queries: Path | None, abandon: bool, as_json: bool, **options: Any) -> None:
    """Move the memory to another embedder while the memory stays in use.

    The new embedder embeds the texts of every namespace. Searches use the current embedder until this work is complete.
    After an interruption, the same command continues the work. The former vectors are kept until you run `agentformer
    spaces prune`.
    """
    options.pop("namespace")
    if bool(to) == abandon:
        raise InvalidInput(
            "--to", "name the new embedder, such as --to multilingual; or give --abandon to abandon an unfinished move"
        )
    # `auto` means the embedder of the store. The settings may name the new embedder already.
    with open_existing(**{**options, "embedder": "auto", "embed_retry_seconds": 0}) as af:
        if not to:
            abandoned = vectors_of(af.backend).abandon_reembedding()
            text = "the move was abandoned" if abandoned else "there is no unfinished move"
            print_result({"abandoned": abandoned}, text, as_json=as_json)
            return
        lines = lines_of(queries, "--queries") if queries else []
        result = _reembed(af, to, [line.strip() for line in lines if line.strip()])
    if as_json:
        print_json(move_json(result))
    else:
        _print_reembedding(result)


@main.group(
    invoke_without_command=True,
    epilog=examples("agentformer spaces", "agentformer spaces --json", "agentformer spaces prune"),
)
@common
def spaces(namespace: str, as_json: bool, **options: Any) -> None:
    """Show the embedding spaces of the memory.

    An embedding space has the vectors of one embedder. `spaces prune` deletes the spaces that searches do not use.
    """
    if click.get_current_context().invoked_subcommand:
        return
    with open_existing(**{**options, "embedder": "auto"}) as af:
        states = list(vectors_of(af.backend).spaces())
    if as_json:
        print_json([space_json(state) for state in states])
        return
    headings = ("STATE", "EMBEDDER", "DIMENSIONS", "VECTORS", "MB", "")
    print_table(headings, [_space_cells(state) for state in states], right=(2, 3, 4))
    if not states:
        say("there are no vectors yet")


@spaces.command(epilog=examples("agentformer spaces prune"))
@common
def prune(namespace: str, as_json: bool, **options: Any) -> None:
    """Delete the vectors of embedding spaces that searches do not use."""
    with open_existing(**{**options, "embedder": "auto"}) as af:
        deleted = vectors_of(af.backend).prune_spaces()
    print_result({"vectors": deleted}, f"vectors deleted: {deleted}", as_json=as_json)


def _summaries(af: AgentFormer) -> int:
    kinds = ("summary",)
    return sum(af.backend.count(Scope(name, kinds=kinds, include_archived=True)) for name in af.backend.namespaces())


def _pending(af: AgentFormer, namespaces: Iterable[str]) -> int:
    return sum(vectors_of(af.backend).pending(Scope(name)) for name in namespaces)


def _print_audit(report: AuditReport) -> None:
    say(f"entries checked: {report.entries}")
    counts = report.compared
    say(f"  searched for duplicates: {plural(counts['texts'], 'text')}")
    blocks = plural(counts["core_blocks"], "core block")
    say(f"  searched for contradictions: {plural(counts['facts'], 'fact')}, {blocks}")
    titled = [("duplicates", group) for group in report.duplicates]
    titled += [(f"similar ({group.similarity:.2f})", group) for group in report.near_duplicates]
    for title, group in titled:
        say("\n  ".join([f"\n{title}: {excerpt(group.excerpt)}", *group.ids]))
    for contradiction in report.contradictions:
        say(f"\ncontradiction ({contradiction.about})")
        sentences = zip(contradiction.ids, contradiction.titles, contradiction.sentences, strict=True)
        rows = [(entry_id, title, excerpt(sentence)) for entry_id, title, sentence in sentences]
        print_table(("ID", "TITLE", "TEXT"), rows, indent="  ")
    if report.oversized:
        say("\nlarge blocks")
        sizes = [(block.id, f"{block.tokens} of {block.limit}", block.title) for block in report.oversized]
        print_table(("ID", "TOKENS", "BLOCK"), sizes, indent="  ")
    if unread := report.unread.count:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.unread.kinds.items())
        title = f"\nnever read in {report.unread.days} days: {unread} ({kinds}), the oldest:"
        say("\n  ".join([title, *report.unread.ids]))
    if not (titled or report.contradictions or report.oversized):
        say("no duplicates, contradictions or large blocks")
    print_warnings(report.notes)


@main.command(epilog=examples("agentformer trail --since 2026-11-01", "agentformer trail --subject ID --json"))
@click.option("--subject", metavar="ID", default="", help="Only rows about this entry, document or key.")
@click.option("--key", metavar="ID", default="", help="Only what the key with this id did.")
@click.option(
    "--since",
    metavar="TIME",
    help="Only rows of this day (in UTC) or of this time (with its zone) or later, such as 2026-11-30T17:57Z.",
)
@without_namespace
def trail(subject: str, key: str, since: str | None, as_json: bool, **options: Any) -> None:
    """Show who changed what, when, and from where.

    The trail has a row for each change of an entry, a document or a key, over every interface. With --json, each row is
    one line of JSON (JSON Lines); without it, long names are cut. Rows have no texts. A server deletes them after the
    setting `trail_days` (365).
    """
    from agentformer.records.trail import Wanted

    begin = fields.moment("--since", f"{since}T00:00:00Z" if since and len(since) == _DAY else since)
    with open_existing(**{**options, "embed_retry_seconds": 0}) as af:
        wanted, after = Wanted(subject, key, (), begin), 0
        while acts := af.trail.page(wanted, after=after, limit=_PAGE):
            after = acts[-1].seq
            if as_json:
                for act in acts:
                    print_json({**act._asdict(), "at": act.at.isoformat()}, indent=None)
            else:
                print_table(_TRAIL_COLUMNS, map(_act_cells, acts))
    if not after:
        say("the trail has no such row", err=True)


@main.command(
    epilog=examples("agentformer vacuum", "agentformer vacuum --history-days 365", "agentformer vacuum --full")
)
@click.option(
    "--history-days",
    type=Number(0, _MOST_DAYS),
    metavar="N",
    help="Also delete the former versions of entries that were replaced more than N days ago [default: keep all].",
)
@click.option(
    "--full",
    is_flag=True,
    help="With PostgreSQL: write each table anew, so that no bytes of deleted rows are left in it. Other processes "
    "that use the table wait.",
)
@without_namespace
def vacuum(history_days: float | None, full: bool, as_json: bool, **options: Any) -> None:
    """Give the space of deleted content back to the disk while the memory stays in use.

    Readers go on; writers wait until the end, for about a second for each 100 MB. The disk needs room for two more
    copies of the database. In PostgreSQL, deleted rows become free for new ones, and the files keep their size and,
    until other rows are written there, bytes of the deleted rows. With --full, they do not.
    """
    settings = _settings_of("vacuums", options)
    before = datetime.now(UTC) - timedelta(days=history_days) if history_days is not None else None
    done = lookup("vacuums", settings.backend)(settings, before, full=full)
    text = f"the database has {done.after / 1e6:.1f} MB; before, it had {done.before / 1e6:.1f} MB"
    text += f"; former versions deleted: {done.versions}" if before else ""
    print_result(done._asdict(), text, as_json=as_json)
    if done.log and not as_json:
        print_warnings(
            [
                f"{done.log / 1e6:.1f} MB of it are the write-ahead log, because another process is reading; it is "
                "emptied, and the file gets smaller, at a later vacuum, or when the last process ends"
            ]
        )


@main.command(epilog=examples("agentformer upgrade", "agentformer upgrade --without-copy"))
@click.option("--without-copy", is_flag=True, help="Make no copy, for a full disk or for a database that you copied.")
@without_namespace
def upgrade(without_copy: bool, as_json: bool, **options: Any) -> None:
    """Migrate the store of an older version, after a copy of it.

    Every command and server does this at the start, so the command is needed only with --without-copy: if the disk has
    no room for a copy, or for PostgreSQL, whose database is not copied. Stop the processes of the older version first.
    """
    settings = _settings_of("upgrades", options)
    lookup("upgrades", settings.backend)(settings, copy=not without_copy)
    print_result({"upgraded": True}, "the store has the schema of this version", as_json=as_json)


def _act_cells(act: Act) -> tuple[str, ...]:
    names = (act.subject, act.namespace, act.key or act.user, act.via, act.client)
    return moment(act.at), act.action, *(excerpt(name, _NAME_CHARS) or "-" for name in names)


def _settings_of(group: str, options: dict[str, Any]) -> Settings:
    """Return the settings of an existing memory whose backend has a function in a group of the registry."""
    settings = load_settings(options)
    require_memory(settings)
    if not known(group, settings.backend):
        raise InvalidInput("backend", f"{settings.backend} has no database of its own, so there is nothing to do")
    return settings


def _space_cells(state: SpaceState) -> tuple[str, ...]:
    left = f"{state.waiting} entries to go" if state.state == "building" else ""
    size = f"{state.bytes / 1e6:.1f}"
    return state.state, state.space.spec, str(state.space.dimension), str(state.vectors), size, left


def _reembed(af: AgentFormer, to: str, queries: list[str]) -> Reembedding:
    try:
        with bar(f"reembed {to}", "entries", last_line=True) as progress:
            return af.reembed(to, queries=queries, progress=progress)
    except EmbedderUnavailable:
        say(_RESUME.format(to=to), err=True)
        raise
    except KeyboardInterrupt:
        say(f"interrupted; {_RESUME.format(to=to)}", err=True)
        sys.exit(INTERRUPTED)


def _print_reembedding(result: Reembedding) -> None:
    if not result.switched:
        say(f"the memory uses {result.space.spec} already")
        return
    former = f"from {result.former.spec} " if result.former else ""
    say(f"moved {former}to {result.space.spec} ({result.space.dimension} dimensions)")
    texts = f"texts embedded: {result.embedded}, reused: {result.reused}"
    say(f"{plural(result.entries, 'entry')} in {result.seconds:.1f} s; {texts}")
    if result.overlap is not None:
        queries = f"over {plural(result.sample, 'query')}"
        say(f"both embedders agree on {result.overlap:.0%} of the nearest ten entries ({queries})")
    if result.failed:
        say(f"entries that the model refused: {result.failed}; see agentformer reindex --show", err=True)
    if result.former:
        say("the former vectors are kept; agentformer spaces prune deletes them")
