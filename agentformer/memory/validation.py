"""What callers say, checked and turned into entries, scopes and changes. Every error names its field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentformer.errors import InvalidInput
from agentformer.memory.prompt_markers import without_recalled
from agentformer.memory.types import MessageFields, Place, ScopeFields, StoredFields
from agentformer.records import fields
from agentformer.records.codec import now
from agentformer.records.ids import new_id
from agentformer.registry import late
from agentformer.types import DEFAULT_NAMESPACE, Decay, MemoryEntry, Scope

if TYPE_CHECKING:
    from agentformer.text.normalize import clean_plain
else:
    clean_plain = late("clean_plain")

MAX_TITLE = 300  # code points
ROLES = ("user", "assistant", "system", "tool")
STORED = ("content", *StoredFields.__annotations__)
CHANGED = ("content", "title", "metadata", "category", "occurred_at", "salience", "kind", "project", "speaker")
_CATEGORY_OF_KIND = {"decision": "decisions", "summary": "summaries"}
_RECALLED = "(recalled memory)"  # stands for a message that is nothing else


def new_entry(values: Mapping[str, Any]) -> MemoryEntry:
    """An entry to store. Text that was recalled from memory is left out of its content."""
    check_known(values, STORED)
    content = fields.content(values.get("content"))
    kind = fields.kind(values.get("kind", "fact"))
    fresh, recalled = without_recalled(content)
    if recalled and not fresh.strip():
        raise InvalidInput("content", "is recalled memory and nothing else; it is kept already, and not stored again")
    entry = MemoryEntry(
        id=new_id(),
        content=fresh.strip() if recalled else content,
        tier=fields.tier(values.get("tier", "semantic")),
        kind=kind,
        title=_title(values.get("title")),
        metadata=fields.metadata(values.get("metadata")),
        category=fields.text("category", values.get("category") or _CATEGORY_OF_KIND.get(kind, ""), fields.MAX_NAME),
        occurred_at=fields.moment("occurred_at", values.get("occurred_at")),
        salience=fields.salience(values.get("salience", 1.0)),
        speaker=fields.text("speaker", values.get("speaker") or "", fields.MAX_NAME),
        **_place(values),
        **_references(values),
    )
    return replace(entry, context=context_line(entry))


def new_message(values: Mapping[str, Any]) -> MemoryEntry:
    """A message of a session: its text cleaned for search, and as it came for the transcript."""
    check_known(values, ("session_id", "role", "content", *MessageFields.__annotations__))
    role = values.get("role")
    if role not in ROLES:
        raise InvalidInput("role", f"must be one of {', '.join(ROLES)}, got {role!r:.80}")
    raw = fields.content(values.get("content"))
    fresh, recalled = without_recalled(raw)
    content = clean_plain(fresh).strip() or (_RECALLED if recalled else raw)
    metadata = fields.metadata(values.get("metadata"))
    entry = MemoryEntry(
        id=new_id(),
        content=content,
        tier="episodic",
        kind="message",
        metadata={**metadata, "recalled": recalled} if recalled else metadata,
        role=role,
        speaker=fields.text("speaker", values.get("speaker") or "", fields.MAX_NAME),
        raw=raw if raw != content else None,
        occurred_at=fields.moment("occurred_at", values.get("occurred_at")) or now(),
        **{**_place(values), "session_id": fields.name("session_id", values.get("session_id"))},
        **_references(values),
    )
    return replace(entry, context=context_line(entry))


def context_line(entry: MemoryEntry) -> str:
    """What helps to find an entry beside its text: its title and its other names, or who said it and when."""
    if entry.kind != "message":
        aliases = entry.metadata.get("aliases")
        names = (entry.title, *(aliases if isinstance(aliases, (list, tuple)) else ()))
        return ", ".join(name for name in names if isinstance(name, str) and name.strip())
    # As a transcript has it. With a comma between them sentence models take the two for the whole of a short message:
    # recall of the vectors was a seventh lower (docs/BENCHMARKS.md).
    day = f" ({entry.occurred_at:%Y-%m-%d})" if entry.occurred_at else ""
    return f"{entry.speaker or entry.role}{day}:"


def changes(former: MemoryEntry, values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields to change, checked, with what follows from them."""
    if not values:
        raise InvalidInput("changes", f"are missing; these can be changed: {', '.join(CHANGED)}")
    if unknown := sorted(set(values) - set(CHANGED)):
        raise InvalidInput(unknown[0], f"cannot be changed; these can: {', '.join(CHANGED)}")
    changed = {name: _CHECKS[name](value) for name, value in values.items()}
    if "kind" in changed and "category" not in changed and former.category == _CATEGORY_OF_KIND.get(former.kind, ""):
        changed["category"] = _CATEGORY_OF_KIND.get(changed["kind"], "")
    after = replace(former, **changed)
    if former.kind == "message" and after.content != former.content and former.raw is None:
        changed["raw"] = former.content  # a transcript tells what was said, whatever becomes of the entry
    if context_line(former) != context_line(after) and former.context == context_line(former):
        changed["context"] = context_line(after)
    return changed


def scope_from(values: Mapping[str, Any], decay: Decay) -> Scope:
    """A scope of checked values."""
    check_known(values, ScopeFields.__annotations__)
    given = values.get
    optional = ("session_id", "agent_id", "user_id", "project", "source_type", "source_id", "parent_id")
    return Scope(
        namespace=fields.name("namespace", given("namespace", DEFAULT_NAMESPACE)),
        tiers=tuple(fields.tier(tier) for tier in fields.names("tiers", given("tiers", ()))),
        kinds=fields.names("kinds", given("kinds", ())),
        categories=fields.names("categories", given("categories", ())),
        metadata=fields.metadata(given("metadata")),
        occurred_from=fields.moment("occurred_from", given("occurred_from")),
        occurred_to=fields.moment("occurred_to", given("occurred_to")),
        min_salience=fields.salience(given("min_salience", 0.0), "min_salience"),
        include_archived=fields.flag("include_archived", given("include_archived", False)),
        or_nobody=fields.flag("or_nobody", given("or_nobody", False)),
        decay=decay,
        **{name: fields.optional_name(name, given(name)) for name in optional},
    )


def checked(scope: Scope) -> Scope:
    """A scope that a caller has made, checked like one that is made here."""
    names = ScopeFields.__annotations__
    made = scope_from({name: getattr(scope, name) for name in names}, scope.decay)
    return replace(made, document_id=fields.optional_name("document_id", scope.document_id))


def place_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """A place of checked values, every part of it named."""
    check_known(values, Place.__annotations__)
    return _place(values)


def replaced(entries: Iterable[MemoryEntry]) -> list[Scope]:
    """The former entries of the records that these refer to."""
    records = {(entry.namespace, entry.source_type, entry.source_id) for entry in entries if entry.source_id}
    return [
        Scope(namespace, source_type=kind, source_id=record, include_archived=True)
        for namespace, kind, record in sorted(records, key=str)
    ]


def mappings(field: str, values: Any) -> list[Mapping[str, Any]]:
    """A list of mappings, such as messages. Raises `InvalidInput`."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise InvalidInput(field, f"must be a list of mappings, got {type(values).__name__}")
    found = list(values)
    for value in found:
        if not isinstance(value, Mapping):
            raise InvalidInput(field, f"must be mappings, got {type(value).__name__}")
    return found


def check_known(values: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises `InvalidInput` for a name that a call does not know."""
    if unknown := sorted(set(map(str, values)) - set(known)):
        raise InvalidInput(unknown[0], f"is not known here; known are {', '.join(known)}")


def _place(values: Mapping[str, Any]) -> dict[str, Any]:
    optional = {name: fields.optional_name(name, values.get(name)) for name in ("agent_id", "user_id", "project")}
    return {
        "namespace": fields.name("namespace", values.get("namespace", DEFAULT_NAMESPACE)),
        "session_id": fields.optional_name("session_id", values.get("session_id")),
        **optional,
    }


def _references(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: fields.optional_name(name, values.get(name))
        for name in ("source_type", "source_id", "pair_id", "parent_id")
    }
    if (found["source_type"] is None) != (found["source_id"] is None):
        raise InvalidInput("source_id", "and source_type go together: what the record is, and its id")
    return found


def _title(value: Any) -> str:
    return fields.text("title", "" if value is None else value)[:MAX_TITLE]


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "content": fields.content,
    "title": _title,
    "metadata": fields.metadata,
    "category": lambda value: fields.text("category", value, fields.MAX_NAME),
    "occurred_at": lambda value: fields.moment("occurred_at", value),
    "salience": fields.salience,
    "kind": fields.kind,
    "project": lambda value: fields.optional_name("project", value),
    "speaker": lambda value: fields.text("speaker", value, fields.MAX_NAME),
}
