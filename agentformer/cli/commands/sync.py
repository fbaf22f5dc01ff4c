"""The command sync, for a folder of documents and for a memory home, which is a folder of Markdown files."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from agentformer.archive.markdown.file_matching import HomeReport
from agentformer.cli.group import common, examples, explicit_namespace, main
from agentformer.cli.inputs import hint_namespaces
from agentformer.cli.output import bar, clip, one_line, plural, print_json, say
from agentformer.errors import InvalidInput, MissingExtra
from agentformer.factory import AgentFormer, connect
from agentformer.rag.folder_files import checked_folder, encodable, is_home
from agentformer.rag.folder_sync import SyncReport
from agentformer.records import fields
from agentformer.records.integrity.files import kind_of
from agentformer.tools.result_json import sync_json

_SHOWN = 10  # at most this many skipped files, and files of each kind of change in a memory home, are printed
_LOOK_SECONDS = 1.0  # seconds between two checks for changes of a memory home with --watch
_CHANGES = ("added", "changed", "restored", "archived", "written", "deleted")  # lists of the report of a memory home
_DEBOUNCE = 1_000  # milliseconds without a change, after which a folder is synced


@main.command(
    epilog=examples(
        "agentformer sync notes/",
        "agentformer sync project/ --namespace project --watch",
        "agentformer sync ~/memory",
        """agentformer sync minutes/ --metadata '{"year": 2026}' --json""",
    )
)
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option(
    "--delete",
    is_flag=True,
    help="Remove the documents of missing files even if the folder or more than half of its files are gone.",
)
@click.option(
    "--watch", is_flag=True, help="Keep running, and sync again whenever a file changes. Ctrl-C ends the command."
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Accept a DIR that is a memory home of another memory, and store its files in this memory.",
)
@click.option("--metadata", metavar="JSON", help="A JSON object that is stored with new and changed documents.")
@click.option("--user", "user_id", metavar="ID", help="The user to whom the documents belong [default: no user].")
@common
def sync(
    folder: str,
    delete: bool,
    watch: bool,
    adopt: bool,
    metadata: str | None,
    user_id: str | None,
    namespace: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Keep documents equal to the files of a folder.

    New and changed files are ingested. A file that was moved inside the folder keeps its vectors. The documents of
    files that are gone are removed. Files that have not changed since the last sync are not read. Hidden files, files
    that .gitignore or .agentformerignore names, installed packages, build results, and binary files are left out. If
    more than half of the files are gone, nothing is changed without --delete. The exit code is 1 if a file cannot be
    read.

    If DIR is a memory home that `export --markdown` wrote, edits of its files become new versions of the memories, new
    files become new memories, and the memories of deleted files are archived. Changes of the memories are written into
    the files (docs/MARKDOWN.md). The exit code is 1 if a file and its memory were both changed, or if a file cannot be
    used."""
    user_id = fields.optional_name("--user", user_id)
    if adopt or is_home(checked_folder(folder)):
        if user_id:
            raise InvalidInput("--user", "is not used for a memory home; write the user into the files")
        if metadata:
            raise InvalidInput("--metadata", "is not used for a memory home; write the metadata into the files")
        flags = {"delete": delete, "watch": watch, "adopt": adopt}
        _sync_home(folder, explicit_namespace(namespace), options, **flags, as_json=as_json)
        return
    stored = fields.stored_metadata(fields.json_object("--metadata", metadata), "--metadata") if metadata else None
    given = {"namespace": fields.name("--namespace", namespace), "metadata": stored, "delete": delete}
    given["user_id"] = user_id
    with connect(**options) as af:
        _sync_folder(af, folder, given, watch=watch, as_json=as_json)


def _sync_folder(af: AgentFormer, folder: str, given: dict[str, Any], *, watch: bool, as_json: bool) -> None:
    """Sync a folder once or, with `watch`, after each change. Exits with code 1 if a file could not be read."""
    own = (af.settings.index_dir, af.settings.upload_dir)
    changes = _changes(folder, own) if watch and kind_of(folder, "DIR") == "folder" else iter(())
    report = _sync(af, folder, given, as_json)
    for _ in changes:
        report = _sync(af, folder, given, as_json)
    if report.failed:
        sys.exit(1)


def _sync(af: AgentFormer, folder: str, given: dict[str, Any], as_json: bool) -> SyncReport:
    with bar(f"sync {clip(one_line(folder), 40)}", "files") as progress:
        report = af.rag.sync(folder, progress=progress, **given)
    if as_json:
        print_json(sync_json(report), indent=None)
        return report
    for name, reason in report.skipped[:_SHOWN]:
        say(f"skipped    {one_line(name)}  ({one_line(reason)})")
    if (more := len(report.skipped) - _SHOWN) > 0:
        say(f"skipped    {plural(more, 'more file')} (--json lists all)")
    for name, reason in report.failed:
        say(f"failed     {one_line(name)}  ({one_line(reason)})")
    for former, name in report.renamed:
        say(f"renamed    {one_line(former)}, now {one_line(name)}")
    for state, names in (("added", report.added), ("changed", report.changed), ("removed", report.removed)):
        for name in names:
            say(f"{state:9}  {one_line(name)}")
    say(_summary(report))
    return report


