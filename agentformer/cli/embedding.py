"""Commands about vectors: embed what waits, move a memory to another embedder, see and prune its spaces."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from agentformer.cli.group import common, main
from agentformer.cli.output import print_json, say
from agentformer.errors import EmbedderUnavailable, InvalidInput
from agentformer.factory import AgentFormer, connect
from agentformer.tools.shapes import move_json, report_json, space_json
from agentformer.types import Reembedding, Scope

_SHOWN = 100  # entries that wait; a person needs the first ones to see what is wrong
_LINE_SECONDS = 5.0  # between two lines of progress where there is no terminal
_KEPT = "what is done is kept: agentformer reembed --to {to} goes on from there"
_INTERRUPTED = 130  # what shells give a command that Ctrl-C ended


@main.command()
@click.option("--show", is_flag=True, help="Only show what waits, how often it was tried, and what went wrong.")
@common
def reindex(show: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Embed what could not be embedded when it was stored, in every namespace."""
    with connect(**{**options, "embed_retry_seconds": 0}) as af:
        if not show:
            af.memory.reindex()
        spaces = [namespace] if show else af.backend.namespaces()
        waiting = [item for name in spaces for item in af.backend.waiting(Scope(name), limit=_SHOWN)]
        count = sum(af.backend.pending(Scope(name)) for name in spaces)
    if as_json:
        print_json({"pending": count, "waiting": [report_json(item) for item in waiting[:_SHOWN]]})
    else:
        say(f"{count} entries still wait for an embedder" if count else "everything is embedded")
        for item in waiting[: _SHOWN if show else 1]:
            say(f"  {item.entry_id}  tried {item.attempts} times: {item.last_error}")
    if count and not show:
        sys.exit(1)


@main.command()
@click.option("--to", metavar="SPEC", help="The new embedder: minilm, sbert:MODEL, ollama:MODEL, openai:MODEL, ...")
@click.option(
    "--queries",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with one query a line, by which old and new are compared; without it, entries of the memory are.",
)
@click.option("--abandon", is_flag=True, help="Give up a move that was begun.")
@common
def reembed(to: str | None, queries: Path | None, abandon: bool, as_json: bool, **options: Any) -> None:
    """Move the memory to another embedder, while it goes on answering with the present one.

    Interrupt it at any time: the same command goes on where it was. The former vectors stay until
    `agentformer spaces prune`.
    """
    options.pop("namespace")
    if bool(to) == abandon:
        raise InvalidInput("--to", "name the new embedder, such as --to minilm, or give a begun move up with --abandon")
    # The present embedder is the store's own, whatever a setting asks for: that may be the new one already.
    with connect(**{**options, "embedder": "auto", "embed_retry_seconds": 0}) as af:
        if not to:
            abandoned = af.backend.abandon_reembedding()
            if as_json:
                print_json({"abandoned": abandoned})
            else:
                say("the move was given up" if abandoned else "no move was under way")
            return
        asked = [line.strip() for line in _read(queries).splitlines() if line.strip()] if queries else []
        moved = _moved(af, to, asked)
    if as_json:
        print_json(move_json(moved))
    else:
        _print_move(moved)


@main.group(invoke_without_command=True)
@common
def spaces(namespace: str, as_json: bool, **options: Any) -> None:
    """Show the embedding spaces of the memory; `spaces prune` deletes those that searches no longer use."""
    if click.get_current_context().invoked_subcommand:
        return
    with connect(**{**options, "embedder": "auto"}) as af:
        found = list(af.backend.spaces())
    if as_json:
        print_json([space_json(state) for state in found])
        return
    for state in found:
        lacks = f", {state.waiting} entries to go" if state.state == "building" else ""
        say(
            f"{state.state:8}  {state.space.spec}  {state.space.dimension} dimensions, {state.vectors} vectors, "
            f"{state.bytes / 1e6:.1f} MB{lacks}"
        )
    if not found:
        say("there are no vectors yet")


@spaces.command()
@common
def prune(namespace: str, as_json: bool, **options: Any) -> None:
    """Delete the vectors of spaces that searches no longer use."""
    with connect(**{**options, "embedder": "auto"}) as af:
        gone = af.backend.prune_spaces()
    if as_json:
        print_json({"vectors": gone})
    else:
        say(f"vectors deleted: {gone}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("--queries", f"{path} cannot be read as UTF-8 text ({type(error).__name__})") from None


def _moved(af: AgentFormer, to: str, queries: list[str]) -> Reembedding:
    try:
        with _progress() as progress:
            return af.reembed(to, queries=queries, progress=progress)
    except EmbedderUnavailable:
        say(_KEPT.format(to=to), err=True)
        raise
    except KeyboardInterrupt:
        say(f"interrupted; {_KEPT.format(to=to)}", err=True)
        sys.exit(_INTERRUPTED)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Tells how far it is, how fast it goes and how long it will take: on one line of a terminal, else now and then."""
    started = told = time.monotonic()
    terminal = sys.stderr.isatty()

    def tell(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if not terminal and now - told < _LINE_SECONDS and done < total:
            return
        told = now
        rate = done / max(now - started, 1e-9)
        line = f"{done} of {total} entries, {rate:.1f}/s, {_duration((total - done) / max(rate, 1e-9))} left"
        click.echo(f"\r{line:70}" if terminal else line, err=True, nl=not terminal)

    try:
        yield tell
    finally:
        if terminal:
            click.echo(err=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _print_move(moved: Reembedding) -> None:
    if not moved.switched:
        say(f"the memory is in the space of {moved.space.spec} already")
        return
    former = f"from {moved.former.spec} " if moved.former else ""
    say(f"moved {former}to {moved.space.spec} ({moved.space.dimension} dimensions)")
    say(f"{moved.entries} entries in {moved.seconds:.1f} s; {moved.embedded} texts embedded, {moved.reused} were there")
    if moved.overlap is not None:
        say(f"of the nearest ten entries, old and new agree on {moved.overlap:.0%} (over {moved.sample} queries)")
    if moved.failed:
        say(f"{moved.failed} entries were refused by the model: agentformer reindex --show", err=True)
    if moved.former:
        say("the former vectors are kept; agentformer spaces prune deletes them")
