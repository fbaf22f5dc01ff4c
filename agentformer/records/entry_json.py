"""The JSON form of a `MemoryEntry`. HTTP, exports, tools, stored former versions and JSON files use the same list of
fields.

A new field of `MemoryEntry` needs a line in `ENTRY_FIELDS` and a column in `records/sqlite/schema.py`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.records import fields
from agentformer.types import DEFAULT_NAMESPACE, Link, MemoryEntry, Source

Parser = Callable[[str, Any], Any]  # takes the name and the value, returns the value to store, raises `InvalidInput`

MAX_TITLE = 300  # code points; a longer title is cut
VALID_FROM = "The time from which the statement holds, in ISO 8601 with a time zone."
VALID_TO = "The time at which the statement no longer holds. It is not before `valid_from`."
EXPIRES = "The time from which no search returns the entry. The next cleaning archives the entry."
_SHOWN = 80  # number of characters of a wrong value that a message shows


def _text(name: str, value: Any) -> str:
    return fields.text(name, value, None)


def _filled_text(name: str, value: Any) -> str:
    if value == "":
        raise InvalidInput(name, "is empty; give a text")
    return _text(name, value)


def _optional(parse: Parser) -> Parser:
    return lambda name, value: None if value is None else parse(name, value)


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(name, f"must be a whole number of at least 0, got {value!r:.{_SHOWN}}")
    return value


def _metadata(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(name, f"must be a JSON object, got {value!r:.{_SHOWN}}")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(name, f"must contain only JSON values: {str(error)[:_SHOWN]}") from None
    fields.encodable(name, text)
    return value


_optional_text = _optional(_text)
_SOURCE_PARSERS: dict[str, Parser] = {
    **dict.fromkeys(("document_id", "name", "label"), _text),
    "page": _optional(_count),
    **dict.fromkeys(("start", "end"), _count),
}


def _source(name: str, value: Any) -> Source | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not {"document_id", "name"} <= value.keys() <= _SOURCE_PARSERS.keys():
        raise InvalidInput(
            name, "must be an object with document_id and name, and optionally page, label, start and end"
        )
    return Source(**{key: _SOURCE_PARSERS[key](f"{name}.{key}", part) for key, part in value.items()})


def _links(name: str, value: Any) -> tuple[Link, ...]:
    if not isinstance(value, list) or not all(
        isinstance(link, dict) and "id" in link and link.keys() <= {"id", "type"} for link in value
    ):
        raise InvalidInput(name, 'must be a list of objects such as {"id": "...", "type": "derived_from"}')
    return tuple(Link(**{key: _text(f"{name}.{key}", part) for key, part in link.items()}) for link in value)


def _title(name: str, value: Any) -> str:
    return fields.text(name, value)[:MAX_TITLE]


_word = partial(fields.text, most=fields.MAX_NAME)


def _named(check: Callable[..., Any]) -> Parser:
    return lambda _, value: check(value)


_salience = _named(fields.salience)


@dataclass(frozen=True, slots=True)
class EntryField:
    """The description of one field of an entry. `parse` checks a JSON value from a file or an export. `check` checks a
    value that a caller gives, with stricter limits; if `check` is None, callers cannot set the field. `changeable` is
    true if the method `update` of a memory can change the field."""

    name: str
    parse: Parser
    check: Parser | None = None
    changeable: bool = False
    description: str = ""  # for the HTTP schema


ENTRY_FIELDS = (
    EntryField("id", _filled_text),
    EntryField("content", _text, _named(fields.content), changeable=True),
    EntryField("tier", _named(fields.tier), _named(fields.tier)),
    EntryField("kind", _text, _named(fields.kind), changeable=True),
    EntryField("namespace", _text, fields.name),
    EntryField("session_id", _optional_text, fields.optional_name),
    EntryField("agent_id", _optional_text, fields.optional_name),
    EntryField("user_id", _optional_text, fields.optional_name),
    EntryField("project", _optional_text, fields.optional_name, changeable=True),
    EntryField("title", _text, _title, changeable=True),
    EntryField(
        "context", _text, description="Text that helps a search to find the entry. It is not part of the content."
    ),
    EntryField("metadata", _metadata, _named(fields.stored_metadata), changeable=True),
    EntryField("source", _source, description="The document of a passage, and the position of the passage in it."),
    EntryField(
        "source_type",
        _optional_text,
        fields.source_type,
        description="The type of the record in the host application that the entry was made from.",
    ),
    EntryField(
        "source_id",
        _optional_text,
        fields.source_id,
        description="The id of the record in the host application that the entry was made from.",
    ),
    EntryField("parent_id", _optional_text, fields.optional_name),
    EntryField("pair_id", _optional_text, fields.optional_name),
    EntryField("derived_from", _links),
    EntryField("role", _text, description="Role of the author of a message: user, assistant, system or tool."),
    EntryField("speaker", _text, _word, changeable=True, description="Name of the speaker of a message."),
    EntryField("raw", _optional_text, description="The original text of a message, if `content` differs from it."),
    EntryField(
        "category",
        _text,
        _word,
        changeable=True,
        description="Name of a category. Each category may have its own rate for the decay of salience.",
    ),
    EntryField("occurred_at", fields.moment, fields.moment, changeable=True),
    EntryField("valid_from", fields.moment, fields.moment, changeable=True, description=VALID_FROM),
    EntryField("valid_to", fields.moment, fields.moment, changeable=True, description=VALID_TO),
    EntryField("expires_at", fields.moment, fields.moment, changeable=True, description=EXPIRES),
    EntryField("created_at", fields.moment),
    EntryField("updated_at", fields.moment),
    EntryField("last_accessed", fields.moment),
    EntryField("access_count", _count, description="Number of all uses: found, read, requested by id, stored again."),
    EntryField("match_count", _count, description="Number of searches that returned the entry."),
    EntryField("read_count", _count, description="Number of times the entry was given to a model or marked as read."),
    EntryField("repeat_count", _count, description="Number of times the same content was stored again."),
    EntryField(
        "salience",
        _salience,
        _salience,
        changeable=True,
        description="Importance of the entry from 0 to 1, before any decay over time.",
    ),
    EntryField("archived_at", fields.moment),
    EntryField("archived_by", _optional_text, description="The summary that replaces this entry."),
    EntryField("superseded_by", _optional_text),
    EntryField("version", _count),
)

TIMES = tuple(field.name for field in ENTRY_FIELDS if field.parse is fields.moment)
COUNTS = ("access_count", "match_count", "read_count", "repeat_count")
# Fields that the backend sets. Its `update` refuses them.
_SET_BY_BACKEND = frozenset({"id", "created_at", "updated_at", "version", "archived_by", *COUNTS})
_PARSERS = {field.name: field.parse for field in ENTRY_FIELDS}


_ENCODERS: dict[str, Callable[[Any], Any]] = {
    # A time without a time zone is written without a zone, and `parse_entry` later refuses it.
    **dict.fromkeys(TIMES, lambda moment: (moment.astimezone(UTC) if moment.tzinfo else moment).isoformat()),
    "metadata": dict,
    "source": dataclasses.asdict,
    "derived_from": lambda links: [{"id": link.id, "type": link.type} for link in links],
}
_DEFAULTS: dict[str, Any] = {
    field.name: {} if field.name == "metadata" else field.default
    for field in dataclasses.fields(MemoryEntry)
    if field.name not in {"id", "content"}
}
# Defaults of a source and of a link. The short form leaves these values out.
_PART_DEFAULTS: dict[str, Any] = {"page": None, "label": "", "start": 0, "end": 0, "type": Link("").type}


def check_settable(names: Iterable[str]) -> None:
    """Raise `InvalidInput` if the `update` method of a backend cannot change one of the fields `names`."""
    settable = _PARSERS.keys() - _SET_BY_BACKEND
    if wrong := sorted(set(names) - settable):
        known = ", ".join(sorted(settable))
        raise InvalidInput(wrong[0], f"cannot be changed; only these fields can be changed: {known}")


def entry_to_json(entry: MemoryEntry) -> dict[str, Any]:
    """Return the fields of an entry as a dict of JSON values. Times are ISO 8601 in UTC."""
    values: dict[str, Any] = {name: getattr(entry, name) for name in _PARSERS}
    for name, encode in _ENCODERS.items():
        if values[name] is not None:
            values[name] = encode(values[name])
    return values


def entry_to_short_json(entry: MemoryEntry, *, namespace: str = DEFAULT_NAMESPACE) -> dict[str, Any]:
    """Return an entry as JSON for files that people edit: the content and all fields that differ from their default,
    without the id. The namespace is included only if it differs from `namespace`."""
    values: dict[str, Any] = {"content": entry.content}
    for name, default in _DEFAULTS.items():
        value = getattr(entry, name)
        if value != (namespace if name == "namespace" else default):
            values[name] = _ENCODERS[name](value) if name in _ENCODERS else value
    for part in (values.get("source"), *values.get("derived_from", ())):
        for key in (_PART_DEFAULTS.keys() & part.keys()) if part else ():
            if part[key] == _PART_DEFAULTS[key]:
                del part[key]
    return values


def entry_from_json(values: Mapping[str, Any]) -> MemoryEntry:
    """Return the entry for a dict from `entry_to_json`, without checks. An unknown key raises `TypeError`."""
    decoded = dict(values)
    for name in TIMES:
        decoded[name] = datetime.fromisoformat(decoded[name]) if decoded.get(name) else None
    decoded["source"] = Source(**decoded["source"]) if decoded.get("source") else None
    decoded["derived_from"] = tuple(Link(**link) for link in decoded.get("derived_from", ()))
    return MemoryEntry(**decoded)


def parse_entry(values: Any, *, namespace: str = DEFAULT_NAMESPACE) -> MemoryEntry:
    """Check every value of a JSON object that may come from an untrusted source, and return the entry. The fields `id`
    and `content` are required. Any other missing field gets its default; the default namespace is `namespace`. Raises
    `InvalidInput` with the name of the wrong or missing field."""
    if not isinstance(values, dict):
        raise InvalidInput("entry", f"must be a JSON object, got {values!r:.{_SHOWN}}")
    parsed: dict[str, Any] = {"namespace": namespace}
    for name, value in values.items():
        if name not in _PARSERS:
            known = ", ".join(sorted(_PARSERS))
            raise InvalidInput(name[:_SHOWN], f"is not a field of an entry; the fields are {known}")
        parsed[name] = _PARSERS[name](name, value)
    for name in ("id", "content"):
        if name not in parsed:
            raise InvalidInput(name, "is missing; every entry needs this field")
    return check_validity(MemoryEntry(**parsed))


def check_validity(entry: MemoryEntry) -> MemoryEntry:
    """Return the entry. Raises `InvalidInput` if its `valid_to` is before its `valid_from`."""
    if entry.valid_from and entry.valid_to and entry.valid_to < entry.valid_from:
        problem = f"is {entry.valid_to.isoformat()}, before valid_from ({entry.valid_from.isoformat()})"
        raise InvalidInput("valid_to", f"{problem}; give a time that is not before valid_from")
    return entry
