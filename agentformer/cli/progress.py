"""How long work tells where it is: on standard error, and on a terminal only, so that logs and pipes stay clean."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from agentformer.errors import AgentFormerError

Told = Callable[[int, int], None]  # what is done, and how much there is in all

_EACH = 0.5  # seconds between two looks
_LINE_SECONDS = 5.0  # between two lines where there is no terminal


def on_terminal() -> bool:
    """Is standard error a screen?"""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def bar(label: str) -> Iterator[Told]:
    """A bar that fills; where there is no terminal, nothing."""
    with click.progressbar(length=1, label=label, file=sys.stderr, hidden=not on_terminal()) as shown:

        def tell(done: int, total: int) -> None:
            shown.length = total
            shown.update(done - shown.pos)

        yield tell
        shown.finish()


@contextmanager
def watching(look: Callable[[], str]) -> Iterator[None]:
    """A line that is looked up twice a second beside work that tells nothing by itself, taken away at its end."""
    if not on_terminal():
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(look, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextmanager
def rate(what: str) -> Iterator[Told]:
    """How far it is, how fast it goes and how long it will take: on one line of a terminal, else now and then."""
    started = told = time.monotonic()
    terminal = on_terminal()

    def tell(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if not terminal and now - told < _LINE_SECONDS and done < total:
            return
        told = now
        speed = done / max(now - started, 1e-9)
        line = f"{done} of {total} {what}, {speed:.1f}/s, {duration((total - done) / max(speed, 1e-9))} left"
        click.echo(f"\r{line:70}" if terminal else line, err=True, nl=not terminal)

    try:
        yield tell
    finally:
        if terminal:
            click.echo(err=True)


def duration(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _watch(look: Callable[[], str], done: threading.Event) -> None:
    started = time.monotonic()
    shown = ""
    while not done.wait(_EACH):
        with suppress(AgentFormerError):  # a look that fails says nothing about the work
            shown = f"{look()}, {duration(time.monotonic() - started)}"
            click.echo(f"\r{shown:70}", err=True, nl=False)
    if shown:
        click.echo(f"\r{'':70}\r", err=True, nl=False)
