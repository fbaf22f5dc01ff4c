"""The group that all commands belong to, their common options, and how errors are told."""

from __future__ import annotations

import functools
import io
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from agentformer._version import __version__
from agentformer.cli.output import fail
from agentformer.errors import AgentFormerError, Conflict, InvalidInput, MissingExtra, NotFound
from agentformer.factory import AgentFormer
from agentformer.types import DEFAULT_NAMESPACE, MemoryEntry

Command = Callable[..., Any]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """A memory that an agent can trust, and answers from documents with page-exact citations.

    \b
    agentformer ingest handbook.pdf notes/
    agentformer ask "Who holds the keys?"
    agentformer remember "Aino prefers tea."
    agentformer recall "What does Aino drink?"
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without these letters shows their numbers


def common(command: Command) -> Command:
    """The options that every command has, and errors told in one line."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except (InvalidInput, NotFound, Conflict, MissingExtra) as error:
            fail(str(error), 2)
        except AgentFormerError as error:
            fail(str(error), 3)

    for option in (
        click.option("--index-dir", type=click.Path(path_type=Path), help="Folder of the memory [indexes]."),
        click.option("--upload-dir", type=click.Path(path_type=Path), help="Folder of the originals [uploads]."),
        click.option(
            "--embedder", help="auto, minilm, sbert:MODEL_OR_FOLDER, ollama:MODEL, openai:MODEL or hashing [auto]."
        ),
        click.option("--namespace", default=DEFAULT_NAMESPACE, show_default=True, help="Whose memories."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ):
        run = option(run)
    return run


def in_place(command: Command) -> Command:
    """The options that say whose memories are meant, given to the command as one mapping `place`."""

    @functools.wraps(command)
    def run(
        *,
        namespace: str,
        session_id: str | None,
        agent_id: str | None,
        user_id: str | None,
        project: str | None,
        **options: Any,
    ) -> None:
        place = {"session_id": session_id, "agent_id": agent_id, "user_id": user_id, "project": project}
        command(place={"namespace": namespace, **place}, **options)

    for option in (
        click.option("--project", help="Of this project only."),
        click.option("--user", "user_id", help="Of this user only."),
        click.option("--agent", "agent_id", help="Of this agent only."),
        click.option("--session", "session_id", help="Of this session only."),
    ):
        run = option(run)
    return run


def entry_in(af: AgentFormer, entry_id: str, namespace: str) -> MemoryEntry:
    """The entry of this id, if it is in the namespace. Raises `NotFound`."""
    entry = af.memory.get(entry_id)
    if entry.namespace != namespace:
        raise NotFound(f"there is no entry {entry_id} in namespace {namespace}; --namespace says where to look")
    return entry
