"""Checks the arguments of callers, and builds entries, scopes and changes from them. An error names the wrong
argument."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any, TypedDict

from agentformer.errors import InvalidInput
from agentformer.records import fields
from agentformer.records.codec import now
from agentformer.records.entry_json import ENTRY_FIELDS, check_validity
from agentformer.records.filters import parse
from agentformer.text.normalize import clean_plain
from agentformer.types import (
    DEFAULT_NAMESPACE,
    RESERVED_KINDS,
    UNSEARCHED_KIND,
    Decay,
    MemoryEntry,
    Query,
    Scope,
    Tier,
    Where,
    new_id,
)


class Place(TypedDict, total=False):
    """The owner of an entry, as keyword arguments. The default of `namespace` is "default". If another key is missing,
    a search does not filter by this key."""

    namespace: str
    session_id: str | None
    agent_id: str | None
    user_id: str | None
    project: str | None


class _Common(TypedDict, total=False):
    metadata: Mapping[str, Any] | None  # JSON; a list under `aliases` holds other names of the entry
    occurred_at: datetime | str | None  # datetime with a time zone, or ISO 8601 text with a time zone
    valid_from: datetime | str | None  # inclusive; the time from which the statement holds
    valid_to: datetime | str | None  # exclusive; the time until which it holds
    expires_at: datetime | str | None  # the time from which no search returns the entry
    speaker: str | None
    source_type: str | None  # the type of a record of the host application
    source_id: str | None  # the id of that record
    pair_id: str | None
    parent_id: str | None


class MessageFields(_Common, total=False):
    """Keyword arguments of `add_message`, except `session_id`, `role` and `content`."""

    namespace: str
    agent_id: str | None
    user_id: str | None
    project: str | None


class StoredFields(Place, _Common, total=False):
    """Keyword arguments of `store`, except `content`."""

    tier: Tier
    kind: str
    title: str
    category: str
    salience: float  # 0..1
    verbatim: bool  # True: the content is stored as it is, also if it repeats recalled memory
    searchable: bool  # False: the entry is stored and listed, and no search returns it


class CleaningScope(TypedDict, total=False):
    """Keyword arguments that select the sessions and entries for a cleaning. A missing key does not limit the
    selection."""

    namespace: str | None
    session_id: str | None
    user_id: str | None
    project: str | None


class Filters(TypedDict, total=False):
    """The filters of searches and of questions."""

    metadata: Mapping[str, Any] | None  # an entry must have these keys with these values
    where: Where | None  # a tree of conditions on metadata and fields; see docs/MEMORY.md
    document_id: str | None  # selects only the pages and chunks of this document
    since: date | str | None  # inclusive; the date is `occurred_at`, or `created_at` of an entry without `occurred_at`
    until: date | str | None  # exclusive for a time, inclusive for a whole day
    as_of: datetime | str | None  # the entries that held at this time; None: now


class ScopeFields(Place, Filters, total=False):
    """Keyword arguments that select the entries for a call, such as a search."""

    tiers: Sequence[str]
    kinds: Sequence[str]
    categories: Sequence[str]
    occurred_from: datetime | str | None  # inclusive
    occurred_to: datetime | str | None  # exclusive
    source_type: str | None
    source_id: str | None
    parent_id: str | None
    min_salience: float  # 0..1, after decay
    include_archived: bool
    include_summarized: bool  # also the archived originals of summaries, but no other archived entries
    or_nobody: bool  # if a user or project is given, also select entries without a user or project


ROLES = ("user", "assistant", "system", "tool")
STORED = ("content", *StoredFields.__annotations__)
CHANGED = tuple(field.name for field in ENTRY_FIELDS if field.changeable)
_CHECKS = {field.name: field.check for field in ENTRY_FIELDS if field.check}
_FLAGS = {"verbatim": False, "searchable": True}
_EMPTY_IF_NONE = frozenset({"title", "category", "speaker"})
_FILTER_CHECKS = {"source_id": fields.source_id}  # filter -> check; the values of other filters are names
_CATEGORY_OF_KIND = {"decision": "decisions", "summary": "summaries"}
_RECALLED = "(recalled memory)"  # content that is stored for a message that only repeats recalled memory
# The parts of a block of recalled memory in a prompt, as `memory.context` writes it.
_MARKER = re.compile("<(?P<close>/?)(?P<frame>recalled-memory|core-memory|standing-instructions)>")
_ENTRY = "<memory id="  # the beginning of every entry
_ITEMS = re.compile("(?:\n?<memory id=[^<]*+</memory>)*")  # the text of an entry is escaped, so it contains no bracket
_ID = re.compile('<memory id="([^"<>\n]{1,200})"')


def new_entry(values: Mapping[str, Any]) -> MemoryEntry:
    """Check the arguments of `store`, and return the new entry. Recalled entries that the content repeats from a prompt
    are removed (see `without_recalled`), unless `verbatim` is true. Raises `InvalidInput` for an invalid argument."""
    check_known(values, STORED)
    flags = {name: fields.flag(name, values.get(name, default)) for name, default in _FLAGS.items()}
    given = _checked_fields({"content": None, **{name: values[name] for name in values if name not in _FLAGS}})
    if not flags["searchable"]:
        if given.get("kind") is not None:
            raise InvalidInput(
                "kind", f"cannot be set with searchable=False; the kind is then always {UNSEARCHED_KIND!r}"
            )
        given["kind"] = UNSEARCHED_KIND
    new_text, recalled = ("", []) if flags["verbatim"] else without_recalled(given["content"])
    if recalled:
        given["content"] = new_text.strip()
        if not given["content"]:
            raise InvalidInput("content", "contains only recalled memory, which is stored already; store new text")
    given["category"] = given.get("category") or _CATEGORY_OF_KIND.get(given.get("kind", "fact"), "")
    moment = now()
    entry = check_validity(MemoryEntry(id=new_id(), created_at=moment, updated_at=moment, **given))
    context = context_line(entry)
    return replace(entry, context=context) if context else entry


def new_entries(items: Iterable[str | Mapping[str, Any]], common: Mapping[str, Any]) -> list[MemoryEntry]:
    """Check the arguments of `store_many`, and return the new entries. Raises `InvalidInput` for an invalid argument.
    If there are several items, the message of the error names the item."""
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidInput("items", f"must be a list of texts or mappings, got {type(items).__name__}")
    entries, items = [], [*items]
    for number, item in enumerate(items):
        try:
            entries.append(new_entry({**common, **(item if isinstance(item, Mapping) else {"content": item})}))
        except InvalidInput as error:
            if len(items) == 1:
                raise
            reason = str(error).removeprefix(f"{error.field}: ")
            raise InvalidInput(error.field, f"{reason} (item {number} of the list, counted from 0)") from None
    return entries


def new_message(values: Mapping[str, Any]) -> MemoryEntry:
    """Check the arguments of `add_message`, and return the new entry. Its `content` is cleaned for search; if this
    changes the text, `raw` is the original text. Raises `InvalidInput` for an invalid argument."""
    check_known(values, ("session_id", "role", "content", *MessageFields.__annotations__))
    role = values.get("role")
    if role not in ROLES:
        raise InvalidInput("role", f"must be one of {', '.join(ROLES)}, got {role!r:.80}")
    raw = fields.content(values.get("content"))
    fields.name("session_id", values.get("session_id"))
    given = _checked_fields({name: value for name, value in values.items() if name not in ("role", "content")})
    given |= {"tier": "episodic", "kind": "message", "role": role, "occurred_at": given.get("occurred_at") or now()}
    new_text, recalled = without_recalled(raw)
    if recalled:
        given["metadata"] = {**(given.get("metadata") or {}), fields.RECALLED: recalled}
    content = clean_plain(new_text).strip() or (_RECALLED if recalled else raw)
    entry = check_validity(MemoryEntry(id=new_id(), content=content, raw=raw if raw != content else None, **given))
    return replace(entry, context=context_line(entry))


def context_line(entry: MemoryEntry) -> str:
    """Return the text that is indexed together with the content of the entry. For a message, this text is the speaker
    and the day. For another entry, this text is the title and the other names of the entry (aliases)."""
    if entry.kind != "message":
        aliases = entry.metadata.get("aliases")
        names = (entry.title, *(aliases if isinstance(aliases, (list, tuple)) else ()))
        return ", ".join(name for name in names if isinstance(name, str) and name.strip())
    # The format of a transcript. With a comma instead of a colon, sentence models give the line too much weight:
    # vector recall was 14% lower (bench/log/search.md).
    day = f" ({entry.occurred_at:%Y-%m-%d})" if entry.occurred_at else ""
    return f"{entry.speaker or entry.role}{day}:"


def changes(former: MemoryEntry, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the new `values` of the entry `former`, and return the fields to change. Fields that depend on these
    values, such as the indexed context, are included. Raises `InvalidInput` for an invalid value, and for an entry that
    only AgentFormer itself may change."""
    if not values:
        raise InvalidInput("changes", f"are missing; these fields can be changed: {', '.join(CHANGED)}")
    if unknown := sorted(set(values) - set(CHANGED)):
        raise InvalidInput(unknown[0], f"cannot be changed; only these fields can be changed: {', '.join(CHANGED)}")
    if former.source_type in fields.RESERVED_SOURCE_TYPES:
        problem = f"{former.id} is a record of AgentFormer; change this vector store at the vector store endpoints"
        raise InvalidInput("entry_id", problem)
    changed = {name: _changed_value(former, name, value) for name, value in values.items()}
    if "kind" in changed and "category" not in changed and former.category == _CATEGORY_OF_KIND.get(former.kind, ""):
        changed["category"] = _CATEGORY_OF_KIND.get(changed["kind"], "")
    after = check_validity(replace(former, **changed))
    if former.kind == "message" and after.content != former.content and former.raw is None:
        changed["raw"] = former.content  # so that a transcript shows the original words
    if former.kind == "message" and (after.content, after.speaker) != (former.content, former.speaker):
        changed["metadata"] = {**after.metadata, fields.WORDS_CHANGED: True}
    if context_line(former) != context_line(after) and former.context == context_line(former):
        changed["context"] = context_line(after)
    return changed


