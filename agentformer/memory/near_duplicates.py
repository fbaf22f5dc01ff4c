"""Finds near-duplicates among many texts. MinHash signatures (Broder 1997) with banding (Leskovec, Rajaraman & Ullman,
"Mining of Massive Datasets", chapter 3) select the pairs of texts that may be similar. The exact Jaccard similarity is
computed only for these pairs. The time grows with the number of texts, not with the number of pairs. Texts are compared
by short sequences of characters (shingles), which need no tokenizer in any language."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from agentformer.text.facts.numbers_and_dates import Facts, facts_of, number_values
from agentformer.text.languages.detection import detect_language
from agentformer.text.normalize import normalized

MIN_SIMILARITY = 0.8  # minimum Jaccard index of the shingles of two similar texts
# Characters of a shingle. With 3, all long texts of one language are similar. With 5, a typo makes short texts
# different.
_SHINGLE = 4
_BANDS, _ROWS = 20, 6  # texts of similarity .8 share a band with probability .998, texts of similarity .5 with .27
_ESTIMATE_ERROR = 0.15  # error of a similarity that is estimated from signatures: four standard deviations of 120 draws
_MAX_COMPARED = 20_000  # only this many code points of a text are compared
_SMALL_RUN = 16  # if at most this many texts share a band, all pairs are compared
_LEADERS = 3  # otherwise, each text is compared with this many first texts, and with the text before it
_CACHED_SHINGLES = 1000  # texts whose shingles are cached; a few hundred megabytes at most
_CHUNK = 2048  # shingles that are hashed at a time, which limits the memory for a long text

# Punctuation is ignored, but not signs as in "C++", "C#" and "$5".
_IGNORED = re.compile(r"[\s.,;:!?…\"'`´“”„‘’«»()\[\]{}<>\-‐‑–—·•*_。、！？「」『』（）]+")

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Text:
    """A text. Only texts with the same `owner` are compared. A newer text has a higher `key`."""

    key: int
    owner: str
    content: str


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """A group of similar texts. `keys` are the keys of the texts, oldest text first. `similarity` is the lowest
    similarity of any text of the group to the first text, 0..1."""

    keys: tuple[int, ...]
    similarity: float


def find_near_duplicates(texts: Sequence[Text]) -> list[NearDuplicates]:
    """Return groups of similar texts, ordered by the first text of each group. A group has two or more texts, and a
    text is in at most one group. Texts with different numbers, dates or negations are not duplicates."""
    comparison = _Comparison(texts)
    groups = [group for members in comparison.components() for group in comparison.groups(members)]
    return sorted(groups, key=lambda group: group.keys)


class _Comparison:
    """Compares texts, which are identified by their indexes. The signatures, facts (such as numbers) and similarities
    of the texts are cached. Similar texts are linked in a union-find structure."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self._texts = texts
        self._normalized = [normalize(text.content[:_MAX_COMPARED]) for text in texts]
        self._parent = list(range(len(texts)))
        self._facts: dict[int, Facts] = {}
        self._shingles: dict[int, Hashes] = {}
        self._similarities: dict[tuple[int, int], float] = {}
        self._signatures = np.zeros((len(texts), _BANDS * _ROWS), np.uint32)
        for n, text in enumerate(self._normalized):
            self._signatures[n] = _signature(_shingles(text))

    def components(self) -> list[list[int]]:
        """Return lists of indexes of texts that are linked by similarity, directly or through other texts. Each list
        has two or more indexes in ascending order."""
        keys = np.array([_comparison_key(text) for text in self._texts], np.uint64)
        for band in range(_BANDS):
            rows = self._signatures[:, band * _ROWS : (band + 1) * _ROWS]
            for run in _runs(_band_hashes(rows, keys)):
                self._link(run)
        components: dict[int, list[int]] = {}
        for n in range(len(self._texts)):
            components.setdefault(self._root(n), []).append(n)
        return [members for members in components.values() if len(members) > 1]

    def groups(self, members: Sequence[int]) -> Iterator[NearDuplicates]:
        """Split the texts with the indexes `members` into groups. Every text of a group is similar to the first text of
        the group. Groups of one text are left out."""
        by_leader: dict[int, list[int]] = {}
        for n in members:
            leaders = list(by_leader)[:_SMALL_RUN]
            leader = next((first for first in leaders if self._similarity(first, n) >= MIN_SIMILARITY), n)
            by_leader.setdefault(leader, []).append(n)
        for first, group in by_leader.items():
            if len(group) > 1:
                lowest = min(self._similarity(first, n) for n in group[1:])
                yield NearDuplicates(tuple(self._texts[n].key for n in group), lowest)

    def _link(self, run: Sequence[int]) -> None:
        for position, n in enumerate(run):
            if len(run) <= _SMALL_RUN:
                others = run[:position]
            else:
                others = sorted({*run[: min(position, _LEADERS)], *run[max(position - 1, 0) : position]})
            for other in others:
                if self._root(n) != self._root(other) and self._similarity(other, n) >= MIN_SIMILARITY:
                    self._parent[self._root(n)] = self._root(other)

    def _root(self, n: int) -> int:
        while self._parent[n] != n:
            self._parent[n] = self._parent[self._parent[n]]
            n = self._parent[n]
        return n

    def _similarity(self, one: int, other: int) -> float:
        """Return the exact similarity of two texts, given by their indexes. Return 0 if the estimated similarity of the
        texts is low, or if the texts state different facts."""
        if (one, other) not in self._similarities:
            self._similarities[one, other] = self._compare(one, other)
        return self._similarities[one, other]

    def _compare(self, one: int, other: int) -> float:
        if self._normalized[one] != self._normalized[other]:
            estimate = float(np.mean(self._signatures[one] == self._signatures[other]))
            if estimate < MIN_SIMILARITY - _ESTIMATE_ERROR:
                return 0.0
        if self._facts_of(one) != self._facts_of(other):
            return 0.0
        first, second = self._shingles_of(one), self._shingles_of(other)
        shared = len(np.intersect1d(first, second, assume_unique=True))
        return shared / (len(first) + len(second) - shared)

    def _facts_of(self, n: int) -> Facts:
        if n not in self._facts:
            content = self._texts[n].content[:_MAX_COMPARED]
            self._facts[n] = facts_of(content, detect_language(content))
        return self._facts[n]

    def _shingles_of(self, n: int) -> Hashes:
        if n not in self._shingles:
            if len(self._shingles) >= _CACHED_SHINGLES:
                self._shingles.clear()
            self._shingles[n] = _shingles(self._normalized[n])
        return self._shingles[n]


