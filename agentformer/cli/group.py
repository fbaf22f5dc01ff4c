"""The root command, the options that several commands have, and the handling of errors and of Ctrl-C."""

from __future__ import annotations

import errno
import functools
import io
import logging
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from agentformer._version import __version__, build
from agentformer.cli.output import CLOSED, INTERRUPTED, fail, output_lost, say
from agentformer.errors import (
    AgentFormerError,
    Conflict,
    InvalidInput,
    LimitExceeded,
    MissingExtra,
    NotFound,
    NotOffered,
)
from agentformer.http.circuit_breaker import CALLS
from agentformer.types import DEFAULT_NAMESPACE, TIERS

Command = Callable[..., Any]

EXIT_CODES = {
    0: "success",
    1: "the work is not complete, or a check found a problem: for example, a file has no usable text, an answer is "
    "incomplete, a task is longer than its context, or entries still wait for an embedder",
    2: "an argument is invalid, or the command conflicts with the stored data",
    3: "the memory, a model or the output cannot be used",
    130: "interrupted by Ctrl-C; finished work is kept",
    141: "the program that reads the output closed the pipe, as `head` does",
}
# Section -> command -> help in one line. With these texts, all commands are listed without importing them.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Documents": {
        "ingest": "Ingest documents: files, folders with all their files, and URLs (http and https)",
        "sync": "Keep documents equal to the files of a folder",
        "ask": "Answer a question from the documents and the memories, with citations",
        "search": "Search documents and memories, and show the best hits first",
        "list": "List the documents",
        "remove": "Delete documents and everything derived from them",
        "eval": "Measure how well your documents answer your own questions",
        "optimize": "Find the settings that give the best answers to your own questions",
    },
    "Memories": {
        "remember": "Store a fact, a decision, or a message of a session",
        "recall": "Search for the memories that are relevant to a query, and show the best hits first",
        "context": "Show the context that a model gets for a task",
        "memories": "List the memories, oldest first",
        "core": "Show and edit the core blocks, which are in every context",
        "update": "Change a memory; `history` shows its former versions",
        "supersede": "Replace an older memory by a newer one",
        "history": "Show the former versions of an entry and the current one",
        "forget": "Delete memories permanently",
        "profile": "Show what holds now about a user, with the source and the time of each statement",
    },
    "Maintenance": {
        "status": "Show what is stored, and the state of each part of the memory",
        "doctor": "Verify the stored data of every namespace",
        "learn": "Store the facts that users have stated in messages, each with the words that prove it",
        "clean": "Summarize the older messages of sessions, and archive these messages and expired entries",
        "restore": "Restore the original entries of a summary, or restore a superseded, archived or expired entry",
        "audit": "Show duplicates, contradictions and entries that were never read",
        "reindex": "Embed the entries that wait for an embedder, in every namespace",
        "reembed": "Move the memory to another embedder while the memory stays in use",
        "spaces": "Show the embedding spaces of the memory",
        "trail": "Show who changed what, when, and from where",
        "vacuum": "Give the space of deleted content back to the disk while the memory stays in use",
        "upgrade": "Migrate the store of an older version, after a copy of it",
        "backup": "Copy the whole memory into a new folder while the memory stays in use",
        "copy": "Copy a memory from one backend to another while it is in use",
        "export": "Write the stored data to a folder, or print the text of the documents",
        "import": "Import an export, conversations of people or of coding agents, or the texts of another memory",
    },
    "Interfaces": {
        "chat": "Chat with a language model that can use this memory and its documents",
        "serve": "Serve the HTTP API until SIGTERM or Ctrl-C",
        "worker": "Run a node without an API for a memory in PostgreSQL, until SIGTERM or Ctrl-C",
        "nodes": "List the nodes of a memory in PostgreSQL, and the state of the embedding queue",
        "keys": "Create, list, change and revoke the keys for access over HTTP and MCP",
        "webhooks": "Send the changes of entries to other programs",
        "mcp": "Serve tools and documents to MCP clients, such as Claude, Cursor and VS Code",
        "install": "Give a coding agent this memory: hooks that recall and capture, and tools over MCP",
        "uninstall": "Take back what `install` has added to the files of a coding agent",
        "hooks": "Show, switch off, list or forget what the hooks of coding agents capture",
        "hook": "Answer one event of a coding agent, which is read from standard input as JSON",
        "completion": "Print the completion script for a shell",
    },
}
HELP = {name: text for commands in SECTIONS.values() for name, text in commands.items()}
_NAMESPACE = f"Use this namespace [default: {DEFAULT_NAMESPACE}]."
_EMBEDDER = (
    "The embedder: auto, multilingual, minilm, sbert:MODEL_OR_FOLDER, ollama:MODEL, openai:MODEL or hashing "
    "[default: auto]."
)
_FOLDER = click.Path(path_type=Path)
_PLACE = ("namespace", "session_id", "agent_id", "user_id", "project")
_EVERYWHERE = ("as_json", "embedder", "index_dir", "upload_dir")

