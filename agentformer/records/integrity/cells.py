"""Reads rows from the pages of a damaged SQLite file, without SQLite. Each page is read on its own. Therefore a damaged
header, schema or tree does not hide the rows of other pages. See https://www.sqlite.org/fileformat2.html

SQLite clears deleted rows (`secure_delete`), so each readable row belongs to a table or an index.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.records.integrity.frames import read_log

PAGE_SIZE = 4_096  # of a new database
_HEADER_BYTES = 100  # of the file, at the beginning of its first page
_LEAF_TABLE, _LEAF_INDEX, _INNER_INDEX = 13, 10, 2  # the kinds of pages that contain rows
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)
_BEFORE = 300  # a row begins at most so many bytes before its id, which is one of the first values


class Cell(NamedTuple):
    """A row of a table or an index, with `num`, the row number, or 0 in an index."""

    num: int
    values: list[Any]


class Pages:
    """The pages of a database file and of its write-ahead log, including the transactions behind damage of the log.
    Methods raise `OSError` if a file cannot be read."""

    def __init__(self, path: Path, log: Path) -> None:
        self._file = path.open("rb")
        self.log = read_log(log)
        size = int.from_bytes(self._read(0, 18)[16:], "big")
        sizes = [PAGE_SIZE, *([size] if size >= 512 and not size & (size - 1) else [])]
        length = path.stat().st_size
        # a damaged header may contain a wrong size; with the right size, most pages begin with the kind of the page
        self.size = max(sizes, key=lambda each: self._tree_share(each, length))
        self.count = max(self.log.pages, -(-length // self.size))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def versions(self, number: int) -> list[bytes]:
        """Return the page with this number, which begins at 1. If the page is damaged in the log, return also its
        possible corrections. Return an empty list if there is no such page."""
        versions = self.log.versions(number) if self.log.page_size == self.size else []
        if not versions and number > 0:
            versions = [self._read((number - 1) * self.size, self.size)]
        return [page for page in versions if len(page) == self.size]

    def cells(self, around: Collection[bytes] = ()) -> Iterator[Cell]:
        """Yield the rows that the pages list. If `around` is given, yield instead every readable row that begins
        shortly before one of these texts, although no page may list the row any more."""
        for number in range(1, self.count + 1):
            for page in self.versions(number):
                if not around:
                    yield from self._listed(page, _HEADER_BYTES if number == 1 else 0)
                    continue
                places = [at for text in around for at in _all_places(page, text)]
                for start in sorted({start for at in places for start in range(max(at - _BEFORE, 0), at)}):
                    found = (self._cell(page, start, kind) for kind in (_LEAF_TABLE, _LEAF_INDEX))
                    yield from (cell for cell in found if cell)

    def _listed(self, page: bytes, start: int) -> Iterator[Cell]:
        kind, count = page[start], int.from_bytes(page[start + 3 : start + 5], "big")
        if kind not in (_LEAF_TABLE, _LEAF_INDEX, _INNER_INDEX):
            return
        first = start + (12 if kind == _INNER_INDEX else 8)
        count = min(count, (self.size - first) // 2)
        for at in struct.unpack_from(f">{count}H", page, first):
            if cell := self._cell(page, at + (4 if kind == _INNER_INDEX else 0), kind):
                yield cell

    def _cell(self, page: bytes, at: int, kind: int) -> Cell | None:
        """Return the row that begins at this position of a page, or None if there is no readable row."""
        try:
            length, at = _varint(page, at)
            num = 0
            if kind == _LEAF_TABLE:
                num, at = _varint(page, at)
            values = _values(self._payload(page, at, length, kind))
        except (IndexError, ValueError, struct.error):
            return None
        return Cell(num, values) if values else None

    def _payload(self, page: bytes, at: int, length: int, kind: int) -> bytes:
        """Return the bytes of a row. A long row continues on a chain of overflow pages."""
        smallest = (self.size - 12) * 32 // 255 - 23
        most = self.size - 35 if kind == _LEAF_TABLE else (self.size - 12) * 64 // 255 - 23
        local = length
        if length > most:
            local = smallest + (length - smallest) % (self.size - 4)
            local = local if local <= most else smallest
        data = page[at : at + local]
        if len(data) < local or length > self.count * self.size:
            raise ValueError("the row does not end on its page")
        parts, left, following = [data], length - local, page[at + local : at + local + 4]
        while left:
            (overflow, *_) = self.versions(int.from_bytes(following, "big"))  # raises `ValueError` for a missing page
            parts.append(overflow[4 : 4 + left])
            left -= len(parts[-1])
            following = overflow[:4]
        return b"".join(parts)

    def _tree_share(self, size: int, length: int) -> float:
        places = range(0, min(length, 1_000 * size), size)
        return sum(self._read(at, 1) in b"\x02\x05\x0a\x0d" for at in places) / max(len(places), 1)

    def _read(self, at: int, length: int) -> bytes:
        self._file.seek(at)
        return self._file.read(length)


def _all_places(page: bytes, text: bytes) -> Iterator[int]:
    at = page.find(text)
    while at >= 0:
        yield at
        at = page.find(text, at + 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an integer of variable length and the position after it."""
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _values(record: bytes) -> list[Any]:
    """Return the values of a row. Raises `ValueError` if the bytes are no row. A text that is not UTF-8 is returned as
    bytes."""
    length, at = _varint(record, 0)
    types: list[int] = []
    while at < length:
        kind, at = _varint(record, at)
        types.append(kind)
    if at != length or not types:
        raise ValueError("the header does not end at its length")
    values: list[Any] = []
    for kind in types:
        size = (kind - 12) // 2 if kind >= 12 else (*_INTEGER_BYTES, 8, 0, 0, -1, -1)[kind]
        data = record[at : at + size]
        if size < 0 or len(data) < size:
            raise ValueError("a value does not end in the row")
        values.append(_value(kind, data))
        at += size
    if at != len(record):
        raise ValueError("the row does not end at its length")
    return values


def _value(kind: int, data: bytes) -> Any:
    if kind < 12:
        if kind in (0, 8, 9):
            return None if kind == 0 else kind - 8
        return struct.unpack(">d", data)[0] if kind == 7 else int.from_bytes(data, "big", signed=True)
    try:
        return data.decode() if kind % 2 else data
    except UnicodeDecodeError:
        return data
