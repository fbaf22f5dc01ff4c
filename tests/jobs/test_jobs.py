"""Jobs in one process, without HTTP: they are worked on, reported, cancelled and deleted."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import Busy, Conflict, NotFound, StoreError, StoreFull
from agentformer.jobs.queue import _PROGRESS_SECONDS, Jobs
from agentformer.jobs.store import Job, JobStore, Progress, Task
from tests.jobs.helpers import BOUND, RecordingIngestor, files, open_jobs, remaining_folders, task, until


def test_a_job_ingests_each_file_and_reports_its_outcome(
    jobs: Jobs, ingestor: RecordingIngestor, tmp_path: Path
) -> None:
    job = jobs.submit(task("a.txt", "a.txt", "empty.txt"), files(b"one", b"two", b""), "secret")
    assert (job.state, job.progress()["files"], job.documents) == ("queued", 3, ())
    done = until(jobs, job.id)
    assert (done.state, done.reason) == ("done", "")
    assert [(d["name"], d["status"]) for d in done.documents] == [
        ("a.txt", "ready"),
        ("a.txt", "ready"),
        ("empty.txt", "failed"),
    ]
    counts = {"files_done": 3, "files": 3, "pages": 0, "chunks": 0}
    assert done.progress() == {**counts, "windows_done": 6, "windows": 6}
    assert ingestor.ingested == [("a.txt", b"one", "secret"), ("a.txt", b"two", "secret"), ("empty.txt", b"", "secret")]
    assert remaining_folders(tmp_path) == []


class SlowReader(RecordingIngestor):
    """Reports the size of the text, and waits."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def ingest(self, job: Job, name: str, prepared: Any, progress: Any) -> dict[str, Any]:
        progress.read(12, 30)
        self.go.wait(BOUND)
        return {"name": name, "status": "ready", "pages": 12, "chunks": 30}


def test_the_pages_of_the_present_file_are_counted_as_soon_as_they_are_read(tmp_path: Path) -> None:
    ingestor = SlowReader()
    with closing(open_jobs(tmp_path, ingestor)) as jobs:
        job = jobs.submit(task("a.pdf", "b.pdf"), files(b"1", b"2"))
        seen = until(jobs, job.id, lambda job: job.reading != (0, 0))
        assert (seen.progress()["pages"], seen.progress()["chunks"], seen.progress()["files_done"]) == (12, 30, 0)
        ingestor.go.set()
        assert until(jobs, job.id).progress()["pages"] == 24


def test_a_password_is_deleted_when_the_job_ends(jobs: Jobs, ingestor: RecordingIngestor, tmp_path: Path) -> None:
    go = threading.Event()
    ingestor.action = lambda name: go.wait(BOUND)
    job = jobs.submit(task("a.txt"), files(b"one"), "canary-5309")
    until(jobs, job.id, lambda job: job.state == "running")
    assert any(b"canary-5309" in data for data in contents(tmp_path))
    go.set()
    until(jobs, job.id)
    assert remaining_folders(tmp_path) == []
    assert not any(b"canary-5309" in data for data in contents(tmp_path))


