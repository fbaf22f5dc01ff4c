"""What an index folder holds: up to where it has followed the records, and the checksums of its files.

It is written after each commit of the index, and one that does not fit the files beside it is not believed:
a commit that was killed before its manifest, a flipped bit, a file from elsewhere. The state is not kept as a
document of the index, where it would count in BM25's statistics.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentformer.records.files import file_bytes, opened_file, write_atomically

FILE = "manifest.json"
_LIST = "meta.json"  # tantivy's own list of segments, new at each commit
_BLOCK = 1 << 20


class Unfinished(ValueError):
    """The index has a commit that its manifest does not know: nothing is damaged, and nothing can be trusted."""


def write(folder: Path, state: Mapping[str, Any]) -> None:
    """Note `state` and the checksums of all files. A segment never changes, so a known one is not read again."""
    known = _load(folder).get("files", {})
    names = [path.name for path in _files(folder)]
    files = {name: known[name] if name in known and name != _LIST else _crc(folder / name) for name in names}
    write_atomically(folder / FILE, json.dumps({"state": dict(state), "files": files}).encode())


def clear(folder: Path) -> None:
    """Delete files that the manifest does not list: a writer that was killed before its commit left them, and the
    next commit would stumble over their names. Only for who has the lock, and after `read`."""
    listed = _load(folder).get("files", {})
    for path in _files(folder) if listed else ():
        if path.name not in listed:
            path.unlink(missing_ok=True)


def read(folder: Path, *, verify: bool) -> dict[str, Any]:
    """The state; empty for an empty folder. Raises `ValueError` where it does not fit the files, of which all
    are read if `verify`, and otherwise only tantivy's list."""
    for path in folder.iterdir():  # tantivy would wait for a pipe without end, also in the place of what is its own
        if not path.is_file() and os.path.lexists(path):
            raise ValueError(f"{path.name} in the word index is no file")
    manifest = _load(folder)
    files = manifest.get("files", {})
    present = {path.name for path in _files(folder)}
    if not present and not files:
        return {}
    if _LIST not in files or _LIST not in present or files[_LIST] != _crc(folder / _LIST):
        raise Unfinished("a commit of the word index was cut off before its manifest")
    if not files.keys() <= present or (verify and any(_crc(folder / name) != crc for name, crc in files.items())):
        raise ValueError("the files of the word index do not fit its manifest")
    state: dict[str, Any] = manifest["state"]
    return state


def _load(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file_bytes(folder / FILE))
    except FileNotFoundError:
        return {}
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError("the manifest of the word index is damaged")
    return manifest


def _files(folder: Path) -> list[Path]:
    """Segments and their list; not locks, what tantivy keeps for itself, or temporary files."""
    return [p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".") and p.name != FILE]


def _crc(path: Path) -> int:
    crc = 0
    with opened_file(path) as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc
