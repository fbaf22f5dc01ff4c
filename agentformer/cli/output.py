"""Writes the output of commands: JSON for programs, lines and tables for people, errors in one line, and progress.

Progress is written to standard error, so that standard output has only results. Progress bars are shown only if
standard error is a terminal. Otherwise, work that takes longer than ten seconds prints a line every ten seconds.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import click

from agentformer.errors import AgentFormerError
from agentformer.text.places import cited_place
from agentformer.types import Answer, Citation, MemoryEntry

if TYPE_CHECKING:
    from agentformer.evaluation.metrics import Interval

INTERRUPTED = 130  # exit code that shells use after Ctrl-C
READER_GONE = 141  # exit code that shells use after a closed pipe
CLOSED = "standard output is closed"
_NEAREST = 160  # at most this many code points of a nearest passage are shown
EXCERPT = 300  # at most this many code points of a text are shown
# Characters that move a cursor, change colors, or reverse the reading direction.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_GAP = "  "
_INDENT = "    "
_READABLE = 24  # least width of the last column; in a narrower column, long cells move to a separate line
_REFRESH_SECONDS = 0.5
_PIPE_SECONDS = 10.0  # seconds until the first line of progress, and between two lines, if there is no terminal

Progress = Callable[[int, int], None]  # called with the number of finished items and the number of all items


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON. If the encoding of standard output is not a form of Unicode, use only ASCII characters."""
    unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "").startswith("utf")
    _echo(json.dumps(value, ensure_ascii=not unicode, indent=indent))


def print_result(value: Any, text: str, *, as_json: bool, indent: int | None = 2) -> None:
    """Print `value` as JSON if `as_json` is true. Otherwise print `text`."""
    if as_json:
        print_json(value, indent=indent)
    else:
        say(text)


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text without control characters, and a line end unless `nl` is false. With `err`, print on standard
    error."""
    _echo(safe(text), err=err, nl=nl)


def safe(text: str) -> str:
    """Return the text without characters that control the terminal or change the reading direction."""
    return _UNSAFE.sub("", text)


def one_line(text: str) -> str:
    """Return the text, such as a file name, as one line without control characters."""
    return " ".join(safe(text).split())


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 page" or "2 entries"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def fail(message: str, code: int) -> NoReturn:
    """Print an error message, and exit with this code."""
    say(f"error: {message}", err=True)
    sys.exit(code)


def print_warnings(warnings: Iterable[str]) -> None:
    """Print each warning as a line on standard error."""
    for warning in warnings:
        say(f"note: {warning}", err=True)


def output_lost(error: OSError) -> NoReturn:
    """Exit because standard output cannot be written. Print an error, unless the reader has closed the pipe."""
    # Otherwise the interpreter would try to write the buffered output again at exit.
    with suppress(OSError, ValueError, AttributeError):
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


# ------------------------------------------------------------------ tables


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = (), indent: str = ""
) -> None:
    """Print a table. On a terminal, the table has headings and is cut to the width of the terminal. In a pipe, the
    table has complete rows and no headings. The columns in `right` are aligned right."""
    cleaned = [[safe(cell) for cell in row] for row in rows]
    terminal = sys.stdout is not None and sys.stdout.isatty()
    cells = max(shutil.get_terminal_size().columns - len(indent), 1) if terminal else None
    for line in table(headings, cleaned, right=right, cells=cells):
        _echo(indent + line)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = (), cells: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table. The columns in `right` are aligned right.

    `cells` is the width of the terminal. If it is given, the table has headings, and its last column is cut to fit.
    Otherwise the table has no headings, and no cell is cut, so that a program can read the rows.
    """
    lines = [[" ".join(cell.split()) for cell in row] for row in rows]
    shown = [list(headings), *lines] if cells and lines else lines
    if not shown:
        return
    sizes = [max(width(row[n]) for row in shown) for n in range(len(headings) - 1)]
    longest = max(width(row[-1]) for row in shown)
    left = longest if cells is None else cells - sum(sizes) - len(_GAP) * len(sizes)
    below = left < _READABLE and longest > left
    for *first, last in shown:
        padded = [_pad(cell, size, n in right) for n, (cell, size) in enumerate(zip(first, sizes, strict=True))]
        if not below:
            yield _GAP.join([*padded, clip(last, left)]).rstrip()
            continue
        yield _GAP.join(padded).rstrip()
        if last:
            yield _INDENT + clip(last, (cells or 0) - len(_INDENT))


def width(text: str) -> int:
    """Return the number of terminal cells that the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def clip(text: str, cells: int) -> str:
    """Return the text, cut to at most `cells` terminal cells. A cut text ends with an ellipsis."""
    if width(text) <= cells:
        return text
    if cells <= 0:
        return ""
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, cells - 1).rstrip()}…"


def _pad(text: str, size: int, right: bool) -> str:
    blank = " " * (size - width(text))
    return blank + text if right else text + blank


# ------------------------------------------------------------------ entries and answers


def print_entries(entries: Iterable[MemoryEntry]) -> None:
    """Print entries as a table."""
    print_table(("ID", "KIND", "WHEN (UTC)", "TEXT"), [entry_cells(entry) for entry in entries])


def entry_line(entry: MemoryEntry) -> str:
    """Return an entry on one line: its id, kind, time and the beginning of its text."""
    return _GAP.join(entry_cells(entry))


def entry_cells(entry: MemoryEntry) -> tuple[str, str, str, str]:
    """Return the cells of an entry: its id, its tier and kind, its time, and the beginning of its text with title and
    speaker."""
    speaker = f"{entry.speaker or entry.role}: " if entry.speaker or entry.role else ""
    title = f"[{entry.title}] " if entry.title else ""
    state = " archived" if entry.archived_at else " superseded" if entry.superseded_by else ""
    state = state or (" expired" if entry.expires_at and entry.expires_at <= datetime.now(UTC) else "")
    when = moment(entry.occurred_at or entry.created_at)
    return entry.id, f"{entry.tier}/{entry.kind}{state}", when, f"{title}{speaker}{excerpt(entry.content)}"


def moment(when: datetime | None) -> str:
    """Return a time as text in UTC, to the minute. Return an empty text for None."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M}" if when else ""


def excerpt(text: str, most: int = EXCERPT) -> str:
    """Return the beginning of a text as one line."""
    text = " ".join(text[: 4 * most].split())
    return f"{text[:most]}…" if len(text) > most else text


def memory_place(citation: Citation) -> str:
    """Return a description of a cited memory with its id, such as "message of Maija, 2026-11-20 09:15 (ID)"."""
    speaker = f" of {citation.speaker}" if citation.speaker else ""
    at = f", {moment(citation.at)}" if citation.at else ""
    originals = f", of {plural(len(citation.originals), 'message')}" if citation.originals else ""
    former = ", former" if citation.newer else ""
    return f"{citation.kind}{speaker}{at}{originals}{former} ({citation.entry_id})"


def print_answer(answer: Answer) -> None:
    """Print an answer, its warnings and its citations. The text of an extractive answer consists of the quotes, so the
    citations then show only the pages. If no passage answers the question, the nearest passages are listed."""
    print_warnings(answer.warnings)
    say(answer.text)
    if answer.mode == "none" and answer.hits:
        _print_nearest(answer)
    if answer.citations:
        quoted = answer.mode == "extractive" and answer.confidence  # a model states no confidence
        say(f"\n({answer.mode}{f', confidence {answer.confidence:.2f}' if quoted else ''})")
    for citation in answer.citations:
        quote = "" if answer.mode == "extractive" else f": {' '.join(citation.quote.split())}"
        place = cited_place(citation.document or memory_place(citation), citation.page, citation.label)
        say(f"[{citation.number}] {place}{quote}")


def _print_nearest(answer: Answer) -> None:
    """Print the place and the beginning of each passage that was found, so that the reader can judge the passages. The
    line above the passages is in the language of the answer."""
    from agentformer.rag.answer.prompts import nearest_passages

    say(f"\n{nearest_passages(answer.text, answer.confidence or 0.0)}")
    for hit in answer.hits:
        entry = hit.entry
        start, end = hit.span or (0, len(entry.content))
        text = " ".join(entry.content[start:end].split())
        say(f"  {place_of(entry)}: {text if len(text) <= _NEAREST else f'{text[:_NEAREST]}…'}")


def place_of(entry: MemoryEntry) -> str:
    """Return the place of the text of an entry, for people: the document and the page of a passage, or the id of an
    entry that is not from a document."""
    if entry.source is None:
        return entry.id
    return cited_place(entry.source.name, entry.source.page, entry.source.label)


def interval_text(interval: Interval, sign: str = "") -> str:
    """Return a value and its confidence interval as text. If `sign` is "+", positive numbers begin with "+"."""
    return f"{interval.value:{sign}.3f} ({interval.low:{sign}.3f} to {interval.high:{sign}.3f})"


# ------------------------------------------------------------------ progress


def on_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def bar(label: str, noun: str = "", *, last_line: bool = False) -> Iterator[Progress]:
    """Show progress while the `with` block runs. Yield the function that reports progress. On a terminal, a progress
    bar is shown. Otherwise, long work prints lines. `label` names the work. `noun` names the items, such as "files". If
    `noun` is given, the lines also have the speed and the remaining time. With `last_line`, a line is printed when the
    work is complete, even if the work was short."""
    if not on_terminal():
        yield _printed_progress(label, noun, last_line)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), noun, TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _printed_progress(label: str, noun: str, last_line: bool) -> Progress:
    """Return a function that prints a line every `_PIPE_SECONDS`. The parameters are those of `bar`."""
    started = printed = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= _PIPE_SECONDS or (last_line and done >= total):
            printed = now
            speed = done / max(now - started, 1e-9)
            left = duration((total - done) / speed) if speed else "unknown"
            say(f"{label}: {done} of {total}" + (f" {noun}, {speed:.1f}/s, {left} left" if noun else ""), err=True)

    return progress


@contextmanager
def watching(state: Callable[[], str]) -> Iterator[None]:
    """While the `with` block runs, show the text that `state` returns. On a terminal, one line is updated twice a
    second, and cleared at the end. Otherwise, long work prints lines."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(state, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(state: Callable[[], str], done: threading.Event) -> None:
    """Show `state()` and the time that has passed, as `watching` describes, until `done` is set."""
    started = time.monotonic()
    longest = 0
    terminal = on_terminal()
    while not done.wait(_REFRESH_SECONDS if terminal else _PIPE_SECONDS):
        with suppress(AgentFormerError):  # the work reports its own errors
            line = safe(f"{state()}, {duration(time.monotonic() - started)}")
            if terminal:
                line = clip(line, shutil.get_terminal_size().columns - 1)
                longest = max(longest, len(line))
            click.echo(f"\r{line:{longest}}" if terminal else line, err=True, nl=not terminal)
    if longest:
        click.echo(f"\r{'':{longest}}\r", err=True, nl=False)


def duration(seconds: float) -> str:
    """Return a duration as minutes and seconds (2:05), or as hours, minutes and seconds (1:02:05)."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
