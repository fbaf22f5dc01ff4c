"""The thread that works on jobs: one in each process that serves, one job at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, BinaryIO, Protocol

from filelock import FileLock

from agentformer.errors import StoreError
from agentformer.jobs.files import Spool
from agentformer.jobs.job import Job, usable
from agentformer.jobs.store import JobStore

log = logging.getLogger("agentformer")

_POLL = 1.0  # seconds between looks at jobs that other processes work on: theirs end, or are left behind
_TELL = 0.5  # seconds between two notes of a file's progress; each waits for the disk
_LONGEST_PAUSE = 60.0  # seconds without a try where the store takes nothing
_ATTEMPTS = 5  # at one file that ends the process each time: then it is left out, and the others have their turn

_NONE_USABLE = "none of the files became a document; `documents` tells why"
_WAITS = "the store takes nothing now; it is tried again"
_GONE = "the files that were sent are gone from this server; send them again"
_DEADLY = f"the server ended {_ATTEMPTS} times while it was brought in"
_UNFORESEEN = "something went wrong here; the server's log has more"


class Bring(Protocol):
    """What is done with each file of a job."""

    def __call__(
        self, job: Job, name: str, file: BinaryIO, password: str | None, progress: Progress
    ) -> Mapping[str, Any]:
        """The outcome, as JSON with a `status`. Doing it again with the same bytes must change nothing more. What
        `progress` raises ends the work, and nothing of the file is kept then. A `StoreError` means: not now."""
        ...

    def failed(self, job: Job, name: str, reason: str) -> Mapping[str, Any]:
        """The outcome of a file that could not be brought in."""
        ...


class Progress(Protocol):
    def __call__(self, done: int, windows: int, /) -> None: ...


class JobWorker:
    """Starts when it is woken first. What it had begun when it stops goes back into the queue."""

    def __init__(self, store: JobStore, spool: Spool, bring: Bring) -> None:
        self._store = store
        self._spool = spool
        self._bring = bring
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pause = 1.0

    def wake(self) -> None:
        """There may be something to do."""
        self._woken.set()
        with self._starting:
            if not self._stopping.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="agentformer-jobs", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End with the next file or batch; does not wait."""
        self._stopping.set()
        self._woken.set()

    def stopped(self, seconds: float) -> bool:
        """Wait until `stop` is called, at most so long; True where it was."""
        return self._stopping.wait(seconds)

    def join(self, seconds: float) -> None:
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            seconds = self._turn()
            self._woken.wait(seconds)

    def _turn(self) -> float | None:
        """Work on one job. Returns how long to wait for the next; None: until woken."""
        try:
            for job_id in self._store.waiting():
                if lock := self._spool.lock(job_id):
                    self._work(job_id, lock)
                    self._pause = 1.0
                    return 0
                if not self._spool.has(job_id):
                    self._store.end(job_id, "failed", _GONE)
                    return 0
            return _POLL if self._store.waiting() else None
        except StoreError as error:
            log.error("jobs wait for %g s: %s", self._pause, error)
        except Exception:
            log.exception("jobs wait for %g s", self._pause)
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        return pause

    def _work(self, job_id: str, lock: FileLock) -> None:
        """The whole job, unless this process stops. The lock is released; where the job has ended, its files go."""
        ended = True
        try:
            job = self._store.begin(job_id)
            if job is not None:
                self._finish(job)
        except _Stopped:
            ended = False
            self._store.back(job_id)
        except _Cancelled:
            self._store.end(job_id, "cancelled")
        except BaseException:
            ended = False
            self._store.back(job_id, _WAITS)
            raise
        finally:
            lock.release()
            if ended:
                self._spool.remove(job_id)

    def _finish(self, job: Job) -> None:
        password = self._spool.password(job.id)
        while len(job.documents) < len(job.task.names):
            self._check(job)
            job = self._one(job, len(job.documents), password)
        if usable(job.documents):
            self._store.end(job.id, "done")
        else:
            self._store.end(job.id, "failed", _NONE_USABLE)

    def _one(self, job: Job, number: int, password: str | None) -> Job:
        """The job with one more outcome. A file whose outcome a killed process did not note is brought in again,
        which changes nothing."""
        told = _Told(self, job)
        name = job.task.names[number]
        try:
            if self._store.attempt(job.id) > _ATTEMPTS:
                document = self._bring.failed(job, name, _DEADLY)
            else:
                with self._spool.file(job.id, number) as file:
                    document = self._bring(job, name, file, password, told)
        except (StoreError, _Stopped, _Cancelled):
            raise
        except FileNotFoundError:
            document = self._bring.failed(job, name, _GONE)
        except Exception:
            log.exception("a file of the job %s", job.id)
            document = self._bring.failed(job, name, _UNFORESEEN)
        return self._store.finished(job, document, job.windows + told.windows)

    def _check(self, job: Job) -> None:
        """Raises `_Stopped` or `_Cancelled`."""
        if self._stopping.is_set():
            raise _Stopped
        if job.cancelling:
            raise _Cancelled

    def note(self, job: Job, done: int, windows: int) -> None:
        """Progress of the next file of `job`. Raises `_Stopped` or `_Cancelled`."""
        self._check(self._store.progress(job.id, job.windows + done, job.windows + windows))

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()


class _Told:
    """Notes the progress of one file, not too often."""

    def __init__(self, worker: JobWorker, job: Job) -> None:
        self._worker = worker
        self._job = job
        self._next = time.monotonic() + _TELL
        self.windows = 0

    def __call__(self, done: int, windows: int, /) -> None:
        self.windows = windows
        if time.monotonic() >= self._next or self._worker.stopping:
            self._worker.note(self._job, done, windows)
            self._next = time.monotonic() + _TELL


class _Stopped(Exception):
    """This process ends."""


class _Cancelled(Exception):
    """Somebody cancelled the job."""
