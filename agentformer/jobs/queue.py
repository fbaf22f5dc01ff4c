"""The job queue of the HTTP API, and the worker thread. The worker ingests the files of one job at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from filelock import FileLock

from agentformer.errors import NotFound, StoreError
from agentformer.jobs.files import JobFiles
from agentformer.jobs.store import Job, JobStore, Task, any_usable
from agentformer.types import new_id

log = logging.getLogger("agentformer")

FILE = "jobs.sqlite"
FOLDER = ".jobs"
_CLOSE_SECONDS = (
    10.0  # seconds for the current file when the queue closes; after that, the file is ingested again later
)
_POLL_SECONDS = 1.0  # seconds between checks of jobs that other processes work on
_PROGRESS_SECONDS = 0.5  # seconds between two writes of the progress; each write waits for the disk
_MAX_PAUSE = 60.0  # seconds between attempts while the store cannot be written
_MAX_ATTEMPTS = (
    5  # attempts at a file that crashes the process; then the file fails, and the job continues with the other files
)

_NONE_USABLE = "no file was stored as a document; `documents` contains the reasons"
_STORE_REFUSES = "the store cannot be written now; the server tries the job again later"
_FILES_MISSING = "the uploaded files are missing on this server; send them again"
_CRASHED = f"the server crashed {_MAX_ATTEMPTS} times while it read this file"
_INTERNAL_ERROR = "an internal error occurred; see the server's log"


class Ingestor(Protocol):
    """Ingests one file of a job."""

    def ingest(
        self, job: Job, name: str, file: BinaryIO, password: str | None, progress: Progress
    ) -> Mapping[str, Any]:
        """Ingest the file and return the outcome as JSON with a `status`. A second call with the same bytes must change
        nothing. If `progress` raises an exception, the work is cancelled and nothing of the file may be stored.
        `StoreError` means that the caller should try again later."""

    def failed(self, job: Job, name: str, reason: str) -> Mapping[str, Any]:
        """Return the outcome of a file that cannot be ingested."""


class Progress(Protocol):
    """Receives two numbers: the windows that are done, and all windows of the file."""

    def __call__(self, done: int, windows: int, /) -> None: ...


class Jobs:
    """The jobs of one memory. Several processes may use the same folders. Each job is processed by one of these
    processes; if this process dies, another process continues the job. Thread-safe.

    After `submit` has returned a job, the job and its files are on the disk. The job ends at some time, even if this
    process dies. The files and the password are deleted when the job ends. Raises `StoreError` and its subclasses.
    """

    def __init__(self, index_dir: Path, upload_dir: Path, ingestor: Ingestor, *, most: int, days: float) -> None:
        self._store = JobStore(index_dir / FILE)
        self._files = JobFiles(upload_dir / FOLDER)
        self._worker = _Worker(self._store, self._files, ingestor)
        self._limit = most
        self._retention = timedelta(days=days)
        self._closed = False

    def start(self) -> None:
        """Continue the jobs of earlier processes. If the store cannot be read now, log a warning."""
        try:
            self._clean_up()
            if self._store.active():
                self._worker.wake()
        except (StoreError, OSError) as error:
            log.error("the jobs cannot be read: %s", error)

    def submit(self, task: Task, files: Sequence[BinaryIO], password: str | None = None) -> Job:
        """Queue a new job. Raises `Busy` if too many jobs are active, `StoreFull`, and `StoreError` after `close`. If
        this method raises, nothing is stored."""
        if self._closed:
            raise StoreError("the job queue is closed; open the memory again")
        self._store.check_limit(self._limit)
        self._store.delete_older(self._retention)
        job_id = new_id()
        lock = self._files.put(job_id, files, password)
        try:
            job = self._store.add(job_id, task, self._limit)
        except BaseException:
            lock.release()
            self._files.remove(job_id)
            raise
        lock.release()
        self._worker.wake()
        return job

    def get(self, job_id: str) -> Job:
        """Return a job. Raises `NotFound`."""
        return self._store.get(job_id)

    def page(self, namespaces: Sequence[str], *, after: str = "", limit: int = 100) -> list[Job]:
        """Return at most `limit` jobs of the namespaces, the newest first. Only jobs older than the job `after` are
        returned. If `namespaces` is empty, jobs of all namespaces are returned."""
        return self._store.page(namespaces, after, limit)

    def cancel(self, job_id: str) -> Job:
        """End a job. If no process works on the job, it ends at once; otherwise it ends after the current file or
        batch. Stored documents stay. Raises `NotFound`, and `Conflict` if the job has already ended."""
        job = self._store.cancel(job_id)
        if lock := self._files.lock(job_id):
            self._store.end(job_id, "cancelled")
            lock.release()
            self._files.remove(job_id)
            job = self._store.get(job_id)
        return job

    def stop(self) -> None:
        """Interrupt the running job without waiting. The next process continues the job."""
        self._worker.stop()

    def stopped(self, seconds: float) -> bool:
        """Wait at most `seconds` for `stop` or `close`. Return True if `stop` or `close` was called."""
        return self._worker.stopping.wait(seconds)

    def close(self) -> None:
        """Interrupt the running job and wait a few seconds for the worker. Idempotent. After this, no new job is
        accepted."""
        self._closed = True
        self._worker.stop()
        self._worker.join(_CLOSE_SECONDS)
        self._store.close()

    def _clean_up(self) -> None:
        """Delete old jobs. Also delete the files of a job that ended or was never queued because its process died."""
        self._store.delete_older(self._retention)
        for job_id in self._files.ids():
            if not self._is_active(job_id):
                self._files.remove_unlocked(job_id)

    def _is_active(self, job_id: str) -> bool:
        try:
            return not self._store.get(job_id).ended
        except NotFound:
            return False


class _Worker:
    """The thread that works on jobs. `wake` starts the thread. `stop` puts the current job back into the queue."""

    def __init__(self, store: JobStore, files: JobFiles, ingestor: Ingestor) -> None:
        self._store = store
        self._files = files
        self._ingestor = ingestor
        self._woken = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pause = 1.0
        self.stopping = threading.Event()

    def wake(self) -> None:
        """Look for jobs now. Start the thread if it is not running."""
        self._woken.set()
        with self._starting:
            if not self.stopping.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="agentformer-jobs", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop after the current file or batch, without waiting."""
        self.stopping.set()
        self._woken.set()

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the thread to end."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _run(self) -> None:
        while not self.stopping.is_set():
            self._woken.clear()
            seconds = self._run_next()
            self._woken.wait(seconds)

    def _run_next(self) -> float | None:
        """Work on one job. Return the seconds to wait before the next job, or None to wait for a wake-up."""
        try:
            for job_id in self._store.active():
                if lock := self._files.lock(job_id):
                    self._run_job(job_id, lock)
                    self._pause = 1.0
                    return 0
                if not self._files.has(job_id):
                    self._store.end(job_id, "failed", _FILES_MISSING)
                    return 0
            return _POLL_SECONDS if self._store.active() else None
        except StoreError as error:
            log.error("jobs wait for %g s: %s", self._pause, error)
        except Exception:
            log.exception("jobs wait for %g s", self._pause)
        pause, self._pause = self._pause, min(self._pause * 2, _MAX_PAUSE)
        return pause

    def _run_job(self, job_id: str, lock: FileLock) -> None:
        """Work on a job until the job ends or this process stops. Release the lock. If the job has ended, delete its
        files."""
        ended = True
        try:
            job = self._store.start(job_id)
            if job is not None:
                self._ingest_files(job)
        except _Stopped:
            ended = False
            self._store.requeue(job_id)
        except _Cancelled:
            self._store.end(job_id, "cancelled")
        except BaseException:
            ended = False
            self._store.requeue(job_id, _STORE_REFUSES)
            raise
        finally:
            lock.release()
            if ended:
                self._files.remove(job_id)

    def _ingest_files(self, job: Job) -> None:
        password = self._files.password(job.id)
        while len(job.documents) < len(job.task.names):
            self._check(job)
            job = self._ingest_file(job, len(job.documents), password)
        if any_usable(job.documents):
            self._store.end(job.id, "done")
        else:
            self._store.end(job.id, "failed", _NONE_USABLE)

    def _ingest_file(self, job: Job, number: int, password: str | None) -> Job:
        """Ingest the next file and return the job with its outcome. If a process was killed before it stored an
        outcome, the file is ingested again, which changes nothing."""
        progress = _FileProgress(self, job)
        name = job.task.names[number]
        try:
            if self._store.count_attempt(job.id) > _MAX_ATTEMPTS:
                document = self._ingestor.failed(job, name, _CRASHED)
            else:
                with self._files.open(job.id, number) as file:
                    document = self._ingestor.ingest(job, name, file, password, progress)
        except (StoreError, _Stopped, _Cancelled):
            raise
        except FileNotFoundError:
            document = self._ingestor.failed(job, name, _FILES_MISSING)
        except Exception:
            log.exception("a file of the job %s", job.id)
            document = self._ingestor.failed(job, name, _INTERNAL_ERROR)
        return self._store.add_outcome(job, document, job.windows + progress.windows)

    def _check(self, job: Job) -> None:
        """Raise `_Stopped` or `_Cancelled` if the job must not continue."""
        if self.stopping.is_set():
            raise _Stopped
        if job.cancelling:
            raise _Cancelled

    def store_progress(self, job: Job, done: int, windows: int) -> None:
        """Store the progress of the current file. Raises `_Stopped` or `_Cancelled`."""
        self._check(self._store.set_progress(job.id, job.windows + done, job.windows + windows))


class _FileProgress:
    """Stores the progress of one file, at most twice a second."""

    def __init__(self, worker: _Worker, job: Job) -> None:
        self._worker = worker
        self._job = job
        self._next = time.monotonic() + _PROGRESS_SECONDS
        self.windows = 0

    def __call__(self, done: int, windows: int, /) -> None:
        self.windows = windows
        if time.monotonic() >= self._next or self._worker.stopping.is_set():
            self._worker.store_progress(self._job, done, windows)
            self._next = time.monotonic() + _PROGRESS_SECONDS


class _Stopped(Exception):
    """This process is stopping."""


class _Cancelled(Exception):
    """The job was cancelled."""
