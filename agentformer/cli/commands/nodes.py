"""The commands for the servers of a memory: `worker` runs a node without an API, `nodes` lists the nodes of a memory of
several machines, and `webhooks` edits the receivers to which servers send events."""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from agentformer.cli.group import examples, main, without_namespace
from agentformer.cli.inputs import open_existing
from agentformer.cli.output import duration, print_json, print_result, print_table, say
from agentformer.errors import InvalidInput, StoreError
from agentformer.events.webhooks import DeliveryState, Webhook
from agentformer.factory import AgentFormer
from agentformer.records.events import TYPES
from agentformer.servers.logs import log_to
from agentformer.settings import load_settings

if TYPE_CHECKING:
    from agentformer.memory.distributed import DistributedMemory
    from agentformer.memory.nodes.sharing import Listener

log = logging.getLogger("agentformer")

_CLEANING_SECONDS = 60.0  # seconds between two cleanings of all sessions, if the setting cleanup_interval is 0
_POLL_SECONDS = 5.0  # seconds between two checks of the queue, if the server sends no messages
_SLICE_SECONDS = 0.5  # at most this many seconds pass until a signal is handled
_MOST_PAUSE = 60.0  # seconds between two attempts while the embedder or the server is unavailable


@main.command(epilog=examples("agentformer worker", "agentformer worker --json"))
@without_namespace
def worker(as_json: bool, **options: Any) -> None:
    """Run a node without an API for a memory in PostgreSQL, until SIGTERM or Ctrl-C.

    A worker embeds the entries that wait for vectors, summarizes the older messages of sessions, learns facts if the
    setting `learn_every` is not 0, and continues the upload jobs of servers that died. Any number of workers may run on
    any number of machines; they divide the work. If a worker is killed, nothing is lost: after the time of the setting
    `node_lease_seconds`, other nodes take over its work."""
    settings = load_settings(options)
    if (settings.clean_every or settings.learn_every) and not settings.cleanup_interval:
        settings = dataclasses.replace(settings, cleanup_interval=_CLEANING_SECONDS)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with ExitStack() as closing:
        af = closing.enter_context(AgentFormer(dataclasses.replace(settings, embed_retry_seconds=0)))
        memory = _shared(af)
        log_to(sys.stderr, settings)
        af.ready("worker")
        _follow_jobs(af, closing)
        listener = memory.listener()
        closing.callback(listener.close)
        print_result({"node": memory.node.id}, f"working as node {memory.node.id}", as_json=as_json, indent=None)
        _embed(memory, listener, stopped)


def _follow_jobs(af: AgentFormer, closing: ExitStack) -> None:
    """Continue the upload jobs of all servers until the caller closes `closing`. If the extra `server` is not
    installed, log a warning instead."""
    try:
        from agentformer.api.endpoints.uploads import document_removals, upload_jobs
    except ImportError as error:
        log.warning("this worker does not continue upload jobs, because the extra `server` is not installed: %s", error)
        return
    closing.callback(upload_jobs(af, document_removals(af)).close)


def _embed(memory: DistributedMemory, listener: Listener, stopped: threading.Event) -> None:
    """Embed the waiting entries until `stopped` is set. While no entry waits, `listener` waits for new entries."""
    pause = _SLICE_SECONDS
    while not stopped.is_set():
        try:
            left = memory.embed_pending(refused=False)
        except StoreError as error:
            log.warning("entries could not be embedded and are tried again later: %s", error)
            left = 1
        if left:
            stopped.wait(pause)
            pause = min(2 * pause, _MOST_PAUSE)
        else:
            pause = _SLICE_SECONDS
            for _ in range(round(_POLL_SECONDS / _SLICE_SECONDS)):
                if stopped.is_set() or listener.wait(_SLICE_SECONDS, "pending"):
                    break


