"""Commands about keys: `keys add`, `list` and `revoke`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from agentformer.access.grant import RIGHTS, Right
from agentformer.access.keys import Key, KeyStore
from agentformer.cli.group import Command, common, examples, main
from agentformer.cli.output import moment, print_json, print_table, say
from agentformer.errors import InvalidInput
from agentformer.settings import load_settings
from agentformer.tools.toolbox import HINTS


@main.group()
def keys() -> None:
    """Make, list and revoke the keys that let others in over HTTP and MCP.

    Keys are random, shown once, and kept as hashes; servers know a new or revoked one with the next request. Without
    any, only this machine is served.
    """


def _of_no_namespace(command: Command) -> Command:
    """The common options but `--namespace`: keys are not kept in one."""
    run = common(command)
    run.__click_params__ = [  # type: ignore[attr-defined]
        option
        for option in run.__click_params__  # type: ignore[attr-defined]
        if option.name != "namespace"
    ]
    return run


@keys.command(
    epilog=examples(
        "agentformer keys add office",
        "agentformer keys add website --right read --namespace handbook --days 90",
        "agentformer keys add assistant --namespace team --no-destructive",
        "agentformer keys add backup --right admin > backup.key",
    )
)
@click.argument("name")
@click.option("--right", "rights", type=click.Choice(RIGHTS), multiple=True, help="May be repeated [read and write].")
@click.option("--namespace", "namespaces", multiple=True, metavar="NAME", help="Reach this one; may be repeated [all].")
@click.option("--without", multiple=True, metavar="TOOL", help="Switch this tool off; may be repeated.")
@click.option("--no-destructive", is_flag=True, help="Switch off every tool after which something may be gone.")
@click.option("--days", type=click.IntRange(1, 36_500), help="Until it expires [never].")
@_of_no_namespace
def add(
    name: str,
    rights: tuple[Right, ...],
    namespaces: tuple[str, ...],
    without: tuple[str, ...],
    no_destructive: bool,
    days: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a key and print it, which happens only now.

    `write` does not include `read`; `admin` includes both. The key alone goes to standard output.
    """
    if unknown := sorted(set(without) - set(HINTS)):
        raise InvalidInput("--without", f"{unknown[0]!r} is no tool; tools are {', '.join(HINTS)}")
    switched_off = {*without, *(tool for tool, hints in HINTS.items() if hints.destructive and no_destructive)}
    if "*" in namespaces:
        raise InvalidInput("--namespace", "'*' is no namespace; leave --namespace out to reach all")
    expires = datetime.now(UTC) + timedelta(days=days) if days else None
    store = _store(options)
    first = not store.ever_made
    key, secret = store.make(name, rights or ("read", "write"), namespaces, switched_off, expires)
    try:
        if as_json:
            print_json({**_json(key), "key": secret})
        else:
            say(secret)
    except SystemExit:  # the output is lost, and with it the only text of the key
        store.revoke(key.id)
        say(f"key {key.id} ({key.name}) is revoked again, since nobody has seen it", err=True)
        if first:
            say("none the less, every request over HTTP needs a key from now on", err=True)
        raise
    if as_json:
        return
    say(f"key {key.id} ({key.name}): may {_rights(key)} in {_reached(key)}; it is not shown again", err=True)
    if first:
        say("from now on every request over HTTP needs a key", err=True)


@keys.command("list", epilog=examples("agentformer keys list", "agentformer keys list --json"))
@_of_no_namespace
def show(as_json: bool, **options: Any) -> None:
    """List the keys and what they may do; never the keys themselves."""
    store = _store(options)
    found = store.all()
    if as_json:
        print_json({"keys": [_json(key) for key in found]})
        return
    print_table(
        ("ID", "NAME", "MAY", "IN", "WITHOUT", "EXPIRES (UTC)", "LAST USED"),
        [
            (
                key.id,
                key.name,
                _rights(key),
                _reached(key),
                ", ".join(sorted(key.without)),
                moment(key.expires_at) or "never",
                str(key.last_used_on or "never"),
            )
            for key in found
        ],
    )
    if not found:
        say("no keys; nobody gets in over HTTP" if store.ever_made else "no keys; only this machine is served")


@keys.command(epilog=examples("agentformer keys list", "agentformer keys revoke 1f2e3d4c"))
@click.argument("key_id", metavar="ID")
@_of_no_namespace
def revoke(key_id: str, as_json: bool, **options: Any) -> None:
    """Take a key away; the next request with it is refused, also by a running server."""
    key = _store(options).revoke(key_id)
    if as_json:
        print_json({"revoked": _json(key)})
    else:
        say(f"key {key.id} ({key.name}) is revoked")


def _store(options: dict[str, Any]) -> KeyStore:
    return KeyStore(load_settings(options).index_dir)


def _rights(key: Key) -> str:
    return ", ".join(key.rights)


def _reached(key: Key) -> str:
    return ", ".join(key.namespaces) or "every namespace"


def _json(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "rights": list(key.rights),
        "namespaces": list(key.namespaces),
        "without": sorted(key.without),
        "made_at": key.made_at.isoformat(),
        "expires_at": key.expires_at and key.expires_at.isoformat(),
        "last_used_on": key.last_used_on and key.last_used_on.isoformat(),
    }
