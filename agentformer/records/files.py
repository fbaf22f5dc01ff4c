"""Files that a crash leaves as they were before or as they are after, without temporary files for long."""

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

_NONBLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises `OSError`, also for a pipe, which would block without end."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCKING))  # noqa: SIM115 - returned
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_file(path: Path) -> bytes:
    """Return the content of a regular file. Raises `OSError`."""
    with open_regular_file(path) as file:
        return file.read()


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace the content of `path` and sync it. `mode` is the permissions, less the umask. Raises `OSError`."""
    with atomic_writer(path, mode=mode) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_writer(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` and is synced when the context ends without an error. Raises `OSError`.

    The name of the temporary file contains the process, so that a later writer can delete it if the process dies.
    """
    remove_stale_temporaries(path)
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
    """Delete a file, or a folder with its content, if it exists. Raises `OSError`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_stale_temporaries(path: Path) -> None:
    """Delete temporary files of `path` that dead processes left. Raises `OSError`."""
    for temporary in path.parent.glob(f".{path.name}.*"):
        process = temporary.name.split(".")[-2]
        if process.isdecimal() and not process_exists(int(process)):
            temporary.unlink(missing_ok=True)


def process_exists(process: int) -> bool:
    """Return whether a process with this number runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable, if the system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