@main.command(epilog=examples("agentformer nodes", "agentformer nodes --json"))
@without_namespace
def nodes(as_json: bool, **options: Any) -> None:
    """List the nodes of a memory in PostgreSQL, and the state of the embedding queue.

    A node is a server, a worker, or another process that uses the memory now. A node that has not reported for the time
    of the setting `node_lease_seconds` is shown as dead, and other nodes take over its work."""
    with open_existing(**options, embed_retry_seconds=0) as af:
        memory = _shared(af)
        found, queue = memory.nodes(), memory.queue()
    if as_json:
        print_json({"nodes": [dataclasses.asdict(node) for node in found], "queue": dataclasses.asdict(queue)})
        return
    rows = [
        (
            node.id,
            node.name,
            node.role,
            "alive" if node.alive else "dead",
            f"{node.seen:.0f} s",
            str(node.claimed),
            str(node.embedded),
            ", ".join(node.leases) or "-",
        )
        for node in found
    ]
    print_table(("id", "process", "role", "state", "seen", "embeds", "embedded", "holds"), rows, right=(4, 5, 6))
    oldest = f"; the oldest waits for {duration(queue.age)}" if queue.waiting > queue.refused else ""
    refused = f", {queue.refused} refused by the embedder" if queue.refused else ""
    say(f"embedding queue: {queue.waiting} waiting, {queue.claimed} being embedded{refused}{oldest}")


def _shared(af: AgentFormer) -> DistributedMemory:
    """Return the memory that several nodes share. Raises `InvalidInput` if the backend is not `postgres`."""
    if af.distributed is None:
        raise InvalidInput(
            "backend", f"is {af.settings.backend}, but only the backend postgres has nodes; set AGENTFORMER_BACKEND"
        )
    return af.distributed


@main.group()
def webhooks() -> None:
    """Send the changes of entries to other programs.

    A webhook is a URL that gets a signed POST request for each entry that is stored, changed, learnt, superseded or
    removed. The servers of the memory (`serve`, `worker`, `mcp --http`) send the requests, and repeat failed ones.
    docs/EVENTS.md describes them.
    """


@webhooks.command(
    epilog=examples(
        "agentformer webhooks add https://example.org/hook",
        "agentformer webhooks add https://example.org/hook --event learnt --event superseded --namespace team",
    )
)
@click.argument("url")
@click.option(
    "--event",
    "types",
    type=click.Choice(TYPES),
    multiple=True,
    help="Send events of this type. The option can be repeated [default: all types].",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Send events of this namespace. The option can be repeated [default: all namespaces].",
)
@click.option("--content", is_flag=True, help="Send the entries with their texts, not only their ids.")
@without_namespace
def add(
    url: str, types: tuple[str, ...], namespaces: tuple[str, ...], content: bool, as_json: bool, **options: Any
) -> None:
    """Add a webhook, and print the secret that signs its requests. The secret is not shown again.

    Standard output has only the secret. The URL must be an address of HTTPS that is public, or a host in the setting
    `webhook_private_hosts`.
    """
    with AgentFormer(load_settings({**options, "embed_retry_seconds": 0})) as af:
        hook = af.webhooks.add(url, events=types, namespaces=namespaces, content=content)
        state = next(state for each, state in af.webhooks.all() if each.id == hook.id)
    print_result({**hook.as_json(state), "secret": hook.secret}, hook.secret, as_json=as_json)
    if not as_json:
        say(f"webhook {hook.id} gets {_what(hook)} from now on; the secret is not shown again", err=True)


@webhooks.command("list", epilog=examples("agentformer webhooks list", "agentformer webhooks list --json"))
@without_namespace
def show(as_json: bool, **options: Any) -> None:
    """List the webhooks, and whether their receivers get the events."""
    with open_existing(**options, embed_retry_seconds=0) as af:
        stored = af.webhooks.all()
    if as_json:
        print_json({"webhooks": [hook.as_json(state) for hook, state in stored]})
        return
    print_table(("ID", "URL", "EVENTS", "STATE", "DELIVERED", "LAST ERROR"), [_cells(*pair) for pair in stored])
    if not stored:
        say("no webhooks; add one with: agentformer webhooks add URL")


@webhooks.command(epilog=examples("agentformer webhooks list", "agentformer webhooks remove 1f2e3d4c"))
@click.argument("webhook_id", metavar="ID")
@without_namespace
def remove(webhook_id: str, as_json: bool, **options: Any) -> None:
    """Remove a webhook. A request that is in progress is completed."""
    with open_existing(**options, embed_retry_seconds=0) as af:
        hook = af.webhooks.remove(webhook_id)
    print_result({"removed": hook.id}, f"webhook {hook.id} is removed", as_json=as_json)


def _what(hook: Webhook) -> str:
    return f"{', '.join(hook.events) or 'all events'} of {', '.join(hook.namespaces) or 'every namespace'}"


def _cells(hook: Webhook, state: DeliveryState) -> tuple[str, ...]:
    values = hook.as_json(state)
    return hook.id, values["url"], _what(hook), values["state"], str(state.delivered), state.error or "-"
