"""Jobs as the edges use them: put in, looked at, cancelled, and worked on in the background."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from agentformer.errors import NotFound, StoreError
from agentformer.jobs.files import Spool
from agentformer.jobs.job import Job, Task
from agentformer.jobs.store import JobStore
from agentformer.jobs.worker import Bring, JobWorker
from agentformer.records.ids import new_id

log = logging.getLogger("agentformer")

FILE = "jobs.sqlite"
FOLDER = ".jobs"
_END_SECONDS = 10.0  # that a file which is being read has at closing; the job is repeated if it takes longer


class Jobs:
    """The jobs of one memory. Any number of them, in any number of processes, may have the same folders open: each
    job is worked on by one, and taken over when its process dies. Thread-safe.

    A job that `submit` has returned is on the disk, with its files, and ends some time, whatever becomes of this
    process. Its files and its password are deleted then. Raises `StoreError` and its kinds.
    """

    def __init__(self, index_dir: Path, upload_dir: Path, bring: Bring, *, most: int, days: float) -> None:
        self._store = JobStore(index_dir / FILE)
        self._spool = Spool(upload_dir / FOLDER)
        self._worker = JobWorker(self._store, self._spool, bring)
        self._most = most
        self._kept = timedelta(days=days)
        self._closed = False

    def start(self) -> None:
        """Go on with what an earlier process has left. A store that cannot be read now is told in the log."""
        try:
            self._sweep()
            if self._store.waiting():
                self._worker.wake()
        except (StoreError, OSError) as error:
            log.error("the jobs cannot be looked at: %s", error)

    def submit(self, task: Task, files: Sequence[BinaryIO], password: str | None = None) -> Job:
        """A new job. Raises `Busy` where too many wait, `StoreFull`, and `StoreError` after `close`; then nothing is
        kept."""
        if self._closed:
            raise StoreError("these jobs are closed, so that nobody would work on it; open the memory again")
        self._store.check_room(self._most)
        self._store.forget(self._kept)
        job_id = new_id()
        lock = self._spool.put(job_id, files, password)
        try:
            job = self._store.add(job_id, task, self._most)
        except BaseException:
            lock.release()
            self._spool.remove(job_id)
            raise
        lock.release()
        self._worker.wake()
        return job

    def get(self, job_id: str) -> Job:
        """Raises `NotFound`."""
        return self._store.get(job_id)

    def page(self, namespaces: Sequence[str], *, after: str = "", limit: int = 100) -> list[Job]:
        """At most `limit` jobs of the namespaces (none given: of all), newest first, older than the one with the id
        `after`."""
        return self._store.page(namespaces, after, limit)

    def cancel(self, job_id: str) -> Job:
        """End a job: at once where nobody works on it, else with the next file or batch. What is stored stays.
        Raises `NotFound`, and `Conflict` where it has ended."""
        job = self._store.cancel(job_id)
        if lock := self._spool.lock(job_id):
            self._store.end(job_id, "cancelled")
            lock.release()
            self._spool.remove(job_id)
            job = self._store.get(job_id)
        return job

    def stop(self) -> None:
        """Break the running job off, for the next process to go on with; does not wait."""
        self._worker.stop()

    def stopped(self, seconds: float) -> bool:
        """Wait until `stop` or `close` is called, at most so long; True where it was."""
        return self._worker.stopped(seconds)

    def close(self) -> None:
        """Break the running job off, and wait a few seconds for it. Idempotent. No job is taken afterwards."""
        self._closed = True
        self._worker.stop()
        self._worker.join(_END_SECONDS)
        self._store.close()

    def _sweep(self) -> None:
        """Forget old jobs, and the files of those that ended, or never began, when their process died."""
        self._store.forget(self._kept)
        for job_id in self._spool.left():
            if not self._waits(job_id):
                self._spool.remove_unless_held(job_id)

    def _waits(self, job_id: str) -> bool:
        try:
            return not self._store.get(job_id).ended
        except NotFound:
            return False
