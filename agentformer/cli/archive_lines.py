"""An entry as one line of an export, and back again with every value checked: people and other programs write lines."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from agentformer.rag.ingest import Document, describe
from agentformer.records import fields
from agentformer.records.codec import TIMES, to_json
from agentformer.types import MemoryEntry

_FIELDS = frozenset(field.name for field in dataclasses.fields(MemoryEntry))
_COUNTS = ("access_count", "match_count", "read_count", "repeat_count")
_NEEDED = ("id", "content", "namespace")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_entry = TypeAdapter(MemoryEntry)
_document = TypeAdapter(Document)


def entry_line(entry: MemoryEntry, history: Sequence[MemoryEntry]) -> str:
    """All fields of an entry, and its former versions where there are any."""
    states = [to_json(state) for state in history]
    values = {**to_json(entry), **({"history": states} if states else {})}
    return json.dumps(values, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n"


def read_entry(line: bytes) -> tuple[MemoryEntry, int]:
    """The entry of a line, and how many former versions it has there. Raises `ValueError` or `KeyError`."""
    values = json.loads(line, parse_constant=_no_number)
    if not isinstance(values, dict):
        raise ValueError("is no JSON object")
    states = values.pop("history", [])
    if not isinstance(states, list):
        raise ValueError("history is no list")
    return _checked(values), len([_checked(state) for state in states])


def _checked(values: Any) -> MemoryEntry:
    """The entry that a line's values are. Raises `ValueError` or `KeyError`."""
    if not isinstance(values, dict):
        raise ValueError("a former version is no JSON object")
    if unknown := sorted(values.keys() - _FIELDS):
        raise ValueError(f"{unknown[0][:80]!r} is no field of an entry")
    if missing := [name for name in _NEEDED if name not in values]:
        raise ValueError(f"{missing[0]!r} is missing")
    try:
        entry = _entry.validate_json(json.dumps(values, ensure_ascii=False).encode(), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for name in ("id", "namespace", "kind"):
        fields.name(name, getattr(entry, name))
    for name, value in entry.metadata.items():
        fields.metadata({name: value})
    fields.salience(entry.salience)
    if entry.version < 1 or any(getattr(entry, name) < 0 for name in _COUNTS):
        raise ValueError("a version is below 1, or a count below 0")
    if entry.kind == "document":
        _check_document(entry)
    times: dict[str, Any] = {name: fields.moment(name, getattr(entry, name)) for name in TIMES}
    return dataclasses.replace(entry, **times)


def _check_document(entry: MemoryEntry) -> None:
    """Are there all the details that a document has? Raises `ValueError` or `KeyError`."""
    try:
        document = _document.validate_json(json.dumps(dataclasses.asdict(describe(entry))), strict=True)
    except ValidationError:
        raise ValueError("the details of a document are not as they must be") from None
    if not _SHA256.fullmatch(document.sha256):
        raise ValueError("the SHA-256 of a document is none")  # files are looked up by it


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
