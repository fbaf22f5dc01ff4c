"""Tantivy's writer, and what its failures mean: it tells nearly all of them as a `ValueError`."""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentformer.errors import StoreError, StoreFull
from agentformer.records.files import file_bytes, opened_file, write_atomically

_LOCK = ".tantivy-writer.lock"
_BUSY = "LockBusy"
_TRIES = 5
_PAUSE_SECONDS = 0.05
# "Writer was killed" says that a thread of it has failed, "io::Error most likely": the segment could not be written.
_NO_ROOM = (
    "No space left",
    "Read-only file system",
    "Permission denied",
    "File too large",
    "quota",
    "writer was killed",
)
_NO_ROOM_NUMBERS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EDQUOT)
_QUOTED = 200  # characters of a library's text


def broken(error: BaseException) -> bool:
    """Is it of tantivy or of the disk? Tantivy answers some damage with a Rust panic, which is no `Exception`."""
    return isinstance(error, (ValueError, OSError, KeyError)) or type(error).__name__ == "PanicException"


def told(error: BaseException, folder: Path) -> StoreError:
    """What is wrong, and what to do."""
    text = " ".join(str(error).split())[:_QUOTED]
    if getattr(error, "errno", None) in _NO_ROOM_NUMBERS or any(part in str(error) for part in _NO_ROOM):
        return StoreFull(f"the word index {folder} cannot be written ({text}); free space or check permissions")
    if _BUSY in str(error):
        return StoreError(
            f"the word index {folder} is held by another process, such as one that was forked while it was written; "
            "end that process, and open a memory after a fork"
        )
    return StoreError(f"the word index {folder} cannot be brought up to date ({text}); delete that folder if it stays")


@contextmanager
def writer_of(index: Any, folder: Path, heap: int) -> Iterator[Any]:
    """A writer whose work is committed and merged when it is left without an error, and dropped otherwise. For who has
    the lock of the folder."""
    writer = _opened(index, folder, heap)
    try:
        yield writer
        writer.commit()
    except BaseException:
        with suppress(ValueError):  # it has failed already; this lets go of its lock
            writer.wait_merging_threads()
        raise
    writer.wait_merging_threads()


def _opened(index: Any, folder: Path, heap: int) -> Any:
    """A child that was forked while a writer was open has inherited its lock, and keeps it for its whole life though
    it never writes. Our own lock says that nobody else does either, so that one is put away."""
    for _ in range(_TRIES):
        try:
            return index.writer(heap_size=heap, num_threads=1)
        except ValueError as error:
            if _BUSY not in str(error):
                raise
            time.sleep(_PAUSE_SECONDS)
    with suppress(OSError):  # of a system that keeps open files from being deleted
        (folder / _LOCK).unlink(missing_ok=True)
    return index.writer(heap_size=heap, num_threads=1)


FILE = "manifest.json"
_LIST = "meta.json"  # tantivy's own list of segments, new at each commit
_BLOCK = 1 << 20


class Unfinished(ValueError):
    """The index has a commit that its manifest does not know: nothing is damaged, and nothing can be trusted."""


def write_manifest(folder: Path, state: Mapping[str, Any]) -> None:
    """Note `state` and the checksums of all files. A segment never changes, so a known one is not read again."""
    known = _load(folder).get("files", {})
    names = [path.name for path in _files(folder)]
    files = {name: known[name] if name in known and name != _LIST else _crc(folder / name) for name in names}
    write_atomically(folder / FILE, json.dumps({"state": dict(state), "files": files}).encode())


def delete_unlisted(folder: Path) -> None:
    """Delete files that the manifest does not list: a writer that was killed before its commit left them, and the
    next commit would stumble over their names. Only for who has the lock, and after `read`."""
    listed = _load(folder).get("files", {})
    for path in _files(folder) if listed else ():
        if path.name not in listed:
            path.unlink(missing_ok=True)


def read_manifest(folder: Path, *, verify: bool) -> dict[str, Any]:
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
