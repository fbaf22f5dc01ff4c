"""Checksums of stored rows. SQLite returns a damaged text without an error, so each row needs a checksum.

The checksum is a CRC-32. It detects all damage within 32 consecutive bits, and misses one in four billion cases of
other damage. Vectors have a different checksum, which detects at least as much damage. NumPy computes this checksum
faster, which matters because a rebuild of an index reads a million vectors.

A checksum is stored in its row. NULL marks a row that an older version of the software wrote; the content of such a row
cannot be verified. The functions must always return the same checksum for the same values, because the results are
compared with stored checksums.
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
    "damaged data are not used in answers; restore a backup, or run `agentformer doctor --repair`, which moves data "
    "that cannot be repaired to a quarantine file"
)
DIFFERS = "its checksum differs"
_MAX_NAME = 200  # code points of an id in an error message

_SEPARATOR = "\x1f"
_NULL = "\x00"


def of_values(values: Sequence[Any]) -> int:
    """Return the checksum of the column values of a row. The caller must always give the values in the same order. NULL
    values at the end do not change the checksum, so that a new column does not make old checksums wrong."""
    text = _SEPARATOR.join([v if v.__class__ is str else _NULL if v is None else str(v) for v in values])
    return crc32(text.rstrip(_SEPARATOR + _NULL).encode())


def of_text(text: str, *key: object) -> int:
    return of_values([*key, text])


def of_vectors(data: bytes | bytearray | memoryview, count: int) -> list[int]:
    """Return the checksums of `count` vectors of equal length that follow each other in `data`. The checksum of a
    vector is a weighted sum of its 32-bit words, modulo 2**64. The weights are odd numbers that depend on the position
    of the word."""
    import numpy as np

    words = np.frombuffer(data, "<u4").reshape(count, -1)
    sums: list[int] = np.einsum("ij,j->i", words, _weights(words.shape[1]), dtype=np.int64).tolist()
    return sums


@lru_cache(maxsize=8)
def _weights(length: int) -> NDArray[np.int64]:
    """Return `length` pseudo-random odd numbers (splitmix64). A sum that uses these numbers as weights detects every
    change of a single word, and almost every change of several words."""
    import numpy as np

    z = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31)) | np.uint64(1)).view(np.int64)


def damage_error(name: str, reason: str = DIFFERS) -> StoreDamaged:
    """Return the error for damaged data. `name` is the name of the data in the message, such as "the vector 7".
    `reason` says how the data differ from the data that were written."""
    return StoreDamaged(f"{name} is damaged: {reason}; {ADVICE}")


def entry_name(stored: object) -> str:
    """Return a name for an entry, for use in messages. If the stored id is damaged, the name does not contain it."""
    sane = isinstance(stored, str) and stored.isprintable() and 0 < len(stored) <= _MAX_NAME
    return f"entry {stored}" if sane else "an entry"
