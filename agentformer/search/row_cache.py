"""A cache of the data that a ranking reads from the database: the derived rows of entries (title, language, dates and
so on), the beginnings of texts, and the exact vectors of the nearest windows (embedded parts of entries). It also
records which derived rows are plain. Plain rows have no influence on a ranking.

Most searches of a store find the same few thousand entries. For a row in memory, a search needs no SQL statement, no
checksum and no decoding. Python runs such work in only one thread at a time.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from agentformer.index import entry_properties
from agentformer.index.entry_properties import PLAIN, Derived
from agentformer.index.vectors.flat import IntArray
from agentformer.index.vectors.stored_vectors import read_stored_vectors
from agentformer.records import change_feed
from agentformer.records import entries as records
from agentformer.records.entries import Sample
from agentformer.records.vectors import window_spans
from agentformer.search.boosts import DOCUMENT_HEAD
from agentformer.types import Connection, Matrix, Span

Row = TypeVar("Row")
Load = Callable[[Sequence[int]], Mapping[int, Row]]

CACHED_DERIVED = 16_384  # rows in memory, of about 500 bytes each
_PLAIN = 65_536  # rows in memory, of about 100 bytes each
_SAMPLES = 8_192  # rows in memory, of about 700 bytes each
_SPANS = 8_192
_VECTOR_BYTES = 12_000_000  # 7,800 vectors of 384 dimensions
_SAMPLE_LENGTH = 600  # code points of the beginning of an entry
_MAX_CHANGES = 2_000  # changes that are applied one by one; after more changes, all rows are dropped
_MAX_OLDER = 50  # if more transactions in succession are older than the rows, a backup was restored
_DROPPED = 0.25  # share of the rows, oldest first, that is dropped to make room for new rows


class CachedRows(Generic[Row]):
    """A cache of rows. The key is the number of an entry or of a window, and `most` is the maximum number of rows.
    With `unpack`, rows are named tuples of texts and numbers. They are kept as plain tuples, which a collection of
    garbage does not visit; `unpack` makes the row of such a tuple."""

    def __init__(self, most: int, unpack: Callable[[Any], Row] | None = None) -> None:
        self._most = most
        self._unpack = unpack
        self._rows: dict[int, Any] = {}

    def find(self, nums: Sequence[int]) -> dict[int, Row]:
        """Return the rows with these numbers that are in memory."""
        rows = list(map(self._rows.get, nums))
        found: dict[int, Any] = dict(zip(nums, rows, strict=True))
        if None in rows:
            found = {num: row for num, row in found.items() if row is not None}
        if (unpack := self._unpack) is not None:
            found = {num: unpack(row) for num, row in found.items()}
        return found

    def add(self, rows: Mapping[int, Row]) -> None:
        """Keep these rows. If there are too many, the oldest quarter is dropped."""
        added: Mapping[int, Any] = rows
        self._rows.update(added if self._unpack is None else {num: (*row,) for num, row in added.items()})
        if len(self._rows) > self._most:
            self.drop(list(islice(self._rows, len(self._rows) - int(self._most * (1 - _DROPPED)))))

    def drop(self, nums: Iterable[int]) -> None:
        for num in nums:
            self._rows.pop(num, None)

    def clear(self) -> None:
        self._rows.clear()


class CachedVectors:
    """Vectors by number, in one matrix of at most `_VECTOR_BYTES`. When the matrix is full, a new vector replaces the
    oldest one."""

    def __init__(self) -> None:
        self._matrix: Matrix = np.zeros((0, 0), np.float32)
        self._numbers = array("q")  # the number of the vector in each row of the matrix
        self._places: dict[int, int] = {}
        self._next = 0  # the row that is replaced next

    def find(self, numbers: Sequence[int], dimension: int) -> tuple[list[int], Matrix] | None:
        """Find the vectors with these numbers in memory. Return the indices in `numbers` of the vectors that were
        found, and a matrix with one of these vectors in each row. Return None if none is in memory."""
        if self._matrix.shape[1] != dimension:
            return None
        places = list(map(self._places.get, numbers))
        known = [place for place in places if place is not None]
        found = range(len(known)) if len(known) == len(places) else np.flatnonzero([p is not None for p in places])
        return ([*found], self._matrix[known]) if known else None

    def add(self, numbers: Sequence[int], rows: Matrix) -> None:
        """Keep these vectors, one in each row of `rows`. Vectors of another dimension are dropped first."""
        most = max(1, _VECTOR_BYTES // (rows.shape[1] * rows.itemsize))
        if self._matrix.shape[1] != rows.shape[1]:
            self.clear()
            self._matrix = np.zeros((min(most, 1_024), rows.shape[1]), np.float32)
        used, new = list[int](), list[int]()  # indices in the matrix and in `rows`
        for place, number in enumerate(numbers[-most:], max(0, len(numbers) - most)):
            if number in self._places:  # another search has added it
                continue
            at = self._next
            if at < len(self._numbers):
                del self._places[self._numbers[at]]
                self._numbers[at] = number
            else:
                self._numbers.append(number)
            self._places[number] = at
            used.append(at)
            new.append(place)
            self._next = (at + 1) % most
        while len(self._matrix) < len(self._numbers):
            self._matrix = np.concatenate((self._matrix, np.zeros_like(self._matrix)))[:most]
        self._matrix[used] = rows[new]

    def clear(self) -> None:
        self._matrix, self._numbers, self._places, self._next = np.zeros((0, 0), np.float32), array("q"), {}, 0


class RankedRows:
    """The cached rows of one store. Each search gets the rows as its own transaction sees them: `reads` first drops the
    rows of entries that have changed. If the transaction is older than the cached rows, the search reads from the
    database only. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seq = 0  # number of the change up to which the rows are current; `_point` is the token of this change
        self._point = ""
        self._older = 0  # number of successive transactions that were older than `seq`
        self.derived = CachedRows[Derived](CACHED_DERIVED)
        self.plain = CachedRows[int](_PLAIN)
        self.samples = CachedRows(_SAMPLES, Sample._make)
        self.spans = CachedRows(_SPANS, Span._make)  # by window number; the span of a window never changes
        self.vectors = CachedVectors()

    def reads(self, connection: Connection) -> Reads:
        """Return the reader for one search. The caller must have begun a read transaction on `connection`."""
        seq = change_feed.last_seq(connection)
        with self.lock:
            current = (seq == self.seq and not self._older) or self._follow(connection, seq)
        return Reads(self, connection, seq, current)

    def _follow(self, connection: Connection, seq: int) -> bool:
        """Drop the rows of entries that have changed up to `seq`, the last change that the transaction sees. Return
        False if the rows are newer than the transaction."""
        if seq < self.seq and self._older < _MAX_OLDER:
            self._older += 1
            return False
        restored = seq < self.seq or change_feed.token_at(connection, self.seq) != self._point
        changes = [] if restored else change_feed.since(connection, self.seq, _MAX_CHANGES + 1)
        if restored:  # other windows and vectors may have the same numbers
            self.spans.clear()
            self.vectors.clear()
        for rows in (self.derived, self.plain, self.samples):
            if restored or len(changes) > _MAX_CHANGES:
                rows.clear()
            else:
                rows.drop(num for _, num in changes)
        self.seq, self._point, self._older = seq, change_feed.token_at(connection, seq), 0
        return True


