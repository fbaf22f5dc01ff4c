"""From entries to windows that fit the model, and from windows to vectors, each text embedded once.

An entry's windows cover all of its content. Each is embedded with the entry's context line before it, so that a
passage from the middle of a document still knows whose it is. Texts are cut out of their entries again when their turn
comes, and finished vectors leave as soon as there is a batch of them: what a call holds at once does not grow with its
vectors, and of a window it remembers where it lies and the hash of its text.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agentformer.errors import EmbedderError, EmbedderUnavailable, TextTooLong
from agentformer.records import vectors as store
from agentformer.records.vectors import HASH_BYTES, Rows, Window
from agentformer.text.chunking import windows
from agentformer.types import UNSEARCHED_KINDS, Embedder, MemoryEntry, Span


class Refused(NamedTuple):
    """In place of an entry's windows: why the model does not take it."""

    reason: str


Windows = list[Window] | Refused
Positions = NDArray[np.int64]


class WindowTable:
    """Per entry, in the order of entries, its windows or why it is refused. A window's position counts all windows."""

    __slots__ = ("_ends", "_first", "_hashes", "_instead", "_starts")

    def __init__(self) -> None:
        self._first = array("q", [0])  # per entry, the position of its first window; and one more
        self._starts = array("i")
        self._ends = array("i")
        self._hashes = bytearray()
        self._instead: dict[int, Windows] = {}

    def append(self, windows: Iterable[Window]) -> None:
        """The windows of the next entry."""
        for (start, end), key in windows:
            self._starts.append(start)
            self._ends.append(end)
            self._hashes += key
        self._first.append(len(self._starts))

    def put(self, i: int, windows: Windows) -> None:
        """What stands for the windows of the entry `i` from now on; they keep their positions."""
        self._instead[i] = windows

    def __len__(self) -> int:
        return len(self._first) - 1

    def __getitem__(self, i: int) -> Windows:
        if not 0 <= i < len(self):
            raise IndexError(i)
        if i in self._instead:
            return self._instead[i]
        return [Window(self.span(p), self.hash(p)) for p in range(self._first[i], self._first[i + 1])]

    def __iter__(self) -> Iterator[Windows]:
        return (self[i] for i in range(len(self)))

    def of(self, entries: Sequence[int]) -> WindowTable:
        """Those of some entries, in their order."""
        out = WindowTable()
        for place, i in enumerate(entries):
            windows = self[i]
            out.append(() if isinstance(windows, Refused) else windows)
            if isinstance(windows, Refused):
                out.put(place, windows)
        return out

    def span(self, position: int) -> Span:
        return Span(self._starts[position], self._ends[position])

    def hash(self, position: int) -> bytes:
        return bytes(self._hashes[position * HASH_BYTES : (position + 1) * HASH_BYTES])

    def lengths(self, positions: Positions) -> Positions:
        """Code points of the entry's content in each of these windows."""
        starts, ends = (np.array(column, dtype=np.int64) for column in (self._starts, self._ends))
        return (ends - starts)[positions]

    def owners(self) -> Positions:
        """The entry of each window."""
        first = np.array(self._first, dtype=np.int64)
        return np.repeat(np.arange(len(self)), first[1:] - first[:-1])

    def texts(self) -> tuple[Positions, Positions]:
        """Of each distinct text, the position of its first window, in order; and of each window, the number of its
        text in that order."""
        if not self._starts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        hashes = np.frombuffer(bytes(self._hashes), dtype=f"V{HASH_BYTES}")
        _, first, text = np.unique(hashes, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return first[order], rank[text]


Progress = Callable[[int, int], None]  # windows done, windows in all

_CONTEXT_SHARE = 0.25  # of the model's window; the context must not crowd out what it introduces
GROUP = 64  # texts embedded between two commits of finished vectors: what an interruption can cost
_ASKED = 4_096  # hashes that the store is asked for at a time
_CONTEXTS = 1_024  # context lines remembered with their tokens; the chunks of a section share one
_OWN = 2  # tokens that a model may put before a text without letters for them, such as SentencePiece's space
# A model without a tokenizer at hand is given windows of estimated length; where it finds them too long, shorter ones.
SHARES = (1.0, 0.5, 0.25, 0.125)


@runtime_checkable
class AsksInBatches(Protocol):
    """An embedder that sends its texts elsewhere, `request_texts` at a time."""

    @property
    def request_texts(self) -> int: ...


class _Failed(NamedTuple):
    """What a model did not take."""

    reasons: dict[int, EmbedderError]  # of each entry that has a text in a batch that was refused
    left: Counter[int]  # how many windows of an entry are not embedded
    total: int  # windows that had no vector

    @property
    def told(self) -> int:
        return self.total - self.left.total()


class WindowCutter:
    """Cuts entries for an embedder into windows of at most `share` of what it reads, and of at most `window_tokens` of
    their own text (0: as the model reads). A context line stays what it is, however small the windows beside it are."""

    def __init__(self, embedder: Embedder, share: float = 1.0, window_tokens: int = 0) -> None:
        self._embedder = embedder
        self._limit = max(2, int(embedder.space.max_tokens * share))
        self._window = window_tokens or self._limit
        self._contexts: dict[str, tuple[str, int]] = {}

    def cut(self, entries: Iterable[MemoryEntry]) -> WindowTable:
        """All windows of entries."""
        cuts = WindowTable()
        for entry in entries:
            before, spans = ("", []) if entry.kind in UNSEARCHED_KINDS else self._spans(entry)
            texts = (before + entry.content[start:end] for start, end in spans)
            cuts.append([Window(span, store.text_hash(text)) for span, text in zip(spans, texts, strict=True)])
        return cuts

    def text(self, entry: MemoryEntry, span: Span) -> str:
        """What is embedded for a window."""
        return self._context(entry)[0] + entry.content[span.start : span.end]

    def _spans(self, entry: MemoryEntry) -> tuple[str, list[Span]]:
        """What stands before each window, and the windows."""
        before, used = self._context(entry)
        limit = min(self._limit - used, self._window)
        content = entry.content
        if len(content) <= limit - _OWN and content.isascii():  # no token without a letter of its own: it fits
            bare = content.strip()
            start = content.find(bare)
            return before, [Span(start, start + len(bare))] if bare else []
        return before, windows(content, self._embedder.token_spans, limit)

    def _context(self, entry: MemoryEntry) -> tuple[str, int]:
        """The line before each window, and how many tokens it takes."""
        if not entry.context:
            return "", 0
        known = self._contexts.get(entry.context)
        if known is None:
            if len(self._contexts) >= _CONTEXTS:
                self._contexts.clear()
            line = " ".join(entry.context.split())
            tokens = self._embedder.token_spans(line)[: int(self._limit * _CONTEXT_SHARE)] if line else []
            known = (line[: tokens[-1].end] + "\n", len(tokens) + 1) if tokens else ("", 0)
            self._contexts[entry.context] = known
        return known


class Vectorizer:
    """Embeds the windows of entries. `known` tells which texts have a vector already, `keep` keeps finished ones of
    long work at once."""

    def __init__(
        self,
        embedder: Embedder,
        known: Callable[[Sequence[bytes]], set[bytes]],
        keep: Callable[[Rows], None],
        progress: Progress | None = None,
        *,
        window_tokens: int = 0,
    ) -> None:
        self._embedder = embedder
        self._window_tokens = window_tokens
        self._known = known
        self._keep = keep
        self._progress = progress
        self._size = max(1, min(GROUP, embedder.request_texts)) if isinstance(embedder, AsksInBatches) else GROUP
        self._held: list[Rows] = []
        self.reused = 0
        self.embedded = 0

    @property
    def rows(self) -> Rows:
        """The vectors that were made and are not kept yet: fewer than two batches, whatever was embedded."""
        return _joined(self._held)

    def __call__(self, entries: Sequence[MemoryEntry]) -> WindowTable:
        """Each entry's windows. The vectors of texts that were not known have been kept, or are in `rows`. An entry
        that the model takes in no way is `Refused`, and holds up no other. Raises `EmbedderUnavailable`; what was
        finished before has been kept."""
        cutter = WindowCutter(self._embedder, window_tokens=self._window_tokens)
        cuts = cutter.cut(entries)
        try:
            failed = self._embed(cutter, entries, cuts, self._progress)
            told = failed.told
            for i in sorted(failed.reasons):
                cuts.put(i, self._alone(entries[i]))
                if self._progress and failed.left[i]:
                    told += failed.left[i]
                    self._progress(told, failed.total)
        except EmbedderUnavailable:
            self._release()
            raise
        return cuts

    def _alone(self, entry: MemoryEntry) -> Windows:
        """One entry's windows, as wide as the model takes them."""
        reason = ""
        for share in SHARES:
            cutter = WindowCutter(self._embedder, share, self._window_tokens)
            cuts = cutter.cut([entry])
            error = self._embed(cutter, [entry], cuts).reasons.get(0)
            if error is None:
                return cuts[0]
            reason = str(error)
            if not isinstance(error, TextTooLong):
                break
        return Refused(reason)

    def _embed(
        self, cutter: WindowCutter, entries: Sequence[MemoryEntry], cuts: WindowTable, progress: Progress | None = None
    ) -> _Failed:
        """Embed what has no vector."""
        first, text = cuts.texts()
        owners = cuts.owners()
        missing = self._missing(cuts, first)
        failed = _Failed({}, Counter(owners[missing].tolist()), len(missing))
        for group in _groups(missing, self._size):  # of like length, so that a batch is padded little
            try:
                self._batch([cutter.text(entries[owners[p]], cuts.span(p)) for p in group], [*map(cuts.hash, group)])
            except EmbedderUnavailable:
                raise
            except EmbedderError as error:
                failed.reasons.update(dict.fromkeys(owners[np.isin(text, text[group])].tolist(), error))
                if len(failed.reasons) == len(entries):
                    break
                continue
            failed.left.subtract(owners[group].tolist())
            if progress:
                progress(failed.told, failed.total)
        return failed

    def _missing(self, cuts: WindowTable, first: Positions) -> Positions:
        """The windows with the texts that have no vector, the shortest first."""
        without = np.ones(len(first), dtype=bool)
        held = {key for rows in self._held for key in rows.hashes}
        for start in range(0, len(first), _ASKED):
            hashes = [cuts.hash(p) for p in first[start : start + _ASKED]]
            known = self._known([key for key in hashes if key not in held])
            self.reused += len(known)
            without[start : start + _ASKED] = [key not in known and key not in held for key in hashes]
        missing = first[without]
        return missing[np.argsort(cuts.lengths(missing), kind="stable")]

    def _batch(self, texts: list[str], hashes: list[bytes]) -> None:
        if sum(len(rows.hashes) for rows in self._held) >= self._size:
            self._release()
        rows = self._embedder.embed_documents(texts)
        store.check_rows(rows, len(texts))
        self._held.append(Rows(hashes, rows))
        self.embedded += len(texts)

    def _release(self) -> None:
        """Have what is held kept, and forget it."""
        if self._held:
            self._keep(self.rows)
            self._held.clear()


def _joined(parts: Sequence[Rows]) -> Rows:
    if not parts:
        return Rows([], np.zeros((0, 0), dtype=np.float32))
    return Rows([key for rows in parts for key in rows.hashes], np.concatenate([rows.matrix for rows in parts]))


def _groups(positions: Positions, size: int) -> Iterator[Positions]:
    for start in range(0, len(positions), size):
        yield positions[start : start + size]
