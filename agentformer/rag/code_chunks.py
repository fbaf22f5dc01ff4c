"""Chunks of source code: functions, classes and sections, with their exact lines.

A function is one chunk if it has at most the allowed number of tokens. Small neighbours of one class or file share a
chunk. A class is one chunk if it is small; otherwise, its head and its methods are chunks. What is too long is split at
blank lines and between its inner functions. Every character that is not white space is in exactly one chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from agentformer.text.chunking import split
from agentformer.text.places import SEPARATOR
from agentformer.types import Page, Span, Symbol

_WHOLE = 150  # tokens of a class whose methods are not chunks of their own
_SHARED = 90  # tokens of neighbours that share a chunk; more tokens say too different things for one vector
_SHARED_DATA = 200  # of keys and sections of a configuration
_DATA = frozenset({"css", "ini", "json", "toml", "yaml"})
_MOST_NAMES = 6  # of the symbols of one chunk, in its context line


class CodePart(NamedTuple):
    """A part of a page of source code. `symbols` are the symbols that begin in the part, or the one that contains it.
    `outer` is the symbol around these, or None."""

    span: Span
    symbols: tuple[Symbol, ...]
    outer: Symbol | None

    @property
    def names(self) -> str:
        """The names of the symbols, separated by commas."""
        return ", ".join(symbol.name for symbol in self.symbols[:_MOST_NAMES])

    def context(self, path: str) -> str:
        """Return the context line: the path of the file, the names, and the signature and the documentation of the
        symbol. For several symbols, there are only names."""
        about = [symbol.about for symbol in self.symbols if symbol.about] if len(self.symbols) == 1 else []
        return SEPARATOR.join(part for part in (path, self.names, *about) if part)


def code_parts_of(page: Page, count: Callable[[str], list[Span]], limit: int) -> Iterator[CodePart]:
    """Yield the parts of a page of source code in order. A part has at most `limit` tokens, and no white space at its
    end. `count` returns the tokens of a text."""
    cutter = _Cutter(page, count(page.text), limit)
    yield from cutter.shared(cutter.parts(0, len(page.text), cutter.children(None), None))


class _Cutter:
    def __init__(self, page: Page, tokens: Sequence[Span], limit: int) -> None:
        self._text = page.text
        self._tokens = tokens
        self._starts = [token.start for token in tokens]
        self._limit = limit
        self._shared = min(limit, _SHARED_DATA if page.code in _DATA else _SHARED)
        self._children: dict[int, list[Symbol]] = {}  # key: the position of the outer symbol, -1 for the page
        around: list[tuple[int, Symbol]] = []
        for position, symbol in enumerate(page.symbols):
            while around and around[-1][1].end <= symbol.start:
                around.pop()
            self._children.setdefault(around[-1][0] if around else -1, []).append(symbol)
            around.append((position, symbol))
        self._position = {(symbol.start, symbol.end): n for n, symbol in enumerate(page.symbols)}

    def children(self, symbol: Symbol | None) -> list[Symbol]:
        """Return the symbols that are directly inside a symbol, or inside no symbol."""
        return self._children.get(self._position[symbol.start, symbol.end] if symbol else -1, [])

    def parts(self, start: int, end: int, inner: Sequence[Symbol], outer: Symbol | None) -> Iterator[CodePart]:
        """Yield the parts of the text from `start` to `end`, which contains the symbols `inner` and belongs to the
        symbol `outer`."""
        for symbol in inner:
            yield from self._gap(start, symbol.start, outer)
            start = symbol.end
            below = self.children(symbol)
            size = self._size(symbol.start, symbol.end)
            if size <= self._limit and (not below or size <= _WHOLE or not _is_outer(symbol, below)):
                yield CodePart(self._bare(symbol.start, symbol.end), (symbol,), outer)
            elif below:
                yield from self.parts(symbol.start, symbol.end, below, symbol)
            else:
                yield from self._split(symbol.start, symbol.end, symbol)
        yield from self._gap(start, end, outer)

    def shared(self, parts: Iterator[CodePart]) -> Iterator[CodePart]:
        """Join neighbouring parts of the same outer symbol that are small together. The head of a class, whose symbol
        is the class, may be joined with its first methods."""
        held: CodePart | None = None
        for part in parts:
            if held and self._may_share(held, part):
                symbols = tuple(dict.fromkeys((*held.symbols, *part.symbols)))
                if len(symbols) > 1 and part.outer in symbols:
                    symbols = tuple(symbol for symbol in symbols if symbol is not part.outer)
                held = CodePart(Span(held.span.start, part.span.end), symbols, part.outer)
                continue
            if held:
                yield held
            held = part
        if held:
            yield held

    def _may_share(self, held: CodePart, part: CodePart) -> bool:
        return held.outer is part.outer and self._size(held.span.start, part.span.end) <= self._shared

    def _gap(self, start: int, end: int, outer: Symbol | None) -> Iterator[CodePart]:
        if not self._text[start:end].strip():
            return
        if self._size(start, end) <= self._limit:
            yield CodePart(self._bare(start, end), (outer,) if outer else (), outer)
        else:
            yield from self._split(start, end, outer)

    def _split(self, start: int, end: int, symbol: Symbol | None) -> Iterator[CodePart]:
        """Yield the parts of a text that is too long. Its parts begin at tokens."""
        text = self._text[start:end]
        first, last = self._range(start, end)
        tokens = [Span(token.start - start, token.end - start) for token in self._tokens[first:last]]
        starts = [piece.start for piece in split(text, tokens, self._limit)]
        # Characters that no token contains stay with the text before them.
        starts[0] = len(text) - len(text.lstrip())
        for at, stop in zip(starts, [*starts[1:], len(text)], strict=True):
            length = len(text[at:stop].rstrip())
            yield CodePart(Span(start + at, start + at + length), (symbol,) if symbol else (), symbol)

    def _bare(self, start: int, end: int) -> Span:
        """Return the span without empty lines at its start and white space at its end."""
        text = self._text[start:end]
        blank = len(text) - len(text.lstrip())
        at = text.rfind("\n", 0, blank) + 1
        return Span(start + at, start + len(text.rstrip()))

    def _range(self, start: int, end: int) -> tuple[int, int]:
        return bisect_left(self._starts, start), bisect_left(self._starts, end)

    def _size(self, start: int, end: int) -> int:
        first, last = self._range(start, end)
        return last - first


def _is_outer(symbol: Symbol, below: Sequence[Symbol]) -> bool:
    """Return whether the inner symbols are most of a symbol, as the methods of a class are."""
    return sum(inner.end - inner.start for inner in below) * 2 > symbol.end - symbol.start
