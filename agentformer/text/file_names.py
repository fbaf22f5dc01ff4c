"""Words from the names of files, such as "AMAZON 2017 10K" from "AMAZON_2017_10K.pdf"."""

from __future__ import annotations

import re
from pathlib import PurePath

_MAX_WORDS = 80  # code points
# "_", "+" and "." are spaces in a name. A hyphen is a space too, but not between two digits: "2023-08-30".
_SEPARATOR = re.compile(r"[\s_+.]+|(?<!\d)-+|-+(?!\d)")
_WORDS = re.compile(r"[^\W\d_]{3}|[^\W\d_\x00-\x7f]")  # fewer letters are a number, such as "p1" or "10K"
_CODE = re.compile(  # a UUID, a digest, or the part of a digest that an upload adds to a name
    r"(?<![0-9a-z])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}|(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{8})(?![0-9a-z])",
    re.IGNORECASE,
)


def words_of_name(name: str) -> str:
    """Return the words of the name of a file, without folder and extension, separated by spaces. Digests and UUIDs are
    left out. Return "" if the name contains no word, such as "p1"."""
    stem = PurePath(name).stem[: 4 * _MAX_WORDS]
    words = [word for word in _SEPARATOR.split(_CODE.sub(" ", stem)) if word]
    text = " ".join(words)[:_MAX_WORDS].rstrip()
    return text if _WORDS.search(text) else ""
