"""The child process that finds the symbols of source texts in their syntax trees. A child process is used, because the
parsers are C code that reads untrusted text.

It reads one text after another from standard input, and ends if it gets no text for some time. It has no network, no
files and limited memory, like the readers of documents.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import select
import sys
from functools import lru_cache
from typing import IO, Any

from agentformer.errors import DocumentError
from agentformer.readers.code.languages import DATA, GRAMMARS, MAX_ABOUT, MAX_SYMBOLS, Grammar, Part
from agentformer.readers.formats import MIB, PLAIN, ReadLimits, ReadOptions
from agentformer.readers.sandbox.protocol import DONE, READY, error_frame, parts_frame
from agentformer.readers.sandbox.worker import programs, refuse_events, restrict

_MAX_DEPTH = 200  # largest depth of visited nodes; code that people write has less than 60
_MAX_NODES = 400_000
_MAX_NAME = 120
_LONG_BODY = 2_500  # bytes; only longer functions are searched for inner functions
_FUNCTION_VALUES = frozenset({"arrow_function", "function_expression", "function", "generator_function", "class"})
_VALUES = frozenset(
    {"variable_declarator", "field_definition", "public_field_definition", "pair", "assignment_expression"}
)
_PLAIN_NAMES = ("bare_key", "dotted_key", "quoted_key", "object_reference", "identifier", "string")
_MARKS = re.compile(r"^[ \t]*(?:/\*+!?|\*+/|\*+(?!/)|///?!?|--+|#+!?|;+)[ \t]?|\*+/[ \t]*$", re.MULTILINE)
_QUOTES = re.compile(r"^[rRbBuUfF]{0,2}(?:\"\"\"|'''|\"|')|(?:\"\"\"|'''|\"|')$")
_NO_DOC = re.compile(r"^(?:#!|eslint|pylint|noqa|type:|pragma|-\*-|copyright|licen[cs]e)", re.IGNORECASE)


@lru_cache(maxsize=32)
def _parser(language: str) -> Any:
    from tree_sitter import Language, Parser

    grammar = GRAMMARS[language]
    module = importlib.import_module(grammar.module)
    return Parser(Language(getattr(module, grammar.function)()))


def prepare() -> None:
    """Import every grammar that is installed, before the process loses the right to load libraries."""
    for language in GRAMMARS:
        try:
            _parser(language)
        except (ImportError, AttributeError, ValueError):
            continue


def parts_of_tree(text: bytes, language: str) -> list[Part]:
    """Return the symbols of a source text in UTF-8. A symbol comes before the symbols inside it. Raises `ImportError`
    if the grammar is not installed, and `ValueError` if the parser returns no tree."""
    tree = _parser(language).parse(text)
    if tree is None:
        raise ValueError("no tree")
    walk = _Walk(text, language)
    walk.into(tree.root_node, (), 0)
    return walk.parts


class _Walk:
    def __init__(self, text: bytes, language: str) -> None:
        self._text = text
        self._grammar: Grammar = GRAMMARS[language]
        self._data = language in DATA
        self._left = _MAX_NODES
        self.parts: list[Part] = []

    def into(self, node: Any, path: tuple[str, ...], depth: int) -> None:
        """Add the symbols inside a node to the result. `path` are the names of the symbols around the node, and `depth`
        is the number of nodes around it. Nodes that are too deep are not read."""
        if depth > _MAX_DEPTH:
            return
        before: list[Any] = []  # notes directly before the next symbol
        for child in node.named_children:
            self._left -= 1
            if self._left < 0 or len(self.parts) >= MAX_SYMBOLS:
                return
            if child.type in self._grammar.notes:
                before.append(child)
                continue
            self._child(child, path, depth, before)
            before = []

    def _child(self, child: Any, path: tuple[str, ...], depth: int, before: list[Any]) -> None:
        """Add the symbol of a node, and the symbols inside it unless it is a short function. If the node is no symbol,
        add only the symbols inside it. `before` are the notes before the node."""
        symbol = self._symbol(child)
        name = self._name(symbol) if symbol is not None else ""
        if symbol is None or not name:
            if child.end_byte - child.start_byte > 8:
                self.into(child, path, depth + 1)
            return
        first, doc = self._notes_before(child, before)
        full = (*path, *name.split("::"))
        about = "" if self._data else self._about(symbol, doc)
        written = self._text[child.start_byte : child.end_byte].rstrip()  # without blank lines at the end
        last = int(child.start_point[0]) + written.count(b"\n")
        self.parts.append(Part(".".join(full)[-_MAX_NAME:], first, last, about))
        body = symbol.child_by_field_name("body")
        is_function = "function" in symbol.type or "method" in symbol.type
        if not is_function or symbol.end_byte - symbol.start_byte > _LONG_BODY:
            self.into(body if body is not None else symbol, full, depth + 1)

    def _symbol(self, node: Any) -> Any:
        """Return the node if it is a symbol, or the symbol that the node encloses, such as a function with decorators.
        Return None if there is no symbol."""
        for _ in range(4):
            if node.type in self._grammar.symbols:
                return node if self._defines(node) else None
            if node.type not in self._grammar.wrappers:
                return None
            inner = [
                each for each in node.named_children if each.type in self._grammar.symbols | self._grammar.wrappers
            ]
            if not inner or (len(inner) > 1 and node.type != "decorated_definition"):
                return None
            node = inner[-1]
        return None

    def _defines(self, node: Any) -> bool:
        if self._data:
            return True
        if node.type in _VALUES:
            value = node.child_by_field_name("value") or node.child_by_field_name("right")
            return value is not None and value.type in _FUNCTION_VALUES
        if node.type.endswith("_specifier"):  # in C, a specifier without a body only uses a type
            return node.child_by_field_name("body") is not None
        return True

    def _name(self, node: Any) -> str:
        """Return the name of a symbol, or "" if it has none. A method in Go has the name of its type in front."""
        named = next((child for field in self._grammar.names if (child := node.child_by_field_name(field))), None)
        for _ in range(8):  # in C, the name is inside pointers, arrays and parameters
            inner = named.child_by_field_name("declarator") if named is not None else None
            if inner is None:
                break
            named = inner
        if named is None:
            named = next((each for each in node.named_children if each.type in _PLAIN_NAMES), None)
        if named is None:
            return ""
        name = " ".join(self._read(named).split()).strip("\"'`")
        if receiver := node.child_by_field_name("receiver"):  # the type of a method in Go
            owner = self._read(receiver).strip("()").split()
            name = f"{owner[-1].strip('*').split('[')[0]}.{name}" if owner else name
        return name[:_MAX_NAME]

    def _about(self, node: Any, doc: str) -> str:
        """Return the signature of a symbol, and its docstring or else `doc`, the text of the comments above it."""
        body = node.child_by_field_name("body")
        if body is None:
            body = next((each for each in node.named_children if "body" in each.type or each.type == "block"), None)
        end = body.start_byte if body is not None else min(node.end_byte, node.start_byte + 400)
        head = self._text[node.start_byte : end].decode("utf-8", "replace")
        head = head if body is not None else head.partition("\n")[0]
        signature = " ".join(head.split()).rstrip("{:= ").strip()[:MAX_ABOUT]
        doc = self._docstring(body) or doc
        return f"{signature} › {doc}" if doc else signature

    def _docstring(self, body: Any) -> str:
        """Return the first paragraph of the docstring of a Python body, or "" if there is none."""
        first = body.named_children[0] if body is not None and body.named_children else None
        if first is not None and first.type == "expression_statement" and first.named_children:
            first = first.named_children[0]
        if first is None or first.type != "string":
            return ""
        return _plain(_QUOTES.sub("", self._read(first).strip()))

    def _notes_before(self, node: Any, before: list[Any]) -> tuple[int, str]:
        """Return the number of the first line of a symbol, including the comments directly above it, and the text of
        these comments. `before` are all comments before the symbol."""
        first = node.start_point[0]
        texts: list[str] = []
        for note in reversed(before):
            if first - 1 not in (note.end_point[0], note.end_point[0] - (note.end_point[1] == 0)):
                break
            first = note.start_point[0]
            texts.insert(0, self._read(note))
        doc = _plain(_MARKS.sub("", "\n".join(text for text in texts if not text.startswith(("#[", "@")))))
        return first, "" if _NO_DOC.match(doc) else doc

    def _read(self, node: Any) -> str:
        return self._text[node.start_byte : min(node.end_byte, node.start_byte + 4_000)].decode("utf-8", "replace")


def _plain(doc: str) -> str:
    """Return the first paragraph of a docstring or comment, in one line and with at most `MAX_ABOUT` characters."""
    paragraph = re.split(r"\n[ \t]*\n", doc.strip(), maxsplit=1)[0]
    return " ".join(paragraph.split())[:MAX_ABOUT]


_IDLE_SECONDS = 30.0  # a sync sends the next text within a second
# `wall_seconds` limits the processor time for all texts together.
_LIMITS = ReadLimits(wall_seconds=1_200.0, memory_bytes=1_024 * MIB)


def main() -> None:
    """Run the worker: answer each request from standard input with a frame on standard output."""
    stdin, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the pipe is for frames only: output of C libraries is sent to stderr
    restrict(ReadOptions("", PLAIN, limits=_LIMITS))
    prepare()
    refuse_events(programs()[0], "")
    out.write(READY)
    out.flush()
    while select.select([stdin], [], [], _IDLE_SECONDS)[0] and (line := stdin.readline()):
        _answer(line, stdin, out)


def _answer(line: bytes, stdin: IO[bytes], out: IO[bytes]) -> None:
    request = json.loads(line)
    text = stdin.read(int(request["bytes"]))
    try:
        out.write(parts_frame(parts_of_tree(text, request["language"])))
        out.write(DONE)
    except (ImportError, AttributeError, ValueError, KeyError, RecursionError, MemoryError) as error:
        out.write(error_frame(DocumentError(type(error).__name__)))
    out.flush()


if __name__ == "__main__":
    main()
