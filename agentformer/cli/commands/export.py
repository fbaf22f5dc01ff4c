"""The commands that copy a memory: backup, copy, export, import."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agentformer.archive.backup import INDEXES, UPLOADS, check_backup, delete_older, missing_originals, next_backup
from agentformer.archive.chats.importer import ChatsImported
from agentformer.archive.export import Exported
from agentformer.archive.format import MANIFEST
from agentformer.archive.unpacking import is_zipped
from agentformer.cli.commands.sync import export_home
from agentformer.cli.group import common, examples, in_place, main, without_namespace
from agentformer.cli.inputs import address, hint_namespaces, open_existing, require_memory, same_place, shown_place
from agentformer.cli.output import bar, one_line, plural, print_json, print_result, print_warnings, say, watching
from agentformer.errors import InvalidInput, StoreDamaged, store_failure
from agentformer.factory import AgentFormer, connect, present
from agentformer.memory.backends import has_local_json
from agentformer.records.integrity.files import kind_of
from agentformer.registry import in_folder
from agentformer.settings import load_settings
from agentformer.text.places import cited_place

_LOOK_SECONDS = 2.0  # seconds between two checks for changes with --watch
_SHOWN = 20  # at most this many problems are printed


@main.command(
    epilog=examples(
        "agentformer backup backups/monday",
        "agentformer backup backups/monday --check",
        "agentformer backup backups --keep 14",
        "agentformer doctor --index-dir copy/indexes --upload-dir copy/uploads",
    )
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--check",
    is_flag=True,
    help="Verify the backup in DIR: the checksum of each file, and the stored data, like doctor, in a temporary copy.",
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Write the backup into a new folder in DIR, named by the time, verify it, and delete all but the newest N.",
)
@common
def backup(folder: Path, check: bool, keep: int | None, namespace: str, as_json: bool, **options: Any) -> None:
    """Copy the whole memory into a new folder while the memory stays in use.

    The command writes the folders `indexes` and `uploads` into DIR, and a checksum of each file into `manifest.json`.
    The backup contains the records of one moment, the original files of their documents, and the hashes of keys. Other
    processes do not wait for the backup. Search indexes are not copied, because they can be rebuilt. Uploads that a
    server has not ingested yet are not copied. If the backup fails, DIR is not created.

    To restore a backup, stop all processes that use the memory. Then copy the two folders with `cp -r` to the index
    folder and the upload folder of the memory. Run `doctor` and other commands only on a copy of the backup, because
    opening a memory changes its files.
    """
    if check:
        if keep:
            raise InvalidInput("--keep", "cannot be used together with --check")
        _check(folder, as_json, options)
        return
    require_memory(load_settings(options))
    target = next_backup(folder) if keep else folder
    with watching(lambda: "copying"), connect(**options) as af:
        done = af.backup(target)
        af.note("backup")
    deleted = []
    if keep:
        if findings := _findings(target, options):
            raise StoreDamaged(f"the backup {target} is damaged, and no older one is deleted: {'; '.join(findings)}")
        deleted = [str(path) for path in delete_older(folder, keep)]
    counts = {"namespaces": done.namespaces, "originals": done.originals, "bytes": done.bytes}
    size = f"{plural(done.originals, 'file')}, {done.bytes / 1e6:.1f} MB"
    text = f"{plural(sum(done.namespaces.values()), 'entry')} and {size}, in {target}"
    text += f"; older backups deleted: {len(deleted)}" if deleted else ""
    values = {"to": str(target), **counts, "missing_originals": done.missing_originals, "deleted": deleted}
    print_result(values, text, as_json=as_json)
    _report_missing(done.missing_originals)


@main.command(
    epilog=examples(
        "agentformer export --to backup/monday --all-namespaces",
        "agentformer export --to backup/monday --all-namespaces --vectors",
        "agentformer export --to aino --user aino",
        "agentformer export --markdown ~/memory",
        "agentformer export --text --namespace board",
        "agentformer export --text --json | jq .name",
    )
)
@click.option(
    "--to", "folder", metavar="DIR", type=click.Path(path_type=Path), help="Write the export into this new folder."
)
@click.option(
    "--markdown", metavar="DIR", type=click.Path(path_type=Path), help="Write the memories as Markdown files into DIR."
)
@click.option("--text", is_flag=True, help="Print the stored text of every document, page by page.")
@click.option("--all-namespaces", is_flag=True, help="Only with --to: export every namespace.")
@click.option(
    "--vectors",
    is_flag=True,
    help="Only with --to: export the vectors too, so that an import does not embed the texts again.",
)
@click.option(
    "--user", "user_id", metavar="ID", help="Only with --to: export only the memories and documents of this user."
)
@common
def export(
    folder: Path | None,
    markdown: Path | None,
    text: bool,
    all_namespaces: bool,
    vectors: bool,
    user_id: str | None,
    namespace: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the stored data to a folder, or print the text of the documents.

    With --to, the command writes all entries as JSON Lines, their former versions, the original files, and checksums
    into a new folder. The export contains the state of one moment. Two exports of an unchanged memory have the same
    bytes. docs/ARCHIVE.md describes every field. With --user, the export has what belongs to this user alone, and
    `import` stores it again.

    With --markdown, the command writes one file for each decision, fact, summary and core block of the namespace. DIR
    becomes a memory home: you can edit the files, and `agentformer sync DIR` stores the edits in the memory. Another
    export into the same DIR writes only files whose memory has changed. It does not change files that you have edited
    (docs/MARKDOWN.md).

    With --text, the command prints the stored text of the documents, to which the offsets of citations refer. With
    --json, it prints one JSON object for each document, on one line.
    """
    if [text, folder is not None, markdown is not None].count(True) != 1:
        raise InvalidInput("--to", "give exactly one of: --to with a new folder, --markdown with a folder, --text")
    if user_id is not None and folder is None:
        raise InvalidInput("--user", "is used only with --to")
    with open_existing(**options) as af:
        if markdown is not None:
            export_home(af, markdown, namespace, as_json=as_json)
            return
        if folder is None:
            _print_text(af, namespace, as_json)
            return
        if not all_namespaces:
            hint_namespaces(af, namespace)
        namespaces = None if all_namespaces else [namespace]
        done = _export(af, folder, namespaces=namespaces, vectors=vectors, user_id=user_id)
    counts = {"originals": done.originals, "vectors": done.vectors, "missing_originals": done.missing_originals}
    result = {"to": str(folder), "namespaces": done.namespaces, "former_versions": done.former, **counts}
    places = f"{plural(len(done.namespaces), 'namespace')} and {plural(done.originals, 'file')} in {folder}"
    print_result(result, f"{plural(sum(done.namespaces.values()), 'entry')} of {places}", as_json=as_json)
    _report_missing(done.missing_originals)