category = click.option(
    "--category",
    metavar="WORD",
    help="The category, which decides how fast the importance decays: decisions, summaries, context, or another word.",
)
without_tools = click.option(
    "--without", multiple=True, metavar="TOOL", help="Disable this tool. The option can be repeated."
)


where = click.option(
    "--where",
    metavar="KEY=VALUE",
    multiple=True,
    help="Use only entries with this value in their metadata. VALUE is JSON, or a text. The option can be repeated. "
    """Instead of KEY=VALUE, give a filter: '{"type": "gte", "key": "year", "value": 2026}' (docs/MEMORY.md).""",
)
_tiers = click.option(
    "--tier", "tiers", multiple=True, type=click.Choice(TIERS), help="Use only this tier. The option can be repeated."
)
_kinds = click.option(
    "--kind", "kinds", metavar="WORD", multiple=True, help="Use only this kind. The option can be repeated."
)
_archived = click.option(
    "--archived",
    is_flag=True,
    help="Include archived and superseded entries, and entries that have expired or do not hold now.",
)
as_of = click.option(
    "--as-of",
    metavar="TIME",
    help="Use the entries that held at this time, in ISO 8601 with a time zone [default: now].",
)
_document = click.option(
    "--document", metavar="NAME", help="Use only the document with this name, or with this id. `list` shows both."
)
_since = click.option(
    "--since",
    metavar="DATE",
    help="Use only entries of this time or later. An entry has the time of its event. If no event is known, as for "
    "documents, the entry has the time when it was stored. DATE is a day in UTC, such as 2026-11-20, or a time in ISO "
    "8601 with a time zone.",
)
_until = click.option(
    "--until",
    metavar="DATE",
    help="Use only entries before this time. If DATE is a day, the whole day is included.",
)


def filters(command: Command) -> Command:
    """Add the options that select the entries for a search: --where, --document, --since, --until and --as-of."""
    return with_options(command, where, _document, _since, _until, as_of)


def memory_filters(command: Command) -> Command:
    """Add the options that select memories for a search: --where, --since, --until and --as-of."""
    return with_options(command, where, _since, _until, as_of)


def validity(command: Command) -> Command:
    """Add the options for the time in which an entry holds: --valid-from, --valid-to and --expires."""
    return with_options(
        command,
        click.option("--valid-from", metavar="TIME", help="From this time on, the text holds."),
        click.option("--valid-to", metavar="TIME", help="From this time on, the text no longer holds."),
        click.option(
            "--expires",
            "expires_at",
            metavar="TIME",
            help="From this time on, no search returns the entry. The next `clean` archives it.",
        ),
    )


def selection(command: Command) -> Command:
    """Add the options that select stored memories: --tier, --kind and --archived."""
    return with_options(command, _tiers, _kinds, _archived)


