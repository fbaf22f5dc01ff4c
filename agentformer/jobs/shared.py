"""The upload jobs of a memory that several nodes (processes, often on different computers) share. Jobs and their files
are in the database of the memory, so that another node continues the jobs of a node that dies."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import BinaryIO

from agentformer.errors import StoreError
from agentformer.jobs.store import JobStore
from agentformer.types import Connection, HeldLock, RecordStore, SharedFiles, SharedLocks

_JOB = "job/"
_PASSWORD = "password"  # noqa: S105 - the name of a file


class SharedJobStore(JobStore):
    """The jobs in the table `jobs` of the database of a memory, which need not be SQLite."""

    shared = True

    def __init__(self, database: RecordStore) -> None:
        self._database = database

    def reading(self) -> AbstractContextManager[Connection]:
        """Return a context manager that yields a connection in a read transaction."""
        return self._database.reading()

    def writing(self) -> AbstractContextManager[Connection]:
        """Return a context manager that yields a connection in a write transaction."""
        return self._database.writing()

    def close(self) -> None:
        """Do nothing: the memory closes its database."""

    @property
    def _exists(self) -> bool:
        return True

    def _clear_log(self) -> None:
        """Do nothing: the database server has its own log."""


class SharedJobFiles:
    """The uploaded files of jobs, stored in the database. The node that works on a job holds the lock of the job."""

    def __init__(self, files: SharedFiles, locks: SharedLocks) -> None:
        self._files = files
        self._locks = locks

    def put(self, job_id: str, files: Sequence[BinaryIO], password: str | None) -> HeldLock:
        """Store the uploaded files and the password of a new job, and return the lock of the job, which the caller must
        release. Raises `StoreError` if another process uses the same id."""
        lock = self.lock(job_id, new=True)
        if lock is None:
            raise StoreError(f"another process has a job with the id {job_id}; send the request again")
        try:
            for number, file in enumerate(files):
                self._files.put(_name(job_id, str(number)), file.read())
            if password is not None:
                self._files.put(_name(job_id, _PASSWORD), password.encode("utf-8"))
        except BaseException:
            lock.release()
            self.remove(job_id)
            raise
        return lock

    def lock(self, job_id: str, *, new: bool = False) -> HeldLock | None:
        """Take the lock of a job. Return None if another process holds it, or if the job has no files. If `new` is
        true, the lock is taken although the job has no files yet."""
        return self._locks.take(_JOB + job_id) if new or self.has(job_id) else None

    def has(self, job_id: str) -> bool:
        """Return whether the database contains files of the job. They are deleted when the job ends."""
        return bool(self._files.sizes(_name(job_id, "")))

    def open(self, job_id: str, number: int) -> BinaryIO:
        """Open the file `number` of a job for reading. Raises `FileNotFoundError` if the job has no such file."""
        data = self._files.get(_name(job_id, str(number)))
        if data is None:
            raise FileNotFoundError(_name(job_id, str(number)))
        return io.BytesIO(data)

    def size(self, job_id: str, number: int) -> int:
        """Return the size of the file `number` of a job in bytes, or 0 if it is missing."""
        name = _name(job_id, str(number))
        return self._files.sizes(name).get(name, 0)

    def password(self, job_id: str) -> str | None:
        """Return the password for the uploaded files of a job, or None if the client sent no password."""
        data = self._files.get(_name(job_id, _PASSWORD))
        return None if data is None else data.decode("utf-8")

    def remove(self, job_id: str) -> None:
        """Delete the files, the password and the lock of a job."""
        self._files.delete(*self._files.sizes(_name(job_id, "")))
        self._locks.forget(_JOB + job_id)

    def ids(self) -> list[str]:
        """Return the ids of all jobs that have files, in order."""
        return sorted({name.split("/")[1] for name in self._files.sizes(_JOB)})

    def is_newer(self, job_id: str, age: timedelta) -> bool:
        """Return False: the files and the jobs are in one database, so files without a job are left over."""
        return False

    def remove_unneeded(self, job_id: str, store: JobStore) -> None:
        """Delete the files of a job, unless the job is active or a process is still creating it."""
        if lock := self.lock(job_id):
            needed = job_id in store.active()
            lock.release()
            if not needed:
                self.remove(job_id)


def _name(job_id: str, name: str) -> str:
    return f"{_JOB}{job_id}/{name}"
