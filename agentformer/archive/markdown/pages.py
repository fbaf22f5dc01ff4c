"""The Markdown form of an entry: a front matter with its fields, and its content as the body.

A key of the front matter is a field of the entry, or else a key of its metadata, so that `tags` and `aliases` of an
editor are metadata. Metadata whose key is the name of a field, or is not a simple word, is in the mapping `metadata`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

from ruamel.yaml.nodes import Node

from agentformer.archive.markdown.front_matter import (
    MAX_HEADER,
    Plain,
    as_json,
    as_object,
    as_text,
    dump,
    is_flow,
    join,
    load,
    split,
)
from agentformer.errors import InvalidInput
from agentformer.memory.core import BLOCK_KIND
from agentformer.memory.validation import context_line
from agentformer.records import fields
from agentformer.records.entry_json import MAX_TITLE, TIMES, entry_to_json
from agentformer.records.integrity.files import safe_file_name
from agentformer.types import MemoryEntry

MAX_BYTES = 4 * fields.MAX_CONTENT + (4 << 20)  # of a file: the longest content, and a long front matter
CORE, FACTS = "core", "facts"  # the folders of core blocks, and of entries without a category
DEFAULT_CATEGORIES = ("decisions", "summaries", "context")
_ALWAYS = ("id", "title", "category", "kind", "salience", "created_at", "updated_at", "version", "links")
_FIELDS = (  # in the order of the front matter
    *("id", "title", "category", "kind", "tier", "salience", "occurred_at", "created_at", "updated_at", "version"),
    *("speaker", "role", "session_id", "agent_id", "user_id", "project", "links", "parent_id", "pair_id"),
    *("source_type", "source_id", "context", "raw"),
)
_DEFAULTS = {"tier": "semantic", "speaker": "", "role": ""}  # of other fields: None
_KNOWN = frozenset({*_FIELDS, "metadata"})
_METADATA_KEY = re.compile(r"[^\W\d]\w*(?:-\w+)*")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
# Fields that a person may change; a missing line clears the field, or keeps it if the field always has a value.
EDITABLE = ("content", "title", "category", "kind", "salience", "occurred_at", "speaker", "project", "metadata")
_KEPT = frozenset({"category", "kind", "salience"})
# A changed line is an error: such a field never changes, or its change needs a command.
_FIXED = (
    *("tier", "created_at", "role", "session_id", "agent_id", "user_id", "links", "parent_id", "pair_id"),
    *("source_type", "source_id", "raw"),
)
_WRONG = re.compile(r'[\x00-\x1f\x7f"*/:<>?\\|%~#^\[\]]')  # characters that a file system or Obsidian refuses in a name
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)  # names of devices in Windows
_LONGEST_FOLDER = 200  # bytes


@dataclass(frozen=True, slots=True)
class Page:
    """A parsed file. `values` contains the fields that the front matter has, as JSON values, and the content."""

    values: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The id of the entry; "" in a new file."""
        return str(self.values.get("id", ""))

    @property
    def version(self) -> int:
        """The version of the entry that the file was written from; 0 if the file does not say it."""
        return int(self.values.get("version", 0))

    def edits(self, base: MemoryEntry) -> dict[str, Any]:
        """Return the editable fields that differ from the entry `base`, from which the file was written. Raises
        `InvalidInput` if a field differs that cannot be changed in a file."""
        former = values_of(base)
        for name in _FIXED:
            if name in self.values and self.values[name] != former[name]:
                raise InvalidInput(name, "cannot be changed in a file; restore the line, or remove it")
        wanted = {name: self._wanted(name, former[name]) for name in EDITABLE}
        return {name: value for name, value in wanted.items() if not is_same(value, former[name])}

    def _wanted(self, name: str, former: Any) -> Any:
        if name in self.values:
            return self.values[name]
        return former if name in _KEPT else {"metadata": {}, "title": "", "speaker": ""}.get(name)


