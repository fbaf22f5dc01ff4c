"""The Markdown form of an entry: a front matter with its fields, and its content as the body. The front matter is a
YAML mapping between two lines `---`.

A key of the front matter is a field of the entry, or else a key of its metadata, so that `tags` and `aliases` of an
editor are metadata. Metadata whose key is the name of a field, or is not a simple word, is in the mapping `metadata`.

The writer writes one line for each key. A value is a plain text, or JSON, which is valid YAML. The reader accepts any
YAML mapping, because editors such as Obsidian write lists and mappings in their own form. The reader parses the text
into nodes, and never creates Python objects that the text names. Anchors, aliases and tags are refused, so that a short
text cannot become a large value or name a class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from agentformer.errors import InvalidInput
from agentformer.memory.validation import context_line
from agentformer.records import fields
from agentformer.records.entry_json import MAX_TITLE, TIMES, entry_to_json
from agentformer.types import MemoryEntry

MAX_BYTES = 4 * fields.MAX_CONTENT + (4 << 20)  # of a file: the longest content, and a long front matter
_ALWAYS = ("id", "title", "category", "kind", "salience", "created_at", "updated_at", "version", "links")
_FIELDS = (  # in the order of the front matter
    *("id", "title", "category", "kind", "tier", "salience", "occurred_at", "valid_from", "valid_to", "expires_at"),
    *("created_at", "updated_at", "version"),
    *("speaker", "role", "session_id", "agent_id", "user_id", "project", "links", "parent_id", "pair_id"),
    *("source_type", "source_id", "context", "raw"),
)
_DEFAULTS = {"tier": "semantic", "speaker": "", "role": ""}  # of other fields: None
_KNOWN = frozenset({*_FIELDS, "metadata"})
_METADATA_KEY = re.compile(r"[^\W\d]\w*(?:-\w+)*")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
# Fields that a person may change; a missing line clears the field, or keeps it if the field always has a value.
_TIMES = ("occurred_at", "valid_from", "valid_to", "expires_at")
EDITABLE = ("content", "title", "category", "kind", "salience", *_TIMES, "speaker", "project", "metadata")
_KEPT = frozenset({"category", "kind", "salience"})
# A changed line is an error: such a field never changes, or its change needs a command.
_FIXED = (
    *("tier", "created_at", "role", "session_id", "agent_id", "user_id", "links", "parent_id", "pair_id"),
    *("source_type", "source_id", "raw"),
)
_FIELD = "front matter"  # in errors
MAX_HEADER = 1 << 18  # code points
MAX_NODES = 20_000  # YAML keys and values of a front matter; the library reads some ten thousand in a second
_MAX_FLOW = 5_000  # keys and values of one field; a larger field is written as a JSON text, which is one value
_FENCE = "---"
_MAX_DEPTH = 30  # of a value; a deeper value is written as a JSON text
_MAX_KEY = 200  # code points; YAML limits a key of a mapping on one line to 1,024
_PLAIN = re.compile(r"[^\W\d_](?:[\w ,.()/+'-]*[\w.)/+'-])?")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})  # also of YAML 1.1
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")  # JSON allows them, and YAML does not
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NULL, _BOOL = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool"))
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "timestamp")}


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
        """The version of the entry that the file was written from; 0 if the file has no version."""
        return int(self.values.get("version", 0))

    def edits(self, base: MemoryEntry) -> dict[str, Any]:
        """Return the editable fields that differ from the entry `base`, from which the file was written. Raises
        `InvalidInput` if a field differs that cannot be changed in a file."""
        former = values_of(base)
        for name in _FIXED:
            if name in self.values and self.values[name] != former[name]:
                raise InvalidInput(name, "cannot be changed in a file; restore the line, or remove it")
        empty: dict[str, Any] = {"metadata": {}, "title": "", "speaker": ""}  # of other fields: None
        missing = {name: former[name] if name in _KEPT else empty.get(name) for name in EDITABLE}
        wanted = {name: self.values.get(name, value) for name, value in missing.items()}
        return {name: value for name, value in wanted.items() if not is_same(value, former[name])}


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
            values[name] = _Plain(values[name])
    kept = (name for name in _FIELDS if name in values and (name in _ALWAYS or values[name] != _DEFAULTS.get(name)))
    lines = [(name, values[name]) for name in kept]
    shown = {
        key: value
        for key, value in values["metadata"].items()
        if key not in _KNOWN and len(key) <= MAX_TITLE // 5 and _METADATA_KEY.fullmatch(key) and _is_flow(value)
    }
    if _node_count(shown) > _MAX_FLOW:
        shown = {}
    hidden = {key: value for key, value in values["metadata"].items() if key not in shown}
    lines += [*sorted(shown.items()), *([("metadata", hidden)] if hidden else [])]
    header = "".join(f"{key}: {_yaml(value)}\n" for key, value in lines)
    if len(header) > MAX_HEADER:
        raise InvalidInput("metadata", f"of entry {entry.id} is too long for a file; the limit is {MAX_HEADER:,}")
    return f"{_FENCE}\n{header}{_FENCE}\n\n{entry.content}\n".encode()


def parse(data: bytes) -> Page:
    """Parse a file. Raises `InvalidInput` if it is not UTF-8, or if the front matter or a value is wrong."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: byte {error.start + 1} is 0x{data[error.start]:02x}; save the file as UTF-8"
        raise InvalidInput("encoding", reason) from None
    header, content = split_header(text)
    nodes = load_header(header or "")
    values = {name: _READERS[name](name, node) if name in _READERS else as_json(node) for name, node in nodes.items()}
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
    """Return the id in a file, or "". The function also reads files that `parse` refuses, so that their entries do not
    count as deleted."""
    match = re.search(rb'^id:[ \t]*"?([^\s"]{1,200})"?[ \t\r]*$', data[: 1 << 16], re.MULTILINE)
    return match[1].decode("utf-8", "replace") if match else ""


