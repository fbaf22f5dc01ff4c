"""What a server says, for an error text: on one line, short, and without any part of a secret."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

_RUN = 6  # characters of a secret in a row that are hidden: servers quote halves of keys


def one_line(text: str) -> str:
    """The text without line breaks and control characters."""
    return " ".join("".join(ch if ch.isprintable() else " " for ch in text).split())


def masked(text: str, secrets: Collection[str]) -> str:
    """`text` with "[key]" for each of the secrets, and for every run of 6 or more characters that stands in one."""
    hidden = [False] * len(text)
    for secret in filter(None, secrets):
        size = min(_RUN, len(secret))
        runs = {secret[i : i + size] for i in range(len(secret) - size + 1)}
        for i in range(len(text) - size + 1):
            if text[i : i + size] in runs:
                hidden[i : i + size] = [True] * size
    groups = groupby(zip(hidden, text, strict=True), key=lambda pair: pair[0])
    return "".join("[key]" if hide else "".join(ch for _, ch in group) for hide, group in groups)
