"""Reads the frames (copies of pages) of a write-ahead log, including the frames behind a damaged frame.

SQLite stops at the first damaged frame, and drops all later transactions without an error. The checksum of a frame is
computed from the checksum of the previous frame. Therefore a frame that matches the stored checksum of a damaged frame
belongs to the same log. The checksum has 64 bits and is linear, so the difference between the stored and the computed
checksum shows the place and the value of a single damaged byte. For the format, see
https://www.sqlite.org/fileformat2.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADER, _FRAME_HEADER = 32, 24  # bytes
_GROUP = 1_000  # frames read at a time
_MASK = 0xFFFFFFFF

Sums = tuple[int, int]


class Fix(NamedTuple):
    """A byte that replaces a damaged byte at a position of the log."""

    at: int
    data: bytes

    def applied(self, data: bytes, at: int) -> bytes:
        """Return the corrected bytes of `data`, which begin at the position `at` of the log."""
        return data[: self.at - at] + self.data + data[self.at - at + 1 :]


@dataclass
class Log:
    """The content of a write-ahead log. Frames that SQLite would not read are included if their damage is corrected."""

    path: Path
    page_size: int = 0
    pages: int = 0  # size of the database after the last transaction, in pages
    fixes: list[Fix] = field(default_factory=list)  # with these, SQLite reads these transactions too
    behind: int = 0  # number of committed transactions behind damage that cannot be corrected
    places: dict[int, int] = field(default_factory=dict)  # number of a page -> position of its newest committed copy
    places_behind: dict[int, int] = field(default_factory=dict)  # the same for the transactions behind the damage
    candidates: dict[int, list[Fix]] = field(default_factory=dict)  # place -> possible corrections of a damaged page

    def versions(self, number: int) -> list[bytes]:
        """Return the newest committed copy of a page, or no copy if the log has none. If the copy is damaged, return
        also its possible corrections, of which at most one is right."""
        at = self.places_behind.get(number) or self.places.get(number)
        if at is None:
            return []
        with self.path.open("rb") as file:
            file.seek(at)
            data = file.read(self.page_size)
        for fix in self.fixes:
            if at <= fix.at < at + len(data):
                data = fix.applied(data, at)
        fixes = (fix for fix in self.candidates.get(at, ()) if fix.at >= at)
        return [data, *(fix.applied(data, at) for fix in fixes)]


class _Frame(NamedTuple):
    at: int
    head: bytes
    from_zero: Sums  # the checksum that the frame has if that of the previous frame is (0, 0)

    @property
    def stored(self) -> Sums:
        return _sums(self.head[16:])


def read_log(path: Path) -> Log:
    """Read a write-ahead log. A missing log is empty. Raises `OSError` if the log cannot be read."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
            return _Reading(path, file, header).log if len(header) == _HEADER else Log(path)
    except FileNotFoundError:
        return Log(path)


