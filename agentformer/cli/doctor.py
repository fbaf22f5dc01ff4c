"""`agentformer doctor`: is what is stored whole?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from agentformer.cli.group import common, examples, main
from agentformer.cli.inputs import check_there
from agentformer.cli.output import print_json, say
from agentformer.cli.progress import watching
from agentformer.errors import StoreDamaged, StoreError
from agentformer.factory import AgentFormer, connect, salvage
from agentformer.settings import load_settings
from agentformer.tools.shapes import report_json
from agentformer.types import Check

_OPENED = "the memory can be opened"
_FOUND, _UNUSABLE = 1, 3  # exit codes
_TRY = "`agentformer doctor --repair` saves what can be read of it"


@main.command(epilog=examples("agentformer doctor", "agentformer doctor --repair", "agentformer doctor --json"))
@click.option("--repair", is_flag=True, help="Mend what can be mended; what cannot be read any more is set aside.")
@common
def doctor(namespace: str, as_json: bool, repair: bool, **options: Any) -> None:
    """Check that what is stored is whole, in every namespace.

    The database file, every entry and vector by its checksum, links, windows against texts, both indexes against the
    records, documents with their pages, chunks and originals, uploaded files that belong to no document, and what
    still waits to be embedded. Others may use the memory meanwhile.

    Without --repair nothing is changed. With it, what follows from the records is made anew, and a document is read
    again from its original. What is damaged beyond that is taken out of the records into a file `damaged-DATE.jsonl`
    beside them. A database file that cannot be read to its end is replaced by what can be read of it, and kept as
    `memory.sqlite3.damaged-DATE`; for that, end the other processes first: nothing is done while one has it open.

    The exit code is 0 when all is well, or all that was found is mended; 1 when something is left, and once when a part
    of the file, or an entry that nothing makes anew, is lost; 2 when there is no memory; 3 when it cannot be opened.
    """
    check_there(load_settings(options))
    checks, code = _checked(options, repair=repair)
    left = sum(check.found - check.mended for check in checks)
    lost = sum(check.lost for check in checks)
    if as_json:
        print_json({"well": not (left or lost or code), "checks": [report_json(check) for check in checks]})
    else:
        _print_checks(checks)
        say(_summary(checks, left, lost))
    if code or left or lost:
        sys.exit(code or _FOUND)


def _checked(options: dict[str, Any], *, repair: bool) -> tuple[list[Check], int]:
    """The checks, and the exit code of a memory that cannot be opened, else 0."""
    with watching(lambda: "mending" if repair else "looking"):
        try:
            return _verified(_open(options), repair=repair), 0
        except _Unopened as error:
            if not repair or not error.damaged:
                why = f"{error}; {_TRY}" if error.damaged else str(error)
                return [Check("memory", _OPENED, 1, 1, 0, (why,))], _UNUSABLE
            first = str(error)
        try:
            saved = salvage(load_settings(options))
            checks = _verified(_open(options), repair=True)
        except (StoreError, _Unopened) as error:
            return [Check("memory", _OPENED, 1, 1, 0, (first, f"it could not be saved: {error}"))], _UNUSABLE
        told = [each.summary() for each in saved]
        lost = sum(len(each.unreadable) for each in saved)
        return [Check("memory", _OPENED, 1, 1 + lost, 1, (first, *told)), *checks], 0


class _Unopened(Exception):
    """The memory cannot be opened."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.damaged = isinstance(error, StoreDamaged)


def _open(options: dict[str, Any]) -> AgentFormer:
    try:
        return connect(**options, embed_retry_seconds=0)
    except StoreError as error:
        raise _Unopened(error) from error


def _verified(af: AgentFormer, *, repair: bool) -> list[Check]:
    with af:
        return af.verify(repair=repair)


def _summary(checks: Sequence[Check], left: int, lost: int) -> str:
    mended = sum(check.mended for check in checks)
    if lost:
        return (
            f"found: {left}; mended: {mended - lost}; set aside, and lost to the memory unless a backup has it: {lost}"
        )
    if left:
        return f"found: {left}" + (f"; mended: {mended}" if mended else "")
    return f"all is well; mended: {mended}" if mended else "all is well"


def _print_checks(checks: Sequence[Check]) -> None:
    width = max(len(check.name) for check in checks) + 1
    for check in checks:
        state = "well" if not check.found else "mended" if check.mended >= check.found else "FOUND"
        say(f"{state:7}{check.name:{width}}{check.asked} ({check.looked_at})")
        for finding in check.findings:
            say(f"       {finding}")
        if check.found > len(check.findings):
            say(f"       and {check.found - len(check.findings)} more")
