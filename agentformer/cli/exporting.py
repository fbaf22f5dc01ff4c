"""Commands that carry a memory: export, import."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agentformer.cli import archive
from agentformer.cli.archive_checks import place_of_block
from agentformer.cli.group import common, examples, main
from agentformer.cli.hints import tell_elsewhere
from agentformer.cli.output import print_json, say
from agentformer.cli.progress import bar
from agentformer.errors import Conflict, InvalidInput, StoreFull
from agentformer.factory import AgentFormer, connect
from agentformer.rag.originals import Originals
from agentformer.records.codec import to_json
from agentformer.types import MemoryEntry, Scope

_BATCH = 500  # entries of one transaction, or one document or summary with all of its own where that is more
_BLOCKS = 10_000  # core blocks of a namespace
_TOLD = 10  # conflicts
_COUNTS = ("access_count", "match_count", "read_count", "repeat_count", "last_accessed")


@main.command(
    epilog=examples(
        "agentformer export --to backup/monday --all-namespaces",
        "agentformer export --text --namespace board",
        "agentformer export --text --json | jq .name",
    )
)
@click.option("--to", "folder", metavar="DIR", type=click.Path(path_type=Path), help="A new folder for everything.")
@click.option("--text", is_flag=True, help="Print the stored text of every document, page by page.")
@click.option("--all-namespaces", is_flag=True, help="With --to: every namespace.")
@common
def export(
    folder: Path | None, text: bool, all_namespaces: bool, namespace: str, as_json: bool, **options: Any
) -> None:
    """Write out what is stored, for `import` or to read.

    With --to, a folder with all entries as JSON Lines, former versions too, and the original files, with checksums.
    The same memory gives the same bytes. What somebody changes meanwhile may be in it or not. Vectors are not in it:
    importing embeds anew.

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
        written = _write(af, folder, list(af.backend.namespaces()) if all_namespaces else [namespace])
    if as_json:
        told = {"to": str(folder), "namespaces": written.entries, "originals": len(written.originals)}
        print_json({**told, "missing_originals": written.missing})
    else:
        count = sum(written.entries.values())
        say(f"{count} entries of {len(written.entries)} namespaces and {len(written.originals)} originals in {folder}")
    for document_id in written.missing:
        say(f"note: the original of document {document_id} is not in the upload folder", err=True)
    if written.missing:
        sys.exit(1)


@main.command(
    "import",
    epilog=examples("agentformer import backup/monday", "agentformer import backup/monday --index-dir copy/indexes"),
)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@common
def import_(folder: Path, namespace: str, as_json: bool, **options: Any) -> None:
    """Bring in what `export --to` wrote.

    Every file is checked first. Entries keep their ids, namespaces, versions, times and counts, and their texts are
    embedded anew. One that is there already, and the same, is passed over; where one is there and differs, nothing is
    imported. Interrupted, the same command goes on.

    Former versions (`history`) do not come back: they stay readable in the export.
    """
    read = archive.read(folder)
    with connect(**options) as af:
        fresh = _fresh(af, read.entries)
        _check_documents(af, fresh)
        _check_blocks(af, fresh)
        batches = list(_batches(fresh))
        done = 0
        with bar("entries") as progress:
            for batch in batches:
                _store(af, read, batch)
                done += len(batch)
                progress(done, len(fresh))
    there = len(read.entries) - len(fresh)
    if as_json:
        print_json({"imported": len(fresh), "there_already": there, "former_versions_left_out": read.former})
        return
    say(f"{len(fresh)} entries imported, {there} were there already")
    if read.former:
        say(f"note: {read.former} former versions were left out; they stay in {folder}", err=True)


def _write(af: AgentFormer, folder: Path, namespaces: Sequence[str]) -> archive.Written:
    """The export in its folder, which is there wholly or not at all."""
    folder = _new_folder(folder)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if folder.exists():
            raise InvalidInput("--to", f"{folder} is there already, and not empty; give a new folder")
        partial.mkdir(parents=True)
        try:
            written = archive.write(partial, af.backend, Originals(af.settings.upload_dir), namespaces)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise StoreFull(
            f"{folder} cannot be written: {error.strerror or error}; free space or choose another"
        ) from None
    return written


