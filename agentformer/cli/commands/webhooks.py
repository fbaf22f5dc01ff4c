"""The commands for webhooks: add, list, remove."""

from __future__ import annotations

from typing import Any

import click

from agentformer.cli.group import examples, main, without_namespace
from agentformer.cli.inputs import open_existing
from agentformer.cli.output import print_json, print_result, print_table, say
from agentformer.events.webhooks import DeliveryState, Webhook
from agentformer.factory import AgentFormer
from agentformer.records.events import TYPES
from agentformer.settings import load_settings


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
