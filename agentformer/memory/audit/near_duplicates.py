"""Near-duplicates among many texts: MinHash signatures with banding, then the exact likeness.

MinHash and resemblance: Broder, "On the resemblance and containment of documents", 1997. Banding: Leskovec,
Rajaraman & Ullman, "Mining of Massive Datasets", chapter 3. The work grows with the number of texts, not with the
number of pairs. Shingles are runs of characters, so that no language needs a cutter of words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from agentformer.memory.audit.facts import Facts, facts, figures, same_facts
from agentformer.text.languages import detect_language

LIKENESS = 0.8  # least Jaccard index of two texts' shingles
_SIZE = 4  # characters of a shingle: 3 call long texts alike that only share a language, 5 miss a typo in a short one
_BANDS, _ROWS = 20, 6  # a pair of likeness .8 meets in a band with probability .998, one of .5 with .27
_DOUBT = 0.15  # what the signatures' estimate of likeness may be off: four standard deviations of 120 draws
_READ = 20_000  # code points of a text that are compared; longer ones are documents
_SMALL_RUN = 16  # texts that share a band: up to so many, each is compared with each
_LEADERS = 3  # of a larger run: each is compared with the first ones, and with the one before it
_KEPT = 1000  # texts whose shingles are kept to be compared again: some hundred megabytes at the very most
_CHUNK = 2048  # shingles hashed at a time, so that a long text needs no more memory than a short one

# Punctuation says little; signs as in "C++", "C#" and "$5" say much.
_IGNORED = re.compile(r"[\s.,;:!?…\"'`´“”„‘’«»()\[\]{}<>\-‐‑–—·•*_。、！？「」『』（）]+")

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Text:
    """A text to compare, within its `place` only."""

    key: int  # what the caller calls it; ascending with age
    place: str
    content: str


@dataclass(frozen=True, slots=True)
class Alike:
    """Texts of one place that say the same, oldest first; each is at least `LIKENESS` like the first."""

    keys: tuple[int, ...]
    similarity: float  # of the one that is least like the first


def near_duplicates(texts: Sequence[Text]) -> list[Alike]:
    """Groups of two and more, in order of their first text. Each text is in one group at most.

    Texts that differ in a number, a date or a negation are no duplicates, however alike they look.
    """
    comparison = _Comparison(texts)
    components = comparison.components()
    groups = [group for members in components for group in comparison.groups(members)]
    return sorted(groups, key=lambda group: group.keys)


class _Comparison:
    """The texts with what is worked out about them, and a union-find over their numbers."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self._texts = texts
        self._plain = [normalised(text.content[:_READ]) for text in texts]
        self._parent = list(range(len(texts)))
        self._facts: dict[int, Facts] = {}
        self._shingles: dict[int, Hashes] = {}
        self._likeness: dict[tuple[int, int], float] = {}
        self._signatures = np.zeros((len(texts), _BANDS * _ROWS), np.uint32)
        for n, plain in enumerate(self._plain):
            self._signatures[n] = _signature(_shingles(plain))

    def components(self) -> list[list[int]]:
        """Numbers of texts that are linked by likeness, directly or through others; each list ascending."""
        marks = np.array([_mark(text) for text in self._texts], np.uint64)
        for band in range(_BANDS):
            rows = self._signatures[:, band * _ROWS : (band + 1) * _ROWS]
            for run in _runs(_combined(rows, marks)):
                self._link(run)
        found: dict[int, list[int]] = {}
        for n in range(len(self._texts)):
            found.setdefault(self._root(n), []).append(n)
        return [members for members in found.values() if len(members) > 1]

    def groups(self, members: Sequence[int]) -> Iterator[Alike]:
        """A component without its chains: every member of a group is like the group's first."""
        led: dict[int, list[int]] = {}
        for n in members:
            leader = next((first for first in list(led)[:_SMALL_RUN] if self._alike(first, n) >= LIKENESS), n)
            led.setdefault(leader, []).append(n)
        for first, group in led.items():
            if len(group) > 1:
                least = min(self._alike(first, n) for n in group[1:])
                yield Alike(tuple(self._texts[n].key for n in group), least)

    def _link(self, run: Sequence[int]) -> None:
        for position, n in enumerate(run):
            if len(run) <= _SMALL_RUN:
                others = run[:position]
            else:
                others = sorted({*run[: min(position, _LEADERS)], *run[max(position - 1, 0) : position]})
            for other in others:
                if self._root(n) != self._root(other) and self._alike(other, n) >= LIKENESS:
                    self._parent[self._root(n)] = self._root(other)

    def _root(self, n: int) -> int:
        while self._parent[n] != n:
            self._parent[n] = self._parent[self._parent[n]]
            n = self._parent[n]
        return n

    def _alike(self, one: int, other: int) -> float:
        """The exact likeness of two texts, 0 when they state different facts or are surely below the least."""
        if (one, other) not in self._likeness:
            self._likeness[one, other] = self._compare(one, other)
        return self._likeness[one, other]

    def _compare(self, one: int, other: int) -> float:
        if self._plain[one] != self._plain[other]:
            estimate = float(np.mean(self._signatures[one] == self._signatures[other]))
            if estimate < LIKENESS - _DOUBT:
                return 0.0
        if not same_facts(self._facts_of(one), self._facts_of(other)):
            return 0.0
        shared = len(np.intersect1d(self._shingles_of(one), self._shingles_of(other), assume_unique=True))
        return shared / (len(self._shingles_of(one)) + len(self._shingles_of(other)) - shared)

    def _facts_of(self, n: int) -> Facts:
        if n not in self._facts:
            content = self._texts[n].content[:_READ]
            self._facts[n] = facts(content, detect_language(content))
        return self._facts[n]

    def _shingles_of(self, n: int) -> Hashes:
        if n not in self._shingles:
            if len(self._shingles) >= _KEPT:
                self._shingles.clear()
            self._shingles[n] = _shingles(self._plain[n])
        return self._shingles[n]


