"""Read Markdown. Each section is a page, whose label has the headings that lead to it, such as "Guide > Install"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agentformer.readers.encodings import decode
from agentformer.readers.formats import ReadOptions
from agentformer.readers.sections import PATH_SEPARATOR, document_of, page_of, parts_of
from agentformer.text.normalize import clean_plain
from agentformer.text.table_rows import tables_of
from agentformer.types import DocumentText, Heading, Page

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t]|$)(.*)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
_NOT_A_TITLE = re.compile(r"\s*(?:[-*+>|]|\d+[.)]\s|$)")
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|$)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*+(.+)", re.MULTILINE | re.IGNORECASE)
_IN_QUOTES = re.compile(r"(['\"])(.+)\1")
_LONGEST_TITLE = 300
_MARKUP = re.compile(r"[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}|!?\[([^\[\]]*+)\]\([^()]*+\)")


@dataclass(slots=True)
class _Section:
    path: tuple[str, ...]
    level: int
    lines: list[str]
    line: int = 1  # the number of the first line of the section in the file


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. The title comes from the front matter (the metadata at the beginning of the file), or else
    from the first heading of level 1. The front matter is also a part of the text of the first section."""
    decoded = decode(data).replace("\r\n", "\n")
    text = clean_plain(decoded)
    front = _FRONT_MATTER.match(text)
    found = _FRONT_TITLE.search(front[1] or "") if front else None
    named = found[1].rstrip(" \t") if found else ""
    named = quoted[2] if (quoted := _IN_QUOTES.fullmatch(named)) else named
    empty = len(decoded) - len(decoded.lstrip("\n"))  # lines that `clean_plain` has removed
    sections = list(_sections(text, front.end() if front else 0, empty))
    first = next((s.path[0] for s in sections if s.path and s.level == 1), "")
    yield document_of(options.media_type, _pages(sections), options.limits, named or first)


def _pages(sections: list[_Section]) -> Iterator[Page]:
    parts = ((part, line, section) for section in sections for part, line in _parts(section))
    for number, (part, line, section) in enumerate(parts, 1):
        headings = (Heading(section.path[-1], section.level, 0),) if section.path else ()
        page = page_of(number, part, PATH_SEPARATOR.join(section.path), headings, tables=tables_of(part))
        yield replace(page, line=line)


def _parts(section: _Section) -> Iterator[tuple[str, int]]:
    """Yield the parts of a section with text, and the number of the first line of each."""
    text = "\n".join(section.lines).rstrip("\n")
    line = section.line
    for part in parts_of(text) if text.strip() else ():
        yield part, line
        line += part.count("\n")


def _sections(text: str, body_start: int, empty: int) -> Iterator[_Section]:
    """Yield the sections. The first one has the front matter, which ends at `body_start`, and the text before the first
    heading. `empty` is the number of lines of the file before `text`."""
    current = _Section((), 0, text[:body_start].removesuffix("\n").split("\n") if body_start else [], 1 + empty)
    stack: list[tuple[int, str]] = []
    fence = ""
    lines = text[body_start:].split("\n")
    first = 1 + empty + text.count("\n", 0, body_start)
    for number, line in enumerate(lines):
        fence, inside = _fenced(line, fence)
        heading = None if inside else _heading(line, lines[number + 1] if number + 1 < len(lines) else "")
        if heading:
            yield current
            level, title = heading
            stack = [(lv, t) for lv, t in stack if lv < level] + [(level, title)]
            current = _Section(tuple(t for _, t in stack), level, [], first + number)
        current.lines.append(line)
    yield current


def _fenced(line: str, fence: str) -> tuple[str, bool]:
    """Return two values: the code fence that is open after this line, or ""; and whether the line belongs to a code
    block. `fence` is the code fence that is open before this line."""
    match = _FENCE.match(line)
    if fence:
        closes = match and match.group(1).startswith(fence) and not line.strip("`~ \t")
        return ("" if closes else fence), True
    return (match.group(1), True) if match else ("", False)


def _heading(line: str, following: str) -> tuple[int, str] | None:
    """Return the level and the title if a line is a heading, or None. The line `following` may underline it."""
    if match := _ATX.match(line):
        markup = match[2].strip(" \t")
        bare = markup.rstrip("#")  # a heading may end with "#" characters after a space
        title = _plain_title(markup if bare and bare[-1] not in " \t" else bare.rstrip(" \t"))
        return (len(match[1]), title) if title else None
    under = _UNDERLINE.match(following)
    if under and line.strip() and len(line) < 200 and not _NOT_A_TITLE.match(line):
        return (1 if under[1][0] == "=" else 2), _plain_title(line)
    return None


def _plain_title(markup: str) -> str:
    """Return the text of a heading without markup. A long one is cut, because each citation of the section shows it."""
    return " ".join(_MARKUP.sub(lambda m: m.group(1) or "", markup[:_LONGEST_TITLE]).split())
