"""A new folder that is there wholly or not at all, and files in it that have reached the disk."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from agentformer.errors import InvalidInput, StoreFull
from agentformer.records.files import process_exists, sync_folder


@contextmanager
def new_folder(folder: Path, example: str) -> Iterator[Path]:
    """A folder to fill, which takes the name of `folder` when this is left without an error, and is gone after one.
    What a killed process left half filled under this name is cleared away. Raises `InvalidInput`, `StoreFull`."""
    folder = _free_place(folder, example)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if folder.exists():
            raise InvalidInput("folder", f"{folder} is there already, and not empty; give a new folder")
        _clear_unfinished(folder)
        partial.mkdir(parents=True)
        try:
            yield partial
            for each in [path for path in partial.rglob("*") if path.is_dir()]:
                sync_folder(each)
            sync_folder(partial)
            partial.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise StoreFull(
            f"{folder} cannot be written: {error.strerror or error}; free space or choose another"
        ) from None


class WrittenFile:
    """A file that is written once, piece by piece, with its length and SHA-256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._bytes += len(data)

    @property
    def told(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}


@contextmanager
def written_file(path: Path) -> Iterator[WrittenFile]:
    """A new file, which has reached the disk when this is left. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        yield WrittenFile(file)
        file.flush()
        os.fsync(file.fileno())


def _free_place(folder: Path, example: str) -> Path:
    """Where the folder goes, as an absolute path that can be moved into place. Raises `InvalidInput`."""
    try:
        resolved = folder.resolve()
        here = Path.cwd()
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInput("folder", f"{str(folder)[:200]!r} cannot be used ({type(error).__name__})") from None
    if resolved == here or not resolved.name:  # "" is the current folder, too
        raise InvalidInput("folder", f"{resolved} cannot be replaced; give a new folder, such as {example}")
    return resolved


def _clear_unfinished(folder: Path) -> None:
    """Remove what processes that are no more were writing under this name."""
    named = re.compile(rf"\.{re.escape(folder.name)}\.([0-9]+)\.[0-9]+")
    for left in folder.parent.iterdir() if folder.parent.is_dir() else ():
        if (found := named.fullmatch(left.name)) and not process_exists(int(found[1])):
            shutil.rmtree(left, ignore_errors=True)