def normalize(text: str) -> str:
    """Return the text in lower case, in the form NFKC, without punctuation, and with single spaces."""
    folded = normalized("NFKC", text).casefold()
    return _IGNORED.sub(" ", folded).strip() or " ".join(folded.split())


def _comparison_key(text: Text) -> int:
    """Return a hash of the `owner` of a text and of the numbers in the text. Only texts with equal keys are compared,
    so that many copies of one form that differ in their numbers are not compared with each other."""
    key = "\0".join((text.owner, *sorted(number_values(text.content[:_MAX_COMPARED]))))
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _shingles(text: str) -> Hashes:
    """Return the hashes of all sequences of `_SHINGLE` characters, sorted and without repetitions. One space is added
    at each end of the text, so that the first and the last word have a space on both sides, as all other words do."""
    codes = np.frombuffer(f" {text} ".encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    if len(codes) < _SHINGLE:
        codes = np.pad(codes, (0, _SHINGLE - len(codes)))
    hashes = np.zeros(len(codes) - _SHINGLE + 1, np.uint64)
    for n in range(_SHINGLE):
        hashes = hashes * _BASE + codes[n : len(codes) - _SHINGLE + 1 + n]  # an unsigned overflow is intended
    return np.unique(_mixed(hashes))


def _mixed(values: Hashes) -> Hashes:
    """Return a hash of each value: every output bit depends on every input bit (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_BASE = np.uint64(0x9E3779B97F4A7C15)
_CONSTANTS = _mixed(np.arange(1, 2 * _BANDS * _ROWS + 1, dtype=np.uint64) * _BASE)
_FACTORS = (_CONSTANTS[: _BANDS * _ROWS] | np.uint64(1))[:, None]  # multiply-shift hashing; the same in every run
_OFFSETS = _CONSTANTS[_BANDS * _ROWS :][:, None]


def _signature(shingles: Hashes) -> NDArray[np.uint32]:
    """Return the MinHash signature of a text, shape (bands * rows,): the lowest hash of each hash function."""
    lowest = np.full(_BANDS * _ROWS, np.iinfo(np.uint64).max, np.uint64)
    for start in range(0, len(shingles), _CHUNK):
        values = shingles[start : start + _CHUNK] * _FACTORS + _OFFSETS
        lowest = np.minimum(lowest, values.min(axis=1))
    return (lowest >> np.uint64(32)).astype(np.uint32)


def _band_hashes(rows: NDArray[np.uint32], keys: Hashes) -> Hashes:
    """Return one hash for each text. Texts with equal hashes may be similar. `rows` has one row for each text: one band
    of its MinHash signature. `keys` are the comparison keys of the texts. The hash also depends on the key, so texts
    with different keys have different hashes."""
    hashes = keys
    for row in rows.T:
        hashes = _mixed(hashes ^ row.astype(np.uint64))
    return hashes


def _runs(hashes: Hashes) -> Iterator[list[int]]:
    """Yield the indexes of the texts that share a hash, in ascending order. A hash that only one text has is
    skipped."""
    order = np.argsort(hashes, kind="stable")
    starts = np.flatnonzero(np.diff(hashes[order], prepend=~hashes[order[:1]]))
    ends = np.append(starts[1:], len(order))
    for run in np.flatnonzero(ends - starts > 1):
        yield order[starts[run] : ends[run]].tolist()