def split_header(text: str) -> tuple[str | None, str]:
    """Return the front matter of a file (None if it has none) and the body. One empty line at the start of the body and
    one line end at its end are removed. A byte order mark is left out. If the first line ends with CRLF, an editor has
    converted the file, and every CRLF becomes LF. Raises `InvalidInput` if the front matter has no end."""
    text = text.removeprefix("\ufeff")
    if text.startswith(f"{_FENCE}\r\n"):
        text = text.replace("\r\n", "\n")
    if not text.startswith(f"{_FENCE}\n"):
        return None, text.removesuffix("\n")
    end = text.find(f"\n{_FENCE}\n", len(_FENCE))
    if end < 0 and not text.endswith(f"\n{_FENCE}"):
        raise InvalidInput(_FIELD, "begins with --- but has no line --- at its end; add it, or remove the first line")
    header = text[len(_FENCE) + 1 : end + 1 if end >= 0 else -len(_FENCE)]
    body = text[end + len(_FENCE) + 2 :] if end >= 0 else ""
    return header, body.removeprefix("\n").removesuffix("\n")


class _Composer(Composer):  # type: ignore[misc]  # the package has no types
    """Composes the nodes of a front matter. Raises `InvalidInput` if there are more than `MAX_NODES`."""

    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node. Raises `InvalidInput` after `MAX_NODES` nodes."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            reason = f"has more than {MAX_NODES:,} keys and values; write a large value as a text that contains JSON"
            raise InvalidInput(_FIELD, reason)
        return super().compose_node(parent, index)


def load_header(header: str) -> dict[str, Node]:
    """Return the nodes of the front matter by their keys. Raises `InvalidInput` for text that is not a mapping with
    unique keys, and for anchors, aliases and tags. The message names the line of a syntax error."""
    if len(header) > MAX_HEADER:
        raise InvalidInput(_FIELD, f"has more than {MAX_HEADER:,} characters; move text into the body")
    try:
        yaml = YAML(typ="safe", pure=True)
        yaml.Composer = _Composer
        root = yaml.compose(header)
        if root is None:
            return {}
        _check(root, _MAX_DEPTH + 2, set())
    except YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        place = "" if line is None else f" in line {line + 2}"  # after the fence, counted from 1
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise InvalidInput(_FIELD, f"is not valid YAML{place}: {str(reason)[:120]}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(_FIELD, "is nested too deep, or has characters that YAML does not allow") from None
    if not isinstance(root, MappingNode):
        raise InvalidInput(_FIELD, "must be lines of the form `key: value`")
    return {key.value: value for key, value in root.value}


def _check(node: Node, depth: int, seen: set[int]) -> None:
    """Raise `InvalidInput` for a node that is nested too deep, has an anchor or a tag, or is the target of an alias."""
    line = node.start_mark.line + 2
    if depth == 0:
        raise InvalidInput(_FIELD, f"is nested more than {_MAX_DEPTH} levels deep in line {line}")
    if node.anchor is not None or id(node) in seen:
        raise InvalidInput(_FIELD, f"has an anchor or an alias in line {line}; write the value itself")
    if str(node.tag) not in {*_PLAIN_TAGS, _NULL, _BOOL}:
        raise InvalidInput(_FIELD, f"has a YAML tag (!...) or merge key (<<) in line {line}; write plain values only")
    seen.add(id(node))
    if isinstance(node, MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, ScalarNode)]
        if len(keys) < len(node.value):
            raise InvalidInput(_FIELD, f"has a key that is not a text, near line {line}")
        if len(set(keys)) < len(keys):
            twice = next(key for number, key in enumerate(keys) if key in keys[:number])
            raise InvalidInput(_FIELD, f"has the key {twice[:80]!r} twice; remove one")
        for pair in node.value:
            for part in pair:
                _check(part, depth - 1, seen)
    elif isinstance(node, SequenceNode):
        for part in node.value:
            _check(part, depth - 1, seen)