def _changed_value(former: MemoryEntry, name: str, value: Any) -> Any:
    if name == "metadata":
        return fields.changed_metadata(former.metadata, value)
    if name == "kind" and former.kind in RESERVED_KINDS:
        if value != former.kind:
            raise InvalidInput("kind", f"the kind of a {former.kind} cannot be changed; store another entry instead")
        return value
    return _CHECKS[name](name, value)


def scope_from(values: Mapping[str, Any], decay: Decay) -> Scope:
    """Check the filters in `values`, and return a scope with these filters. `decay` says how salience (importance)
    falls with time. Raises `InvalidInput` for an invalid filter."""
    check_known(values, ScopeFields.__annotations__)
    given = values.get
    since, until = fields.period(given("since"), given("until"))
    optional = ("session_id", "agent_id", "user_id", "project", "source_type", "source_id", "parent_id", "document_id")
    return Scope(
        namespace=fields.name("namespace", given("namespace", DEFAULT_NAMESPACE)),
        tiers=tuple(fields.tier(tier) for tier in fields.names("tiers", given("tiers", ()))),
        kinds=fields.names("kinds", given("kinds", ())),
        categories=fields.names("categories", given("categories", ())),
        metadata=fields.metadata(given("metadata")),
        occurred_from=fields.moment("occurred_from", given("occurred_from")),
        occurred_to=fields.moment("occurred_to", given("occurred_to")),
        since=since,
        until=until,
        min_salience=fields.salience(given("min_salience", 0.0), "min_salience"),
        include_archived=fields.flag("include_archived", given("include_archived", False)),
        include_summarized=fields.flag("include_summarized", given("include_summarized", False)),
        as_of=fields.moment("as_of", given("as_of")),
        or_nobody=fields.flag("or_nobody", given("or_nobody", False)),
        pages=(),
        except_kinds=(),
        decay=decay,
        where=parse(given("where")),
        **dict[str, Any](
            (name, _FILTER_CHECKS.get(name, fields.optional_name)(name, given(name))) for name in optional
        ),
    )


