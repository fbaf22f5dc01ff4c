"""Checksums of what is stored: SQLite gives a damaged text back as if it were true.

CRC-32 finds all damage that lies within 32 bits, and all but one of four thousand million other cases. Vectors, of
which a million are read at once, have a sum that NumPy makes faster and that finds no less. A checksum is kept in its
row; NULL is a row of a former version, which nobody can verify. What these functions return may never change: it is
compared with what older versions wrote.
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

WHAT_TO_DO = (
    "it is never answered from; `agentformer doctor --repair` mends what can be mended and sets the rest aside, and a "
    "backup has it whole"
)
DIFFERS = "it is not what was written (its checksum differs)"
_NAME = 200  # code points of a name that is told

_BETWEEN = "\x1f"
_NULL = "\x00"


def of_values(values: Sequence[Any]) -> int:
    """Of the columns of a row, in an order that is kept. NULL at the end adds nothing, so that a column may be added
    behind the others."""
    text = _BETWEEN.join([v if v.__class__ is str else _NULL if v is None else str(v) for v in values])
    return crc32(text.rstrip(_BETWEEN + _NULL).encode())


def of_text(text: str, *key: object) -> int:
    """Of a text and the key that it stands under."""
    return of_values([*key, text])


def of_vectors(data: bytes | bytearray | memoryview, count: int) -> list[int]:
    """Of each of `count` vectors of one length, one behind the other: the sum of a vector's 32-bit words, each
    times an odd number of its place, modulo 2**64."""
    import numpy as np

    words = np.frombuffer(data, "<u4").reshape(count, -1)
    sums: list[int] = np.einsum("ij,j->i", words, _weights(words.shape[1]), dtype=np.int64).tolist()
    return sums


@lru_cache(maxsize=8)
def _weights(length: int) -> NDArray[np.int64]:
    """Odd numbers, as good as random (splitmix64): no word changes unseen, and hardly ever do several."""
    import numpy as np

    z = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31)) | np.uint64(1)).view(np.int64)


def damaged(what: str, why: str = DIFFERS) -> StoreDamaged:
    """The error that tells of something stored that is not what was written."""
    return StoreDamaged(f"{what} is damaged: {why}; {WHAT_TO_DO}")


def entry_name(stored: object) -> str:
    """An entry as an error names it; the id may be damaged, too."""
    sane = isinstance(stored, str) and stored.isprintable() and 0 < len(stored) <= _NAME
    return f"entry {stored}" if sane else "an entry"
