"""The commands for documents: ingest, ask, list, remove."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from agentformer.cli.group import common, examples, filters, main
from agentformer.cli.inputs import document_id_of, filters_of, hint_namespaces, object_of, open_existing
from agentformer.cli.output import (
    INTERRUPTED,
    bar,
    clip,
    plural,
    print_answer,
    print_json,
    print_result,
    print_table,
    print_warnings,
    safe,
    say,
)
from agentformer.errors import AgentFormerError, InvalidInput, SpaceMismatch
from agentformer.factory import AgentFormer, connect
from agentformer.records import fields
from agentformer.tools.result_json import answer_json, document_json, event_json
from agentformer.types import Answer, AnswerEvent, AnswerPiece

_USABLE = ("ready", "pending")


@main.command(
    epilog=examples(
        "agentformer ingest handbook.pdf notes/",
        """agentformer ingest minutes/ --metadata '{"year": 2026}' --namespace board""",
        "agentformer ingest secret.pdf --password 'open sesame'",
    )
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option(
    "--metadata",
    metavar="JSON",
    help="A JSON object that is stored with each document. Searches can filter by its fields.",
)
@click.option("--password", metavar="TEXT", help="Password of the encrypted files.")
@common
def ingest(
    paths: tuple[str, ...], metadata: str | None, password: str | None, namespace: str, as_json: bool, **options: Any
) -> None:
    """Ingest documents: files, and folders with all their files.

    The name of a file in a folder includes its path in this folder, such as 2024/rules.pdf. If a document with this
    name exists, the file replaces the document. If the file and the document have the same content, nothing is changed.
    Unreadable pages are reported and not indexed. The exit code is 1 if a file cannot be read or has no usable text.
    """
    given = {
        "namespace": fields.name("--namespace", namespace),
        "metadata": fields.stored_metadata(object_of(metadata) if metadata else None, "--metadata"),
        "password": password,
    }
    files = [item for path in paths for item in _files(Path(path))]
    if not files:
        raise InvalidInput("PATH", "contains no files to ingest")
    with connect(**options) as af:
        results = []
        for number, (file, root) in enumerate(files, 1):
            result = _ingest_file(af, file, _name(file, root, files), given, f"{number}/{len(files)}")
            results.append(result)
            if not as_json:
                say(_document_line(result))
    states = Counter("unchanged" if result.get("unchanged") else result["status"] for result in results)
    summary = ", ".join(f"{count} {state}" for state, count in states.items())
    print_result({"documents": results}, summary, as_json=as_json)
    if any(result["status"] not in _USABLE for result in results):
        sys.exit(1)


@main.command(
    epilog=examples(
        'agentformer ask "Who holds the keys?"',
        'agentformer ask "Who holds the keys?" --stream',
        'agentformer ask "Who holds the keys?" --document handbook.pdf --where site=north',
        'agentformer ask "What is the fee?" --since 2026-01-01',
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
@filters
@common
def ask(question: str, top_k: int | None, stream: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Answer a question from the documents, with citations.

    The exit code is 1 if the language model did not complete the answer.
    """
    place, name = {"top_k": top_k, "namespace": namespace, **filters_of(options)}, options.pop("document")
    with open_existing(**options) as af:
        place |= {"filters": place.pop("metadata"), "document_id": document_id_of(af, name, namespace)}
        if stream:
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
    "list", epilog=examples("agentformer list", "agentformer list --namespace board", "agentformer list --json")
)
@common
def list_documents(namespace: str, as_json: bool, **options: Any) -> None:
    """List the documents.

    To list memories, use `memories`.
    """
    with open_existing(**options) as af:
        documents = [document_json(document) for document in af.rag.documents(namespace=namespace)]
        hint_namespaces(af, namespace)
    if as_json:
        print_json({"documents": documents})
        return
    headings = ("ID", "STATE", "PAGES", "CHUNKS", "NAME")
    print_table(headings, [_document_cells(document) for document in documents], right=(2, 3))
    if not documents:
        say("there are no documents; add documents with: agentformer ingest PATH...")


