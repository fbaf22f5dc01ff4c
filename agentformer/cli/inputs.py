"""Checks of the input of commands, such as texts, JSON and ids; confirmations; and hints for an empty result."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentformer.cli.output import fail, say
from agentformer.errors import InvalidInput, NotFound
from agentformer.records import fields
from agentformer.records.codec import now
from agentformer.records.fields import MAX_CONTENT
from agentformer.records.filters import both, parse
from agentformer.records.integrity.files import kind_of
from agentformer.records.scopes import is_visible
from agentformer.registry import SERVERS
from agentformer.settings import Settings, load_settings
from agentformer.types import DOCUMENT_KINDS, Filter, Hits, MemoryEntry, Query, Scope

if TYPE_CHECKING:
    from agentformer.factory import AgentFormer

_MAX_BYTES = 4 * MAX_CONTENT  # limit for standard input: the size of the longest content in UTF-8
_BACKUP_INDEXES = "indexes"  # the folder inside a backup that contains the memory
_NAMED = 20  # at most this many namespaces are named in a hint
_CANDIDATES = 10  # at most this many matching entries are listed
_PAGE = 200  # entries that are listed in one step
_CANDIDATE = 50  # characters of a text that a list of matching entries shows
_MIN_PREFIX = 4  # characters of an id; a shorter text is probably a mistake
_SEARCHED = 30  # hits of the search that decides about a hint
# A file with such a name can be a part of a damaged memory, for example if the database file is missing.
_MEMORY_FILES = ("memory[.-]*", "rag_faiss_*", "words", "damaged-*")

BLOCK_OWNERS = (("--namespace", "namespace"), ("--agent", "agent_id"), ("--user", "user_id"))


def text_of(argument: str, name: str = "TEXT") -> str:
    """Return the argument or, if the argument is `-`, the text of standard input. Raises `InvalidInput` if standard
    input is closed, too long or not UTF-8. `name` is the name of the argument in the error."""
    if argument != "-":
        return argument
    if sys.stdin is None:  # closed by the parent process
        raise InvalidInput(name, "standard input is closed; give the text as an argument")
    data = sys.stdin.buffer.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise InvalidInput(name, f"has over {_MAX_BYTES} bytes; ingest the text as a document: agentformer ingest FILE")
    try:
        return data.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        raise InvalidInput(
            name, "standard input is not UTF-8 text; convert it to UTF-8, or ingest it as a document"
        ) from None


def lines_of(path: Path, name: str) -> list[str]:
    """Return the lines of a text file. Raises `InvalidInput` if the file cannot be read or is not UTF-8. `name` is the
    name of the option in the error."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise InvalidInput(name, f"{path} does not exist; check the path") from None
    except OSError as error:
        raise InvalidInput(name, f"{path} cannot be read ({error.strerror}); give a readable text file") from None
    except UnicodeDecodeError:
        raise InvalidInput(name, f"{path} is not a text file in UTF-8; convert the file to UTF-8") from None


def id_of(af: AgentFormer, argument: str, scope: Scope) -> str:
    """Return the id of the entry in `scope` that the argument names. The argument is an id, the beginning of an id, the
    name of a document, or the title of another entry. Raises `NotFound` if no entry matches. Raises `InvalidInput` with
    the ids and texts of the entries if several entries match."""
    from agentformer.memory.backends import all_entries

    documents = scope.kinds == ("document",)
    if any(
        e.namespace == scope.namespace and (e.kind in scope.kinds or not documents) for e in af.backend.get([argument])
    ):
        return argument
    named = dataclasses.replace(scope, metadata={"name": argument}) if documents else scope
    matches = {entry.id: entry for entry in all_entries(af.backend, named) if argument == _name(entry)}
    if len(argument) >= _MIN_PREFIX:
        matches |= {entry.id: entry for entry in _beginning_with(af, argument.lower(), scope)}
    # If memories and documents match, a memory is meant. If only documents match, the caller reports the right command.
    matches = {key: entry for key, entry in matches.items() if entry.kind not in DOCUMENT_KINDS} or matches
    if not matches:
        raise NotFound(
            f"there is no {'document' if documents else 'entry'} {argument:.200} in namespace {scope.namespace}; "
            f"give an id, the beginning of an id (at least {_MIN_PREFIX} characters), or a "
            f"{'name' if documents else 'title'}, or use --namespace to select another namespace"
        )
    if len(matches) > 1:
        found = "; ".join(f"{entry.id} ({_shown(entry)})" for _, entry in sorted(matches.items())[:_CANDIDATES])
        more = f"; and {len(matches) - _CANDIDATES} more" if len(matches) > _CANDIDATES else ""
        raise InvalidInput("ID", f"{argument:.200} matches {len(matches)} entries; give one id: {found}{more}")
    return next(iter(matches))


def entry_of(af: AgentFormer, argument: str, namespace: str) -> MemoryEntry:
    """Return the entry that the argument of a command names by its id, by the beginning of its id, or by its title.
    Only the entries of `namespace` are searched. Archived entries are found too. Raises the errors of `id_of`."""
    return af.memory.get(id_of(af, argument, Scope(namespace, include_archived=True)))


