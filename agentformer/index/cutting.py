"""From entries to windows that fit the model, and from windows to vectors, each text embedded once.

An entry's windows cover all of its content. Each is embedded with the entry's context line before it, so that a
passage from the middle of a document still knows whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from agentformer.errors import EmbedderError, EmbedderUnavailable, TextTooLong
from agentformer.records import vectors as store
from agentformer.records.vectors import Window
from agentformer.text.chunking import windows
from agentformer.types import UNSEARCHED_KINDS, Embedder, MemoryEntry

Progress = Callable[[int, int], None]  # windows done, windows in all
Rows = dict[bytes, np.ndarray]

_CONTEXT_SHARE = 0.25  # of the model's window; the context must not crowd out what it introduces
GROUP = 64  # texts embedded between two commits of finished vectors: what an interruption can cost
# A model without a tokenizer at hand is given windows of estimated length; where it finds them too long, shorter ones.
_SHARES = (1.0, 0.5, 0.25, 0.125)


class Cut(NamedTuple):
    """Windows per entry, and the text of each distinct window."""

    windows: list[list[Window]]
    texts: dict[bytes, str]


def cut(entries: Sequence[MemoryEntry], embedder: Embedder, share: float = 1.0) -> Cut:
    """All windows of entries, each at most `share` of what the model reads."""
    texts: dict[bytes, str] = {}
    return Cut([_windows(entry, embedder, share, texts) for entry in entries], texts)


class Refused(NamedTuple):
    """In place of an entry's windows: why the model does not take it."""

    reason: str


Windows = list[Window] | Refused


@runtime_checkable
class AsksInBatches(Protocol):
    """An embedder that sends its texts elsewhere, `request_texts` at a time."""

    @property
    def request_texts(self) -> int: ...


class Vectorizer:
    """Embeds the windows of entries. `known` tells which texts have a vector already, `keep` keeps finished ones of
    long work at once."""

    def __init__(
        self,
        embedder: Embedder,
        known: Callable[[Sequence[bytes]], set[bytes]],
        keep: Callable[[Rows], None],
        progress: Progress | None = None,
    ) -> None:
        self._embedder = embedder
        self._known = known
        self._keep = keep
        self._progress = progress
        self.rows: Rows = {}
        self.reused = 0

    def __call__(self, entries: Sequence[MemoryEntry]) -> list[Windows]:
        """Each entry's windows; `rows` holds the vectors of those texts that were not known. An entry that the model
        takes in no way is `Refused`, and holds up no other. Raises `EmbedderUnavailable`; what was finished before
        has been kept."""
        whole = cut(entries, self._embedder)
        try:
            self._embed(whole.texts)
        except EmbedderUnavailable:
            raise
        except EmbedderError:
            return [self._alone(entry) for entry in entries]
        return list(whole.windows)

    def _alone(self, entry: MemoryEntry) -> Windows:
        """One entry's windows, as wide as the model takes them."""
        reason = ""
        for share in _SHARES:
            narrow = cut([entry], self._embedder, share)
            try:
                self._embed(narrow.texts)
                return narrow.windows[0]
            except TextTooLong as error:
                reason = str(error)
            except EmbedderUnavailable:
                raise
            except EmbedderError as error:
                return Refused(str(error))
        return Refused(reason)

    def _embed(self, texts: Mapping[bytes, str]) -> None:
        new = [key for key in texts if key not in self.rows]
        known = self._known(new)
        self.reused += len(known)
        missing = sorted((key for key in new if key not in known), key=lambda key: len(texts[key]))
        done = 0
        size = max(1, min(GROUP, self._embedder.request_texts)) if isinstance(self._embedder, AsksInBatches) else GROUP
        for group in _groups(missing, size):  # of like length, so that a batch is padded little
            rows = self._embedder.embed_documents([texts[key] for key in group])
            store.check_rows(rows, len(group))
            finished = dict(zip(group, rows, strict=True))
            if len(missing) > size:
                self._keep(finished)
            self.rows.update(finished)
            done += len(group)
            if self._progress:
                self._progress(done, len(missing))


def _windows(entry: MemoryEntry, embedder: Embedder, share: float, texts: dict[bytes, str]) -> list[Window]:
    """The entry's windows; their texts are added to `texts`."""
    if entry.kind in UNSEARCHED_KINDS:
        return []
    limit = max(2, int(embedder.space.max_tokens * share))
    context, used = _context(entry, embedder, limit)
    out = []
    for span in windows(entry.content, embedder.token_spans, limit - used):
        text = context + entry.content[span.start : span.end]
        key = store.text_hash(text)
        texts[key] = text
        out.append(Window(span, key))
    return out


def _context(entry: MemoryEntry, embedder: Embedder, limit: int) -> tuple[str, int]:
    """The line before each window, and how many tokens it takes."""
    line = " ".join(entry.context.split())
    if not line:
        return "", 0
    tokens = embedder.token_spans(line)[: int(limit * _CONTEXT_SHARE)]
    return (line[: tokens[-1].end] + "\n", len(tokens) + 1) if tokens else ("", 0)


def _groups(keys: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    for i in range(0, len(keys), size):
        yield keys[i : i + size]