@main.command(
    "import",
    epilog=examples(
        "agentformer import backup/monday",
        "agentformer import backup/monday --index-dir copy/indexes",
        "agentformer import aino.zip",
        "agentformer import chatgpt-export.zip --user aino --speaker Aino",
        "agentformer import support.jsonl --session monday",
        "agentformer import ~/.claude/projects --watch",
    ),
)
@click.argument("folder", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--speaker", metavar="NAME", help="Only for conversations: the name of the user who wrote the messages.")
@click.option("--watch", is_flag=True, help="Only for conversations: keep running, and import what is added to PATH.")
@in_place
@common
def import_(
    folder: Path, speaker: str | None, watch: bool, place: dict[str, Any], as_json: bool, **options: Any
) -> None:
    """Import an export, conversations of people or of coding agents, or the texts of another memory.

    An export is a folder of `export --to`, or the ZIP archive of GET /api/memory/export. The command first verifies
    every file of it. Entries keep their ids, namespaces, versions, times, counts and
    former versions. Texts are embedded again, unless the export has vectors of the embedder that this memory uses. An
    entry is skipped if an equal entry with this id exists already. If a different entry with this id exists, nothing is
    imported. After an interruption, the same command continues the import.

    If PATH is a chat export, its conversations are stored as sessions, each message once. PATH is the ZIP archive or
    the folder that ChatGPT or Claude wrote, its conversations.json, a file of JSON Lines with role, content and time
    (docs/ARCHIVE.md), the sessions of Claude Code or Codex (a file or a folder), or an export of mem0, Zep, Letta,
    LangChain or Chroma (docs/MIGRATING.md). The format is detected by the content. The exit code is 1 if a conversation
    cannot be used.
    """
    if not (kind := kind_of(folder, "PATH")):
        raise InvalidInput("PATH", f"{folder} does not exist; check the path")
    is_export = kind_of(folder / MANIFEST, "PATH") if kind == "folder" else is_zipped(folder)
    if not is_export and (kind == "file" or _has_conversations(folder)):
        import_conversations(folder, {**place, "speaker": speaker or ""}, options, as_json=as_json, watch=watch)
        return
    if watch:
        raise InvalidInput("--watch", "is used only to import conversations")
    for name in ("session_id", "agent_id", "user_id", "project"):
        if place[name] is not None or speaker is not None:
            option = "--speaker" if place[name] is None else f"--{name.removesuffix('_id')}"
            raise InvalidInput(
                option,
                "is used only to import conversations; this is an export, which contains the owner of each entry",
            )
    with connect(**options) as af, bar("entries") as progress:
        done = af.import_from(folder, progress=progress)
    counts = {"imported": done.entries, "there_already": done.there_already}
    text = f"entries imported: {done.entries}; skipped because they exist already: {done.there_already}"
    print_result({**counts, "former_versions": done.former, "vectors": done.vectors}, text, as_json=as_json)


@main.command(
    epilog=examples(
        "agentformer copy --from faiss:indexes --to local_json:other-indexes",
        "agentformer copy --from local_json:indexes --to faiss:new-indexes --delete",
        "agentformer copy --from faiss:indexes --to postgresql://user@host/database",
    )
)
@click.option("--from", "source", metavar="BACKEND:PLACE", required=True, help="The memory to copy.")
@click.option(
    "--to",
    "target",
    metavar="BACKEND:PLACE",
    required=True,
    help="The memory that receives the copies. Other processes must not use it during the copy.",
)
@click.option("--delete", is_flag=True, help="Remove entries from the target that the source does not have.")
@without_namespace
def copy(source: str, target: str, delete: bool, as_json: bool, **options: Any) -> None:
    """Copy a memory from one backend to another while it is in use.

    Each of the two memories is given as a backend with its index folder, such as `faiss:indexes`, or as the address of
    a PostgreSQL database. Entries keep their ids, times, versions, counts, links and former versions. Vectors are
    copied, so nothing is embedded again. Uploaded files stay where they are. Leases, the temporary locks of running
    processes, are not copied.

    The command repeats until the target equals the source, and prints a checksum of all entries. If the command was
    interrupted, or if the source has changed since the last copy, run it again: only the differences are copied. The
    exit code is 1 if the target does not equal the source, because the source changed too often.

    To move a memory, run the command, stop all processes that write, and run it again with --delete, because entries
    may have been removed from the source. Then change the settings AGENTFORMER_BACKEND and AGENTFORMER_INDEX_DIR or
    AGENTFORMER_POSTGRES_URL."""
    if options.pop("index_dir") is not None:
        raise InvalidInput("--index-dir", "is not used; give the index folders in --from and --to")
    one, other = (load_settings({**options, **address(*given)}) for given in (("--from", source), ("--to", target)))
    if same_place(one, other):
        raise InvalidInput("--to", "is the same memory as --from; give another place")
    require_memory(one)
    with AgentFormer(one) as af, AgentFormer(other) as copied, bar("entries") as progress:
        done = af.copy_to(copied, delete=delete, progress=progress)
    result = dataclasses.asdict(done) | {"equal": done.equal}
    changes = f"stored: {done.stored}, removed: {done.removed}, only counts changed: {done.counted}"
    unequal = "not equal to the source, which was changed meanwhile; run the same command again"
    text = f"{plural(done.entries, 'entry')} in {shown_place(target)} ({changes})\n"
    text += f"equal to the source, SHA-256 {done.source}" if done.equal else unequal
    print_result(result, text, as_json=as_json)
    if not done.equal:
        sys.exit(1)


def _states(path: Path) -> dict[Path, tuple[int, int]]:
    """Return the size and the time of each file of a chat export."""
    files = [path] if path.is_file() else [*path.rglob("*.jsonl"), *path.glob("conversations*.json")]
    found = ((file, file.stat()) for file in files if file.is_file())
    return {file: (state.st_size, state.st_mtime_ns) for file, state in found}


def _check(folder: Path, as_json: bool, options: dict[str, Any]) -> None:
    findings = _findings(folder, options)
    well = ["OK  backup: checksums match", "OK  backup: opens, and its stored data is complete"]
    text = "\n".join([*findings, f"found: {len(findings)}"] if findings else well)
    print_result({"well": not findings, "findings": findings}, text, as_json=as_json)
    if findings:
        sys.exit(1)


def _findings(folder: Path, options: dict[str, Any]) -> list[str]:
    """Return what is wrong with a backup: files that have changed, or stored data that a copy of it shows as damaged.
    A copy is opened, because opening a memory changes its files."""
    if findings := check_backup(folder):
        return findings
    with tempfile.TemporaryDirectory(prefix="agentformer-check-") as name:
        copy = Path(name)
        try:
            for part in (INDEXES, UPLOADS):
                shutil.copytree(folder / part, copy / part)
        except OSError as error:  # `shutil.Error` is one, too
            advice = "the check needs room for a copy; free some, or set TMPDIR to a folder on another disk"
            raise store_failure(f"the backup cannot be copied to {copy}", error, advice) from error
        settings = in_folder(load_settings(options), copy / INDEXES)
        if not present(settings):
            backend = "local_json" if has_local_json(copy / INDEXES) else "faiss"
            settings = dataclasses.replace(settings, backend=backend, routes=(), hierarchical_backend="")
        settings = dataclasses.replace(settings, upload_dir=copy / UPLOADS, originals="")
        with AgentFormer(dataclasses.replace(settings, cleanup_interval=0, embed_retry_seconds=0)) as af:
            known = {"originals"} if missing_originals(folder) else set[str]()  # reported when the backup was made
            checks = [check for check in af.verify() if check.name not in known]
            return [f"{check.name}: {finding}" for check in checks for finding in check.findings]


def _report_missing(document_ids: Sequence[str]) -> None:
    """Print the ids of documents whose original file is missing or damaged. Exit with code 1 if there are such
    documents."""
    print_warnings(f"the original file of document {document_id} is missing or damaged" for document_id in document_ids)
    if document_ids:
        sys.exit(1)


def _export(af: AgentFormer, folder: Path, **what: Any) -> Exported:
    """Export to a folder, and write a row into the trail. An invalid `folder` is reported as the option `--to`."""
    try:
        exported = af.export_to(folder, **what)
        if what["user_id"] is None:  # the export of a user has written its own row
            af.note("export")
        return exported
    except InvalidInput as error:
        if error.field != "folder":
            raise
        raise InvalidInput("--to", str(error).partition(": ")[2]) from None


def _print_text(af: AgentFormer, namespace: str, as_json: bool) -> None:
    for document in af.rag.documents(namespace=namespace):
        pages = af.rag.pages(document.id)
        if as_json:
            values = [{"number": p.number, "label": p.label, "status": p.status, "text": p.text} for p in pages]
            print_json({"id": document.id, "name": document.name, "pages": values}, indent=None)
            continue
        for page in pages:
            status = "" if page.status == "text" else f", {page.status}"
            say(f"=== {cited_place(document.name, page.number, page.label)}{status}")
            say(page.text)


def _has_conversations(folder: Path) -> bool:
    """Return whether a folder without a manifest is a chat export, and not an export that has lost its manifest."""
    if (folder / "entries").is_dir():
        return False
    names = ("conversations*.json", "chroma.sqlite3", "index.pkl", "**/*.jsonl")
    return any(next(folder.glob(name), None) for name in names)


def import_conversations(
    path: Path, chosen: Mapping[str, Any], options: Mapping[str, Any], *, as_json: bool, watch: bool = False
) -> None:
    """Import a chat export, and print what was stored. `chosen` are the owner, the session and the speaker. Exit with
    code 1 if a conversation cannot be used. With `watch`, import again what has changed, until Ctrl-C."""
    known = _states(path) if watch else {}
    with connect(**options) as af:
        with bar("bytes") as progress:
            done = af.import_conversations(path, **chosen, progress=progress)
        _print_imported(done, as_json)
        if watch:
            _watch(af, path, chosen, known)
    if done.failures:
        sys.exit(1)


def _watch(af: AgentFormer, path: Path, chosen: Mapping[str, Any], known: Mapping[Path, tuple[int, int]]) -> None:
    """Import each file that has changed since `known`, until Ctrl-C."""
    while True:
        time.sleep(_LOOK_SECONDS)
        states = _states(path)
        for file in (file for file, state in states.items() if known.get(file) != state):
            more = af.import_conversations(file, **chosen)
            say(f"{file}  messages imported: {more.messages}; failed: {more.failures}")
        known = states


def _print_imported(done: ChatsImported, as_json: bool) -> None:
    if as_json:
        print_json({**dataclasses.asdict(done), "failed": [problem._asdict() for problem in done.failed]})
        return
    for name, reason in done.failed[:_SHOWN]:
        say(f"failed     {one_line(name)}  ({one_line(reason)})")
    if (left := done.failures - min(len(done.failed), _SHOWN)) > 0:
        say(f"failed     {plural(left, 'more conversation')} (--json lists the first 1,000)")
    say(
        f"messages imported: {done.messages}, in {plural(done.conversations, 'session')}; "
        f"there already: {done.there_already}; without text of a person or an assistant: {done.skipped}; "
        f"failed: {done.failures}"
    )