def query_from(
    text: str,
    values: Mapping[str, Any],
    decay: Decay,
    *,
    limit: int,
    min_score: float,
    mode: Any,
    at: datetime | str | None,
) -> Query:
    """Check the arguments of a search, and return its query. `values` contains the filters of its scope; see
    `scope_from`. Raises `InvalidInput` for an invalid argument."""
    scope = scope_from(values, decay)
    fields.text("text", text)
    fields.number("min_score", min_score)
    if mode not in ("hybrid", "dense", "lexical"):
        raise InvalidInput("mode", f"must be hybrid, dense or lexical, got {mode!r}")
    return Query(text, scope, fields.limit("limit", limit), min_score, mode, fields.moment_in_zone("at", at))


def checked(scope: Scope) -> Scope:
    """Check the values of a scope that a caller has built, and return a scope with the checked values. Raises
    `InvalidInput` for an invalid value."""
    values = {name: getattr(scope, name) for name in ScopeFields.__annotations__}
    return scope_from(values, scope.decay)


def place_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the owner in `values`, and return it with all keys of `Place`. A missing key is None; the default of the
    namespace is "default". Raises `InvalidInput` for an invalid value."""
    check_known(values, Place.__annotations__)
    return {"namespace": DEFAULT_NAMESPACE, **dict.fromkeys(_OWNERS), **_checked_fields(values)}


def replaced(entries: Iterable[MemoryEntry]) -> list[Scope]:
    """Return scopes with the earlier entries that the new `entries` replace. There is one scope for each combination of
    a record of the host application, a user and a project. A new entry with a user replaces entries of this user and
    entries without a user, because another user may have another record with the same `source_id`. A new entry without
    a user replaces the entries of all users. The same is true for projects."""
    records = {(e.namespace, e.source_type, e.source_id, e.user_id, e.project) for e in entries if e.source_id}
    return [
        Scope(
            namespace,
            source_type=kind,
            source_id=record,
            user_id=user,
            project=project,
            or_nobody=True,
            include_archived=True,
        )
        for namespace, kind, record, user, project in sorted(records, key=str)
    ]


def mappings(field: str, values: Any) -> list[Mapping[str, Any]]:
    """Return `values` as a list of mappings, such as messages. Raises `InvalidInput` with the name `field` if `values`
    is not a list of mappings."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise InvalidInput(field, f"must be a list of mappings, got {type(values).__name__}")
    items = list(values)
    for item in items:
        if not isinstance(item, Mapping):
            raise InvalidInput(field, f"must contain only mappings, got {type(item).__name__}")
    return items


