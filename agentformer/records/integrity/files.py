"""Safe file operations. After a crash, a file has either its old or its new content, and a later write deletes the
temporary files of the crashed process."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Literal

from agentformer.errors import InvalidInput, store_failure
from agentformer.settings import access
from agentformer.settings.access import make_folder

_SHOWN_PATH = 200  # at most this many characters of a path are in a message
_NONBLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # follows links
_SYNCHRONIZE, _RUNS, _DENIED = 0x100000, 0x102, 5  # of the functions of Windows


def kind_of(path: str | os.PathLike[str], field: str) -> Literal["file", "folder", "other", ""]:
    """Return what is at a path: a file, a folder, something other such as a pipe, or "" for nothing. Follows links.
    Raises `InvalidInput` for the argument `field` if the path is not valid, or if the permissions of a folder above it
    forbid access. Methods such as `Path.is_file` raise `OSError` in these cases."""
    try:
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        raise _unusable(path, field, error) from None
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def list_folder(path: Path, field: str) -> list[Path] | None:
    """Return the sorted paths of the files and folders in the folder `path`, or None if `path` is not a folder. Raises
    `InvalidInput` for the argument `field` if the folder cannot be read."""
    try:
        return sorted(path.iterdir()) if kind_of(path, field) == "folder" else None
    except OSError as error:
        raise InvalidInput(field, f"the folder {path} cannot be listed: {error.strerror}") from None


def real_path(path: Path, field: str) -> Path:
    """Return the absolute path in which each link is replaced by its target. Raises `InvalidInput` for the argument
    `field` if the path is not valid, or if a link in it cannot be read."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise _unusable(path, field, error) from None


def _unusable(path: str | os.PathLike[str], field: str, error: Exception) -> InvalidInput:
    shown = os.fspath(path).encode("utf-8", "backslashreplace").decode()
    shown = shown if len(shown) <= _SHOWN_PATH else f"{shown[:_SHOWN_PATH]}..."
    reason = getattr(error, "strerror", None) or "it is not a valid path"
    return InvalidInput(field, f"{shown} cannot be read: {reason}; check the path and its permissions")


def open_regular_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises `OSError` if the file cannot be opened or is not a regular file. A pipe
    is refused, because reading from a pipe could block forever."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCKING))  # noqa: SIM115 - returned
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_file(path: Path) -> bytes:
    """Return the content of a regular file. Raises `OSError` if the file cannot be read."""
    with open_regular_file(path) as file:
        return file.read()


def write_atomically(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace the content of the file `path`, and sync the file to the disk. `mode` contains the permission bits of the
    file, if they differ from those of other files. Raises `OSError` if the file cannot be written."""
    with atomic_writer(path, mode=mode) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_writer(path: Path, *, mode: int | None = None, replace_file: bool = True) -> Iterator[BinaryIO]:
    """Yield a temporary file for the new content of `path`. If the context ends without an error, the temporary file is
    synced and renamed to `path`. If `replace_file` is false and `path` exists then, `path` is not changed. Raises
    `OSError` if the file cannot be written."""
    remove_stale_temporaries(path)
    temporary = temporary_path(path)
    try:
        given = access.opener if mode is None else lambda name, flags: os.open(name, flags, mode)
        with open(temporary, "wb", opener=given) as file:
            yield file
            file.flush()
            access.sync_file(file.fileno())
        if replace_file or not _linked(temporary, path):
            access.replace_file(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _linked(temporary: Path, path: Path) -> bool:
    """Rename a file unless `path` exists. Return False, and do nothing, if the file system has no links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:
        return False
    temporary.unlink()
    return True


def temporary_path(path: Path) -> Path:
    """Return the path of a temporary file or folder for `path`. The name contains the id of this process. After a
    crash, a later process can therefore see that the creator no longer runs, and delete the file."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")


def delete(path: Path) -> None:
    """Delete a file, or a folder with its content, if it exists. Raises `OSError` if it cannot be deleted."""
    if path.is_dir() and not path.is_symlink():
        access.when_free(lambda: shutil.rmtree(path))
    else:
        access.when_free(lambda: path.unlink(missing_ok=True))


def remove_stale_temporaries(path: Path) -> None:
    """Delete the temporary files and folders for `path` that were created by processes that no longer run. Raises
    `OSError` if one cannot be deleted."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.([0-9]+)\.[0-9]+")
    for temporary in path.parent.iterdir() if path.parent.is_dir() else ():
        if (match := pattern.fullmatch(temporary.name)) and not process_exists(int(match[1])):
            delete(temporary)


