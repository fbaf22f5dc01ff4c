"""Permissions of the files and folders that AgentFormer creates: only their owner can use them or, with the setting
`file_access=group`, also the group of the files. The functions never change the umask, which all threads of a process
share, and never change an existing folder."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from filelock import FileLock

if sys.platform == "darwin":
    import fcntl

T = TypeVar("T")

# Flags that open a regular file only: no link, no pipe that blocks, no translated line ends. Windows has only the last.
PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.3)  # seconds between attempts to replace an open file
_OTHERS, _GROUP = 0o007, 0o077  # permissions that nobody but the owner, or the owner and the group, may have
_shared = False


def share_with_group(shared: bool) -> None:
    """Let the group use the files and folders that this process creates from now on."""
    global _shared
    _shared = shared


def file_mode() -> int:
    """Return the permissions of a new file."""
    return 0o660 if _shared else 0o600


def make_folder(folder: Path, *, new: bool = False, tries: int = 5) -> None:
    """Create a folder, and the missing folders above it. If other processes remove these meanwhile, create them again,
    at most `tries` times. Raises `FileExistsError` if `new` is true and the folder exists, and `OSError` if it cannot
    be created, such as in a system folder."""
    mode = 0o770 if _shared else 0o700
    try:
        folder.mkdir(mode)
    except FileNotFoundError:
        if folder.parent == folder or not tries:
            raise
        make_folder(folder.parent)
        make_folder(folder, new=new, tries=tries - 1)
        return
    except FileExistsError:
        if new or not folder.is_dir():
            raise
        return
    if _shared:  # the umask may have removed the permissions of the group
        _set(folder, mode | (stat.S_IMODE(folder.stat().st_mode) & stat.S_ISGID))


def opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=opener)`. A new file gets the permissions of `file_mode`."""
    handle = os.open(path, flags, file_mode())
    if _shared and not os.fstat(handle).st_mode & 0o040:
        _set(path, file_mode())
    return handle


def create_empty(path: Path) -> None:
    """Create an empty file, unless the file exists. Other software then writes the file and keeps its permissions. The
    file is not opened: closing it would release the locks of SQLite in this process."""
    try:
        os.mknod(path, stat.S_IFREG | file_mode())
    except FileExistsError:
        return
    except (AttributeError, PermissionError):  # not a system on which users may create a file in this way
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file_mode()))
    if _shared:
        _set(path, file_mode())


def file_lock(path: str | os.PathLike[str], **options: Any) -> FileLock:
    """Return a `FileLock` whose file has the permissions of `file_mode`."""
    from filelock import FileLock

    return FileLock(path, mode=file_mode(), **options)


def sync_file(handle: int) -> None:
    """Write an open file to the disk. On macOS, `os.fsync` leaves the data in the cache of the disk, so the disk must
    write its cache, too, if the file system can. Raises `OSError` if the data cannot be written."""
    if sys.platform == "darwin":
        with suppress(OSError):
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)


def when_free(action: Callable[[], T]) -> T:
    """Replace or delete a file by calling `action`. Windows refuses this while another program has the file open or
    mapped, for example to read it or to look for viruses, so the call is repeated for a second. Raises the `OSError` of
    the last attempt."""
    for pause in _PAUSES if sys.platform == "win32" else ():
        try:
            return action()
        except PermissionError:
            time.sleep(pause)
    return action()


def replace_file(source: Path, target: Path) -> None:
    """Rename a file to `target`, which is replaced if it exists."""
    when_free(lambda: os.replace(source, target))


def write_whole(path: Path, text: str) -> None:
    """Write a small file. A reader sees the former content or the complete new one, and a killed process leaves at most
    a file with the ending `.part`."""
    handle, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        replace_file(Path(name), path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def make_private(folder: Path) -> None:
    """Set the permissions of the files that other software has written into a folder."""
    for path, mode in _contents(folder):
        if not stat.S_ISLNK(mode):
            wanted = (0o770 if _shared else 0o700) if stat.S_ISDIR(mode) else file_mode()
            if stat.S_IMODE(mode) & 0o777 != wanted:
                _set(path, wanted)


def readable_by_others(folder: Path) -> list[Path]:
    """Return the folder and the files in it that users can read who should not, or nothing if they cannot list the
    folder."""
    forbidden = _OTHERS if _shared else _GROUP
    try:
        if os.name != "posix" or not folder.is_dir() or not folder.stat().st_mode & forbidden:
            return []
    except OSError:
        return []
    return [folder, *(path for path, mode in _contents(folder) if stat.S_ISREG(mode) and mode & forbidden & 0o044)]


def _contents(folder: Path) -> Iterator[tuple[Path, int]]:
    with suppress(OSError):
        for path in folder.rglob("*"):
            with suppress(OSError):
                yield path, path.lstat().st_mode


def _set(path: str | os.PathLike[str], mode: int) -> None:
    with suppress(OSError):  # the file belongs to another user, or was deleted
        Path(path).chmod(mode)