def check_known(values: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `InvalidInput` if `values` contains an argument whose name is not in `known`."""
    if unknown := sorted({str(name) for name in values if name not in known}):
        raise InvalidInput(unknown[0], f"is not an argument of this call; the arguments are {', '.join(known)}")


_OWNERS = tuple(name for name in Place.__annotations__ if name != "namespace")


def _checked_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the values of the fields of an entry, and return the values in the form in which they are stored. Raises
    `InvalidInput` for an invalid value."""
    given = {name: value for name, value in values.items() if value is not None or name not in _EMPTY_IF_NONE}
    entry = {name: _CHECKS[name](name, value) for name, value in given.items()}
    if (entry.get("source_type") is None) != (entry.get("source_id") is None):
        raise InvalidInput(
            "source_id", "must be given together with source_type: the two are the id and the type of a record"
        )
    return entry


def without_recalled(text: str) -> tuple[str, list[str]]:
    """Remove all blocks of recalled memory from `text`. An agent can copy such a block, in which a prompt quotes
    entries of the memory, into a new text. Return the remaining text and the ids of the entries in the removed blocks.
    A block is a pair of markers with at least one entry between them. Nested blocks are removed as one block. Markers
    around other text are not removed. After an opening marker without a closing marker, only the entries that directly
    follow the marker are removed. The running time is linear."""
    if _ENTRY not in text:
        return text, []
    remaining, ids, at = [], [], 0
    for start, end in _block_spans(text):
        block_ids = _ID.findall(text, start, end)
        if not block_ids:
            continue
        remaining.append(text[at:start])
        ids += block_ids
        at = end + 1 if text[end : end + 1] == "\n" else end
    remaining.append(text[at:])
    return "".join(remaining), list(dict.fromkeys(ids))


def _block_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of the blocks in order, without overlaps: each from an opening to its closing marker, with the
    entries that directly follow it. A marker that is never closed is a block of its own."""
    unclosed: defaultdict[str, list[re.Match[str]]] = defaultdict(list)
    spans: list[tuple[int, int]] = []
    for marker in _MARKER.finditer(text):
        opened = unclosed[marker["frame"]]
        if not marker["close"]:
            opened.append(marker)
        elif opened:
            spans.append((opened.pop().start(), marker.end()))
    spans += [marker.span() for opened in unclosed.values() for marker in opened]
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            start, end = joined[-1][0], max(joined.pop()[1], end)
        items = _ITEMS.match(text, end)
        joined.append((start, items.end() if items else end))
    return joined
