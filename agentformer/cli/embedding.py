"""Commands about vectors: embed what waits, move a memory to another embedder, see and prune its spaces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agentformer.cli.group import common, examples, main
from agentformer.cli.output import INTERRUPTED, print_json, print_table, say
from agentformer.cli.progress import rate, watching
from agentformer.errors import EmbedderUnavailable, InvalidInput
from agentformer.factory import AgentFormer, connect
from agentformer.tools.shapes import move_json, report_json, space_json
from agentformer.types import Reembedding, Scope, SpaceState

_SHOWN = 100  # entries that wait; a person needs the first ones to see what is wrong
_KEPT = "what is done is kept: agentformer reembed --to {to} goes on from there"


@main.command(epilog=examples("agentformer reindex", "agentformer reindex --show --namespace board"))
@click.option("--show", is_flag=True, help="Only show what waits, how often it was tried, and what went wrong.")
@common
def reindex(show: bool, namespace: str, as_json: bool, **options: Any) -> None:
    """Embed what waits for an embedder, in every namespace.

    Entries wait where no embedder was at hand when they were stored. The exit code is 1 when some still do.
    """
    with connect(**{**options, "embed_retry_seconds": 0}) as af:
        if not show:
            with watching(lambda: f"{_waiting(af)} entries to go"):
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


@main.command(
    epilog=examples(
        "agentformer reembed --to minilm",
        "agentformer reembed --to ollama:nomic-embed-text --queries questions.txt",
        "agentformer reembed --abandon",
    )
)
@click.option("--to", metavar="SPEC", help="The new embedder: minilm, sbert:MODEL, ollama:MODEL, openai:MODEL, ...")
@click.option(
    "--queries",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with one query a line, by which old and new are compared; without it, entries of the memory are.",
)
@click.option("--abandon", is_flag=True, help="Give up a move that was begun.")
@common
def reembed(to: str | None, queries: Path | None, abandon: bool, as_json: bool, **options: Any) -> None:
    """Move the memory to another embedder, while it is used.

    It goes on answering with the present one meanwhile, in every namespace. Interrupt it at any time: the same command
    goes on where it was. The former vectors stay until `agentformer spaces prune`.
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


@main.group(
    invoke_without_command=True,
    epilog=examples("agentformer spaces", "agentformer spaces --json", "agentformer spaces prune"),
)
@common
def spaces(namespace: str, as_json: bool, **options: Any) -> None:
    """Show the embedding spaces of the memory.

    A space is what one embedder's vectors lie in. `spaces prune` deletes those that searches no longer use.
    """
    if click.get_current_context().invoked_subcommand:
        return
    with connect(**{**options, "embedder": "auto"}) as af:
        found = list(af.backend.spaces())
    if as_json:
        print_json([space_json(state) for state in found])
        return
    print_table(
        ("STATE", "EMBEDDER", "DIMENSIONS", "VECTORS", "MB", ""),
        [_space_cells(state) for state in found],
        right=(2, 3, 4),
    )
    if not found:
        say("there are no vectors yet")


@spaces.command(epilog=examples("agentformer spaces prune"))
@common
def prune(namespace: str, as_json: bool, **options: Any) -> None:
    """Delete the vectors of spaces that searches no longer use."""
    with connect(**{**options, "embedder": "auto"}) as af:
        gone = af.backend.prune_spaces()
    if as_json:
        print_json({"vectors": gone})
    else:
        say(f"vectors deleted: {gone}")


def _space_cells(state: SpaceState) -> tuple[str, ...]:
    lacks = f"{state.waiting} entries to go" if state.state == "building" else ""
    size = f"{state.bytes / 1e6:.1f}"
    return state.state, state.space.spec, str(state.space.dimension), str(state.vectors), size, lacks


def _waiting(af: AgentFormer) -> int:
    return sum(af.backend.pending(Scope(name)) for name in af.backend.namespaces())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("--queries", f"{path} cannot be read as UTF-8 text ({type(error).__name__})") from None


def _moved(af: AgentFormer, to: str, queries: list[str]) -> Reembedding:
    try:
        with rate("entries") as progress:
            return af.reembed(to, queries=queries, progress=progress)
    except EmbedderUnavailable:
        say(_KEPT.format(to=to), err=True)
        raise
    except KeyboardInterrupt:
        say(f"interrupted; {_KEPT.format(to=to)}", err=True)
        sys.exit(INTERRUPTED)


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
