"""Where things lie in an export, and how its files are opened.

    manifest.json              format, namespaces, and of every other file its bytes and SHA-256
    entries/NAMESPACE.jsonl    one entry a line, in order of id, and behind it a line for each of its former versions
    originals/ab/abcd….bin     uploaded files under the SHA-256 of their bytes
    vectors/SPACE.jsonl        one vector a line, in order of the SHA-256 of its text; where they were asked for

Nothing in it tells when it was made, so the same memory gives the same bytes. docs/ARCHIVE.md tells every field.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agentformer.errors import InvalidInput
from agentformer.types import EmbeddingSpace, MemoryEntry

FORMAT = "agentformer-export-2"
FORMATS = (FORMAT, "agentformer-export-1")  # those that are read; the first one is written
MANIFEST = "manifest.json"
BLOCK = 1 << 20  # bytes of a file read at a time
LONGEST_LINE = 320 << 20  # bytes: the longest page that a reader gives, in characters of four bytes, and room
ENTRIES = re.compile(r"entries/[a-z0-9_%~-]{1,160}\.jsonl")
ORIGINAL = re.compile(r"originals/([0-9a-f]{2})/(\1[0-9a-f]{62})\.bin")
VECTORS = re.compile(r"vectors/[0-9a-f]{16}\.jsonl")
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")  # not every file system tells capitals apart
_LONGEST_NAME = 120  # characters of a file's name


def entries_path(namespace: str) -> str:
    """Plain letters as they are, all else as in a URL, and a long name by its digest."""
    data = namespace.encode()
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in data)
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME // 2]}~{hashlib.sha256(data).hexdigest()[:32]}"
    return f"entries/{name}.jsonl"


def original_path(digest: str) -> str:
    return f"originals/{digest[:2]}/{digest}.bin"


def vectors_path(space: EmbeddingSpace) -> str:
    text = json.dumps(dataclasses.asdict(space), sort_keys=True)
    return f"vectors/{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"


def has_original(entry: MemoryEntry) -> bool:
    return entry.kind == "document" and entry.metadata.get("status") == "ready"


def opened(folder: Path, path: str) -> BinaryIO:
    """A file to read: a plain one, in plain folders, since what others made may be a link that leads elsewhere, or a
    device or pipe that never ends. Raises `InvalidInput` and `OSError`."""
    place = folder
    for part in path.split("/"):
        if place is not folder and not stat.S_ISDIR(place.lstat().st_mode):
            raise damaged(f"{path} is not in a plain folder")
        place = place / part
    if not stat.S_ISREG(place.lstat().st_mode):
        raise damaged(f"{path} is not a plain file")
    file = open(place, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was replaced in between
        file.close()
        raise damaged(f"{path} is not a plain file")
    return file


def whole(file: BinaryIO, most: int) -> bytes | None:
    """All of a file; None where it has more than `most` bytes."""
    size = os.fstat(file.fileno()).st_size
    return file.read(size) if size <= most else None


def lines(folder: Path, path: str) -> Iterator[bytes]:
    """The lines of a file, none of them endless. Raises `InvalidInput` and `OSError`."""
    with opened(folder, path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise damaged(f"{path}, line {number}: has over {LONGEST_LINE} bytes")
            yield line


def damaged(what: str) -> InvalidInput:
    return InvalidInput("folder", f"the export is damaged, and nothing was imported: {what}")