def _new_folder(folder: Path) -> Path:
    """Where an export goes, as an absolute path that can be moved into place. Raises `InvalidInput`."""
    try:
        resolved = folder.resolve()
        here = Path.cwd()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInput("--to", f"{str(folder)[:200]!r} cannot be used ({type(error).__name__})") from None
    if resolved == here or not resolved.name:  # "" is the current folder, too
        raise InvalidInput("--to", f"{resolved} cannot be replaced; give a new folder, such as backup/monday")
    return resolved


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


def _fresh(af: AgentFormer, entries: Sequence[MemoryEntry]) -> list[MemoryEntry]:
    """Those that are not there yet. Raises `Conflict` where one is there and differs."""
    known = {}
    for start in range(0, len(entries), _BATCH):
        group = entries[start : start + _BATCH]
        known.update({entry.id: entry for entry in af.backend.get([entry.id for entry in group])})
    differ = [each.id for each in entries if each.id in known and _said(known[each.id]) != _said(each)]
    if differ:
        more = f" and {len(differ) - _TOLD} more" if len(differ) > _TOLD else ""
        raise Conflict(
            f"nothing was imported: {len(differ)} entries are there already, and differ: "
            f"{', '.join(differ[:_TOLD])}{more}; import into another --index-dir, or forget those first"
        )
    return [entry for entry in entries if entry.id not in known]


def _said(entry: MemoryEntry) -> Mapping[str, Any]:
    """An entry without how often it was used, which is no change of it."""
    return {name: value for name, value in to_json(entry).items() if name not in _COUNTS}


def _check_documents(af: AgentFormer, entries: Sequence[MemoryEntry]) -> None:
    """Raises `Conflict` where a document of the same name or bytes is there under another id: each is there once."""
    for entry in entries:
        if entry.kind != "document":
            continue
        for name in ("name", "sha256"):
            same = Scope(entry.namespace, kinds=("document",), metadata={name: entry.metadata[name]})
            if found := af.backend.list(same, limit=1):
                raise Conflict(
                    f"nothing was imported: {entry.content[:200]!r} is in namespace {entry.namespace} already, as "
                    f"document {found[0].id}; remove that first: agentformer remove {found[0].id}"
                )


def _check_blocks(af: AgentFormer, entries: Sequence[MemoryEntry]) -> None:
    """Raises `InvalidInput` for a core block over the limit, and `Conflict` where its place and name are taken."""
    blocks = [entry for entry in entries if entry.tier == "core"]
    for entry in blocks:
        try:
            af.memory.core.check(entry.title or "(untitled)", entry.content)
        except InvalidInput as error:
            raise InvalidInput("DIR", f"nothing was imported: {entry.id}: {error}") from None
    for namespace in {entry.namespace for entry in blocks}:
        there = af.backend.list(Scope(namespace, tiers=("core",)), limit=_BLOCKS)
        taken = {place_of_block(entry): entry.id for entry in there}
        for entry in blocks:
            if (place := place_of_block(entry)) and entry.namespace == namespace and place in taken:
                raise Conflict(
                    f"nothing was imported: there is a core block {entry.title[:80]!r} in namespace {namespace[:80]} "
                    f"already, as {taken[place]}; forget that first: agentformer forget {taken[place]}"
                )


def _batches(entries: Sequence[MemoryEntry]) -> Iterator[list[MemoryEntry]]:
    """Entries in groups of one transaction each. A document stays with its pages and chunks, and a summary with what
    it stands for, so that an interruption leaves no half of either."""
    groups: dict[str, list[MemoryEntry]] = {}
    for entry in entries:
        belongs = entry.source.document_id if entry.source else entry.archived_by or entry.parent_id or entry.id
        groups.setdefault(belongs, []).append(entry)
    batch: list[MemoryEntry] = []
    for group in groups.values():
        batch += group
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _store(af: AgentFormer, read: archive.Archive, batch: Sequence[MemoryEntry]) -> None:
    """One transaction, and the originals of its documents."""
    originals = Originals(af.settings.upload_dir)
    digests = {each.metadata["sha256"] for each in batch if each.kind == "document"} & read.originals
    for digest in digests:
        originals.put(read.original(digest))
    af.backend.store(batch)
    for digest in digests:
        originals.keep(read.original(digest))  # once more: whoever removed the same bytes meanwhile took them along
