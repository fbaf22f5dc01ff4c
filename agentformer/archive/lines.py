"""An entry as one line of an export, and back again with every value checked: people and other programs write lines."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from pydantic import TypeAdapter, ValidationError

from agentformer.rag.documents import Document, document_of
from agentformer.records import fields
from agentformer.records.entry_json import COUNTS, entry_to_json, parse_entry
from agentformer.types import MemoryEntry

_MOST = 2**63 - 1  # what the records keep as an integer
_NAMES = ("session_id", "agent_id", "user_id", "project", "source_type", "source_id")
_IDS = ("parent_id", "pair_id", "archived_by", "superseded_by")
_TEXTS = ("title", "context", "role", "speaker", "category")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_document = TypeAdapter(Document)


class Line(NamedTuple):
    """What a line of entries holds: an entry, with the past that the first format keeps in its line, or, with
    `is_former`, a former version of the entry before it."""

    entry: MemoryEntry
    past: tuple[MemoryEntry, ...] = ()
    is_former: bool = False


def entry_lines(entry: MemoryEntry, history: Sequence[MemoryEntry]) -> Iterator[str]:
    """A line of all fields of an entry, and one for each former version of it."""
    yield _dumped(entry_to_json(entry))
    for state in history:
        yield _dumped({"former": entry_to_json(state)})


def _dumped(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n"


def read_line(line: bytes) -> Line:
    """What a line holds. Raises `ValueError` or `KeyError`."""
    values = json.loads(line.decode("utf-8"), parse_constant=_no_number)
    if not isinstance(values, dict):
        raise ValueError("is no JSON object")
    if values.keys() == {"former"}:
        return Line(_checked(values["former"]), is_former=True)
    states = values.pop("history", [])
    if not isinstance(states, list):
        raise ValueError("history is no list")
    return Line(_checked(values), tuple(_checked(state) for state in states))


def _checked(values: Any) -> MemoryEntry:
    """The entry that a line's values are. Raises `ValueError`."""
    if isinstance(values, dict) and "namespace" not in values:
        raise ValueError("namespace: is missing")
    entry = parse_entry(values)
    for name in ("id", "namespace", "kind"):
        fields.name(name, getattr(entry, name))
    for name in (*_NAMES, *_IDS):
        fields.optional_name(name, getattr(entry, name))
    for name in _TEXTS:
        fields.text(name, getattr(entry, name))
    for name, value in entry.metadata.items():
        given = entry.kind == "document" and name == "given" and isinstance(value, dict)
        fields.metadata(value if given else {name: value})  # what came with a document may nest as deep as any metadata
    _check_numbers(entry)
    _check_kind(entry)
    return entry


def _check_numbers(entry: MemoryEntry) -> None:
    """Raises `ValueError` for a number that means nothing, or that the records cannot keep."""
    if not 1 <= entry.version <= _MOST:
        raise ValueError("the version is below 1, or over what can be kept")
    if wrong := [name for name in COUNTS if not 0 <= getattr(entry, name) <= _MOST]:
        raise ValueError(f"{wrong[0]} is below 0, or over what can be kept")
    if (source := entry.source) is None:
        return
    fields.name("source.document_id", source.document_id)
    if not 0 <= source.start <= source.end <= _MOST or not 1 <= (source.page or 1) <= _MOST or source.page == 0:
        raise ValueError("the page or the span of the source is none")


def _check_kind(entry: MemoryEntry) -> None:
    """Has the entry what its kind and its tier need? Raises `ValueError` or `KeyError`."""
    if entry.kind != "page":  # which has no text where nothing could be read, and may be a long one
        fields.content(entry.content)
    if entry.kind in ("page", "chunk") and (entry.source is None or entry.source.page is None):
        raise ValueError(f"a {entry.kind} needs its source, with the page")
    if entry.kind == "document":
        _check_document(entry)
    if entry.tier == "working" and entry.session_id is None:
        raise ValueError("session_id is missing; working memory belongs to a session")
    if (entry.source_type is None) != (entry.source_id is None):
        raise ValueError("source_type and source_id go together")


def _check_document(entry: MemoryEntry) -> None:
    """Are there all the details that a document has? Raises `ValueError` or `KeyError`."""
    try:
        document = _document.validate_json(json.dumps(dataclasses.asdict(document_of(entry))), strict=True)
    except ValidationError:
        raise ValueError("the details of a document are not as they must be") from None
    if not _SHA256.fullmatch(document.sha256):
        raise ValueError("the SHA-256 of a document is none")  # files are looked up by it
    if document.name != entry.content:
        raise ValueError("the name of a document is not its content")
    if wrong := [name for name in ("pages", "chunks", "bytes") if not 0 <= getattr(document, name) <= _MOST]:
        raise ValueError(f"{wrong[0]} of a document is below 0, or over what can be kept")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
