"""Exports and backups of a memory. Any memory can import an export (docs/ARCHIVE.md). A backup is a copy that can be
opened as a memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", int, str)


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size` items. The last list may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def root_of(parents: dict[K, K], key: K) -> K:
    """Return the root of the tree to which `key` belongs, and shorten its path (union-find: Tarjan and van Leeuwen
    1984). `parents` maps a key to its parent. A key that has no parent, or is its own parent, is a root."""
    while (parent := parents.get(key, key)) != key:
        parents[key] = key = parents.get(parent, parent)
    return key
