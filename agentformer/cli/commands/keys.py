"""The commands for keys: add, rotate, change, list, revoke, reset."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from agentformer.access.keys import MAX_DAYS, Key, KeyStore
from agentformer.access.limits import HIGHEST, Limits
from agentformer.access.permissions import RIGHTS, Right
from agentformer.builders import open_keys
from agentformer.cli.group import Command, Number, examples, main, without_namespace, without_tools
from agentformer.cli.inputs import check_tools
from agentformer.cli.output import moment, print_json, print_result, print_table, print_warnings, say
from agentformer.errors import AgentFormerError, InvalidInput
from agentformer.records import fields
from agentformer.settings import load_settings
from agentformer.tools.toolbox import HINTS

_LIMITS = {
    "requests_per_minute": "Each server process accepts so many requests a minute with the key.",
    "max_entries": "The namespaces of the key may contain so many entries, with pages and chunks of documents.",
    "max_bytes": "The namespaces of the key may contain so many bytes of texts and uploaded files.",
    "questions_per_day": "A language model answers so many questions of the key a day, in UTC.",
}
_COLUMNS = ("ID", "NAME", "RIGHTS", "NAMESPACES", "WITHOUT", "LIMITS", "EXPIRES (UTC)", "LAST USED")
_SHOWN_LIMITS = ("{}/min", "{} entries", "{} bytes", "{} questions/day")
_ALL_REFUSED = (
    "every request over HTTP is refused; `agentformer keys reset` lets this machine connect without a key again, and "
    "`agentformer keys add NAME` creates a key"
)


def with_limits(command: Command) -> Command:
    """Add an option for each limit of a key to a command. An option that is not given is None."""
    for name in reversed(Limits._fields):
        option = click.option(
            f"--{name.replace('_', '-')}",
            type=click.IntRange(0, HIGHEST[name]),
            help=f"{_LIMITS[name]} 0: no limit.",
        )
        command = option(command)
    return command


@main.group()
def keys() -> None:
    """Create, list, change and revoke the keys for access over HTTP and MCP.

    A key is a random text. It is shown only once, because only its hash is stored. Servers accept a new key, and refuse
    a revoked key, from the next request on. Until the first key is created, only this machine can connect. After the
    last key is revoked, every request is refused, until you run `keys reset` or create a new key. With the backend
    `postgres`, all machines that use the database accept the same keys.
    """


@keys.command(
    epilog=examples(
        "agentformer keys add office",
        "agentformer keys add website --right read --namespace handbook --days 90",
        "agentformer keys add assistant --namespace team --no-destructive",
        "agentformer keys add backup --right admin > backup.key",
        "agentformer keys add prometheus --right metrics",
        "agentformer keys add team-a --namespace team-a --max-entries 100000 --questions-per-day 500",
    )
)
@click.argument("name")
@click.option(
    "--right",
    "rights",
    type=click.Choice(RIGHTS),
    multiple=True,
    help="Give the key this right. The option can be repeated [default: read, write].",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Give access to this namespace. The option can be repeated [default: all namespaces].",
)
@without_tools
@click.option("--no-destructive", is_flag=True, help="Disable every tool that can delete or overwrite data.")
@click.option("--days", type=click.IntRange(1, MAX_DAYS), help="The key expires after this many days [default: never].")
@click.option("--expires", metavar="TIME", help="The key expires at this time, such as 2027-03-01T12:00Z.")
@with_limits
@without_namespace
def add(
    name: str,
    rights: tuple[Right, ...],
    namespaces: tuple[str, ...],
    without: tuple[str, ...],
    no_destructive: bool,
    days: int | None,
    expires: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a key and print it. The key is not shown again.

    The right `write` does not include `read`. The right `admin` includes all others. A key with the right `metrics`
    alone may read /metrics and nothing else. Standard output has only the key, and all other messages are written to
    standard error.
    """
    limits = _limits(options)
    check_tools("--without", without, HINTS)
    disabled = {*without, *(tool for tool, hints in HINTS.items() if hints.permission.destructive and no_destructive)}
    if "*" in namespaces:
        raise InvalidInput("--namespace", "'*' is not a namespace; omit --namespace to give access to all namespaces")
    if days and expires:
        raise InvalidInput("--expires", "cannot be used together with --days; give one of them")
    ends = datetime.now(UTC) + timedelta(days=days) if days else fields.moment("--expires", expires)
    store = _store(options)
    first = "" if store.ever_made else "\nevery request over HTTP needs a key from now on"
    key, secret = store.make(name, rights or ("read", "write"), namespaces, disabled, ends, **limits)
    _print_key(store, key, secret, first, as_json=as_json)
    _note(options, "key-added", key.id)
    if not as_json:
        access = f"may {_rights(key)} in {_namespaces(key)}"
        say(f"key {key.id} ({key.name}): {access}; the key is not shown again{first}", err=True)


