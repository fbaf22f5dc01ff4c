"""How the command line shows things: JSON for programs, short lines for people, errors in one line."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NoReturn

import click

from agentformer.cli.explaining import reasons
from agentformer.cli.tables import table
from agentformer.types import Answer, Hit, Hits, MemoryEntry

INTERRUPTED = 130  # what shells give a command that Ctrl-C ended
READER_GONE = 141  # and one whose reader closed the pipe, as `head` does
CLOSED = "standard output is closed"
EXCERPT = 300  # code points of a text shown to a person
# What could move a terminal's cursor, change its colours, or make a line read otherwise than it is stored.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """JSON, in ASCII where the output cannot carry more."""
    wide = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "").startswith("utf")
    _echo(json.dumps(value, ensure_ascii=not wide, indent=indent))


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """A line for a person, or with `nl=False` a piece of one; stored text cannot play tricks with the terminal."""
    _echo(safe(text), err=err, nl=nl)


def safe(text: str) -> str:
    """Without what plays tricks with a terminal."""
    return _UNSAFE.sub("", text)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = (), indent: str = ""
) -> None:
    """On a terminal with headings and cut to its width; in a pipe rows alone, whole."""
    cleaned = [[safe(cell) for cell in row] for row in rows]
    terminal = sys.stdout is not None and sys.stdout.isatty()
    cells = max(shutil.get_terminal_size().columns - len(indent), 1) if terminal else None
    for line in table(headings, cleaned, right=right, cells=cells):
        _echo(indent + line)


def output_lost(error: OSError) -> NoReturn:
    """End a command whose output cannot be written: quietly where the reader has gone, else with a line about it."""
    with suppress(OSError, ValueError, AttributeError):  # what is still to be written must not fail once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(READER_GONE)
    with suppress(OSError):
        click.echo(f"error: the output cannot be written: {error.strerror or error}", err=True)
    sys.exit(3)


def _echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    if sys.stdout is None and not err:
        output_lost(OSError(errno.EBADF, CLOSED))
    try:
        click.echo(text, err=err, nl=nl)
    except OSError as error:
        output_lost(error)


def fail(message: str, code: int) -> NoReturn:
    say(f"error: {message}", err=True)
    sys.exit(code)


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        say(f"note: {warning}", err=True)


def excerpt(text: str) -> str:
    """The beginning of a text on one line."""
    text = " ".join(text[: 4 * EXCERPT].split())
    return f"{text[:EXCERPT]}…" if len(text) > EXCERPT else text


def document_line(document: Mapping[str, Any]) -> str:
    state = "unchanged" if document.get("unchanged") else document["status"]
    line = f"{state:9}  {document['name']}  {document['pages']} pages, {document['chunks']} chunks"
    return f"{line}  ({document['reason']})" if document["reason"] else line


def print_answer(answer: Answer) -> None:
    print_warnings(answer.warnings)
    say(answer.text)
    if answer.citations:
        say(f"\n({answer.mode}{confidence(answer)})")
    for citation in answer.citations:
        place = f", page {citation.page}" if citation.page else ""
        printed = f" (printed {citation.label})" if citation.label not in ("", str(citation.page)) else ""
        say(f"[{citation.number}] {citation.document}{place}{printed}: {' '.join(citation.quote.split())}")


def confidence(answer: Answer) -> str:
    """How sure the search is of what is quoted; a model is trusted or not for its own words."""
    return f", confidence {answer.confidence:.2f}" if answer.mode == "extractive" and answer.confidence else ""


def print_hits(hits: Hits, nothing: str = "nothing found", *, explain: bool = False) -> None:
    """Hits, best first, or `nothing` where there are none. With `explain` each tells why it stands where it stands."""
    print_warnings(hits.warnings)
    for hit, reason in zip(hits, reasons(hits), strict=True):
        say(f"{hit.score:.3f}  {_origin(hit)}\n       {excerpt(hit.entry.content)}")
        if explain:
            say(f"       {reason}")
    if not hits:
        say(nothing)


def print_entries(entries: Iterable[MemoryEntry]) -> None:
    print_table(("ID", "KIND", "WHEN (UTC)", "TEXT"), [entry_cells(entry) for entry in entries])


def entry_line(entry: MemoryEntry) -> str:
    """Id, what it is, when, who said it, and how it begins."""
    return "  ".join(entry_cells(entry))


def entry_cells(entry: MemoryEntry) -> tuple[str, str, str, str]:
    said = f"{entry.speaker or entry.role}: " if entry.speaker or entry.role else ""
    title = f"[{entry.title}] " if entry.title else ""
    when = moment(entry.occurred_at or entry.created_at)
    return entry.id, f"{entry.tier}/{entry.kind}{_state(entry)}", when, f"{title}{said}{excerpt(entry.content)}"


def moment(when: datetime | None) -> str:
    """A time in UTC, to the minute."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M}" if when else ""


def _state(entry: MemoryEntry) -> str:
    if entry.archived_at:
        return " archived"
    return " superseded" if entry.superseded_by else ""


def _origin(hit: Hit) -> str:
    source = hit.entry.source
    if source is None:
        return hit.entry.id
    return f"{source.name}, page {source.page}"
