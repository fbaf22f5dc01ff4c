"""Writing of the word index. The functions decide when the index must be written, open the tantivy writer, write and
read the manifest file, and convert errors. `Renewal` updates an index that an older version wrote.

The manifest is written after each commit. It contains the number of the last change that the index contains, and the
checksums of the index files. An index that does not match its manifest is not used. Possible causes are a process that
was killed before it wrote the manifest, a damaged file, or a file from another index. The manifest is a separate file,
because an additional document in the index would change the BM25 scores.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import AgentFormerError, StoreError, StoreFull
from agentformer.index.words.fields import ANALYSIS, RENEWABLE, terms_changed
from agentformer.records import entries as records
from agentformer.records.integrity.files import open_regular_file, read_file, write_atomically
from agentformer.types import RecordStore

log = logging.getLogger("agentformer")

MANIFEST_FILE = "manifest.json"
_MEMTABLE_SHARE = 0.02  # share of the entries that may wait in memory; it hardly changes the rarity of words
_MAX_MEMTABLE = 1_000  # maximum number of entries that may wait in memory, since each search reads all of them
_COMMIT_AT = 250  # number of changes that start a commit in the background
_READ = 1_000  # entries read from the records at a time
_WRITTEN = 250  # entries of one commit during a renewal; a search that needs the writer waits for at most one commit
_RENEWAL_PAUSE_SECONDS = 0.02  # seconds between two commits, in which waiting threads and processes get the lock
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
    """Return how many changes may wait in memory before the index is written. `entries` is the number of entries in the
    index."""
    return min(_MAX_MEMTABLE, int(entries * _MEMTABLE_SHARE))


def is_commit_due(waiting: int, room: int) -> bool:
    """Return whether a commit in the background must start. `waiting` is the number of changes in memory, and `room` is
    the result of `memtable_room`."""
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
    """Yield a tantivy writer. At the end of the `with` block, the changes are committed. After an exception, the
    changes are discarded. The caller must hold the lock of the index folder. `heap` is the size of the write buffer in
    bytes."""
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
    """Write the manifest with `state` and the checksums of all index files. Checksums of unchanged files are taken from
    the former manifest."""
    listed = _load_manifest(folder).get("files", {})
    names = [path.name for path in _index_files(folder)]
    files = {name: listed[name] if name in listed and name != _SEGMENTS_FILE else _crc(folder / name) for name in names}
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


class Analysis(NamedTuple):
    """The version of the analysis that made the terms of an index. If `version` is not the current version, the index
    is being renewed: the terms of all entries up to the number `renewed` are already up to date."""

    version: int = ANALYSIS
    renewed: int = 0

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Analysis:
        """Read the analysis from the manifest of an index. Raises `ValueError` if this version cannot use the index."""
        version = state.get("analysis")
        if version != ANALYSIS and version not in RENEWABLE:
            raise ValueError("the word index was written by another version of agentformer")
        return cls(int(version), int(state.get("renewed", 0)) if version != ANALYSIS else 0)

    @property
    def current(self) -> bool:
        return self.version == ANALYSIS

    def as_state(self) -> dict[str, int]:
        """Return the fields that `of` reads, for the manifest of an index."""
        return {"analysis": self.version, **({} if self.current else {"renewed": self.renewed})}


Write = Callable[[RecordStore, Sequence[int], Analysis], Analysis]


class Renewal:
    """Renews an index of an older version in a background thread, by analyzing its entries again. `write(database,
    nums, analysis)` writes the entries `nums` again, stores `analysis` in the manifest, and returns the analysis that
    the index has then. If this is not `analysis`, another process has replaced or renewed the index, and the renewal
    ends. Thread-safe."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self, database: RecordStore, analysis: Analysis) -> None:
        """Start the thread, unless it is already running or `stop` was called."""
        with self._lock:
            if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            name = "agentformer-renewal"
            self._thread = threading.Thread(target=self._run, args=(database, analysis), name=name, daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Wait until a running renewal is complete."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def stop(self) -> None:
        """Stop the thread after its current commit, and wait for it. It cannot be started again."""
        self._stopped.set()
        self.wait()

    def _run(self, database: RecordStore, analysis: Analysis) -> None:
        try:
            for nums, last in _changed(database, analysis):
                if self._stopped.is_set():
                    return
                reached = Analysis(analysis.version, last)
                if self._write(database, nums, reached) != reached:
                    return
                self._stopped.wait(_RENEWAL_PAUSE_SECONDS)
            self._write(database, (), Analysis())
        except (AgentFormerError, OSError, ValueError) as error:
            log.warning("The word index could not be renewed; the next change tries again: %s", error)


def _changed(database: RecordStore, analysis: Analysis) -> Iterator[tuple[list[int], int]]:
    """Find the entries that must be analyzed again, because their terms have changed since the version of the index.
    Yield batches: the numbers of such entries, and the number of the last entry that was examined."""
    last, changed = analysis.renewed, list[int]()
    while True:
        with database.reading() as connection:
            contents = records.contents_after(connection, last, _READ)
        for num, content in contents:
            last = num
            if terms_changed(content, analysis.version):
                changed.append(num)
            if len(changed) >= _WRITTEN:
                yield changed, last
                changed = []
        if len(contents) < _READ:
            break
    if changed:
        yield changed, last