@main.command(epilog=examples("agentformer remove 01a20046-0087-7000-994b-d506d6655eb7"))
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@common
def remove(ids: tuple[str, ...], namespace: str, as_json: bool, **options: Any) -> None:
    """Delete documents and everything derived from them.

    `list` shows the ids. If one of the given ids does not exist, no document is deleted.
    """
    with open_existing(**options) as af:
        ids = tuple(dict.fromkeys(ids))
        for document_id in ids:
            af.rag.document(document_id, namespace=namespace)
        for document_id in ids:
            af.rag.remove(document_id, namespace=namespace)
    print_result({"removed": list(ids)}, f"removed {len(ids)}", as_json=as_json)


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
                _print_end(event)
    except KeyboardInterrupt:
        if not as_json:
            say()
        say("note: interrupted; the answer is not complete", err=True)
        sys.exit(INTERRUPTED)
    return complete


def _print_end(answer: Answer) -> None:
    if answer.warnings:
        say()
        print_warnings(answer.warnings)
    print_answer(dataclasses.replace(answer, text="", warnings=()))  # its empty first line ends the streamed text
    _print_mode(answer)


def _print_mode(answer: Answer) -> None:
    """Print how an answer was made (its mode) if the answer is incomplete and has no citations, so that the reader sees
    the end of the answer."""
    if not (answer.complete or answer.citations):
        say(f"\n({answer.mode})")


def _files(path: Path, root: Path | None = None) -> Iterator[tuple[Path, Path | None]]:
    """Yield the files to ingest, sorted by name, each together with the folder that the user gave. `path` is this
    folder, or a single file; for a single file, the folder is None. Hidden files are skipped.

    Links to folders are skipped, because such links may form a cycle. If a folder cannot be read, the folder itself is
    yielded, so that the command reports the error when it ingests the folder.
    """
    is_link = root is not None and path.is_symlink()
    try:
        children = sorted(path.iterdir()) if path.is_dir() and not is_link else None
    except OSError:
        children = None
    if children is None and not (is_link and path.is_dir()):
        yield path, root
    for child in children or ():
        if not child.name.startswith("."):
            yield from _files(child, root or path)


def _name(file: Path, root: Path | None, files: Sequence[tuple[Path, Path | None]]) -> str:
    """Return the name under which a file is stored as a document. For a file in the folder `root`, this is the path of
    the file in the folder. For a single file, it is the file name or, if another file of this call has the same file
    name, the whole path."""
    if root is not None:
        return file.relative_to(root).as_posix()
    unique = sum(other.name == file.name for other, _ in files) == 1
    return file.name if unique else file.as_posix()


def _ingest_file(af: AgentFormer, file: Path, name: str, given: Mapping[str, Any], position: str) -> dict[str, Any]:
    """Ingest one file, show progress on a terminal, and return the result. An error of this file becomes a result with
    the status `failed`, so that the other files are still ingested."""
    with bar(f"{position} {clip(safe(file.name), 40)}") as progress:
        try:
            document = af.rag.upload(file, name=name, progress=progress, **given)
        except SpaceMismatch:
            raise  # no file can be stored
        except AgentFormerError as error:
            return {"name": str(file), "status": "failed", "reason": str(error), "id": "", "pages": 0, "chunks": 0}
    return document_json(document)


def _document_line(document: Mapping[str, Any]) -> str:
    """Return the line for an ingested document: its status, its name, its size, and the reason if ingestion failed."""
    state = "unchanged" if document.get("unchanged") else document["status"]
    size = f"{plural(document['pages'], 'page')}, {plural(document['chunks'], 'chunk')}"
    return f"{state:9}  {document['name']}  {size}{_reason(document)}"


def _document_cells(document: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (str(document["pages"]), str(document["chunks"]))
    return document["id"], document["status"], *counts, f"{document['name']}{_reason(document)}"


def _reason(document: Mapping[str, Any]) -> str:
    return f"  ({document['reason']})" if document["reason"] else ""
