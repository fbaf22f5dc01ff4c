"""The commands for documents: ingest, ask, list, remove."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from agentformer.ahead import AHEAD_BYTES, one_ahead
from agentformer.cli.group import common, examples, filters, main
from agentformer.cli.inputs import document_id_of, filters_of, hint_namespaces, id_of, open_existing, origin_text
from agentformer.cli.output import (
    INTERRUPTED,
    bar,
    clip,
    one_line,
    plural,
    print_answer,
    print_json,
    print_result,
    print_table,
    print_warnings,
    say,
)
from agentformer.errors import AgentFormerError, InvalidInput, SpaceMismatch
from agentformer.factory import AgentFormer, connect
from agentformer.http.fetch_rules import is_url
from agentformer.http.redaction import redact_url
from agentformer.rag.documents import Document
from agentformer.rag.folder_files import OwnFolders
from agentformer.rag.uploads import OnConflict, Origin
from agentformer.records import fields
from agentformer.records.integrity.files import kind_of, list_folder
from agentformer.settings import load_settings
from agentformer.tools.result_json import answer_json, document_json, event_json, passages_json
from agentformer.types import FINDABLE, Answer, AnswerEvent, AnswerPiece, Scope, Stopped

if TYPE_CHECKING:
    from agentformer.rag.answer.context import PassageContext
    from agentformer.rag.ingest import Progress

_Item = str | tuple[Path, Path | None, str]  # a URL, or a file, the folder that the user gave, and the name


@main.command(
    epilog=examples(
        "agentformer ingest handbook.pdf notes/",
        """agentformer ingest minutes/ --metadata '{"year": 2026}' --namespace board""",
        "agentformer ingest secret.pdf --password 'open sesame'",
        "agentformer ingest https://example.org/handbook.pdf",
        "agentformer ingest payslip.pdf --user aino",
    )
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option(
    "--allow-private",
    is_flag=True,
    help="Also fetch from URLs whose hosts have private or loopback addresses. Redirects to other such hosts are "
    "refused.",
)
@click.option(
    "--metadata",
    metavar="JSON",
    help="A JSON object that is stored with each document. Searches can filter by its fields. It also replaces the "
    "metadata of documents whose files have not changed.",
)
@click.option("--password", metavar="TEXT", help="Password of the encrypted files.")
@click.option(
    "--on-conflict",
    type=click.Choice(get_args(OnConflict)),
    default="replace",
    help="What to do with a file that has changed since it was stored. 'replace' replaces the stored version (the "
    "default). 'keep-both' keeps the stored version, and stores the file under a new name such as 'rules (2).pdf'. "
    "'fail' stores nothing, and reports the file as failed.",
)
@click.option("--user", "user_id", metavar="ID", help="The user to whom the documents belong [default: no user].")
@common
def ingest(
    paths: tuple[str, ...],
    allow_private: bool,
    metadata: str | None,
    password: str | None,
    on_conflict: OnConflict,
    user_id: str | None,
    namespace: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Ingest documents: files, folders with all their files, and URLs (http and https).

    A document is identified by the absolute path of its file, and by its user if it has one. If the content of a file
    has changed since it was ingested, the new version replaces the former version, whose id is shown. If the content
    has not changed, nothing is stored. The name of a file in a folder includes its path in this folder, such as
    2024/rules.pdf. If several files would have the same name, the names of their parent folders are put before it.
    Unreadable pages are reported and not indexed. The exit code is 1 if a file cannot be read or has no usable text.

    A document from a URL is identified by the URL. Hosts with private or loopback addresses are refused, also after a
    redirect. If the setting url_hosts is set, only its hosts are allowed."""
    stored = fields.stored_metadata(fields.json_object("--metadata", metadata), "--metadata") if metadata else None
    given = {"namespace": fields.name("--namespace", namespace), "metadata": stored}
    given |= {"password": password, "on_conflict": on_conflict, "user_id": fields.optional_name("--user", user_id)}
    urls = [path for path in paths if is_url(path)]
    local = [path for path in paths if not is_url(path)]
    settings = load_settings({name: options[name] for name in ("index_dir", "upload_dir")})
    own = OwnFolders([settings.index_dir, settings.upload_dir])
    files = _existing_files(local, own) if local else []
    with connect(**options) as af:
        results = []
        for result in _ingest_all(af, files, urls, given, allow_private=allow_private):
            results.append(result)
            if not as_json:
                say(_document_line(result))
    states = Counter("unchanged" if result["unchanged"] else result["status"] for result in results)
    summary = ", ".join(f"{count} {state}" for state, count in states.items())
    print_result({"documents": results}, summary, as_json=as_json)
    if any(result["status"] not in FINDABLE for result in results):
        sys.exit(1)


