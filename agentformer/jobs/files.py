"""The files of jobs that have not ended, and who works on which job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from agentformer.errors import StoreFull
from agentformer.records.files import sync_folder, write_atomically

_PIECE = 1024 * 1024
_LOCK = "lock"
_PASSWORD = "password"  # noqa: S105 (the name of its file)


class Spool:
    """A folder for each job, with its files as 0, 1, 2: nothing on the disk has a name that a client chose.

    Who works on a job holds the lock in its folder, which the system frees when a process dies. Whether a job is still
    to be worked on is known by the `JobStore` alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, job_id: str, files: Sequence[BinaryIO], password: str | None) -> FileLock:
        """Keep the files; they have reached the disk when this returns. The job's lock is held, for the caller to
        release. Raises `StoreFull`, and then nothing is kept."""
        place = self._folder / job_id
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._guard():  # so that nobody sweeps the folder away before its lock is held
                place.mkdir(mode=0o700)
                lock = FileLock(str(place / _LOCK))
                lock.acquire(timeout=0)
            try:
                for number, file in enumerate(files):
                    _keep(place / str(number), file)
                if password is not None:
                    write_atomically(place / _PASSWORD, password.encode("utf-8"), mode=0o600)
                for folder in (place, self._folder, self._folder.parent):
                    sync_folder(folder)
            except BaseException:
                lock.release()
                self.remove(job_id)
                raise
        except (OSError, Timeout) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreFull(f"the files cannot be kept in {self._folder}: {reason}; free space there") from error
        return lock

    def lock(self, job_id: str) -> FileLock | None:
        """The job's lock, held by this thread; None while another holds it, or where the files are gone."""
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

    def file(self, job_id: str, number: int) -> BinaryIO:
        """Raises `OSError`."""
        return (self._folder / job_id / str(number)).open("rb")

    def password(self, job_id: str) -> str | None:
        try:
            return (self._folder / job_id / _PASSWORD).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def remove(self, job_id: str) -> None:
        """Delete the files and the password. What cannot be deleted now is left to `sweep`."""
        shutil.rmtree(self._folder / job_id, ignore_errors=True)

    def left(self) -> list[str]:
        """Ids of the jobs that have a folder."""
        return sorted(path.name for path in self._folder.iterdir() if path.is_dir()) if self._folder.is_dir() else []

    def remove_unless_held(self, job_id: str) -> None:
        """`remove`, unless somebody works on the job, or is just putting it there."""
        with self._guard():
            if lock := self.lock(job_id):
                lock.release()
                self.remove(job_id)

    def _guard(self) -> FileLock:
        return FileLock(str(self._folder / ".lock"))


def _keep(path: Path, source: BinaryIO) -> None:
    with path.open("xb") as file:
        shutil.copyfileobj(source, file, _PIECE)
        file.flush()
        os.fsync(file.fileno())
