"""The commands for other programs: `serve` (HTTP API), `mcp` (MCP server), and `completion` (scripts for shells)."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import ShellComplete, get_completion_class

from agentformer.access.permissions import EVERYTHING, Grant, Right
from agentformer.cli.group import common, examples, explicit_namespace, main, without_tools
from agentformer.cli.inputs import check_tools
from agentformer.cli.output import fail, print_result, say
from agentformer.errors import InvalidInput, MissingExtra, failed_package
from agentformer.records import fields
from agentformer.records.integrity.files import kind_of
from agentformer.registry import lookup
from agentformer.settings import load_settings
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import HINTS

_PACKAGES = ("flask", "gunicorn", "waitress", "werkzeug")
_MCP_PORT = 8809  # next to the port of the HTTP API
_SHELLS = ("bash", "zsh", "fish")
_PROGRAM = "agentformer"
_OWNER = ("user_id", "agent_id", "project", "session_id")


@main.command(
    epilog=examples(
        "agentformer serve",
        "agentformer serve --port 0 --threads 16",
        "agentformer keys add office && agentformer serve --host 0.0.0.0 --workers 2 --log-format json",
    )
)
@click.option("--host", help="Listen on this address [default: 127.0.0.1].")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Listen on this port. 0 selects a free port [default: 8808]."
)
@click.option(
    "--server", type=click.Choice(("auto", "gunicorn", "waitress")), help="HTTP server software [default: auto]."
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Number of processes, each with its own models. Only for gunicorn [default: 1].",
)
@click.option("--threads", type=click.IntRange(1), help="Number of concurrent requests of each process [default: 8].")
@click.option("--log-format", type=click.Choice(("text", "json")), help="Format of the log [default: text].")
@common
def serve(namespace: str, as_json: bool, **options: Any) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C.

    After SIGTERM or Ctrl-C, running requests have 20 seconds to finish. Until the first key is created with
    `agentformer keys add NAME`, only this machine can connect. The log is on standard error, with a line for each
    request. After SIGHUP, the settings are read again, and new processes with them take over; in a terminal, SIGHUP
    ends the server.
    """

    def started(url: str) -> None:
        print_result({"url": url}, f"serving on {url}", as_json=as_json, indent=None)

    settings = load_settings(options)
    try:
        lookup("servers", settings.server)(settings, started=started, reread=lambda: load_settings(options))
    except ImportError as error:  # `auto` imports its server only when the server starts
        if isinstance(error, MissingExtra) or failed_package(error) not in _PACKAGES:
            raise
        raise MissingExtra("server", f"the server ({failed_package(error)})", error) from None


@main.command(
    epilog=examples(
        "agentformer mcp --index-dir ~/memory/indexes --upload-dir ~/memory/uploads",
        "agentformer mcp --read-only --namespace handbook",
        "agentformer mcp --http --port 8809",
    )
)
@click.option("--http", is_flag=True, help="Serve many clients over HTTP, instead of one client over standard input.")
@click.option("--host", help="Only with --http: listen on this address [default: 127.0.0.1].")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"Only with --http: listen on this port. 0 selects a free port [default: {_MCP_PORT}].",
)
@click.option("--read-only", is_flag=True, help="Offer only tools that change nothing.")
@without_tools
@click.option(
    "--folder",
    metavar="PATH",
    help="Folder whose files the tool rag_upload may read. The default is the current folder. With --http, or if the "
    "current folder is the home or root folder, the default is no folder.",
)
@click.option("--user", "user_id", help="Use only the memories of this user.")
@click.option("--agent", "agent_id", help="Use the core blocks of this agent, and store memories for this agent.")
@click.option("--project", help="Use only the memories of this project.")
@click.option("--session", "session_id", help="The session that the tool memory_consolidate summarizes.")
@common
def mcp(
    http: bool, host: str | None, port: int | None, folder: str | None, namespace: str, as_json: bool, **options: Any
) -> None:
    """Serve tools and documents to MCP clients, such as Claude, Cursor and VS Code.

    A client starts this command itself, and communicates with it over standard input and output. With --http, clients
    connect to an address and use keys (see `agentformer keys`). With --namespace, clients can use only this
    namespace.
    """
    if not http and (host is not None or port is not None):
        raise InvalidInput("--host" if host is not None else "--port", "requires --http")
    explicit = explicit_namespace(namespace)
    owner = {name: options.pop(name) for name in _OWNER}
    for name, value in {"namespace": explicit, "host": host, **owner}.items():  # so that an error is reported now
        fields.optional_name(f"--{name.removesuffix('_id')}", value)
    grant = _grant(explicit, read_only=options.pop("read_only"), without=options.pop("without"))
    caller = Caller(grant=grant, folder=_folder(folder, http=http), **owner)
    try:
        serve = lookup("mcp", "http" if http else "stdio")
    except ImportError as error:
        raise MissingExtra("mcp", f"the MCP server ({failed_package(error)})", error) from None
    if http:
        settings = load_settings({**options, "host": host, "port": _MCP_PORT if port is None else port})
        serve(settings, caller, started=lambda url: say(f"serving MCP on {url}", err=True))
        return
    if sys.stdin is None or sys.stdout is None:
        fail("MCP needs standard input and output, but one of these is closed; open it, or use --http", 3)
    if sys.stdin.isatty():
        say("waiting for an MCP client on standard input; press Ctrl-D to end, or use --help", err=True)
    serve(load_settings(options), caller)


def _grant(namespace: str | None, *, read_only: bool, without: tuple[str, ...]) -> Grant:
    check_tools("--without", without, HINTS)
    rights: frozenset[Right] = frozenset(("read",)) if read_only else EVERYTHING.rights
    namespaces = () if namespace is None else (namespace,)
    return replace(EVERYTHING, rights=rights, namespaces=namespaces, without=frozenset(without))


def _folder(folder: str | None, *, http: bool) -> Path | None:
    if folder is None:
        current = Path.cwd()
        # A client that starts the command in the root or home folder did not choose that folder.
        return None if http or current in (Path(current.anchor), Path.home()) else current
    if not folder.strip() or kind_of(folder, "--folder") != "folder":  # an empty path would be the current folder
        raise InvalidInput("--folder", f"{folder!r:.200} is not a folder")
    return Path(folder)


@main.command(
    epilog=examples(
        "agentformer completion bash > ~/.local/share/bash-completion/completions/agentformer",
        'agentformer completion zsh > "${fpath[1]}/_agentformer"',
        "agentformer completion fish > ~/.config/fish/completions/agentformer.fish",
        "source <(agentformer completion bash)    # in this shell only",
    )
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    Write the output to the folder of completion scripts, as in the examples, and start a new shell. The shell then
    completes commands, options, choices and files. It does not complete ids and namespaces.
    """
    kind = get_completion_class(shell)
    if kind is not None:
        # The method `source` of the class is not used, because for bash it runs bash to check the version.
        say(ShellComplete.source(kind(main, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE")))
