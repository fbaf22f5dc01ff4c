"""The commands that store, list, change and delete memories (remember, memories, update, supersede, forget, history),
and those for core blocks (core show, append, replace, remove)."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from agentformer.cli.group import (
    Command,
    as_of,
    category,
    common,
    examples,
    in_place,
    limit,
    main,
    selection,
    validity,
    where,
    with_options,
)
from agentformer.cli.inputs import (
    BLOCK_OWNERS,
    block_options,
    confirm,
    entry_of,
    hint_namespaces,
    kinds_of,
    nothing_listed,
    open_existing,
    selection_of,
    text_of,
    where_of,
)
from agentformer.cli.output import (
    entry_cells,
    entry_line,
    moment,
    one_line,
    plural,
    print_entries,
    print_json,
    print_result,
    print_table,
    print_warnings,
    say,
)
from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.factory import AgentFormer, connect
from agentformer.records import fields
from agentformer.records.entry_json import entry_to_json
from agentformer.records.filters import both
from agentformer.records.offers import vectors_of
from agentformer.types import CONTAINER_KINDS, DOCUMENT_KINDS, TIERS, Condition, MemoryEntry, Scope

_MESSAGE = ("role", "speaker")
_FACT_ONLY = ("tier", "kind", "title", "category", "salience")
_NEW_VERSION = "ingest a new version of the document with: agentformer ingest FILE"
# Files that `doctor --repair` and an upgrade write.
_COPIES = ("damaged-*.jsonl", "memory.sqlite3.damaged-*", "memory.sqlite3.schema-*")
_VALIDITY = ("valid_from", "valid_to", "expires_at")
_CHANGED = ("content", "title", "metadata", "category", "salience", "kind", *_VALIDITY)

_yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@main.command(
    epilog=examples(
        'agentformer remember "Aino prefers tea." --user aino',
        'agentformer remember "We chose SQLite." --kind decision --category decisions --project harbour',
        'agentformer remember "Hei!" --session monday --role user --speaker Aino',
        'agentformer remember "The office is closed." --valid-from 2026-12-24T00:00Z --valid-to 2027-01-02T00:00Z',
        "agentformer remember - --title minutes < minutes.txt",
    )
)
@click.argument("text", metavar="TEXT|-")
@click.option("--tier", type=click.Choice(TIERS), help="The tier of the entry [default: semantic].")
@click.option(
    "--kind",
    metavar="WORD",
    help="The kind: fact, decision, error, milestone, or a word that you choose [default: fact].",
)
@click.option("--title", metavar="TEXT", help="A short title. For a core block, the title is the name of the block.")
@category
@click.option("--salience", metavar="NUMBER", type=float, help="Importance, from 0 to 1 [default: 1].")
@click.option("--at", "occurred_at", metavar="TIME", help="Time of the event, in ISO 8601 with a time zone.")
@validity
@click.option("--metadata", metavar="JSON", help="A JSON object that is stored with the entry.")
@click.option("--source", metavar="TYPE:ID", help="The record of your application to which the entry belongs.")
@click.option(
    "--role", metavar="ROLE", help="Store the text as a message of --session. ROLE is user, assistant, system or tool."
)
@click.option("--speaker", metavar="NAME", help="The speaker of a message.")
@common
@in_place
def remember(text: str, metadata: str | None, source: str | None, place: Any, as_json: bool, **given: Any) -> None:
    """Store a fact, a decision, or a message of a session.

    If TEXT is `-`, the text is read from standard input. If the same fact is stored already, no second entry is
    created.
    """
    settings = {name: given.pop(name) for name in ("index_dir", "upload_dir", "embedder")}
    values = {name: value for name, value in given.items() if value is not None}
    values |= {"metadata": {} if metadata is None else fields.json_object("--metadata", metadata), **place}
    if source is not None:
        values["source_type"], _, values["source_id"] = source.partition(":")
        if not (values["source_type"] and values["source_id"]):
            raise InvalidInput("--source", "must be TYPE:ID, such as ticket:4711")
    content = text_of(text)
    is_message = any(name in values for name in _MESSAGE)
    if is_message:
        _check_message(values)
    with connect(**settings) as af:
        if is_message:
            entry = af.memory.add_message(values.pop("session_id"), values.pop("role"), content, **values)
        else:
            entry = _store(af, content, values)
        waiting = vectors_of(af.backend).waiting([entry.id])
    pending = "the entry has no vector yet, so only a search by words finds it; run `agentformer reindex` later"
    print_warnings(f"{pending} ({item.last_error})" for item in waiting)
    state = "exists already" if entry.repeat_count else "stored"
    print_result(entry_to_json(entry), f"{state}  {entry.id}", as_json=as_json)


@main.command(
    epilog=examples(
        "agentformer memories --kind decision",
        "agentformer memories --session monday --archived",
        """agentformer memories --where '{"type": "exists", "key": "year", "value": true}'""",
        "agentformer memories --limit 1000 --after 01a20046-0087-7000-994b-d506d6655eb7 --json",
    )
)
@selection
@as_of
@limit("entries", 100, 10_000)
@click.option("--after", metavar="ID", default="", help="Show only entries after this id.")
@where
@common
@in_place
def memories(limit: int, after: str, place: Any, as_json: bool, **given: Any) -> None:
    """List the memories, oldest first.

    With --user or --project, the command also lists the memories that belong to no user or to no project. If there are
    more memories than --limit allows, a note shows the command for the next memories. With --json, the output has a
    field `next`: to list the next memories, pass the value of this field to --after.
    Documents and their pages and chunks are not memories. They are listed only if --kind names them: document, page or
    chunk.
    """
    scope = selection_of(place, given) | where_of(given.pop("where"))
    scope["as_of"] = fields.moment("--as-of", given.pop("as_of"))
    with open_existing(**given) as af:
        remembered = sorted(kinds_of(af.memory.status()).keys() - DOCUMENT_KINDS) if not scope["kinds"] else ()
        scope["kinds"] = scope["kinds"] or tuple(remembered) or ("fact",)  # an empty tuple would select all entries
        entries = af.memory.list(limit=limit, after=after, **scope)
        nothing, following = "", None
        if len(entries) == limit and af.memory.list(limit=1, after=entries[-1].id, **scope):
            following = entries[-1].id
        if not entries:
            hint_namespaces(af, place["namespace"])
            nothing = nothing_listed(af, Scope(**scope), after)
    if as_json:
        print_json({"entries": [entry_to_json(entry) for entry in entries], "next": following})
        return
    print_entries(entries)
    if following:
        print_warnings([f"there are more memories; add --after {following} to list the next ones, or raise --limit"])
    if not entries:
        say(nothing)


@main.command(
    epilog=examples(
        'agentformer update ID --content "We chose PostgreSQL."',
        """agentformer update ID --metadata '{"about": "home"}' --expected-version 2""",
        "agentformer update ID --valid-to 2026-12-01T00:00:00+02:00",
    )
)
@click.argument("entry_id", metavar="ID")
@click.option("--content", metavar="TEXT|-", help="The new text. With `-`, the text is read from standard input.")
@click.option("--kind", metavar="WORD", help="The kind: fact, decision, error, milestone, or a word that you choose.")
@click.option("--title", metavar="TEXT", help="The new title. The title of a core block cannot be changed.")
@category
@click.option("--salience", metavar="NUMBER", type=float, help="Importance, from 0 to 1.")
@click.option("--metadata", metavar="JSON", help="A JSON object that replaces the stored metadata.")
@validity
@click.option(
    "--expected-version", metavar="N", type=click.IntRange(1), help="Change the entry only if it has this version."
)
@common
def update(entry_id: str, expected_version: int | None, namespace: str, as_json: bool, **given: Any) -> None:
    """Change a memory; `history` shows its former versions.

    ID is an id, the beginning of an id (at least 4 characters), or the title of a memory. An empty text as a TIME, such
    as in --valid-to "", removes this time.
    """
    options = {name: given.pop(name) for name in _CHANGED}
    changes = {name: value for name, value in options.items() if value is not None}
    if not changes:
        raise InvalidInput(
            "--content", f"give at least one of the options {', '.join(f'--{name}' for name in _CHANGED)}"
        )
    changes |= {name: changes[name] or None for name in _VALIDITY if name in changes}  # an empty text removes the time
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

    OLD and NEW are ids, beginnings of ids (at least 4 characters), or titles of memories. The validity of OLD ends when
    NEW begins to hold. From then on, a search finds OLD only with the option --archived, or with --as-of and an earlier
    time. `restore OLD` makes OLD current again.
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
    are deleted too. To delete documents, use `remove`. --user alone deletes everything that belongs to the user in the
    namespace: memories, documents with their original files, and upload jobs. After an interruption, run it again.

    Backups, exports, the files that `doctor --repair` wrote (`damaged-DATE.jsonl`, `memory.sqlite3.damaged-DATE`), and
    the copy of an upgrade (`memory.sqlite3.schema-N`) may still contain what was deleted. Delete these files yourself.
    docs/OPERATIONS.md lists what else may, such as the log of a database server.
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
    whole_user = not ids and [name for name, value in place.items() if value is not None] == ["namespace", "user_id"]
    with open_existing(**options) as af:
        if ids:
            result = {"forgotten": _forget_ids(af, ids, place["namespace"])}
        elif whole_user and not any(filters.values()):
            result = _forget_user(af, place["user_id"], place["namespace"], yes)
        else:
            result = {"forgotten": _forget_scope(af, Scope(**place, **filters), yes)}
        files = sorted(file.name for pattern in _COPIES for file in Path(af.settings.index_dir).glob(pattern))
    if files:
        advice = "delete these files if you do not need them"
        print_warnings(
            [f"files of a repair or an upgrade may still contain the deleted entries: {', '.join(files)}; {advice}"]
        )
    jobs = f"; upload jobs deleted: {result['jobs']}" if result.get("jobs") else ""
    print_result(result, f"entries deleted: {result['forgotten']}{jobs}", as_json=as_json)


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


def _store(af: AgentFormer, content: str, values: Mapping[str, Any]) -> MemoryEntry:
    """Store a fact and return its entry. If `values` describes a core block that exists already, raise `Conflict` with
    the commands that edit this block."""
    try:
        return af.memory.store(content, **values)
    except Conflict:
        if values.get("tier") != "core" or not values.get("title"):
            raise
        name, options = values["title"], block_options(values, omitted="default")
        quoted = shlex.quote(name)
        raise Conflict(
            f"core block {name!r} exists with another text; show it with: agentformer core show {quoted}{options}, and "
            f"edit it with: agentformer core append {quoted} TEXT{options}, or core replace {quoted} OLD NEW{options}"
        ) from None


def _check_message(values: Mapping[str, Any]) -> None:
    for name, option in (("role", "--role"), ("session_id", "--session")):
        if values.get(name) is None:
            raise InvalidInput(option, "is required for a message: --session ID --role user|assistant|system|tool")
    for name in _FACT_ONLY:
        if name in values:
            wanted = "does not apply to messages; omit this option, or omit --role and --speaker"
            raise InvalidInput(f"--{name}", wanted)


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


def _forget_user(af: AgentFormer, user_id: str, namespace: str, yes: bool) -> dict[str, int]:
    """Delete everything that belongs to a user in a namespace. If the user has entries in other namespaces, say so."""
    scope = Scope(namespace, user_id=fields.name("--user", user_id), include_archived=True)
    if (count := af.backend.count(scope)) and not yes:
        documents = af.backend.count(dataclasses.replace(scope, kinds=("document",)))
        confirm(plural(count, "entry") + (f", with {plural(documents, 'document')}" if documents else ""))
    done = af.forget_user(user_id, namespace=namespace)
    others = [name for name in af.backend.namespaces() if name != namespace]
    if left := [name for name in others if af.backend.count(dataclasses.replace(scope, namespace=name))]:
        print_warnings([f"a user of this name also has entries in: {one_line(', '.join(left))}; use --namespace"])
    return {"forgotten": done.entries, "jobs": done.jobs}


def _memory_id(af: AgentFormer, argument: str, namespace: str, instead: str) -> str:
    """Return the id of the memory that the argument names. Raises the errors of `id_of`. Raises `InvalidInput` if the
    entry is a document or a part of a document. The message ends with `instead`, which says how to change documents."""
    entry = entry_of(af, argument, namespace)
    if entry.source is not None:
        raise InvalidInput("ID", f"{entry.id} is a part of the document {entry.source.document_id}; {instead}")
    if entry.kind in CONTAINER_KINDS:
        raise InvalidInput("ID", f"{entry.id} is a document; {instead}")
    return entry.id


@main.group(
    epilog=examples(
        'agentformer core append persona "Answer briefly."', "agentformer core show", "agentformer core show --help"
    )
)
def core() -> None:
    """Show and edit the core blocks, which are in every context.

    Core blocks are short texts with a name, such as `persona`. A context is the text that a model gets for a task. A
    block is shared by all agents and users, or it belongs to an --agent or a --user.
    """


def _owned(command: Command) -> Command:
    """Add the options --agent and --user. The command gets their values and the value of --namespace as one mapping
    `owner`."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        command(owner={name: options.pop(name) for _, name in BLOCK_OWNERS}, **options)

    return with_options(
        common(run),
        click.option("--agent", "agent_id", metavar="ID", help="Use the block of this agent."),
        click.option("--user", "user_id", metavar="ID", help="Use the block of this user."),
    )