class Number(click.FloatRange):
    """A number of an option within a range. NaN, which every range accepts, and infinity are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Fail if it is out of range or not finite."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def limit(noun: str, default: int, most: int) -> Callable[[Command], Command]:
    """Return the option --limit, with this default and this maximum. `noun` names the items in the help."""
    text = f"Show at most this many {noun} [default: {default}]."
    return click.option("--limit", metavar="N", type=click.IntRange(1, most), default=default, help=text)


class Described(click.Command):
    """A command whose help lists the options in a fixed order: the options of this command, the options of the scope
    (such as --session), and the options of every command."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters in the order in which the help lists them."""
        return sorted(super().get_params(ctx), key=_rank)  # a stable sort: the options of the command keep their order

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help, in two sections: the options of this command, and the options of every
        command."""
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. An option of this command with one value that is given twice is an error: without this
        check, the last value would silently replace the others. Of the options of every command, which may be in an
        alias of the shell, the last value counts."""
        if not ctx.resilient_parsing:
            *_, given = self.make_parser(ctx).parse_args(args=list(args))
            for parameter, count in Counter(given).items():
                single = isinstance(parameter, click.Option) and not (parameter.multiple or parameter.is_flag)
                if single and count > 1 and not _rank(parameter):
                    raise click.UsageError(f"{parameter.opts[0]} is given {count} times; give it once", ctx)
        return super().parse_args(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments. If a requested help text cannot be written, end the program without a traceback."""
        with _writing_help():
            return super().make_context(info_name, args, parent, **extra)


class Group(Described, click.Group):
    """A command that has subcommands."""

    command_class = Described


class CommandLine(Group):
    """The root command `agentformer`. Its help lists the commands in sections. After Ctrl-C, or if the output is
    closed, the program ends without a traceback."""

    group_class = Group

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, in sections."""
        names = self.list_commands(ctx)
        more = {name: first_sentence(self.commands[name]) for name in names if name not in HELP}
        longest = max(map(len, names))
        for title, commands in {**SECTIONS, "More": more}.items():
            if commands:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:{longest}}", text) for name, text in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes at the end of the help."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names of the commands that begin with `incomplete`. The commands are not imported."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=HELP.get(name)) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments of the root command. Ctrl-C ends the program without a traceback."""
        with _handling_interrupts():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command of the command line. Ctrl-C ends the program without a traceback."""
        with _handling_interrupts():
            return super().invoke(ctx)


def examples(*lines: str) -> str:
    """Return these command lines as the last part of the help of a command."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _show_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the version, and the build if this copy has one, and exit."""
    if asked and not context.resilient_parsing:
        text = build()
        click.echo(f"agentformer, version {__version__}{f' ({text})' if text else ''}")
        context.exit()


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_obj
def main(on_start: Callable[[], None] | None) -> None:
    """A memory that an agent can trust, and answers from documents with page-exact citations.

    \b
    agentformer ingest handbook.pdf notes/
    agentformer ask "Who holds the keys?"
    agentformer remember "Aino prefers tea."
    agentformer recall "What does Aino drink?"

    `agentformer COMMAND --help` explains a command, with examples. With --json, a command prints its result as JSON on
    standard output. An error message on standard error says what to do, and the exit code shows the type of the error.
    """
    if on_start is not None:
        on_start()
    _open_closed_streams()
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(lambda record: record.name != CALLS)  # the command itself says what failed
    logging.basicConfig(format="%(message)s", level=logging.WARNING, handlers=[handler])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for a terminal whose encoding lacks a character


