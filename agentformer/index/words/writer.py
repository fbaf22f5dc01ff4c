"""Writing of the word index. The functions decide when the index must be written, open the tantivy writer, write and
read the manifest file, and convert errors.

The manifest is written after each commit. It contains the number of the last change that the index contains, and the
checksums of the index files. An index that does not match its manifest is not used. Possible causes are a process that
was killed before it wrote the manifest, a damaged file, or a file from another index. The manifest is a separate file,
because an additional document in the index would change the BM25 scores.
"""

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

from agentformer.errors import StoreBusy, StoreError, StoreFull, is_passing
from agentformer.records.integrity.files import open_regular_file, read_file, write_atomically
from agentformer.settings.access import make_private

MANIFEST_FILE = "manifest.json"
_MEMTABLE_SHARE = 0.02  # share of the entries that may wait in memory; it hardly changes the rarity of words
_MAX_MEMTABLE = 1_000  # maximum number of entries that may wait in memory, since each search reads all of them
_COMMIT_AT = 250  # number of changes that start a commit in the background
_SEGMENTS_FILE = "meta.json"  # tantivy's list of segments, new at each commit
_BLOCK = 1 << 20

_LOCK_FILE = ".tantivy-writer.lock"
_BUSY = "LockBusy"
_TRIES = 5
_PAUSE_SECONDS = 0.05
# "Writer was killed" means that a thread of the writer failed, mostly with an io::Error while it wrote a segment.
_NO_ROOM = (
    "No space left",
    "Read-only file system",
    "Permission denied",
    "File too large",
    "quota",
    "writer was killed",
)
_NO_ROOM_NUMBERS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EDQUOT)
_MAX_QUOTED = 200  # characters of a library's message


def memtable_room(entries: int) -> int:
    """Return how many changes may wait in memory for an index with this number of entries."""
    return min(_MAX_MEMTABLE, int(entries * _MEMTABLE_SHARE))


def is_commit_due(waiting: int, room: int) -> bool:
    """Return whether `waiting`, the number of changes in memory, is large enough to start a commit. `room` is the
    result of `memtable_room`."""
    return waiting >= min(_COMMIT_AT, room // 2 + 1)


class UncommittedManifest(ValueError):
    """Raised if the index has a commit without a manifest. The index may be intact, but it is unknown which changes it
    contains."""


def is_index_failure(error: BaseException) -> bool:
    """Return whether tantivy or the disk caused the error. A damaged file may cause a Rust panic in tantivy; the
    exception of a panic is not a subclass of `Exception`."""
    return isinstance(error, (ValueError, OSError, KeyError)) or type(error).__name__ == "PanicException"


def store_error(error: BaseException, folder: Path) -> StoreError:
    """Convert an error of tantivy or the disk into a `StoreError` with advice for the user. The text of the error is
    examined, because tantivy raises nearly every error as a `ValueError`."""
    text = " ".join(str(error).split())[:_MAX_QUOTED]
    if getattr(error, "errno", None) in _NO_ROOM_NUMBERS or any(part in str(error) for part in _NO_ROOM):
        return StoreFull(
            f"the word index {folder} cannot be written: {text}; free some disk space or check its permissions"
        )
    if is_passing(error):
        return StoreBusy(f"the word index {folder} cannot be used now: {text}; nothing was changed; try again")
    if _BUSY in str(error):
        return StoreError(
            f"another process holds the lock of the word index {folder}, for example a process that was forked during "
            "a write; end that process, and open a memory only after forking"
        )
    return StoreError(
        f"cannot update the word index {folder}: {text}; if this error repeats, delete the folder to rebuild the index"
    )


@contextmanager
def index_writer(index: Any, folder: Path, heap: int) -> Iterator[Any]:
    """Yield a tantivy writer. At the end of the `with` block, the changes are committed; after an exception, they are
    discarded. The caller must hold the lock of the index folder. `heap` is the size of the write buffer in bytes."""
    writer = _open_writer(index, folder, heap)
    try:
        yield writer
        writer.commit()
    except BaseException:
        with suppress(ValueError):  # the writer has already failed; this call releases its lock
            writer.wait_merging_threads()
        raise
    writer.wait_merging_threads()


def _open_writer(index: Any, folder: Path, heap: int) -> Any:
    """Open a tantivy writer. If tantivy's own lock file is still locked after several tries, delete it. This is safe,
    because the caller holds the lock of the index folder. The file stays locked if a child process was forked while a
    writer was open."""
    for _ in range(_TRIES):
        try:
            return index.writer(heap_size=heap, num_threads=1)
        except ValueError as error:
            if _BUSY not in str(error):
                raise
            time.sleep(_PAUSE_SECONDS)
    with suppress(OSError):  # some systems do not delete open files
        (folder / _LOCK_FILE).unlink(missing_ok=True)
    return index.writer(heap_size=heap, num_threads=1)


def write_manifest(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the manifest with `state` and the checksums of all index files. The checksums of unchanged files are copied
    from the previous manifest."""
    listed = _load_manifest(folder).get("files", {})
    names = [path.name for path in _index_files(folder)]
    files = {name: listed[name] if name in listed and name != _SEGMENTS_FILE else _crc(folder / name) for name in names}
    make_private(folder)
    write_atomically(folder / MANIFEST_FILE, json.dumps({"state": dict(state), "files": files}).encode())


def delete_unlisted(folder: Path) -> None:
    """Delete index files that the manifest does not list. A process that was killed before its commit leaves such
    files, and the next commit would fail because their names exist. The caller must hold the lock of the index folder,
    and must have called `read_manifest`."""
    listed = _load_manifest(folder).get("files", {})
    for path in _index_files(folder) if listed else ():
        if path.name not in listed:
            path.unlink(missing_ok=True)


def read_manifest(folder: Path, *, verify: bool) -> dict[str, Any]:
    """Return the state from the manifest, or an empty dictionary for an empty folder. Raises `ValueError` if the index
    files do not match the manifest. If `verify` is True, the checksums of all files are compared, otherwise only the
    checksum of tantivy's list of segments."""
    for path in folder.iterdir():  # tantivy would wait forever for a pipe in the place of one of its files
        if not path.is_file() and os.path.lexists(path):
            raise ValueError(f"{path.name} in the word index is not a regular file")
    manifest = _load_manifest(folder)
    files = manifest.get("files", {})
    present = {path.name for path in _index_files(folder)}
    if not present and not files:
        return {}
    segments = files.get(_SEGMENTS_FILE)
    if segments is None or _SEGMENTS_FILE not in present or segments != _crc(folder / _SEGMENTS_FILE):
        raise UncommittedManifest("a commit of the word index was interrupted before its manifest was written")
    if not files.keys() <= present or (verify and any(_crc(folder / name) != crc for name, crc in files.items())):
        raise ValueError("the files of the word index do not match its manifest")
    return dict(manifest["state"])


def _load_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(read_file(folder / MANIFEST_FILE))
    except FileNotFoundError:
        return {}
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError("the manifest of the word index is damaged")
    return manifest


def _index_files(folder: Path) -> list[Path]:
    """Return the files of the index. Locks, other hidden files and the manifest are left out."""
    return [p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".") and p.name != MANIFEST_FILE]


def _crc(path: Path) -> int:
    crc = 0
    with open_regular_file(path) as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc
