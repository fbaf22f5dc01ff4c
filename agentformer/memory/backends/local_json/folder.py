"""The folder of JSON files of the backend `local_json`: its lock, the versions of its files, and changes of several
files that happen all or not at all.

A change of one file replaces this file. A change of several files first writes the new files under temporary names,
then writes a journal with these names, and then renames the files. If the process is killed after the journal was
written, the next call renames the files that remain."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import Timeout

from agentformer.errors import StoreBusy, StoreDamaged, StoreError, is_passing, store_failure
from agentformer.records.integrity.files import identity_of, open_regular_file, read_file, sync_folder, write_atomically
from agentformer.settings.access import file_lock, make_folder, replace_file

LOCK_FILE = "memory.lock"
JOURNAL_FILE = "memory.journal"
_NEW = ".new"  # suffix of a new file that is not yet listed in a journal
_LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.002
_READ_ATTEMPTS = 500  # attempts to read a folder without the lock, until no file changes during the read
Version = tuple[int, int, int]  # inode, time of change in nanoseconds, size
UNREADABLE: Version = (0, 0, 0)  # such a file is read again by each call


class Folder:
    """A folder that several threads and processes use. The folder is created if it is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_folder(path)
        except OSError as error:
            raise store_failure(f"the folder {path} cannot be created", error, "choose another folder") from error
        self._identity = identity_of(path)
        self._lock = file_lock(path / LOCK_FILE)

    @property
    def read_only(self) -> bool:
        return not os.access(self.path, os.W_OK)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder during the `with` block, and finish the change of a killed process. Raises
        `StoreBusy` if another process holds the lock for too long, and `StoreError` if the folder was replaced."""
        self.check_place()
        try:
            self._lock.acquire(timeout=_LOCK_SECONDS, poll_interval=_POLL_SECONDS)
        except Timeout:
            lock = self.path / LOCK_FILE
            raise StoreBusy(f"another process has held {lock} for too long; try again, or end that process") from None
        except OSError as error:
            raise self.not_written(error) from error
        try:
            try:
                self._finish_journal()
            except OSError as error:
                raise self._unusable(error) from error
            yield
        finally:
            self._lock.release()

    def unlocked_reads(self) -> Iterator[dict[str, Version]]:
        """Yield the versions of all files, until none of them has changed while the caller has read them. Locking
        writes to the folder, so a read-only folder is read without the lock."""
        self.check_place()
        for _ in range(_READ_ATTEMPTS):
            versions = self.versions()
            if (self.path / JOURNAL_FILE).exists():  # another process is writing
                time.sleep(_POLL_SECONDS)
                continue
            yield versions
            if self.versions() == versions:
                return
        raise StoreError(
            f"{self.path} has an unfinished change, and this process cannot write to the "
            "folder; copy the folder to another place where you can write"
        )

    def check_place(self) -> None:
        """Raise `StoreError` if the folder was removed or replaced while it was open."""
        if identity_of(self.path) != self._identity:
            raise StoreError(
                f"{self.path} was removed, replaced or moved while it was open; move it back, or open the memory again"
            )

    def versions(self) -> dict[str, Version]:
        """Return file name -> version for each file of a namespace, in order of name."""
        try:
            with os.scandir(self.path) as listing:
                return dict(sorted((each.name, _version(each)) for each in listing if _is_namespace_file(each.name)))
        except OSError as error:
            raise self._unusable(error) from error

    def version(self, name: str) -> Version:
        """Return the version of a file that the caller has written."""
        return _version_of((self.path / name).stat())

    def read(self, name: str) -> tuple[Version, bytes, str]:
        """Return the version and the bytes of a file, and the reason if it cannot be read. Raises `StoreBusy` for an
        error that may pass."""
        try:
            with open_regular_file(self.path / name) as file:
                return _version_of(os.fstat(file.fileno())), file.read(), ""
        except OSError as error:
            if is_passing(error):
                raise self._unusable(error) from error
            # A change of permissions does not change the version, so each call tries to read this file again.
            return UNREADABLE, b"", f"{self.path / name} cannot be read: {error.strerror or error}"

    def write(self, texts: Mapping[str, str]) -> None:
        """Write files: all of them or none. `texts` contains the text of each file by file name. A file with an empty
        text is deleted. The caller holds the lock."""
        try:
            self._remove_unfinished()
            if len(texts) > 1:
                self._write_several(texts)
                return
            for name, text in texts.items():
                if text:
                    write_atomically(self.path / name, text.encode("utf-8"))
                    _set_unique_time(self.path / name)
                else:
                    (self.path / name).unlink(missing_ok=True)
                    sync_folder(self.path)
        except OSError as error:
            raise self.not_written(error) from error

    def keep_copy(self, name: str, data: bytes) -> str:
        """Copy a damaged file into the same folder, unless such a copy exists. Return advice for the user."""
        copy = self.path / f"{name}.damaged-{hashlib.sha256(data).hexdigest()[:12]}"
        try:
            if not copy.exists():
                write_atomically(copy, data)
        except OSError:
            return "correct the file in an editor, or move it to another folder to start with an empty namespace"
        advice = "correct the file in an editor, or remove it to start with an empty namespace"
        return f"{advice}; a copy of the damaged file is {copy.name}"

    def drop_copies(self, name: str) -> None:
        """Delete the copies that `keep_copy` has made of this file."""
        for copy in self.path.glob(f"{glob.escape(name)}.damaged-*"):
            copy.unlink(missing_ok=True)

    def not_written(self, error: OSError) -> StoreError:
        """Return the error for a failed write."""
        return store_failure(f"{self.path} cannot be written", error, "free some disk space or check the permissions")

    def _unusable(self, error: OSError) -> StoreError:
        return store_failure(f"{self.path} cannot be used", error, "check the permissions")

    def _write_several(self, texts: Mapping[str, str]) -> None:
        journal = self.path / JOURNAL_FILE
        try:
            for name, text in texts.items():
                if text:
                    write_atomically(self.path / (name + _NEW), text.encode("utf-8"))
            write_atomically(journal, json.dumps({name: bool(text) for name, text in texts.items()}).encode())
        except BaseException:
            if not journal.exists():  # otherwise the change is committed, and the next call finishes it
                self._remove_unfinished()
            raise
        self._finish_journal()

    def _finish_journal(self) -> None:
        journal = self.path / JOURNAL_FILE
        try:
            data = read_file(journal)
        except FileNotFoundError:
            return
        try:
            names = json.loads(data)
            if not isinstance(names, dict) or not all(_is_namespace_file(name) for name in names):
                raise ValueError("a journal must contain names of memory files")
        except ValueError as error:
            raise StoreDamaged(
                f"{journal} is damaged ({error}); the files *{_NEW} in the same folder contain the new data: "
                f"remove the ending {_NEW} from their names, or delete them, and then delete the journal"
            ) from None
        for name, has_text in names.items():
            path, new = self.path / name, self.path / (name + _NEW)
            if not has_text:
                path.unlink(missing_ok=True)
            elif new.exists():  # otherwise a killed process has already renamed it
                replace_file(new, path)
                _set_unique_time(path)
        sync_folder(self.path)
        journal.unlink()
        sync_folder(self.path)

    def _remove_unfinished(self) -> None:
        """Delete the temporary files of killed processes. The caller holds the lock, so no process writes them."""
        for pattern in (".memory[-.]*", f"memory-*{_NEW}"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)


def _version_of(status: os.stat_result) -> Version:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _version(entry: os.DirEntry[str]) -> Version:
    try:
        return _version_of(entry.stat())
    except OSError:  # the entry is a broken or circular link
        return UNREADABLE


def _set_unique_time(path: Path) -> None:
    """Set the modification time of a new file to the time of the clock, so that other processes notice the new version.
    The times that some file systems set are less exact, and two versions could have the same time."""
    moment = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(path, ns=(moment, moment))


def _is_namespace_file(name: str) -> bool:
    return name.startswith("memory-") and name.endswith(".json") and Path(name).name == name
