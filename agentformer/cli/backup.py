"""`agentformer backup`: a copy of everything, taken while it is used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agentformer.archive.backup import check_backup
from agentformer.cli.group import common, examples, main
from agentformer.cli.inputs import check_there
from agentformer.cli.output import print_json, say
from agentformer.cli.progress import watching
from agentformer.factory import connect
from agentformer.settings import load_settings


@main.command(
    epilog=examples(
        "agentformer backup backups/monday",
        "agentformer backup backups/monday --check",
        "agentformer doctor --index-dir copy/indexes --upload-dir copy/uploads",
    )
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Look whether the backup in DIR is as it was taken.")
@common
def backup(folder: Path, check: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Copy everything into a new folder, while it is used.

    DIR holds `indexes` and `uploads`, with a checksum of each file in `manifest.json`: the records as they were at one
    moment, the originals of the documents in them, and the hashes of keys. Nobody waits meanwhile. Not in it: search
    indexes, which are made anew, and uploads that a server has still to bring in. DIR is there wholly or not at all.

    To restore, end what uses the memory, and copy both folders to their places with `cp -r`. To look at a backup with
    `doctor` or any command, work on a copy of it: opening one changes its files.
    """
    if check:
        _check(folder, as_json)
        return
    check_there(load_settings(options))
    with watching(lambda: "copying"), connect(**options) as af:
        done = af.backup(folder)
    if as_json:
        told = {"to": str(folder), "namespaces": done.namespaces, "originals": done.originals, "bytes": done.bytes}
        print_json({**told, "missing_originals": done.missing_originals})
    else:
        count = sum(done.namespaces.values())
        say(f"{count} entries and {done.originals} originals, {done.bytes / 1e6:.1f} MB, in {folder}")
    for document_id in done.missing_originals:
        say(f"note: the original of document {document_id} is missing or damaged", err=True)
    if done.missing_originals:
        sys.exit(1)


def _check(folder: Path, as_json: bool) -> None:
    wrong = check_backup(folder)
    if as_json:
        print_json({"well": not wrong, "findings": wrong})
    else:
        for each in wrong:
            say(each)
        say(f"found: {len(wrong)}" if wrong else "the backup is as it was taken")
    if wrong:
        sys.exit(1)
