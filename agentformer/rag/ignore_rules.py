"""The rules of an ignore file such as `.gitignore`, as git reads them (gitignore(5), `wildmatch.c`).

The patterns of a file become one nondeterministic automaton whose states are the bits of a number. Each byte of a path
takes one step of all patterns together. So the time is linear in the length of the path, whatever the patterns. As in
git, paths and patterns are bytes: `?` matches one byte of a letter that has several bytes in UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

MAX_BYTES = 1_000_000  # bytes of an ignore file that are read
_SPECIAL = re.compile(rb"[*?\[\\]")
_CONTENT = re.compile(rb"(?:[^\\ ]|\\.| ++(?!\Z))*+", re.DOTALL)  # a line without the spaces at its end
_SLASH = ord("/")
# A set of bytes is a number with a bit for each of them. A Python set would need hundreds of times the memory.
_ALL = (1 << 256) - 1
_SINGLE = [1 << byte for byte in range(256)]
_IN_SEGMENT = _ALL ^ _SINGLE[_SLASH]
_CLASSES = {
    name: sum(_SINGLE[byte] for byte in range(128) if re.match(characters, chr(byte)))
    for name, characters in (
        *(("alnum", r"[0-9A-Za-z]"), ("alpha", r"[A-Za-z]"), ("blank", r"[ \t]"), ("cntrl", r"[\0-\x1f\x7f]")),
        *(("digit", r"[0-9]"), ("graph", r"[!-~]"), ("lower", r"[a-z]"), ("print", r"[ -~]")),
        *(("punct", r"[!-/:-@\[-`{-~]"), ("space", r"[ \t-\r]"), ("upper", r"[A-Z]"), ("xdigit", r"[0-9A-Fa-f]")),
    )
}


class IgnoreRules:
    """The rules of an ignore file. `data` is its content. Lines that git cannot use are left out."""

    def __init__(self, data: bytes) -> None:
        self._of_paths, self._of_names = _Automaton(), _Automaton()
        lines = data[:MAX_BYTES].removeprefix(b"\xef\xbb\xbf").split(b"\n")
        for number, line in enumerate(lines[:-1] if len(data) > MAX_BYTES else lines):
            self._add(number, line.removesuffix(b"\r"))

    def decision(self, path: bytes, *, is_folder: bool) -> bool | None:
        """Return True if the rules ignore a file or folder, False if they include it, and None if no rule matches.
        `path` is its path below the folder of the ignore file."""
        one = self._of_paths.last_match(path, is_folder=is_folder)
        other = self._of_names.last_match(path.rpartition(b"/")[2], is_folder=is_folder)
        return None if one is other is None else not max(filter(None, (one, other))).includes

    def _add(self, number: int, line: bytes) -> None:
        """Add the rule of a line, unless it is empty, a comment, or malformed. Spaces at its end do not count."""
        content = _CONTENT.match(line)
        pattern = content[0] if content and not line[content.end() :].strip(b" ") else line
        if not pattern or pattern.startswith(b"#"):
            return
        includes = pattern.startswith(b"!")
        pattern = pattern[includes:]
        folders_only = pattern.endswith(b"/")
        pattern = pattern[: len(pattern) - folders_only]
        automaton = self._of_paths if b"/" in pattern else self._of_names
        try:
            automaton.add(list(_tokens(pattern.removeprefix(b"/"))), _Rule(number, includes, folders_only))
        except _Malformed:
            return


class _Rule(NamedTuple):
    number: int  # of its line
    includes: bool  # the rule begins with "!"
    folders_only: bool


class _Malformed(Exception):
    """Raised for a pattern that matches nothing."""


class _Token(NamedTuple):
    """A part of a pattern. It matches one byte of `accepts`. If `many`, it matches any number of them. If `folders`, it
    matches any number of folders, each with its slash."""

    accepts: int
    many: bool = False
    folders: bool = False


class _Automaton:
    """Compares a text with all patterns at the same time. A pattern has a state, which is a number, for its beginning
    and for each byte that it matches. A set of states is a number with a bit for each of them."""

    def __init__(self) -> None:
        self._steps: list[int] = []  # by state: the bytes that lead to the next state
        self._stays: list[int] = []  # by state: the bytes that do not change it
        self._ends: dict[int, _Rule] = {}  # last state of each pattern
        self._starts: set[int] = set()  # first states
        self._skips: set[int] = set()  # states from which the next two may be skipped
        self._tables: dict[int, tuple[int, int]] = {}  # byte -> the states that step, and those that stay

    def add(self, tokens: Iterable[_Token], rule: _Rule) -> None:
        """Add the states that recognize a pattern, given by its tokens."""
        first = len(self._steps)
        steps, stays, skips = list[int](), [0], set[int]()
        for token in tokens:
            if token.folders:
                skips.add(first + len(steps))
                steps += [_ALL, _SINGLE[_SLASH]]
                stays += [_ALL, 0]
            elif token.many:
                stays[-1] = stays[-1] | token.accepts if stays[-1] else token.accepts
            else:
                steps.append(token.accepts)
                stays.append(0)
        self._steps += [*steps, 0]
        self._stays += stays
        self._starts.add(first)
        self._skips |= skips
        self._ends[len(self._steps) - 1] = rule

    def last_match(self, text: bytes, *, is_folder: bool) -> _Rule | None:
        """Return the last rule whose pattern matches the whole text."""
        starts, skips, ends_of_files, ends = self._sets
        states = starts | (starts & skips) << 2
        for byte in text:
            if byte not in self._tables:
                self._tables[byte] = (
                    _states(each >> byte & 1 for each in self._steps),
                    _states(each >> byte & 1 for each in self._stays),
                )
            steps, stays = self._tables[byte]
            states = (states & steps) << 1 | states & stays
            states |= (states & skips) << 2
            if not states:
                return None
        matched = states & (ends if is_folder else ends_of_files)
        return self._ends[matched.bit_length() - 1] if matched else None

    @cached_property
    def _sets(self) -> tuple[int, int, int, int]:
        ends_of_files = {state for state, rule in self._ends.items() if not rule.folders_only}
        sets = (self._starts, self._skips, ends_of_files, self._ends)
        starts, skips, of_files, ends = (_states(n in each for n in range(len(self._steps))) for each in sets)
        return starts, skips, of_files, ends


def _states(chosen: Iterable[int]) -> int:
    """Return a number whose bits are the given values (0 or 1), the lowest bit first."""
    return int(bytes(b"01"[each] for each in chosen)[::-1] or b"0", 2)


def _tokens(pattern: bytes) -> Iterator[_Token]:
    """Yield the tokens of a pattern. Raises `_Malformed` if the pattern matches nothing."""
    special = _SPECIAL.search(pattern)
    first = at = special.start() if special else len(pattern)
    yield from (_Token(_SINGLE[byte]) for byte in pattern[:first])
    folders = False
    while at < len(pattern):
        byte, folders_before, folders = pattern[at : at + 1], folders, False
        if byte == b"*":
            end = next((n for n in range(at, len(pattern)) if pattern[n] != byte[0]), len(pattern))
            alone = end == len(pattern) or pattern.startswith((b"/", b"\\/"), end)
            across = end > at + 1 and alone and (at == first or pattern[at - 1] == _SLASH)
            folders = across and pattern.startswith(b"/", end)
            if not folders:
                yield _Token(_ALL if across else _IN_SEGMENT, many=True)
            elif not folders_before:  # repeated, it matches the same
                yield _Token(_ALL, folders=True)
            at = end + folders
        elif byte == b"[":
            accepted, at = _bracket(pattern, at + 1)
            yield _Token(accepted)
        elif byte == b"?":
            yield _Token(_IN_SEGMENT)
            at += 1
        else:
            at += byte == b"\\"
            if at == len(pattern):
                raise _Malformed
            yield _Token(_SINGLE[pattern[at]])
            at += 1


def _bracket(pattern: bytes, at: int) -> tuple[int, int]:
    """Return the bytes that a set such as `[a-z]` accepts, and the offset after it. The set begins at `at`, after its
    bracket."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    accepted = 0
    former, first = 0, at
    while at == first or pattern[at : at + 1] != b"]":
        byte = pattern[at : at + 1]
        if byte == b"\\":
            at += 1
            byte = pattern[at : at + 1]
            accepted |= sum(_SINGLE[each] for each in byte)
        elif byte == b"-" and former and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 1 + (pattern[at + 1 : at + 2] == b"\\")
            accepted |= sum(_SINGLE[former : (pattern[at : at + 1] or b"\0")[0] + 1])
            byte = pattern[at : at + 1] and b"\0"
        elif byte == b"[" and pattern[at + 1 : at + 2] == b":":
            end = pattern.find(b"]", at + 2)
            if end < 0:
                raise _Malformed
            if pattern[end - 1 : end] == b":" and end > at + 2:
                if (name := pattern[at + 2 : end - 1].decode("latin-1")) not in _CLASSES:
                    raise _Malformed
                accepted |= _CLASSES[name]
                at, byte = end, b"\0"
            else:
                accepted |= sum(_SINGLE[each] for each in byte)
        else:
            accepted |= sum(_SINGLE[each] for each in byte)
        if not byte:
            raise _Malformed
        former = byte[0]
        at += 1
    return (_ALL ^ accepted if negated else accepted) & _IN_SEGMENT, at + 1