class _Reading:
    """Reads all frames of a log in order."""

    def __init__(self, path: Path, file: BinaryIO, header: bytes) -> None:
        """Read the log. If the header is damaged and cannot be corrected with certainty, SQLite reads no frame."""
        self._file, self._fixes = file, list[Fix]()  # fixes of the current transaction
        self._open: dict[int, int] = {}  # places of the current transaction
        self._broken = False  # SQLite reads neither the current frame nor the following ones
        self._big = bool(header[3] & 1)
        actual, stored = self._sums_from_zero(header[:24])[0], _sums(header[24:])
        if actual != stored:
            corrections = _corrections(header[:24], actual, stored, 0, self._big)
            self._fixes, self._broken = corrections[:1], len(corrections) != 1
            header = corrections[0].applied(header, 0) if corrections else header
        size = int.from_bytes(header[8:12], "big")
        self.log = Log(path, size if 512 <= size <= 65_536 and not size & (size - 1) else 0)
        self._words = (size + 8) // 4  # words of 4 bytes that the checksum of a frame covers
        self._salts, current = header[16:24], True
        if self.log.page_size:
            for frame, following in pairwise(chain(self._frames(), [None])):
                assert frame is not None
                stored, current = self._add(frame, following, stored, current)

    def _add(self, frame: _Frame, following: _Frame | None, sums: Sums, current: bool) -> tuple[Sums, bool]:
        """Add a frame that follows a frame with the checksum `sums`. `current` says whether that frame is known to be
        a part of this log, and not of a former log in the same file. Return both values for the next frame."""
        expected, stored, salts = self._after(sums, frame), frame.stored, frame.head[8:16]
        fixes = list[Fix]()
        if salts != self._salts:
            if expected != stored or not current:
                self._broken = True
                return stored, False
            fixes += (Fix(frame.at + 8 + n, self._salts[n : n + 1]) for n in range(8) if salts[n] != self._salts[n])
        if expected != stored:
            candidates, stored = self._corrected(frame, following, expected) if current else ([], stored)
            if len(candidates) != 1:
                self._broken = True
                self._add_damaged(frame, candidates)
                return stored, True
            fixes += candidates
        self._fixes += fixes
        head = frame.head
        for fix in fixes:
            head = fix.applied(head, frame.at) if fix.at < frame.at + _FRAME_HEADER else head
        page, pages = struct.unpack(">II", head[:8])
        self._open[page] = frame.at + _FRAME_HEADER
        if pages:
            self._commit(pages)
        return stored, True

    def _add_damaged(self, frame: _Frame, candidates: list[Fix]) -> None:
        """Add a frame that cannot be corrected. Without `candidates`, it may be a frame that a killed process has not
        written completely, so it ends no transaction."""
        page, pages = struct.unpack(">II", frame.head[:8])
        self.log.candidates[frame.at + _FRAME_HEADER] = candidates
        self._open[page] = frame.at + _FRAME_HEADER
        if pages and candidates:
            self._commit(0)

    def _commit(self, pages: int) -> None:
        """End a transaction. `pages` is the size of the database after it, or 0 if its last frame is damaged."""
        log = self.log
        if self._broken:
            log.behind += 1
            log.places_behind |= self._open
        else:
            log.places |= self._open
            log.fixes += self._fixes
        log.pages = max(log.pages, pages)
        self._open, self._fixes = {}, []

    def _corrected(self, frame: _Frame, following: _Frame | None, expected: Sums) -> tuple[list[Fix], Sums]:
        """Return all possible corrections of a frame in which one byte is damaged, and the right checksum."""
        stored = frame.stored
        self._file.seek(frame.at + _FRAME_HEADER)
        content = frame.head[:8] + self._file.read(self.log.page_size)
        fixes = [
            Fix(fix.at + (_FRAME_HEADER - 8 if fix.at >= frame.at + 8 else 0), fix.data)  # `content` lacks 16 bytes
            for fix in _corrections(content, expected, stored, frame.at, self._big)
        ]
        right, wrong = struct.pack(">II", *expected), frame.head[16:]
        differing = [n for n in range(8) if right[n] != wrong[n]]
        if len(differing) == 1 and not (following and self._after(stored, following) == following.stored):
            if following and self._after(expected, following) == following.stored:
                fixes, stored = [], expected
            fixes.append(Fix(frame.at + 16 + differing[0], right[differing[0] : differing[0] + 1]))
        return fixes, stored

    def _frames(self) -> Iterator[_Frame]:
        """Yield all complete frames of the file in order, even those of a former log behind the end of this log. Each
        has the checksum that it would have as a first frame."""
        length = _FRAME_HEADER + self.log.page_size
        at = _HEADER
        while True:
            self._file.seek(at)
            data = self._file.read(length * _GROUP)
            count = len(data) // length
            if not count:
                return
            heads = [data[n * length : n * length + _FRAME_HEADER] for n in range(count)]
            contents = b"".join(  # a checksum covers the first 8 bytes of the header, and the page
                head[:8] + data[n * length + _FRAME_HEADER : (n + 1) * length] for n, head in enumerate(heads)
            )
            for n, sums in enumerate(self._sums_from_zero(contents, count)):
                yield _Frame(at + n * length, heads[n], sums)
            at += count * length

    def _sums_from_zero(self, contents: bytes, count: int = 1) -> list[Sums]:
        """Return the checksum that each of `count` equally long contents has after the checksum (0, 0). The checksum of
        a frame continues that of the frame before it, which `_after` adds."""
        import numpy as np

        words = np.frombuffer(contents, ">u4" if self._big else "<u4").astype(np.uint32).reshape(count, -1)
        first, second = _weights(words.shape[1])
        sums = (np.einsum("ij,j->i", words, weights, dtype=np.uint32).tolist() for weights in (first, second))
        return list(zip(*sums, strict=True))

    def _after(self, sums: Sums, frame: _Frame) -> Sums:
        a, b, c, d = _power(self._words // 2)
        return (
            (a * sums[0] + b * sums[1] + frame.from_zero[0]) & _MASK,
            (c * sums[0] + d * sums[1] + frame.from_zero[1]) & _MASK,
        )


def _corrections(content: bytes, actual: Sums, stored: Sums, at: int, big: bool) -> list[Fix]:
    """Return each change of a single byte of `content` that turns its checksum `actual` into `stored`. `content` is at
    the position `at` of the log. The weights repeat, so there may be several such changes."""
    import numpy as np

    first, second = _weights(len(content) // 4)
    wanted = [np.uint32((right - wrong) & _MASK) for right, wrong in zip(stored, actual, strict=True)]
    fixes = []
    for place in range(4):
        shift = 8 * (3 - place if big else place)
        for change in (*range(-255, 0), *range(1, 256)):
            step = np.uint32((change << shift) & _MASK)
            for word in np.flatnonzero((first * step == wanted[0]) & (second * step == wanted[1])).tolist():
                n = 4 * word + place
                if 0 <= content[n] + change <= 255:
                    fixes.append(Fix(at + n, bytes([content[n] + change])))
    return fixes


@lru_cache(maxsize=4)
def _weights(words: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the weights of the words in the two halves of a checksum, which are sums modulo 2**32. For each pair of
    words x, y, SQLite computes `a += x + b; b += y + a`."""
    import numpy as np

    rows = []
    a, b, c, d = 1, 0, 0, 1
    for _ in range(words // 2):  # from the last pair to the first
        rows += [(b, d), ((a + b) & _MASK, (c + d) & _MASK)]
        a, b, c, d = _step(a, b, c, d)
    first, second = np.array(rows[::-1], np.uint32).T
    return first, second


@lru_cache(maxsize=4)
def _power(pairs: int) -> tuple[int, int, int, int]:
    matrix = (1, 0, 0, 1)
    for _ in range(pairs):
        matrix = _step(*matrix)
    return matrix


def _step(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    """Multiply a matrix by ((1, 1), (1, 2)), which is the step of a pair of words that are 0."""
    return (a + b) & _MASK, (a + 2 * b) & _MASK, (c + d) & _MASK, (c + 2 * d) & _MASK


def _sums(data: bytes) -> Sums:
    first, second = struct.unpack(">II", data)
    return first, second
