"""The text of the JSON files of the backend `local_json`, one file for each namespace. People can edit a file, so every
value is checked when the file is read.

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

A field that has its default value is not written. `history` contains the former versions of the entry, oldest first.
`absent_documents`, which former versions of AgentFormer wrote, lists documents that are not stored although their
original files may exist, as lists [id, sha256, upload]; see `SidecarStore`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from agentformer.errors import InvalidInput, StoreDamaged
from agentformer.memory.backends.in_memory.store import Record
from agentformer.records.integrity.files import safe_file_name
from agentformer.types import AbsentDocument

FORMAT = 1
SHOWN = 80  # at most this many characters of a wrong value are shown in a message


def file_name(namespace: str) -> str:
    """Return the name of the file for a namespace."""
    return f"memory-{safe_file_name(namespace)}.json"


def record_text(record: Record) -> str:
    """Return the text of a record in a file."""
    values = record.to_json(record.entry.namespace)
    # Line breaks inside strings are escaped, so each line break here is between two values.
    return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False).replace("\n", "\n    ")


def file_text(namespace: str, records: Iterable[str]) -> str:
    """Return the complete text of the file for a namespace with the texts of these records."""
    name = json.dumps(namespace, ensure_ascii=False)
    head = f'{{\n  "format": {FORMAT},\n  "namespace": {name},\n  "entries": [\n    '
    return head + ",\n    ".join(records) + "\n  ]\n}\n"


def parse_file(data: bytes) -> tuple[str, dict[str, Record], list[AbsentDocument]]:
    """Return the namespace of a file, its records by id, and its absent documents. Raises `StoreDamaged` with the
    position of the mistake."""
    content = _load_json(data)
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise StoreDamaged('the file must contain an object with a list "entries"')
    if content.get("format", FORMAT) != FORMAT:
        raise StoreDamaged(
            f'the "format" is {content["format"]!r:.{SHOWN}}, but this version of agentformer reads only {FORMAT}'
        )
    if unknown := sorted(content.keys() - {"format", "namespace", "entries", "absent_documents"}):
        raise StoreDamaged(f'{unknown[0]!r:.{SHOWN}} is an unknown key next to "entries"; remove this key')
    namespace = content.get("namespace")
    if not isinstance(namespace, str):
        raise StoreDamaged('"namespace" must be a string')
    records: dict[str, Record] = {}
    for number, values in enumerate(content["entries"], 1):
        where = f"entry {number}"
        try:
            record = Record.of_json(values, namespace)
            if record.entry.namespace != namespace:
                name = f"{record.entry.namespace!r:.{SHOWN}}"
                raise InvalidInput("namespace", f"is {name}, which belongs in another file; remove this field")
        except InvalidInput as error:
            where += f" (id {values['id']!r:.{SHOWN}})" if isinstance(values, dict) and "id" in values else ""
            raise StoreDamaged(f"{where}, {error}") from None
        if record.entry.id in records:
            advice = "give one of the entries another id"
            raise StoreDamaged(f"{where} has the id {record.entry.id} of an earlier entry; {advice}")
        records[record.entry.id] = record
    return namespace, records, _parse_absent(content.get("absent_documents", []))


def _parse_absent(values: Any) -> list[AbsentDocument]:
    rows: list[Any] = values if isinstance(values, list) else [None]
    if not all(isinstance(row, list) and len(row) == 3 and all(isinstance(v, str) for v in row) for row in rows):
        raise StoreDamaged('"absent_documents" must be a list of lists of three strings; remove this key')
    return [AbsentDocument(*row) for row in rows]


def _load_json(data: bytes) -> Any:
    try:
        text = data.decode("utf-8-sig")  # ignores a byte order mark, which some editors write
        return json.loads(text, object_pairs_hook=_object_without_duplicates, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StoreDamaged(f"line {line} is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise StoreDamaged(f"line {error.lineno} column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"the file is not JSON: {str(error)[:200]}") from None


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):  # a repeated key is refused, because the next write would lose one of its values
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {duplicate!r:.{SHOWN}} twice")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