@main.command(
    epilog=examples(
        'agentformer ask "Who holds the keys?"',
        'agentformer ask "Who holds the keys?" --stream',
        'agentformer ask "Who holds the keys?" --document handbook.pdf --where site=north',
        'agentformer ask "What is the fee?" --since 2026-01-01',
        'agentformer ask "What is the fee?" --context',
        'agentformer ask "Is Maija allergic to anything?" --memories --user maija',
        "agentformer ask \"What did the board decide?\" --namespace board --json | jq '.citations[].page'",
    )
)
@click.argument("question")
@click.option(
    "--top-k", metavar="N", type=click.IntRange(1, 100), help="Answer from at most this many passages [default: 3]."
)
@click.option(
    "--stream",
    is_flag=True,
    help="Print the answer while the model writes it. With --json, print one event of the answer per line.",
)
@click.option("--context", is_flag=True, help="Print the passages that a language model would receive, and no answer.")
@click.option("--documents", is_flag=True, help="Answer only from documents.")
@click.option("--memories", is_flag=True, help="Answer only from memories: facts, messages and summaries.")
@click.option("--user", "user_id", metavar="ID", help="Use memories and documents of this user, and those of no user.")
@click.option("--project", metavar="NAME", help="Use memories of this project, and memories of no project.")
@filters
@common
def ask(
    question: str, top_k: int | None, stream: bool, context: bool, namespace: str, as_json: bool, **options: Any
) -> None:
    """Answer a question from the documents and the memories, with citations.

    A citation names the page of a document, or describes a memory, such as a message with its speaker and date. With
    --document, only this document is used. If nothing answers the question, the command says so and lists the nearest
    passages. The exit code is 1 if the language model did not complete the answer."""
    if context and (stream or top_k is not None):
        raise InvalidInput("--context", "prints no answer; use it without --stream and --top-k")
    place: dict[str, Any] = {"top_k": top_k, "namespace": namespace, **filters_of(options), **_sources_of(options)}
    name = options.pop("document")
    with open_existing(**options) as af:
        place["document_id"] = document_id_of(af, name, namespace)
        if context:
            del place["top_k"]
            complete = _print_context(af.rag.context(question, **place), as_json)
        elif stream:
            with closing(af.rag.stream(question, **place)) as events:
                complete = _print_stream(events, as_json)
        else:
            answer = af.rag.query(question, **place)
            complete = answer.complete
            if as_json:
                print_json(answer_json(answer))
            else:
                print_answer(answer)
                _print_mode(answer)
        hint_namespaces(af, namespace)
    if not complete:
        sys.exit(1)


@main.command(
    "list",
    epilog=examples(
        "agentformer list",
        "agentformer list --namespace board",
        "agentformer list --user aino",
        "agentformer list --json",
    ),
)
@click.option("--user", "user_id", metavar="ID", help="List the documents of this user, and those of no user.")
@common
def list_documents(user_id: str | None, namespace: str, as_json: bool, **options: Any) -> None:
    """List the documents.

    If documents have the same name, the path of each file is shown too. If documents belong to users, each user is
    shown. To list memories, use `memories`.
    """
    with open_existing(**options) as af:
        documents = af.rag.documents(namespace=namespace, user_id=user_id, or_nobody=True)
        hint_namespaces(af, namespace)
    if as_json:
        print_json({"documents": [document_json(document) for document in documents]})
        return
    headings: tuple[str, ...] = ("ID", "STATE", "PAGES", "CHUNKS", "NAME")
    names = Counter(document.name for document in documents)
    rows = [
        _document_cells(document, with_origin=names[document.name] > 1 or is_url(document.origin))
        for document in documents
    ]
    if any(document.user_id for document in documents):
        headings = (*headings[:-1], "USER", headings[-1])
        users = (one_line(document.user_id or "-") for document in documents)
        rows = [(*row[:-1], user, row[-1]) for row, user in zip(rows, users, strict=True)]
    print_table(headings, rows, right=(2, 3))
    if not documents:
        say("there are no documents; add documents with: agentformer ingest PATH...")