def _open_closed_streams() -> None:
    """Open the null device for each closed standard stream (input, output, errors). Otherwise, a file that is opened
    later, such as the database, could get the number of a standard stream, and printed text would be written into this
    file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def common(command: Command) -> Command:
    """Add the options that every command has, and print an error of the command as one line."""
    namespace = click.option("--namespace", metavar="NAME", default=DEFAULT_NAMESPACE, help=_NAMESPACE)
    return namespace(without_namespace(command))


def without_namespace(command: Command) -> Command:
    """Add the options that every command has, except --namespace, and print an error of the command as one line."""
    return with_options(
        reported(command),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option("--embedder", metavar="SPEC", help=_EMBEDDER),
        click.option("--index-dir", type=_FOLDER, help="Folder of the stored data and its indexes [default: indexes]."),
        click.option(
            "--upload-dir", type=_FOLDER, help="Folder of the original files of documents [default: uploads]."
        ),
    )


def reported(command: Command) -> Command:
    """Print an error of the command as one line, and exit with its code."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except InvalidInput as error:
            fail(_undecoded(options) or _as_typed(error), 2)
        except (NotFound, NotOffered, Conflict, MissingExtra, LimitExceeded) as error:
            fail(str(error), 2)
        except AgentFormerError as error:
            fail(str(error), 3)

    return run


def _as_typed(error: InvalidInput) -> str:
    """Return the message of the error, in which the name of an argument is the option that the user typed: "--at"
    instead of "occurred_at"."""
    parameters = click.get_current_context().command.params
    typed = next((each.opts[0] for each in parameters if each.name == error.field and each.opts[0][0] == "-"), "")
    return f"{typed}{str(error).removeprefix(error.field)}" if typed else str(error)


def _undecoded(options: Mapping[str, Any]) -> str:
    """Return an error message if an argument contains bytes that are not text in the encoding of the terminal.
    Otherwise, return an empty text."""
    for name, value in options.items():
        if isinstance(value, str) and not value.isascii() and not _is_text(value):
            encoding = sys.getfilesystemencoding()
            return (
                f"{name.upper()}: is not a text in the encoding {encoding} of this terminal; set LC_ALL=C.UTF-8 if the "
                "text is UTF-8, or give it on standard input"
            )
    return ""


def _is_text(value: str) -> bool:
    """Return whether an argument was decoded completely. Python puts a surrogate in place of each byte that it cannot
    decode, and a text with a surrogate cannot be written as UTF-8."""
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def in_place(command: Command) -> Command:
    """Add the options --session, --agent, --user and --project. The command gets their values and the value of
    --namespace as one mapping `place`."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        command(place={name: options.pop(name) for name in _PLACE}, **options)

    return with_options(
        run,
        click.option("--session", "session_id", metavar="ID", help="Store or select entries of this session."),
        click.option("--agent", "agent_id", metavar="ID", help="Store or select entries of this agent."),
        click.option("--user", "user_id", metavar="ID", help="Store or select entries of this user."),
        click.option("--project", metavar="NAME", help="Store or select entries of this project."),
    )


def with_options(command: Command, *options: Callable[[Command], Command]) -> Command:
    """Add options to a command. The help lists the options in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def explicit_namespace(namespace: str) -> str | None:
    """Return the namespace if the user gave it (as an option or in the environment), and None for the default."""
    source = click.get_current_context().get_parameter_source("namespace")
    return None if source is ParameterSource.DEFAULT else namespace


def first_sentence(command: click.Command) -> str:
    """Return the first sentence of the help of a command, without its full stop."""
    return (command.get_short_help_str(limit=1000).partition("\n")[0]).rstrip(".")


def _rank(parameter: click.Parameter) -> int:
    """Return the position of a parameter in the help. All parameters of the command itself have position 0."""
    order = (*_PLACE, *_EVERYWHERE, "help")
    name = "help" if "--help" in parameter.opts else parameter.name or ""
    return 1 + order.index(name) if name in order else 0


@contextmanager
def _handling_interrupts() -> Iterator[None]:
    """End the program without a traceback if the user presses Ctrl-C, or if the output is closed."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        say("\ninterrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError as error:
        output_lost(error)


@contextmanager
def _writing_help() -> Iterator[None]:
    try:
        yield
    except click.exceptions.Exit as end:  # after --help or --version, because click prints nothing to a closed output
        if sys.stdout is None and end.exit_code == 0:
            output_lost(OSError(errno.EBADF, CLOSED))
        raise
    except OSError as error:
        output_lost(error)
