"""Chunks of a document. Each chunk has its exact position in its page, and a context line with the words of the file
name, the title and the headings. The context line of source code has its path, its symbols and their signatures.

In source code, a function is one chunk if it has at most the allowed number of tokens. Small neighbouring functions of
one class or file share a chunk. A class is one chunk if it is small; otherwise, its head and its methods are chunks.
Longer parts are split at blank lines and between inner functions. Every character that is not white space is in exactly
one chunk.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from agentformer.text.places import SEPARATOR, lines_label
from agentformer.text.splitting import sentence_spans, split
from agentformer.types import DocumentText, Heading, Page, Span, Symbol

CountTokens = Callable[[str], list[Span]]

CARRIED = " … "  # separates the headings from the beginning of a sentence that starts on the previous page
_MAX_TITLE = 100  # code points of a first line that may be a title
_MAX_HEADERS = 160  # code points of the headers of a table that a chunk continues
_MAX_CARRIED = 200  # code points of an unfinished sentence that the context line of the next chunk repeats
_BEGINNING = 20  # code points by which the first words of a page are recognised as a heading
_ENDS = frozenset('.!?…:;。！？"”»)]')
_MAX_NAME = 80  # code points of the words of a file name
# "_", "+" and "." are spaces in a name. A hyphen is a space too, but not between two digits: "2023-08-30".
_NAME_SEPARATOR = re.compile(r"[\s_+.]+|(?<!\d)-+|-+(?!\d)")
_NAME_WORDS = re.compile(r"[^\W\d_]{3}|[^\W\d_\x00-\x7f]")  # a name without a match has no words: "p1", "10K"
_NAME_CODE = re.compile(  # a UUID, a digest, or the part of a digest that an upload adds to a name
    r"(?<![0-9a-z])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}|(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{8})(?![0-9a-z])",
    re.IGNORECASE,
)
_WHOLE = 150  # a class with at most this many tokens is one chunk
_SHARED = 90  # maximum tokens of a chunk of several symbols; a longer one is too mixed for one vector
_SHARED_DATA = 200  # maximum tokens of a chunk of several keys or sections of a configuration file
_DATA = frozenset({"css", "ini", "json", "toml", "yaml"})
_MOST_NAMES = 6  # maximum number of symbol names in the context line of a chunk


class PageChunk(NamedTuple):
    """A chunk of a page. `span` is the position of the chunk in the text of the page. `context` is a line with the
    words of the file name, the title and the headings, which is indexed together with the chunk. `symbol` names the
    functions and classes of source code."""

    page: Page
    span: Span
    context: str
    symbol: str = ""

    @property
    def text(self) -> str:
        """The text of the chunk."""
        return self.page.text[self.span.start : self.span.end]

    @property
    def lines(self) -> tuple[int, int] | None:
        """The numbers of the first and the last line of the chunk in its file, or None if they are unknown."""
        if not self.page.line:
            return None
        first = self.page.line + self.page.text.count("\n", 0, self.span.start)
        return first, first + self.text.rstrip().count("\n")

    @property
    def label(self) -> str:
        """The position of the chunk in its document, as citations show it."""
        lines = self.lines if self.page.code else None
        return lines_label(*lines, self.page.label) if lines else self.page.label


def cut(document: DocumentText, name: str, count: CountTokens, limit: int, overlap: int) -> Iterator[PageChunk]:
    """Yield the chunks of all pages with usable text, in the order of the document. A chunk belongs to one page and
    contains no running header or footer. `count` returns the spans of the tokens of a text, `limit` is the maximum
    number of tokens of a chunk, and `overlap` is the maximum number of tokens that two neighboring chunks share."""
    readable = [page for page in document.pages if page.status == "text"]
    names = _names(document.title[: 3 * _MAX_TITLE] or _first_line(readable), name)
    path: list[Heading] = []
    for n, page in enumerate(readable):
        if page.code:
            parts_of_code = code_parts_of(page, count, limit)
            yield from (PageChunk(page, part.span, part.context(name), part.names) for part in parts_of_code)
            continue
        before = _carried(readable[n - 1], page) if n else ""
        for span in _spans(page, count, limit, overlap):
            path = _heading_path(path, page, span)
            parts = [*names, *(heading.text for heading in path), *_cut_headers(page, span)]
            context = SEPARATOR.join(dict.fromkeys(parts))
            yield PageChunk(page, span, f"{context}{CARRIED}{before}" if before else context)
            before = ""
        path = _heading_path(path, page, Span(len(page.text), len(page.text)))


def _names(title: str, name: str) -> list[str]:
    """Return the first parts of every context line: the words of the file name, and the title. The words of the file
    name are left out if the title contains them."""
    words = words_of_name(name) or ("" if title else PurePath(name).stem)
    known = set(title.casefold().split())
    return [part for part in ("" if known.issuperset(words.casefold().split()) else words, title) if part]


def words_of_name(name: str) -> str:
    """Return the words of the name of a file, without folder and extension, separated by spaces: "AMAZON 2017 10K" for
    "AMAZON_2017_10K.pdf". Digests and UUIDs are left out. Return "" for a name without words, such as "p1"."""
    stem = PurePath(name).stem[: 4 * _MAX_NAME]
    words = [word for word in _NAME_SEPARATOR.split(_NAME_CODE.sub(" ", stem)) if word]
    text = " ".join(words)[:_MAX_NAME].rstrip()
    return text if _NAME_WORDS.search(text) else ""


def _cut_headers(page: Page, span: Span) -> list[str]:
    """Return the headers for the context line of a chunk that begins inside a table. The result is a list with one
    string: the headers of the table, and the unit of its amounts, such as "in millions". Return an empty list if the
    span does not begin inside a table."""
    table = next((table for table in page.tables if table.start < span.start < table.end), None)
    if table is None:
        return []
    headers = " | ".join(header for header in table.headers if header)[:_MAX_HEADERS]
    return [f"{headers} ({table.scale})" if table.scale else headers]


def _first_line(pages: Sequence[Page]) -> str:
    """Return the first line of the document if the line looks like a title, else ""."""
    line = next((line.strip() for page in pages[:1] for line in page.text.splitlines() if line.strip()), "")
    is_title = 3 <= len(line) <= _MAX_TITLE and line[0].isalnum() and line[-1] not in ".,;:|" and "  " not in line
    is_title = is_title and " | " not in line  # the headers of a table
    return line if is_title else ""


def _spans(page: Page, count: CountTokens, limit: int, overlap: int) -> list[Span]:
    body, text = _body(page)
    breaks = [heading.start - body.start for heading in page.headings if body.start < heading.start < body.end]
    rows = [start - body.start for start in _row_starts(page) if body.start < start < body.end]
    spans = split(text, count(text), limit, overlap, breaks, rows)
    return [Span(body.start + start, body.start + end) for start, end in spans]


def _row_starts(page: Page) -> Iterator[int]:
    """Yield the offsets of table rows on a page, so that a chunk ends between two rows. Lines without "|" between the
    cells, as in a PDF, are skipped, because a row may have several such lines."""
    for table in page.tables:
        start = table.start
        for line in page.text[table.start : table.end].split("\n"):
            if "|" in line:
                yield start
            start += len(line) + 1


def _heading_path(path: Sequence[Heading], page: Page, span: Span) -> list[Heading]:
    """Return the headings above the beginning of `span`, outermost first. `path` contains the headings above an earlier
    position."""
    out = list(path)
    for heading in page.headings:
        if heading.start <= span.start and heading not in out:
            out = [above for above in out if above.level < heading.level] + [heading]
    return out


def _carried(previous: Page, page: Page) -> str:
    """Return the text at the end of the page `previous` that continues on `page`: an unfinished sentence or a heading.
    Return "" if `page` does not follow it or begins with a heading of its own, or if the sentence has ended."""
    (_, body), (_, former) = _body(page), _body(previous)
    start = body.lstrip()[:_BEGINNING]
    begins_with_heading = any(page.text[heading.start :].startswith(start) for heading in page.headings)
    end = former.rstrip()[-4 * _MAX_CARRIED :]  # more than is carried, so that the sentence's start is seen
    if begins_with_heading or previous.number != page.number - 1 or not end or end[-1] in _ENDS:
        return ""
    last = sentence_spans(end)[-1]
    return " ".join(end[last.start : last.end][-_MAX_CARRIED:].split())


def _body(page: Page) -> tuple[Span, str]:
    """Return the span and the text of the body of a page: the page without running header and footer."""
    body = page.body or Span(0, len(page.text))
    return body, page.text[body.start : body.end]


class CodePart(NamedTuple):
    """A part of a page of source code. `symbols` are the symbols that begin in the part or, if none begins there, the
    symbol that contains the part. `outer` is the symbol that contains `symbols`, or None."""

    span: Span
    symbols: tuple[Symbol, ...]
    outer: Symbol | None

    @property
    def names(self) -> str:
        """The names of the symbols, separated by commas."""
        return ", ".join(symbol.name for symbol in self.symbols[:_MOST_NAMES])

    def context(self, path: str) -> str:
        """Return the context line: the path of the file, the names, and the signature and the documentation of the
        symbol. If the part has several symbols, the line has only the path and the names."""
        about = [symbol.about for symbol in self.symbols if symbol.about] if len(self.symbols) == 1 else []
        return SEPARATOR.join(part for part in (path, self.names, *about) if part)


def code_parts_of(page: Page, count: CountTokens, limit: int) -> Iterator[CodePart]:
    """Yield the parts of a page of source code in order. A part has at most `limit` tokens, and no white space at its
    end. `count` returns the spans of the tokens of a text."""
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
        enclosing: list[tuple[int, Symbol]] = []  # the symbols that contain the current one, the outermost first
        for position, symbol in enumerate(page.symbols):
            while enclosing and enclosing[-1][1].end <= symbol.start:
                enclosing.pop()
            self._children.setdefault(enclosing[-1][0] if enclosing else -1, []).append(symbol)
            enclosing.append((position, symbol))
        self._position = {(symbol.start, symbol.end): n for n, symbol in enumerate(page.symbols)}

    def children(self, symbol: Symbol | None) -> list[Symbol]:
        """Return the symbols that are directly inside `symbol`. If `symbol` is None, return the outermost symbols."""
        return self._children.get(self._position[symbol.start, symbol.end] if symbol else -1, [])

    def parts(self, start: int, end: int, inner: Sequence[Symbol], outer: Symbol | None) -> Iterator[CodePart]:
        """Yield the parts of the text from `start` to `end`. `outer` is the symbol that contains this text, or None.
        `inner` are the symbols directly inside the text."""
        for symbol in inner:
            yield from self._gap(start, symbol.start, outer)
            start = symbol.end
            below = self.children(symbol)
            size = self._size(symbol.start, symbol.end)
            inside = sum(each.end - each.start for each in below)
            is_outer = inside * 2 > symbol.end - symbol.start  # most text is in inner symbols, as in a class
            if size <= self._limit and (not below or size <= _WHOLE or not is_outer):
                yield CodePart(self._bare(symbol.start, symbol.end), (symbol,), outer)
            elif below:
                yield from self.parts(symbol.start, symbol.end, below, symbol)
            else:
                yield from self._split(symbol.start, symbol.end, symbol)
        yield from self._gap(start, end, outer)

    def shared(self, parts: Iterator[CodePart]) -> Iterator[CodePart]:
        """Yield the parts. Neighbouring parts of the same outer symbol are joined if they are small in total. The head
        of a class (the part before its methods) may be joined with the first methods. The joined part then has only the
        symbols of the methods, because their names contain the name of the class."""
        held: CodePart | None = None
        for part in parts:
            if held and held.outer is part.outer and self._size(held.span.start, part.span.end) <= self._shared:
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

    def _gap(self, start: int, end: int, outer: Symbol | None) -> Iterator[CodePart]:
        if not self._text[start:end].strip():
            return
        if self._size(start, end) <= self._limit:
            yield CodePart(self._bare(start, end), (outer,) if outer else (), outer)
        else:
            yield from self._split(start, end, outer)

    def _split(self, start: int, end: int, symbol: Symbol | None) -> Iterator[CodePart]:
        """Yield the parts of a text that has too many tokens. No part begins inside a token."""
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
