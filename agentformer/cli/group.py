"""The group that all commands belong to, their common options, and how a command ends."""

from __future__ import annotations

import errno
import functools
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from agentformer._version import __version__
from agentformer.cli import commands, start
from agentformer.cli.output import CLOSED, INTERRUPTED, fail, output_lost, say
from agentformer.errors import AgentFormerError, Conflict, InvalidInput, LimitExceeded, MissingExtra, NotFound
from agentformer.types import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from agentformer.factory import AgentFormer
    from agentformer.types import MemoryEntry

Command = Callable[..., Any]

EXIT_CODES = {
    0: "done",
    1: "done in part, or something was found that needs a look: a file without usable text, an answer that broke "
    "off, a task that does not fit, entries that still wait for an embedder",
    2: "a wrong argument, or one that does not fit what is stored",
    3: "the memory, a model or the output cannot be used",
    130: "stopped by Ctrl-C; what was done until then is kept",
    141: "whoever read the output went away, as `head` does",
}
SECTIONS: Mapping[str, Sequence[str]] = {title: tuple(names) for title, names in commands.SECTIONS.items()}
_PLACE = ("namespace", "session_id", "agent_id", "user_id", "project")
_EVERYWHERE = ("as_json", "embedder", "index_dir", "upload_dir")


class Described(click.Command):
    """A command whose own options stand first in its help, then whose memories it means, then those of all."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return sorted(super().get_params(ctx), key=_rank)  # stable: the own ones stay in their order

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parts: dict[str, list[tuple[str, str]]] = {"Options": [], "In every command": []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                parts["In every command" if _rank(parameter) > len(_PLACE) else "Options"].append(record)
        for title, records in parts.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _written():  # the help text
            return super().make_context(info_name, args, parent, **extra)


class Group(Described, click.Group):
    """A command with commands below it."""

    command_class = Described


class CommandLine(Group):
    """The whole of it: sections of commands, and one place where Ctrl-C and a lost output are told."""

    group_class = Group

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = self.list_commands(ctx)
        sections = {**SECTIONS, "More": [name for name in shown if name not in commands.HELP]}
        longest = max(map(len, shown))
        for title, names in sections.items():
            lines = [
                (f"{name:{longest}}", commands.HELP.get(name) or first_sentence(self.commands[name])) for name in names
            ]
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        told = [CompletionItem(name, help=commands.HELP.get(name)) for name in names]
        return [*told, *click.Command.shell_complete(self, ctx, incomplete)]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _stopped():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _stopped():
            return super().invoke(ctx)


def examples(*lines: str) -> str:
    """The end of a command's help: command lines as they are typed."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(cls=CommandLine, commands=commands.Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """A memory that an agent can trust, and answers from documents with page-exact citations.

    \b
    agentformer ingest handbook.pdf notes/
    agentformer ask "Who holds the keys?"
    agentformer remember "Aino prefers tea."
    agentformer recall "What does Aino drink?"

    `agentformer COMMAND --help` explains a command, with examples. With --json, the answer is JSON on standard
    output; what went wrong is told in words on standard error, and by the exit code.
    """
    start.hand_over()
    _fill_closed()
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without these letters shows their numbers


def _fill_closed() -> None:
    """Nothing in the place of a standard stream that is closed: else the next file opened, such as the memory's own,
    would get its number, and what libraries print would go there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def common(command: Command) -> Command:
    """The options that every command has, and errors told in one line."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except (InvalidInput, NotFound, Conflict, MissingExtra, LimitExceeded) as error:
            fail(str(error), 2)
        except AgentFormerError as error:
            fail(str(error), 3)

    for option in (
        click.option("--upload-dir", type=click.Path(path_type=Path), help="Folder of the originals [uploads]."),
        click.option("--index-dir", type=click.Path(path_type=Path), help="Folder of the memory [indexes]."),
        click.option(
            "--embedder",
            metavar="SPEC",
            help="auto, minilm, sbert:MODEL_OR_FOLDER, ollama:MODEL, openai:MODEL or hashing [auto].",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--namespace", metavar="NAME", default=DEFAULT_NAMESPACE, help=f"Whose memories [{DEFAULT_NAMESPACE}]."
        ),
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
        click.option("--project", metavar="NAME", help="Of this project only."),
        click.option("--user", "user_id", metavar="ID", help="Of this user only."),
        click.option("--agent", "agent_id", metavar="ID", help="Of this agent only."),
        click.option("--session", "session_id", metavar="ID", help="Of this session only."),
    ):
        run = option(run)
    return run


def namespace_asked(namespace: str) -> str | None:
    """The namespace of the command that runs, if somebody asked for it, and not by default."""
    source = click.get_current_context().get_parameter_source("namespace")
    return None if source is ParameterSource.DEFAULT else namespace


def entry_in(af: AgentFormer, entry_id: str, namespace: str) -> MemoryEntry:
    """The entry of this id, if it is in the namespace. Raises `NotFound`."""
    entry = af.memory.get(entry_id)
    if entry.namespace != namespace:
        raise NotFound(f"there is no entry {entry_id} in namespace {namespace}; --namespace says where to look")
    return entry


def first_sentence(command: click.Command) -> str:
    """What a command is for, on one line."""
    return (command.get_short_help_str(limit=1000).partition("\n")[0]).rstrip(".")


def _rank(parameter: click.Parameter) -> int:
    """Where a parameter stands in the help: own ones, the place, those of every command, and --help."""
    order = (*_PLACE, *_EVERYWHERE, "help")
    name = "help" if "--help" in parameter.opts else parameter.name or ""
    return 1 + order.index(name) if name in order else 0


@contextmanager
def _stopped() -> Iterator[None]:
    """Ctrl-C, wherever it comes, ends a command without a trace."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        say("\ninterrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError as error:
        output_lost(error)


@contextmanager
def _written() -> Iterator[None]:
    """A help text that cannot be written is no crash."""
    try:
        yield
    except click.exceptions.Exit as end:  # after --help or --version, which click does not print to a closed output
        if sys.stdout is None and end.exit_code == 0:
            output_lost(OSError(errno.EBADF, CLOSED))
        raise
    except OSError as error:
        output_lost(error)
