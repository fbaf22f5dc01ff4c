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

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NoReturn

from agentformer.errors import InvalidInput, StoreDamaged
from agentformer.records import fields
from agentformer.records.entry_json import entry_to_short_json, parse_entry
from agentformer.types import MemoryEntry

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
    values = {"id": entry.id, **entry_to_short_json(entry, namespace=entry.namespace)}
    if states := [entry_to_short_json(state, namespace=entry.namespace) for state in former]:
        values["history"] = states
    # Line breaks inside strings are escaped, so each one here stands between two values.
    return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False).replace("\n", "\n    ")


def checked(entry: MemoryEntry) -> MemoryEntry:
    """The entry as it would be read back. Raises `InvalidInput` for what a file cannot hold."""
    fields.encodable("namespace", entry.namespace)
    try:
        values = json.loads(json.dumps(entry_to_short_json(entry, namespace=entry.namespace), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("metadata", f"must be JSON values: {str(error)[:_SHOWN]}") from None
    return parse_entry({"id": entry.id, **values}, namespace=entry.namespace)


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


def _to_record(values: Any, namespace: str) -> tuple[MemoryEntry, tuple[MemoryEntry, ...]]:
    states = values.get("history", []) if isinstance(values, dict) else []
    if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
        raise InvalidInput("history", "must be a list of former states")
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name != "history"}
    entry = parse_entry(values, namespace=namespace)
    if entry.namespace != namespace:
        raise InvalidInput(
            "namespace", f"is {entry.namespace!r:.{_SHOWN}}, which belongs into another file; leave it out"
        )
    return entry, tuple(parse_entry({"id": entry.id, **state}, namespace=namespace) for state in states)
