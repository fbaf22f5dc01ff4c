"""Exports and backups of a memory. Any memory can import an export (docs/ARCHIVE.md). A backup is a copy that can be
opened as a memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size` items. The last list may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
