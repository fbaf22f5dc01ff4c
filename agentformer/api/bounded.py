"""The body of a request as it comes in: never cut silently, and never longer than it may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge


class BoundedBody:
    """A stream in place of `wsgi.input`. Servers that decode chunks end a body of known length that was broken off
    as if it were whole, and Werkzeug ends one that is too long; here both raise: `ClientDisconnected` for fewer bytes
    than `length`, where that is known, and `RequestEntityTooLarge` for more than `most`."""

    def __init__(self, stream: Any, most: int, length: int | None) -> None:
        self._stream = stream
        self._most = most
        self._length = length
        self._read = 0

    @property
    def over(self) -> bool:
        """Whether more came than there may be."""
        return self._read > self._most

    def read(self, size: int = -1) -> bytes:
        return self._counted(self._stream.read(self._within(size)), size)

    def readline(self, size: int = -1) -> bytes:
        return self._counted(self._stream.readline(self._within(size)), size)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _within(self, size: int) -> int:
        """One byte more than there may be, to see whether there is one; and not more than there are, for servers that
        do not know where a body ends."""
        most = self._most + 1 if self._length is None else self._length
        left = max(most - self._read, 0)
        return left if size is None or size < 0 else min(size, left)

    def _counted(self, data: bytes, wanted: int) -> bytes:
        self._read += len(data)
        if self.over:
            raise RequestEntityTooLarge
        if not data and wanted != 0 and self._length is not None and self._read < self._length:
            raise ClientDisconnected
        return data
