"""The command that serves the memory to MCP clients."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from agentformer.access.grant import EVERYTHING, Grant, Right
from agentformer.cli.group import common, examples, main, namespace_asked
from agentformer.cli.output import fail, say
from agentformer.cli.start import whose
from agentformer.errors import InvalidInput, MissingExtra
from agentformer.records import fields
from agentformer.registry import lookup
from agentformer.settings import load_settings
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import HINTS

_PORT = 8809  # beside the HTTP API's own


@main.command(
    epilog=examples(
        "agentformer mcp --index-dir ~/memory/indexes --upload-dir ~/memory/uploads",
        "agentformer mcp --read-only --namespace handbook",
        "agentformer mcp --http --port 8809",
    )
)
@click.option("--http", is_flag=True, help="Serve many clients over HTTP instead of one over standard input.")
@click.option("--host", help="With --http: address to listen on [127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65535), help=f"With --http: port; 0 takes a free one [{_PORT}].")
@click.option("--read-only", is_flag=True, help="Only tools that change nothing.")
@click.option("--without", multiple=True, metavar="TOOL", help="Switch this tool off; may be repeated.")
@click.option(
    "--folder",
    metavar="PATH",
    help="Where rag_upload may read files [., but no home or root; with --http: none].",
)
@click.option("--user", "user_id", help="The user that is remembered.")
@click.option("--agent", "agent_id", help="The agent that remembers.")
@click.option("--project", help="The project that is worked on.")
@click.option("--session", "session_id", help="The session whose messages memory_consolidate summarises.")
@common
def mcp(
    http: bool,
    host: str | None,
    port: int | None,
    read_only: bool,
    without: tuple[str, ...],
    folder: str | None,
    namespace: str,
    as_json: bool,
    user_id: str | None,
    agent_id: str | None,
    project: str | None,
    session_id: str | None,
    **options: Any,
) -> None:
    """Serve the tools and documents to MCP clients, such as Claude, Cursor and VS Code.

    A client starts this command itself and talks to it over standard input and output. With --http, clients connect to
    an address; keys (`agentformer keys`) say what each may do. With --namespace, only that one is reached.
    """
    if not http and (host is not None or port is not None):
        raise InvalidInput("--host" if host is not None else "--port", "goes with --http only")
    namespace_given = namespace_asked(namespace)
    named = {
        "--namespace": namespace_given,
        "--user": user_id,
        "--agent": agent_id,
        "--project": project,
        "--session": session_id,
        "--host": host,
    }
    for option, value in named.items():
        fields.optional_name(option, value)  # said now, and not with each call
    caller = Caller(
        grant=_grant(namespace_given, read_only=read_only, without=without),
        user_id=user_id,
        agent_id=agent_id,
        project=project,
        session_id=session_id,
        folder=_folder(folder, http=http),
    )
    try:
        serve = lookup("mcp", "http" if http else "stdio")
    except ImportError as error:
        raise MissingExtra("mcp", f"the MCP server ({whose(error)})", error) from None
    if http:
        settings = load_settings({**options, "host": host, "port": _PORT if port is None else port})
        serve(settings, caller, started=lambda url: say(f"serving MCP on {url}", err=True))
        return
    if sys.stdin is None or sys.stdout is None:
        fail("standard input or output is closed, and MCP is spoken there; start it with both, or with --http", 3)
    if sys.stdin.isatty():
        say("speaking MCP here, which programs start themselves; Ctrl-D ends it, --help shows more", err=True)
    serve(load_settings(options), caller)


def _grant(namespace: str | None, *, read_only: bool, without: tuple[str, ...]) -> Grant:
    for name in without:
        if name not in HINTS:
            raise InvalidInput("--without", f"there is no tool {name!r:.80}; there are: {', '.join(HINTS)}")
    rights: frozenset[Right] = frozenset(("read",)) if read_only else EVERYTHING.rights
    namespaces = () if namespace is None else (namespace,)
    return replace(EVERYTHING, rights=rights, namespaces=namespaces, without=frozenset(without))


def _folder(folder: str | None, *, http: bool) -> Path | None:
    if folder is None:
        here = Path.cwd()
        # Where a client starts it at the root or at home, "the current folder" was nobody's choice.
        return None if http or here in (Path(here.anchor), Path.home()) else here
    if not folder.strip() or not Path(folder).is_dir():  # "" would be the current one
        raise InvalidInput("--folder", f"{folder!r:.200} is no folder")
    return Path(folder)
