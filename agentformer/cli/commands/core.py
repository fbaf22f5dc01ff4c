"""The commands for core blocks: show, append, replace, remove."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from agentformer.cli.group import Command, common, examples, main, with_options
from agentformer.cli.inputs import BLOCK_OWNERS, block_options, confirm, open_existing, text_of
from agentformer.cli.output import print_json, print_result, say
from agentformer.errors import NotFound
from agentformer.factory import AgentFormer, connect
from agentformer.records.entry_json import entry_to_json
from agentformer.types import MemoryEntry, Scope


@main.group(
    epilog=examples(
        'agentformer core append persona "Answer briefly."', "agentformer core show", "agentformer core show --help"
    )
)
def core() -> None:
    """Show and edit the core blocks, which are in every context.

    Core blocks are short texts with a name, such as `persona`. A context is the text that a model gets for a task. A
    block is shared by all agents and users, or it belongs to an --agent or a --user.
    """


def _owned(command: Command) -> Command:
    """Add the options --agent and --user. The command gets their values and the value of --namespace as one mapping
    `owner`."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        command(owner={name: options.pop(name) for _, name in BLOCK_OWNERS}, **options)

    return with_options(
        common(run),
        click.option("--agent", "agent_id", metavar="ID", help="Use the block of this agent."),
        click.option("--user", "user_id", metavar="ID", help="Use the block of this user."),
    )


@core.command(epilog=examples("agentformer core show", "agentformer core show persona --agent librarian"))
@click.argument("name", required=False)
@_owned
def show(name: str | None, owner: Any, as_json: bool, **options: Any) -> None:
    """Show one block, or show all blocks.

    Without --agent and --user, the command shows the shared blocks. With --agent or --user, it also shows the blocks of
    this agent or user.
    """
    with open_existing(**options) as af:
        if name is None:
            blocks = af.memory.core.blocks(**owner)
        else:
            with _naming_blocks(af, owner):
                blocks = [af.memory.core.get(name, **owner)]
        others = not blocks and af.backend.count(Scope(owner["namespace"], tiers=("core",)))
    if as_json:
        print_json({"blocks": [entry_to_json(block) for block in blocks]})
        return
    for block in blocks:
        say(_block_text(block))
    if others:
        say("there are no shared core blocks; use --agent or --user to show the blocks of an agent or a user")
    elif not blocks:
        say("there are no core blocks; add a block with: agentformer core append NAME TEXT")


@core.command(epilog=examples('agentformer core append persona "You help the harbour office."'))
@click.argument("name")
@click.argument("text", metavar="TEXT|-")
@_owned
def append(name: str, text: str, owner: Any, as_json: bool, **options: Any) -> None:
    """Append a line to a block. Create the block if it does not exist.

    If the block already contains the line, nothing is changed.
    """
    line = text_of(text)
    with connect(**options) as af:
        block = af.memory.core.append(name, line, **owner)
    print_result(entry_to_json(block), _block_text(block), as_json=as_json)


@core.command(epilog=examples('agentformer core replace persona "the harbour office" "the office of Turku"'))
@click.argument("name")
@click.argument("old")
@click.argument("new")
@_owned
def replace(name: str, old: str, new: str, owner: Any, as_json: bool, **options: Any) -> None:
    """Replace the text OLD by NEW in a block.

    OLD must occur exactly once in the block, in the same spelling. If NEW is empty, OLD is deleted.
    """
    with open_existing(**options) as af, _naming_blocks(af, owner):
        block = af.memory.core.replace(name, old, new, **owner)
    print_result(entry_to_json(block), _block_text(block), as_json=as_json)


@core.command(epilog=examples("agentformer core remove persona", "agentformer core remove persona --yes"))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_owned
def remove(name: str, yes: bool, owner: Any, as_json: bool, **options: Any) -> None:
    """Delete a block and its history permanently."""
    with open_existing(**options) as af, _naming_blocks(af, owner):
        block = af.memory.core.get(name, **owner)
        if not yes:
            confirm(f"core block {name!r}")
        af.memory.core.remove(name, **owner)
    print_result({"removed": [block.id]}, "removed 1", as_json=as_json)


@contextmanager
def _naming_blocks(af: AgentFormer, owner: Mapping[str, Any]) -> Iterator[None]:
    """Add the names of the existing core blocks to the message of a `NotFound` that the `with` block raises."""
    try:
        yield
    except NotFound as error:
        names = [_name(block) for block in af.memory.core.blocks(**owner) if block.title]
        raise NotFound(f"{error}. Existing blocks: {', '.join(names)}" if names else str(error)) from None


def _block_text(block: MemoryEntry) -> str:
    return f"[{_name(block)}]\n{block.content}"


def _name(block: MemoryEntry) -> str:
    """Return the name of a core block, with the command-line options that select this block."""
    return f"{block.title or block.id}{block_options({'agent_id': block.agent_id, 'user_id': block.user_id})}"