@core.command(epilog=examples("agentformer core show", "agentformer core show persona --agent librarian"))
@click.argument("name", required=False)
@_owned
def show(name: str | None, owner: Any, as_json: bool, **options: Any) -> None:
    """Show one block, or show all blocks.

    Without --agent and --user, the command shows the shared blocks. With --agent or --user, it also shows the blocks of
    this agent or user.
    """
    with open_existing(**options) as af:
        if name is None:
            blocks = af.memory.core.blocks(**owner)
        else:
            with _naming_blocks(af, owner):
                blocks = [af.memory.core.get(name, **owner)]
        others = not blocks and af.backend.count(Scope(owner["namespace"], tiers=("core",)))
    if as_json:
        print_json({"blocks": [entry_to_json(block) for block in blocks]})
        return
    for block in blocks:
        say(_block_text(block))
    if others:
        say("there are no shared core blocks; use --agent or --user to show the blocks of an agent or a user")
    elif not blocks:
        say("there are no core blocks; add a block with: agentformer core append NAME TEXT")


@core.command(epilog=examples('agentformer core append persona "You help the harbour office."'))
@click.argument("name")
@click.argument("text", metavar="TEXT|-")
@_owned
def append(name: str, text: str, owner: Any, as_json: bool, **options: Any) -> None:
    """Append a line to a block. Create the block if it does not exist.

    If the block already contains the line, nothing is changed.
    """
    line = text_of(text)
    with connect(**options) as af:
        block = af.memory.core.append(name, line, **owner)
    print_result(entry_to_json(block), _block_text(block), as_json=as_json)


