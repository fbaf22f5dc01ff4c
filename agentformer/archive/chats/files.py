"""Finds and opens chat exports, and yields their conversations one by one, in bounded memory."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import ijson

from agentformer.archive.chats.chatgpt_and_claude import is_chat
from agentformer.archive.chats.chroma import HEAD, chroma_values
from agentformer.errors import InvalidInput
from agentformer.records.integrity.files import kind_of, open_regular_file

_NAME = re.compile(r"(?:.*/)?conversations[\w.-]*\.json", re.IGNORECASE)  # large exports have several
_CHROMA, _PICKLE = "chroma.sqlite3", "index.pkl"  # of Chroma, and of the FAISS index of LangChain
_NO_PICKLE = "is a pickle, which can run code, and is not read; write its texts as JSON Lines (docs/MIGRATING.md)"
_ZIP = b"PK\x03\x04"
_BOM = b"\xef\xbb\xbf"
MAX_VALUE = 64 << 20  # characters of one value, such as a conversation
_LONGEST_LINE = MAX_VALUE  # bytes
_PEEK = 1 << 16
MAX_DEPTH = 200
# Bytes that the parser gets at once. With each part, it reads an unfinished text from its start again, so with small
# parts the time grows with the square of the length. With large parts, more events are in memory at once.
_PART = 512 << 10
_EVENT = 8  # characters that count for each event, such as a bracket or a number
_NOT_UTF_8 = "is not UTF-8; save the file as UTF-8"
_STARTS, _ENDS = ("start_map", "start_array"), ("end_map", "end_array")


class ChatFile(NamedTuple):
    """A file of an export. If the file is in a ZIP archive, `path` is the archive, and `member` is the name of the file
    in the archive. Otherwise `member` is "". `size` is the number of bytes of the unpacked file."""

    path: Path
    member: str
    size: int

    @property
    def name(self) -> str:
        return self.member or self.path.name


class Item(NamedTuple):
    """A JSON value of a file. `number` is the number of the line in JSON Lines, and otherwise the number of the value,
    from 1. `position` is the number of bytes of the file that were read so far."""

    value: Any
    number: int
    position: int


def find_files(path: Path) -> list[ChatFile]:
    """Return the files of an export: the given file, or the files `conversations*.json` of a folder or a ZIP archive.
    If a folder has none, its `chroma.sqlite3`, or its files `*.jsonl` and those of its subfolders, such as the sessions
    of a coding agent.
    Raises `InvalidInput` if there is no such file, or if `path` cannot be read."""
    try:
        if kind_of(path, "path") == "folder":
            paths = sorted(each for each in path.iterdir() if _NAME.fullmatch(each.name) and each.is_file())
            paths = paths or [path / _CHROMA] * (path / _CHROMA).is_file()
            if not paths and (path / _PICKLE).exists():
                raise InvalidInput("path", f"{path / _PICKLE} {_NO_PICKLE}")
            paths = paths or sorted(each for each in path.rglob("*.jsonl") if each.is_file())
            found = [ChatFile(each, "", each.stat().st_size) for each in paths]
        else:
            with open_regular_file(path) as file:
                head = file.peek(4)[:4]
            if path.suffix == ".pkl" or (head[:1] == b"\x80" and path.suffix != ".json"):
                raise InvalidInput("path", f"{path} {_NO_PICKLE}")
            found = _members(path) if head == _ZIP else [ChatFile(path, "", path.stat().st_size)]
    except OSError as error:
        raise InvalidInput("path", f"{path} cannot be read: {error.strerror or error}") from None
    if not found:
        raise InvalidInput(
            "path", f"{path} has no conversations.json and no *.jsonl; give the chat export, or its conversations.json"
        )
    return found


def _members(path: Path) -> list[ChatFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.infolist() if _NAME.fullmatch(each.filename)]
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise InvalidInput("path", f"{path} is a damaged ZIP archive: {str(error)[:120]}") from None
    return [ChatFile(path, each.filename, each.file_size) for each in sorted(members, key=lambda each: each.filename)]


@contextmanager
def _opened(file: ChatFile) -> Iterator[io.BufferedReader]:
    if not file.member:
        with open_regular_file(file.path) as opened:
            yield opened
        return
    with zipfile.ZipFile(file.path) as archive, archive.open(file.member) as member:
        yield io.BufferedReader(cast("io.RawIOBase", member), _PEEK)


def read_items(file: ChatFile) -> Iterator[Item]:
    """Yield the conversations and messages of a file: the elements of a JSON array, one JSON object, or JSON Lines. For
    a value that cannot be used, an `Unusable` is yielded. Raises `InvalidInput` if the file has no known format, cannot
    be read, or is damaged. The values before the damage are yielded first."""
    try:
        with _opened(file) as opened:
            if opened.peek(len(HEAD)).startswith(HEAD) and not file.member:
                for number, value in enumerate(chroma_values(file.path), 1):
                    yield Item(value, number, 0)
                return
            if opened.peek(3)[:3] == _BOM:
                opened.read(3)
            if _is_lines(opened, file):
                yield from _lines(opened)
            else:
                for number, value in enumerate(read_values(cast(BinaryIO, opened)), 1):
                    yield Item(value, number, opened.tell())
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:  # zipfile raises the last two
        raise InvalidInput("path", f"{file.name} cannot be read: {str(error)[:200]}") from None
    except TextTooLong as error:
        raise InvalidInput(
            "path",
            f"{file.name} was read up to a text that is too long ({error}); remove the text, and import the file again",
        ) from None
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("path", f"{file.name} is damaged, and was read up to the damage: {error}") from None


def _is_lines(opened: io.BufferedReader, file: ChatFile) -> bool:
    """Return whether a file is JSON Lines: its first line is a whole JSON object. Raises `InvalidInput` if the file
    does not begin with `[` or `{`, or if this object is neither a message nor a conversation."""
    head = opened.peek(_PEEK).lstrip()
    if head.startswith(b"["):
        return False
    if not head.startswith(b"{"):
        raise InvalidInput("path", f"{file.name} is not a chat export: it must be UTF-8 JSON, or JSON Lines")
    start = opened.tell() if opened.seekable() else 0
    line = b""
    while not line.strip():
        line = opened.readline(_LONGEST_LINE + 1)
    opened.seek(start)
    try:
        value = json.loads(line.decode("utf-8", "replace"))  # `_lines` reports a line that is not UTF-8
    except (ValueError, RecursionError):
        return False
    if not is_chat(value):
        raise InvalidInput("path", f"{file.name} is not a chat export: its first line has no role and content")
    return True


def _lines(opened: io.BufferedReader) -> Iterator[Item]:
    number = 0
    while line := opened.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            while line and not line.endswith(b"\n"):
                line = opened.readline(_LONGEST_LINE)
            yield Item(Unusable(f"has more than {_LONGEST_LINE >> 20} MB"), number, opened.tell())
        elif line.strip():
            yield Item(_parsed(line), number, opened.tell())


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        return Unusable(_NOT_UTF_8)
    except (ValueError, RecursionError) as error:
        return Unusable(f"is not JSON: {str(error)[:120]}")


class Unusable(str):
    """The reason why a value of a file cannot be used. It is yielded in place of this value."""

    __slots__ = ()


class TextTooLong(ValueError):
    """Raised if a text in a JSON file has more than `MAX_VALUE` bytes. The rest of the file is not read."""


class _Bounded:
    """Gives the bytes of a file to the JSON parser, and stops if `MAX_VALUE` bytes contain no token."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._since_event = 0  # bytes without an event

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes. Raises `TextTooLong` if the last `MAX_VALUE` bytes contain no whole token."""
        if self._since_event > MAX_VALUE:
            raise TextTooLong(f"a text has more than {MAX_VALUE >> 20} MB")
        part = self._file.read(size)
        self._since_event += len(part)
        return part

    def events(self) -> Iterator[tuple[str, Any]]:
        """Parse the file, and yield the events of `ijson`, such as ("start_map", None) or ("string", "text")."""
        for event in ijson.basic_parse(self, use_float=True, buf_size=_PART):
            self._since_event = 0
            yield event


def read_values(file: BinaryIO) -> Iterator[Any]:
    """Yield the elements of a JSON array, or the JSON value itself. In place of an element that is larger than
    `MAX_VALUE` or nested deeper than `MAX_DEPTH`, yield an `Unusable`. Raises `ValueError` if the file is not JSON, and
    `TextTooLong` for a string of more than `MAX_VALUE` bytes. The elements before the error are yielded first."""
    events = _Bounded(file).events()
    try:
        event, value = next(events)
        if event != "start_array":
            yield _built(event, value, events)
            return
        for event, value in events:
            if event == "end_array":
                break
            yield _built(event, value, events)
        for _ in events:  # raises an error if something follows
            pass
    except ijson.JSONError as error:
        message = error.args[0]  # the parser gives bytes if the excerpt of the file in its message is not UTF-8
        reason, _, excerpt = (
            message.decode(errors="replace") if isinstance(message, bytes) else str(message)
        ).partition("\n")
        reason = (
            f"it {_NOT_UTF_8}"
            if "UTF8" in reason
            else f"{reason.rstrip('.')}, near {excerpt.strip().partition(chr(10))[0]!r}"
        )
        raise ValueError(reason) from None
    except UnicodeDecodeError:
        raise ValueError(f"it {_NOT_UTF_8}") from None


def _built(event: str, value: Any, events: Iterator[tuple[str, Any]]) -> Any:
    """Return the JSON value whose first event is (`event`, `value`). Its other events are taken from `events`. If the
    JSON value is too large or nested too deep, read it to its end, and return an `Unusable`."""
    builder, size, depth, problem = ijson.ObjectBuilder(), 0, 0, ""
    while True:
        size += _EVENT + (len(value) if isinstance(value, str) else 0)
        depth += (event in _STARTS) - (event in _ENDS)
        if not problem and (size > MAX_VALUE or depth > MAX_DEPTH):
            too_large = f"has more than {MAX_VALUE >> 20} million characters"
            problem = too_large if size > MAX_VALUE else f"is nested more than {MAX_DEPTH} levels deep"
            builder = ijson.ObjectBuilder()  # deletes the unfinished value
        if not problem:
            builder.event(event, value)
        if not depth:
            return Unusable(problem) if problem else builder.value
        event, value = next(events)
