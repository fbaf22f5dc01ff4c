"""The command line: `agentformer ingest | ask | search | list | remove | export | reindex | status | serve`.

Exit codes: 0 done; 1 done in part (a file without usable text); 2 a wrong argument; 3 the memory cannot be used.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from agentformer._version import __version__
from agentformer.errors import AgentFormerError, InvalidInput, MissingExtra, NotFound, SpaceMismatch
from agentformer.factory import AgentFormer, connect
from agentformer.registry import lookup
from agentformer.settings import load_settings
from agentformer.tools.shapes import answer_json, document_json, hit_json
from agentformer.types import DEFAULT_NAMESPACE, Answer, Hits

Command = Callable[..., Any]

_USABLE = ("ready", "pending")
_EXCERPT = 300  # code points of a hit shown to a person


def _common(command: Command) -> Command:
    """The options that every command has, and errors told in one line."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except (InvalidInput, NotFound, MissingExtra) as error:
            _fail(str(error), 2)
        except AgentFormerError as error:
            _fail(str(error), 3)

    for option in (
        click.option("--index-dir", type=click.Path(path_type=Path), help="Folder of the memory [indexes]."),
        click.option("--upload-dir", type=click.Path(path_type=Path), help="Folder of the originals [uploads]."),
        click.option("--embedder", help="auto, minilm, sbert:MODEL_OR_FOLDER or hashing [auto]."),
        click.option("--namespace", default=DEFAULT_NAMESPACE, show_default=True, help="Whose memories."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ):
        run = option(run)
    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """A memory that an agent can trust, and answers from documents with page-exact citations.

    \b
    agentformer ingest handbook.pdf notes/
    agentformer ask "Who holds the keys?"
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--password", help="Password of encrypted files.")
@_common
def ingest(paths: tuple[str, ...], password: str | None, namespace: str, as_json: bool, **options: Any) -> None:
    """Bring documents in: files, and folders with all files below them."""
    files = [item for path in paths for item in _files(Path(path))]
    if not files:
        raise InvalidInput("PATH", "holds no files to ingest")
    named = [(file, _name(file, root, files)) for file, root in files]
    with connect(**options) as af:
        results = []
        for number, (file, name) in enumerate(named, 1):
            result = _ingest_one(af, file, name, namespace, password, f"{number}/{len(files)}")
            results.append(result)
            if not as_json:
                click.echo(_line(result))
    if as_json:
        _print_json({"documents": results})
    if any(result["status"] not in _USABLE for result in results):
        sys.exit(1)


@main.command()
@click.argument("question")
@click.option("--top-k", type=click.IntRange(1, 100), help="Passages to answer from [3].")
@_common
def ask(question: str, top_k: int | None, namespace: str, as_json: bool, **options: Any) -> None:
    """Answer a question from the documents, with citations."""
    with connect(**options) as af:
        answer = af.rag.query(question, top_k=top_k, namespace=namespace)
    if as_json:
        _print_json(answer_json(answer))
    else:
        _print_answer(answer)


@main.command()
@click.argument("query")
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="Hits at most.")
@_common
def search(query: str, limit: int, namespace: str, as_json: bool, **options: Any) -> None:
    """Find passages and memories, best first."""
    with connect(**options) as af:
        hits = af.memory.search(query, namespace=namespace, limit=limit)
    if as_json:
        _print_json({"hits": [hit_json(hit) for hit in hits], "warnings": list(hits.warnings)})
    else:
        _print_hits(hits)


@main.command("list")
@_common
def list_documents(namespace: str, as_json: bool, **options: Any) -> None:
    """List the documents."""
    with connect(**options) as af:
        documents = [document_json(document) for document in af.rag.documents(namespace=namespace)]
    if as_json:
        _print_json({"documents": documents})
        return
    for document in documents:
        click.echo(f"{document['id']}  {_line(document)}")
    if not documents:
        click.echo("no documents; bring some in with: agentformer ingest PATH...")


@main.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@_common
def remove(ids: tuple[str, ...], namespace: str, as_json: bool, **options: Any) -> None:
    """Remove documents with everything made from them, by the ids that `list` shows."""
    with connect(**options) as af:
        for document_id in ids:
            af.rag.remove(document_id, namespace=namespace)
    if as_json:
        _print_json({"removed": list(ids)})
    else:
        click.echo(f"removed {len(ids)}")


@main.command()
@click.option("--text", is_flag=True, required=True, help="The stored text of every document, page by page.")
@_common
def export(text: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Print what is stored; citations' offsets refer to this text. With --json, one object a line."""
    with connect(**options) as af:
        for document in af.rag.documents(namespace=namespace):
            pages = af.rag.pages(document.id)
            if as_json:
                shapes = [{"number": p.number, "label": p.label, "status": p.status, "text": p.text} for p in pages]
                click.echo(json.dumps({"id": document.id, "name": document.name, "pages": shapes}, ensure_ascii=False))
                continue
            for page in pages:
                click.echo(f"=== {document.name}, page {page.number} ({page.label or page.status})")
                click.echo(page.text)


@main.command()
@_common
def reindex(namespace: str, as_json: bool, **options: Any) -> None:
    """Embed what could not be embedded when it was stored."""
    with connect(**options) as af:
        waiting = af.memory.reindex()
    if as_json:
        _print_json({"pending": waiting})
    else:
        click.echo(f"{waiting} entries still wait for an embedder" if waiting else "everything is embedded")
    if waiting:
        sys.exit(1)


@main.command()
@_common
def status(namespace: str, as_json: bool, **options: Any) -> None:
    """Show what is kept and in which state."""
    with connect(**options) as af:
        state = af.memory.status()
        documents = af.rag.documents(namespace=namespace)
    state["documents"] = {name: sum(d.status == name for d in documents) for name in {d.status for d in documents}}
    if as_json:
        _print_json(state)
        return
    for name, value in state.items():
        click.echo(f"{name:10} {json.dumps(value, ensure_ascii=False)}")


@main.command()
@click.option("--host", help="Address to listen on [127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one [8808].")
@_common
def serve(host: str | None, port: int | None, namespace: str, as_json: bool, **options: Any) -> None:
    """Serve the HTTP API until SIGTERM."""
    try:
        run = lookup("servers", "waitress")
    except ModuleNotFoundError as error:
        raise MissingExtra("server", f"the server ({error.name})") from None
    run(load_settings({**options, "host": host, "port": port}), started=lambda url: click.echo(f"serving on {url}"))


def _files(path: Path, root: Path | None = None) -> Iterator[tuple[Path, Path | None]]:
    """The path itself, or all files below a folder but hidden ones, in order of name, with that folder.

    Linked folders are not entered: they may lead back. A folder that may not be read is given as it is, and
    reading it will say so.
    """
    try:
        children = sorted(path.iterdir()) if path.is_dir() and not (root and path.is_symlink()) else None
    except OSError:
        children = None
    if children is None:
        if not (root and path.is_symlink() and path.is_dir()):
            yield path, root
        return
    for child in children:
        if not child.name.startswith("."):
            yield from _files(child, root or path)


def _name(file: Path, root: Path | None, files: Sequence[tuple[Path, Path | None]]) -> str:
    """What a document is called: its place below the folder given, or its file's name where no other file of
    this call has it too."""
    if root is not None:
        return file.relative_to(root).as_posix()
    alone = sum(other.name == file.name for other, _ in files) == 1
    return file.name if alone else file.as_posix()


def _ingest_one(
    af: AgentFormer, file: Path, name: str, namespace: str, password: str | None, which: str
) -> dict[str, Any]:
    """One file's outcome, with a progress bar on a terminal; what is wrong with it does not stop the others."""
    with click.progressbar(
        length=1, label=f"{which} {file.name[:40]}", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:

        def progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        try:
            document = af.rag.upload(file, name=name, namespace=namespace, password=password, progress=progress)
        except SpaceMismatch:
            raise  # no file of this call can be stored
        except AgentFormerError as error:
            return {"name": str(file), "status": "failed", "reason": str(error), "id": "", "pages": 0, "chunks": 0}
        bar.finish()
    return document_json(document)


def _line(document: dict[str, Any]) -> str:
    state = "unchanged" if document.get("unchanged") else document["status"]
    line = f"{state:9}  {document['name']}  {document['pages']} pages, {document['chunks']} chunks"
    return f"{line}  ({document['reason']})" if document["reason"] else line


def _print_answer(answer: Answer) -> None:
    for warning in answer.warnings:
        click.echo(f"note: {warning}", err=True)
    click.echo(answer.text)
    if answer.citations:
        click.echo(f"\n({answer.mode})")
    for citation in answer.citations:
        place = f", page {citation.page}" if citation.page else ""
        printed = f" (printed {citation.label})" if citation.label not in ("", str(citation.page)) else ""
        click.echo(f"[{citation.number}] {citation.document}{place}{printed}: {' '.join(citation.quote.split())}")


def _print_hits(hits: Hits) -> None:
    for warning in hits.warnings:
        click.echo(f"note: {warning}", err=True)
    for hit in hits:
        source = hit.entry.source
        place = f"{source.name}, page {source.page}" if source else hit.entry.id
        text = " ".join(hit.entry.content.split())
        click.echo(f"{hit.score:.3f}  {place}\n       {text[:_EXCERPT]}{'…' if len(text) > _EXCERPT else ''}")
    if not hits:
        click.echo("nothing found")


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def _fail(message: str, code: int) -> None:
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
