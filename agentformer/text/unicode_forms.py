"""Unicode normalization in linear time.

The normalization of Python sorts the combining marks after a letter. The time for this grows with the square of their
number, and 400,000 marks block all threads for two minutes. The Stream-Safe Text Format (Unicode Standard Annex 15)
limits a run to 30 marks: after 30 marks, an invisible joiner is inserted.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

MAX_MARKS = 30  # of one run
_JOINER = "\u034f"  # COMBINING GRAPHEME JOINER
# The characters without a combining class that become marks in a normalization form (Unicode 15.0).
_BECOME_MARKS = frozenset("\u0f73\u0f75\u0f81\uff9e\uff9f")
# Combining marks are not in \w. This pattern finds candidates fast, because such long runs are rare. Some characters
# become two marks.
_LONG_RUN = re.compile(rf"(?:[^\w\s\x00-\x7f]|[\uff9e\uff9f]){{{MAX_MARKS // 2 + 1},}}")


def normalized(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Return the text in a Unicode normalization form. In longer runs of combining marks, a joiner follows every 30
    marks."""
    if text.isascii():
        return text
    return unicodedata.normalize(form, _LONG_RUN.sub(_limited, text))


def _limited(run: re.Match[str]) -> str:
    characters: list[str] = []
    marks = 0
    for character in run[0]:
        added = _mark_count(character)
        marks = marks + added if added else 0
        if marks > MAX_MARKS:
            characters.append(_JOINER)
            marks = added
        characters.append(character)
    return "".join(characters)


def _mark_count(character: str) -> int:
    """Return how many combining marks a character becomes in a decomposed normalization form, or 0 for a character
    that is not a mark."""
    if not unicodedata.combining(character) and character not in _BECOME_MARKS:
        return 0
    return len(unicodedata.normalize("NFKD", character))
