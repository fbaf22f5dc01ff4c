"""Tantivy's writer, and what its failures mean: it tells nearly all of them as a `ValueError`."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentformer.errors import StoreError, StoreFull

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
