"""The commands that change memories (update, supersede, forget), and the command `history`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from agentformer.cli.group import category, common, examples, in_place, main, where
from agentformer.cli.inputs import confirm, entry_of, open_existing, text_of, where_of
from agentformer.cli.output import (
    entry_cells,
    entry_line,
    moment,
    plural,
    print_json,
    print_result,
    print_table,
    print_warnings,
)
from agentformer.errors import InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.records import fields
from agentformer.records.entry_json import entry_to_json
from agentformer.records.filters import both
from agentformer.types import CONTAINER_KINDS, DOCUMENT_KINDS, Condition, Scope

_NEW_VERSION = "ingest a new version of the document with: agentformer ingest FILE"
_QUARANTINE = ("damaged-*.jsonl", "memory.sqlite3.damaged-*")  # files that `doctor --repair` writes
_CHANGED = ("content", "title", "metadata", "category", "salience", "kind")

_yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@main.command(
    epilog=examples(
        'agentformer update ID --content "We chose PostgreSQL."',
        """agentformer update ID --metadata '{"about": "home"}' --expected-version 2""",
    )
)
@click.argument("entry_id", metavar="ID")
@click.option("--content", metavar="TEXT|-", help="The new text. With `-`, the text is read from standard input.")
@click.option("--kind", metavar="WORD", help="The kind: fact, decision, error, milestone, or a word that you choose.")
@click.option("--title", metavar="TEXT", help="The new title. The title of a core block cannot be changed.")
@category
@click.option("--salience", metavar="NUMBER", type=float, help="Importance, from 0 to 1.")
@click.option("--metadata", metavar="JSON", help="A JSON object that replaces the stored metadata.")
@click.option(
    "--expected-version", metavar="N", type=click.IntRange(1), help="Change the entry only if it has this version."
)
@common
def update(entry_id: str, expected_version: int | None, namespace: str, as_json: bool, **given: Any) -> None:
    """Change a memory; `history` shows its former versions.

    ID is an id, the beginning of an id (at least 4 characters), or the title of a memory.
    """
    options = {name: given.pop(name) for name in _CHANGED}
    changes = {name: value for name, value in options.items() if value is not None}
    if not changes:
        raise InvalidInput(
            "--content", f"give at least one of the options {', '.join(f'--{name}' for name in _CHANGED)}"
        )
    if "metadata" in changes:
        changes["metadata"] = fields.json_object("--metadata", changes["metadata"])
    if "content" in changes:
        changes["content"] = text_of(changes["content"], "--content")
    with open_existing(**given) as af:
        entry_id = _memory_id(af, entry_id, namespace, _NEW_VERSION)
        entry = af.memory.update(entry_id, expected_version=expected_version, **changes)
    print_result(entry_to_json(entry), f"version {entry.version}  {entry_line(entry)}", as_json=as_json)


@main.command(epilog=examples("agentformer supersede OLD NEW", "agentformer restore OLD"))
@click.argument("old_id", metavar="OLD")
@click.argument("new_id", metavar="NEW")
@common
def supersede(old_id: str, new_id: str, namespace: str, as_json: bool, **options: Any) -> None:
    """Replace an older memory by a newer one.

    OLD and NEW are ids, beginnings of ids (at least 4 characters), or titles of memories. A search finds OLD only with
    the option --archived. `restore OLD` makes OLD current again.
    """
    with open_existing(**options) as af:
        old_id, new_id = (_memory_id(af, argument, namespace, _NEW_VERSION) for argument in (old_id, new_id))
        old = af.memory.supersede(old_id, new_id)
    print_result(entry_to_json(old), f"superseded  {old_id}  by {new_id}", as_json=as_json)


@main.command(
    epilog=examples(
        "agentformer forget 01a20046-07d3-7000-bf91-5489008c977a",
        "agentformer forget --user aino",
        "agentformer forget --where draft=true --yes",
        "agentformer forget --namespace-all --namespace trial --yes",
    )
)
@click.argument("ids", nargs=-1, metavar="[ID...]")
@where
@click.option("--namespace-all", is_flag=True, help="Delete everything in the namespace, including documents.")
@_yes
@common
@in_place
def forget(
    ids: tuple[str, ...], namespace_all: bool, yes: bool, place: Mapping[str, Any], as_json: bool, **options: Any
) -> None:
    """Delete memories permanently.

    ID is an id, the beginning of an id (at least 4 characters), or the title of a memory. If an argument matches no
    memory or several memories, nothing is deleted. Instead of ids, you can select all memories of a --session, --user,
    --agent or --project, or those that match --where. The vectors, index terms, history and summaries of these memories
    are deleted too. To delete documents, use `remove`. Backups, exports, and the files that `doctor --repair` wrote
    (`damaged-DATE.jsonl`, `memory.sqlite3.damaged-DATE`) may still contain the memories. Delete these files yourself.
    """
    filters = where_of(options.pop("where"))
    if any(filters.values()):
        filters["where"] = both(filters["where"], Condition("nin", "$kind", tuple(sorted(DOCUMENT_KINDS))))
    narrowed = any(value is not None for name, value in place.items() if name != "namespace")
    narrowed = narrowed or any(filters.values())
    if [bool(ids), narrowed, namespace_all].count(True) != 1:
        raise InvalidInput(
            "ID",
            "give only ids, only --namespace-all, or only options among --session, --user, --agent, --project, --where",
        )
    with open_existing(**options) as af:
        deleted = _forget_ids(af, ids, place["namespace"]) if ids else _forget_scope(af, Scope(**place, **filters), yes)
        files = sorted(file.name for pattern in _QUARANTINE for file in Path(af.settings.index_dir).glob(pattern))
    if files:
        advice = "delete these files if you do not need them"
        print_warnings(
            [f"files of an earlier repair may still contain the deleted entries: {', '.join(files)}; {advice}"]
        )
    print_result({"forgotten": deleted}, f"entries deleted: {deleted}", as_json=as_json)


@main.command(epilog=examples("agentformer history ID", "agentformer history ID --json"))
@click.argument("entry_id", metavar="ID")
@common
def history(entry_id: str, namespace: str, as_json: bool, **options: Any) -> None:
    """Show the former versions of an entry and the current one.

    ID is an id, the beginning of an id (at least 4 characters), or the title of a memory.
    """
    with open_existing(**options) as af:
        entry = entry_of(af, entry_id, namespace)
        former = af.memory.history(entry.id)
    if as_json:
        print_json({"versions": [entry_to_json(version) for version in former], "current": entry_to_json(entry)})
        return
    rows = []
    for version in (*former, entry):
        _, kind, _, text = entry_cells(version)
        rows.append((str(version.version), moment(version.updated_at), kind, text))
    print_table(("VERSION", "SINCE (UTC)", "KIND", "TEXT"), rows, right=(0,))


def _forget_ids(af: AgentFormer, ids: Sequence[str], namespace: str) -> int:
    """Delete the entries with these ids, and return the number of deleted entries. If one of the entries does not exist
    or is a part of a document, nothing is deleted."""
    ids = [_memory_id(af, argument, namespace, "delete it with: agentformer remove ID") for argument in ids]
    deleted = 0
    for entry_id in ids:
        with suppress(NotFound):  # already deleted together with an earlier entry
            deleted += af.memory.remove(entry_id)
    return deleted


def _forget_scope(af: AgentFormer, scope: Scope, yes: bool) -> int:
    count = af.backend.count(dataclasses.replace(scope, include_archived=True))
    if count and not yes:
        confirm(plural(count, "entry"))
    return af.memory.remove(scope)


def _memory_id(af: AgentFormer, argument: str, namespace: str, instead: str) -> str:
    """Return the id of the memory that the argument names. Raises the errors of `id_of`. Raises `InvalidInput` if the
    entry is a document or a part of a document; its message ends with `instead`, which says how to change documents."""
    entry = entry_of(af, argument, namespace)
    if entry.source is not None:
        raise InvalidInput("ID", f"{entry.id} is a part of the document {entry.source.document_id}; {instead}")
    if entry.kind in CONTAINER_KINDS:
        raise InvalidInput("ID", f"{entry.id} is a document; {instead}")
    return entry.id
