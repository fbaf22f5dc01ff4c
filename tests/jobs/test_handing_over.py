"""Jobs of several processes: each is done by one, and taken over from who stops or dies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.jobs.bringing import BOUND, Bring, files, made, on_disk, task, until

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.jobs.bringing import Bring, made
bring = Bring()
bring.does = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == "b.txt" else None
jobs = made(Path(sys.argv[1]), bring)
jobs.start()
jobs.stopped(30)
"""


def test_a_process_that_stops_hands_its_job_over_in_the_middle(tmp_path: Path, bring: Bring) -> None:
    first = made(tmp_path, bring)
    began = threading.Event()

    def waits(name: str) -> None:
        if name == "b":
            began.set()
            first.stopped(BOUND)

    bring.does = waits
    job = first.submit(task("a", "b", "c"), files(b"1", b"2", b"3"), "secret")
    assert began.wait(BOUND)
    first.close()
    left = first.get(job.id)
    assert (left.state, [d["name"] for d in left.documents]) == ("queued", ["a"])

    other = Bring()
    second = made(tmp_path, other)
    second.start()
    try:
        done = until(second, job.id)
        assert (done.state, [d["name"] for d in done.documents]) == ("done", ["a", "b", "c"])
        assert other.brought == [("b", b"2", "secret"), ("c", b"3", "secret")]
    finally:
        second.close()


def test_of_two_that_serve_the_same_folders_one_works_on_a_job(tmp_path: Path) -> None:
    brings = [Bring(), Bring()]
    both = [made(tmp_path, bring) for bring in brings]
    try:
        ids = [both[n % 2].submit(task(f"{n}"), files(b"1")).id for n in range(20)]
        assert {until(both[0], job_id).state for job_id in ids} == {"done"}
    finally:
        for jobs in both:
            jobs.close()
    brought = sorted(int(name) for bring in brings for name, _, _ in bring.brought)
    assert brought == list(range(20))


def killed(folder: Path) -> None:
    """A process that takes the job over, and dies in the middle of the file b.txt."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], timeout=BOUND, env=environment)
    assert done.returncode == -9


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_job_of_a_killed_process_is_taken_over(tmp_path: Path, bring: Bring) -> None:
    asleep = made(tmp_path, bring)
    asleep.stop()  # acknowledges, and does nothing
    job = asleep.submit(task("a.txt", "b.txt"), files(b"1", b"2"), "secret")
    killed(tmp_path)
    left = asleep.get(job.id)
    assert (left.state, len(left.documents)) == ("running", 1)
    jobs = made(tmp_path, bring)
    jobs.start()
    try:
        assert until(jobs, job.id).state == "done"
        assert bring.brought == [("b.txt", b"2", "secret")]
    finally:
        jobs.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_file_that_kills_each_process_is_left_out_in_the_end(tmp_path: Path, bring: Bring) -> None:
    asleep = made(tmp_path, bring)
    asleep.stop()
    job = asleep.submit(task("b.txt", "c.txt"), files(b"1", b"2"))
    for _ in range(5):
        killed(tmp_path)
    jobs = made(tmp_path, bring)
    jobs.start()
    try:
        done = until(jobs, job.id)
        assert [(d["name"], d["status"]) for d in done.documents] == [("b.txt", "failed"), ("c.txt", "ready")]
        assert "5 times" in done.documents[0]["reason"]
    finally:
        jobs.close()


def test_a_running_job_whose_process_died_can_be_cancelled(tmp_path: Path, bring: Bring) -> None:
    asleep = made(tmp_path, bring)
    asleep.stop()
    job = asleep.submit(task("b.txt"), files(b"1"))
    if sys.platform != "win32":
        killed(tmp_path)
        assert asleep.get(job.id).state == "running"
    assert asleep.cancel(job.id).state == "cancelled"
    assert on_disk(tmp_path) == []


def test_what_a_death_left_between_two_steps_is_swept_away(tmp_path: Path, bring: Bring) -> None:
    asleep = made(tmp_path, bring)
    asleep.stop()
    kept = asleep.submit(task("a"), files(b"1"))
    (tmp_path / "u/.jobs/never-noted").mkdir()
    (tmp_path / "u/.jobs/never-noted/0").write_bytes(b"x")
    other = made(tmp_path, bring)
    other.stop()
    other.start()
    assert [path.name for path in (tmp_path / "u/.jobs").iterdir() if path.is_dir()] == [kept.id]


def test_a_job_whose_files_somebody_deleted_fails_and_holds_nobody_up(tmp_path: Path, bring: Bring) -> None:
    asleep = made(tmp_path, bring)
    asleep.stop()
    gone, other = (asleep.submit(task("a"), files(b"1")).id for _ in range(2))
    for path in (tmp_path / "u/.jobs" / gone).iterdir():
        path.unlink()
    (tmp_path / "u/.jobs" / gone).rmdir()
    jobs = made(tmp_path, bring)
    jobs.start()
    try:
        assert until(jobs, gone).state == "failed"
        assert "send them again" in jobs.get(gone).reason
        assert until(jobs, other).state == "done"
    finally:
        jobs.close()
