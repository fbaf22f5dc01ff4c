"""How a namespace lies in its file: JSON that people can read and edit, and back again with every value checked.

    {
      "format": 1,
      "namespace": "default",
      "entries": [
        {
          "id": "0193...",
          "content": "The keys hang in the blue cupboard.",
          "created_at": "2026-11-20T09:30:00+00:00",
          "history": [{"content": "The keys hang in the hall.", ...}]
        }
      ]
    }

Fields with their default value are left out; `history` holds former states, oldest first. What could not be read
back is not stored: both ways go through the same checks, which raise `InvalidInput` naming the field.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from typing import Any, NoReturn

from agentformer.errors import InvalidInput, StoreDamaged
from agentformer.records import fields
from agentformer.records.codec import TIMES
from agentformer.types import Link, MemoryEntry, Source

FORMAT = 1
_LONGEST_NAME = 120  # characters of an encoded namespace; file systems take 255 with what stands around it
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")  # no capitals: not every file system tells them apart
_SHOWN = 80  # characters of a wrong value in a message


def file_name(namespace: str) -> str:
    """The name of a namespace's file: plain letters as they are, all else as in a URL, a long one by its digest."""
    data = namespace.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in data)
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME // 2]}~{hashlib.sha256(data).hexdigest()[:32]}"
    return f"memory-{name}.json"


def file_text(namespace: str, records: Iterable[str]) -> str:
    """A whole file from the texts of its records."""
    name = json.dumps(namespace, ensure_ascii=False)
    head = f'{{\n  "format": {FORMAT},\n  "namespace": {name},\n  "entries": [\n    '
    return head + ",\n    ".join(records) + "\n  ]\n}\n"


def record_text(entry: MemoryEntry, former: Iterable[MemoryEntry]) -> str:
    """An entry and its past as it stands in the file of the entry's namespace."""
    values = {"id": entry.id, **_to_object(entry, entry.namespace)}
    if states := [_to_object(state, entry.namespace) for state in former]:
        values["history"] = states
    # Line breaks inside strings are escaped, so each one here stands between two values.
    return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False).replace("\n", "\n    ")