def is_same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal. In Python, 1 equals True, but not in JSON."""
    return bool(one == other) and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def values_of(entry: MemoryEntry) -> dict[str, Any]:
    """Return the fields of an entry that a page can have, as JSON values, and its content and metadata."""
    values = entry_to_json(entry)
    values["links"] = values.pop("derived_from")
    return {name: values[name] for name in (*_FIELDS, "content", "metadata")}


def render(entry: MemoryEntry) -> bytes:
    """Return the bytes of the file of an entry. Equal entries give equal bytes. Raises `InvalidInput` if the fields are
    too long for a front matter."""
    values = values_of(entry)
    if values["context"] == context_line(entry):
        del values["context"]  # it follows from the title and the aliases
    for name in (*TIMES, "id"):
        if values.get(name) and (name != "id" or _UUID.fullmatch(entry.id)):
            values[name] = Plain(values[name])
    kept = (name for name in _FIELDS if name in values and (name in _ALWAYS or values[name] != _DEFAULTS.get(name)))
    lines = [(name, values[name]) for name in kept]
    shown = {key: value for key, value in values["metadata"].items() if _is_shown(key) and is_flow(value)}
    hidden = {key: value for key, value in values["metadata"].items() if key not in shown}
    header = dump([*lines, *sorted(shown.items()), *([("metadata", hidden)] if hidden else [])])
    if len(header) > MAX_HEADER:
        raise InvalidInput("metadata", f"of entry {entry.id} is too long for a file; the limit is {MAX_HEADER:,}")
    return join(header, entry.content).encode()


def parse(data: bytes) -> Page:
    """Parse a file. Raises `InvalidInput` if it is not UTF-8, or if the front matter or a value is wrong."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: byte {error.start + 1} is 0x{data[error.start]:02x}; save the file as UTF-8"
        raise InvalidInput("encoding", reason) from None
    header, content = split(text)
    values = {name: _value(name, node) for name, node in load(header or "").items()}
    inner = values.pop("metadata", None) or {}
    if not isinstance(inner, dict):
        raise InvalidInput("metadata", "must be a mapping")
    outer = {name: values.pop(name) for name in [*values] if name not in _KNOWN}
    if twice := sorted(outer.keys() & inner.keys()):
        raise InvalidInput(twice[0][:80], "is a key of its own and a key of metadata; remove one")
    if "id" in values:
        fields.name("id", values["id"])
    if not content.strip():
        raise InvalidInput("content", "is empty; write a text below the front matter, or delete the file")
    return Page({**values, "content": content, "metadata": {**inner, **outer}})


def id_in(data: bytes) -> str:
    """Return the id in the front matter of a file that `parse` may refuse, so that its entry does not count as deleted.
    Return "" if there is no id."""
    match = re.search(rb'^id:[ \t]*"?([^\s"]{1,200})"?[ \t\r]*$', data[: 1 << 16], re.MULTILINE)
    return match[1].decode("utf-8", "replace") if match else ""


def folder_of(entry: MemoryEntry) -> str:
    """Return the name of the folder of an entry, which follows from its category."""
    return CORE if entry.tier == CORE else category_folder(entry.category)


def category_folder(category: str) -> str:
    """Return the name of the folder of a category. Different categories have different names."""
    if not category:
        return FACTS
    name = normalize("NFC", category)
    plain = name == category and not _WRONG.search(name) and not _RESERVED.fullmatch(name)
    if plain and name.strip(" .") == name and name not in (CORE, FACTS) and len(name.encode()) <= _LONGEST_FOLDER:
        return name
    encoded = safe_file_name(category)
    return f"%{encoded.encode()[0]:02x}{encoded[1:]}" if encoded in (CORE, FACTS) else encoded


def default_kind(category: str, *, core: bool) -> str:
    """Return the kind for the entry of a new file whose front matter has no `kind`."""
    return BLOCK_KIND if core else "decision" if category == "decisions" else "fact"


def file_name(entry_id: str) -> str:
    """Return the name of the new file for an entry that has no file yet."""
    return f"{safe_file_name(entry_id)}.md"


def _is_shown(key: str) -> bool:
    return key not in _KNOWN and len(key) <= MAX_TITLE // 5 and bool(_METADATA_KEY.fullmatch(key))


def _value(name: str, node: Node) -> Any:
    """Return the JSON value of a key of the front matter. Raises `InvalidInput` if the value has a wrong type."""
    return _READERS[name](name, node) if name in _READERS else as_json(node)


def _time(name: str, node: Node) -> str | None:
    text = as_text(name, node)
    if _DAY.fullmatch(text):
        text += "T00:00:00+00:00"
    moment = fields.moment(name, text or None)
    return moment.isoformat() if moment else None


def _number(name: str, node: Node) -> float:
    return fields.salience(as_json(node), name)


def _version(name: str, node: Node) -> int:
    value = as_json(node)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise InvalidInput(name, "must be a whole number; restore the line, or remove it")
    return value


def _links(name: str, node: Node) -> list[dict[str, str]]:
    value = as_object(name, node) if as_json(node) not in (None, "") else []
    if not isinstance(value, list) or not all(
        isinstance(link, dict) and {*link} == {"id", "type"} and all(isinstance(part, str) for part in link.values())
        for link in value
    ):
        raise InvalidInput(name, 'must be a list such as [{"id": "...", "type": "derived_from"}]')
    return value


def _optional(name: str, node: Node) -> str | None:
    return as_text(name, node) or None


def _object(name: str, node: Node) -> Any:
    return as_object(name, node) if as_json(node) not in (None, "") else {}


_READERS: dict[str, Callable[[str, Node], Any]] = {
    **dict.fromkeys(("id", "title", "category", "kind", "tier", "speaker", "role", "context"), as_text),
    **dict.fromkeys(
        ("session_id", "agent_id", "user_id", "project", "parent_id", "pair_id", "source_type", "source_id", "raw"),
        _optional,
    ),
    **dict.fromkeys(("occurred_at", "created_at", "updated_at"), _time),
    "salience": _number,
    "version": _version,
    "links": _links,
    "metadata": _object,
}
