"""Windows of entries, and the vectors of these windows. A window is a part of an entry that fits the length limit of
the model. Equal texts are embedded only once.

The windows of an entry cover all of its content. The context line of the entry is added before the text of each window.
Therefore the vector of a passage from the middle of a document also represents the title of the document.

To save memory, only the positions and the hashes of all windows are kept in memory. The text of a window is read when
the window is embedded. Finished vectors are stored in batches, so memory never contains all vectors.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.embedders.guarded import token_counts
from agentformer.errors import EmbedderError, EmbedderUnavailable, TextTooLong
from agentformer.records import vectors as store
from agentformer.records.vectors import HASH_BYTES, Rows, Window
from agentformer.text.splitting import windows
from agentformer.types import UNSEARCHED_KINDS, Embedder, MemoryEntry, Span

Progress = Callable[[int, int], None]  # number of windows done, and number of all windows
Positions = NDArray[np.int64]

_CONTEXT_SHARE = 0.25  # maximum share of the model's token limit for a context line; the rest is for the text
GROUP = 64  # number of texts embedded between two commits; an interruption loses at most these
_MOST_UNSTORED = 4_096  # maximum finished vectors that are not stored yet: 6 MB with 384 dimensions
_HASHES = 4_096  # text hashes that are looked up in the store at a time
_MAX_CONTEXTS = 1_024  # number of cached context lines with their tokens; the chunks of a section have the same line
_OWN_TOKENS = 2  # tokens that a model may put before a text, such as SentencePiece's space
# For a model without a tokenizer, the length of windows is estimated. If the model refuses them as too long, shorter
# windows are tried.
SHARES = (1.0, 0.5, 0.25, 0.125)


class Refused(NamedTuple):
    """The reason why the model refuses an entry. In a `WindowTable`, it replaces the windows of the entry."""

    reason: str


Windows = list[Window] | Refused


class WindowTable:
    """The windows of many entries, in compact arrays of about fifty bytes a window. An entry that the model refuses has
    a `Refused` object instead of windows. All windows are numbered in order; the number of a window is called its
    position."""

    __slots__ = ("_ends", "_first", "_hashes", "_replaced", "_starts")

    def __init__(self) -> None:
        self._first = array("q", [0])  # the position of the first window of each entry, and the end of the last entry
        self._starts = array("i")
        self._ends = array("i")
        self._hashes = bytearray()
        self._replaced: dict[int, Windows] = {}

    def append(self, windows: Iterable[Window]) -> None:
        """Add an entry with these windows at the end of the table."""
        for (start, end), key in windows:
            self._starts.append(start)
            self._ends.append(end)
            self._hashes += key
        self._first.append(len(self._starts))

    def replace(self, i: int, windows: Windows) -> None:
        """Replace the windows of the entry at index `i`. The positions of the replaced windows stay unused."""
        self._replaced[i] = windows

    def __len__(self) -> int:
        return len(self._first) - 1

    def __getitem__(self, i: int) -> Windows:
        if not 0 <= i < len(self):
            raise IndexError(i)
        if i in self._replaced:
            return self._replaced[i]
        return [Window(self.span(p), self.hash(p)) for p in range(self._first[i], self._first[i + 1])]

    def __iter__(self) -> Iterator[Windows]:
        return (self[i] for i in range(len(self)))

    def select(self, entries: Sequence[int]) -> WindowTable:
        """Return a new table with the entries at these indices, in this order."""
        table = WindowTable()
        for n, i in enumerate(entries):
            windows = self[i]
            table.append(() if isinstance(windows, Refused) else windows)
            if isinstance(windows, Refused):
                table.replace(n, windows)
        return table

    def span(self, position: int) -> Span:
        return Span(self._starts[position], self._ends[position])

    def hash(self, position: int) -> bytes:
        return bytes(self._hashes[position * HASH_BYTES : (position + 1) * HASH_BYTES])

    def lengths(self, positions: Positions) -> Positions:
        """Return the length of the windows at these positions, in code points, without the context line."""
        starts, ends = (np.array(column, dtype=np.int64) for column in (self._starts, self._ends))
        return (ends - starts)[positions]

    def owners(self) -> Positions:
        """Return for each window the index of its entry."""
        first = np.array(self._first, dtype=np.int64)
        return np.repeat(np.arange(len(self)), first[1:] - first[:-1])

    def texts(self) -> tuple[Positions, Positions]:
        """Find windows with equal texts, so that each text is embedded only once. The distinct texts are numbered in
        order of their first window. Return two arrays: for each text the position of its first window, and for each
        window the number of its text."""
        if not self._starts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        hashes = np.frombuffer(bytes(self._hashes), dtype=f"V{HASH_BYTES}")
        _, first, text = np.unique(hashes, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return first[order], rank[text]


class WindowCutter:
    """Cuts entries into windows. `share` is the share of the model's token limit (above 0, at most 1) that a window
    with its context line may use. `window_tokens` additionally limits the content of a window without its context line
    (0: no additional limit)."""

    def __init__(self, embedder: Embedder, share: float = 1.0, window_tokens: int = 0) -> None:
        self._embedder = embedder
        self._limit = max(2, int(embedder.space.max_tokens * share))
        self._window = window_tokens or self._limit
        self._contexts: dict[str, tuple[str, int]] = {}

    def cut(self, entries: Iterable[MemoryEntry]) -> WindowTable:
        """Cut entries into windows. Entries of kinds that are never searched get no windows."""
        table = WindowTable()
        remaining = iter(entries)
        while group := [*islice(remaining, GROUP)]:
            for entry, spans in zip(group, self._spans_of(group), strict=True):
                texts = (self.text(entry, span) for span in spans)
                table.append([Window(span, store.text_hash(text)) for span, text in zip(spans, texts, strict=True)])
        return table

    def text(self, entry: MemoryEntry, span: Span) -> str:
        """Return the text of a window as it is embedded: the context line and the part `span` of the content."""
        return self._context(entry)[0] + entry.content[span.start : span.end]

    def _spans_of(self, entries: Sequence[MemoryEntry]) -> Iterator[list[Span]]:
        """Yield the positions of the windows in the content of each entry. The tokens of all entries are counted
        together, because most contents fit a window, and counting is faster than finding the position of each token."""
        limits = [
            0 if entry.kind in UNSEARCHED_KINDS else min(self._limit - self._context(entry)[1], self._window)
            for entry in entries
        ]
        counted = [entry.content for entry, limit in zip(entries, limits, strict=True) if _is_long(entry, limit)]
        counts = iter(token_counts(self._embedder, counted))
        for entry, limit in zip(entries, limits, strict=True):
            if not limit:
                yield []
            elif _is_long(entry, limit) and next(counts) > limit:
                yield windows(entry.content, self._embedder.token_spans, limit)
            else:
                bare = entry.content.strip()
                start = entry.content.find(bare)
                yield [Span(start, start + len(bare))] if bare else []

    def _context(self, entry: MemoryEntry) -> tuple[str, int]:
        """Return the context line that is added before each window, and its number of tokens. The line is shortened if
        it would take too much of the window."""
        if not entry.context:
            return "", 0
        context = self._contexts.get(entry.context)
        if context is None:
            if len(self._contexts) >= _MAX_CONTEXTS:
                self._contexts.clear()
            line = " ".join(entry.context.split())
            tokens = self._embedder.token_spans(line)[: int(self._limit * _CONTEXT_SHARE)] if line else []
            context = (line[: tokens[-1].end] + "\n", len(tokens) + 1) if tokens else ("", 0)
            self._contexts[entry.context] = context
        return context


def _is_long(entry: MemoryEntry, limit: int) -> bool:
    """Return whether the content may have more than `limit` tokens. Return False if the limit is 0, because such an
    entry gets no windows."""
    fits = len(entry.content) <= limit - _OWN_TOKENS and entry.content.isascii()  # a token has at least one character
    return bool(limit) and not fits


class _Failures(NamedTuple):
    reasons: dict[int, EmbedderError]  # entry index -> error, for each entry with a text in a refused batch
    left: Counter[int]  # entry index -> number of its windows that are not embedded
    total: int  # windows that had no vector

    @property
    def done(self) -> int:
        return self.total - self.left.total()


class WindowEmbedder:
    """Embeds the windows of entries. The function `find_known` receives text hashes, and returns the hashes of the
    texts that have a stored vector. The function `store_rows` stores finished vectors; it is called several times if
    the work takes long."""

    def __init__(
        self,
        embedder: Embedder,
        find_known: Callable[[Sequence[bytes]], set[bytes]],
        store_rows: Callable[[Rows], None],
        progress: Progress | None = None,
        *,
        window_tokens: int = 0,
        keep_seconds: float = 0.0,
    ) -> None:
        """Finished batches are stored after `keep_seconds` of work, or earlier if there are many. With a fast model, a
        transaction for each batch would take longer than the embedding of the batch."""
        self._embedder = embedder
        self._window_tokens = window_tokens
        self._keep_seconds = keep_seconds
        self._stored_at = time.monotonic()
        self._find_known = find_known
        self._store_rows = store_rows
        self._progress = progress
        self._size = max(1, min(GROUP, getattr(embedder, "request_texts", GROUP)))  # set by embedders on a server
        self._unstored: list[Rows] = []
        self.reused = 0
        self.embedded = 0

    @property
    def rows(self) -> Rows:
        """The finished vectors that `store_rows` has not stored yet. The caller stores them at the end of its work."""
        if not self._unstored:
            return Rows([], np.zeros((0, 0), dtype=np.float32))
        hashes = [key for rows in self._unstored for key in rows.hashes]
        return Rows(hashes, np.concatenate([rows.matrix for rows in self._unstored]))

    def embed(self, entries: Sequence[MemoryEntry]) -> WindowTable:
        """Cut entries into windows, embed the windows that have no vector, and return the table of all windows.
        Afterwards, the caller must store the vectors in `rows`. If the model refuses an entry, the table contains a
        `Refused` object for this entry, and the other entries are embedded. Raises `EmbedderUnavailable` if the
        embedder cannot be used; the vectors finished until then are stored."""
        cutter = WindowCutter(self._embedder, window_tokens=self._window_tokens)
        table = cutter.cut(entries)
        try:
            failures = self._embed(cutter, entries, table, self._progress)
            done = failures.done
            for i in sorted(failures.reasons):
                table.replace(i, self._embed_one(entries[i]))
                if self._progress and failures.left[i]:
                    done += failures.left[i]
                    self._progress(done, failures.total)
        except EmbedderUnavailable:
            self._flush()
            raise
        return table

    def _embed_one(self, entry: MemoryEntry) -> Windows:
        """Embed one entry that the model refused. Shorter windows are tried until the model accepts them. Return the
        windows, or the reason of the refusal."""
        reason = ""
        for share in SHARES:
            cutter = WindowCutter(self._embedder, share, self._window_tokens)
            table = cutter.cut([entry])
            error = self._embed(cutter, [entry], table).reasons.get(0)
            if error is None:
                return table[0]
            reason = str(error)
            if not isinstance(error, TextTooLong):
                break
        return Refused(reason)

    def _embed(
        self, cutter: WindowCutter, entries: Sequence[MemoryEntry], table: WindowTable, progress: Progress | None = None
    ) -> _Failures:
        """Embed each text that has no vector yet. If the model refuses a batch, the `reasons` of the result contain all
        entries with a text of this batch."""
        first, text_of = table.texts()  # for each text its first window, for each window its text
        owners = table.owners()
        missing = self._missing(table, first)
        failures = _Failures({}, Counter(owners[missing].tolist()), len(missing))
        for start in range(0, len(missing), self._size):
            batch = missing[start : start + self._size]  # sorted by length, so little padding is needed
            texts = [cutter.text(entries[owners[p]], table.span(p)) for p in batch]
            try:
                self._embed_batch(texts, [*map(table.hash, batch)])
            except EmbedderUnavailable:
                raise
            except EmbedderError as error:
                failures.reasons.update(dict.fromkeys(owners[np.isin(text_of, text_of[batch])].tolist(), error))
                if len(failures.reasons) == len(entries):
                    break
                continue
            failures.left.subtract(owners[batch].tolist())
            if progress:
                progress(failures.done, failures.total)
        return failures

    def _missing(self, table: WindowTable, first: Positions) -> Positions:
        """Return the positions of the windows whose text has no vector, the shortest windows first. `first` contains
        one position for each distinct text."""
        missing = np.ones(len(first), dtype=bool)
        unstored = {key for rows in self._unstored for key in rows.hashes}
        for start in range(0, len(first), _HASHES):
            hashes = [table.hash(p) for p in first[start : start + _HASHES]]
            known = self._find_known([key for key in hashes if key not in unstored])
            self.reused += len(known)
            missing[start : start + _HASHES] = [key not in known and key not in unstored for key in hashes]
        positions = first[missing]
        return positions[np.argsort(table.lengths(positions), kind="stable")]

    def _embed_batch(self, texts: list[str], hashes: list[bytes]) -> None:
        unstored = sum(len(rows.hashes) for rows in self._unstored)
        worked = time.monotonic() - self._stored_at
        if unstored >= self._size and (worked >= self._keep_seconds or unstored >= _MOST_UNSTORED):
            self._flush()
        rows = self._embedder.embed_documents(texts)
        store.check_rows(rows, len(texts))
        self._unstored.append(Rows(hashes, rows))
        self.embedded += len(texts)

    def _flush(self) -> None:
        if self._unstored:
            self._store_rows(self.rows)
            self._unstored.clear()
            self._stored_at = time.monotonic()