def normalised(text: str) -> str:
    """The text as it is compared: one case, one spelling of each character, words parted by one space."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return _IGNORED.sub(" ", folded).strip() or " ".join(folded.split())


def _mark(text: Text) -> int:
    """Texts with different marks are not compared: another place, or other numbers. So a form that was filled in
    a hundred thousand times is no work."""
    known = "\0".join((text.place, *sorted(figures(text.content[:_READ]))))
    return int.from_bytes(blake2b(known.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _shingles(plain: str) -> Hashes:
    """Sorted hashes of the runs of `_SIZE` characters, the ends marked by spaces."""
    codes = np.frombuffer(f" {plain} ".encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
    if len(codes) < _SIZE:
        codes = np.pad(codes, (0, _SIZE - len(codes)))
    hashes = np.zeros(len(codes) - _SIZE + 1, np.uint64)
    for n in range(_SIZE):
        hashes = hashes * _BASE + codes[n : len(codes) - _SIZE + 1 + n]  # unsigned, wraps
    return np.unique(_mixed(hashes))


def _mixed(values: Hashes) -> Hashes:
    """The finaliser of splitmix64: every bit of the result depends on every bit given."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_BASE = np.uint64(0x9E3779B97F4A7C15)
_NUMBERS = _mixed(np.arange(1, 2 * _BANDS * _ROWS + 1, dtype=np.uint64) * _BASE)
_FACTORS = (_NUMBERS[: _BANDS * _ROWS] | np.uint64(1))[:, None]  # multiply-shift hashing; the same in every run
_OFFSETS = _NUMBERS[_BANDS * _ROWS :][:, None]


def _signature(shingles: Hashes) -> NDArray[np.uint32]:
    """(bands * rows,): of each hash function the least value over the shingles."""
    least = np.full(_BANDS * _ROWS, np.iinfo(np.uint64).max, np.uint64)
    for start in range(0, len(shingles), _CHUNK):
        values = shingles[start : start + _CHUNK] * _FACTORS + _OFFSETS
        least = np.minimum(least, values.min(axis=1))
    return (least >> np.uint64(32)).astype(np.uint32)


def _combined(rows: NDArray[np.uint32], marks: Hashes) -> Hashes:
    """One hash a text, of its rows of a band and its mark."""
    combined = marks
    for row in rows.T:
        combined = _mixed(combined ^ row.astype(np.uint64))
    return combined


def _runs(hashes: Hashes) -> Iterator[list[int]]:
    """The numbers of the texts that share a hash, ascending, where it is more than one."""
    order = np.argsort(hashes, kind="stable")
    starts = np.flatnonzero(np.diff(hashes[order], prepend=~hashes[order[:1]]))
    ends = np.append(starts[1:], len(order))
    for run in np.flatnonzero(ends - starts > 1):
        yield order[starts[run] : ends[run]].tolist()
