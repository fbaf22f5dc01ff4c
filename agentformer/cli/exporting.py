"""Commands that carry a memory: export, import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agentformer.archive.export import Exported
from agentformer.cli.group import common, examples, main
from agentformer.cli.hints import tell_elsewhere
from agentformer.cli.output import print_json, say
from agentformer.cli.progress import bar
from agentformer.errors import InvalidInput
from agentformer.factory import AgentFormer, connect


@main.command(
    epilog=examples(
        "agentformer export --to backup/monday --all-namespaces",
        "agentformer export --to backup/monday --all-namespaces --vectors",
        "agentformer export --text --namespace board",
        "agentformer export --text --json | jq .name",
    )
)
@click.option("--to", "folder", metavar="DIR", type=click.Path(path_type=Path), help="A new folder for everything.")
@click.option("--text", is_flag=True, help="Print the stored text of every document, page by page.")
@click.option("--all-namespaces", is_flag=True, help="With --to: every namespace.")
@click.option("--vectors", is_flag=True, help="With --to: the vectors too, so that importing need not embed.")
@common
def export(
    folder: Path | None,
    text: bool,
    all_namespaces: bool,
    vectors: bool,
    namespace: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Write out what is stored, for `import` or to read.

    With --to, a folder with all entries as JSON Lines, former versions too, and the original files, with checksums:
    all as it was at one moment, whatever is written meanwhile. The same memory gives the same bytes. docs/ARCHIVE.md
    describes every field.

    With --text, the text that citations' offsets refer to; with --json, one object a line.
    """
    if text == (folder is not None):
        raise InvalidInput("--to", "give a new folder, or --text")
    with connect(**options) as af:
        if folder is None:
            _print_text(af, namespace, as_json)
            return
        if not all_namespaces:
            tell_elsewhere(af, namespace)
        done = _exported(af, folder, None if all_namespaces else [namespace], vectors)
    if as_json:
        told = {"to": str(folder), "namespaces": done.namespaces, "former_versions": done.former}
        counts = {"originals": done.originals, "vectors": done.vectors}
        print_json({**told, **counts, "missing_originals": done.missing_originals})
    else:
        count = sum(done.namespaces.values())
        say(f"{count} entries of {len(done.namespaces)} namespaces and {done.originals} originals in {folder}")
    for document_id in done.missing_originals:
        say(f"note: the original of document {document_id} is missing or damaged", err=True)
    if done.missing_originals:
        sys.exit(1)


@main.command(
    "import",
    epilog=examples("agentformer import backup/monday", "agentformer import backup/monday --index-dir copy/indexes"),
)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@common
def import_(folder: Path, namespace: str, as_json: bool, **options: Any) -> None:
    """Bring in what `export --to` wrote.

    Every file is checked first. Entries keep their ids, namespaces, versions, times, counts and former versions. Texts
    are embedded anew, but for those whose vectors are in the export and of this memory's embedding space. One that is
    there already, and the same, is passed over; where one is there and differs, nothing is imported. Interrupted, the
    same command goes on.
    """
    with connect(**options) as af, bar("entries") as progress:
        done = af.import_from(folder, progress=progress)
    if as_json:
        told = {"imported": done.entries, "there_already": done.there_already}
        print_json({**told, "former_versions": done.former, "vectors": done.vectors})
        return
    say(f"{done.entries} entries imported, {done.there_already} were there already")


def _exported(af: AgentFormer, folder: Path, namespaces: list[str] | None, vectors: bool) -> Exported:
    try:
        return af.export_to(folder, namespaces=namespaces, vectors=vectors)
    except InvalidInput as error:
        if error.field != "folder":
            raise
        raise InvalidInput("--to", str(error).partition(": ")[2]) from None


def _print_text(af: AgentFormer, namespace: str, as_json: bool) -> None:
    for document in af.rag.documents(namespace=namespace):
        pages = af.rag.pages(document.id)
        if as_json:
            shapes = [{"number": p.number, "label": p.label, "status": p.status, "text": p.text} for p in pages]
            print_json({"id": document.id, "name": document.name, "pages": shapes}, indent=None)
            continue
        for page in pages:
            say(f"=== {document.name}, page {page.number} ({page.label or page.status})")
            say(page.text)