@core.command(epilog=examples('agentformer core replace persona "the harbour office" "the office of Turku"'))
@click.argument("name")
@click.argument("old")
@click.argument("new")
@_owned
def replace(name: str, old: str, new: str, owner: Any, as_json: bool, **options: Any) -> None:
    """Replace the text OLD by NEW in a block.

    OLD must occur exactly once in the block, in the same spelling. If NEW is empty, OLD is deleted.
    """
    with open_existing(**options) as af, _naming_blocks(af, owner):
        block = af.memory.core.replace(name, old, new, **owner)
    print_result(entry_to_json(block), _block_text(block), as_json=as_json)


@core.command(epilog=examples("agentformer core remove persona", "agentformer core remove persona --yes"))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_owned
def remove(name: str, yes: bool, owner: Any, as_json: bool, **options: Any) -> None:
    """Delete a block and its history permanently."""
    with open_existing(**options) as af, _naming_blocks(af, owner):
        block = af.memory.core.get(name, **owner)
        if not yes:
            confirm(f"core block {name!r}")
        af.memory.core.remove(name, **owner)
    print_result({"removed": [block.id]}, "removed 1", as_json=as_json)


@contextmanager
def _naming_blocks(af: AgentFormer, owner: Mapping[str, Any]) -> Iterator[None]:
    """Add the names of the existing core blocks to the message of a `NotFound` that the `with` block raises."""
    try:
        yield
    except NotFound as error:
        names = [_name(block) for block in af.memory.core.blocks(**owner) if block.title]
        raise NotFound(f"{error}. Existing blocks: {', '.join(names)}" if names else str(error)) from None


def _block_text(block: MemoryEntry) -> str:
    return f"[{_name(block)}]\n{block.content}"


def _name(block: MemoryEntry) -> str:
    """Return the name of a core block, with the command-line options that select this block."""
    return f"{block.title or block.id}{block_options({'agent_id': block.agent_id, 'user_id': block.user_id})}"
