"""The command that serves the HTTP API."""

from __future__ import annotations

from typing import Any

import click

from agentformer.cli.group import common, examples, main
from agentformer.cli.output import print_json, say
from agentformer.cli.start import whose
from agentformer.errors import MissingExtra
from agentformer.registry import lookup
from agentformer.settings import load_settings

_PACKAGES = ("flask", "gunicorn", "waitress", "werkzeug")


@main.command(
    epilog=examples(
        "agentformer serve",
        "agentformer serve --port 0 --threads 16",
        "agentformer keys add office && agentformer serve --host 0.0.0.0 --workers 2 --log-format json",
    )
)
@click.option("--host", help="Address to listen on [127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one [8808].")
@click.option("--server", type=click.Choice(("auto", "gunicorn", "waitress")), help="What serves [auto].")
@click.option("--workers", type=click.IntRange(1), help="Processes, each with models of its own; gunicorn only [1].")
@click.option("--threads", type=click.IntRange(1), help="Requests at once in each process [8].")
@click.option("--log-format", type=click.Choice(("text", "json")), help="Of the line for each request [text].")
@common
def serve(
    host: str | None,
    port: int | None,
    server: str | None,
    workers: int | None,
    threads: int | None,
    log_format: str | None,
    namespace: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C; what runs then has 20 seconds to finish.

    Without keys only this machine is served: `agentformer keys add NAME` makes one. Each request is a line on
    standard error.
    """
    given = {"host": host, "port": port, "server": server, "workers": workers, "threads": threads}
    settings = load_settings({**options, **given, "log_format": log_format})
    try:
        run = lookup("servers", settings.server)
        run(
            settings, started=lambda url: print_json({"url": url}, indent=None) if as_json else say(f"serving on {url}")
        )
    except ImportError as error:  # `auto` looks for its server only when it runs
        if isinstance(error, MissingExtra) or whose(error) not in _PACKAGES:
            raise
        raise MissingExtra("server", f"the server ({whose(error)})", error) from None