def checked(entry: MemoryEntry) -> MemoryEntry:
    """The entry as it would be read back. Raises `InvalidInput` for what a file cannot hold."""
    fields.encodable("namespace", entry.namespace)
    try:
        values = json.loads(json.dumps(_to_object(entry, entry.namespace), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("metadata", f"must be JSON values: {str(error)[:_SHOWN]}") from None
    return _to_entry(entry.id, values, entry.namespace)


def parse(data: bytes) -> tuple[str, list[tuple[MemoryEntry, tuple[MemoryEntry, ...]]]]:
    """Namespace, and entries with their former states, in order of id. Raises `StoreDamaged` saying where and why."""
    whole = _json(data)
    if not isinstance(whole, dict) or not isinstance(whole.get("entries"), list):
        raise StoreDamaged('it must be an object with a list "entries"')
    if whole.get("format", FORMAT) != FORMAT:
        raise StoreDamaged(f'its "format" is {whole["format"]!r:.{_SHOWN}}, and this version reads {FORMAT}')
    if unknown := sorted(whole.keys() - {"format", "namespace", "entries"}):
        raise StoreDamaged(f'{unknown[0]!r:.{_SHOWN}} does not belong beside "entries"')
    namespace = whole.get("namespace")
    if not isinstance(namespace, str):
        raise StoreDamaged('"namespace" must be a text')
    found: dict[str, tuple[MemoryEntry, tuple[MemoryEntry, ...]]] = {}
    for number, values in enumerate(whole["entries"], 1):
        where = f"entry {number}"
        try:
            entry, former = _to_record(values, namespace)
        except InvalidInput as error:
            where += f" (id {values['id']!r:.{_SHOWN}})" if isinstance(values, dict) and "id" in values else ""
            raise StoreDamaged(f"{where}, {error}") from None
        if entry.id in found:
            raise StoreDamaged(f"{where} has the id {entry.id} of an entry before it; each needs one of its own")
        found[entry.id] = entry, former
    return namespace, [found[entry_id] for entry_id in sorted(found)]


def _json(data: bytes) -> Any:
    try:
        text = data.decode("utf-8-sig")  # some editors put a mark before the text
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StoreDamaged(f"line {line} is not UTF-8; save the file with that encoding") from None
    except json.JSONDecodeError as error:
        raise StoreDamaged(f"line {error.lineno} column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"it is no JSON: {str(error)[:200]}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):  # one of them would be lost at the next write
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {twice!r:.{_SHOWN}} twice")
    return values


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _to_object(entry: MemoryEntry, namespace: str) -> dict[str, Any]:
    """All that is not as by default, but the id; `namespace` is the file's."""
    values: dict[str, Any] = {"content": entry.content}
    for name, default in _DEFAULTS.items():
        value = getattr(entry, name)
        if value != (namespace if name == "namespace" else default):
            values[name] = _WRITTEN.get(name, _as_it_is)(value)
    return values


def _to_record(values: Any, namespace: str) -> tuple[MemoryEntry, tuple[MemoryEntry, ...]]:
    if not isinstance(values, dict):
        raise InvalidInput("entries", f"must be objects, got {values!r:.{_SHOWN}}")
    values = dict(values)
    entry_id = _filled("id", values.pop("id", None))
    states = values.pop("history", [])
    if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
        raise InvalidInput("history", "must be a list of former states")
    entry = _to_entry(entry_id, values, namespace)
    if entry.namespace != namespace:
        raise InvalidInput(
            "namespace", f"is {entry.namespace!r:.{_SHOWN}}, which belongs into another file; leave it out"
        )
    return entry, tuple(_to_entry(entry_id, state, namespace) for state in states)


def _to_entry(entry_id: str, values: Mapping[str, Any], namespace: str) -> MemoryEntry:
    """The inverse of `_to_object`. Raises `InvalidInput`."""
    read: dict[str, Any] = {"id": _filled("id", entry_id), "namespace": namespace}
    for name, value in values.items():
        if name not in _READ:
            raise InvalidInput(name[:_SHOWN], f"is no field of an entry; fields are {', '.join(sorted(_READ))}")
        read[name] = _READ[name](name, value)
    if "content" not in read:
        raise InvalidInput("content", "is missing; give the text to remember")
    return MemoryEntry(**read)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(name, f"must be a text, got {value!r:.{_SHOWN}}")
    return fields.encodable(name, value)


def _filled(name: str, value: Any) -> str:
    if not _text(name, value):
        raise InvalidInput(name, "is empty")
    return str(value)


def _optional(name: str, value: Any) -> str | None:
    return None if value is None else _text(name, value)


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(name, f"must be a whole number of at least 0, got {value!r:.{_SHOWN}}")
    return value


def _metadata(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(name, f"must be an object, got {value!r:.{_SHOWN}}")
    try:
        fields.encodable(name, json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(name, f"must be JSON values: {str(error)[:_SHOWN]}") from None
    return value


def _source(name: str, value: Any) -> Source | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not {"document_id", "name"} <= value.keys() <= _SOURCE.keys():
        raise InvalidInput(name, "must be an object with document_id, name and maybe page, label, start, end")
    return Source(**{key: _SOURCE[key](f"{name}.{key}", each) for key, each in value.items()})


def _page(name: str, value: Any) -> int | None:
    return None if value is None else _count(name, value)


def _links(name: str, value: Any) -> tuple[Link, ...]:
    if not isinstance(value, list) or not all(
        isinstance(link, dict) and "id" in link and link.keys() <= {"id", "type"} for link in value
    ):
        raise InvalidInput(name, 'must be a list of objects such as {"id": "...", "type": "derived_from"}')
    return tuple(Link(**{key: _text(f"{name}.{key}", each) for key, each in link.items()}) for link in value)


def _as_it_is(value: Any) -> Any:
    return value


def _written_moment(moment: Any) -> str:
    """In UTC; one without a zone stays so, and is refused when it is read."""
    return str((moment.astimezone(UTC) if moment.tzinfo else moment).isoformat())


def _written_source(source: Source) -> dict[str, Any]:
    values = dataclasses.asdict(source)
    defaults = {field.name: field.default for field in dataclasses.fields(Source)}
    return {name: value for name, value in values.items() if value != defaults[name]}


def _written_links(links: Iterable[Link]) -> list[dict[str, str]]:
    return [{"id": link.id} if link.type == Link("").type else {"id": link.id, "type": link.type} for link in links]


_DEFAULTS: dict[str, Any] = {
    field.name: {} if field.name == "metadata" else field.default
    for field in dataclasses.fields(MemoryEntry)
    if field.name not in {"id", "content"}
}
_WRITTEN: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(TIMES, _written_moment),
    "metadata": dict,
    "source": _written_source,
    "derived_from": _written_links,
}
_SOURCE: dict[str, Callable[[str, Any], Any]] = {
    "document_id": _text,
    "name": _text,
    "page": _page,
    "label": _text,
    "start": _count,
    "end": _count,
}
# Every field but the id, with the check that it passes on its way in.
_READ: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("content", "title", "context", "role", "speaker", "category"), _text),
    **dict.fromkeys(("namespace", "kind"), _text),
    **dict.fromkeys(("session_id", "agent_id", "user_id", "project", "source_type", "source_id"), _optional),
    **dict.fromkeys(("parent_id", "pair_id", "raw", "archived_by", "superseded_by"), _optional),
    **dict.fromkeys(("access_count", "match_count", "read_count", "repeat_count", "version"), _count),
    **dict.fromkeys(TIMES, fields.moment),
    "tier": lambda _, value: fields.tier(value),
    "salience": lambda _, value: fields.salience(value),
    "metadata": _metadata,
    "source": _source,
    "derived_from": _links,
}
