"""`agentformer doctor`: is what is stored whole?"""

from __future__ import annotations

import sys
from typing import Any

from agentformer.cli.checking import Check, check_memory, check_records
from agentformer.cli.group import common, examples, main
from agentformer.cli.output import print_json, say
from agentformer.cli.progress import watching
from agentformer.errors import StoreError
from agentformer.factory import connect
from agentformer.settings import load_settings
from agentformer.tools.shapes import report_json

_ASKED = {
    "records": "the database is sound",
    "files": "readable files are undamaged",
    "vectors": "entries have their vectors",
    "documents": "documents have their pages, and chunks stand in them word for word",
    "originals": "documents have their originals, byte for byte",
    "uploads": "uploaded files belong to documents",
    "memory": "the memory can be opened",
}


@main.command(epilog=examples("agentformer doctor", "agentformer doctor --json"))
@common
def doctor(namespace: str, as_json: bool, **options: Any) -> None:
    """Check that what is stored is whole, in every namespace.

    The database, vectors that are still to be made, documents with their pages, chunks and originals, and uploaded
    files that belong to no document. Nothing is changed or repaired. What another process is storing at the moment may
    be told as half there. The exit code is 1 when something was found.
    """
    settings = load_settings({**options, "embed_retry_seconds": 0})
    checks = [check_records(settings.index_dir)]
    try:
        with watching(lambda: "looking"), connect(**options, embed_retry_seconds=0) as af:
            checks += check_memory(af)
    except StoreError as error:
        checks.append(Check("memory", 1, 1, (str(error),)))
    found = sum(check.found for check in checks)
    if as_json:
        print_json({"well": not found, "checks": [report_json(check) for check in checks]})
    else:
        _print_checks(checks)
        say("all is well" if not found else f"found: {found}")
    if found:
        sys.exit(1)


def _print_checks(checks: list[Check]) -> None:
    for check in checks:
        say(f"{'well' if not check.found else 'FOUND':6}{check.name:11}{_ASKED[check.name]} ({check.looked_at})")
        for finding in check.findings:
            say(f"      {finding}")
        if check.found > len(check.findings):
            say(f"      and {check.found - len(check.findings)} more")
