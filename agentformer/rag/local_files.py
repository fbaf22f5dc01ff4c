"""Original files in a local folder, which several memories may share (see `ownership`)."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from agentformer.errors import NotFound, StoreError, store_failure
from agentformer.lazy import Lazy
from agentformer.rag.ownership import PREFIX, Owner, claim
from agentformer.records.integrity.files import (
    open_regular_file,
    read_file,
    remove_stale_temporaries,
    sync_folder,
    temporary_path,
    write_atomically,
)
from agentformer.settings.access import make_folder

SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"\.?([0-9a-f]{64})\.bin(\.[0-9]+\.[0-9]+)?")  # an original file, or a temporary file for it


class LocalFiles:
    """Original files in a folder, which is created when the first file is stored. If `owner` is given, the files of
    this memory are in its folder of `root`, and those of other memories are beside it. Files of a version that knew no
    owners are in `root` itself. Files that this memory does not own are read, and never deleted."""

    def __init__(self, root: Path, owner: Owner | None = None) -> None:
        self.place = str(root)
        self._root = root
        self._owner = owner
        self._folder = root / owner.folder if owner else root

    def owns(self, digest: str) -> bool:
        """Return whether the memory has stored a file with this digest. The file may be damaged."""
        return self.path(digest).exists()

    def settle(self, needed: Lazy[set[str]]) -> None:
        """Link the files of the documents that this memory does not own yet, or copy them if the file system has no
        links."""
        if self._owner is None or not self._root.is_dir() or (self._owner.mark is None and self._folder.exists()):
            return
        remove_stale_temporaries(self._folder)
        target = self._folder if self._folder.exists() else temporary_path(self._folder)
        for digest in needed.get() if any(self._root.iterdir()) else ():
            if not self.owns(digest) and (source := next(filter(Path.is_file, self._elsewhere(digest)), None)):
                self._adopt(source, target / file_name(digest))
        if target.exists() and target != self._folder:
            target.rename(self._folder)

    def _adopt(self, source: Path, path: Path) -> None:
        make_folder(path.parent)
        try:
            os.link(source, path)
        except OSError:
            if source.parent.parent != self._root:  # no memory deletes a file of a version without owners
                write_atomically(path, read_file(source))

    def _elsewhere(self, digest: str) -> Iterator[Path]:
        """Yield the paths at which a file may be that this memory does not own."""
        yield self._root / file_name(digest)
        with suppress(OSError):
            yield from sorted(self._root.glob(f"{PREFIX}*/{file_name(digest)}"))

    def left(self, digests: Collection[str]) -> list[str]:
        """Return the names of the files of a version without owners that `delete` leaves."""
        return [str(each) for each in (self._root / file_name(d) for d in digests) if self._owner and each.exists()]

    def path(self, digest: str) -> Path:
        """Return the path of the original file with this SHA-256. The file may be missing."""
        return self._folder / file_name(digest)

    def put(self, digest: str, data: bytes) -> None:
        """Store a file, unless an undamaged copy is stored already. Raises `StoreFull` if the folder cannot be
        written."""
        path = self.path(digest)
        if self.holds(digest, data):
            return
        try:
            make_folder(path.parent)
            if self._owner is not None:
                claim(self._folder, self._owner)
            write_atomically(path, data)
        except OSError as error:
            raise unwritable(self._folder, error) from error

    def holds(self, digest: str, data: bytes) -> bool:
        """Return whether this memory has stored the file undamaged."""
        path = self.path(digest)
        try:
            return path.stat().st_size == len(data) and read_file(path) == data
        except OSError:
            return False

    def open(self, digest: str) -> BinaryIO:
        """Open a file for reading. Raises `NotFound` if the file is missing."""
        try:
            with suppress(FileNotFoundError):
                return open_regular_file(self.path(digest))
            for path in self._elsewhere(digest):
                with suppress(FileNotFoundError):
                    return open_regular_file(path)
            raise missing(digest, self.place)
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
        """Return a dictionary: name of each file in the folder -> its digest, or "" if it is not an original file.
        Hidden files and folders, such as locks and background uploads, and the files of other owners are left out."""
        names = {}
        for folder in {self._root, self._folder}:
            for top in sorted(folder.glob("[!.]*")):
                if folder is self._root and self._owner and top.name.startswith(PREFIX):
                    continue  # of this or another owner
                for path in [top] if not top.is_dir() else sorted(each for each in top.rglob("*") if not each.is_dir()):
                    names[str(path.relative_to(self._root))] = digest_in(path.relative_to(folder).as_posix())
        return names

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if the file does not exist."""
        try:
            return (self._root / name).lstat().st_size
        except OSError:
            return None


def file_name(digest: str) -> str:
    """Return the path of an original file in the folder of the originals. The name of its subfolder is the beginning of
    the digest, so that no folder contains too many files."""
    return f"{digest[:2]}/{digest}.bin"


def digest_in(name: str) -> str:
    """Return the SHA-256 in the name of an original file, or "" if the name belongs to another file."""
    folder, _, last = name.rpartition("/")
    match = _FILE.fullmatch(last)
    return match[1] if match and folder == match[1][:2] else ""


def missing(digest: str, place: str) -> NotFound:
    """Return the error for an original file that is not in `place`."""
    return NotFound(f"the original file {digest[:12]} is missing in {place}; ingest the file again")


def unwritable(folder: Path, error: OSError) -> StoreError:
    """Return the error for a folder of original files that cannot be written."""
    advice = "free some disk space or choose another folder with --upload-dir"
    return store_failure(f"the original file cannot be written to {folder}", error, advice)