@main.command(
    epilog=examples(
        "agentformer remove rules.pdf",
        "agentformer remove 01a20046-0087",
        "agentformer remove 01a20046-0087-7000-994b-d506d6655eb7",
    )
)
@click.argument("documents", nargs=-1, required=True, metavar="DOCUMENT...")
@common
def remove(documents: tuple[str, ...], namespace: str, as_json: bool, **options: Any) -> None:
    """Delete documents and everything derived from them.

    DOCUMENT is an id, the beginning of an id (at least 4 characters), or a name, as `list` shows them. If an argument
    matches no document or several documents, no document is deleted.
    """
    with open_existing(**options) as af:
        scope = Scope(namespace, kinds=("document",), include_archived=True)
        ids = list(dict.fromkeys(id_of(af, argument, scope) for argument in documents))
        for document_id in ids:
            af.rag.remove(document_id, namespace=namespace)
    print_result({"removed": ids}, f"removed {len(ids)}", as_json=as_json)


def _print_stream(events: Iterable[AnswerEvent], as_json: bool) -> bool:
    """Print an answer while the model writes it. Return whether the answer is complete. Ctrl-C exits with code 130."""
    complete = True
    try:
        for event in events:
            if isinstance(event, Answer):
                complete = event.complete
            if as_json:
                name, data = event_json(event)
                print_json({"event": name, "data": data}, indent=None)
            elif isinstance(event, AnswerPiece):
                say(event.text, nl=False)
            elif isinstance(event, Answer):
                if event.warnings:
                    say()
                    print_warnings(event.warnings)
                print_answer(dataclasses.replace(event, text="", warnings=()))  # its empty first line ends the text
                _print_mode(event)
    except KeyboardInterrupt:
        if not as_json:
            say()
        say("note: interrupted; the answer is not complete", err=True)
        sys.exit(INTERRUPTED)
    return complete


