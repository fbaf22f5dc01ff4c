"""What tells one state of a file from every other, and one folder from another in its place."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple, Self


class Version(NamedTuple):
    """Tells one state of a file from every other: each writer sets the time by the clock, to the nanosecond."""

    inode: int
    modified: int
    size: int

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        return cls(found.st_ino, found.st_mtime_ns, found.st_size)


UNKNOWN = Version(0, 0, 0)


def identity(folder: Path) -> tuple[int, int] | None:
    """Of the folder itself, whatever is in it; None where there is none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def version_of(entry: os.DirEntry[str]) -> Version:
    try:
        return Version.of(entry.stat())
    except OSError:  # a link to nowhere, or in a circle; reading it tells
        return UNKNOWN


def stamp(path: Path) -> None:
    """Give a new file a time that no former one has: a system's own stamps may be milliseconds apart."""
    moment = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(path, ns=(moment, moment))