class Reads(NamedTuple):
    """Reads rows for one search, from memory or from the database. `seq` is the last change that the transaction of
    `connection` sees. `current` is True if the rows in memory have the state that this transaction sees. If it is
    False, all rows are read from the database."""

    cache: RankedRows
    connection: Connection
    seq: int
    current: bool

    def derived(self, nums: Sequence[int]) -> dict[int, Derived]:
        """Return the derived rows of these entries (properties that were computed in advance). Missing and outdated
        rows are left out."""
        return self._rows(self.cache.derived, nums, partial(entry_properties.read, self.connection))

    def for_boosts(self, nums: Sequence[int], limit: int) -> dict[int, Derived]:
        """Return the derived rows of these entries, which are sorted, best first. Missing rows are left out. To save
        time, plain rows (rows without influence on a ranking) are not read after the first `limit` entries, and `PLAIN`
        is returned for each of them. All rows are read if the best entries all belong to documents, because
        `document_boost` then counts the documents of all entries."""
        head = max(limit, DOCUMENT_HEAD)
        first = self.derived(nums[:head])
        best = [first[num] for num in nums[:DOCUMENT_HEAD] if num in first]
        if self.connection.is_remote or all(row.document is not None for row in best):
            return self.derived(nums)  # a second statement would be another round trip
        rest = nums[head:]
        plain = self._rows(self.cache.plain, rest, partial(entry_properties.plain, self.connection))
        known = {num: PLAIN for num in rest if plain.get(num)}
        return {**known, **first, **self.derived([num for num in rest if plain.get(num) == 0])}

    def complete(self, known: Mapping[int, Derived], nums: Iterable[int]) -> dict[int, Derived]:
        """Return the derived rows of the entries `nums` that are in `known`. `known` is the result of `for_boosts`. A
        row that `for_boosts` replaced by `PLAIN` is read now."""
        rows = {num: row for num in nums if (row := known.get(num)) is not None}
        plain = [num for num, row in rows.items() if row is PLAIN]
        return {num: row for num, row in rows.items() if row is not PLAIN} | self.derived(plain) if plain else rows

    def samples(self, nums: Sequence[int]) -> dict[int, Sample]:
        """Return a sample of each of these entries: its kind, its length and its beginning. A search uses samples to
        find out the language and the kind of its results."""
        return self._rows(self.cache.samples, nums, partial(records.samples, self.connection, length=_SAMPLE_LENGTH))

    def spans(self, windows: Sequence[int]) -> dict[int, Span]:
        """Return for each of these windows the part of the entry that the window covers."""
        return self._rows(self.cache.spans, windows, partial(window_spans, self.connection))

    def vectors(self, numbers: IntArray, dimension: int) -> tuple[IntArray, Matrix]:
        """Return two arrays, as `read_stored_vectors` does: the numbers of the vectors that are stored, and these
        vectors. `numbers` are in ascending order. Raises `StoreDamaged` if a vector has a wrong checksum."""
        wanted = list(dict.fromkeys(numbers.tolist()))
        with self.cache.lock:
            cached = self.cache.vectors.find(wanted, dimension) if self._usable else None
        places, rows = cached or ([], np.zeros((0, dimension), np.float32))
        if len(places) == len(wanted):
            return np.array(wanted, np.int64), rows
        known = {*places}
        missing = [number for at, number in enumerate(wanted) if at not in known]
        found, others = read_stored_vectors(self.connection, np.array(missing, np.int64), dimension)
        with self.cache.lock:
            if self._usable:
                self.cache.vectors.add(found.tolist(), others)
        if not places:
            return found, others
        together = np.concatenate(([wanted[at] for at in places], found))
        order = np.argsort(together)
        return together[order], np.concatenate((rows, others))[order]

    @property
    def _usable(self) -> bool:
        return self.current and self.cache.seq == self.seq

    def _rows(self, cached: CachedRows[Row], nums: Sequence[int], load: Load[Row]) -> dict[int, Row]:
        """Return the rows with the numbers `nums`, from the cache `cached`. Call `load` to read missing rows from the
        database. A row that `load` does not find is not in the result."""
        with self.cache.lock:
            known = cached.find(nums) if self._usable else {}
        if len(known) == len(nums) or not (missing := [num for num in dict.fromkeys(nums) if num not in known]):
            return known
        loaded = load(missing)
        with self.cache.lock:
            if self._usable:
                cached.add(loaded)
        known.update(loaded)
        return known