def _beginning_with(af: AgentFormer, prefix: str, scope: Scope) -> Iterator[MemoryEntry]:
    """Yield the entries of the scope whose ids begin with `prefix`."""
    after = prefix
    while page := af.backend.list(scope, after=after, limit=_PAGE):  # in the order of ids
        found = [entry for entry in page if entry.id.startswith(prefix)]
        yield from found
        if len(found) < len(page):
            return
        after = page[-1].id


def _shown(entry: MemoryEntry) -> str:
    origin = f", {origin_text(entry.metadata.get('origin', ''))}" if entry.kind == "document" else ""
    return f"{entry.kind}: {' '.join((_name(entry) or entry.content)[:_CANDIDATE].split())}{origin}"


def origin_text(origin: str) -> str:
    """Return a text that says where a document came from. `origin` is a path or URL, or "" if there is none."""
    return f"from {origin}" if origin else "uploaded without a path"


def _name(entry: MemoryEntry) -> str:
    """Return the name of a document or the title of another entry. A part of a document has no name."""
    return "" if entry.source else entry.content if entry.kind == "document" else entry.title


def selection_of(place: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that select the entries of a search or a list: the values of `place`, and of the options
    --tier, --kind and --archived. These options are removed from `given`."""
    archived = given.pop("archived")
    flags = {"include_archived": archived, "or_nobody": True}
    return {"tiers": given.pop("tiers"), "kinds": given.pop("kinds"), **flags, **place}


def filters_of(options: dict[str, Any]) -> dict[str, Any]:
    """Remove --where, --since, --until and --as-of from the options, and return them as the filters `metadata`,
    `where`, `since`, `until` and `as_of`. Raises `InvalidInput` if a value is not valid."""
    since, until = fields.period(options.pop("since"), options.pop("until"), "--")
    at = fields.moment("--as-of", options.pop("as_of"))
    return {**where_of(options.pop("where")), "since": since, "until": until, "as_of": at}


def where_of(conditions: Sequence[str]) -> dict[str, Any]:
    """Return the filters `metadata` and `where` that the values of --where describe. A value is KEY=VALUE, or a filter
    as a JSON object. Raises `InvalidInput` if a value is neither."""
    trees = [text for text in conditions if text.lstrip().startswith("{")]
    where: Filter | None = None
    for text in trees:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput("--where", f"is not JSON: {str(error)[:120]}") from None
        where = both(where, parse(value, "--where"))
    metadata = _metadata_of([text for text in conditions if text not in trees])
    return {"metadata": metadata, "where": where}


def _metadata_of(conditions: Sequence[str]) -> dict[str, Any]:
    """Return the metadata that the values of --where describe, such as `year=2026`. A value that is not JSON is a text.
    Raises `InvalidInput` if a condition does not have the form KEY=VALUE, or if a key has two different values."""
    metadata: dict[str, Any] = {}
    for condition in conditions:
        key, sign, text = condition.partition("=")
        if not (key and sign):
            raise InvalidInput("--where", f"must be KEY=VALUE, such as site=north, got {condition!r:.80}")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        if metadata.setdefault(key, value) != value:
            raise InvalidInput("--where", f"gives two different values of {key!r:.80}; use each key once")
    return metadata


def document_id_of(af: AgentFormer, name: str | None, namespace: str) -> str | None:
    """Return the id of the document that `name` names (see `id_of`, also for errors), or None if `name` is None."""
    return None if name is None else id_of(af, name, Scope(namespace, kinds=("document",)))


def check_tools(option: str, names: Collection[str], tools: Collection[str]) -> None:
    """Raise `InvalidInput` if one of `names`, the values of `option`, is not the name of a tool."""
    for name in names:
        if name not in tools:
            raise InvalidInput(option, f"there is no tool {name!r:.80}; the tools are {', '.join(tools)}")


def confirm(target: str) -> None:
    """Ask on standard error whether to delete `target`. If the answer is not yes, exit with code 2."""
    try:
        confirmed = sys.stdin is not None and click.confirm(f"Delete {target} permanently?", err=True)
    except click.Abort as aborted:
        if isinstance(aborted.__context__, KeyboardInterrupt):
            raise
        confirmed = False
    if not confirmed:
        fail(f"Confirmation required: pass --yes to delete {target}. Nothing was deleted.", 2)


def open_existing(**options: Any) -> AgentFormer:
    """Open a memory with stored data. `options` are settings. Raises `InvalidInput` if there is no memory."""
    from agentformer.factory import AgentFormer

    settings = load_settings(options)
    require_memory(settings)
    return AgentFormer(settings)


def address(option: str, place: str) -> dict[str, Any]:
    """Return the settings that open the memory at `place`, without further backends and without background work.
    `place` is a backend and its folder, such as `faiss:indexes`, or the address of a PostgreSQL database. `option` is
    the name of the argument in the error. Raises `InvalidInput` if the backend or the folder is missing."""
    backend, _, folder = place.partition(":")
    alone = {"routes": (), "hierarchical_backend": "", "cleanup_interval": 0, "embed_retry_seconds": 0}
    if _is_url(place):
        return {"backend": "postgres", "postgres_url": place, "index_dir": None, **alone}
    if not backend or not folder:
        raise InvalidInput(option, f"must be BACKEND:PLACE, such as faiss:indexes, got {place!r:.80}")
    return {"backend": backend, "index_dir": Path(folder), **alone}


def shown_place(place: str) -> str:
    """Return a place (see `address`) as it may be printed: an address without user, password and parameters."""
    from agentformer.http.redaction import redact_url

    return redact_url(place) if _is_url(place) else place


def same_place(one: Settings, other: Settings) -> bool:
    """Return whether the settings open the same memory."""
    if one.backend != other.backend or (one.backend in SERVERS and one.postgres_url != other.postgres_url):
        return False
    by_folder = one.backend not in SERVERS or "{folder}" in one.postgres_schema
    return not by_folder or one.index_dir.resolve() == other.index_dir.resolve()


def _is_url(place: str) -> bool:
    return place.lower().startswith(("postgres://", "postgresql://"))


def require_memory(settings: Settings) -> None:
    """Raise `InvalidInput` if there is no memory, so that a command with a wrong path does not create one."""
    from agentformer.factory import present

    if settings.backend in SERVERS and not present(settings):
        raise InvalidInput("postgres_url", "there is no memory in this database; check the address and postgres_schema")
    folder = kind_of(settings.index_dir, "--index-dir")
    if present(settings) or any(folder and any(settings.index_dir.glob(pattern)) for pattern in _MEMORY_FILES):
        return
    inside = settings.index_dir / _BACKUP_INDEXES
    advice = (
        "give the folder of an existing memory, or create a memory with: agentformer ingest PATH, or agentformer "
        "remember TEXT"
    )
    if present(dataclasses.replace(settings, index_dir=inside)):
        advice = f"this folder is a backup: give --index-dir {inside} --upload-dir {inside.with_name('uploads')}"
    raise InvalidInput("--index-dir", f"there is no memory in {settings.index_dir}; {advice}")


def query_of(text: str) -> str:
    """Return the text of a search. Raises `InvalidInput` if the text is blank."""
    if not text.strip():
        raise InvalidInput("QUERY", "is empty; give words or a question")
    return text


def hint_namespaces(af: AgentFormer, namespace: str) -> None:
    """If the namespace has no entries, tell the user on standard error which namespaces have entries."""
    names = af.backend.namespaces()
    if namespace in names or not names:
        return
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    say(f"note: namespace {namespace} is empty; namespaces with entries: {', '.join(names[:_NAMED])}{more}", err=True)


def kinds_of(state: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the number of entries of each kind in all backends. `state` is the result of `MemoryManager.status`.
    The name `hierarchical` is skipped, because it is a second name of another backend."""
    backends = state.get("backends", {"": state})
    kinds = (Counter(backend["kinds"]) for name, backend in backends.items() if name != "hierarchical")
    return sum(kinds, Counter())


def nothing_recalled(af: AgentFormer, query: str, scope: Scope, *, every: bool) -> str:
    """Return the message for a search that found nothing. The message names the options with which the same search
    finds entries. `every` means that the search already included entries that are not relevant."""
    hints = []
    if not every and _search(af, query, scope, every=True):
        hints.append("--all also shows entries that are not relevant")
    if not scope.include_archived:
        hits = _search(af, query, dataclasses.replace(scope, include_archived=True), every=every)
        if any(hit.entry.archived_by for hit in hits):
            hints.append("--archived shows the originals of summaries")
        elif not all(is_visible(hit.entry, scope, now()) for hit in hits):
            hints.append("--archived shows archived and superseded entries, and those that do not hold now")
    text = "nothing found" if every else "nothing relevant found"
    return f"{text}; {', '.join(hints)}" if hints else text


def nothing_listed(af: AgentFormer, scope: Scope, after: str) -> str:
    """Return the message for an empty list of entries, with the reason. `after` is the value of --after."""
    if after:
        return "no more entries"
    everything = dataclasses.replace(scope, include_archived=True)
    if not scope.include_archived and af.backend.count(everything):
        return "all matching entries are archived or superseded or do not hold; --archived shows them"
    if af.backend.count(Scope(scope.namespace, include_archived=True)):
        return "no matching entries"
    return f"namespace {scope.namespace} is empty; add an entry with: agentformer remember TEXT"


def _search(af: AgentFormer, query: str, scope: Scope, *, every: bool) -> Hits:
    """Repeat a search of `recall`, to find out why it found nothing. With `every`, also return hits that are not
    relevant. The search does not count as a use of the entries."""
    from agentformer.search.pipeline import for_search

    wanted = Query(query, scope, _SEARCHED)
    hits = af.backend.search(wanted)
    return for_search(hits, wanted, af.embedder, noise_floor=af.settings.noise_floor, relevant_only=not every)


def block_options(place: Mapping[str, Any], omitted: str | None = None) -> str:
    """Return the command-line options that select the core blocks of this namespace, agent and user. An option is left
    out if its value is `omitted`, such as the name of the default namespace."""
    given = ((option, place.get(name)) for option, name in BLOCK_OWNERS)
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value and value != omitted)
