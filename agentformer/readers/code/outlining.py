"""Finds the symbols of source code: by its syntax tree, in a child process, or else by its blank lines.

A child process serves many texts, because starting it takes longer than parsing a usual file. It has read untrusted
text, so its answers are untrusted: they are line numbers and names, which are checked. The text itself does not pass
through it. If the child process crashes or is too slow, the text gets the symbols that its lines give.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

from agentformer.readers.code.blocks import parts_of_lines
from agentformer.readers.code.languages import GRAMMARS
from agentformer.readers.code.tree import Part
from agentformer.readers.sandbox import protocol
from agentformer.readers.sandbox.process import LastingWorker
from agentformer.types import DocumentText, Page, Symbol

_WORKER = "code.worker"  # in `agentformer.readers`
_TEXT_SECONDS = 5.0  # of one text; a megabyte takes half a second
_MAX_BYTES = 2_000_000  # of a text that is parsed; longer ones are generated
_OUTPUT = 8 << 20  # bytes of one answer


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
