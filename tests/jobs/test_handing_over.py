"""Jobs of several processes: one works on each, and another takes over if it stops or dies."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import StoreDamaged
from agentformer.jobs.queue import FILE
from agentformer.jobs.store import JobStore
from agentformer.rag.verify import verify_jobs
from tests import forked
from tests.jobs.helpers import BOUND, RecordingIngestor, files, open_jobs, remaining_folders, task, until

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.jobs.helpers import RecordingIngestor, open_jobs
ingestor = RecordingIngestor()
ingestor.action = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == "b.txt" else None
jobs = open_jobs(Path(sys.argv[1]), ingestor)
jobs.start()
jobs.stopped(30)
"""


def test_a_stopped_process_leaves_its_job_to_the_next(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    first = open_jobs(tmp_path, ingestor)
    began = threading.Event()

    def waits(name: str) -> None:
        if name == "b":
            began.set()
            first.stopped(BOUND)

    ingestor.action = waits
    job = first.submit(task("a", "b", "c"), files(b"1", b"2", b"3"), "secret")
    assert began.wait(BOUND)
    first.close()
    left = first.get(job.id)
    assert (left.state, [d["name"] for d in left.documents]) == ("queued", ["a"])

    other = RecordingIngestor()
    second = open_jobs(tmp_path, other)
    second.start()
    try:
        done = until(second, job.id)
        assert (done.state, [d["name"] for d in done.documents]) == ("done", ["a", "b", "c"])
        assert other.ingested == [("b", b"2", "secret"), ("c", b"3", "secret")]
    finally:
        second.close()


def test_one_of_two_processes_works_on_a_job(tmp_path: Path) -> None:
    ingestors = [RecordingIngestor(), RecordingIngestor()]
    both = [open_jobs(tmp_path, ingestor) for ingestor in ingestors]
    try:
        ids = [both[n % 2].submit(task(f"{n}"), files(b"1")).id for n in range(20)]
        assert {until(both[0], job_id).state for job_id in ids} == {"done"}
    finally:
        for jobs in both:
            jobs.close()
    ingested = sorted(int(name) for ingestor in ingestors for name, _, _ in ingestor.ingested)
    assert ingested == list(range(20))


def run_killed_process(folder: Path) -> None:
    """Run a process that takes the job over and dies in the middle of the file b.txt."""
    done = forked.ended(forked.program(KILLED, folder), BOUND)
    assert done.returncode == -9


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_another_process_takes_over_the_job_of_a_killed_one(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    stopped = open_jobs(tmp_path, ingestor)
    stopped.stop()  # accepts jobs and works on none
    job = stopped.submit(task("a.txt", "b.txt"), files(b"1", b"2"), "secret")
    run_killed_process(tmp_path)
    left = stopped.get(job.id)
    assert (left.state, len(left.documents)) == ("running", 1)
    jobs = open_jobs(tmp_path, ingestor)
    jobs.start()
    try:
        assert until(jobs, job.id).state == "done"
        assert ingestor.ingested == [("b.txt", b"2", "secret")]
    finally:
        jobs.close()


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_file_that_kills_every_process_fails_after_five_attempts(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    stopped = open_jobs(tmp_path, ingestor)
    stopped.stop()
    job = stopped.submit(task("b.txt", "c.txt"), files(b"1", b"2"))
    for _ in range(5):
        run_killed_process(tmp_path)
    jobs = open_jobs(tmp_path, ingestor)
    jobs.start()
    try:
        done = until(jobs, job.id)
        assert [(d["name"], d["status"]) for d in done.documents] == [("b.txt", "failed"), ("c.txt", "ready")]
        assert "5 times" in done.documents[0]["reason"]
    finally:
        jobs.close()


def test_beside_a_file_at_which_a_process_died_no_other_file_is_read(
    tmp_path: Path, ingestor: RecordingIngestor
) -> None:
    """Otherwise the next file could end the process, and the present one would be blamed."""
    stopped = open_jobs(tmp_path, ingestor)
    stopped.stop()
    job = stopped.submit(task("a.txt", "b.txt", "c.txt"), files(b"1", b"2", b"3"))
    store = JobStore(tmp_path / "i" / FILE)
    assert store.count_attempt(job.id) == 1
    with closing(open_jobs(tmp_path, ingestor)) as jobs:
        jobs.start()
        assert until(jobs, job.id).state == "done"
    assert sorted(ingestor.ahead) == [(0, False), (1, False), (2, True)]


@pytest.mark.process
def test_a_running_job_whose_process_died_can_be_cancelled(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    stopped = open_jobs(tmp_path, ingestor)
    stopped.stop()
    job = stopped.submit(task("b.txt"), files(b"1"))
    if sys.platform != "win32":
        run_killed_process(tmp_path)
        assert stopped.get(job.id).state == "running"
    assert stopped.cancel(job.id).state == "cancelled"
    assert remaining_folders(tmp_path) == []


def test_files_without_a_job_are_kept_for_some_days(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    stopped = open_jobs(tmp_path, ingestor)
    stopped.stop()
    kept = stopped.submit(task("a"), files(b"1"))
    for name in ("long-ago", "recent"):
        (tmp_path / f"u/.jobs/{name}").mkdir()
        (tmp_path / f"u/.jobs/{name}/0").write_bytes(b"x")
    os.utime(tmp_path / "u/.jobs/long-ago", (0, 0))
    other = open_jobs(tmp_path, ingestor)
    other.stop()
    other.start()
    assert {path.name for path in (tmp_path / "u/.jobs").iterdir() if path.is_dir()} == {kept.id, "recent"}
    check = verify_jobs(tmp_path / "i", tmp_path / "u").to_check()
    assert not check.found and any("recent" in note for note in check.findings)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks the open file")
def test_a_damaged_byte_in_the_log_of_the_jobs_loses_no_job(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    stopped = open_jobs(tmp_path, ingestor)
    stopped.stop()
    accepted = [stopped.submit(task(str(number)), files(b"1")).id for number in range(4)]
    copied = [tmp_path / "i" / f"jobs.sqlite{end}" for end in ("", "-wal")]
    data = [path.read_bytes() for path in copied]
    stopped.close()
    for number, at in enumerate(range(60, len(data[1]), len(data[1]) // 12)):
        damaged = bytearray(data[1])
        damaged[at] ^= 4
        folder = tmp_path / f"copy{number}"
        folder.mkdir()
        for path, content in zip(copied, (data[0], damaged), strict=True):
            (folder / path.name).write_bytes(content)
        found = verify_jobs(folder, tmp_path / "u").found
        try:
            store = JobStore(folder / "jobs.sqlite")
            assert sorted(store.active()) == accepted and not found
            store.close()
        except StoreDamaged:
            assert found


def test_a_start_keeps_the_files_of_a_job_that_is_queued_in_the_meantime(
    tmp_path: Path, ingestor: RecordingIngestor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = open_jobs(tmp_path, ingestor), open_jobs(tmp_path, ingestor)
    other.stop()
    held = first._files.put("submitted", files(b"1"), None)  # a submission that has written its files
    lock = other._files.lock

    def lock_after_the_submission(job_id: str) -> Any:
        first._store.add("submitted", task("a"), limit=32)
        held.release()
        return lock(job_id)

    monkeypatch.setattr(other._files, "lock", lock_after_the_submission)
    other.start()
    assert (tmp_path / "u/.jobs/submitted/0").read_bytes() == b"1"


def test_a_job_with_deleted_files_fails_and_others_go_on(tmp_path: Path, ingestor: RecordingIngestor) -> None:
    stopped = open_jobs(tmp_path, ingestor)
    stopped.stop()
    missing, other = (stopped.submit(task("a"), files(b"1")).id for _ in range(2))
    for path in (tmp_path / "u/.jobs" / missing).iterdir():
        path.unlink()
    (tmp_path / "u/.jobs" / missing).rmdir()
    jobs = open_jobs(tmp_path, ingestor)
    jobs.start()
    try:
        assert until(jobs, missing).state == "failed"
        assert "upload the files again" in jobs.get(missing).reason
        assert until(jobs, other).state == "done"
    finally:
        jobs.close()
