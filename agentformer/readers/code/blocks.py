"""The parts of a source text by its blank lines and its indentation, for languages without a grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentformer.readers.code.tree import MAX_ABOUT, MAX_SYMBOLS, Part

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