def _summary(report: SyncReport) -> str:
    counts = {state: len(getattr(report, state)) for state in ("added", "changed", "renamed", "removed")}
    counts |= {"unchanged": report.unchanged, "failed": len(report.failed)}
    parts = [f"{count} {state}" for state, count in counts.items() if count] or ["the folder contains no files to read"]
    handled = len(report.added) + len(report.changed)
    rate = f", {plural(handled, 'file')} in {report.seconds:.1f} s" if handled else ""
    return f"{', '.join(parts)}{rate}"


def _changes(folder: str, own: Iterable[Path]) -> Iterator[object]:
    """Watch a folder for `--watch`. Each item of the iterator means that files have changed. Changes in the folders
    `own`, which contain the data of the memory, do not count. Raises `MissingExtra` if the extra `folders` is not
    installed, and `InvalidInput` if the path is not UTF-8."""
    try:
        from watchfiles import Change, DefaultFilter, watch
    except ImportError as error:
        raise MissingExtra("folders", "--watch", error) from None
    if encodable(folder) != Path(folder).as_posix():
        raise InvalidInput("--watch", "cannot watch a folder whose path is not UTF-8; rename it, or omit --watch")

    usual, left_out = DefaultFilter(), [path.resolve() for path in own]

    def counts(change: Change, path: str) -> bool:
        return usual(change, path) and not any(Path(path).resolve().is_relative_to(each) for each in left_out)

    times: dict[str, Any] = {
        "debounce": _DEBOUNCE,
        "rust_timeout": _DEBOUNCE,
        "yield_on_timeout": True,
        "raise_interrupt": False,
    }
    start = functools.partial(watch, Path(folder), watch_filter=counts, **times)
    found = start()
    next(found, None)  # the first call starts the watcher; it returns after `rust_timeout`
    return _follow(found, start)


def _follow(found: Iterator[object], start: Callable[[], Iterator[object]]) -> Iterator[object]:
    while True:
        try:
            yield from (changes for changes in found if changes)
            return
        except RuntimeError:  # the watcher ends at a name that is not UTF-8
            found = _restarted(start)


def _restarted(start: Callable[[], Iterator[object]]) -> Iterator[object]:
    time.sleep(_DEBOUNCE / 1_000)
    found = start()
    try:
        next(found, None)
    finally:
        yield True  # for the changes before the new watcher started
    yield from found


def export_home(af: AgentFormer, folder: Path, namespace: str, *, as_json: bool) -> None:
    """Export a namespace into a memory home, and print the report. Exit with code 1 if the report has problems."""
    hint_namespaces(af, namespace)
    report = af.markdown.export(folder, namespace=namespace)
    _show(report, as_json=as_json)
    if not report.complete:
        sys.exit(1)


def _sync_home(
    folder: str,
    namespace: str | None,
    options: Mapping[str, Any],
    *,
    delete: bool,
    watch: bool,
    adopt: bool,
    as_json: bool,
) -> None:
    """Sync a memory home, a folder of Markdown files, and print the report. `namespace`, `delete` and `adopt` are
    arguments of `MarkdownHomes.sync`. With `watch`, sync again after each change, until Ctrl-C. Exit with code 1 if the
    report has problems."""
    fields.optional_name("--namespace", namespace)
    with connect(**options) as af:
        report = af.markdown.sync(folder, namespace=namespace, delete=delete, adopt=adopt)
        _show(report, as_json=as_json)
        if watch:
            follower = af.markdown.follow(folder)
            while True:
                time.sleep(_LOOK_SECONDS)
                latest = follower.step()
                if latest and (not latest.complete or any(getattr(latest, name) for name in _CHANGES)):
                    _show(latest, as_json=as_json)
    if not report.complete:
        sys.exit(1)


def _show(report: HomeReport, *, as_json: bool) -> None:
    if as_json:
        values = {**dataclasses.asdict(report), "seconds": round(report.seconds, 3)}
        for name in ("conflicts", "pending", "skipped", "failed"):
            values[name] = [problem._asdict() for problem in getattr(report, name)]
        print_json(values, indent=None)
        return
    for state in ("skipped", "pending", "failed", "conflicts"):
        label = "conflict" if state == "conflicts" else state
        for name, reason in getattr(report, state):
            say(f"{label:9}  {one_line(name)}  ({one_line(reason)})")
    for state in _CHANGES:
        names = getattr(report, state)
        for name in names[:_SHOWN]:
            say(f"{state:9}  {one_line(name)}")
        if len(names) > _SHOWN:
            say(f"{state:9}  {plural(len(names) - _SHOWN, 'more file')} (--json lists all)")
    counts = {name: len(getattr(report, name)) for name in (*_CHANGES, "conflicts", "failed")}
    parts = [f"{count} {name}" for name, count in (*counts.items(), ("unchanged", report.unchanged)) if count]
    say(", ".join(parts) or "the memory home is empty")
