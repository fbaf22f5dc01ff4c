"""The queue of upload jobs of the HTTP API, and the worker thread, which ingests the files of one job at a time."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from filelock import FileLock, Timeout

from agentformer.actor import ACTOR, Actor
from agentformer.ahead import AHEAD_BYTES, one_ahead
from agentformer.errors import Conflict, NotFound, StoreBusy, StoreDamaged, StoreError, store_failure
from agentformer.jobs.shared import SharedJobFiles
from agentformer.jobs.store import FileProgress, Job, JobStore, Progress, Task, any_usable
from agentformer.records.integrity.files import sync_folder, write_atomically
from agentformer.settings.access import file_lock, make_folder, opener, sync_file
from agentformer.types import HeldLock, Stopped, new_id

log = logging.getLogger("agentformer")

FILE = "jobs.sqlite"
FOLDER = ".jobs"
_LOCK, _PASSWORD = "lock", "password"  # file names in the folder of a job
_BLOCK = 1024 * 1024
_CLOSE_SECONDS = 10.0  # seconds to wait for the current file when the queue closes; a later process ingests it again
_POLL_SECONDS = 1.0  # seconds between checks of jobs that other processes work on
_END_SECONDS, _END_POLL = 60.0, 0.05  # the longest wait for the end of a cancelled job; seconds between two looks
_PROGRESS_SECONDS = 0.5  # seconds between two writes of the progress; each write waits for the disk
_MAX_PAUSE = 60.0  # seconds between attempts while the store cannot be written
_MAX_ATTEMPTS = 5  # attempts at a file that crashes the process; after these, the job continues with the next file

_NONE_USABLE = "no file was stored as a document; the field `documents` contains the reason for each file"
_STORE_REFUSES = "the server cannot write to the store now, and will try the job again later"
_FILES_MISSING = "the uploaded files are missing on this server; upload the files again"
_CRASHED = (
    f"the server crashed {_MAX_ATTEMPTS} times while it read this file; check the file and the memory of the server"
)
_INTERNAL_ERROR = "an internal error occurred; the log of the server has the details"


class Ingestor(Protocol):
    """The interface through which the queue stores an uploaded file as a document. The server implements it."""

    def prepare(self, job: Job, number: int, file: BinaryIO, password: str | None, stopped: Stopped | None) -> Any:
        """Return the file `number` of the job for `ingest`. Store nothing. The queue may call this method in another
        thread while it ingests the file before; `stopped` is then given, and returns True if the result is not needed
        any more."""

    def ingest(self, job: Job, name: str, prepared: Callable[[], Any], progress: Progress) -> Mapping[str, Any]:
        """Ingest a file, and return the outcome as a dict of JSON values with the key `status`. `prepared` returns the
        file, or raises the error of `prepare` or of opening the file. A second call with the same bytes changes
        nothing. If `progress` raises an exception, the call stops and stores nothing of the file. Raises `StoreError`
        if the caller must try again later."""

    def failed(self, job: Job, name: str, reason: str) -> Mapping[str, Any]:
        """Return the JSON outcome of a file that cannot be ingested. `reason` is a text for users."""


class Jobs:
    """The upload jobs of one memory. Several processes may use the same folders. One process at a time works on a job;
    if this process dies, another process continues the job. Thread-safe.

    When `submit` returns a job, the job and its files are on disk, so the job is completed even if this process dies.
    The files and the password are deleted when the job ends. Methods raise `StoreError` or a subclass if the jobs
    cannot be read or written."""

    def __init__(
        self,
        index_dir: Path,
        upload_dir: Path,
        ingestor: Ingestor,
        *,
        most: int,
        days: float,
        shared: tuple[JobStore, JobFiles] | None = None,
        former_dir: Path | None = None,
    ) -> None:
        """`most` is the largest number of jobs that are queued or running. `days` is the number of days for which an
        ended job is kept. `ingestor` ingests the files. `shared` holds the jobs and the files of a memory that several
        nodes share. Without it, the jobs are in `index_dir` and the files in `upload_dir`. Files of jobs of an earlier
        version, which several memories may share, are in `former_dir`."""
        self._store, self._files = shared or stored_jobs(index_dir, upload_dir, former_dir)
        self._worker = _Worker(self._store, self._files, ingestor)
        self._limit = most
        self._retention = timedelta(days=days)
        self._closed = False

    def start(self) -> None:
        """Continue the jobs that earlier processes did not complete. If their files are in the folder of another
        memory, of which this memory is a copy, take copies of them. Delete jobs that ended long ago, and files that no
        job needs. Recent files without a job are kept: the database of the jobs may have been lost. If the jobs cannot
        be read, log an error and continue without them."""
        try:
            self._store.delete_older(self._retention)
            if isinstance(self._files, _JobFiles):
                for job_id in self._store.active():
                    self._files.adopt(job_id)
            present = self._files.ids()
            known = self._store.ids() if present else set[str]()
            for job_id in present:
                if job_id in known or not self._files.is_newer(job_id, self._retention):
                    self._files.remove_unneeded(job_id, self._store)
                else:
                    log.warning("uploaded files without a job are kept for some days: %s/%s", FOLDER, job_id)
            if self._store.shared or self._store.active():
                self._worker.wake()
        except (StoreError, OSError) as error:
            log.error("the upload jobs of earlier processes cannot be read: %s", error)

    def submit(self, task: Task, files: Sequence[BinaryIO], password: str | None = None) -> Job:
        """Add a new job with the uploaded files to the queue. Raises `Busy` if too many jobs are queued or running, in
        total or for the API key of this job (see `JobStore.check_limit`), `StoreFull` if the files cannot be written,
        and `StoreError` after `close`. After an error, nothing is stored."""
        if self._closed:
            raise StoreError("the job queue is closed; open the memory again")
        self._store.check_limit(task.key_id, self._limit)
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
        """Return the job with this id. Raises `NotFound` if there is no such job."""
        return self._worker.with_progress(self._store.get(job_id))

    def page(
        self, namespaces: Sequence[str], *, after: str = "", limit: int = 100, key_id: str | None = None
    ) -> list[Job]:
        """Return jobs of these namespaces, newest first; see `JobStore.page`."""
        return [self._worker.with_progress(job) for job in self._store.page(namespaces, after, limit, key_id)]

    def states(self) -> dict[str, tuple[int, float]]:
        """Return for each state the number of its jobs, and the age of the oldest in seconds."""
        return self._store.states()

    def cancel(self, job_id: str) -> Job:
        """Cancel a job. If a process is working on the job, the job ends when the current file is stored or the current
        batch of texts is embedded; otherwise, the job ends immediately. Documents that were already stored are kept.
        Raises `NotFound`, and `Conflict` if the job has already ended."""
        job = self._store.cancel(job_id)
        if lock := self._files.lock(job_id):
            self._store.end(job_id, "cancelled")
            lock.release()
            self._files.remove(job_id)
            job = self._store.get(job_id)
        return job

    def stop(self) -> None:
        """Ask the worker thread to stop, and return at once. The next process continues the running job."""
        self._worker.stop()

    def stopped(self, seconds: float) -> bool:
        """Wait at most `seconds` until `stop` or `close` is called, and return whether this happened."""
        return self._worker.stopping.wait(seconds)

    def close(self) -> None:
        """Stop the worker thread, wait some seconds for its end, and accept no new job. Idempotent."""
        self._closed = True
        self._worker.stop()
        self._worker.join(_CLOSE_SECONDS)
        self._store.close()


class _Worker:
    """The worker thread, which ingests the files of jobs."""

    def __init__(self, store: JobStore, files: JobFiles, ingestor: Ingestor) -> None:
        self._store = store
        self._files = files
        self._ingestor = ingestor
        self._woken = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pause = 1.0  # seconds to wait after the next error; each error in succession doubles it
        self._damaged: set[str] = set()  # ids of jobs that cannot be read
        self._present: tuple[str, int, FileProgress] | None = None  # job, number of the file, its progress
        self.stopping = threading.Event()

    def wake(self) -> None:
        """Make the worker thread look for jobs immediately. Start the thread if it is not running."""
        self._woken.set()
        with self._starting:
            if not self.stopping.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="agentformer-jobs", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ask the worker thread to stop after the current file or batch of texts, and return without waiting. The
        current job goes back into the queue."""
        self.stopping.set()
        self._woken.set()

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` until the worker thread ends."""
        with self._starting:
            thread = self._thread
        if thread:
            thread.join(seconds)

    def with_progress(self, job: Job) -> Job:
        """Return the job. If this worker ingests a file of the job now, set `reading` to the numbers of pages and
        chunks of this file."""
        present = self._present
        if present is None or present[:2] != (job.id, len(job.documents)):
            return job
        return replace(job, reading=present[2].text)

    def _run(self) -> None:
        while not self.stopping.is_set():
            self._woken.clear()
            seconds = self._run_next()
            self._woken.wait(seconds)

    def _run_next(self) -> float | None:
        """Work on the next job. Return the seconds to wait before the next call, or None to wait for `wake`."""
        try:
            for job_id in [each for each in self._store.active() if each not in self._damaged]:
                if lock := self._files.lock(job_id):
                    self._run_job(job_id, lock)
                    self._pause = 1.0
                    return 0
                if not self._files.has(job_id):
                    self._store.end(job_id, "failed", _FILES_MISSING)
                    return 0
            return _POLL_SECONDS if self._store.shared or self._store.active() else None
        except StoreError as error:
            log.error("the upload jobs are tried again in %g seconds: %s", self._pause, error)
        except Exception:
            log.exception("internal error; the upload jobs are tried again in %g seconds", self._pause)
        pause, self._pause = self._pause, min(self._pause * 2, _MAX_PAUSE)
        return pause

    def _run_job(self, job_id: str, lock: FileLock | HeldLock) -> None:
        """Work on a job until it ends or this process stops, and then release its lock. Also delete its files if it has
        ended."""
        ended = True
        try:
            job = self._start(job_id)
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

    def _start(self, job_id: str) -> Job | None:
        """Start a job. A damaged job and its files stay as they are, and the worker continues with other jobs."""
        try:
            return self._store.start(job_id)
        except StoreDamaged as error:
            self._damaged.add(job_id)
            log.error("%s", error)
            raise _Stopped from None

    def _ingest_files(self, job: Job) -> None:
        """Ingest the files of a job that have no outcome yet, and end the job. It fails if no document is usable."""
        ACTOR.set(Actor(job.task.key_id, via="job", request=job.id))
        password = self._files.password(job.id)

        def prepare(number: int, stopped: Stopped | None) -> Any:
            with self._files.open(job.id, number) as file:
                return self._ingestor.prepare(job, number, file, password, stopped)

        def may_precede(number: int) -> bool:
            """Return whether a file may be read while the one before is ingested. After a crash, each is read alone."""
            return not self._store.attempts(job.id) and self._files.size(job.id, number) <= AHEAD_BYTES

        remaining = range(len(job.documents), len(job.task.names))
        with closing(one_ahead(remaining, prepare, may_precede)) as files:
            for number, prepared in files:
                self._check(job)
                job = self._ingest_file(job, number, prepared)
        if any_usable(job.documents):
            self._store.end(job.id, "done")
        else:
            self._store.end(job.id, "failed", _NONE_USABLE)
        log.info("the job %s has ended, files: %d", job.id, len(job.documents))

    def _ingest_file(self, job: Job, number: int, prepared: Callable[[], Any]) -> Job:
        """Ingest the file `number` of the job, store its outcome, and return the changed job. After a crash, the same
        file is ingested again, but only a limited number of times."""
        total, next_write = 0, time.monotonic() + _PROGRESS_SECONDS

        def progress(done: int, windows: int) -> None:
            nonlocal total, next_write
            total = windows
            if time.monotonic() >= next_write or self.stopping.is_set():
                self._check(self._store.set_progress(job.id, job.windows + done, job.windows + windows))
                next_write = time.monotonic() + _PROGRESS_SECONDS

        name = job.task.names[number]
        try:
            if self._store.count_attempt(job.id) > _MAX_ATTEMPTS:
                document = self._ingestor.failed(job, name, _CRASHED)
            else:
                present = FileProgress(progress)
                self._present = job.id, number, present
                document = self._ingestor.ingest(job, name, prepared, present)
        except (StoreError, _Stopped, _Cancelled):
            raise
        except FileNotFoundError:
            document = self._ingestor.failed(job, name, _FILES_MISSING)
        except Exception:
            log.exception("internal error at a file of the upload job %s", job.id)
            document = self._ingestor.failed(job, name, _INTERNAL_ERROR)
        return self._store.add_outcome(job, document, job.windows + total)

    def _check(self, job: Job) -> None:
        """Raise `_Stopped` if this process is stopping, or `_Cancelled` if a caller has cancelled the job."""
        if self.stopping.is_set():
            raise _Stopped
        if job.cancelling:
            raise _Cancelled


class _JobFiles:
    """The uploaded files of jobs. Each job has a folder with files named 0, 1, 2 and so on, so that a client cannot
    choose a file name on the server. The process that works on a job holds a file lock in this folder. The operating
    system releases the lock if the process dies."""

    def __init__(self, upload_dir: Path, former_dir: Path | None = None) -> None:
        self._folder = upload_dir / FOLDER
        self._former = (former_dir or upload_dir) / FOLDER

    def _of(self, job_id: str) -> Path:
        """Return the folder of a job."""
        own, former = self._folder / job_id, self._former / job_id
        return former if former.exists() and not own.exists() else own

    def put(self, job_id: str, files: Sequence[BinaryIO], password: str | None) -> FileLock:
        """Write the uploaded files and the password of a new job, and sync them. Return the lock of the job, which the
        caller must release. If the files cannot be written, delete all files of the job and raise `StoreFull`."""
        folder = self._folder / job_id
        try:
            make_folder(self._folder)
            with self._guard():  # a clean-up must not delete the folder before the lock is held
                make_folder(folder, new=True)
                lock = file_lock(folder / _LOCK)
                lock.acquire(timeout=0)
            try:
                for number, file in enumerate(files):
                    with open(folder / str(number), "xb", opener=opener) as copy:
                        shutil.copyfileobj(file, copy, _BLOCK)
                        copy.flush()
                        sync_file(copy.fileno())
                if password is not None:
                    write_atomically(folder / _PASSWORD, password.encode("utf-8"))
                for changed in (folder, self._folder, self._folder.parent):
                    sync_folder(changed)
            except BaseException:
                lock.release()
                self.remove(job_id)
                raise
        except (OSError, Timeout) as error:
            raise store_failure(f"{self._folder} cannot be written", error, "free some disk space") from error
        return lock

    def adopt(self, job_id: str) -> None:
        """If there are no files of a job, take copies of the files in the folder of another memory. A copy of a memory
        has its jobs, but another folder. The other memory may need its files, so nothing of it is deleted."""
        folder, copy = self._folder / job_id, self._folder / f"{job_id}.new"
        if self.has(job_id) or not (source := files_elsewhere(self._former.parent, self._folder).get(job_id)):
            return
        make_folder(self._folder)
        with self._guard():
            shutil.rmtree(copy, ignore_errors=True)
            make_folder(copy, new=True)
            for path in source.iterdir():
                if path.name != _LOCK:
                    _link(path, copy / path.name)
            if not folder.exists():  # otherwise another process was faster
                copy.rename(folder)

    def lock(self, job_id: str) -> FileLock | None:
        """Acquire the lock of a job. Return None if another process holds it, or if the job has no folder."""
        lock = file_lock(self._of(job_id) / _LOCK)
        with suppress(OSError, Timeout):
            if self.has(job_id):
                lock.acquire(timeout=0)
        return lock if lock.is_locked else None

    def has(self, job_id: str) -> bool:
        return (self._of(job_id)).is_dir()

    def open(self, job_id: str, number: int) -> BinaryIO:
        """Open the file `number` of a job for reading. Raises `OSError` if the file cannot be opened."""
        return (self._of(job_id) / str(number)).open("rb")

    def size(self, job_id: str, number: int) -> int:
        """Return the size of the file `number` of a job in bytes, or 0 if it is missing."""
        path = self._of(job_id) / str(number)
        return path.stat().st_size if path.exists() else 0

    def password(self, job_id: str) -> str | None:
        """Return the password for the uploaded files of a job, or None if the client sent no password."""
        path = self._of(job_id) / _PASSWORD
        return path.read_text(encoding="utf-8") if path.exists() else None

    def remove(self, job_id: str) -> None:
        """Delete the files of a job. Errors are ignored: the next start of the server deletes what remains."""
        shutil.rmtree(self._of(job_id), ignore_errors=True)

    def ids(self) -> list[str]:
        """Return the ids of all jobs that have a folder, in order."""
        return sorted(path.name for path in self._folder.iterdir() if path.is_dir()) if self._folder.is_dir() else []

    def is_newer(self, job_id: str, age: timedelta) -> bool:
        """Return whether the files of a job were uploaded less than `age` ago."""
        try:
            return time.time() - self._of(job_id).stat().st_mtime < age.total_seconds()
        except OSError:
            return True

    def remove_unneeded(self, job_id: str, store: JobStore) -> None:
        """Delete the files of a job, unless the job is active or a process is still creating it. `store` is asked
        while this method holds the lock of the job, because a process that creates a job holds this lock until the job
        is active."""
        with self._guard():
            if lock := self.lock(job_id):
                needed = job_id in store.active()
                lock.release()
                if not needed:
                    self.remove(job_id)

    def _guard(self) -> FileLock:
        return file_lock(self._folder / ".lock")


JobFiles = _JobFiles | SharedJobFiles


def stored_jobs(index_dir: Path, upload_dir: Path, former_dir: Path | None = None) -> tuple[JobStore, JobFiles]:
    """Return the jobs of a memory on this machine, and their files; see `Jobs`."""
    return JobStore(index_dir / FILE), _JobFiles(upload_dir, former_dir)


def delete_jobs_of(store: JobStore, files: JobFiles, namespace: str, user_id: str) -> int:
    """Cancel the jobs of a user in a namespace, delete them with their files, and return their number. Documents that
    they have stored are kept. A second call completes an interrupted one. Raises `StoreBusy` if another process still
    works on a file of such a job after a minute."""
    ids = store.of_user(namespace, user_id)
    for job_id in ids:
        with suppress(Conflict, NotFound):  # it has ended
            store.cancel(job_id)
    ends = time.monotonic() + _END_SECONDS
    for job_id in ids:
        while files.has(job_id):
            if lock := files.lock(job_id):
                store.end(job_id, "cancelled")
                lock.release()
                files.remove(job_id)
            elif time.monotonic() < ends:
                time.sleep(_END_POLL)
            else:
                raise StoreBusy(f"the upload job {job_id} of this user is still running; try again when it has ended")
        store.end(job_id, "cancelled")  # a job whose files are missing
    store.delete(ids)
    return len(ids)


def files_elsewhere(root: Path, own: Path) -> dict[str, Path]:
    """Return a dictionary: id of a job -> folder with its files, for the jobs of other memories with the upload folder
    `root`. `own` is the folder `.jobs` of this memory."""
    return {path.name: path for path in sorted(root.glob(f"*/{FOLDER}/*")) if path.is_dir() and path.parent != own}


def _link(source: Path, path: Path) -> None:
    """Link a file, or copy it if the file system has no links."""
    try:
        os.link(source, path)
    except OSError:
        write_atomically(path, source.read_bytes())


class _Stopped(Exception):
    """Raised in the worker thread when this process is stopping."""


class _Cancelled(Exception):
    """Raised in the worker thread when the current job was cancelled."""