def contents(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        with suppress(OSError):
            yield path.read_bytes()


def test_a_job_without_a_usable_file_fails(jobs: Jobs) -> None:
    failed = until(jobs, jobs.submit(task("a", "b"), files(b"", b"")).id)
    assert (failed.state, len(failed.documents)) == ("failed", 2)
    assert "documents" in failed.reason


def test_an_unexpected_error_fails_its_file_only(jobs: Jobs, ingestor: RecordingIngestor) -> None:
    def breaks(name: str) -> None:
        if name == "bad":
            raise RuntimeError("/home/someone/secret")

    ingestor.action = breaks
    done = until(jobs, jobs.submit(task("bad", "good"), files(b"1", b"2")).id)
    assert [d["status"] for d in done.documents] == ["failed", "ready"]
    assert "secret" not in str(done.as_json())


def test_a_job_over_the_limit_is_refused_and_stores_nothing(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    go = threading.Event()
    ingestor.action = lambda name: go.wait(BOUND)
    jobs = open_jobs(tmp_path, ingestor, most=2)
    try:
        kept = [jobs.submit(task("a"), files(b"1")).id for _ in range(2)]
        with pytest.raises(Busy) as refused:
            jobs.submit(task("a"), files(b"1"))
        assert (refused.value.limit, refused.value.retry_after > 0) == ("max_jobs", True)
        assert sorted(path.name for path in (tmp_path / "u/.jobs").iterdir() if path.is_dir()) == sorted(kept)
        go.set()
        assert [until(jobs, each).state for each in kept] == ["done", "done"]
        assert until(jobs, jobs.submit(task("a"), files(b"1")).id).state == "done"
    finally:
        jobs.close()


def test_a_key_gets_no_more_places_than_it_leaves_free(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")

    def added(key: str) -> int:
        """How many jobs of a key the queue takes."""
        for count in range(40):
            try:
                store.check_limit(key, 32)
                store.add(f"{key}-{count}", Task("default", ("a.txt",), {}, key_id=key), 32)
            except Busy:
                return count
        return 40

    assert [added(key) for key in ("a", "b", "c", "")] == [16, 8, 4, 4]
    assert [job.id for job in store.page((), "", 3, "b")] == ["b-7", "b-6", "b-5"]
    store.close()


def test_jobs_are_listed_newest_first_by_namespace_and_page(jobs: Jobs) -> None:
    ids = [jobs.submit(task("a", namespace=space), files(b"1")).id for space in ("x", "y", "x", "z")]
    assert [job.id for job in jobs.page(())] == ids[::-1]
    assert [job.id for job in jobs.page(("x", "z"))] == [ids[3], ids[2], ids[0]]
    assert [job.id for job in jobs.page(("x", "z"), after=ids[3], limit=1)] == [ids[2]]
    assert jobs.page(("nowhere",)) == []


def test_reading_jobs_creates_no_file(jobs: Jobs, tmp_path: Path) -> None:
    jobs.start()
    assert jobs.page(()) == []
    with pytest.raises(NotFound):
        jobs.get("x")
    with pytest.raises(NotFound):
        jobs.cancel("x")
    assert [*tmp_path.rglob("*")] == [tmp_path / "i"]


def test_a_queued_job_is_cancelled_at_once(jobs: Jobs, ingestor: RecordingIngestor, tmp_path: Path) -> None:
    go = threading.Event()
    ingestor.action = lambda name: go.wait(BOUND)
    first = jobs.submit(task("a"), files(b"1"))
    until(jobs, first.id, lambda job: job.state == "running")
    second = jobs.submit(task("b"), files(b"2"))
    assert jobs.cancel(second.id).state == "cancelled"
    assert not (tmp_path / "u/.jobs" / second.id).exists()
    with pytest.raises(Conflict, match="cancelled"):
        jobs.cancel(second.id)
    go.set()
    assert until(jobs, first.id).state == "done"
    assert [name for name, _, _ in ingestor.ingested] == ["a"]


def test_a_running_job_is_cancelled_before_the_next_file(
    jobs: Jobs, ingestor: RecordingIngestor, tmp_path: Path
) -> None:
    go = threading.Event()
    ingestor.action = lambda name: go.wait(BOUND)
    job = jobs.submit(task("a", "b"), files(b"1", b"2"))
    until(jobs, job.id, lambda job: job.state == "running")
    asked = jobs.cancel(job.id)
    assert (asked.state, asked.cancelling) == ("running", True)
    go.set()
    ended = until(jobs, job.id)
    assert (ended.state, [d["name"] for d in ended.documents]) == ("cancelled", ["a"])
    assert remaining_folders(tmp_path) == []


@pytest.mark.slow
def test_a_running_job_is_cancelled_before_the_next_batch(jobs: Jobs, tmp_path: Path) -> None:
    class Batches(RecordingIngestor):
        def ingest(self, job: Job, name: str, prepared: Any, progress: Progress) -> Any:
            for done in range(100_000):
                progress(done, 100_000)
                time.sleep(0.01)
            raise AssertionError("it was never broken off")

    jobs = open_jobs(tmp_path, Batches())
    try:
        job = jobs.submit(task("a"), files(b"1"))
        seen = until(jobs, job.id, lambda job: job.windows_done > 0)
        assert seen.progress()["windows"] == 100_000
        jobs.cancel(job.id)
        ended = until(jobs, job.id)
        assert (ended.state, ended.documents) == ("cancelled", ())
    finally:
        jobs.close()


def test_a_store_error_puts_the_job_back_into_the_queue(jobs: Jobs, ingestor: RecordingIngestor) -> None:
    faults = [StoreFull("/somewhere is full"), StoreError("locked")]

    def full(name: str) -> None:
        if faults:
            raise faults.pop()

    ingestor.action = full
    jobs._worker._pause = 0.1  # seconds before the next attempt
    job = jobs.submit(task("a"), files(b"1"))
    waiting = until(jobs, job.id, lambda job: bool(job.reason))
    assert (waiting.state, "/somewhere" in waiting.reason) == ("queued", False)
    done = until(jobs, job.id)
    assert (done.state, done.reason, len(done.documents)) == ("done", "", 1)


def test_files_that_cannot_be_written_raise_store_full(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    (tmp_path / "u").write_text("a file, where the folder should be")
    jobs = open_jobs(tmp_path, ingestor)
    with pytest.raises(StoreFull):
        jobs.submit(task("a"), files(b"1"))
    assert jobs.page(()) == []
    jobs.close()


def test_a_job_that_cannot_be_queued_leaves_no_files(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    (tmp_path / "i" / "jobs.sqlite").mkdir(parents=True)
    jobs = open_jobs(tmp_path, ingestor)
    with pytest.raises(StoreError):
        jobs.submit(task("a"), files(b"1"))
    assert not [path for path in tmp_path.rglob("*") if path.name == "0"]
    jobs.close()


def test_ended_jobs_are_deleted_after_their_retention(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    jobs = open_jobs(tmp_path, ingestor, days=0)
    try:
        old = until(jobs, jobs.submit(task("a"), files(b"1")).id)
        new = jobs.submit(task("a"), files(b"1"))
        with pytest.raises(NotFound):
            jobs.get(old.id)
        assert [job.id for job in jobs.page(())] == [new.id]
    finally:
        jobs.close()


def test_an_active_job_is_never_too_old(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    jobs = open_jobs(tmp_path, ingestor, days=0)
    jobs.stop()  # accepts jobs and works on none
    first = jobs.submit(task("a"), files(b"1"))
    second = jobs.submit(task("a"), files(b"1"))
    assert [job.id for job in jobs.page(())] == [second.id, first.id]
    jobs.close()


def test_progress_counts_the_windows_of_all_files(
    jobs: Jobs, ingestor: RecordingIngestor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentformer.jobs.queue._PROGRESS_SECONDS", 0)
    seen: list[tuple[int, int, int]] = []

    def look(name: str) -> None:
        (job,) = jobs.page(())
        seen.append((len(job.documents), job.windows_done, job.windows))

    ingestor.action = look
    until(jobs, jobs.submit(task("a", "b"), files(b"1", b"2")).id)
    assert seen == [(0, 1, 2), (1, 3, 4)]


def test_progress_is_stored_at_most_twice_a_second(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Windows(RecordingIngestor):
        def ingest(self, job: Job, name: str, prepared: Any, progress: Progress) -> Any:
            for done in range(1_000):
                progress(done, 1_000)
            return {"name": name, "status": "ready"}

    clock = iter(n / 400 for n in range(100_000))  # each reading is 2.5 ms later
    jobs = open_jobs(tmp_path, Windows())
    stored: list[int] = []
    set_progress = jobs._store.set_progress
    monkeypatch.setattr(jobs._store, "set_progress", lambda *args: (stored.append(args[1]), set_progress(*args))[1])
    monkeypatch.setattr("agentformer.jobs.queue.time.monotonic", lambda: next(clock))
    try:
        job = jobs.submit(task("a"), files(b"1"))
        while not jobs.get(job.id).ended:
            time.sleep(0.01)
        assert 1_000 / 400 / _PROGRESS_SECONDS - 2 <= len(stored) <= 1_000 / 400 / _PROGRESS_SECONDS
    finally:
        monkeypatch.undo()
        jobs.close()


def test_pauses_double_up_to_a_minute_while_the_store_fails(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise StoreError("locked")

    worker = jobs._worker
    with monkeypatch.context() as patch:
        patch.setattr(worker._store, "active", fail)
        assert [worker._run_next() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert worker._run_next() is None  # no job is active: wait for a wake-up


def test_the_files_of_a_job_are_private(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    jobs = open_jobs(tmp_path, ingestor)
    jobs.stop()
    folder = tmp_path / "u/.jobs" / jobs.submit(task("a"), files(b"1"), "secret").id
    assert sorted(path.name for path in folder.iterdir()) == ["0", "lock", "password"]
    if os.name == "posix":
        assert (folder.stat().st_mode & 0o777, (folder / "password").stat().st_mode & 0o777) == (0o700, 0o600)
    jobs.close()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_a_former_version_is_migrated(tmp_path: Path, version: int) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    old = store.add("1", Task("default", ("a.txt",), {}), 10)
    store.close()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as connection:
        for column in ("on_conflict", "key_id", "user_id")[version - 1 :]:
            connection.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        connection.execute(f"PRAGMA user_version = {version}")
    task = Task("default", ("b.txt",), {}, "keep-both", "k1", "aino")
    assert store.add("2", task, 10).task == task
    assert store.get("1") == old
    store.close()


def test_jobs_of_a_newer_version_are_refused(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    jobs = open_jobs(tmp_path, ingestor)
    with closing(sqlite3.connect(tmp_path / "i" / "jobs.sqlite")) as connection:
        connection.execute("CREATE TABLE jobs (id TEXT)")
        connection.execute("PRAGMA user_version = 5")
    with pytest.raises(StoreError, match="version 5 of the file; this release knows only 4"):
        jobs.get("x")
    jobs.close()


def test_a_damaged_job_database_is_logged_at_start(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "jobs.sqlite").write_bytes(b"not a database, " * 100)
    jobs = open_jobs(tmp_path, ingestor)
    jobs.start()
    with pytest.raises(StoreError, match="damaged"):
        jobs.get("x")
    jobs.close()
