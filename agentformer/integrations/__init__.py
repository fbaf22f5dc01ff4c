"""Adapters for agent frameworks: one module and one extra for each framework. Import the module of the framework, such
as `agentformer.integrations.langchain`; the package of the framework must be installed.

The functions here are the parts that the adapters share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentformer.errors import InvalidInput, MissingExtra
from agentformer.factory import AgentFormer
from agentformer.memory.backends import all_entries
from agentformer.memory.batches import source_scopes
from agentformer.records.filters import both, parse
from agentformer.tools.definition import ToolDefinition
from agentformer.types import Condition, Filter, Group, Hit, MemoryEntry, Where

TOOLS = ("memory_add", "memory_search", "memory_get", "memory_update", "memory_delete", "rag_query")  # by default
NOBODY = Condition("exists", "$user_id", False)  # the filter of entries that belong to no user


def missing(extra: str, error: ImportError) -> MissingExtra:
    """Return the error for a framework that is not installed."""
    return MissingExtra(extra, f"agentformer.integrations.{extra}", error)


def owned(
    where: Where | None = None, *, has: Sequence[str] = (), user_id: str | None = None, project: str | None = None
) -> dict[str, Any]:
    """Return the filters of a search for entries of exactly this owner. Without a user, only entries that belong to no
    user are found. Without a project, only entries that belong to no project are found. An entry must match the filter
    `where`, and its metadata must have each key of `has`. Raises `InvalidInput` for an invalid filter `where`."""
    owner = {"user_id": user_id, "project": project}
    conditions: list[Filter] = [Condition("exists", f"${name}", False) for name in owner if owner[name] is None]
    conditions += [Condition("exists", key, True) for key in has]
    given = parse(where)
    if isinstance(given, Group) and given.type == "and":
        conditions += given.filters
    elif given is not None:
        conditions.append(given)
    return {**owner, "where": Group("and", tuple(conditions)) if conditions else None}


def readable(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters in `scope` as arguments for `memory.search`. Without `user_id`, only entries that belong to no
    user are selected, unless `scope` has `every_user=True`."""
    given = dict(scope)
    if given.pop("every_user", False) or given.get("user_id") is not None:
        return given
    return {**given, "where": both(given.get("where"), NOBODY)}


def recalled(af: AgentFormer, question: str, max_tokens: int, place: Mapping[str, Any]) -> str:
    """Return the memories about a question as the text of a message of at most `max_tokens` tokens. Return "" if there
    are no memories. `place` contains the filters, such as `user_id`; see `readable`."""
    context = af.memory.build_context(question, (), max_tokens, **readable(place)) if question.strip() else None
    return str(context.messages[0].content) if context and context.has_memory else ""


def tools_named(af: AgentFormer, names: Sequence[str]) -> list[ToolDefinition]:
    """Return the tools with these names. Raises `InvalidInput` for a name that no tool has."""
    known = {tool.name: tool for tool in af.toolbox.definitions()}
    wanted = [names] if isinstance(names, str) else list(names)
    if unknown := [name for name in wanted if name not in known]:
        raise InvalidInput("names", f"must be names of tools ({', '.join(known)}), got {unknown!r:.200}")
    return [tool for name, tool in known.items() if name in wanted]


def records(
    af: AgentFormer, source_type: str, source_ids: Sequence[str], *, namespace: str, archived: bool = False
) -> list[MemoryEntry]:
    """Return the entries with this `source_type` and one of the `source_ids`, in the order of `source_ids`. Entries
    that belong to a user or a project are left out. Archived entries are included if `archived` is true."""
    order = {source: number for number, source in enumerate(dict.fromkeys(source_ids))}
    scopes = source_scopes(namespace, source_type, order, owner=(None, None), archived=archived)
    found = [entry for scope in scopes for entry in all_entries(af.backend, scope)]
    return sorted(found, key=lambda entry: order[entry.source_id or ""])


def hit_metadata(hit: Hit) -> dict[str, Any]:
    """Return the metadata of the entry of a hit, with the id, the kind, the score and the place in a document."""
    entry, source = hit.entry, hit.entry.source
    own: dict[str, Any] = {"entry_id": entry.id, "kind": entry.kind, "score": hit.score}
    if entry.title:
        own["title"] = entry.title
    if entry.occurred_at is not None:
        own["occurred_at"] = entry.occurred_at.isoformat()
    if source is not None:
        own |= {"document_id": source.document_id, "source": source.name, "page": source.page, "label": source.label}
        own |= {"start": source.start, "end": source.end}
    return {**entry.metadata, **own}
