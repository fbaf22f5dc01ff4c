"""Finds the symbols of source code: by its syntax tree, in a child process, or else by its blank lines.

A child process serves many texts, because starting it takes longer than parsing a usual file. It has read untrusted
text, so its answers are untrusted: they are line numbers and names, which are checked. The text itself does not pass
through it. If the child process crashes or is too slow, the text gets the symbols that its lines give.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

from agentformer.readers.code.languages import GRAMMARS
from agentformer.readers.code.tree import MAX_ABOUT, MAX_SYMBOLS, Part
from agentformer.readers.sandbox import protocol
from agentformer.readers.sandbox.process import LastingWorker
from agentformer.types import DocumentText, Page, Symbol

_WORKER = "code.worker"  # in `agentformer.readers`
_TEXT_SECONDS = 5.0  # of one text; a megabyte takes half a second
_MAX_BYTES = 2_000_000  # of a text that is parsed; longer ones are generated
_OUTPUT = 8 << 20  # bytes of one answer
_DEFINED = re.compile(
    r"^(?:(?:async|export|default|public|private|protected|internal|static|final|abstract|sealed|pub|inline|virtual|"
    r"override|local|open|data|case|partial|unsafe|extern)\b[ \t]*(?:\([\w ]*\)[ \t]*)?)*"
    r"(?:def[pmn]?|defmodule|defmacro|class|function|func|fn|fun|sub|struct|interface|enum|trait|impl|module|namespace|"
    r"object|protocol|extension|message|service|type|record|package|resource|proc|procedure|macro|FROM|target)"
    r"[ \t]+[\"'*(]?([^\W\d][\w.:!?$-]*)"
    r"|^\[{1,2}([^\]\n]+)\]"  # a section of a configuration
    r"|^([\w.-]+)[ \t]*:(?!=|:|//)"  # a target of a makefile, or a key
)
_OUTER = re.compile(r"\b(?:class|interface|trait|impl|module|namespace|object|protocol|extension|struct|service)\b|^\[")
_NOTES = ("#", "//", "/*", "*", "@", "--", ";", "%")  # at the beginning of comments and decorators
_MOST_LINES = 40  # of a block whose parts are not looked for


def with_symbols(document: DocumentText) -> DocumentText:
    """Return the document with the symbols of its pages of source code."""
    if not any(page.code for page in document.pages):
        return document
    return replace(document, pages=tuple(_outlined(page) if page.code else page for page in document.pages))


def _outlined(page: Page) -> Page:
    parts = _worker.parts(page.text, page.code) if has_grammar(page.code) else None
    if parts is None:
        parts = parts_of_lines(page.text)
    return replace(page, symbols=tuple(_nested(_symbols(page.text, parts))))


@cache
def has_grammar(language: str) -> bool:
    """Return whether texts of this language are parsed: the extra `code` is installed, and the system has pipes that a
    program can wait for."""
    modules = ("tree_sitter", GRAMMARS[language].module) if language in GRAMMARS else ()
    return bool(modules) and sys.platform != "win32" and all(find_spec(module) for module in modules)


def _symbols(text: str, parts: Iterable[Part]) -> Iterator[Symbol]:
    """Yield the symbols for parts in lines. Parts outside of the text are left out."""
    starts = [0]
    while end := text.find("\n", starts[-1]) + 1:
        starts.append(end)
    starts.append(len(text))
    for name, first, last, about in parts:
        if 0 <= first <= last < len(starts) - 1 and name:
            yield Symbol(name, starts[first], starts[last + 1], about)


def _nested(symbols: Iterable[Symbol]) -> Iterator[Symbol]:
    """Yield the symbols in the order of the text. One that overlaps an earlier one without being inside it is left
    out, and of several with the same lines the first stays."""
    around: list[Symbol] = []
    for symbol in sorted(symbols, key=lambda each: (each.start, -each.end)):
        while around and around[-1].end <= symbol.start:
            around.pop()
        outer = around[-1] if around else None
        if outer and (symbol.end > outer.end or (symbol.start, symbol.end) == (outer.start, outer.end)):
            continue
        around.append(symbol)
        yield symbol


class _Worker:
    """The child process of this process, which is started when it is needed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: LastingWorker | None = None
        self._owner = 0

    def parts(self, text: str, language: str) -> list[Part] | None:
        """Return the symbols of a text, or None if the text cannot be parsed."""
        data = text.encode("utf-8", "replace")
        if len(data) > _MAX_BYTES:
            return None
        with self._lock:
            fresh = self._started()
            answer = self._ask(data, language)
            if answer is None and not fresh:  # an idle child has ended
                self._started()
                answer = self._ask(data, language)
        return answer

    def _started(self) -> bool:
        """Start the child process if there is none. Return whether it was started."""
        if self._process is not None and self._owner == os.getpid() and self._process.runs:
            return False
        self.end()
        self._process, self._owner = LastingWorker(_WORKER), os.getpid()
        return True

    def _ask(self, data: bytes, language: str) -> list[Part] | None:
        assert self._process is not None
        request = protocol.to_line({"language": language, "bytes": len(data)}) + data
        frames = protocol.Frames(_OUTPUT)
        with suppress(OSError, protocol.Overrun, protocol.NoFrame):
            self._process.exchange(request, frames, seconds=_TEXT_SECONDS)
        if not frames.done:
            self.end()
            return None
        return [Part(*values) for values in protocol.parts_from_bytes(frames.draft)] if frames.draft else None

    def end(self) -> None:
        """End the child process, if this process has started it."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            with suppress(OSError):
                process.end()


_worker = _Worker()
atexit.register(_worker.end)


def parts_of_lines(text: str) -> list[Part]:
    """Return the named blocks of a text, an outer one before its parts. A block begins at a line with the least
    indentation, after a blank line or with a definition, and ends before the next block."""
    lines = text.split("\n")
    return list(_parts(lines, 0, len(lines), "", 0))[:MAX_SYMBOLS]


def _parts(lines: Sequence[str], start: int, end: int, outer: str, level: int) -> Iterator[Part]:
    heads = list(_heads(lines, start, end))
    for first, stop in zip(heads, [*heads[1:], end], strict=True):
        last = _last_line(lines, first, stop)
        defined, name = _definition(lines, first, last)
        if not name:
            continue
        full = f"{outer}.{name}" if outer else name
        yield Part(full, first, last, " ".join(lines[defined].split()).rstrip("{:= ")[:MAX_ABOUT])
        if level < 3 and last - first > _MOST_LINES and _OUTER.search(lines[defined]):
            yield from _parts(lines, defined + 1, last + 1, full, level + 1)


def _heads(lines: Sequence[str], start: int, end: int) -> Iterator[int]:
    """Yield the numbers of the lines at which a block begins."""
    indents = [_indent(line) for line in lines[start:end] if line.strip()]
    least = min(indents, default=0)
    blank = True
    for number in range(start, end):
        line = lines[number]
        if not line.strip():
            blank = True
            continue
        if _indent(line) == least and line.strip()[0] not in ")}]":
            noted = number > start and lines[number - 1].lstrip().startswith(_NOTES)
            if blank or (not noted and _DEFINED.match(line.strip())):
                yield number
        blank = False


def _definition(lines: Sequence[str], first: int, last: int) -> tuple[int, str]:
    """Return the line that names a block, and the name. The line may follow comments and decorators."""
    for number in range(first, min(last + 1, first + 30)):
        if found := _DEFINED.match(lines[number].strip()):
            return number, next(name for name in found.groups() if name).strip().rstrip(":.-")
        if _indent(lines[number]) > _indent(lines[first]) and lines[number].strip():
            break
    return first, ""


def _last_line(lines: Sequence[str], first: int, stop: int) -> int:
    while stop - 1 > first and not lines[stop - 1].strip():
        stop -= 1
    return stop - 1


def _indent(line: str) -> int:
    expanded = line.expandtabs(4)
    return len(expanded) - len(expanded.lstrip())
