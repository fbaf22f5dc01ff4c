"""The places where original files are stored: a folder, and the database that several nodes share. `s3_files.py` has a
third place, a bucket.

The name of each file is the SHA-256 of its bytes, so a caller cannot choose the name.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Protocol

from agentformer.errors import NotFound, StoreError, StoreFull
from agentformer.records.integrity.files import open_regular_file, read_file, sync_folder, write_atomically
from agentformer.types import SharedFiles

SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"\.?([0-9a-f]{64})\.bin(\.[0-9]+\.[0-9]+)?")  # an original file, or a temporary file for it
_ORIGINAL = "original/"  # the names in the database begin with this


class OriginalFiles(Protocol):
    """A place that stores original files. `place` is its name in messages. A digest is the SHA-256 of a file's bytes as
    64 hexadecimal digits. Methods raise `StoreError` if the place cannot be read or written, and its subclass
    `StoreBusy` if the caller can try again later."""

    place: str

    def put(self, digest: str, data: bytes) -> None:
        """Store a file, unless it is stored already and undamaged. After a crash, the file is complete or missing."""

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether the file is stored and undamaged."""

    def open(self, digest: str) -> BinaryIO:
        """Open a file for reading. Raises `NotFound` if the file is missing."""

    def delete(self, digests: Collection[str]) -> None:
        """Delete files, and the temporary files that interrupted writes left for them. Missing files are ignored."""

    def names(self) -> dict[str, str]:
        """Return a dictionary: name of each stored file -> its digest, or "" if it is not an original file."""

    def size(self, name: str) -> int | None:
        """Return the size of the file `name` in bytes, or None if this file does not exist."""


class LocalFiles:
    """Original files in a folder, which is created when the first file is stored."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder

    def path(self, digest: str) -> Path:
        """Return the path of the original file with this SHA-256. The file may be missing."""
        return self._folder / file_name(digest)

    def put(self, digest: str, data: bytes) -> None:
        """Store a file under its SHA-256, unless an undamaged file is there. Raises `StoreError` if the folder cannot
        be written."""
        path = self.path(digest)
        if self.holds(digest, data):
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            raise unwritable(self._folder, error) from error

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether the file is stored and undamaged."""
        path = self.path(digest)
        try:
            return path.stat().st_size == len(data) and read_file(path) == data
        except OSError:
            return False

    def open(self, digest: str) -> BinaryIO:
        """Open a file for reading. Raises `NotFound` if the file is missing."""
        try:
            return open_regular_file(self.path(digest))
        except FileNotFoundError:
            raise missing(digest, self.place) from None
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"cannot read the original file {digest[:12]} in {self.place}: {reason}") from None

    def delete(self, digests: Collection[str]) -> None:
        """Delete files, and the temporary files that interrupted writes left for them. Missing files are ignored."""
        paths = [self.path(digest) for digest in digests]
        for path in paths:
            for file in (path, *path.parent.glob(f".{path.name}.*")):
                file.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            sync_folder(folder)

    def names(self) -> dict[str, str]:
        """Return all files of the folder, as `OriginalFiles.names` does. The locks of this folder and the files of
        background uploads are left out."""
        files = (path.relative_to(self._folder) for path in sorted(self._folder.rglob("*")) if not path.is_dir())
        return {str(file): digest_in(file.as_posix()) for file in files if not file.parts[0].startswith(".")}

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if the file does not exist."""
        try:
            return (self._folder / name).lstat().st_size
        except OSError:
            return None


def file_name(digest: str) -> str:
    """Return the name of an original file. The file is in a subfolder with a name of two characters, so that no folder
    has too many files."""
    return f"{digest[:2]}/{digest}.bin"


def digest_in(name: str) -> str:
    """Return the SHA-256 in the name of an original file, or "" for another file."""
    folder, _, last = name.rpartition("/")
    match = _FILE.fullmatch(last)
    return match[1] if match and folder == match[1][:2] else ""


def missing(digest: str, place: str) -> NotFound:
    """Return the error for an original file that is not in `place`."""
    return NotFound(f"the original file {digest[:12]} is missing in {place}; ingest the file again")


def unwritable(folder: Path, error: OSError) -> StoreFull:
    """Return the error for a folder of original files that cannot be written."""
    return StoreFull(
        f"the original file cannot be written to {folder}: {error.strerror or error}; "
        "free some disk space or choose another folder with --upload-dir"
    )


class DatabaseOriginals:
    """Original files in the database. The methods are described in `OriginalFiles`."""

    def __init__(self, files: SharedFiles) -> None:
        self.place = files.place
        self._files = files

    def put(self, digest: str, data: bytes) -> None:
        """Store a file, unless an undamaged file is stored."""
        if not self.holds(digest, data):
            self._files.put(_ORIGINAL + digest, data)

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether the file is stored and undamaged."""
        return self._files.sha256(_ORIGINAL + digest) == hashlib.sha256(data).hexdigest()

    def open(self, digest: str) -> BinaryIO:
        """Open a file for reading. Raises `NotFound` if the file is missing."""
        data = self._files.get(_ORIGINAL + digest)
        if data is None:
            raise missing(digest, self.place)
        return io.BytesIO(data)

    def delete(self, digests: Collection[str]) -> None:
        """Delete files. Missing files are ignored."""
        if digests:
            self._files.delete(*(_ORIGINAL + digest for digest in digests))

    def names(self) -> dict[str, str]:
        """Return a dictionary: name of each stored file -> its digest."""
        digests = (name.removeprefix(_ORIGINAL) for name in self._files.sizes(_ORIGINAL))
        return {file_name(digest): digest for digest in digests}

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if the file does not exist."""
        stored = _ORIGINAL + digest_in(name)
        return self._files.sizes(stored).get(stored)
