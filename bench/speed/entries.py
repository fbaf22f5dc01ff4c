"""Any number of short entries, made of real sentences and always the same.

An entry is the first half of one sentence and the second half of one of its nearest, so that words are as frequent as
in real text. Its vector lies between the two sentences' embeddings, with a little noise, since embedding a million
texts would take hours. Near sentences are used because a search by lists then needs as many lists as for the sentences
themselves (60 of 517 for a recall of .99); with random pairs it would need six times as many.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agentformer
from agentformer.factory import AgentFormer
from bench.speed import passages
from bench.speed.kept import cache

Rows = NDArray[np.float32]

BLOCK = 10_000  # entries per block of vectors
QUESTIONS = 1_000
SCOPES = 100  # users; each has one entry of a hundred
_NOISE = 0.012  # of each component; cosine .97 to the vector without it
_NEAR = 64  # near sentences of each one: enough for a million entries
_MORE = 3  # words of a third sentence in each entry beyond these
_ROWS = 1_000  # of the similarities, computed at a time
_SEED = 20_260


@dataclass(frozen=True)
class Source:
    """Sentences and questions with their embeddings, rows of unit length."""

    sentences: list[str]
    vectors: Rows
    near: NDArray[np.int32]  # near sentences of each sentence: (sentences, at most `_NEAR`)
    questions: list[str]
    asked: Rows

    def text(self, number: int) -> str:
        """Return the text of an entry; see `texts`."""
        return self.texts([number])[0]

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """Return the texts of entries. No two of the first `near.size` entries consist of the same two halves. Entries
        beyond these also have some words of a third sentence."""
        pairs = zip(numbers, *(side.tolist() for side in self._pair(np.array(numbers))), strict=True)
        return [self._joined(number, first, second) for number, first, second in pairs]

    def _joined(self, number: int, first: int, second: int) -> str:
        head, tail = self.sentences[first].split(), self.sentences[second].split()
        more = []
        if turn := number // self.near.size:
            third = self.sentences[self.near[second, turn % self.near.shape[1]]].split()
            more = third[turn % len(third) :][:_MORE]
        return " ".join([*head[: (len(head) + 1) // 2], *more, *tail[len(tail) // 2 :]])

    def block(self, number: int) -> Rows:
        """Return the vectors of the entries from `number * BLOCK` on."""
        first, second = self._pair(np.arange(number * BLOCK, (number + 1) * BLOCK))
        chance = np.random.default_rng([_SEED, number])
        share = chance.uniform(0.3, 0.7, (BLOCK, 1)).astype(np.float32)
        rows = share * self.vectors[first] + (1 - share) * self.vectors[second]
        rows += np.float32(_NOISE) * chance.standard_normal(rows.shape, np.float32)
        unit: Rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit

    def _pair(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        count, width = self.near.shape
        first = _shuffled(count)[numbers % count]
        return first, self.near[first, (first + numbers // count) % width].astype(np.int64)


def source() -> Source:
    """Return the sentences and questions of the development sets, embedded once by the packaged model and cached."""
    texts, asked = passages.sentences(), passages.questions(QUESTIONS)
    kept = cache() / f"sentences-{len(texts)}-{len(asked)}.npz"
    if not kept.exists():
        with (
            tempfile.TemporaryDirectory() as folder,
            agentformer.connect(index_dir=f"{folder}/i", upload_dir=f"{folder}/u", embedder="minilm") as af,
        ):
            rows = af.embedder.embed_documents(texts)
            vectors = np.stack([af.embedder.embed_query(text) for text in asked])
            np.savez(kept, rows=rows, asked=vectors, near=neighbours(rows))
    with np.load(kept) as saved:
        return Source(texts, saved["rows"], saved["near"], asked, saved["asked"])


def small_source(sentence_count: int, question_count: int) -> Source:
    """Return a source with at most so many of the sentences, for a machine on which all take too long to embed."""
    texts = passages.sentences()
    texts = [texts[n * len(texts) // sentence_count] for n in range(min(sentence_count, len(texts)))]
    asked = passages.questions(question_count)
    with tempfile.TemporaryDirectory() as folder, open_quiet(Path(folder), embedder="minilm") as af:
        rows = af.embedder.embed_documents(texts)
        return Source(texts, rows, neighbours(rows), asked, np.stack([af.embedder.embed_query(one) for one in asked]))


def open_quiet(folder: Path, **settings: Any) -> AgentFormer:
    """Open a memory in a folder, without work in the background: it neither cleans nor embeds again."""
    places = {"index_dir": folder / "i", "upload_dir": folder / "u"}
    return agentformer.connect(**places, clean_every=0, embed_retry_seconds=0, **settings)


def neighbours(rows: Rows) -> NDArray[np.int32]:
    """Return the nearest other rows of each row, unordered."""
    width = min(_NEAR, len(rows) - 1)
    found = np.empty((len(rows), width), np.int32)
    for at in range(0, len(rows), _ROWS):
        scores = rows[at : at + _ROWS] @ rows.T
        scores[np.arange(len(scores)), np.arange(at, at + len(scores))] = -2.0  # itself
        found[at : at + _ROWS] = np.argpartition(-scores, width - 1, axis=1)[:, :width]
    return found


@functools.cache
def _shuffled(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(_SEED).permutation(count)


def user(number: int) -> str:
    """Return the user of an entry."""
    return f"user-{number % SCOPES}"


def nearest(
    known: Source,
    asked: Rows,
    count: int,
    limit: int,
    scope: int | None = None,
) -> NDArray[np.int64]:
    """Return the numbers of the `limit` entries nearest to each row of `asked` by exact cosines, unordered: (asked,
    limit). The entries are the first `count`, or one user's."""
    shared = _shared(known, count)
    best = Nearest(asked, limit, scope)
    for at in range(0, count, BLOCK):
        rows = known.block(at // BLOCK)[: count - at]
        for number in shared.keys() & set(range(at, at + len(rows))):
            rows[number - at] = shared[number]
        best.add(at, rows)
    return best.numbers


class Nearest:
    """Finds the `limit` entries nearest to each row of `asked`, among all entries that are added, or one user's.
    `numbers` are those of the entries that were found, unordered: (asked, limit)."""

    def __init__(self, asked: Rows, limit: int, scope: int | None = None) -> None:
        self._asked, self._limit, self._scope = asked, limit, scope
        self._scores = np.zeros((len(asked), 0), np.float32)
        self.numbers: NDArray[np.int64] = np.zeros((len(asked), 0), np.int64)

    def add(self, first: int, rows: Rows) -> None:
        """Add the entries from the number `first` on, with their vectors."""
        numbers = np.arange(first, first + len(rows))
        if self._scope is not None:
            inside = numbers % SCOPES == self._scope
            rows, numbers = rows[inside], numbers[inside]
        scores = np.concatenate([self._scores, self._asked @ rows.T], axis=1)
        numbers = np.concatenate([self.numbers, np.broadcast_to(numbers, (len(self.numbers), len(numbers)))], axis=1)
        if scores.shape[1] > self._limit:
            best = np.argpartition(-scores, self._limit - 1, axis=1)[:, : self._limit]
            scores, numbers = np.take_along_axis(scores, best, 1), np.take_along_axis(numbers, best, 1)
        self._scores, self.numbers = scores, numbers


def _shared(known: Source, count: int) -> dict[int, Rows]:
    """Return the vectors of entries with the text of an earlier one; a store has one vector per text."""
    hashes = np.fromiter((hash(known.text(number)) for number in range(count)), np.int64, count)
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    del hashes
    same = first[group]  # the first entry with the text of each entry
    later = np.flatnonzero(same != np.arange(count))
    vectors = {}
    for block in np.unique(same[later] // BLOCK).tolist():
        rows = known.block(block)
        for number in later[same[later] // BLOCK == block].tolist():
            vectors[number] = rows[same[number] % BLOCK]
    return vectors