def process_exists(process: int) -> bool:
    """Return whether a process with this process id is running."""
    if sys.platform == "win32":  # `os.kill(process, 0)` would press Ctrl-C in its console
        return _runs_on_windows(process)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _runs_on_windows(process: int) -> bool:
    import ctypes

    system: Any = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    if not (handle := system.OpenProcess(_SYNCHRONIZE, False, process)):
        return bool(system.GetLastError() == _DENIED)  # another user runs it
    try:
        return bool(system.WaitForSingleObject(handle, 0) == _RUNS)
    finally:
        system.CloseHandle(handle)


def identity_of(folder: Path) -> tuple[int, int] | None:
    """Return a value that differs for another folder at the same path, or None if there is no folder."""
    with contextlib.suppress(OSError):
        status = folder.stat()
        return status.st_dev, status.st_ino
    return None


def sync_folder(folder: Path) -> None:
    """Sync a folder to the disk. Files that were renamed or deleted in the folder then stay renamed or deleted after a
    crash. Does nothing on a system that cannot sync folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            access.sync_file(handle)
        finally:
            os.close(handle)


# no capitals, because some file systems ignore case
_PLAIN_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_LONGEST_NAME = 120  # maximum characters of an encoded name; file systems allow 255 for the complete file name


def safe_file_name(text: str) -> str:
    """Return a valid file name for any text. Lowercase letters, digits, `_` and `-` are kept, and all other characters
    are encoded as in a URL. A long name is cut, and a digest of the text is appended."""
    data = text.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _PLAIN_CHARACTERS else f"%{byte:02x}" for byte in data)
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME // 2]}~{hashlib.sha256(data).hexdigest()[:32]}"
    return name


@contextlib.contextmanager
def new_folder(folder: Path, example: str, outside: Iterable[Path] = ()) -> Iterator[Path]:
    """Yield a temporary folder that the caller fills. At the end of the context, it is renamed to `folder`; after an
    error, it is deleted. Messages show `example` as an example of a folder name. Raises `InvalidInput` if `folder`
    exists and is not empty, or is in one of the folders `outside`, and `StoreFull` if the disk cannot be written."""
    folder = _absolute(folder, example)
    for place in outside:
        if folder.is_relative_to(place.resolve()):
            raise InvalidInput("folder", f"{folder} is in {place}, a folder of the memory itself; choose another place")
    partial = temporary_path(folder)
    try:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if folder.exists():
            raise InvalidInput("folder", f"{folder} already exists and is not empty; choose a new folder")
        with contextlib.suppress(OSError):
            remove_stale_temporaries(folder)
        make_folder(partial, new=True)
        try:
            yield partial
            for path in [path for path in partial.rglob("*") if path.is_dir()]:
                sync_folder(path)
            sync_folder(partial)
            partial.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        advice = "free some disk space or choose another folder"
        raise store_failure(f"{folder} cannot be written", error, advice) from None


class HashedFile:
    """A new file that is written in pieces. The length and the SHA-256 are computed while the file is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes) -> None:
        """Append bytes to the file, and include the bytes in the SHA-256."""
        self._file.write(data)
        self._digest.update(data)
        self._bytes += len(data)

    @property
    def digest(self) -> dict[str, Any]:
        """The length in bytes and the SHA-256 of the written data, for the manifest of an export or backup."""
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}


@contextlib.contextmanager
def hashed_file(path: Path) -> Iterator[HashedFile]:
    """Yield a new file for writing. When the context ends without an error, the file is on disk. Raises `OSError` if
    the file exists or cannot be written."""
    make_folder(path.parent)
    with open(path, "xb", opener=access.opener) as file:
        yield HashedFile(file)
        file.flush()
        access.sync_file(file.fileno())


def _absolute(folder: Path, example: str) -> Path:
    """Return the absolute path of `folder`. Raises `InvalidInput` if the path is not valid, or if it is the current
    folder or the root folder, because such a folder cannot be replaced. The message shows `example`."""
    try:
        resolved = folder.resolve()
        current = Path.cwd()
    except (OSError, RuntimeError, ValueError) as error:
        problem = f"{str(folder)[:200]!r} cannot be used ({type(error).__name__}); give a new folder, such as {example}"
        raise InvalidInput("folder", problem) from None
    if resolved == current or not resolved.name:  # "" is the current folder, too
        raise InvalidInput("folder", f"{resolved} cannot be replaced; give a new folder, such as {example}")
    return resolved