def _sources_of(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options that select the sources of an answer, and return them as arguments of `rag.query`. Without
    --user, the memories of all users are sources, because the command line belongs to the owner of the memory. Raises
    `InvalidInput` if both --documents and --memories are given."""
    documents, memories = options.pop("documents"), options.pop("memories")
    if documents and memories:
        raise InvalidInput("--documents", "cannot be combined with --memories; omit both to use all sources")
    sources = ("documents",) if documents else ("memories",) if memories else None
    return {"sources": sources, "every_user": True, **{name: options.pop(name) for name in ("user_id", "project")}}


def _print_context(context: PassageContext, as_json: bool) -> bool:
    if as_json:
        print_json(passages_json(context))
    else:
        print_warnings(context.warnings)
        say(context.text)
    return True


def _print_mode(answer: Answer) -> None:
    """If the answer is incomplete and has no citations, print its mode (`llm`, `extractive` or `none`) as the last
    line. Otherwise, print nothing."""
    if not (answer.complete or answer.citations):
        say(f"\n({answer.mode})")


def _ingest_all(
    af: AgentFormer,
    files: Sequence[tuple[Path, Path | None]],
    urls: Sequence[str],
    given: Mapping[str, Any],
    *,
    allow_private: bool,
) -> Iterator[dict[str, Any]]:
    """Ingest the files and the URLs, show progress, and yield the result of each as JSON. `files` is a result of
    `_existing_files`, and `given` are options of `RAGTool.upload`. An error of one file becomes a result with the
    status `failed`, so that the other files are still ingested. Only `SpaceMismatch`, after which no file can be
    stored, is raised."""
    named = [(file, root, name) for (file, root), name in zip(files, names_of(files), strict=True)]

    def prepare(item: _Item, stopped: Stopped | None) -> Callable[[Progress], Document]:
        if isinstance(item, str):
            return lambda progress: af.rag.upload_url(item, allow_private=allow_private, progress=progress, **given)
        file, root, name = item
        list_folder(file, "PATH")  # raises for a folder that cannot be listed
        upload = af.rag.prepare(file, name=name, origin=Origin.of_file(file, root), stopped=stopped, **given)
        return functools.partial(af.rag.put, upload)

    items: list[_Item] = [*named, *urls]
    with closing(one_ahead(items, prepare, _may_be_read_ahead)) as prepared:
        for number, (item, store) in enumerate(prepared, 1):
            place = one_line(redact_url(item)) if isinstance(item, str) else str(item[0])
            label = place if isinstance(item, str) else one_line(item[0].name)
            with bar(f"{number}/{len(items)} {clip(label, 40)}") as progress:
                try:
                    document = store()(progress)
                except SpaceMismatch:
                    raise  # no file can be stored
                except AgentFormerError as error:
                    private = "url_private_hosts" in str(error) and not allow_private
                    owner = {"namespace": given["namespace"], "user_id": given["user_id"]}
                    reason = f"{error}, or give --allow-private" if private else str(error)
                    document = Document(place, status="failed", reason=reason, **owner)
            yield document_json(document)


def _may_be_read_ahead(item: _Item) -> bool:
    """Return whether an item is a file of moderate size. A URL is not fetched ahead, because that takes long."""
    with suppress(OSError, ValueError):
        return not isinstance(item, str) and item[0].stat().st_size <= AHEAD_BYTES
    return False


def _existing_files(paths: Sequence[str], own: OwnFolders) -> list[tuple[Path, Path | None]]:
    """Return the files to ingest at these paths. Each item is a pair: the file, and the folder that the user gave, or
    None if the user gave the file itself. The folders `own`, which contain the data of the memory, are skipped. Raises
    `InvalidInput` if a path is empty, or if there is no file."""
    if not all(paths):
        raise InvalidInput("PATH", "is empty; give the path of a file or a folder")
    alone = len(paths) == 1
    if not any(_may_exist(path, alone=alone) for path in paths):
        raise InvalidInput("PATH", f"{' and '.join(paths)} {'does' if alone else 'do'} not exist; check the path")
    files = [item for path in paths for item in _files(Path(path), own)]
    if not files:
        raise InvalidInput("PATH", "contains no files to ingest")
    return files


def _files(path: Path, own: OwnFolders, root: Path | None = None) -> Iterator[tuple[Path, Path | None]]:
    """Yield the files to ingest, sorted by name, each with the folder that the user gave (`root`), or None for a single
    file. Hidden files, the folders `own`, and links to folders (which may form a cycle) are skipped. A folder that
    cannot be read is yielded itself, so that the command reports the error when it ingests the folder."""
    if path in own:
        return
    children = None
    with suppress(InvalidInput):
        if root is not None and kind_of(path, "PATH") == "folder" and path.is_symlink():
            return
        children = list_folder(path, "PATH")
    if children is None:
        yield path, root
    for child in children or ():
        if not child.name.startswith("."):
            yield from _files(child, own, root or path)


def _may_exist(path: str, *, alone: bool) -> bool:
    """Return whether the path exists. Raise `InvalidInput` if it cannot be read and is the only path. If there are
    others, return True, so that the command reports this path as failed and ingests the others."""
    try:
        return bool(kind_of(path, "PATH"))
    except InvalidInput:
        if alone:
            raise
        return True


def names_of(files: Sequence[tuple[Path, Path | None]]) -> list[str]:
    """Return the name for each file. For a file in a folder that the user gave, this is the path of the file in this
    folder. For a single file, it is the file name. If several files would have the same name, the names of their parent
    folders are put before it until the names differ."""
    paths = [file.absolute().parts for file, _ in files]
    sizes = [len(file.relative_to(root).parts) if root is not None else 1 for file, root in files]
    while True:
        names = ["/".join(path[-size:]) for path, size in zip(paths, sizes, strict=True)]
        counts = Counter(name for name, _ in set(zip(names, paths, strict=True)))  # a file may be given twice
        longer = [
            size + 1 if counts[name] > 1 and size < len(path) - 1 else size
            for name, path, size in zip(names, paths, sizes, strict=True)
        ]
        if longer == sizes:
            return names
        sizes = longer


def _document_line(document: Mapping[str, Any]) -> str:
    """Return the line for an ingested document: status, name, size, id of the former version, reason of a failure."""
    state = "unchanged" if document["unchanged"] else document["status"]
    size = f"  {plural(document['pages'], 'page')}, {plural(document['chunks'], 'chunk')}" if document["pages"] else ""
    replaced = f", replaced {document['replaced']}" if document["replaced"] else ""
    source = f"  from {document['url']}" if document["url"] else ""
    return f"{state:9}  {one_line(document['name'])}{source}{size}{replaced}{_reason(document['reason'])}"


def _document_cells(document: Document, *, with_origin: bool) -> tuple[str, ...]:
    """Return the cells of a document in the table of `list`. If `with_origin` is true, the origin follows the name."""
    origin = f" ({origin_text(document.origin)})" if with_origin else ""
    counts = (str(document.pages), str(document.chunks))
    return document.id, document.status, *counts, f"{document.name}{origin}{_reason(document.reason)}"


def _reason(reason: str) -> str:
    return f"  ({reason})" if reason else ""
