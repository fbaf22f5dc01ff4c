"""Reads the values of a large JSON file one by one, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import ijson

MAX_VALUE = 64 << 20  # characters of one value, such as a conversation
MAX_DEPTH = 200
# Bytes that the parser gets at once. It reads an unfinished text from its start again with each part, so small parts
# would take a time that grows with the square of the length; a large part has more events, which are in memory at once.
_PART = 512 << 10
_EVENT = 8  # characters that a bracket or a number counts for
_START = {"start_map": dict, "start_array": list}


class Unusable(str):
    """The reason why a value was left out."""

    __slots__ = ()


class TextTooLong(ValueError):
    """A text in a JSON file has more than `MAX_VALUE` bytes. What follows it was not read."""


class _Bounded:
    """A file that is read until the parser found nothing in `MAX_VALUE` bytes, so that memory and time are bounded."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._silent = 0  # bytes without an event

    def read(self, size: int = -1) -> bytes:
        """Return the next part. Raises `TextTooLong`."""
        if self._silent > MAX_VALUE:
            raise TextTooLong(f"a text has more than {MAX_VALUE >> 20} MB")
        part = self._file.read(size)
        self._silent += len(part)
        return part

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yield the events of the parser."""
        for event in ijson.basic_parse(self, use_float=True, buf_size=_PART):
            self._silent = 0
            yield event


def read_values(file: BinaryIO) -> Iterator[Any]:
    """Yield the elements of a JSON array, or the JSON value itself if it is no array. For an element that is larger
    than `MAX_VALUE` or nested deeper than `MAX_DEPTH`, an `Unusable` is yielded. Raises `ValueError` where the file is
    not JSON, and `TextTooLong` for a text of more than `MAX_VALUE` bytes; the elements before that place were
    yielded."""
    events = _Bounded(file).events()
    try:
        event, value = next(events)
        if event != "start_array":
            yield _Builder().build(event, value, events)
            return
        for event, value in events:
            if event == "end_array":
                break
            yield _Builder().build(event, value, events)
        for _ in events:  # raises an error if something follows
            pass
    except ijson.JSONError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8") from None


class _Builder:
    """Builds one value from the events of the parser."""

    def __init__(self) -> None:
        self._size = 0
        self._stack: list[Any] = []
        self._keys: list[str] = []
        self._depth = 0
        self._problem = ""

    def build(self, event: str, value: Any, events: Iterator[tuple[str, Any]]) -> Any:
        """Return the value that begins with an event, or an `Unusable`."""
        if event not in _START:
            return value
        root = _START[event]()
        self._open(root)
        while self._depth:
            event, value = next(events)
            self._take(event, value)
        return Unusable(self._problem) if self._problem else root

    def _take(self, event: str, value: Any) -> None:
        self._size += _EVENT + (len(value) if isinstance(value, str) else 0)
        if self._size > MAX_VALUE and not self._problem:
            self._drop(f"has more than {MAX_VALUE >> 20} million characters")
        if event in ("end_map", "end_array"):
            self._depth -= 1
            if self._stack:
                self._stack.pop()
                self._keys.pop()
        elif event in _START:
            if self._depth >= MAX_DEPTH and not self._problem:
                self._drop(f"is nested more than {MAX_DEPTH} levels deep")
            inner = _START[event]()
            self._add(inner)
            self._open(inner)
        elif event == "map_key":
            if self._keys:
                self._keys[-1] = value
        else:
            self._add(value)

    def _open(self, container: Any) -> None:
        self._depth += 1
        if not self._problem:
            self._stack.append(container)
            self._keys.append("")

    def _add(self, value: Any) -> None:
        if not self._stack:
            return
        if isinstance(self._stack[-1], dict):
            self._stack[-1][self._keys[-1]] = value
        else:
            self._stack[-1].append(value)

    def _drop(self, problem: str) -> None:
        """Forget what was built. The rest of the value is read and not kept."""
        self._problem = problem
        for container in self._stack:
            container.clear()
        self._stack.clear()
        self._keys.clear()
