"""Writing a file so that a crash leaves the old one or the new one, and no litter for long."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace `path` by `data`; it has reached the disk when this returns. `mode` is who may read it, less what the
    umask forbids. Raises `OSError`.

    The temporary file names its writer, so that what a killed writer of the same file left is cleared away.
    """
    _clear(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _clear(path: Path) -> None:
    """Remove temporary files of writers that are no more."""
    for left in path.parent.glob(f".{path.name}.*"):
        writer = left.name.split(".")[-2]
        if writer.isdecimal() and not _alive(int(writer)):
            left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
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
