"""Checksums of stored rows. They are needed because SQLite returns a damaged text as if the text were valid.

CRC-32 detects all damage within 32 consecutive bits, and misses one of four billion other cases. Vectors have another
checksum that detects no less, because a rebuild reads a million vectors and NumPy computes it faster.

A checksum is stored in its row. NULL marks a row from an older version of the software; such a row cannot be verified.
The results of these functions must never change, because they are compared with stored checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from agentformer.errors import StoreDamaged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ADVICE = (
    "it is not used in any answer; `agentformer doctor --repair` repairs what it can and moves the rest to a "
    "quarantine file; a backup has the original"
)
DIFFERS = "its checksum differs"
_MAX_NAME = 200  # code points of an id in an error message

_SEPARATOR = "\x1f"
_NULL = "\x00"


def of_values(values: Sequence[Any]) -> int:
    """Return the checksum of the columns of a row in a fixed order. NULL values at the end do not change it, so that a
    column can be appended."""
    text = _SEPARATOR.join([v if v.__class__ is str else _NULL if v is None else str(v) for v in values])
    return crc32(text.rstrip(_SEPARATOR + _NULL).encode())


def of_text(text: str, *key: object) -> int:
    return of_values([*key, text])


def of_vectors(data: bytes | bytearray | memoryview, count: int) -> list[int]:
    """Return the checksums of `count` consecutive vectors of equal length. The checksum of a vector is the sum of its
    32-bit words, each multiplied by an odd weight for its position, modulo 2**64."""
    import numpy as np

    words = np.frombuffer(data, "<u4").reshape(count, -1)
    sums: list[int] = np.einsum("ij,j->i", words, _weights(words.shape[1]), dtype=np.int64).tolist()
    return sums


@lru_cache(maxsize=8)
def _weights(length: int) -> NDArray[np.int64]:
    """Return odd pseudo-random numbers (splitmix64). An odd weight detects every change of one word, and almost every
    change of several words."""
    import numpy as np

    z = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31)) | np.uint64(1)).view(np.int64)


def damage_error(what: str, reason: str = DIFFERS) -> StoreDamaged:
    """Return the error for a stored row that differs from what was written."""
    return StoreDamaged(f"{what} is damaged: {reason}; {ADVICE}")


def entry_name(stored: object) -> str:
    """Return the name of an entry for messages. Its id may be damaged."""
    sane = isinstance(stored, str) and stored.isprintable() and 0 < len(stored) <= _MAX_NAME
    return f"entry {stored}" if sane else "an entry"
