"""The files of unfinished jobs on disk, with one lock per job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from agentformer.errors import StoreFull
from agentformer.records.files import sync_folder, write_atomically

_BLOCK = 1024 * 1024
_LOCK = "lock"
_PASSWORD = "password"  # noqa: S105 (the name of the file)


class JobFiles:
    """One folder per job. The files in the folder are named 0, 1, 2, so a client cannot choose a name on the disk.

    The process that works on a job holds the lock in the folder. The operating system releases the lock when the
    process dies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, job_id: str, files: Sequence[BinaryIO], password: str | None) -> FileLock:
        """Write and sync the files. Return the lock of the job; the caller releases it. Raises `StoreFull`, and leaves
        no files in this case."""
        folder = self._folder / job_id
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._guard():  # a clean-up must not delete the folder before the lock is held
                folder.mkdir(mode=0o700)
                lock = FileLock(str(folder / _LOCK))
                lock.acquire(timeout=0)
            try:
                for number, file in enumerate(files):
                    _write(folder / str(number), file)
                if password is not None:
                    write_atomically(folder / _PASSWORD, password.encode("utf-8"), mode=0o600)
                for changed in (folder, self._folder, self._folder.parent):
                    sync_folder(changed)
            except BaseException:
                lock.release()
                self.remove(job_id)
                raise
        except (OSError, Timeout) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreFull(f"{self._folder} cannot be written ({reason}); free space there") from error
        return lock

    def lock(self, job_id: str) -> FileLock | None:
        """Acquire the lock of the job. Return None if another process holds the lock or the files are missing."""
        if not self.has(job_id):
            return None
        lock = FileLock(str(self._folder / job_id / _LOCK))
        try:
            lock.acquire(timeout=0)
        except (OSError, Timeout):
            return None
        return lock

    def has(self, job_id: str) -> bool:
        return (self._folder / job_id).is_dir()

    def open(self, job_id: str, number: int) -> BinaryIO:
        """Open a file of the job for reading. Raises `OSError`."""
        return (self._folder / job_id / str(number)).open("rb")

    def password(self, job_id: str) -> str | None:
        """Return the password of the uploaded files, if the client sent a password."""
        try:
            return (self._folder / job_id / _PASSWORD).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def remove(self, job_id: str) -> None:
        """Delete the files and the password. Errors are ignored; the next start tries again."""
        shutil.rmtree(self._folder / job_id, ignore_errors=True)

    def ids(self) -> list[str]:
        """Return the ids of the jobs that have a folder."""
        return sorted(path.name for path in self._folder.iterdir() if path.is_dir()) if self._folder.is_dir() else []

    def remove_unlocked(self, job_id: str) -> None:
        """Delete the files, unless a process works on the job or is creating the job."""
        with self._guard():
            if lock := self.lock(job_id):
                lock.release()
                self.remove(job_id)

    def _guard(self) -> FileLock:
        return FileLock(str(self._folder / ".lock"))


def _write(path: Path, source: BinaryIO) -> None:
    with path.open("xb") as file:
        shutil.copyfileobj(source, file, _BLOCK)
        file.flush()
        os.fsync(file.fileno())