def as_text(name: str, node: Node) -> str:
    """Return the text of a scalar as it is written, even if YAML reads it as a number or a date. For an empty value and
    `null`, return "". Raises `InvalidInput` for a list or a mapping."""
    if not isinstance(node, ScalarNode):
        raise InvalidInput(name, "must be a text; quote it if it contains : or # or begins with a bracket")
    return "" if node.tag == _NULL and not node.style else str(node.value)


def as_json(node: Node) -> Any:
    """Return a node as a JSON value. A scalar without quotes may be a number, a boolean, null or a text. Raises
    `InvalidInput` for a number with too many digits."""
    if isinstance(node, MappingNode):
        return {key.value: as_json(value) for key, value in node.value}
    if isinstance(node, SequenceNode):
        return [as_json(part) for part in node.value]
    if not isinstance(node, ScalarNode) or node.style:
        return str(node.value)
    if node.tag == _NULL:
        return None
    if node.tag == _BOOL:
        return node.value.lower() == "true"
    if not _NUMBER.fullmatch(node.value):
        return str(node.value)
    try:
        return json.loads(node.value)
    except ValueError:  # Python refuses whole numbers of more than 4,300 digits
        reason = f"has a number with too many digits in line {node.start_mark.line + 2}; put it in quotes"
        raise InvalidInput(_FIELD, reason) from None


def as_object(name: str, node: Node) -> Any:
    """Return the JSON value of a mapping, a list, or a text that contains JSON. Return None for an empty value."""
    value = as_json(node)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else None
    except (ValueError, RecursionError):
        raise InvalidInput(name, "must be a list or a mapping, or a text that contains JSON") from None


class _Plain(str):
    """A text that is written without quotes, because it never needs them, such as a time."""

    __slots__ = ()


def _yaml(value: Any) -> str:
    if isinstance(value, _Plain):
        return str(value)
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else _json(value)
    if isinstance(value, (dict, list)) and not (_is_flow(value) and _node_count(value) <= _MAX_FLOW):
        return _json(_json(value))
    return _json(value)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _node_count(value: Any) -> int:
    """Return the number of YAML nodes of a JSON value: each key and each value is one."""
    if isinstance(value, Mapping):
        return 1 + sum(1 + _node_count(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return 1 + sum(map(_node_count, value))
    return 1


def _is_flow(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether YAML can read the JSON form of a value: its keys are short, and it is not nested too deep. Any
    other value must be written as a text that contains JSON."""
    if isinstance(value, Mapping):
        return depth > 0 and all(
            len(json.dumps(key)) <= _MAX_KEY and _is_flow(part, depth - 1) for key, part in value.items()
        )
    if isinstance(value, (list, tuple)):
        return depth > 0 and all(_is_flow(part, depth - 1) for part in value)
    return True


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
    if (value := as_object(name, node)) is None:
        return []
    if not isinstance(value, list) or not all(
        isinstance(link, dict) and {*link} == {"id", "type"} and all(isinstance(part, str) for part in link.values())
        for link in value
    ):
        raise InvalidInput(name, 'must be a list such as [{"id": "...", "type": "derived_from"}]')
    return value


def _optional(name: str, node: Node) -> str | None:
    return as_text(name, node) or None


_READERS: dict[str, Callable[[str, Node], Any]] = {
    **dict.fromkeys(("id", "title", "category", "kind", "tier", "speaker", "role", "context"), as_text),
    **dict.fromkeys(
        ("session_id", "agent_id", "user_id", "project", "parent_id", "pair_id", "source_type", "source_id", "raw"),
        _optional,
    ),
    **dict.fromkeys((*_TIMES, "created_at", "updated_at"), _time),
    "salience": _number,
    "version": _version,
    "links": _links,
    "metadata": as_object,
}