@keys.command(epilog=examples("agentformer keys rotate 1f2e3d4c", "agentformer keys rotate 1f2e3d4c --overlap-hours 0"))
@click.argument("key_id", metavar="ID")
@click.option(
    "--overlap-hours",
    type=Number(0, MAX_DAYS * 24),
    default=24.0,
    show_default=True,
    help="The former key is accepted for so many hours.",
)
@without_namespace
def rotate(key_id: str, overlap_hours: float, as_json: bool, **options: Any) -> None:
    """Replace the text of a key: print a new key with the same name, rights and limits, and let the former one expire.

    Standard output has only the new key. It has the lifetime of the former one. A key that has expired or was replaced
    already is not rotated, and the exit code is 2.
    """
    store = _store(options)
    key, secret, former = store.rotate(key_id, timedelta(hours=overlap_hours))
    _print_key(store, key, secret, "", as_json=as_json)
    _note(options, "key-rotated", former.id)
    _note(options, "key-added", key.id)
    if not as_json:
        say(
            f"key {former.id} ({former.name}) expires at {moment(former.expires_at)} UTC; key {key.id} replaces it and "
            + (f"expires at {moment(key.expires_at)} UTC" if key.expires_at else "does not expire"),
            err=True,
        )


@keys.command(
    epilog=examples(
        "agentformer keys change 1f2e3d4c --max-bytes 5000000000",
        "agentformer keys change 1f2e3d4c --name website --questions-per-day 0",
    )
)
@click.argument("key_id", metavar="ID")
@click.option("--name", help="The new name of the key.")
@with_limits
@without_namespace
def change(key_id: str, name: str | None, as_json: bool, **options: Any) -> None:
    """Change the name or limits of a key. Running servers apply them from the next request on.

    What is not given stays as it is. To change rights or namespaces, create another key, or use the console.
    """
    limits = _limits(options)
    if name is None and not limits:
        raise InvalidInput("ID", f"is given alone; give --name or a limit, such as --{[*HIGHEST][1].replace('_', '-')}")
    key = _store(options).change(key_id, name=name, **limits)
    _note(options, "key-changed", key.id)
    limited = _shown_limits(key) or "no limits"
    print_result(key.as_json(), f"key {key.id} ({key.name}) is changed: {limited}", as_json=as_json)


@keys.command("list", epilog=examples("agentformer keys list", "agentformer keys list --json"))
@without_namespace
def show(as_json: bool, **options: Any) -> None:
    """List the keys and their rights. The keys themselves are not shown."""
    store = _store(options)
    stored = store.all()
    if as_json:
        print_json({"keys": [key.as_json() for key in stored]})
        return
    print_table(_COLUMNS, map(_cells, stored))
    if not stored:
        say(f"no keys: {_ALL_REFUSED if store.ever_made else 'only this machine can connect'}")


@keys.command(epilog=examples("agentformer keys list", "agentformer keys revoke 1f2e3d4c"))
@click.argument("key_id", metavar="ID")
@without_namespace
def revoke(key_id: str, as_json: bool, **options: Any) -> None:
    """Revoke a key. Running servers refuse the key from the next request on."""
    store = _store(options)
    key = store.revoke(key_id)
    _note(options, "key-revoked", key.id)
    print_result({"revoked": key.as_json()}, f"key {key.id} ({key.name}) is revoked", as_json=as_json)
    if not store.all():
        print_warnings([f"no key is left: {_ALL_REFUSED}"])


@keys.command(epilog=examples("agentformer keys reset"))
@without_namespace
def reset(as_json: bool, **options: Any) -> None:
    """Let this machine connect without a key again, after the last key was revoked.

    In running servers, this applies from the next request on. Requests from other machines are still refused. If a key
    exists, nothing is changed, and the exit code is 2."""
    _store(options).reset()
    print_result({"reset": True}, "only this machine can connect, without a key", as_json=as_json)


def _note(options: dict[str, Any], action: str, key_id: str) -> None:
    """Write a row about a key into the trail of the memory, which is created if it does not exist yet. If this is not
    possible, the key stays as it is, and a warning is printed."""
    from agentformer.factory import AgentFormer

    settings = load_settings({**options, "embed_retry_seconds": 0, "cleanup_interval": 0})
    try:
        with AgentFormer(settings) as af:
            af.note(action, key_id)
    except AgentFormerError as error:
        print_warnings([f"the trail has no row for this change of the key {key_id}: {error}"])


def _store(options: dict[str, Any]) -> KeyStore:
    return click.get_current_context().with_resource(open_keys(load_settings(options)))


def _print_key(store: KeyStore, key: Key, secret: str, first: str, *, as_json: bool) -> None:
    """Print a new key. If the output cannot be written, nobody has the key, so it is revoked."""
    try:
        print_result({**key.as_json(), "key": secret}, secret, as_json=as_json)
    except SystemExit:
        store.revoke(key.id)
        say(f"key {key.id} ({key.name}) is revoked, because it could not be printed{first}", err=True)
        raise


def _rights(key: Key) -> str:
    return ", ".join(key.rights)


def _namespaces(key: Key) -> str:
    return ", ".join(key.namespaces) or "every namespace"


def _cells(key: Key) -> tuple[str, ...]:
    expires, used = moment(key.expires_at) or "never", str(key.last_used_on or "never")
    without = ", ".join(sorted(key.without))
    return key.id, key.name, _rights(key), _namespaces(key), without, _shown_limits(key), expires, used


def _limits(options: dict[str, Any]) -> dict[str, Any]:
    """Take the limits out of the options of a command, and return those that are given."""
    taken = {name: options.pop(name) for name in Limits._fields}
    return {name: value for name, value in taken.items() if value is not None}


def _shown_limits(key: Key) -> str:
    return ", ".join(form.format(limit) for form, limit in zip(_SHOWN_LIMITS, key.limits, strict=True) if limit)
