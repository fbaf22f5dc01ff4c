"""Writing a file so that a crash leaves the old one or the new one, and no litter for long."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def opened_file(path: Path) -> BufferedReader:
    """Open what is a file for reading: a pipe in its place would be waited for without end. Raises `OSError`."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE))  # noqa: SIM115 - for the caller
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return file


def file_bytes(path: Path) -> bytes:
    """All of a file. Raises `OSError`, also for a pipe or a device in its place."""
    with opened_file(path) as file:
        return file.read()


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace `path` by `data`; it has reached the disk when this returns. `mode` is who may read it, less what the
    umask forbids. Raises `OSError`."""
    with written_atomically(path, mode=mode) as file:
        file.write(data)


@contextlib.contextmanager
def written_atomically(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when it is left without an error, and has reached the disk then. Raises
    `OSError`.

    The temporary file names its writer, so that what a killed writer of the same file left is cleared away.
    """
    clear_unfinished(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def delete(path: Path) -> None:
    """Delete a file, or a folder with all that is in it, where there is one. Raises `OSError`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def clear_unfinished(path: Path) -> None:
    """Remove temporary files of writers of `path` that are no more. Raises `OSError`."""
    for left in path.parent.glob(f".{path.name}.*"):
        writer = left.name.split(".")[-2]
        if writer.isdecimal() and not alive(int(writer)):
            left.unlink(missing_ok=True)


def alive(process: int) -> bool:
    """Is there a process of this number?"""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
