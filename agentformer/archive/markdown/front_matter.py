"""Reads and writes the front matter of a Markdown file: a YAML mapping between two lines `---`.

The writer writes one line for each key. A value is a plain text, or JSON, which is valid YAML. The reader accepts any
YAML mapping, because editors such as Obsidian write lists and mappings in their own form. The reader parses the text
into nodes, and never creates Python objects that the text names. Anchors, aliases and tags are refused, so that a short
text cannot become a large value or name a class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from agentformer.errors import InvalidInput

FIELD = "front matter"
MAX_HEADER = 1 << 18  # code points
FENCE = "---"
_MAX_DEPTH = 30  # of a value; a deeper value is written as a JSON text
_MAX_KEY = 200  # code points; YAML limits a key of a mapping on one line to 1,024
_PLAIN = re.compile(r"[^\W\d_](?:[\w ,.()/+'-]*[\w.)/+'-])?")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})  # also of YAML 1.1
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")  # JSON allows them, and YAML does not
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NULL, _BOOL = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool"))
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "timestamp")}


def split(text: str) -> tuple[str | None, str]:
    """Return two values: the front matter of a file, or None if the file has none; and the body. One empty line at the
    start of the body and one line end at its end are removed. A byte order mark is left out. If the first line ends
    with CRLF, an editor has converted the file, and every CRLF becomes LF. Raises `InvalidInput` if the front matter
    has no end."""
    text = text.removeprefix("\ufeff")
    if text.startswith(f"{FENCE}\r\n"):
        text = text.replace("\r\n", "\n")
    if not text.startswith(f"{FENCE}\n"):
        return None, text.removesuffix("\n")
    end = text.find(f"\n{FENCE}\n", len(FENCE))
    if end < 0 and not text.endswith(f"\n{FENCE}"):
        raise InvalidInput(FIELD, "begins with --- but has no line --- at its end; add it, or remove the first line")
    header = text[len(FENCE) + 1 : end + 1 if end >= 0 else -len(FENCE)]
    body = text[end + len(FENCE) + 2 :] if end >= 0 else ""
    return header, body.removeprefix("\n").removesuffix("\n")


def join(header: str, body: str) -> str:
    """Return the text of a file with this front matter and this body; `split` divides it into the same two parts."""
    return f"{FENCE}\n{header}{FENCE}\n\n{body}\n"


def load(header: str) -> dict[str, Node]:
    """Return the nodes of the front matter by their keys. Raises `InvalidInput` for text that is not a mapping with
    unique keys, and for anchors, aliases and tags. The message names the line of a syntax error."""
    if len(header) > MAX_HEADER:
        raise InvalidInput(FIELD, f"has more than {MAX_HEADER:,} characters; move text into the body")
    try:
        root = YAML(typ="safe", pure=True).compose(header)
        if root is None:
            return {}
        _check(root, _MAX_DEPTH + 2, set())
    except YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        place = "" if line is None else f" in line {line + 2}"  # after the fence, counted from 1
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise InvalidInput(FIELD, f"is not valid YAML{place}: {str(reason)[:120]}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(FIELD, "is nested too deep, or has characters that YAML does not allow") from None
    if not isinstance(root, MappingNode):
        raise InvalidInput(FIELD, "must be lines of the form `key: value`")
    return {key.value: value for key, value in root.value}


def _check(node: Node, depth: int, seen: set[int]) -> None:
    """Raise `InvalidInput` for a node that is nested too deep, has an anchor or a tag, or is the target of an alias."""
    line = node.start_mark.line + 2
    if depth == 0:
        raise InvalidInput(FIELD, f"is nested more than {_MAX_DEPTH} levels deep in line {line}")
    if node.anchor is not None or id(node) in seen:
        raise InvalidInput(FIELD, f"has an anchor or an alias in line {line}; write the value itself")
    if str(node.tag) not in {*_PLAIN_TAGS, _NULL, _BOOL}:
        raise InvalidInput(FIELD, f"has a tag or a merge key in line {line}; write plain values only")
    seen.add(id(node))
    if isinstance(node, MappingNode):
        keys = [key.value for key, _ in node.value if isinstance(key, ScalarNode)]
        if len(keys) < len(node.value):
            raise InvalidInput(FIELD, f"has a key that is not a text, near line {line}")
        if len(set(keys)) < len(keys):
            twice = next(key for number, key in enumerate(keys) if key in keys[:number])
            raise InvalidInput(FIELD, f"has the key {twice[:80]!r} twice; remove one")
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
    """Return a node as a JSON value. A scalar without quotes becomes a number, a boolean or null if it has the form of
    one, and otherwise a text."""
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
    return json.loads(node.value) if _NUMBER.fullmatch(node.value) else str(node.value)


def as_object(name: str, node: Node) -> Any:
    """Return the mapping or list in `node` as a JSON value, or None for an empty value. The node may also be a text
    that contains JSON."""
    value = as_json(node)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise InvalidInput(name, "must be a list or a mapping, or a text that contains JSON") from None


def dump(values: Iterable[tuple[str, Any]]) -> str:
    """Return the lines of a front matter. A value is a JSON value. A `Plain` text is written without quotes."""
    return "".join(f"{key}: {_value(value)}\n" for key, value in values)


class Plain(str):
    """A text that `dump` writes without quotes, because it never needs them, such as a time."""

    __slots__ = ()


def _value(value: Any) -> str:
    if isinstance(value, Plain):
        return str(value)
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else _json(value)
    if isinstance(value, (dict, list)) and not is_flow(value):
        return _json(_json(value))
    return _json(value)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def is_flow(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether YAML can read the JSON form of a value: its keys are short, and it is not nested too deep. Any
    other value must be written as a text that contains JSON."""
    if isinstance(value, Mapping):
        return depth > 0 and all(
            len(json.dumps(key)) <= _MAX_KEY and is_flow(part, depth - 1) for key, part in value.items()
        )
    if isinstance(value, (list, tuple)):
        return depth > 0 and all(is_flow(part, depth - 1) for part in value)
    return True
