"""Checksums of an index folder: one flipped bit in a segment would be a wrong result, or a crash, much later."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from agentformer.records.files import write_atomically

FILE = "checksums.json"
_BLOCK = 1 << 20
_NONE = -1


def record(folder: Path) -> None:
    """Note the checksums of all files. A segment never changes, so one that is known is not read again."""
    known = _known(folder)
    noted = {path.name: known.get(path.name, _NONE) for path in _files(folder)}
    noted = {name: _crc(folder / name) if crc == _NONE else crc for name, crc in noted.items()}
    write_atomically(folder / FILE, json.dumps(noted).encode())


def verify(folder: Path) -> bool:
    """False when a file whose checksum was noted is damaged. One that came with a commit that was killed
    before its checksum was noted is not judged."""
    known = _known(folder)
    return all(known.get(path.name, _NONE) in (_NONE, _crc(path)) for path in _files(folder))


def _files(folder: Path) -> list[Path]:
    """Segments: what tantivy writes once. Its own lists change with every commit, and are JSON that it checks."""
    return [path for path in folder.iterdir() if path.is_file() and path.suffix not in (".json", ".lock", ".tmp")]


def _known(folder: Path) -> dict[str, int]:
    try:
        known = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc
